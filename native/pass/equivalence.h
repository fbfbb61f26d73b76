/// Which parts of a function's control flow always run equally often.
#ifndef MEMLENS_PASS_EQUIVALENCE_H
#define MEMLENS_PASS_EQUIVALENCE_H

#include "flow.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/SmallPtrSet.h"
#include "llvm/IR/Function.h"

#include <vector>

namespace memlens {

/// Classes of blocks and edges that every run through the function passes equally often.
///
/// Close the graph by an edge from its end to its start: a run is then a set of cycles, and two edges run equally
/// often if every cycle has both or neither. (That A dominates B, B post-dominates A and both are in one loop is
/// not enough: `continue` lets A run again without B.) In a strongly connected graph this is so exactly if the
/// two are a cut of the undirected graph, which a spanning tree tells: give each edge outside the tree a random
/// number, each edge of the tree the sum of those that go around it, and equal numbers are equal classes
/// (Johnson, Pearson and Pingali, PLDI 1994, with sums for their lists of brackets). Numbers have 128 bits.
class Equivalence {
public:
  /// `MayLeave`: blocks that may end the run (a call that may exit, throw or jump away).
  /// `MayEnter`: blocks that may be entered from outside (after a call that returns twice).
  Equivalence(llvm::Function &F, const llvm::SmallPtrSetImpl<llvm::BasicBlock *> &MayLeave,
              const llvm::SmallPtrSetImpl<llvm::BasicBlock *> &MayEnter, bool Merge);

  /// Class of a block; -1 = it cannot be reached.
  int of(const llvm::BasicBlock *BB) const;
  /// Class of the only edge From → To; -1 = there are several or none.
  int of(const llvm::BasicBlock *From, const llvm::BasicBlock *To) const;
  unsigned count() const { return Classes; }

  /// The graph that tells them; empty if nothing was merged.
  const std::vector<FlowEdge> &flow() const { return Closed; }
  unsigned nodes() const { return Nodes; }

private:
  llvm::DenseMap<const llvm::BasicBlock *, int> Blocks;
  llvm::DenseMap<std::pair<const llvm::BasicBlock *, const llvm::BasicBlock *>, int> Edges;
  std::vector<FlowEdge> Closed;
  unsigned Classes = 0, Nodes = 0;
};

} // namespace memlens

#endif
