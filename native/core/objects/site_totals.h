// Totals by allocation site and by process, kept while objects are born and die in time order.
//
// A level (live bytes) is judged at the end of each instant: what is released and allocated
// in the same nanosecond makes no peak. Pieces that a partial munmap leaves change levels but
// are no allocations, and the cut is no release.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "object_columns.h"

namespace memlens::objects {

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
};

struct ProcessTotals {
  Level heap, mmap;
  Curve heap_curve, mmap_curve;
  double allocations = 0, live = 0;
  uint64_t allocated_bytes = 0, live_bytes = 0;
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
