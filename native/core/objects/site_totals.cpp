#include "site_totals.h"

#include "memlens_format.h"

namespace memlens::objects {

std::vector<Curve::Point> Curve::points() const {
  std::vector<Point> points;
  points.reserve(2 * buckets_.size());
  for (const Bucket& bucket : buckets_) {
    if (bucket.highest.time_ns != bucket.last.time_ns) points.push_back(bucket.highest);
    points.push_back(bucket.last);
  }
  return points;
}

ProcessTotals& SiteTotals::of(uint32_t process) {
  if (cached_ == nullptr || cached_number_ != process) {
    cached_ = &processes_[process];
    cached_number_ = process;
  }
  return *cached_;
}

void SiteTotals::set_range(uint32_t process, uint64_t begin_ns, uint64_t end_ns) {
  ProcessTotals& totals = of(process);
  totals.heap_curve.set_range(begin_ns, end_ns);
  totals.mmap_curve.set_range(begin_ns, end_ns);
}

void SiteTotals::settle_heap(ProcessTotals& totals) {
  if (totals.heap.settle([&](uint64_t t, uint64_t b) { totals.heap_curve.add(t, b); })) ++totals.heap_peaks;
}

void SiteTotals::note_peak(ProcessTotals& totals, Site& site, uint64_t now) {
  if (totals.heap.last_ns() != now) settle_heap(totals);
  if (site.peak_seen == totals.heap_peaks) return;
  site.peak_seen = totals.heap_peaks;
  site.bytes_at_process_peak = site.level.current();
}

std::vector<LevelLog::Peak> SiteTotals::peaks_together(std::span<const uint32_t> group_of_site, size_t groups) const {
  std::vector<uint32_t> processes;
  for (const Site& site : sites_) processes.push_back(site.process);
  return log_.peaks(group_of_site.first(std::min(group_of_site.size(), sites_.size())), processes, groups);
}

uint32_t SiteTotals::born(uint32_t id, uint64_t now, bool is_piece) {
  const uint32_t row = id - 1;
  const Kind kind = static_cast<Kind>(columns_.kind[row]);
  const SiteKey key{columns_.process[row], columns_.stack[row], kind};
  const auto [at, is_new] = site_index_.try_emplace(key, static_cast<uint32_t>(sites_.size()));
  if (is_new) {
    sites_.emplace_back();
    sites_.back().process = key.process;
    sites_.back().stack = key.stack;
    sites_.back().kind = kind;
  }
  Site& site = sites_[at->second];
  const uint64_t bytes = columns_.weighted_bytes(id);
  const double count = columns_.weighted_count(id);
  const double chance = columns_.chance(id);
  const unsigned half = half_of(id);
  ProcessTotals& totals = of(key.process);
  note_peak(totals, site, now);
  totals.sampled |= chance < 1.0;
  ++site.rows;
  if (columns_.operation[row] == ML_ENUM_allocation_operation_CALLOC) site.cleared_bytes += static_cast<double>(bytes);
  log_.add({at->second, false, columns_.weight_bytes[row] != 0, half, bytes}, now);
  if (!is_piece) {
    site.allocations_spread.add(chance, count);
    site.bytes_spread.add(chance, static_cast<double>(bytes));
    if (kind == Kind::heap) {
      totals.max_bytes = std::max(totals.max_bytes, columns_.bytes[row]);
      totals.allocations_spread.add(chance, count);
      totals.bytes_spread.add(chance, static_cast<double>(bytes));
    }
    site.allocations += count;
    site.allocated_bytes += bytes;
    ++site.objects;
    totals.allocations += kind == Kind::heap ? count : 0;
    totals.allocated_bytes += kind == Kind::heap ? bytes : 0;
    site.min_bytes = std::min(site.min_bytes, columns_.bytes[row]);
    if (site.largest == 0 || columns_.bytes[row] > site.max_bytes) {
      site.max_bytes = columns_.bytes[row];
      site.largest = columns_.number[row];
    }
    const uint64_t thread = thread_key(key.process, columns_.thread[row]);
    if (cached_allocation_ == nullptr || cached_thread_ != thread) {
      cached_allocation_ = &last_allocation_[thread];
      cached_thread_ = thread;
    }
    *cached_allocation_ = columns_.number[row];
  }
  site.sampled |= columns_.weight_bytes[row] != 0;
  site.level.change(static_cast<int64_t>(bytes), now, [](uint64_t, uint64_t) {});
  site.split.change(half, static_cast<int64_t>(bytes), chance >= 1.0, now);
  if (kind == Kind::heap) totals.split.change(half, static_cast<int64_t>(bytes), chance >= 1.0, now);
  if (kind == Kind::heap) {
    totals.heap.change(static_cast<int64_t>(bytes), now, [&](uint64_t t, uint64_t b) { totals.heap_curve.add(t, b); });
  } else {
    totals.mmap.change(static_cast<int64_t>(bytes), now, [&](uint64_t t, uint64_t b) { totals.mmap_curve.add(t, b); });
  }
  return at->second;
}

void SiteTotals::died(uint32_t id, uint64_t now, bool released, bool is_cut) {
  const uint32_t row = id - 1;
  Site& site = sites_[columns_.site[row]];
  note_peak(of(site.process), site, now);
  const int64_t bytes = -static_cast<int64_t>(columns_.weighted_bytes(id));
  const double count = columns_.weighted_count(id);
  site.level.change(bytes, now, [](uint64_t, uint64_t) {});
  const double chance = columns_.chance(id);
  const unsigned half = half_of(id);
  log_.add({columns_.site[row], true, columns_.weight_bytes[row] != 0, half, columns_.weighted_bytes(id)}, now);
  site.split.change(half, bytes, chance >= 1.0, now);
  if (site.kind == Kind::heap) of(site.process).split.change(half, bytes, chance >= 1.0, now);
  if (!is_cut) {
    site.releases += count;
    site.lifetime_ns += count * static_cast<double>(now - columns_.born_ns[row]);
  }
  if (released) {
    const auto last = last_allocation_.find(thread_key(site.process, columns_.thread[row]));
    if (last != last_allocation_.end() && last->second == columns_.number[row]) site.temporary += count;
  }
  ProcessTotals& totals = of(site.process);
  if (site.kind == Kind::heap) {
    totals.heap.change(bytes, now, [&](uint64_t t, uint64_t b) { totals.heap_curve.add(t, b); });
  } else {
    totals.mmap.change(bytes, now, [&](uint64_t t, uint64_t b) { totals.mmap_curve.add(t, b); });
  }
}

void SiteTotals::finish() {
  for (auto& [number, totals] : processes_) {
    settle_heap(totals);
    totals.mmap.settle([&](uint64_t t, uint64_t b) { totals.mmap_curve.add(t, b); });
    totals.live_bytes = totals.heap.current();
    totals.split.settle();
  }
  for (Site& site : sites_) {
    site.level.settle([](uint64_t, uint64_t) {});
    site.live_bytes = site.level.current();
    site.split.settle();
    note_peak(of(site.process), site, of(site.process).heap.last_ns());
  }
  for (uint32_t id = 1; id <= columns_.size(); ++id) {
    const uint32_t row = id - 1;
    if (columns_.site[row] == kNoSite) continue;
    Site& site = sites_[columns_.site[row]];
    ProcessTotals& totals = of(site.process);
    const double chance = columns_.chance(id), count = columns_.weighted_count(id);
    const uint64_t bytes = columns_.weighted_bytes(id), born_ns = columns_.born_ns[row],
                   died_ns = columns_.died_ns[row];
    site.split.count(half_of(id), born_ns, died_ns, bytes, chance);
    if (site.kind == Kind::heap) totals.split.count(half_of(id), born_ns, died_ns, bytes, chance);
    if (died_ns == 0) {
      site.live_spread.add(chance, count);
      site.live_bytes_spread.add(chance, static_cast<double>(bytes));
      if (site.kind == Kind::heap) {
        totals.live_spread.add(chance, count);
        totals.live_bytes_spread.add(chance, static_cast<double>(bytes));
      }
    }
    if (columns_.died_ns[row] == 0) {  // summed here: adding and taking away fractions would leave crumbs
      site.live += columns_.weighted_count(id);
      if (site.kind == Kind::heap) totals.live += columns_.weighted_count(id);
    }
    const Peak& peak = totals.heap.peak();
    if (peak.bytes != 0 && born_ns <= peak.time_ns && (died_ns == 0 || died_ns > peak.time_ns))
      site.at_peak_spread.add(chance, static_cast<double>(bytes));
  }
  site_index_.clear();
  last_allocation_.clear();
  cached_allocation_ = nullptr;
}

}  // namespace memlens::objects
