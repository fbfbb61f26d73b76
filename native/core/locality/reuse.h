// Exact reuse distances and reuse intervals of a stream of accesses, for blocks of any power of two.
//
//   distance of an access  number of other blocks accessed since the last access to its block (LRU stack distance;
//                          a fully associative LRU cache of n blocks hits exactly if distance < n)
//   interval of an access  number of accesses from the last access to its block to this one (1: the one before)
//
// A hash table of 16-byte entries gives a block's last slot, and `Recency` the blocks behind it. Accesses are taken in
// batches: all table lines are asked for before the first is used. When slots run out, those in use are numbered
// anew, every 3 times the number of blocks at the earliest; the cost of an access does not depend on the length of
// the trace, and memory only on the number of blocks.
//
// Windows: an access whose block was last seen in an earlier window has no distance: what lies between was not
// recorded. It is told apart from the first access to a block.
//
// One object is used by one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kernels.h"
#include "recency.h"

namespace memlens::locality {

constexpr uint32_t kFirst = 0xFFFFFFFF;    // the block was never seen before
constexpr uint32_t kEarlier = 0xFFFFFFFE;  // it was seen in an earlier window: distance and interval are not known

class Reuse {
 public:
  explicit Reuse(uint64_t block_bytes = 64, uint64_t memory_limit_bytes = std::numeric_limits<uint64_t>::max());

  void begin_window() { window_begin_ = recency_.next(); }
  // Distances, and intervals when `intervals` is not empty (0 where there is none).
  void add(std::span<const uint64_t> addresses, std::span<uint32_t> distances, std::span<uint64_t> intervals = {});
  // The same for block numbers.
  void add_blocks(std::span<const uint64_t> blocks, std::span<uint32_t> distances, std::span<uint64_t> intervals = {});

  uint64_t accesses() const { return accesses_; }
  uint64_t blocks() const { return live_; }
  unsigned block_shift() const { return shift_; }
  uint64_t memory_bytes() const;

  // Forgets all blocks that `keep(block)` refuses; distances are then those among the kept ones.
  template <typename Keep>
  void retain(Keep&& keep) {
    std::vector<Entry> kept;
    for (const Entry& entry : table_)
      if (entry.slot != kEmpty) {
        if (keep(entry.block)) kept.push_back(entry);
        else recency_.take(entry.slot);
      }
    rebuild(kept);
  }
  template <typename Visit>
  void each_block(Visit&& visit) const {
    for (const Entry& entry : table_)
      if (entry.slot != kEmpty) visit(entry.block);
  }

 private:
  static constexpr uint32_t kEmpty = 0xFFFFFFFF, kFresh = 0xFFFFFFFE;
  static constexpr size_t kBatch = 64;
  struct Entry {
    uint64_t block = 0;
    uint32_t slot = kEmpty, unused = 0;
  };

  template <bool kIntervals>
  MEMLENS_INLINE void batch(const uint64_t* values, unsigned shift, size_t count, uint32_t* distances,
                            uint64_t* intervals, const uint64_t* place_of, uint64_t old_slots);
  template <bool kIntervals>
  MEMLENS_INLINE void batches(const uint64_t* values, unsigned shift, size_t count, uint32_t* distances,
                              uint64_t* intervals);
  void run(std::span<const uint64_t> values, unsigned shift, std::span<uint32_t> distances,
           std::span<uint64_t> intervals);
#if MEMLENS_HAS_FAST
  void run_fast(const uint64_t* values, unsigned shift, size_t count, uint32_t* distances, uint64_t* intervals);
#endif
  void run_plain(const uint64_t* values, unsigned shift, size_t count, uint32_t* distances, uint64_t* intervals);
  void make_room(size_t count);
  void renumber();
  void grow();
  void rebuild(const std::vector<Entry>& kept);
  uint64_t access_of(uint64_t slot) const {
    return slot < old_access_.size() ? old_access_[slot] : slot + slot_offset_;
  }

  unsigned shift_;
  uint64_t limit_;
  LargeVector<Entry> table_;
  uint64_t mask_ = 0, live_ = 0, accesses_ = 0, window_begin_ = 0;
  Recency recency_;
  // When the slots were last numbered anew: number of the access that each slot is of. Later slots follow their access.
  LargeVector<uint64_t> old_access_;
  uint64_t slot_offset_ = 0;
};

}  // namespace memlens::locality
