/// Loops of a trace that check once a round whether a window can begin in it, not once for each of their segments.
#ifndef MEMLENS_PASS_ROUNDS_H
#define MEMLENS_PASS_ROUNDS_H

#include "llvm/ADT/DenseMap.h"
#include "llvm/Analysis/BranchProbabilityInfo.h"
#include "llvm/Analysis/LoopInfo.h"
#include "llvm/IR/Dominators.h"
#include "llvm/IR/Instructions.h"
#include "llvm/Transforms/Utils/ValueMapper.h"

namespace memlens {

/// that a block executes; those with none may be missing
using AccessesOfBlocks = llvm::DenseMap<const llvm::BasicBlock *, uint64_t>;

/// `L` is innermost, in simplified form, without calls that may trace; `Left` is the variable that holds what is left while it runs. False: it
/// stays as it is. What was in the loop before is then the copy that counts and records.
bool runByRounds(llvm::Loop *L, const AccessesOfBlocks &Accesses, llvm::AllocaInst *Left,
                 const llvm::BranchProbabilityInfo &Likely, llvm::DominatorTree &DT, llvm::LoopInfo &LI);

/// Gives the loop a second copy of its body, inner loops included. The header keeps what the loop carries, and its branch, which is returned,
/// chooses: the copy if its condition is true, which it is until somebody sets it. Blocks of inner loops count as blocks of `L` until loops are
/// looked for again, and dominators are not right.
llvm::BranchInst *copyRound(llvm::Loop *L, const llvm::Twine &Suffix, llvm::DominatorTree &DT, llvm::LoopInfo &LI,
                            llvm::ValueToValueMapTy &Map);

} // namespace memlens

#endif
