/// Traces one function: makes every segment of accesses record its addresses while a window is open (format/memlens_trace.h).
#ifndef MEMLENS_PASS_TRACING_H
#define MEMLENS_PASS_TRACING_H

#include "options.h"
#include "sites.h"
#include "table.h"
#include "versions.h"

#include "llvm/IR/PassManager.h"

#include <memory>

namespace memlens {

class FunctionTracer {
public:
  /// Looks at the function as the optimiser left it: before anything of ours is in it.
  FunctionTracer(llvm::Function &F, llvm::FunctionAnalysisManager &FAM, const Options &O, const Versions &V,
                 const std::vector<Site> &Sites);
  ~FunctionTracer();

  /// Writes the code, and what the table tells of it. The sites are those of the table, in its order.
  void write(llvm::GlobalVariable *Descriptor, Table &Result);
  unsigned recordedSites() const;

private:
  class Implementation;
  std::unique_ptr<Implementation> I;
};

} // namespace memlens

#endif
