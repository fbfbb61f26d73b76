#include "equivalence.h"

#include "llvm/ADT/PostOrderIterator.h"
#include "llvm/IR/CFG.h"

#include <map>

using namespace llvm;

namespace memlens {

namespace {

struct Sum {
  uint64_t Low = 0, High = 0;
  Sum &operator^=(const Sum &Other) {
    Low ^= Other.Low;
    High ^= Other.High;
    return *this;
  }
  bool operator<(const Sum &Other) const { return std::tie(Low, High) < std::tie(Other.Low, Other.High); }
};

class Random { // splitmix64: the same numbers in every compilation
public:
  Sum sum() { return {next(), next()}; }

private:
  uint64_t next() {
    uint64_t X = State += 0x9e3779b97f4a7c15;
    X = (X ^ (X >> 30)) * 0xbf58476d1ce4e5b9;
    X = (X ^ (X >> 27)) * 0x94d049bb133111eb;
    return X ^ (X >> 31);
  }
  uint64_t State = 0x6d656d6c656e73;
};

struct Graph {
  struct Edge {
    unsigned From, To;
  };
  std::vector<Edge> Edges;
  std::vector<std::vector<unsigned>> Incident; // edges of a node, in both directions

  explicit Graph(unsigned Nodes) : Incident(Nodes) {}
  unsigned add(unsigned From, unsigned To) {
    Edges.push_back({From, To});
    Incident[From].push_back(Edges.size() - 1);
    Incident[To].push_back(Edges.size() - 1);
    return Edges.size() - 1;
  }

  std::vector<Sum> sums() const {
    const unsigned None = ~0u;
    std::vector<unsigned> ParentEdge(Incident.size(), None), Order, Next(Incident.size(), 0), Stack{0};
    std::vector<bool> Seen(Incident.size(), false), InTree(Edges.size(), false);
    Seen[0] = true;
    Order.push_back(0);
    while (!Stack.empty()) {
      unsigned Node = Stack.back();
      if (Next[Node] == Incident[Node].size()) {
        Stack.pop_back();
        continue;
      }
      unsigned E = Incident[Node][Next[Node]++];
      unsigned Other = Edges[E].From == Node ? Edges[E].To : Edges[E].From;
      if (Seen[Other])
        continue;
      Seen[Other] = true;
      InTree[E] = true;
      ParentEdge[Other] = E;
      Order.push_back(Other);
      Stack.push_back(Other);
    }
    Random Numbers;
    std::vector<Sum> OfEdge(Edges.size()), OfNode(Incident.size());
    for (unsigned E = 0; E < Edges.size(); ++E) {
      if (InTree[E])
        continue;
      OfEdge[E] = Numbers.sum();
      OfNode[Edges[E].From] ^= OfEdge[E];
      OfNode[Edges[E].To] ^= OfEdge[E];
    }
    for (auto I = Order.rbegin(); I != Order.rend(); ++I) {
      unsigned E = ParentEdge[*I];
      if (E == None)
        continue;
      OfEdge[E] = OfNode[*I];
      OfNode[Edges[E].From == *I ? Edges[E].To : Edges[E].From] ^= OfNode[*I];
    }
    return OfEdge;
  }
};

} // namespace

Equivalence::Equivalence(Function &F, const SmallPtrSetImpl<BasicBlock *> &MayLeave,
                         const SmallPtrSetImpl<BasicBlock *> &MayEnter, bool Merge) {
  std::vector<BasicBlock *> Order;
  DenseMap<const BasicBlock *, unsigned> Number;
  for (BasicBlock *BB : ReversePostOrderTraversal<Function *>(&F)) {
    Number[BB] = Order.size();
    Order.push_back(BB);
  }
  const unsigned Start = 2 * Order.size(), End = Start + 1;
  Graph G(End + 1);
  auto In = [&](const BasicBlock *BB) { return 2 * Number[BB]; };
  auto Out = [&](const BasicBlock *BB) { return 2 * Number[BB] + 1; };

  std::vector<unsigned> BlockEdge(Order.size());
  DenseMap<std::pair<const BasicBlock *, const BasicBlock *>, int> Between;
  for (BasicBlock *BB : Order) {
    BlockEdge[Number[BB]] = G.add(In(BB), Out(BB));
    for (BasicBlock *Next : successors(BB)) {
      int E = G.add(Out(BB), In(Next));
      auto [At, New] = Between.try_emplace({BB, Next}, E);
      if (!New)
        At->second = -1;
    }
    if (MayEnter.contains(BB))
      G.add(Start, In(BB));
  }
  G.add(Start, In(&F.getEntryBlock()));
  G.add(End, Start);

  // Every block has to reach the end: one that ends the run, or may, does; of the rest (loops without an exit)
  // each gets an edge.
  SmallPtrSet<const BasicBlock *, 16> Reaches;
  std::vector<const BasicBlock *> Work;
  for (BasicBlock *BB : Order)
    if (succ_empty(BB) || MayLeave.contains(BB)) {
      G.add(Out(BB), End);
      Reaches.insert(BB);
      Work.push_back(BB);
    }
  while (!Work.empty()) {
    const BasicBlock *BB = Work.back();
    Work.pop_back();
    for (const BasicBlock *Before : predecessors(BB))
      if (Number.count(Before) && Reaches.insert(Before).second)
        Work.push_back(Before);
  }
  for (BasicBlock *BB : Order)
    if (!Reaches.contains(BB))
      G.add(Out(BB), End);

  std::vector<Sum> Sums = G.sums();
  std::map<Sum, int> Class;
  auto ClassOf = [&](unsigned E) {
    auto [At, New] = Class.try_emplace(Sums[E], Classes);
    if (New)
      ++Classes;
    return At->second;
  };
  for (BasicBlock *BB : Order)
    Blocks[BB] = Merge ? ClassOf(BlockEdge[Number[BB]]) : static_cast<int>(Classes++);
  if (!Merge)
    return;
  Nodes = End + 1;
  for (unsigned E = 0; E < G.Edges.size(); ++E)
    Closed.push_back({G.Edges[E].From, G.Edges[E].To, ClassOf(E)});
  for (auto &[Ends, E] : Between)
    Edges[Ends] = E < 0 ? -1 : ClassOf(E);
}

int Equivalence::of(const BasicBlock *BB) const {
  auto At = Blocks.find(BB);
  return At == Blocks.end() ? -1 : At->second;
}

int Equivalence::of(const BasicBlock *From, const BasicBlock *To) const {
  auto At = Edges.find({From, To});
  return At == Edges.end() ? -1 : At->second;
}

} // namespace memlens
