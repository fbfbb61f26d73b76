/// Counts one function: chooses counters, inserts them, and says what they mean.
#ifndef MEMLENS_PASS_COUNTING_H
#define MEMLENS_PASS_COUNTING_H

#include "options.h"
#include "versions.h"

#include "llvm/IR/PassManager.h"

namespace memlens {

/// True when the function was changed. `Problem` gets a sentence when it could not be counted.
bool countFunction(llvm::Function &F, llvm::FunctionAnalysisManager &FAM, const Options &O, const Versions &V,
                   std::string &Problem);

/// Says in the binary that a function is not counted, and why: a flag of enum ml_count_table_flags.
void tellRefused(llvm::Function &F, unsigned Reason);

} // namespace memlens

#endif
