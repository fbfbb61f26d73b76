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
#include <unordered_map>
#include <vector>

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
  template <typename Settled>
  void settle(Settled&& settled) {
    if (!changed_) return;
    changed_ = false;
    if (current_ > peak_.bytes) peak_ = {current_, last_ns_};
    settled(last_ns_, current_);
  }
  uint64_t current() const { return current_; }
  const Peak& peak() const { return peak_; }

 private:
  uint64_t current_ = 0, last_ns_ = 0;
  Peak peak_;
  bool changed_ = false;
};

// The peak of a level that is partly estimated; see the head of this file.
struct SplitPeak {
  Level halves[2];
  uint64_t at_other[2] = {0, 0};  // level of half h at the time of the peak of the other one
  Spread spread;                  // of the objects that lived at either time
  bool sampled = false;
  void change(unsigned half, int64_t bytes, bool exact, uint64_t now) {
    for (unsigned h = 0; h < 2; ++h)
      if (exact || h == half) halves[h].change(exact ? bytes : static_cast<int64_t>(2 * static_cast<uint64_t>(bytes)), now, [](uint64_t, uint64_t) {});
    sampled |= !exact;
  }
  void settle() {
    for (Level& half : halves) half.settle([](uint64_t, uint64_t) {});
  }
  // An object that was born and died (0 = never) with this weight; after settle().
  void count(unsigned half, uint64_t born_ns, uint64_t died_ns, uint64_t weight, double chance) {
    for (unsigned h = 0; h < 2; ++h) {
      const uint64_t time_ns = halves[1 - h].peak().time_ns;
      if (born_ns > time_ns || (died_ns != 0 && died_ns <= time_ns)) continue;
      const bool exact = chance >= 1.0;
      if (exact || h == half) at_other[h] += exact ? weight : 2 * weight;
      if (!exact && h == half) spread.add(chance, static_cast<double>(weight));
    }
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
  uint64_t objects = 0;  // rows, not weighted
  uint64_t min_bytes = UINT64_MAX, max_bytes = 0;
  uint32_t largest = 0;  // id
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

  const std::vector<Site>& sites() const { return sites_; }
  const std::map<uint32_t, ProcessTotals>& processes() const { return processes_; }

 private:
  static uint64_t thread_key(uint32_t process, uint32_t thread) { return uint64_t{process} << 32 | thread; }
  ProcessTotals& of(uint32_t process);
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
      return ((uint64_t{key.process} << 32 | key.stack) * 2 + static_cast<uint64_t>(key.kind)) * 0x9E3779B97F4A7C15u >> 13;
    }
  };

  const Columns& columns_;
  std::vector<Site> sites_;
  std::unordered_map<SiteKey, uint32_t, SiteHash> site_index_;
  std::map<uint32_t, ProcessTotals> processes_;
  uint32_t cached_number_ = 0;
  ProcessTotals* cached_ = nullptr;
  std::unordered_map<uint64_t, uint32_t> last_allocation_;  // of each thread, for temporary objects
};

}  // namespace memlens::objects
