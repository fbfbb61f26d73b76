// Sums of classed faults: one row for all that are alike in everything that tables of totals ask for, and how many there
// were in each part of the recording.
//
// Rows come in the order of the first fault of each in the capture, which is not quite that of time. A value that is the same for all faults of a row
// (its weight, what it made new) is kept once, so that any sum over faults is the sum over rows of rows * value.
#pragma once

#include <cstdint>
#include <vector>

#include "fault_classifier.h"

namespace memlens::replay {

class FaultGroups {
 public:
  // Edges in seconds after begin_ns; a fault at the last edge lies in the last part, one outside of all in none.
  struct TimeBins {
    uint64_t begin_ns = 0;
    std::vector<double> edges_s;
  };
  struct Group {
    uint32_t process, thread, code, stack, new_pages;
    float weight;
    FaultClass fault_class;
    AreaKind area;
    uint8_t span_shift, stack_weight_shift;
    bool inferred, in_kernel;
    int16_t node;
    uint64_t faults;  // rows
    double weights;   // sum
    uint64_t first;   // place in the capture of the first one
    uint32_t pair;    // of code and class
  };
  // Faults of one instruction and class in one part of the recording.
  struct InTime {
    uint32_t bin, code;
    FaultClass fault_class;
    double weights;
  };

  // A fault with a call stack: few, so they are kept one by one.
  struct Stacked {
    uint64_t time_ns;
    uint32_t process, thread, code, stack;
    FaultClass fault_class;
  };

  FaultGroups() = default;
  explicit FaultGroups(TimeBins bins) : bins_(std::move(bins)) {}

  void add(const ClassifiedFault& fault);
  void finish();
  const std::vector<Group>& groups() const { return groups_; }
  const std::vector<Stacked>& stacked() const { return stacked_; }
  const std::vector<InTime>& in_time() const { return in_time_; }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  uint32_t find(const Group& group);
  uint32_t pair_of(const Group& group);
  void grow();
  void add_to_bin(uint32_t pair, uint64_t time_ns, float weight);
  void leave_bin();

  TimeBins bins_;
  std::vector<Group> groups_;
  std::vector<uint32_t> slots_;  // open addressing: index into groups_
  std::vector<std::pair<uint32_t, FaultClass>> pairs_;
  std::vector<std::vector<std::pair<FaultClass, uint32_t>>> pairs_of_code_;
  std::vector<double> of_pair_;  // weights in the current bin
  std::vector<uint32_t> used_pairs_;
  uint32_t bin_ = kNone;
  std::vector<InTime> in_time_;
  std::vector<Stacked> stacked_;
};

}  // namespace memlens::replay
