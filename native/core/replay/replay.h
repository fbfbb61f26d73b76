// One walk over a capture in time order: address spaces change, code is named, faults are classed.
//
// Faults are many and are streamed: their chunks are added as time goes on, `advance` walks up to a time before which
// no fault is to come, and what was classed is taken or summed (FaultGroups) at once. All other records are few and are
// kept from the beginning. Code is numbered in the order in which it is met, faults included, whoever asks.
//
// Lifecycle: add_* but faults, begin(), then add_faults and advance() in turns, finish(). Or all of add_*, then run().
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "address_spaces.h"
#include "code_resolver.h"
#include "fault_classifier.h"
#include "fault_groups.h"
#include "page_nodes.h"

namespace memlens::replay {

class Replay {
 public:
  explicit Replay(Options options)
      : page_shift_(options.page_shift),
        spaces_(options.page_shift),
        resolver_(spaces_),
        classifier_(spaces_, resolver_, options) {
    spaces_.watch(&classifier_);
  }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  AddressSpaces& spaces() { return spaces_; }
  CodeResolver& code() { return resolver_; }
  const CodeResolver& code() const { return resolver_; }
  FaultClassifier& classifier() { return classifier_; }
  const FaultClassifier& classifier() const { return classifier_; }

  void add_residency(uint32_t process, std::span<const unsigned char> payload);
  // Which stacks allocations name, so that those are resolved too, and which objects are ever resized. Gives whether there are calls
  // that may change mappings: add_calls() takes those, when all allocations were noted.
  bool note_allocations(uint32_t process, std::span<const unsigned char> payload);
  void add_calls(uint32_t process, std::span<const unsigned char> payload);
  // `arrival`: the order of chunks, for faults of one moment.
  void add_faults(uint32_t process, std::span<const unsigned char> payload, uint32_t arrival = 0);
  void add_sampled_faults(uint32_t process, std::span<const unsigned char> payload, uint32_t arrival = UINT32_MAX);

  // The NUMA nodes of pages that the recorder asked for: of faults whose time and page they name.
  void add_placements(uint32_t process, std::span<const unsigned char> payload) {
    nodes_.add(process, payload, page_shift_);
  }

  // Sums of faults instead of the faults; before the first advance().
  void group(FaultGroups::TimeBins bins) { groups_ = FaultGroups(std::move(bins)), is_grouping_ = true; }

  void begin();
  void advance(uint64_t before_ns);
  void finish();
  void run() { begin(), finish(); }
  // Faults can be added again and are classed as before, now one by one; code keeps its numbers.
  void restart();

  size_t waiting() const { return waiting_.size(); }
  // Faults classed since the last take, in time order; those on memory of our own library are left out.
  std::vector<ClassifiedFault> take() { return std::exchange(classified_, {}); }
  const FaultGroups& groups() const { return groups_; }
  // Faults on memory of our own library: counted, and left out elsewhere.
  uint64_t own_faults() const { return static_cast<uint64_t>(own_faults_ + 0.5); }

 private:
  struct Event {
    uint64_t time_ns;
    uint32_t process;
    uint32_t index;
    uint8_t order;  // events of one moment, see begin()
  };
  void replay_event(const Event& event);
  void replay_events_before(uint64_t time_ns, uint8_t order);
  void sort_waiting();
  void walk(size_t count);  // of the waiting ones, which are sorted

  unsigned page_shift_;
  AddressSpaces spaces_;
  CodeResolver resolver_;
  FaultClassifier classifier_;
  std::vector<std::pair<uint32_t, ml_residency>> looks_;
  std::vector<size_t> pending_of_look_;
  std::vector<Event> events_;
  size_t next_event_ = 0;
  std::vector<ClassifiedFault> waiting_, classified_;
  std::vector<size_t> runs_;  // where ascending runs of waiting_ begin
  PageNodes nodes_;
  FaultGroups groups_;
  bool is_grouping_ = false, is_code_known_ = false;
  double own_faults_ = 0;
};

}  // namespace memlens::replay
