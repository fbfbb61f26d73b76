/// Accesses that instruction selection makes narrower than the IR has them.
#ifndef MEMLENS_PASS_SELECTION_H
#define MEMLENS_PASS_SELECTION_H

#include "llvm/IR/Instructions.h"

namespace memlens {

/// Bytes that the machine code of a load or store moves, where `Bytes` is what its type says.
uint64_t selectedBytes(const llvm::Instruction &I, uint64_t Bytes);

} // namespace memlens

#endif
