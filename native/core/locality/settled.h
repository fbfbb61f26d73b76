// Accesses that are known to change nothing: a bit for each, 512 neighbours of one kind in a cache line.
//
// A kind is a group, a class, a width and an alignment; its bits stand for addresses that far apart. A program's working
// set of some megabytes so has its bits in the second-level cache. Keys lie in sets of eight; a new one may push an old one
// out, which costs a look at the table and nothing else.
#pragma once

#include <algorithm>
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
    const unsigned width_code = static_cast<unsigned>(std::countr_zero(width | 1u << 7));
    const unsigned unit = std::min(width_code, static_cast<unsigned>(std::countr_zero(address | 1u << 7)));
    const uint64_t unit_number = address >> unit;
    const bool fits = address >> 47 == 0 && std::has_single_bit(width) && width <= 64 && group < 1u << 12;
    const uint64_t kind = uint64_t{group} << 8 | irregular << 7 | unit << 4 | width_code << 1 | 1;
    return {fits ? (unit_number >> 9) << 20 | kind : 0, static_cast<unsigned>(unit_number) & 511};
  }

  // The word with an access's bit, on its way into the cache; one of zeros when there is none.
  MEMLENS_INLINE const uint64_t* word_of(const Place& place) const {
    const uint64_t set = set_of(place.key);
    const unsigned way = way_of(&keys_[set], place.key);
    const uint64_t* const word = way == 0 ? &kNothing : &lines_[set + way - 1].words[place.bit >> 6];
    __builtin_prefetch(word);
    return word;
  }
  MEMLENS_INLINE static bool has(const uint64_t* word, const Place& place) { return (*word >> (place.bit & 63) & 1) != 0; }

  void add(const Place& place) {
    uint64_t set = set_of(place.key);
    unsigned way = way_of(&keys_[set], place.key);
    if (way == 0) way = way_of(&keys_[set], 0);
    if (way == 0) {
      ++pushed_;
      if (pushed_ * 4 > keys_.size() && keys_.size() < kMostKeys) {
        grow();
        return add(place);
      }
      way = static_cast<unsigned>(pushed_ % kWays) + 1;
      lines_[set + way - 1] = {};
    }
    keys_[set + way - 1] = place.key;
    lines_[set + way - 1].words[place.bit >> 6] |= uint64_t{1} << (place.bit & 63);
  }

  uint64_t bytes() const { return keys_.capacity() * 8 + lines_.capacity() * sizeof(Line); }

 private:
  static constexpr uint64_t kNothing = 0;
  static constexpr uint64_t kMostKeys = uint64_t{1} << 18, kWays = 8;  // at most 18 MB
  typedef uint64_t Lanes __attribute__((vector_size(32), aligned(8), may_alias));
  struct alignas(64) Line {
    uint64_t words[8] = {};
  };

  MEMLENS_INLINE uint64_t set_of(uint64_t key) const { return key * 0x9E3779B97F4A7C15u >> shift_ << 3; }
  // 1 to 8; 0 when the set does not have it.
  MEMLENS_INLINE static unsigned way_of(const uint64_t* set, uint64_t key) {
    const Lanes wanted = Lanes{} + key;
    const Lanes low = (*reinterpret_cast<const Lanes*>(set) == wanted) & Lanes{1, 2, 3, 4};
    const Lanes high = (*reinterpret_cast<const Lanes*>(set + 4) == wanted) & Lanes{5, 6, 7, 8};
    if (key == 0) {  // several may be empty
      for (unsigned k = 0; k < kWays; ++k)
        if (set[k] == 0) return k + 1;
      return 0;
    }
    const Lanes any = low | high;
    return static_cast<unsigned>((any[0] | any[1]) | (any[2] | any[3]));
  }

  void grow() {
    const LargeVector<uint64_t> keys = std::move(keys_);
    const LargeVector<Line> lines = std::move(lines_);
    keys_ = LargeVector<uint64_t>(keys.size() * 4);
    shift_ -= 2;
    lines_ = LargeVector<Line>(keys_.size());
    pushed_ = 0;
    for (uint64_t i = 0; i < keys.size(); ++i) {
      if (keys[i] == 0) continue;
      const uint64_t set = set_of(keys[i]);
      const unsigned way = way_of(&keys_[set], 0);
      if (way == 0) continue;
      keys_[set + way - 1] = keys[i];
      lines_[set + way - 1] = lines[i];
    }
  }

  LargeVector<uint64_t> keys_ = LargeVector<uint64_t>(1 << 10);
  LargeVector<Line> lines_ = LargeVector<Line>(1 << 10);
  uint64_t pushed_ = 0;
  unsigned shift_ = 64 - 7;  // 2^7 sets of 8
};

}  // namespace memlens::locality
