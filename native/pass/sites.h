/// What is counted: the places of a function that access memory or leave it.
#ifndef MEMLENS_PASS_SITES_H
#define MEMLENS_PASS_SITES_H

#include "llvm/ADT/SmallVector.h"
#include "llvm/Analysis/ScalarEvolution.h"
#include "llvm/Analysis/TargetLibraryInfo.h"
#include "llvm/Analysis/TargetTransformInfo.h"
#include "llvm/IR/Function.h"
#include "llvm/IR/InstrTypes.h"

#include <string>
#include <vector>

namespace memlens {

struct Site {
  llvm::Instruction *At = nullptr;
  unsigned Kind = 0;           ///< enum ml_site_kind
  unsigned Flags = 0;          ///< enum ml_site_flags
  uint64_t Bytes = 0;          ///< of one execution, where that is constant
  llvm::Value *Size = nullptr; ///< bytes of one execution, where a value tells, in units of `Unit`
  uint64_t Unit = 1;
  llvm::Value *Mask = nullptr;  ///< or: lanes that take part, each of `LaneBytes`
  llvm::Value *Limit = nullptr; ///< and: only so many of the first of `Lanes` lanes
  llvm::ElementCount Lanes = llvm::ElementCount::getFixed(0);
  uint64_t LaneBytes = 0;
  bool Scalable = false; ///< or: `Bytes` times the vector scale of the machine
  std::string Callee;
  /// operands of `At` that are the addresses, or the vector of addresses; -1 = none is told
  int ReadOperand = -1, WrittenOperand = -1;
  bool OfArgument = false; ///< a structure that the call at `At` passes by value: moved before the call

  bool hasOwnBytes() const { return Size || Mask || Limit || Scalable; }
};

/// All sites, in the order of the function's blocks. After prepareCalls.
std::vector<Site> findSites(llvm::Function &F, const llvm::TargetLibraryInfo &TLI, const llvm::TargetTransformInfo &TTI,
                            llvm::ScalarEvolution &SE);

/// A call after which nothing is certain: it may not return, and it may change the region.
bool isOpaque(const llvm::Instruction &I);
/// A call that control may come back from again: setjmp and its like.
bool returnsTwice(const llvm::Instruction &I);

/// Numbers of operations of a block.
struct Mix {
  unsigned Integer = 0, Float = 0, Vector = 0, Branches = 0, Calls = 0, Prefetches = 0, FloatResults = 0;
};
Mix operations(const llvm::BasicBlock &BB);

} // namespace memlens

#endif
