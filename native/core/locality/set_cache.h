// One set-associative cache: which blocks it has, which of them are dirty or came by a prefetch, and which leaves next.
//
// Two layouts with the same answers. Sets of up to 16 ways (`PackedSets`) keep blocks where they came in and their order as a
// permutation in one word; the low halves of a set's tags fill one cache line, which is compared at once. The high halves are
// kept only once there are two different ones: addresses of a process seldom need more than 32 bits beside the number of the
// set. Larger sets (`OrderedSets`) are lists in the order of leaving.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels.h"

namespace memlens::locality {

enum class Policy : uint8_t { kLru, kFifo, kRandom };

struct LevelGeometry {
  uint64_t bytes = 0;
  uint32_t ways = 0;  // 0: fully associative
  bool is_shared = false;
  Policy policy = Policy::kLru;
};

struct Found {
  bool is_hit = false, was_prefetched = false;
};

struct Left {
  bool has_left = false, is_dirty = false;
  uint64_t block = 0;
};

// Which of the blocks of a full set leaves, at random: the same sequence in both layouts.
struct RandomWay {
  uint64_t state = 0x9E3779B97F4A7C15u;
  uint32_t next(uint32_t ways) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return static_cast<uint32_t>(state % ways);
  }
};

class PackedSets {
 public:
  static constexpr uint32_t kMostWays = 16;
  PackedSets(uint64_t sets, uint32_t ways, Policy policy);

  MEMLENS_INLINE Found access(uint64_t block, bool is_store) {
    const Place place = place_of(block);
    Set& set = sets_[place.set];
    const uint32_t found = find(place, set);
    if (found == 0) return {};
    const unsigned way = static_cast<unsigned>(std::countr_zero(found));
    const bool was_prefetched = (set.prefetched >> way & 1) != 0;
    set.prefetched = static_cast<uint16_t>(set.prefetched & ~found);
    set.dirty = static_cast<uint16_t>(set.dirty | (is_store ? found : 0));
    if (policy_ == Policy::kLru) set.order = to_front(set.order, position_of(set.order, way), way);
    return {true, was_prefetched};
  }

  MEMLENS_INLINE Left insert(uint64_t block, bool is_store, bool is_prefetch) {
    const Place place = place_of(block);
    Set& set = sets_[place.set];
    unsigned position = last_;
    if (policy_ == Policy::kRandom && (set.valid >> (set.order >> last_ & 15) & 1) != 0)
      position = 4 * random_.next(ways_);
    const unsigned way = static_cast<unsigned>(set.order >> position & 15);
    const uint32_t bit = 1u << way;
    uint32_t& low = tags_of(lows_, place.set)[way];
    const uint32_t leaving_high = has_several_highs_ ? tags_of(highs_, place.set)[way] : high_;
    const uint64_t tag = uint64_t{leaving_high} << 32 | low;
    const Left left{(set.valid & bit) != 0, (set.valid & set.dirty & bit) != 0, block_of(tag, place.set)};
    if (place.high != high_ || is_empty_) [[unlikely]]
      note_high(place.high);
    if (has_several_highs_) [[unlikely]]
      tags_of(highs_, place.set)[way] = place.high;
    low = place.low;
    set.order = to_front(set.order, position, way);
    set.valid = static_cast<uint16_t>(set.valid | bit);
    set.dirty = static_cast<uint16_t>((set.dirty & ~bit) | (is_store ? bit : 0));
    set.prefetched = static_cast<uint16_t>((set.prefetched & ~bit) | (is_prefetch ? bit : 0));
    return left;
  }

  // The way becomes the next to be filled.
  MEMLENS_INLINE unsigned remove(uint64_t block) {
    const Place place = place_of(block);
    Set& set = sets_[place.set];
    const uint32_t found = find(place, set);
    if (found == 0) return 0;
    const unsigned way = static_cast<unsigned>(std::countr_zero(found)), position = position_of(set.order, way);
    const uint64_t before = (uint64_t{1} << position) - 1, until_last = (uint64_t{1} << last_) - 1;
    set.order = (set.order & before) | (set.order >> 4 & until_last & ~before) | uint64_t{way} << last_;
    set.valid = static_cast<uint16_t>(set.valid & ~found);
    return (set.dirty & found) != 0 ? 3 : 1;
  }

  MEMLENS_INLINE bool contains(uint64_t block) const {
    const Place place = place_of(block);
    return find(place, sets_[place.set]) != 0;
  }

  MEMLENS_INLINE bool mark_dirty(uint64_t block) {
    const Place place = place_of(block);
    Set& set = sets_[place.set];
    const uint32_t found = find(place, set);
    set.dirty = static_cast<uint16_t>(set.dirty | found);
    return found != 0;
  }

  MEMLENS_INLINE void prefetch_set(uint64_t block) const {
    const uint64_t set = place_of(block).set;
    __builtin_prefetch(tags_of(lows_, set), 1);
    __builtin_prefetch(&sets_[set], 1);
  }

 private:
  struct Set {
    // ways, four bits each, the next to leave in the highest of 4 · ways bits; what is above means nothing
    uint64_t order;
    uint16_t valid = 0, dirty = 0, prefetched = 0, unused = 0;  // a bit for each way
  };
  struct alignas(64) Line {
    uint32_t tags[16] = {};
  };
  struct Place {
    uint64_t set;
    uint32_t low, high;  // of the block's number within the set
  };

  MEMLENS_INLINE Place place_of(uint64_t block) const {
    const uint64_t tag = is_power_of_two_ ? block >> set_bits_ : block / n_sets_;
    const uint64_t set = is_power_of_two_ ? block & (n_sets_ - 1) : block - tag * n_sets_;
    return {set, static_cast<uint32_t>(tag), static_cast<uint32_t>(tag >> 32)};
  }
  MEMLENS_INLINE uint64_t block_of(uint64_t tag, uint64_t set) const {
    return is_power_of_two_ ? tag << set_bits_ | set : tag * n_sets_ + set;
  }

  MEMLENS_INLINE uint32_t* tags_of(LargeVector<Line>& lines, uint64_t set) const {
    return reinterpret_cast<uint32_t*>(lines.data()) + set * stride_;
  }
  MEMLENS_INLINE const uint32_t* tags_of(const LargeVector<Line>& lines, uint64_t set) const {
    return reinterpret_cast<const uint32_t*>(lines.data()) + set * stride_;
  }

  // The bit of the way that has a block, or 0.
  MEMLENS_INLINE uint32_t find(const Place& place, const Set& set) const {
    const uint32_t* const lows = tags_of(lows_, place.set);
    uint32_t found = (stride_ == 8 ? equal_lanes<8>(lows, place.low) : equal_lanes<16>(lows, place.low)) & set.valid;
    if (!has_several_highs_) [[likely]]
      return place.high == high_ ? found : 0;
    const uint32_t* const highs = tags_of(highs_, place.set);
    found &= stride_ == 8 ? equal_lanes<8>(highs, place.high) : equal_lanes<16>(highs, place.high);
    return found;
  }

  // Where a way stands, in bits. The lowest zero among four-bit fields is found exactly; only fields above it may be mistaken for one.
  MEMLENS_INLINE static unsigned position_of(uint64_t order, unsigned way) {
    constexpr uint64_t kOnes = 0x1111111111111111u;
    const uint64_t difference = order ^ kOnes * way;
    return static_cast<unsigned>(std::countr_zero((difference - kOnes) & ~difference & kOnes << 3)) & ~3u;
  }
  MEMLENS_INLINE static uint64_t to_front(uint64_t order, unsigned position, unsigned way) {
    const uint64_t before = (uint64_t{1} << position) - 1;
    return (order & ~before << 4 & ~uint64_t{15}) | (order & before) << 4 | way;
  }

  void note_high(uint32_t high);

  uint64_t n_sets_;
  uint32_t ways_, stride_;  // tags of a set: 8 or 16
  unsigned set_bits_, last_;
  Policy policy_;
  bool is_power_of_two_, is_empty_ = true, has_several_highs_ = false;
  uint32_t high_ = 0;  // of all tags, while they have one
  RandomWay random_;
  LargeVector<Line> lows_, highs_;  // each set has `stride_` of them; highs_ is empty while there is one high half
  LargeVector<Set> sets_;
};

// Entries of a set lie in the order of leaving, the next to leave last. Never inlined: the loop of the other layout stays short.
class OrderedSets {
 public:
  OrderedSets(uint64_t sets, uint32_t ways, Policy policy);

  MEMLENS_APART Found access(uint64_t block, bool is_store) {
    uint64_t* const set = set_of(block);
    const uint32_t way = find(set, block);
    if (way == ways_) return {};
    const uint64_t value = set[way];
    const uint64_t kept = (value & ~kPrefetched) | (is_store ? kDirty : 0);
    if (policy_ == Policy::kLru) {
      std::memmove(set + 1, set, way * sizeof *set);
      *set = kept;
    } else {
      set[way] = kept;
    }
    return {true, (value & kPrefetched) != 0};
  }
  MEMLENS_APART Left insert(uint64_t block, bool is_store, bool is_prefetch) {
    uint64_t* const set = set_of(block);
    uint32_t last = ways_ - 1;
    if (policy_ == Policy::kRandom && (set[last] & kValid) != 0) last = random_.next(ways_);
    const uint64_t leaving = set[last];
    std::memmove(set + 1, set, last * sizeof *set);
    *set = block << kFlagBits | kValid | (is_store ? kDirty : 0) | (is_prefetch ? kPrefetched : 0);
    return {(leaving & kValid) != 0, (leaving & kDirty) != 0, leaving >> kFlagBits};
  }
  MEMLENS_APART unsigned remove(uint64_t block) {
    uint64_t* const set = set_of(block);
    const uint32_t way = find(set, block);
    if (way == ways_) return 0;
    const unsigned was = (set[way] & kDirty) != 0 ? 3 : 1;
    std::memmove(set + way, set + way + 1, (ways_ - way - 1) * sizeof *set);
    set[ways_ - 1] = 0;
    return was;
  }
  MEMLENS_APART bool contains(uint64_t block) const { return find(&entries_[block % n_sets_ * ways_], block) != ways_; }
  MEMLENS_APART bool mark_dirty(uint64_t block) {
    uint64_t* const set = set_of(block);
    const uint32_t way = find(set, block);
    if (way == ways_) return false;
    set[way] |= kDirty;
    return true;
  }

 private:
  static constexpr uint64_t kValid = 1, kDirty = 2, kPrefetched = 4;
  static constexpr unsigned kFlagBits = 3;
  uint64_t* set_of(uint64_t block) { return &entries_[block % n_sets_ * ways_]; }
  static constexpr uint64_t kTag = ~(kDirty | kPrefetched);
  typedef uint64_t Lanes __attribute__((vector_size(32), aligned(8), may_alias));
  // The way that has a block; ways_ when none has. Eight at a time, as vector code without branches.
  MEMLENS_INLINE uint32_t find(const uint64_t* set, uint64_t block) const {
    const uint64_t wanted = block << kFlagBits | kValid;
    uint32_t way = 0;
    for (; way + 8 <= ways_; way += 8) {
      const Lanes* const lanes = reinterpret_cast<const Lanes*>(set + way);
      const Lanes match =
          (((lanes[0] & kTag) == wanted) & Lanes{1, 2, 3, 4}) | (((lanes[1] & kTag) == wanted) & Lanes{5, 6, 7, 8});
      const uint64_t found = (match[0] | match[1]) | (match[2] | match[3]);
      if (found != 0) return way + static_cast<uint32_t>(found) - 1;
    }
    for (; way < ways_; ++way)
      if ((set[way] & kTag) == wanted) return way;
    return ways_;
  }

  uint64_t n_sets_;
  uint32_t ways_;
  Policy policy_;
  RandomWay random_;
  LargeVector<uint64_t> entries_;  // block << 3 | flags
};

class SetCache {
 public:
  SetCache(const LevelGeometry& geometry, uint64_t block_bytes);

  // Looks a block up and reorders its set.
  MEMLENS_INLINE Found access(uint64_t block, bool is_store) {
    return is_packed_ ? packed_.access(block, is_store) : ordered_.access(block, is_store);
  }
  // Brings in a block that is not there.
  MEMLENS_INLINE Left insert(uint64_t block, bool is_store, bool is_prefetch) {
    return is_packed_ ? packed_.insert(block, is_store, is_prefetch) : ordered_.insert(block, is_store, is_prefetch);
  }
  // 0: not there, 1: was there, 3: was there and dirty.
  MEMLENS_INLINE unsigned remove(uint64_t block) { return is_packed_ ? packed_.remove(block) : ordered_.remove(block); }
  MEMLENS_INLINE bool contains(uint64_t block) const {
    return is_packed_ ? packed_.contains(block) : ordered_.contains(block);
  }
  // False when it is not there.
  MEMLENS_INLINE bool mark_dirty(uint64_t block) {
    return is_packed_ ? packed_.mark_dirty(block) : ordered_.mark_dirty(block);
  }
  MEMLENS_INLINE void prefetch_set(uint64_t block) const {
    if (is_packed_) packed_.prefetch_set(block);
  }

 private:
  SetCache(uint64_t sets, uint32_t ways, Policy policy);

  bool is_packed_;
  PackedSets packed_;  // one of the two is empty
  OrderedSets ordered_;
};

}  // namespace memlens::locality
