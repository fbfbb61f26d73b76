/// The pass that compiles counting into a program: at the end of optimisation, so that what is counted is what runs.
#include "callees.h"
#include "code.h"
#include "counting.h"
#include "llvm_versions.h"
#include "memlens_count.h"
#include "options.h"
#include "regions.h"

#include "llvm/Analysis/TargetLibraryInfo.h"
#include "llvm/IR/DiagnosticInfo.h"
#include "llvm/IR/GlobalIFunc.h"
#include "llvm/IR/InstrTypes.h"
#include "llvm/IR/Module.h"
#include "llvm/TargetParser/Triple.h"
#include "llvm/IR/Verifier.h"
#include "llvm/Passes/PassPlugin.h"

#include <optional>

using namespace llvm;

namespace memlens {
namespace {

class CountPass : public PassInfoMixin<CountPass> {
public:
  PreservedAnalyses run(Module &M, ModuleAnalysisManager &MAM);
  static bool isRequired() { return true; }
};

/// Defined in this module, and not ours.
bool isOwn(const Function &F) {
  return !F.isDeclaration() && !F.hasAvailableExternallyLinkage() && !F.getName().starts_with("__memlens_") &&
         !F.getName().starts_with("memlens_private_");
}

/// Why a function is not counted, as its table tells; 0 = it is.
unsigned reasonToRefuse(const Function &F, const SmallPtrSetImpl<const Function *> &Early) {
  if (F.hasFnAttribute(Attribute::Naked))
    return ML_TABLE_NAKED;
  if (Early.contains(&F))
    return ML_TABLE_RESOLVER;
  return F.hasFnAttribute(Attribute::NoProfile) ? ML_TABLE_EXCLUDED : 0;
}

/// Resolvers of ifuncs run before the thread's variables can be reached; so does what they call.
SmallPtrSet<const Function *, 4> calledByResolvers(Module &M) {
  SmallPtrSet<const Function *, 4> Found;
  std::vector<const Function *> Work;
  auto Add = [&](const Function *F) {
    if (F && !F->isDeclaration() && Found.insert(F).second)
      Work.push_back(F);
  };
  for (const GlobalIFunc &I : M.ifuncs())
    Add(I.getResolverFunction());
  while (!Work.empty()) {
    const Function *F = Work.back();
    Work.pop_back();
    for (const BasicBlock &BB : *F)
      for (const Instruction &I : BB)
        if (const auto *Call = dyn_cast<CallBase>(&I))
          Add(dyn_cast<Function>(Call->getCalledOperand()->stripPointerCastsAndAliases()));
  }
  return Found;
}

/// A function that was known to write no memory writes counters now, and whoever calls it may be called by it. LLVM uses what it knows of
/// calls after us too (on POWER it moves loads and stores out of loops). Functions of the C library stay as they are.
void forgetWhatIsWritten(Module &M, FunctionAnalysisManager &FAM) {
  SmallPtrSet<const Function *, 16> Kept;
  for (Function &F : M) {
    LibFunc Known;
    if (F.isIntrinsic() || (F.isDeclaration() && FAM.getResult<TargetLibraryAnalysis>(F).getLibFunc(F, Known)))
      Kept.insert(&F);
    else
      F.removeFnAttr(Attribute::Memory);
  }
  for (Function &F : M)
    for (BasicBlock &BB : F)
      for (Instruction &I : BB)
        if (auto *Call = dyn_cast<CallBase>(&I);
            Call && !Call->isInlineAsm() && !Kept.contains(Call->getCalledFunction()))
          Call->removeFnAttr(Attribute::Memory);
}

PreservedAnalyses CountPass::run(Module &M, ModuleAnalysisManager &MAM) {
  const char *Done = "memlens.counted"; // a second run would count the counting
  if (M.getModuleFlag(Done))
    return PreservedAnalyses::all();
  M.addModuleFlag(Module::Max, Done, 1);

  Options O = Options::fromEnvironment();
  if (!O.Error.empty())
    M.getContext().emitError("memlens: " + O.Error);
  if (O.Ptwrite && Triple(M.getTargetTriple()).getArch() != Triple::x86_64)
    M.getContext().emitError("memlens: only x86-64 has ptwrite");

  const SmallPtrSet<const Function *, 4> Early = calledByResolvers(M);

  auto &FAM = MAM.getResult<FunctionAnalysisManagerModuleProxy>(M).getManager();
  std::vector<Function *> Functions, Refused;
  for (Function &F : M)
    if (isOwn(F))
      (reasonToRefuse(F, Early) ? Refused : Functions).push_back(&F);
  Versions V;
  std::vector<unsigned> Matches(O.Functions.size());
  for (Function *F : Functions)
    markRegions(*F, O, V, Matches);
  tellMatches(M, O, Matches);
  V.finish();
  if (V.hasCopies())
    for (Function *F : Functions)
      V.dispatch(*F);
  V.finish();
  std::optional<ReturningCallees> Returning(std::in_place, M, O.Callees);
  for (Function *F : Functions) {
    FAM.invalidate(*F, PreservedAnalyses::none());
    std::string Problem;
    if (!countFunction(*F, FAM, O, V, Problem) && O.Count && !F->hasLocalLinkage() && !F->isDiscardableIfUnused())
      tellRefused(*F, 0); // nothing to count in it, and nothing unseen: other units call it
    if (!Problem.empty())
      M.getContext().diagnose(DiagnosticInfoUnsupported(*F, "memlens: " + Problem, DiagnosticLocation(), DS_Warning));
    FAM.invalidate(*F, PreservedAnalyses::none());
  }
  for (Function *F : Refused)
    // one that nobody uses goes away, and what we said about it must not stay
    if (!F->isDiscardableIfUnused() || !F->use_empty())
      tellRefused(*F, reasonToRefuse(*F, Early));
  Returning.reset();
  forgetWhatIsWritten(M, FAM);
  if (O.Verify && verifyModule(M, &errs()))
    report_fatal_error("memlens: the code is not valid");
  if (!Functions.empty() || !Refused.empty())
    nameVersion(M);
  return PreservedAnalyses::none();
}

} // namespace
} // namespace memlens

extern "C" LLVM_ATTRIBUTE_WEAK __attribute__((visibility("default"))) PassPluginLibraryInfo llvmGetPassPluginInfo() {
  return {LLVM_PLUGIN_API_VERSION, "memlens", LLVM_VERSION_STRING, [](PassBuilder &PB) {
            memlens::atTheEnd(PB, [](ModulePassManager &MPM) { MPM.addPass(memlens::CountPass()); });
            PB.registerPipelineParsingCallback(
                [](StringRef Name, ModulePassManager &MPM, ArrayRef<PassBuilder::PipelineElement>) {
                  if (Name != "memlens-count")
                    return false;
                  MPM.addPass(memlens::CountPass());
                  return true;
                });
          }};
}
