/// Loops as the source has them: which one contains a site, and where it begins.
#ifndef MEMLENS_PASS_SOURCE_LOOPS_H
#define MEMLENS_PASS_SOURCE_LOOPS_H

#include "sites.h"

#include "llvm/Analysis/LoopInfo.h"
#include "llvm/IR/DebugInfoMetadata.h"

#include <vector>

namespace memlens {

struct SourceLoop {
  const llvm::DILocation *Start; ///< null = nothing tells where it begins
  unsigned Parent;               ///< number + 1 of the loop around it, 0 = none; smaller than its own
};

struct SourceLoops {
  std::vector<SourceLoop> Loops;
  std::vector<unsigned> OfSite; ///< number + 1 of the innermost loop around each site, 0 = none
};

/// Asked before anything is added to the function: only loops of the program are found then.
SourceLoops findSourceLoops(const llvm::LoopInfo &LI, const std::vector<Site> &Sites);

} // namespace memlens

#endif
