/// Calls of the C library whose arguments give their bytes, and calls that are not counted.
#ifndef MEMLENS_PASS_LIBRARY_CALLS_H
#define MEMLENS_PASS_LIBRARY_CALLS_H

#include "versions.h"

#include "llvm/Analysis/TargetLibraryInfo.h"
#include "llvm/Analysis/TargetTransformInfo.h"
#include "llvm/IR/InstrTypes.h"

#include <optional>

namespace memlens {

/// A copy or fill by a function of the C library. Operands are -1 where there is none.
struct LibraryMove {
  int Written = -1, Read = -1;
  llvm::Value *Count = nullptr;
  uint64_t Unit = 1; ///< bytes of one of `Count`
};
std::optional<LibraryMove> libraryMove(const llvm::CallBase &Call);

/// A comparison (memcmp, bcmp, wmemcmp) that the back end expands into loads, all of which run: bytes read on each side. Null: it is not.
std::optional<uint64_t> expandedComparison(const llvm::CallBase &Call, const llvm::TargetLibraryInfo &TLI,
                                           const llvm::TargetTransformInfo &TTI);

/// Adds code that tells how far other comparisons went, and, with `Pointers`, code on the way to calls through pointers that leave the module. Both
/// are then found by what follows.
void prepareCalls(llvm::Function &F, const llvm::TargetLibraryInfo &TLI, const llvm::TargetTransformInfo &TTI,
                  const Versions &V, bool Pointers);
/// The call that tells how many bytes a comparison has read on each side.
bool tellsComparison(const llvm::CallBase &Call);
/// Runs as often as the call through a pointer behind it leads out of the module.
bool tellsFarCall(const llvm::Instruction &I);

/// Inline assembly that may access memory.
bool isAssemblyWithMemory(const llvm::CallBase &Call);

} // namespace memlens

#endif
