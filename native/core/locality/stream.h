// All locality figures of one thread's accesses in one pass: reuse, footprint by several groupings, heat map, curves.
//
// Accesses come in columns, in the order of the thread, in parts of any size. A change of the column `windows` ends a window:
// what lies between two windows was not recorded. Streams of different threads share nothing, may run at the same time
// and are merged at the end.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "footprint.h"
#include "heat_map.h"
#include "summaries.h"

namespace memlens::locality {

struct StreamOptions {
  uint64_t block_bytes = 64;
  uint32_t views = 1;       // groupings
  bool has_windows = true;  // false: everything was recorded, one window
  uint64_t memory_limit_bytes = std::numeric_limits<uint64_t>::max();
  // A heat map of so many columns; 0: none.
  uint32_t heat_columns = 0, heat_rows = 1024;
  uint64_t begin_ns = 0, end_ns = 0;
};

struct StreamColumns {
  std::span<const uint64_t> addresses, times_ns;  // times only for a heat map
  std::span<const uint32_t> bytes, windows;       // may be empty: 1 each, one window
  std::span<const uint8_t> classes;               // may be empty: irregular
  std::span<const double> weights;                // may be empty: 1 each; executed accesses that one stands for
  std::vector<std::span<const uint32_t>> groups;  // one for each view; an empty one: all are group 0
};

// Constant accesses that a stream leaves out, in the order of windows. A group of kNoGroup is in no row of its view.
struct ConstantColumns {
  std::span<const uint32_t> windows;
  std::span<const uint64_t> counts;
  std::span<const double> weights;
  std::vector<std::span<const uint32_t>> groups;  // one for each view
};
constexpr uint32_t kNoGroup = 0xFFFFFFFF;

class Stream {
 public:
  explicit Stream(const StreamOptions& options);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  void add(const StreamColumns& columns);
  // Before the accesses of their windows that come last, so that a window has its constants when it ends. A window may have nothing else. Numbers
  // of windows grow.
  void add_constants(const ConstantColumns& columns);
  void finish();
  void merge(const Stream& other);  // both finished

  const ReuseSummary& reuse(uint32_t view) const { return views_[view].reuse; }
  const Footprint& footprint(uint32_t view) const { return views_[view].footprint; }
  const std::vector<double>& executed(uint32_t view) const { return views_[view].executed; }
  const MissCurve& curve() const { return curve_; }
  const HeatMap* heat() const { return heat_.get(); }
  uint64_t accesses() const { return curve_.accesses(); }
  uint64_t windows() const { return windows_; }
  uint64_t memory_bytes() const;

 private:
  struct View {
    ReuseSummary reuse;
    Footprint footprint;
    std::vector<double> executed;
  };
  struct Constants {
    uint32_t window;
    uint64_t count;
    double weight;
  };
  void part(const StreamColumns& columns, size_t from, size_t count);
  void end_window();
  void take_constants(uint32_t window);
  void end_windows_of_constants(uint32_t before);

  StreamOptions options_;
  Reuse reuse_;
  std::vector<View> views_;
  MissCurve curve_;
  std::unique_ptr<HeatMap> heat_;
  std::vector<Constants> constants_;       // from `next_constant_` on not taken yet
  std::vector<uint32_t> constant_groups_;  // of each, one for each view
  size_t next_constant_ = 0;
  uint32_t window_ = 0;
  uint64_t windows_ = 0;
  bool is_open_ = false;
  std::vector<uint32_t> distances_;
  std::vector<uint64_t> intervals_;
};

}  // namespace memlens::locality
