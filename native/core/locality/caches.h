// A model of caches and TLBs: levels of set-associative caches, private to a core or shared, write-back and
// write-allocate, inclusive or not, with prefetchers.
//
// Order of one access: TLBs, then level by level until a hit; the line then comes into all levels above. An access
// that crosses a line is one access, and one miss of a level if any of its lines misses there. With inclusion a line
// that leaves a level leaves the levels above it. A write takes the line away from the private caches of other cores.
// Times are not modelled: threads share levels in the order in which their accesses are given.
//
// Replacement is a policy: what a hit does to the order of a set, and which line leaves (`Policy`).
//
// One object is used by one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "kernels.h"

namespace memlens::locality {

enum class Policy : uint8_t { kLru, kFifo, kRandom };

struct LevelGeometry {
  uint64_t bytes = 0;
  uint32_t ways = 0;  // 0: fully associative
  bool is_shared = false;
  Policy policy = Policy::kLru;
};

struct CacheOptions {
  std::vector<LevelGeometry> levels;          // the nearest first, at most kMaxLevels
  std::vector<LevelGeometry> tlbs;            // bytes = entries · page; private
  uint64_t line_bytes = 64, page_bytes = 4096;
  uint32_t cores = 1;  // at most 64; each has its own private levels and TLBs
  bool is_inclusive = true;
  bool next_line = false;  // a miss in the first level brings the next line into the second (or the only one)
  bool stride = false;     // so does an instruction that steps evenly, two steps ahead
};

constexpr unsigned kMaxLevels = 4;

struct CacheRow {
  uint64_t accesses = 0, stores = 0;
  std::array<uint64_t, kMaxLevels> misses{}, store_misses{};
  std::array<uint64_t, 2> tlb_misses{};
  uint64_t unknown = 0, tlb_unknown = 0;  // accesses that are their window's first to a line, or to a page: in no misses
};

struct LevelTotals {
  uint64_t write_backs = 0;    // lines written to the level below, or to memory
  uint64_t invalidations = 0;  // lines taken away: by another core's write, or by inclusion
  uint64_t prefetches = 0, useful_prefetches = 0;
};

// One cache. Entries of a set lie in the order of leaving, the next to leave last.
class SetCache {
 public:
  SetCache(const LevelGeometry& geometry, uint64_t block_bytes);

  struct Found {
    bool is_hit = false, was_prefetched = false;
  };
  // Looks a block up and reorders its set.
  MEMLENS_INLINE Found access(uint64_t block, bool is_store) {
    uint64_t* const set = &entries_[set_of(block) * ways_];
    const uint32_t way = find(set, block);
    if (way == ways_) return {};
    uint64_t value = set[way];
    const bool was_prefetched = (value & kPrefetched) != 0;
    value &= ~kPrefetched;
    if (is_store) value |= kDirty;
    if (policy_ == Policy::kLru) {
      move_back(set, way);
      *set = value;
    } else {
      set[way] = value;
    }
    return {true, was_prefetched};
  }
  struct Left {
    bool has_left = false, is_dirty = false;
    uint64_t block = 0;
  };
  // Brings in a block that is not there.
  MEMLENS_INLINE Left insert(uint64_t block, bool is_store, bool is_prefetch);
  // 0: not there, 1: was there, 3: was there and dirty.
  MEMLENS_INLINE unsigned remove(uint64_t block);
  MEMLENS_INLINE bool contains(uint64_t block) const;
  MEMLENS_INLINE void mark_dirty(uint64_t block);
  void prefetch_set(uint64_t block) const {
    const uint64_t* const set = &entries_[set_of(block) * ways_];
    __builtin_prefetch(set, 1);
    if (ways_ > 8) __builtin_prefetch(set + 8, 1);
  }

 private:
  static constexpr uint64_t kValid = 1, kDirty = 2, kPrefetched = 4;
  static constexpr uint64_t kTag = ~(kDirty | kPrefetched);
  static constexpr unsigned kFlagBits = 3;
  typedef uint64_t Lanes __attribute__((vector_size(32), aligned(8), may_alias));
  uint64_t set_of(uint64_t block) const { return is_power_of_two_ ? block & (sets_ - 1) : block % sets_; }
  // The way that has a block; ways_ when none has. Eight at a time, as vector code without branches.
  MEMLENS_INLINE uint32_t find(const uint64_t* set, uint64_t block) const {
    const uint64_t wanted = block << kFlagBits | kValid;
    uint32_t way = 0;
    for (; way + 8 <= ways_; way += 8) {
      const Lanes* const lanes = reinterpret_cast<const Lanes*>(set + way);
      const Lanes match = (((lanes[0] & kTag) == wanted) & Lanes{1, 2, 3, 4}) | (((lanes[1] & kTag) == wanted) & Lanes{5, 6, 7, 8});
      const uint64_t found = (match[0] | match[1]) | (match[2] | match[3]);
      if (found != 0) return way + static_cast<uint32_t>(found) - 1;
    }
    for (; way < ways_; ++way)
      if ((set[way] & kTag) == wanted) return way;
    return ways_;
  }
  // The first `count` entries move one place back, from the end: a load never meets a later store.
  MEMLENS_INLINE static void move_back(uint64_t* set, uint32_t count) {
    for (; count >= 4; count -= 4) {
      const Lanes four = *reinterpret_cast<const Lanes*>(set + count - 4);
      *reinterpret_cast<Lanes*>(set + count - 3) = four;
    }
    for (uint64_t* at = set + count; at != set; --at) *at = at[-1];
  }

  uint64_t sets_;
  uint32_t ways_;
  Policy policy_;
  bool is_power_of_two_;
  uint64_t random_ = 0x9E3779B97F4A7C15u;
  LargeVector<uint64_t> entries_;  // block << 3 | flags
};

MEMLENS_INLINE SetCache::Left SetCache::insert(uint64_t block, bool is_store, bool is_prefetch) {
  uint64_t* const set = &entries_[set_of(block) * ways_];
  uint64_t* last = set + ways_ - 1;
  if (policy_ == Policy::kRandom && (*last & kValid) != 0) {
    random_ ^= random_ << 13, random_ ^= random_ >> 7, random_ ^= random_ << 17;
    last = set + random_ % ways_;
  }
  const uint64_t leaving = *last;
  move_back(set, static_cast<uint32_t>(last - set));
  *set = block << kFlagBits | kValid | (is_store ? kDirty : 0) | (is_prefetch ? kPrefetched : 0);
  return {(leaving & kValid) != 0, (leaving & kDirty) != 0, leaving >> kFlagBits};
}

MEMLENS_INLINE unsigned SetCache::remove(uint64_t block) {
  uint64_t* const set = &entries_[set_of(block) * ways_];
  const uint32_t way = find(set, block);
  if (way == ways_) return 0;
  const unsigned was = (set[way] & kDirty) != 0 ? 3 : 1;
  std::memmove(set + way, set + way + 1, (ways_ - way - 1) * sizeof *set);
  set[ways_ - 1] = 0;
  return was;
}

MEMLENS_INLINE bool SetCache::contains(uint64_t block) const { return find(&entries_[set_of(block) * ways_], block) != ways_; }

MEMLENS_INLINE void SetCache::mark_dirty(uint64_t block) {
  uint64_t* const set = &entries_[set_of(block) * ways_];
  if (const uint32_t way = find(set, block); way != ways_) set[way] |= kDirty;
}

class CacheModel {
 public:
  explicit CacheModel(CacheOptions options);
  CacheModel(const CacheModel&) = delete;
  CacheModel& operator=(const CacheModel&) = delete;

  // `bytes` may be empty (1 each), as may `is_store` (loads), `cores` (all 0), `groups` (all 0) and `sites` (all 0; the
  // stride prefetcher looks at them). Accesses are in the order of time.
  // `windows`: the window of each access, where accesses between windows were not recorded. What an access finds that is its window's
  // first to a line depends on these, so it is counted as unknown. Empty: everything was recorded.
  void add(std::span<const uint64_t> addresses, std::span<const uint32_t> bytes, std::span<const uint8_t> is_store,
           std::span<const uint32_t> cores, std::span<const uint32_t> groups, std::span<const uint64_t> sites,
           std::span<const uint32_t> windows = {});

  const std::vector<CacheRow>& rows() const { return rows_; }
  const std::array<LevelTotals, kMaxLevels>& totals() const { return totals_; }
  size_t levels() const { return options_.levels.size(); }
  size_t cores() const { return cores_.size(); }

 private:
  struct Core {
    std::vector<SetCache> levels, tlbs;  // private levels only
    struct Stride {
      uint64_t site = 0, last = 0;
      int64_t step = 0;
      unsigned confidence = 0;
    };
    std::vector<Stride> strides;
  };
  struct Columns {
    const uint64_t* addresses;
    const uint32_t* bytes;
    const uint8_t* is_store;
    const uint32_t *cores, *groups;
    const uint64_t* sites;
    const uint32_t* windows;
    size_t count;
  };
  MEMLENS_INLINE void take(const Columns& columns);
#if MEMLENS_HAS_FAST
  void take_fast(const Columns& columns);
#endif
  SetCache& level(uint32_t core, size_t number) {
    return shared_[number] != nullptr ? *shared_[number] : cores_[core]->levels[number];
  }
  MEMLENS_INLINE unsigned access_line(uint32_t core, uint64_t block, bool is_store);  // the level that hit; levels() for memory
  MEMLENS_INLINE void fill(uint32_t core, uint64_t block, size_t hit_level, bool is_store);
  MEMLENS_INLINE void insert(uint32_t core, size_t number, uint64_t block, bool is_store, bool is_prefetch);
  void take_from_others(uint32_t core, uint64_t block, bool is_store);
  void prefetch(uint32_t core, uint64_t block);
  void note_stride(uint32_t core, uint64_t site, uint64_t address);

  CacheOptions options_;
  unsigned line_shift_, page_shift_;
  std::vector<std::unique_ptr<Core>> cores_;
  std::vector<std::unique_ptr<SetCache>> shared_;  // by level; null where private
  std::vector<CacheRow> rows_;
  std::array<LevelTotals, kMaxLevels> totals_{};
  // Which cores may have a line in private caches; only with several cores.
  struct Holder {
    uint64_t block = 0, cores = 0;
  };
  Holder& holder(uint64_t block);
  std::vector<Holder> holders_;
  uint64_t holders_used_ = 0;
  // In which window a block was used last.
  class LastWindow {
   public:
    // True when the block was not used in this window before.
    bool is_first(uint64_t block, uint32_t window);

   private:
    struct Entry {
      uint64_t block = 0, window = 0;  // window + 1; 0 = free
    };
    std::vector<Entry> entries_;
    uint64_t used_ = 0;
  };
  LastWindow last_of_line_, last_of_page_;
};

}  // namespace memlens::locality
