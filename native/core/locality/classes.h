// Classes of instructions by their observed addresses, for code without static classes.
//
//   constant   all accesses of the instruction in a thread go to one address
//   strided    at least kStridedShare of the steps between its consecutive accesses are equal; steps of 0 (the same
//              address again) are not looked at, nor the step into another window. Or at least kStayingShare of all
//              steps are 0: the address stays in the loop around it, and an outer one moves it
//   irregular  the rest
//
// Half of the steps are enough: a walk through short rows (an adjacency list, a sparse matrix) jumps at the end of each,
// and addresses without order have no step that comes again.
//
// Loads and stores of one instruction are two instructions here. What was seen once has one address; with `least_accesses` it
// is unknown.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "footprint.h"

namespace memlens::locality {

class Classes {
 public:
  static constexpr double kStridedShare = 0.5, kStayingShare = 0.75;
  struct Verdict {
    uint64_t pc = 0, accesses = 0;
    int64_t stride_bytes = 0;  // the most frequent step
    double share = 0;          // of the steps that have it
    uint32_t stream = 0;
    AccessClass kind = AccessClass::kUnknown;
    bool is_store = false;
  };

  // An instruction that was seen less often is no constant.
  explicit Classes(uint64_t least_accesses = 1) : least_accesses_(least_accesses) {}

  // Accesses in the order of a thread; `stream` is a number of the caller's for (process, thread). `windows` may be empty.
  void add(uint32_t stream, std::span<const uint64_t> pcs, std::span<const uint64_t> addresses,
           std::span<const uint8_t> is_store, std::span<const uint32_t> windows = {});
  // The class of each access. Instructions that were never added are unknown.
  void classify(uint32_t stream, std::span<const uint64_t> pcs, std::span<const uint8_t> is_store,
                std::span<uint8_t> classes) const;
  // Each window for itself: the class of an access from what its instruction does in its window. Accesses of a window lie together.
  static void by_window(uint64_t least_accesses, std::span<const uint64_t> pcs, std::span<const uint64_t> addresses,
                        std::span<const uint8_t> is_store, std::span<const uint32_t> windows,
                        std::span<uint8_t> classes);
  std::vector<Verdict> verdicts() const;
  uint64_t instructions() const { return live_; }

 private:
  static constexpr unsigned kSteps = 4;
  struct Entry {
    uint64_t pc = 0, first = 0, last = 0, accesses = 0, steps = 0, stays = 0;
    uint64_t step[kSteps] = {}, times[kSteps] = {};
    uint32_t stream = 0, window = 0;
    bool is_used = false, is_store = false, is_constant = true;
  };
  const Entry* find(uint32_t stream, uint64_t pc, bool is_store) const;
  Entry& find_or_add(uint32_t stream, uint64_t pc, bool is_store);
  void grow();
  void forget();
  static uint64_t place_of(uint32_t stream, uint64_t pc, bool is_store) {
    return scatter((pc ^ uint64_t{stream} * 0x9E3779B97F4A7C15u) << 3 | uint64_t{is_store} << 2);
  }
  Verdict judge(const Entry& entry) const;

  uint64_t least_accesses_;
  std::vector<Entry> table_ = std::vector<Entry>(1 << 10);
  uint64_t live_ = 0;
  std::vector<uint64_t> places_;  // of entries in use
};

}  // namespace memlens::locality
