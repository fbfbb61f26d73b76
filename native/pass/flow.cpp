#include "flow.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace memlens {

Flow::Flow(unsigned Nodes, std::vector<FlowEdge> AllEdges, std::vector<uint64_t> CostOfClass)
    : Edges(std::move(AllEdges)), Cost(std::move(CostOfClass)), OfClass(Cost.size()), Nodes(Nodes) {
  for (unsigned E = 0; E < Edges.size(); ++E)
    OfClass[Edges[E].Class].push_back(E);
  plant();
}

void Flow::plant() {
  std::vector<unsigned> Order(Edges.size()), Parent(Nodes);
  std::iota(Order.begin(), Order.end(), 0);
  std::iota(Parent.begin(), Parent.end(), 0);
  std::stable_sort(Order.begin(), Order.end(),
                   [&](unsigned A, unsigned B) { return Cost[Edges[A].Class] > Cost[Edges[B].Class]; });
  auto Root = [&](unsigned Node) {
    while (Parent[Node] != Node)
      Node = Parent[Node] = Parent[Parent[Node]];
    return Node;
  };
  InTree.assign(Edges.size(), false);
  OfNode.assign(Nodes, {});
  for (unsigned E : Order) {
    const unsigned From = Root(Edges[E].From), To = Root(Edges[E].To);
    if (From == To)
      continue;
    Parent[From] = To;
    InTree[E] = true;
    OfNode[Edges[E].From].push_back(E);
    OfNode[Edges[E].To].push_back(E);
  }
}

void Flow::know(int Class) {
  Cost[Class] = 0;
  // A tree without it stays the most expensive one.
  if (std::any_of(OfClass[Class].begin(), OfClass[Class].end(), [&](unsigned E) { return InTree[E]; }))
    plant();
}

std::vector<std::pair<int, int64_t>> Flow::express(int Class) const {
  for (unsigned E : OfClass[Class])
    if (!InTree[E])
      return {};
  if (OfClass[Class].empty())
    return {};
  const unsigned Cut = OfClass[Class].front();
  // All that the tree reaches from where the edge leads to, without the edge.
  std::vector<bool> Inside(Nodes, false);
  std::vector<unsigned> Work{Edges[Cut].To};
  Inside[Edges[Cut].To] = true;
  while (!Work.empty()) {
    const unsigned Node = Work.back();
    Work.pop_back();
    for (unsigned E : OfNode[Node]) {
      const unsigned Other = Edges[E].From == Node ? Edges[E].To : Edges[E].From;
      if (E == Cut || Inside[Other])
        continue;
      Inside[Other] = true;
      Work.push_back(Other);
    }
  }
  std::map<int, int64_t> Sums;
  for (unsigned E = 0; E < Edges.size(); ++E)
    if (!InTree[E] && Inside[Edges[E].From] != Inside[Edges[E].To])
      Sums[Edges[E].Class] += Inside[Edges[E].From] ? 1 : -1;
  std::vector<std::pair<int, int64_t>> Parts;
  for (auto [Other, Sign] : Sums)
    if (Sign)
      Parts.push_back({Other, Sign});
  return Parts;
}

} // namespace memlens
