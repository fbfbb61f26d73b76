#include "footprint.h"

#include <algorithm>
#include <bit>

namespace memlens::locality {

namespace {
constexpr uint64_t kFirstEntries = 1 << 10;
constexpr uint8_t kConstant = static_cast<uint8_t>(AccessClass::kConstant);
constexpr uint8_t kStrided = static_cast<uint8_t>(AccessClass::kStrided);
uint64_t count_of(uint64_t bits) { return static_cast<uint64_t>(std::popcount(bits)); }
}  // namespace

Footprint::Footprint(bool windows, uint64_t memory_limit_bytes)
    : by_window_(windows), limit_(memory_limit_bytes), table_(kFirstEntries), mask_(kFirstEntries - 1) {}

MEMLENS_INLINE Footprint::Entry& Footprint::find(uint64_t line, uint32_t group, uint64_t place) {
  uint64_t at = place & mask_;
  while (true) {
    Entry& entry = table_[at];
    if (entry.line == line && entry.group == group) return entry;
    if (entry.group == kNone) {
      entry.line = line;
      entry.group = group;
      ++live_;
      return entry;
    }
    at = (at + 1) & mask_;
  }
}

// The part of an access beyond its first line: bytes, no address. As good as never more than one line.
void Footprint::touch_further(uint64_t line, uint32_t group, uint64_t bytes) {
  for (; bytes > 0; ++line) {
    const uint64_t here = std::min<uint64_t>(bytes, 64);
    if ((live_ + 1) * 4 > table_.size() * 3) grow();
    find(line, group, place_of(line, group)).touched |= here == 64 ? ~uint64_t{0} : (uint64_t{1} << here) - 1;
    bytes -= here;
  }
}

MEMLENS_INLINE void Footprint::note_window(Entry& entry, unsigned irregular, uint64_t bit, Counts& counts) {
  if (entry.window != window_) {
    entry.window = window_;
    entry.seen_now[0] = entry.seen_now[1] = 0;
  }
  counts.seen += ((entry.seen_now[0] | entry.seen_now[1]) & bit) == 0;
  counts.seen_by[irregular] += (entry.seen_now[irregular] & bit) == 0;
  entry.seen_now[irregular] |= bit;
}

void Footprint::open_group(uint32_t group) {
  if (group == kNone) throw std::invalid_argument("a group is below 2^32 - 1");
  if (group >= counts_.size()) counts_.resize(std::max<size_t>(group + size_t{1}, counts_.size() * 3 / 2));
  if (counts_[group].is_open) return;
  counts_[group].is_open = true;
  open_groups_.push_back(group);
}

// True when the same access can change nothing any more.
MEMLENS_INLINE bool Footprint::take(uint64_t address, uint32_t width, unsigned irregular, uint32_t group) {
  const uint64_t line = address >> kLineShift;
  const unsigned offset = static_cast<unsigned>(address) & 63;
  const uint64_t bit = uint64_t{1} << offset;
  Entry& entry = find(line, group, place_of(line, group));
  entry.again |= (entry.seen[0] | entry.seen[1]) & bit;
  entry.seen[irregular] |= bit;
  const uint64_t mask = width >= 64 ? ~uint64_t{0} : (uint64_t{1} << width) - 1;
  entry.touched |= mask << offset;
  if (by_window_) note_window(entry, irregular, bit, counts_[group]);
  const bool is_settled = (entry.again & bit) != 0;
  if (width > 64 - offset) [[unlikely]]
    touch_further(line + 1, group, uint64_t{width} - (64 - offset));
  return is_settled;
}

template <bool kWindows, bool kGroups>
MEMLENS_INLINE void Footprint::batches(const Columns& columns) {
  const auto [addresses, bytes, classes, groups, count] = columns;
  const auto group_of = [&](size_t k) MEMLENS_INLINE_LAMBDA { return kGroups ? groups[k] : 0; };
  const auto width_of = [&](size_t k) MEMLENS_INLINE_LAMBDA { return bytes != nullptr ? bytes[k] : 1; };
  const auto class_of = [&](size_t k) MEMLENS_INLINE_LAMBDA { return classes != nullptr ? classes[k] & 3u : 0u; };
  uint64_t by_class[4] = {0, 0, 0, 0};
  size_t left[kBatch];
  Settled::Place places[kBatch];
  const uint64_t* words[kBatch];
  if (!kGroups) open_group(0);
  for (size_t done = 0; done < count;) {
    const size_t part = std::min(count - done, kBatch);
    if ((live_ + part) * 4 > table_.size() * 3) [[unlikely]]
      grow();
    if constexpr (!kWindows) {
      for (size_t i = 0; i < part; ++i) {
        const size_t k = done + i;
        places[i] = Settled::place_of(addresses[k], width_of(k), class_of(k) != kStrided, group_of(k));
        settled_.prefetch(places[i]);
      }
      for (size_t i = 0; i < part; ++i) words[i] = settled_.word_of(places[i]);
    }
    size_t n_left = 0;
    for (size_t i = 0; i < part; ++i) {
      const size_t k = done + i;
      const uint32_t group = group_of(k);
      const unsigned kind = class_of(k);
      if constexpr (kGroups) {
        if (group >= counts_.size() || !counts_[group].is_open) [[unlikely]]
          open_group(group);
        ++counts_[group].by_class[kind];
        if constexpr (kWindows)
          ++(kind == kConstant ? counts_[group].constants_of_window : counts_[group].accesses_of_window);
      } else {
        ++by_class[kind];
      }
      if (kind == kConstant) continue;
      if constexpr (!kWindows)
        if (Settled::has(words[i], places[i])) continue;
      __builtin_prefetch(&table_[place_of(addresses[k] >> kLineShift, group) & mask_], 1);
      left[n_left++] = k;
    }
    for (size_t n = 0; n < n_left; ++n) {
      const size_t k = left[n];
      const unsigned irregular = class_of(k) != kStrided;
      const bool is_settled = take(addresses[k], width_of(k), irregular, group_of(k));
      if constexpr (!kWindows)
        if (is_settled)
          if (const auto place = Settled::place_of(addresses[k], width_of(k), irregular, group_of(k)); place.key != 0)
            settled_.add(place);
    }
    done += part;
  }
  if constexpr (!kGroups) {
    for (unsigned kind = 0; kind < 4; ++kind) {
      counts_[0].by_class[kind] += by_class[kind];
      (kind == kConstant ? counts_[0].constants_of_window : counts_[0].accesses_of_window) += by_class[kind];
    }
  }
}

MEMLENS_INLINE void Footprint::choose(const Columns& columns) {
  if (by_window_) columns.groups != nullptr ? batches<true, true>(columns) : batches<true, false>(columns);
  else columns.groups != nullptr ? batches<false, true>(columns) : batches<false, false>(columns);
}

#if MEMLENS_HAS_FAST
MEMLENS_FAST void Footprint::run_fast(const Columns& columns) { choose(columns); }
#endif

void Footprint::add(std::span<const uint64_t> addresses, std::span<const uint32_t> bytes,
                    std::span<const uint8_t> classes, std::span<const uint32_t> groups) {
  const size_t count = addresses.size();
  if ((!bytes.empty() && bytes.size() != count) || (!classes.empty() && classes.size() != count) ||
      (!groups.empty() && groups.size() != count))
    throw std::invalid_argument("the columns have one length");
  if (count == 0) return;
  const auto start = [](const auto& column) { return column.empty() ? nullptr : column.data(); };
  const Columns columns{addresses.data(), start(bytes), start(classes), start(groups), count};
#if MEMLENS_HAS_FAST
  if (has_fast()) return run_fast(columns);
#endif
  choose(columns);
}

void Footprint::add_implied_constants(uint32_t group, uint64_t count) {
  if (count == 0) return;
  open_group(group);
  counts_[group].by_class[kConstant] += count;
  counts_[group].constants_of_window += count;
}

void Footprint::end_window() {
  if (by_window_) {
    if (sums_.size() < counts_.size()) sums_.resize(counts_.size());
    for (const uint32_t group : open_groups_) {
      Counts& counts = counts_[group];
      const double x = static_cast<double>(counts.accesses_of_window + counts.constants_of_window);
      sums_[group].all.add(x, static_cast<double>(counts.seen + (counts.constants_of_window > 0)));
      sums_[group].strided.add(x, static_cast<double>(counts.seen_by[0]));
      sums_[group].irregular.add(x, static_cast<double>(counts.seen_by[1]));
      sums_[group].constant.add(x, static_cast<double>(counts.constants_of_window));
      sums_[group].irregular_share.add(static_cast<double>(counts.seen_by[0] + counts.seen_by[1]),
                                       static_cast<double>(counts.seen_by[1]), x);
      counts.constants_of_window = counts.accesses_of_window = 0;
      counts.seen = counts.seen_by[0] = counts.seen_by[1] = 0;
    }
  }
  for (const uint32_t group : open_groups_) counts_[group].is_open = false;
  open_groups_.clear();
  if (++window_ == 0) {  // after 2^32 windows old stamps could be met again
    for (Entry& entry : table_) entry.window = 0;
    window_ = 1;
  }
}

std::vector<FootprintRow> Footprint::rows() const {
  std::vector<FootprintRow> rows(counts_.size());
  for (size_t group = 0; group < counts_.size(); ++group) {
    const uint64_t* const by_class = counts_[group].by_class;
    FootprintRow& row = rows[group];
    row.constants = by_class[kConstant];
    row.accesses_strided = by_class[kStrided];
    row.accesses_irregular = by_class[0] + by_class[3];
    row.accesses = row.accesses_strided + row.accesses_irregular;
    if (group < sums_.size()) {
      row.growth = sums_[group].all;
      row.growth_strided = sums_[group].strided;
      row.growth_irregular = sums_[group].irregular;
      row.constant = sums_[group].constant;
      row.irregular = sums_[group].irregular_share;
    }
  }
  for (const Entry& entry : table_) {
    if (entry.group == kNone) continue;
    FootprintRow& row = rows[entry.group];
    row.addresses += count_of(entry.seen[0] | entry.seen[1]);
    row.addresses_strided += count_of(entry.seen[0]);
    row.addresses_irregular += count_of(entry.seen[1]);
    row.again += count_of(entry.again);
    row.bytes += count_of(entry.touched);
    ++row.lines;
  }
  return rows;
}

void Footprint::merge(const Footprint& other) {
  if (counts_.size() < other.counts_.size()) counts_.resize(other.counts_.size());
  if (sums_.size() < other.sums_.size()) sums_.resize(other.sums_.size());
  for (size_t group = 0; group < other.counts_.size(); ++group)
    for (unsigned kind = 0; kind < 4; ++kind) counts_[group].by_class[kind] += other.counts_[group].by_class[kind];
  for (size_t group = 0; group < other.sums_.size(); ++group) {
    sums_[group].all.merge(other.sums_[group].all);
    sums_[group].strided.merge(other.sums_[group].strided);
    sums_[group].irregular.merge(other.sums_[group].irregular);
    sums_[group].constant.merge(other.sums_[group].constant);
    sums_[group].irregular_share.merge(other.sums_[group].irregular_share);
  }
  for (const Entry& entry : other.table_) {
    if (entry.group == kNone) continue;
    if ((live_ + 1) * 4 > table_.size() * 3) grow();
    Entry& mine = find(entry.line, entry.group, place_of(entry.line, entry.group));
    mine.again |= entry.again | ((mine.seen[0] | mine.seen[1]) & (entry.seen[0] | entry.seen[1]));
    mine.seen[0] |= entry.seen[0];
    mine.seen[1] |= entry.seen[1];
    mine.touched |= entry.touched;
  }
}

void Footprint::grow() {
  const uint64_t entries = table_.size() * 2;
  const uint64_t needed = (table_.size() + entries) * sizeof(Entry);
  if (needed > limit_) throw MemoryLimit(needed, limit_);
  LargeVector<Entry> larger(entries);
  for (const Entry& entry : table_) {
    if (entry.group == kNone) continue;
    uint64_t at = place_of(entry.line, entry.group) & (entries - 1);
    while (larger[at].group != kNone) at = (at + 1) & (entries - 1);
    larger[at] = entry;
  }
  table_ = std::move(larger);
  mask_ = entries - 1;
}

}  // namespace memlens::locality
