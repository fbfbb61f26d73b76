/// Regions that the pass itself marks, and the ends that it sees to.
#ifndef MEMLENS_PASS_REGIONS_H
#define MEMLENS_PASS_REGIONS_H

#include "options.h"
#include "versions.h"

#include "llvm/IR/Function.h"

namespace memlens {

/// Makes a function a region if the options ask for it, and has regions of frames that an exception or longjmp has
/// left closed where control comes back.
void markRegions(llvm::Function &F, const Options &O, Versions &V);

} // namespace memlens

#endif
