/// Loops of a trace that ask once a round whether a window can begin in it, not once for each of their segments.
#ifndef MEMLENS_PASS_ROUNDS_H
#define MEMLENS_PASS_ROUNDS_H

#include "llvm/ADT/DenseMap.h"
#include "llvm/Analysis/BranchProbabilityInfo.h"
#include "llvm/Analysis/LoopInfo.h"
#include "llvm/IR/Dominators.h"
#include "llvm/IR/Instructions.h"

namespace memlens {

using AccessesOfBlocks = llvm::DenseMap<const llvm::BasicBlock *, uint64_t>; ///< that a block executes; those with none may be missing

/// `L` is innermost, in simplified form, without calls that may trace; `Left` is the variable that holds what is left while it runs. False: it
/// stays as it is. What was in the loop before is then the copy that counts and records.
bool runByRounds(llvm::Loop *L, const AccessesOfBlocks &Accesses, llvm::AllocaInst *Left, const llvm::BranchProbabilityInfo &Likely,
                 llvm::DominatorTree &DT, llvm::LoopInfo &LI);

} // namespace memlens

#endif
