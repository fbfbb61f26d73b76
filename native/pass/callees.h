/// Functions that return to their caller, in the region that they were called in.
#ifndef MEMLENS_PASS_CALLEES_H
#define MEMLENS_PASS_CALLEES_H

#include "llvm/IR/InstrTypes.h"
#include "llvm/IR/Module.h"

namespace memlens {

/// While one lives, isOpaque knows such functions of the module: they are ours to read, throw nothing, end no run and
/// switch no region, and neither does anything that they call. (One that never returns because it goes round for
/// ever is taken as a loop of the caller would be.)
class ReturningCallees {
public:
  ReturningCallees(llvm::Module &M, bool Look);
  ~ReturningCallees();
  ReturningCallees(const ReturningCallees &) = delete;

private:
  llvm::Module &M;
};

/// Marked by ReturningCallees.
bool isReturning(const llvm::CallBase &Call);

} // namespace memlens

#endif
