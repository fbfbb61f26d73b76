/// Vector accesses whose lanes are chosen by a predicate or a length: llvm.vp.*, SVE and RVV.
#ifndef MEMLENS_PASS_LANE_ACCESSES_H
#define MEMLENS_PASS_LANE_ACCESSES_H

#include "llvm/IR/DerivedTypes.h"
#include "llvm/IR/IntrinsicInst.h"

#include <optional>

namespace memlens {

struct LaneAccess {
  bool Writes = false, OneAddress = true;        ///< OneAddress: lanes lie side by side
  int Operand = -1;                              ///< the address, or the vector of addresses
  llvm::VectorType *T = nullptr;                 ///< of what moves
  llvm::Value *Mask = nullptr, *Limit = nullptr; ///< a bit for each lane; how many of the first lanes. Null = all
  unsigned Vectors = 1;                          ///< of type `T`, interleaved in memory
};

std::optional<LaneAccess> laneAccess(const llvm::IntrinsicInst &II);

/// An intrinsic of one machine that accesses memory in a way that is not known here: listed, not counted.
bool isUnknownAccess(const llvm::IntrinsicInst &II);

} // namespace memlens

#endif
