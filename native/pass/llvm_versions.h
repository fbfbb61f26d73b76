/// What differs between the LLVM versions that the plugins are built for (16 to 19, and what is current).
#ifndef MEMLENS_PASS_LLVM_VERSIONS_H
#define MEMLENS_PASS_LLVM_VERSIONS_H

#include "llvm/Analysis/TargetTransformInfo.h"
#include "llvm/Config/llvm-config.h"
#include "llvm/IR/Intrinsics.h"
#include "llvm/IR/Module.h"
#include "llvm/Passes/PassBuilder.h"

#if LLVM_VERSION_MAJOR < 16
#error "memlens needs LLVM 16 or newer"
#endif

namespace memlens {

inline llvm::Function *intrinsicDeclaration(llvm::Module *M, llvm::Intrinsic::ID ID,
                                            llvm::ArrayRef<llvm::Type *> Types) {
#if LLVM_VERSION_MAJOR >= 20
  return llvm::Intrinsic::getOrInsertDeclaration(M, ID, Types);
#else
  return llvm::Intrinsic::getDeclaration(M, ID, Types);
#endif
}

/// Sizes of a comparison's last loads that are done as one.
inline llvm::ArrayRef<unsigned> tailExpansions(const llvm::TargetTransformInfo::MemCmpExpansionOptions &Options) {
#if LLVM_VERSION_MAJOR >= 17
  return Options.AllowedTailExpansions;
#else
  (void)Options;
  return {};
#endif
}

/// Calls `Add` with the pass manager of the last extension point of a compilation, and with that of a full link.
template <typename Callback> void atTheEnd(llvm::PassBuilder &PB, Callback Add) {
#if LLVM_VERSION_MAJOR >= 20
  PB.registerOptimizerLastEPCallback(
      [Add](llvm::ModulePassManager &MPM, llvm::OptimizationLevel, llvm::ThinOrFullLTOPhase Phase) {
        if (Phase != llvm::ThinOrFullLTOPhase::ThinLTOPreLink && Phase != llvm::ThinOrFullLTOPhase::FullLTOPreLink)
          Add(MPM);
      });
#else
  PB.registerOptimizerLastEPCallback([Add](llvm::ModulePassManager &MPM, llvm::OptimizationLevel) { Add(MPM); });
#endif
  PB.registerFullLinkTimeOptimizationLastEPCallback(
      [Add](llvm::ModulePassManager &MPM, llvm::OptimizationLevel) { Add(MPM); });
}

} // namespace memlens

#endif
