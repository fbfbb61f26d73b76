#include "library_calls.h"

#include "code.h"
#include "llvm_versions.h"
#include "sites.h"

#include "llvm/ADT/StringSwitch.h"
#include "llvm/Analysis/ValueTracking.h"
#include "llvm/IR/Constants.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/InlineAsm.h"
#include "llvm/IR/Instructions.h"
#include "llvm/IR/IntrinsicInst.h"
#include "llvm/IR/Module.h"
#include "llvm/Transforms/Utils/BasicBlockUtils.h"

using namespace llvm;

namespace memlens {

namespace {

constexpr const char *Compared = "__memlens_count_compared", *FarCall = "memlens.far";

/// A function that only the C library has: no definition here, and known by its name.
const Function *libraryFunction(const CallBase &Call) {
  const Function *Callee = Call.getCalledFunction();
  return Callee && Callee->isDeclaration() && !Callee->isIntrinsic() && !Call.isNoBuiltin() ? Callee : nullptr;
}

/// A load of each side, of `Bytes` at `At`.
struct Step {
  uint64_t At, Bytes;
};

/// What ExpandMemCmp of LLVM's back end makes of a comparison; empty = a call. It runs after us, and TTI holds all that it decides by.
std::vector<Step> expansionOf(uint64_t Bytes, const TargetTransformInfo::MemCmpExpansionOptions &Options,
                              bool OnlyEqual) {
  ArrayRef<unsigned> Sizes(Options.LoadSizes);
  while (!Sizes.empty() && Sizes.front() > Bytes)
    Sizes = Sizes.drop_front();
  if (Sizes.empty())
    return {};
  const uint64_t Most = Sizes.front();
  std::vector<Step> Greedy;
  uint64_t At = 0;
  for (unsigned Size : Sizes) {
    const uint64_t Number = (Bytes - At) / Size;
    if (Greedy.size() + Number > Options.MaxNumLoads) {
      Greedy.clear();
      break;
    }
    for (uint64_t I = 0; I < Number; ++I, At += Size)
      Greedy.push_back({At, Size});
  }
  if (Options.AllowOverlappingLoads && (Greedy.empty() || Greedy.size() > 2) && Bytes >= 2 && Most >= 2) {
    const uint64_t Whole = Bytes / Most, Rest = Bytes % Most;
    if (Rest && Whole + 1 <= Options.MaxNumLoads && (Greedy.empty() || Whole + 1 < Greedy.size())) {
      Greedy.clear();
      for (uint64_t I = 0; I < Whole; ++I)
        Greedy.push_back({I * Most, Most});
      Greedy.push_back({Bytes - Most, Most});
    }
  }
  while (!OnlyEqual && Greedy.size() >= 2 &&
         is_contained(tailExpansions(Options), Greedy.back().Bytes + Greedy[Greedy.size() - 2].Bytes)) {
    const uint64_t Last = Greedy.back().Bytes;
    Greedy.pop_back();
    Greedy.back().Bytes += Last;
  }
  return Greedy;
}

struct Comparison {
  uint64_t Unit = 0; ///< 0 = it is none
  std::vector<Step> Steps;
  bool AllRun = false; ///< every step, whatever the bytes are
};

Comparison comparisonOf(const CallBase &Call, const TargetLibraryInfo &TLI, const TargetTransformInfo &TTI) {
  Comparison Found;
  const Function *Callee = libraryFunction(Call);
  if (!Callee || Call.arg_size() != 3 || !Call.getType()->isIntegerTy(32) ||
      !Call.getArgOperand(2)->getType()->isIntegerTy(64))
    return Found;
  Found.Unit =
      StringSwitch<uint64_t>(Callee->getName()).Cases("memcmp", "bcmp", "__memcmpeq", 1).Case("wmemcmp", 4).Default(0);
  const Function &F = *Call.getFunction();
  LibFunc Known;
  const auto *Bytes = dyn_cast<ConstantInt>(Call.getArgOperand(2));
  if (Found.Unit != 1 || !Bytes || Bytes->isZero() || F.hasOptNone() || F.hasFnAttribute(Attribute::SanitizeAddress) ||
      F.hasFnAttribute(Attribute::SanitizeMemory) || F.hasFnAttribute(Attribute::SanitizeHWAddress) ||
      !TLI.getLibFunc(Call, Known) || !TLI.has(Known) || (Known != LibFunc_memcmp && Known != LibFunc_bcmp))
    return Found;
  const bool OnlyEqual = Known == LibFunc_bcmp || isOnlyUsedInZeroEqualityComparison(&Call);
  const auto Options = TTI.enableMemCmpExpansion(F.hasOptSize(), OnlyEqual);
  if (!Options)
    return Found;
  Found.Steps = expansionOf(Bytes->getZExtValue(), Options, OnlyEqual);
  const size_t InBlock = OnlyEqual ? std::max(Options.NumLoadsPerBlock, 1u) : 1;
  Found.AllRun = !Found.Steps.empty() && Found.Steps.size() <= InBlock;
  // Blocks of several loads that may be left early: by the block.
  if (InBlock > 1 && !Found.AllRun) {
    std::vector<Step> Blocks;
    for (size_t I = 0; I < Found.Steps.size(); I += InBlock) {
      Step One = Found.Steps[I];
      for (size_t J = I + 1; J < std::min(I + InBlock, Found.Steps.size()); ++J)
        One.Bytes += Found.Steps[J].Bytes;
      Blocks.push_back(One);
    }
    Found.Steps = Blocks;
  }
  return Found;
}

void tellComparison(CallInst &Call, const Comparison &C) {
  Module &M = *Call.getModule();
  LLVMContext &Context = M.getContext();
  Type *I64 = Type::getInt64Ty(Context), *I32 = Type::getInt32Ty(Context), *Pointer = PointerType::get(Context, 0);
  FunctionCallee Told = M.getOrInsertFunction(Compared, I64, Pointer, Pointer, I64, I32, I64, Pointer);
  auto *Function = cast<llvm::Function>(Told.getCallee());
  Function->setDoesNotThrow();
  Function->addFnAttr(Attribute::WillReturn);
  Function->setOnlyReadsMemory();
  Function->setVisibility(GlobalValue::HiddenVisibility);
  Constant *Steps = ConstantPointerNull::get(cast<PointerType>(Pointer));
  if (!C.Steps.empty()) {
    std::vector<uint32_t> Words;
    uint64_t Sum = 0;
    for (const Step &One : C.Steps) {
      Sum += One.Bytes;
      Words.push_back(One.At + One.Bytes);
      Words.push_back(Sum);
    }
    Words[Words.size() - 2] = UINT32_MAX;
    Constant *Content = ConstantDataArray::get(Context, Words);
    auto *Table =
        new GlobalVariable(M, Content->getType(), true, GlobalValue::PrivateLinkage, Content, "memlens.steps");
    Table->setUnnamedAddr(GlobalValue::UnnamedAddr::Global);
    Steps = Table;
  }
  IRBuilder<> B(Call.getNextNode());
  B.SetCurrentDebugLocation(Call.getDebugLoc());
  Value *Bytes = Call.getArgOperand(2);
  if (C.Unit > 1)
    Bytes = B.CreateMul(Bytes, ConstantInt::get(I64, C.Unit));
  B.CreateCall(Told, {Call.getArgOperand(0), Call.getArgOperand(1), Bytes, &Call, ConstantInt::get(I64, C.Unit), Steps},
               "memlens.compared");
}

/// The first byte of the file in memory and the end of its code, as every linker knows them.
Constant *boundary(Module &M, StringRef Name) {
  Constant *Symbol = M.getOrInsertGlobal(Name, Type::getInt8Ty(M.getContext()));
  if (auto *Variable = dyn_cast<GlobalVariable>(Symbol);
      Variable && Variable->isDeclaration() && Variable->use_empty()) {
    Variable->setVisibility(GlobalValue::HiddenVisibility);
    // a script of the program's own may leave it out: then every call is far
    Variable->setLinkage(GlobalValue::ExternalWeakLinkage);
  }
  return Symbol;
}

/// if (target is not in this module) { one that is counted }
void tellFarCall(CallBase &Call) {
  Module &M = *Call.getModule();
  Type *I64 = Type::getInt64Ty(M.getContext());
  IRBuilder<> B(&Call);
  B.SetCurrentDebugLocation(Call.getDebugLoc());
  Value *First = B.CreatePtrToInt(boundary(M, "__ehdr_start"), I64), *End = B.CreatePtrToInt(boundary(M, "etext"), I64);
  Value *Target = B.CreatePtrToInt(Call.getCalledOperand(), I64);
  Value *IsFar = B.CreateICmpUGE(B.CreateSub(Target, First), B.CreateSub(End, First));
  Instruction *Then = SplitBlockAndInsertIfThen(IsFar, &Call, false);
  Then->setMetadata(FarCall, MDNode::get(M.getContext(), {}));
  Then->setDebugLoc(Call.getDebugLoc());
}

} // namespace

std::optional<LibraryMove> libraryMove(const CallBase &Call) {
  struct Form {
    int Written, Read, Count;
    uint64_t Unit;
  };
  const Function *Callee = libraryFunction(Call);
  if (!Callee)
    return std::nullopt;
  const Form Is = StringSwitch<Form>(Callee->getName())
                      .Cases("memcpy", "memmove", "mempcpy", "__mempcpy", {0, 1, 2, 1})
                      .Cases("__memcpy_chk", "__memmove_chk", "__mempcpy_chk", {0, 1, 2, 1})
                      .Case("bcopy", {1, 0, 2, 1})
                      .Cases("memset", "__memset_chk", {0, -1, 2, 1})
                      .Cases("bzero", "explicit_bzero", "__explicit_bzero_chk", {0, -1, 1, 1})
                      .Cases("wmemcpy", "wmemmove", "wmempcpy", {0, 1, 2, 4})
                      .Cases("__wmemcpy_chk", "__wmemmove_chk", "__wmempcpy_chk", {0, 1, 2, 4})
                      .Cases("wmemset", "__wmemset_chk", {0, -1, 2, 4})
                      .Default({-1, -1, -1, 0});
  if (!Is.Unit || Call.arg_size() <= unsigned(Is.Count) || !Call.getArgOperand(Is.Count)->getType()->isIntegerTy(64) ||
      !Call.getArgOperand(Is.Written)->getType()->isPointerTy() ||
      (Is.Read >= 0 && !Call.getArgOperand(Is.Read)->getType()->isPointerTy()))
    return std::nullopt;
  return LibraryMove{Is.Written, Is.Read, Call.getArgOperand(Is.Count), Is.Unit};
}

std::optional<uint64_t> expandedComparison(const CallBase &Call, const TargetLibraryInfo &TLI,
                                           const TargetTransformInfo &TTI) {
  const Comparison C = comparisonOf(Call, TLI, TTI);
  if (!C.Unit || !C.AllRun)
    return std::nullopt;
  uint64_t Bytes = 0;
  for (const Step &One : C.Steps)
    Bytes += One.Bytes;
  return Bytes;
}

void prepareCalls(Function &F, const TargetLibraryInfo &TLI, const TargetTransformInfo &TTI, const Versions &V,
                  bool Pointers) {
  std::vector<std::pair<CallInst *, Comparison>> Comparisons;
  std::vector<CallBase *> Far;
  for (BasicBlock &BB : F) {
    if (V.isUntouched(&BB))
      continue;
    for (Instruction &I : BB) {
      auto *Call = dyn_cast<CallBase>(&I);
      if (!Call || isa<IntrinsicInst>(I))
        continue;
      if (Call->isIndirectCall()) {
        const auto *Tail = dyn_cast<CallInst>(Call);
        if (Pointers && !(Tail && Tail->isMustTailCall()))
          Far.push_back(Call);
      } else if (auto *Plain = dyn_cast<CallInst>(Call)) {
        Comparison C = comparisonOf(*Plain, TLI, TTI);
        const auto *Constant = C.Unit ? dyn_cast<ConstantInt>(Plain->getArgOperand(2)) : nullptr;
        if (C.Unit && !C.AllRun && !(Constant && Constant->isZero()) && !Plain->isMustTailCall())
          Comparisons.push_back({Plain, std::move(C)});
      }
    }
  }
  for (auto &[Call, C] : Comparisons)
    tellComparison(*Call, C);
  for (CallBase *Call : Far)
    tellFarCall(*Call);
}

bool tellsComparison(const CallBase &Call) {
  const Function *Callee = Call.getCalledFunction();
  return Callee && Callee->getName() == Compared;
}

bool tellsFarCall(const Instruction &I) { return I.getMetadata(FarCall) != nullptr; }

bool isAssemblyWithMemory(const CallBase &Call) {
  const auto *Assembly = dyn_cast<InlineAsm>(Call.getCalledOperand());
  if (!Assembly || StringRef(Assembly->getAsmString()).trim().empty()) // a barrier for the compiler
    return false;
  for (const InlineAsm::ConstraintInfo &One : Assembly->ParseConstraints())
    if (One.isIndirect || is_contained(One.Codes, "{memory}") || is_contained(One.Codes, "m"))
      return true;
  return false;
}

} // namespace memlens
