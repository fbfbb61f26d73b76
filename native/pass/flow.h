/// Counts that follow from others by flow conservation: what enters a block leaves it.
#ifndef MEMLENS_PASS_FLOW_H
#define MEMLENS_PASS_FLOW_H

#include <cstdint>
#include <utility>
#include <vector>

namespace memlens {

struct FlowEdge {
  unsigned From, To;
  int Class; ///< edges of a class are passed equally often
};

/// A graph in which every node is entered as often as it is left. Edges outside a spanning tree tell all others: an
/// edge of the tree is what crosses between the two parts that are left without it (Knuth and Stevenson, 1973; Ball and
/// Larus, 1994). A tree of the most expensive edges leaves the cheapest to be counted.
class Flow {
public:
  static constexpr uint64_t Never = UINT64_MAX; ///< the cost of what cannot be counted

  Flow(unsigned Nodes, std::vector<FlowEdge> Edges, std::vector<uint64_t> CostOfClass);

  /// Other classes, each with its sign, that together tell how often a class runs; none = it has to be counted.
  std::vector<std::pair<int, int64_t>> express(int Class) const;

  uint64_t cost(int Class) const { return Cost[Class]; }
  /// The class is counted: it costs nothing more.
  void know(int Class);

private:
  std::vector<FlowEdge> Edges;
  std::vector<uint64_t> Cost;
  std::vector<std::vector<unsigned>> OfClass, OfNode; // edges; of a node: those of the tree
  std::vector<bool> InTree;
  unsigned Nodes;

  void plant();
};

} // namespace memlens

#endif
