// A model of caches and TLBs: levels of set-associative caches, private to a core or shared, write-back and
// write-allocate, inclusive or not, with prefetchers.
//
// Order of one access: TLBs, then level by level until a hit; the line then comes into all levels above. An access
// that crosses a line is one access, and one miss of a level if any of its lines misses there. With inclusion a line
// that leaves a level leaves the levels above it. A write takes the line away from the private caches of other cores.
// Times are not modelled: threads share levels in the order in which their accesses are given.
//
// Replacement is a policy: what a hit does to the order of a set, and which line leaves (`Policy`, set_cache.h).
//
// One object is used by one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "set_cache.h"

namespace memlens::locality {

struct CacheOptions {
  std::vector<LevelGeometry> levels;  // the nearest first, at most kMaxLevels
  std::vector<LevelGeometry> tlbs;    // bytes = entries · page; private
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
  // accesses that are their window's first to a line, or to a page: in no misses
  uint64_t unknown = 0, tlb_unknown = 0;
};

struct LevelTotals {
  uint64_t write_backs = 0;    // lines written to the level below, or to memory
  uint64_t invalidations = 0;  // lines taken away: by another core's write, or by inclusion
  uint64_t prefetches = 0, useful_prefetches = 0;
};

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
  size_t levels() const { return n_levels_; }
  size_t cores() const { return cores_.size(); }

 private:
  struct Core {
    std::vector<SetCache> levels, tlbs;       // private levels only
    std::array<SetCache*, kMaxLevels> all{};  // shared ones too
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
  SetCache& level(uint32_t core, size_t number) { return *cores_[core]->all[number]; }
  // the level that hit; levels() for memory
  MEMLENS_INLINE unsigned access_line(uint32_t core, uint64_t block, bool is_store);
  MEMLENS_INLINE void fill(uint32_t core, uint64_t block, size_t hit_level, bool is_store);
  MEMLENS_INLINE void insert(uint32_t core, size_t number, uint64_t block, bool is_store, bool is_prefetch);
  void take_from_others(uint32_t core, uint64_t block, bool is_store);
  void prefetch(uint32_t core, uint64_t block);
  void note_stride(uint32_t core, uint64_t site, uint64_t address);

  CacheOptions options_;
  size_t n_levels_;  // asked for at every step: the size of a vector is a division
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
    void prefetch(uint64_t block) const {
      if (!entries_.empty()) __builtin_prefetch(&entries_[scatter(block) & (entries_.size() - 1)], 1);
    }

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
