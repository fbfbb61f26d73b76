/// Long loops of a trace, in parts: between two windows a copy runs that has none of our code.
#ifndef MEMLENS_PASS_PARTS_H
#define MEMLENS_PASS_PARTS_H

#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/Analysis/LoopInfo.h"
#include "llvm/IR/Dominators.h"
#include "llvm/IR/IRBuilder.h"

namespace memlens {

/// A loop in simplified and closed form, left in its latch only, with a block `Before` that does nothing but go to it.
struct CountedLoop {
  llvm::Loop *L;
  llvm::BasicBlock *Check; ///< goes to `Before`
  llvm::BasicBlock *Before;
  llvm::BasicBlock *Exit;
  llvm::Value *Trips; ///< how often its body runs, i64; known at the end of `Check`
  unsigned Each;      ///< accesses of one time
};

using ReadLeft = llvm::function_ref<llvm::Value *(llvm::IRBuilder<> &)>;
using WriteLeft = llvm::function_ref<void(llvm::IRBuilder<> &, llvm::Value *)>;

/// Returns where `Check` has to go instead of `Before`.
llvm::BasicBlock *runInParts(const CountedLoop &Counted, llvm::DominatorTree &DT, llvm::LoopInfo &LI, ReadLeft Read,
                             WriteLeft Write);

} // namespace memlens

#endif
