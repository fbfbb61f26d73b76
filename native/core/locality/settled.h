// Accesses that are known to change nothing: a bit for each, 512 neighbours of one kind in a cache line.
//
// A kind is a group, a class, a width and an alignment; its bits stand for addresses that far apart. A program's working
// set of some megabytes so has its bits in the second-level cache. Keys lie in sets of eight; a new one may push an old one
// out, which costs a look at the table and nothing else.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "kernels.h"

namespace memlens::locality {

class Settled {
 public:
  struct Place {
    uint64_t key = 0;  // 0: this access is not kept here
    unsigned bit = 0;  // 0 to 511
  };

  MEMLENS_INLINE static Place place_of(uint64_t address, uint32_t width, unsigned irregular, uint32_t group) {
    const unsigned width_kind = width <= 64 ? kWidthKinds[width] : 0;
    // The smaller of the width and what the address is a multiple of, as a power of two.
    const unsigned unit = static_cast<unsigned>(std::countr_zero(address | width | 64));
    const uint64_t unit_number = address >> unit;
    const uint64_t kind = uint64_t{group} << 8 | irregular << 7 | unit << 4 | width_kind;
    const bool fits = width_kind != 0 && address >> 47 == 0 && group < 1u << 12;
    return {fits ? (unit_number >> 9) << 20 | kind : 0, static_cast<unsigned>(unit_number) & 511};
  }

  MEMLENS_INLINE void prefetch(const Place& place) const { __builtin_prefetch(&keys_[set_of(place.key)]); }
  // The word with an access's bit, on its way into the cache; one of zeros when there is none.
  MEMLENS_INLINE const uint64_t* word_of(const Place& place) const {
    const uint64_t set = set_of(place.key);
    const uint32_t found = ways_of(set, place.key);
    const uint64_t* const kept =
        &lines_[set * kWays + static_cast<unsigned>(std::countr_zero(found | 1u << 7))].words[place.bit >> 6];
    const uint64_t* const word = found == 0 || place.key == 0 ? &kNothing : kept;
    __builtin_prefetch(word);
    return word;
  }

  MEMLENS_INLINE static bool has(const uint64_t* word, const Place& place) {
    return (*word >> (place.bit & 63) & 1) != 0;
  }

  void add(const Place& place) {
    uint64_t set = set_of(place.key);
    uint32_t ways = ways_of(set, place.key);
    if (ways == 0) ways = ways_of(set, 0);
    if (ways == 0) {
      ++pushed_;
      if (pushed_ * 4 > n_keys() && n_keys() < kMostKeys) {
        grow();
        return add(place);
      }
      ways = 1u << pushed_ % kWays;
      lines_[set * kWays + pushed_ % kWays] = {};
    }
    const unsigned way = static_cast<unsigned>(std::countr_zero(ways));
    keys_[set].put(way, place.key);
    lines_[set * kWays + way].words[place.bit >> 6] |= uint64_t{1} << (place.bit & 63);
  }

  uint64_t bytes() const { return keys_.capacity() * sizeof(Keys) + lines_.capacity() * sizeof(Line); }

 private:
  static constexpr uint64_t kNothing = 0;
  static constexpr uint64_t kMostKeys = uint64_t{1} << 18, kWays = 8;  // at most 18 MB
  // log2(width) << 1 | 1 of widths that are kept here, 0 of others.
  static constexpr std::array<uint8_t, 65> kWidthKinds = [] {
    std::array<uint8_t, 65> kinds{};
    for (unsigned bits = 0; bits <= 6; ++bits) kinds[1u << bits] = static_cast<uint8_t>(bits << 1 | 1);
    return kinds;
  }();
  // Low and high halves apart: 32 bits are what every x86-64 compares at once.
  struct alignas(64) Keys {
    uint32_t lows[kWays] = {}, highs[kWays] = {};
    void put(unsigned way, uint64_t key) {
      lows[way] = static_cast<uint32_t>(key);
      highs[way] = static_cast<uint32_t>(key >> 32);
    }
    uint64_t get(unsigned way) const { return uint64_t{highs[way]} << 32 | lows[way]; }
  };
  struct alignas(64) Line {
    uint64_t words[8] = {};
  };

  MEMLENS_INLINE uint64_t set_of(uint64_t key) const { return key * 0x9E3779B97F4A7C15u >> shift_; }
  uint64_t n_keys() const { return keys_.size() * kWays; }
  // A bit for each way that has a key. Of key 0, which stands for nothing, there may be several.
  MEMLENS_INLINE uint32_t ways_of(uint64_t set, uint64_t key) const {
    const Keys& keys = keys_[set];
    return equal_lanes<8>(keys.lows, static_cast<uint32_t>(key)) &
           equal_lanes<8>(keys.highs, static_cast<uint32_t>(key >> 32));
  }

  void grow() {
    const LargeVector<Keys> keys = std::move(keys_);
    const LargeVector<Line> lines = std::move(lines_);
    keys_ = LargeVector<Keys>(keys.size() * 2);
    shift_ -= 1;
    lines_ = LargeVector<Line>(n_keys());
    pushed_ = 0;
    for (uint64_t i = 0; i < lines.size(); ++i) {
      const uint64_t key = keys[i / kWays].get(i % kWays);
      if (key == 0) continue;
      const uint64_t set = set_of(key);
      const uint32_t ways = ways_of(set, 0);
      if (ways == 0) continue;
      const unsigned way = static_cast<unsigned>(std::countr_zero(ways));
      keys_[set].put(way, key);
      lines_[set * kWays + way] = lines[i];
    }
  }

  static constexpr unsigned kFirstBits = 7;  // of the number of sets
  LargeVector<Keys> keys_ = LargeVector<Keys>(1 << kFirstBits);
  LargeVector<Line> lines_ = LargeVector<Line>(kWays << kFirstBits);
  uint64_t pushed_ = 0;
  unsigned shift_ = 64 - kFirstBits;
};

}  // namespace memlens::locality
