/// Regions that the pass itself marks, and the ends that it sees to.
#ifndef MEMLENS_PASS_REGIONS_H
#define MEMLENS_PASS_REGIONS_H

#include "options.h"
#include "versions.h"

#include "llvm/IR/Function.h"

namespace memlens {

/// Makes a function a region if the options ask for it, and has regions of frames that an exception or longjmp has
/// left closed where control comes back.
/// `Matches`: how many functions each expression of the options has matched.
void markRegions(llvm::Function &F, const Options &O, Versions &V, std::vector<unsigned> &Matches);

/// Writes the expressions and their matches into the module, so that the report can name one that matches nothing in all of the program.
void tellMatches(llvm::Module &M, const Options &O, const std::vector<unsigned> &Matches);

} // namespace memlens

#endif
