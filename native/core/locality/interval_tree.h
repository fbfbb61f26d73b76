// Execution interval tree (MemGaze, section IV-C): what is accessed in windows of every size, in one pass.
//
//   function   accesses of one function in a leaf window
//   window     2^k accesses within a sample, from the leaf size up; constants take no place, they go with the access before
//   sample     what was recorded without a gap
//   interval   2^j samples that follow each other, j > 0; the root holds all
//
// Windows of one size lie side by side, so an access whose address was last seen at another place is new in exactly
// those windows around it that do not hold that place too: all smaller than the one where their numbers first agree.
// The same holds for blocks, and a reuse belongs to that window and all larger ones. One look-up an access then
// gives the footprint of all windows around it. Distances are those of `Reuse`, within a sample.
//
// A node that would hold the same accesses as its only child is left out. One object is used by one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kernels.h"
#include "named_list.h"
#include "reuse.h"

namespace memlens::locality {

// clang-format off
#define MEMLENS_NODE_KINDS(X) \
  X(kFunction, "function") X(kWindow, "window") X(kSample, "sample") X(kInterval, "interval")
// clang-format on
enum class NodeKind : uint8_t { MEMLENS_NODE_KINDS(MEMLENS_LIST_VALUE) };
inline constexpr const char* kNodeKindNames[] = {MEMLENS_NODE_KINDS(MEMLENS_LIST_NAME)};

// Figures of one node, or sums over the nodes of a level.
struct IntervalFigures {
  uint64_t accesses = 0;   // without constants
  uint64_t constants = 0;  // recorded ones, and those that an access implies
  uint64_t recorded = 0;
  uint64_t unknown = 0;  // accesses whose class is not known; in footprints they are irregular
  uint64_t addresses = 0, addresses_strided = 0, addresses_irregular = 0;
  uint64_t blocks = 0;
  uint64_t reuses = 0, distance_sum = 0, distance_max = 0;
  double implied = 0;  // constants that the whole sample implies: exact from samples up, by share within
  double executed = 0;

  void add(const IntervalFigures& other);
  uint64_t footprint() const { return addresses + (constants > 0 || implied > 0); }
};

struct IntervalNode {
  NodeKind kind = NodeKind::kWindow;
  uint8_t shift = 0;  // log2 of accesses (windows) or of samples (intervals)
  uint32_t first_sample = 0, samples = 1;
  uint64_t begin = 0;  // its first access, without constants, within its sample
  uint32_t function = 0;
  IntervalFigures figures;
};

struct IntervalLevel {
  NodeKind kind = NodeKind::kWindow;
  uint8_t shift = 0;
  uint64_t nodes = 0;      // full ones: 2^k accesses, 2^j samples
  uint64_t footprint = 0;  // sum of F, which counts a node's constants as one
  IntervalFigures sums;
};

class IntervalTree {
 public:
  // Windows of less than 2^leaf_shift accesses are not looked at, those of less than 2^keep_shift are not kept as nodes.
  IntervalTree(uint64_t block_bytes, unsigned leaf_shift, unsigned keep_shift,
               uint64_t memory_limit_bytes = std::numeric_limits<uint64_t>::max());

  void begin_sample();
  // Classes as in `AccessClass`. `functions` and `implied` (constants that go with an access) may be empty.
  void add(std::span<const uint64_t> addresses, std::span<const uint8_t> classes, std::span<const uint32_t> functions,
           std::span<const uint32_t> implied);
  // `executed`: accesses that the sample stands for; `implied`: constants that are only known for the sample.
  void end_sample(double executed, uint64_t implied);
  // After the last sample.
  void finish();

  const std::vector<IntervalNode>& nodes() const { return nodes_; }
  std::vector<IntervalLevel> levels() const;
  uint64_t memory_bytes() const;

 private:
  static constexpr unsigned kSample = 40, kLevels = 64;  // below kSample windows, above it intervals
  static constexpr unsigned kLeafMost = 6;
  struct Place {
    uint32_t sample = 0, at = 0;  // samples from 1, 0 = none
  };
  struct Entry {
    uint64_t key = 0;
    Place any, of_class[2];
  };
  struct Block {
    uint64_t key = 0;
    Place last;
    uint64_t unused = 0;
  };
  template <typename T>
  struct Table {
    LargeVector<T> entries;
    uint64_t mask = 0, live = 0;
  };
  // What adds up: the figures of a node are the difference of two moments.
  struct Totals {
    uint64_t accesses = 0, constants = 0, recorded = 0, unknown = 0, reuses = 0, distance_sum = 0, implied = 0;
    double executed = 0;
  };
  // What does not, for the open node of each level.
  struct Open {
    std::array<uint64_t, kLevels> addresses{}, strided{}, irregular{}, blocks{}, distance_sum{}, distance_max{};
  };
  using Counts = std::array<uint64_t, kLevels>;
  struct Small {
    uint64_t address;
    uint32_t function;
    uint8_t is_irregular;
  };

  template <typename T>
  T& find(Table<T>& table, uint64_t key, Place T::* used);
  template <typename T>
  void grow(Table<T>& table, Place T::* used);
  void check_memory(uint64_t more) const;
  static unsigned first_common(Place before, Place here);
  void raise(Counts& counts, unsigned end) const;
  void reuse_at(unsigned common, uint64_t distance);
  IntervalFigures figures_of(unsigned level) const;
  void restart(unsigned level);
  void open_above(unsigned level, unsigned from);
  void end_windows();
  void close(unsigned level);
  void close_leaf();
  void note(NodeKind kind, unsigned shift, const IntervalFigures& figures);

  unsigned leaf_shift_, keep_shift_, block_shift_;
  uint64_t limit_;
  Reuse reuse_;
  Table<Entry> addresses_;
  Table<Block> blocks_;
  uint32_t sample_ = 0;  // from 1 while one is open
  uint64_t at_ = 0;      // accesses of the sample so far, without constants
  // The largest window and interval so far: they hold all of the sample, and of the trace.
  unsigned top_window_ = 0, top_interval_ = kSample;
  size_t sample_nodes_ = 0;
  Open open_;
  Totals now_;
  std::array<Totals, kLevels> since_{};
  std::array<IntervalLevel, kLevels> levels_{};
  std::array<uint64_t, kLevels> recorded_of_sample_{}, no_constants_{};
  IntervalLevel functions_;
  std::vector<Small> leaf_;
  std::vector<uint32_t> distances_;
  std::vector<IntervalNode> nodes_;
};

}  // namespace memlens::locality
