/// Variables of the program from which executions of its code can be derived.
#ifndef MEMLENS_PASS_CLOCKS_H
#define MEMLENS_PASS_CLOCKS_H

#include "llvm/ADT/APInt.h"
#include "llvm/Analysis/LoopInfo.h"
#include "llvm/Analysis/ScalarEvolution.h"
#include "llvm/IR/Instructions.h"

#include <optional>
#include <vector>

namespace memlens {

/// A variable of the loop whose value tells the number of the iteration: its value at the header, the value it began
/// with, and its step.
struct Clock {
  llvm::PHINode *Now = nullptr;
  llvm::Value *Begin = nullptr;
  llvm::APInt Step;
};

/// The cheapest clock of a loop that has a preheader; `Now` is null if it has none.
Clock findClock(const llvm::Loop *L, llvm::ScalarEvolution &SE);

/// A variable that one edge inside a loop steps, and nothing else: how far it has come when the loop is left tells how
/// often that edge was passed. `mine` of
///     while (other < end) { while (*mine < *other) mine++; ... }
/// tells how often the inner loop went round in all runs of it, `n` of `if (keep) out[n++] = x` how often the branch was taken.
struct Tally {
  llvm::Value *Begin = nullptr;
  llvm::APInt Step;
  llvm::BasicBlock *From = nullptr, *To = nullptr; ///< the edge
  std::vector<llvm::PHINode *> Values;             ///< the variable: after any of these ran, its value is that one
};

/// What the variable that begins as `First`, in the header of a loop with a preheader, tells.
std::optional<Tally> findTally(llvm::PHINode &First, const llvm::Loop &L, const llvm::DataLayout &DL);

} // namespace memlens

#endif
