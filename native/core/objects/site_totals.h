// Totals by allocation site and by process, kept while objects are born and die in time order.
//
// A level (live bytes) is judged at the end of each instant: what is released and allocated
// in the same nanosecond makes no peak. Pieces that a partial munmap leaves change levels but
// are no allocations, and the cut is no release.
//
// Errors: a sampled object was picked with the chance p on its own, so a sum of weights w has the variance sum((1-p) w^2),
// estimated from the objects in the sample. One more object of the mean weight is added to it (Spread::error): with few
// samples the plain estimate is too small.
//
// The peak of a noisy level is too high: its maximum picks what was overestimated. So sampled objects are dealt into two
// halves, each with double weight; the time of the peak comes from one half and the level at that time from the other, and
// the two answers are averaged (`SplitPeak`). Exact objects are in both halves.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "level_log.h"
#include "object_columns.h"

namespace memlens::objects {

// What the sampled objects of a sum say about its error.
struct Spread {
  double variance = 0, sum = 0;  // of (1 - p) w^2, of (1 - p) w
  uint64_t samples = 0;
  void add(double chance, double weight) {
    if (chance >= 1.0) return;
    variance += (1.0 - chance) * weight * weight;
    sum += (1.0 - chance) * weight;
    ++samples;
  }
  double error() const {
    if (sum <= 0) return 0;
    const double mean = variance / sum;
    return std::sqrt(variance + mean * mean);
  }
};

struct Peak {
  uint64_t bytes = 0, time_ns = 0;
};

// Live bytes over time: the level, its peak.
class Level {
 public:
  // Calls `settled(time, bytes)` for the instant that is over.
  template <typename Settled>
  void change(int64_t bytes, uint64_t now, Settled&& settled) {
    if (now != last_ns_) settle(settled);
    last_ns_ = now;
    changed_ = true;
    current_ += static_cast<uint64_t>(bytes);
  }
  // Gives whether this was the highest level so far.
  template <typename Settled>
  bool settle(Settled&& settled) {
    if (!changed_) return false;
    changed_ = false;
    const bool is_peak = current_ > peak_.bytes;
    if (is_peak) peak_ = {current_, last_ns_};
    settled(last_ns_, current_);
    return is_peak;
  }
  uint64_t last_ns() const { return last_ns_; }
  uint64_t current() const { return current_; }
  const Peak& peak() const { return peak_; }

 private:
  uint64_t current_ = 0, last_ns_ = 0;
  Peak peak_;
  bool changed_ = false;
};

// The peak of a level that is partly estimated; see the head of this file.
struct SplitPeak {
  uint64_t level[2] = {0, 0};
  Peak peaks[2];
  uint64_t at_other[2] = {0, 0};  // level of half h at the time of the peak of the other one
  Spread spread;                  // of the objects that lived at either time
  uint64_t last_ns = 0;
  bool sampled = false, changed = false;
  void change(unsigned half, int64_t bytes, bool exact, uint64_t now) {
    if (now != last_ns) settle();
    last_ns = now;
    changed = true;
    const uint64_t change = static_cast<uint64_t>(bytes);
    for (unsigned h = 0; h < 2; ++h)
      if (exact || h == half) level[h] += exact ? change : 2 * change;
    sampled |= !exact;
  }
  void settle() {
    if (!changed) return;
    changed = false;
    for (unsigned h = 0; h < 2; ++h) {
      if (level[h] <= peaks[h].bytes) continue;
      peaks[h] = {level[h], last_ns};
      at_other[1 - h] = level[1 - h];
    }
  }
  // A sampled object that was born and died (0 = never) with this weight; after settle().
  void count(unsigned half, uint64_t born_ns, uint64_t died_ns, uint64_t weight, double chance) {
    const uint64_t time_ns = peaks[1 - half].time_ns;
    if (chance < 1.0 && born_ns <= time_ns && (died_ns == 0 || died_ns > time_ns))
      spread.add(chance, static_cast<double>(weight));
  }
  uint64_t bytes() const { return at_other[0] / 2 + at_other[1] / 2; }
  // Each half has half of the samples at its time.
  double error() const { return spread.error(); }
};

// A level as at most 2 x kBuckets points: of each slice of time its highest and its last.
class Curve {
 public:
  static constexpr uint64_t kBuckets = 1000;
  struct Point {
    uint64_t time_ns, bytes;
  };
  void set_range(uint64_t begin_ns, uint64_t end_ns) {
    begin_ns_ = begin_ns;
    bucket_ns_ = (end_ns - begin_ns) / kBuckets + 1;
  }
  void add(uint64_t time_ns, uint64_t bytes) {
    const uint64_t bucket = time_ns < begin_ns_ ? 0 : std::min((time_ns - begin_ns_) / bucket_ns_, kBuckets - 1);
    const Point point{time_ns, bytes};
    if (buckets_.empty() || buckets_.back().number != bucket) buckets_.push_back({bucket, point, point});
    if (bytes > buckets_.back().highest.bytes) buckets_.back().highest = point;
    buckets_.back().last = point;
  }
  std::vector<Point> points() const;

 private:
  struct Bucket {
    uint64_t number;
    Point highest, last;
  };
  uint64_t begin_ns_ = 0, bucket_ns_ = 1;
  std::vector<Bucket> buckets_;
};

struct Site {
  uint32_t process = 0, stack = 0;
  Kind kind = Kind::heap;
  bool sampled = false;
  double allocations = 0, releases = 0, live = 0, temporary = 0, lifetime_ns = 0;
  uint64_t allocated_bytes = 0, live_bytes = 0, bytes_at_process_peak = 0;
  uint64_t objects = 0;      // not weighted
  uint64_t rows = 0;         // and pieces of them
  double cleared_bytes = 0;  // asked of calloc
  uint32_t peak_seen = 0;    // the last peak of its process that bytes_at_process_peak knows
  uint64_t min_bytes = UINT64_MAX, max_bytes = 0;
  uint32_t largest = 0;  // number
  Level level;
  SplitPeak split;
  Spread allocations_spread, bytes_spread, live_spread, live_bytes_spread, at_peak_spread;
  // At least what lives at the end, a time that no sample has chosen, and the largest object that was seen.
  uint64_t peak_bytes() const {
    return split.sampled ? std::max({split.bytes(), level.current(), max_bytes}) : level.peak().bytes;
  }
};

struct ProcessTotals {
  Level heap, mmap;
  uint32_t heap_peaks = 0;  // how often the heap was higher than ever before
  Curve heap_curve, mmap_curve;
  double allocations = 0, live = 0;
  uint64_t allocated_bytes = 0, live_bytes = 0;
  SplitPeak split;
  Spread allocations_spread, bytes_spread, live_spread, live_bytes_spread;
  bool sampled = false;
  uint64_t max_bytes = 0;
  uint64_t peak_bytes() const {
    return split.sampled ? std::max({split.bytes(), heap.current(), max_bytes}) : heap.peak().bytes;
  }
};

class SiteTotals {
 public:
  explicit SiteTotals(const Columns& columns) : columns_(columns) {}

  void set_range(uint32_t process, uint64_t begin_ns, uint64_t end_ns);
  // Gives the object's site. `is_piece`: it continues an older object.
  uint32_t born(uint32_t id, uint64_t now, bool is_piece);
  // `released`: by a call, not by exec, a lost release or a cut.
  void died(uint32_t id, uint64_t now, bool released, bool is_cut);
  void finish();

  // What lives of a process then is gone, where several sites are taken together.
  void end_process(uint32_t process, uint64_t now) { log_.end_process(process, now); }
  // Peaks of groups of sites, by site.
  std::vector<LevelLog::Peak> peaks_together(std::span<const uint32_t> group_of_site, size_t groups) const;

  const std::vector<Site>& sites() const { return sites_; }
  const std::map<uint32_t, ProcessTotals>& processes() const { return processes_; }

 private:
  static uint64_t thread_key(uint32_t process, uint32_t thread) { return uint64_t{process} << 32 | thread; }
  ProcessTotals& of(uint32_t process);
  // Before a change: a peak of the heap may be over, and what the site held then is what it holds still.
  void note_peak(ProcessTotals& totals, Site& site, uint64_t now);
  void settle_heap(ProcessTotals& totals);
  // Which half a sampled object is dealt to: by its place and time, which know nothing of its site.
  unsigned half_of(uint32_t id) const {
    const uint64_t mixed = (columns_.born_ns[id - 1] ^ columns_.base[id - 1] << 7) * 0x9E3779B97F4A7C15u;
    return static_cast<unsigned>(mixed >> 63);
  }
  struct SiteKey {
    uint32_t process, stack;
    Kind kind;
    bool operator==(const SiteKey&) const = default;
  };
  struct SiteHash {
    size_t operator()(const SiteKey& key) const {
      return ((uint64_t{key.process} << 32 | key.stack) * 2 + static_cast<uint64_t>(key.kind)) * 0x9E3779B97F4A7C15u >>
             13;
    }
  };

  const Columns& columns_;
  std::vector<Site> sites_;
  std::unordered_map<SiteKey, uint32_t, SiteHash> site_index_;
  std::map<uint32_t, ProcessTotals> processes_;
  uint32_t cached_number_ = 0;
  ProcessTotals* cached_ = nullptr;
  std::unordered_map<uint64_t, uint32_t> last_allocation_;  // of each thread, its number: for temporary objects
  uint64_t cached_thread_ = 0;
  uint32_t* cached_allocation_ = nullptr;
  LevelLog log_;
};

}  // namespace memlens::objects
