/// Structures passed by value in memory: the call copies them into the area of arguments, which no instruction of the IR says.
#ifndef MEMLENS_PASS_BY_VALUE_H
#define MEMLENS_PASS_BY_VALUE_H

#include "llvm/IR/Function.h"
#include "llvm/IR/InstrTypes.h"

#include <vector>

namespace memlens {

struct PassedByValue {
  unsigned Operand = 0;     ///< of the call: the address of the structure
  uint64_t CopiedBytes = 0; ///< read from there and written to the area of arguments
  uint64_t LoadedBytes = 0; ///< read from there into registers, in addition (POWER)
};

/// The `byval` arguments of a call that code is generated for. Machines that pass a pointer to a copy (AArch64, RISC-V) have the copy
/// in the IR and no such arguments.
std::vector<PassedByValue> passedByValue(const llvm::CallBase &Call);

/// Bytes of `byval` arguments that a function receives in registers and stores on entry (POWER).
uint64_t storedOnEntry(const llvm::Function &F);

} // namespace memlens

#endif
