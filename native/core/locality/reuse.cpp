#include "reuse.h"

#include <algorithm>

namespace memlens::locality {

namespace {
constexpr uint64_t kFirstSlots = 1 << 16, kFirstEntries = 1 << 12;
}

Reuse::Reuse(uint64_t block_bytes, uint64_t memory_limit_bytes)
    : shift_(shift_of(block_bytes)),
      limit_(memory_limit_bytes),
      table_(kFirstEntries),
      mask_(kFirstEntries - 1),
      recency_(kFirstSlots) {}

uint64_t Reuse::memory_bytes() const {
  return table_.capacity() * sizeof(Entry) + recency_.bytes() + old_access_.capacity() * 8;
}

template <bool kIntervals>
MEMLENS_INLINE void Reuse::batch(const uint64_t* values, unsigned shift, size_t count, uint32_t* distances,
                                 uint64_t* intervals, const uint64_t* place_of, uint64_t old_slots) {
  Entry* const table = table_.data();
  const uint64_t mask = mask_;
  uint64_t place[kBatch];
  for (size_t i = 0; i < count; ++i) {
    const uint64_t block = values[i] >> shift;
    uint64_t at = place_of[i] & mask;
    while (table[at].slot != kEmpty && table[at].block != block) at = (at + 1) & mask;
    if (table[at].slot == kEmpty) {
      table[at].block = block;
      table[at].slot = kFresh;
    } else if (table[at].slot != kFresh) {
      recency_.prefetch(table[at].slot);
      if (kIntervals && table[at].slot < old_slots) __builtin_prefetch(&old_access_[table[at].slot]);
    }
    place[i] = at;
  }
  for (size_t i = 0; i < count; ++i) {
    Entry& entry = table[place[i]];
    const uint32_t slot = entry.slot;
    uint32_t distance;
    uint64_t interval = 0;
    if (slot == kFresh) {
      distance = kFirst;
      ++live_;
    } else {
      distance = recency_.take(slot);
      if (slot < window_begin_) distance = kEarlier;
      else if constexpr (kIntervals) interval = accesses_ + i - access_of(slot);
    }
    entry.slot = static_cast<uint32_t>(recency_.append());
    distances[i] = distance;
    if constexpr (kIntervals) intervals[i] = interval;
  }
  accesses_ += count;
}

template <bool kIntervals>
MEMLENS_INLINE void Reuse::batches(const uint64_t* values, unsigned shift, size_t count, uint32_t* distances,
                                   uint64_t* intervals) {
  // While one batch is worked on, the table lines of the next are on their way.
  uint64_t places[2][kBatch];
  const auto ask = [&](size_t from, uint64_t* place) MEMLENS_INLINE_LAMBDA {
    const size_t part = std::min(count - from, kBatch);
    for (size_t i = 0; i < part; ++i) {
      place[i] = scatter(values[from + i] >> shift);
      __builtin_prefetch(&table_[place[i] & mask_], 1);
    }
  };
  ask(0, places[0]);
  for (size_t done = 0, turn = 0; done < count; turn ^= 1) {
    const size_t part = std::min(count - done, kBatch);
    make_room(part);
    if (done + part < count) ask(done + part, places[turn ^ 1]);
    batch<kIntervals>(values + done, shift, part, distances + done, kIntervals ? intervals + done : nullptr,
                      places[turn], old_access_.size());
    done += part;
  }
}

#if MEMLENS_HAS_FAST
MEMLENS_FAST void Reuse::run_fast(const uint64_t* values, unsigned shift, size_t count, uint32_t* distances,
                                  uint64_t* intervals) {
  if (intervals != nullptr) batches<true>(values, shift, count, distances, intervals);
  else batches<false>(values, shift, count, distances, nullptr);
}
#endif

void Reuse::run_plain(const uint64_t* values, unsigned shift, size_t count, uint32_t* distances, uint64_t* intervals) {
  if (intervals != nullptr) batches<true>(values, shift, count, distances, intervals);
  else batches<false>(values, shift, count, distances, nullptr);
}

void Reuse::run(std::span<const uint64_t> values, unsigned shift, std::span<uint32_t> distances,
                std::span<uint64_t> intervals) {
  if (distances.size() != values.size() || (!intervals.empty() && intervals.size() != values.size()))
    throw std::invalid_argument("the columns have one length");
  uint64_t* const where = intervals.empty() ? nullptr : intervals.data();
#if MEMLENS_HAS_FAST
  if (has_fast()) return run_fast(values.data(), shift, values.size(), distances.data(), where);
#endif
  run_plain(values.data(), shift, values.size(), distances.data(), where);
}

void Reuse::add(std::span<const uint64_t> addresses, std::span<uint32_t> distances, std::span<uint64_t> intervals) {
  run(addresses, shift_, distances, intervals);
}

void Reuse::add_blocks(std::span<const uint64_t> blocks, std::span<uint32_t> distances, std::span<uint64_t> intervals) {
  run(blocks, 0, distances, intervals);
}

void Reuse::make_room(size_t count) {
  if (recency_.next() + count > recency_.slots()) [[unlikely]]
    renumber();
  if ((live_ + count) * 2 > table_.size()) [[unlikely]]
    grow();
}

void Reuse::renumber() {
  recency_.ranks();
  for (Entry& entry : table_)
    if (entry.slot != kEmpty) entry.slot = static_cast<uint32_t>(recency_.rank(entry.slot));
  // Access numbers move down in place: a rank is never above its slot.
  const uint64_t kept = old_access_.size();
  uint64_t rank = 0;
  if (old_access_.size() < live_) old_access_.resize(live_);
  recency_.each([&](uint64_t slot) {
    old_access_[rank] = slot < kept ? old_access_[slot] : slot + slot_offset_;
    ++rank;
  });
  old_access_.resize(rank);
  window_begin_ = recency_.rank(window_begin_);
  const uint64_t slots = std::max<uint64_t>(recency_.slots(), std::bit_ceil(live_) * 4);
  if (slots / 8 + memory_bytes() > limit_) throw MemoryLimit(slots / 8 + memory_bytes(), limit_);
  recency_.compact(slots);
  slot_offset_ = accesses_ - live_;
}

void Reuse::grow() {
  const uint64_t entries = table_.size() * 2;
  const uint64_t needed = memory_bytes() + entries * sizeof(Entry);
  if (needed > limit_) throw MemoryLimit(needed, limit_);
  LargeVector<Entry> larger(entries);
  const uint64_t mask = entries - 1;
  for (const Entry& entry : table_) {
    if (entry.slot == kEmpty) continue;
    uint64_t at = scatter(entry.block) & mask;
    while (larger[at].slot != kEmpty) at = (at + 1) & mask;
    larger[at] = entry;
  }
  table_ = std::move(larger);
  mask_ = mask;
}

void Reuse::rebuild(const std::vector<Entry>& kept) {
  std::fill(table_.begin(), table_.end(), Entry{});
  for (const Entry& entry : kept) {
    uint64_t at = scatter(entry.block) & mask_;
    while (table_[at].slot != kEmpty) at = (at + 1) & mask_;
    table_[at] = entry;
  }
  live_ = kept.size();
}

}  // namespace memlens::locality
