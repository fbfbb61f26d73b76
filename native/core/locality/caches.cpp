#include "caches.h"

#include <algorithm>
#include <stdexcept>

namespace memlens::locality {

namespace {
constexpr uint32_t kMostCores = 64;
constexpr size_t kAhead = 16;
constexpr size_t kStrides = 256;
}  // namespace

CacheModel::CacheModel(CacheOptions options)
    : options_(std::move(options)),
      n_levels_(options_.levels.size()),
      line_shift_(shift_of(options_.line_bytes)),
      page_shift_(shift_of(options_.page_bytes)) {
  if (options_.levels.empty() || options_.levels.size() > kMaxLevels || options_.tlbs.size() > 2)
    throw std::invalid_argument("a model has 1 to 4 levels of caches and at most 2 of TLBs");
  bool was_shared = false;
  for (const LevelGeometry& geometry : options_.levels) {
    if (was_shared && !geometry.is_shared) throw std::invalid_argument("below a shared level all levels are shared");
    was_shared = geometry.is_shared;
    shared_.push_back(geometry.is_shared ? std::make_unique<SetCache>(geometry, options_.line_bytes) : nullptr);
  }
  if (options_.cores == 0 || options_.cores > kMostCores) throw std::invalid_argument("a model has 1 to 64 cores");
  while (cores_.size() < options_.cores) {
    auto made = std::make_unique<Core>();
    for (const LevelGeometry& geometry : options_.levels)
      if (!geometry.is_shared) made->levels.emplace_back(geometry, options_.line_bytes);
    for (const LevelGeometry& geometry : options_.tlbs) made->tlbs.emplace_back(geometry, options_.page_bytes);
    for (size_t number = 0; number < levels(); ++number)
      made->all[number] = shared_[number] != nullptr ? shared_[number].get() : &made->levels[number];
    if (options_.stride) made->strides.resize(kStrides);
    cores_.push_back(std::move(made));
  }
}

CacheModel::Holder& CacheModel::holder(uint64_t block) {
  if ((holders_used_ + 1) * 2 > holders_.size()) {
    std::vector<Holder> larger(std::max<size_t>(1024, holders_.size() * 2));
    for (const Holder& entry : holders_) {
      if (entry.cores == 0) continue;
      size_t at = scatter(entry.block) & (larger.size() - 1);
      while (larger[at].cores != 0) at = (at + 1) & (larger.size() - 1);
      larger[at] = entry;
    }
    holders_ = std::move(larger);
  }
  size_t at = scatter(block) & (holders_.size() - 1);
  while (holders_[at].cores != 0 && holders_[at].block != block) at = (at + 1) & (holders_.size() - 1);
  if (holders_[at].cores == 0) {
    holders_[at].block = block;
    ++holders_used_;
  }
  return holders_[at];
}

bool CacheModel::LastWindow::is_first(uint64_t block, uint32_t window) {
  if ((used_ + 1) * 2 > entries_.size()) {
    std::vector<Entry> larger(std::max<size_t>(1024, entries_.size() * 2));
    for (const Entry& entry : entries_) {
      if (entry.window == 0) continue;
      size_t at = scatter(entry.block) & (larger.size() - 1);
      while (larger[at].window != 0) at = (at + 1) & (larger.size() - 1);
      larger[at] = entry;
    }
    entries_ = std::move(larger);
  }
  size_t at = scatter(block) & (entries_.size() - 1);
  while (entries_[at].window != 0 && entries_[at].block != block) at = (at + 1) & (entries_.size() - 1);
  used_ += entries_[at].window == 0;
  const bool first = entries_[at].window != window + uint64_t{1};
  entries_[at] = {block, window + uint64_t{1}};
  return first;
}

// A write leaves one copy; a read makes other cores' changes visible in the first shared level.
void CacheModel::take_from_others(uint32_t core, uint64_t block, bool is_store) {
  Holder& holds = holder(block);
  const uint64_t mine = uint64_t{1} << core;
  if (is_store) {
    for (uint64_t others = holds.cores & ~mine; others != 0; others &= others - 1) {
      const auto other = static_cast<size_t>(std::countr_zero(others));
      for (size_t number = 0; number < cores_[other]->levels.size(); ++number)
        if (cores_[other]->levels[number].remove(block) != 0) ++totals_[number].invalidations;
    }
    holds.cores = mine;
  } else {
    holds.cores |= mine;
  }
}

MEMLENS_INLINE void CacheModel::insert(uint32_t core, size_t number, uint64_t block, bool is_store, bool is_prefetch) {
  const Left left = level(core, number).insert(block, is_store, is_prefetch);
  if (!left.has_left) return;
  bool is_dirty = left.is_dirty;
  if (options_.is_inclusive) {
    // What leaves a level leaves those above it: of this core, or of all when the level is shared. What one of them does not
    // have, those above it have not either.
    const auto take_away = [&](SetCache& cache, size_t above) MEMLENS_INLINE_LAMBDA {
      const unsigned was = cache.remove(left.block);
      totals_[above].invalidations += was != 0;
      is_dirty |= was == 3;
      return was != 0;
    };
    size_t above = number;
    bool may_have = true;
    while (may_have && above > 0 && shared_[above - 1] != nullptr)
      --above, may_have = take_away(*shared_[above], above);
    const size_t end = shared_[number] != nullptr ? cores_.size() : core + size_t{1};
    for (size_t other = shared_[number] != nullptr ? 0 : core; may_have && other < end; ++other)
      for (size_t own = above; own-- > 0;)
        if (!take_away(cores_[other]->levels[own], own)) break;
  }
  if (!is_dirty) return;
  ++totals_[number].write_backs;
  for (size_t below = number + 1; below < levels(); ++below)
    if (level(core, below).mark_dirty(left.block)) break;
}

MEMLENS_INLINE void CacheModel::fill(uint32_t core, uint64_t block, size_t hit_level, bool is_store) {
  // From below: with inclusion a line must be in the lower level first.
  for (size_t number = hit_level; number-- > 0;) insert(core, number, block, is_store && number == 0, false);
}

void CacheModel::prefetch(uint32_t core, uint64_t block) {
  const size_t into = levels() > 1 ? 1 : 0;
  if (level(core, 0).contains(block) || level(core, into).contains(block)) return;
  ++totals_[into].prefetches;
  if (cores_.size() > 1) holder(block).cores |= uint64_t{1} << core;
  for (size_t number = levels(); number-- > into;)
    if (!level(core, number).contains(block)) insert(core, number, block, false, number == into);
}

void CacheModel::note_stride(uint32_t core, uint64_t site, uint64_t address) {
  Core::Stride& entry = cores_[core]->strides[scatter(site << 2) >> 2 & (kStrides - 1)];
  if (entry.site != site) {
    entry = {site, address, 0, 0};
    return;
  }
  const auto step = static_cast<int64_t>(address - entry.last);
  entry.last = address;
  if (step == 0) return;
  entry.confidence = step == entry.step ? std::min(entry.confidence + 1, 3u) : 0;
  entry.step = step;
  if (entry.confidence < 2) return;
  const uint64_t wanted = (address + 2 * static_cast<uint64_t>(step)) >> line_shift_;
  if (wanted != address >> line_shift_) prefetch(core, wanted);
}

MEMLENS_INLINE unsigned CacheModel::access_line(uint32_t core, uint64_t block, bool is_store) {
  if (cores_.size() > 1) take_from_others(core, block, is_store);
  unsigned hit = 0;
  for (; hit < levels(); ++hit) {
    const Found found = level(core, hit).access(block, is_store && hit == 0);
    if (found.was_prefetched) ++totals_[hit].useful_prefetches;
    if (found.is_hit) break;
  }
  if (hit > 0) fill(core, block, hit, is_store);
  return hit;
}

MEMLENS_INLINE void CacheModel::take(const Columns& columns) {
  const auto [addresses, bytes, is_store, cores, groups, sites, windows, count] = columns;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t core = cores == nullptr ? 0 : cores[i], group = groups == nullptr ? 0 : groups[i];
    if (core >= cores_.size()) throw std::invalid_argument("there is no such core in the model");
    if (i + kAhead < count) {
      const uint64_t later = addresses[i + kAhead] >> line_shift_;
      const uint32_t of = cores == nullptr ? 0 : cores[i + kAhead] % static_cast<uint32_t>(cores_.size());
      for (size_t number = 1; number < levels(); ++number) level(of, number).prefetch_set(later);
      if (!holders_.empty()) __builtin_prefetch(&holders_[scatter(later) & (holders_.size() - 1)], 1);
      if (windows != nullptr) {
        last_of_line_.prefetch(later);
        last_of_page_.prefetch(addresses[i + kAhead] >> page_shift_);
      }
    }
    if (group >= rows_.size()) rows_.resize(std::max<size_t>(group + size_t{1}, rows_.size() * 3 / 2));
    CacheRow& row = rows_[group];
    const bool store = is_store != nullptr && is_store[i] != 0;
    const uint64_t address = addresses[i], width = bytes == nullptr ? 1 : std::max<uint32_t>(bytes[i], 1);
    ++row.accesses;
    row.stores += store;
    // TLBs: of the first page, as a page is crossed rarely and then by both halves.
    std::vector<SetCache>& tlbs = cores_[core]->tlbs;
    const uint64_t page = address >> page_shift_;
    const bool page_unknown = windows != nullptr && last_of_page_.is_first(page, windows[i]);
    row.tlb_unknown += page_unknown;
    size_t tlb = 0;
    for (; tlb < tlbs.size() && !tlbs[tlb].access(page, false).is_hit; ++tlb) row.tlb_misses[tlb] += !page_unknown;
    while (tlb-- > 0) tlbs[tlb].insert(page, false, false);
    unsigned hit = 0;
    const uint64_t first = address >> line_shift_, last = (address + width - 1) >> line_shift_;
    bool is_unknown = false;
    for (uint64_t block = first;; ++block) {
      if (windows != nullptr) is_unknown |= last_of_line_.is_first(block, windows[i]);
      hit = std::max(hit, access_line(core, block, store));
      if (block == last) break;
    }
    row.unknown += is_unknown;
    for (unsigned number = 0; number < hit && !is_unknown; ++number) {
      ++row.misses[number];
      row.store_misses[number] += store;
    }
    if (options_.next_line && hit > 0) prefetch(core, last + 1);
    if (options_.stride && sites != nullptr) note_stride(core, sites[i], address);
  }
}

#if MEMLENS_HAS_FAST
MEMLENS_FAST void CacheModel::take_fast(const Columns& columns) { take(columns); }
#endif

void CacheModel::add(std::span<const uint64_t> addresses, std::span<const uint32_t> bytes,
                     std::span<const uint8_t> is_store, std::span<const uint32_t> cores,
                     std::span<const uint32_t> groups, std::span<const uint64_t> sites,
                     std::span<const uint32_t> windows) {
  for (const size_t length : {bytes.size(), is_store.size(), cores.size(), groups.size(), sites.size(), windows.size()})
    if (length != 0 && length != addresses.size()) throw std::invalid_argument("the columns have one length");
  const auto start = [](const auto& column) { return column.empty() ? nullptr : column.data(); };
  const Columns columns{addresses.data(), start(bytes), start(is_store), start(cores),
                        start(groups),    start(sites), start(windows),  addresses.size()};
#if MEMLENS_HAS_FAST
  if (has_fast()) return take_fast(columns);
#endif
  take(columns);
}

}  // namespace memlens::locality
