#include "regions.h"

#include "code.h"
#include "memlens_count.h"
#include "sites.h"

#include "llvm/Demangle/Demangle.h"
#include "llvm/ADT/SmallPtrSet.h"
#include "llvm/IR/CFG.h"
#include "llvm/IR/Constants.h"
#include "llvm/IR/DebugInfoMetadata.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/Instructions.h"
#include "llvm/IR/Module.h"
#include "llvm/Transforms/Utils/BasicBlockUtils.h"
#include "llvm/Transforms/Utils/Local.h"
#include "llvm/Transforms/Utils/ModuleUtils.h"

using namespace llvm;

namespace memlens {

static std::string readableName(const Function &F) {
  std::string Name = F.getName().str();
  return llvm::demangle(Name);
}

/// struct ml_count_region of this translation unit for a name.
static GlobalVariable *regionVariable(Module &M, StringRef Name) {
  std::string VariableName = ("memlens.region." + Name).str();
  if (GlobalVariable *Old = M.getNamedGlobal(VariableName))
    return Old;
  LLVMContext &C = M.getContext();
  IRBuilder<> B(C);
  Constant *Text = ConstantDataArray::getString(C, Name);
  auto *Characters = new GlobalVariable(M, Text->getType(), true, GlobalValue::PrivateLinkage, Text, "memlens.name");
  StructType *T = StructType::get(C, {PointerType::get(C, 0), Type::getInt64Ty(C)});
  return new GlobalVariable(M, T, false, GlobalValue::InternalLinkage,
                            ConstantStruct::get(T, {Characters, ConstantInt::get(Type::getInt64Ty(C), 0)}),
                            VariableName);
}

/// The last place of a block before control leaves the function: before a call whose result it returns at once in the
/// callee's own frame.
static Instruction *lastPlace(BasicBlock &BB) {
  if (CallInst *Tail = BB.getTerminatingMustTailCall())
    return Tail;
  return BB.getTerminator();
}

static void makeRegion(Function &F, StringRef Name, Function *Untouched, Versions &V) {
  Module &M = *F.getParent();
  LLVMContext &C = M.getContext();
  Type *Pointer = PointerType::get(C, 0);
  GlobalVariable *Region = regionVariable(M, Name);
  FunctionCallee Enter = M.getOrInsertFunction("__memlens_count_enter", Type::getInt32Ty(C), Pointer);
  FunctionCallee Leave = M.getOrInsertFunction("__memlens_count_leave", Type::getVoidTy(C), Pointer);
  for (FunctionCallee One : {Enter, Leave})
    cast<Function>(One.getCallee())->setDoesNotThrow();
  DebugLoc Here;
  if (DISubprogram *SP = F.getSubprogram())
    Here = DILocation::get(C, SP->getLine(), 0, SP);
  std::vector<Instruction *> Ends;
  for (BasicBlock &BB : F) {
    const Instruction *End = BB.getTerminator();
    if (isa<ReturnInst>(End) || isa<ResumeInst>(End))
      Ends.push_back(lastPlace(BB));
  }
  IRBuilder<> B(startOf(F.getEntryBlock()));
  B.SetCurrentDebugLocation(Here);
  if (Untouched) {
    FunctionCallee Choose = M.getOrInsertFunction("__memlens_count_enter_sampled", Type::getInt32Ty(C), Pointer);
    cast<Function>(Choose.getCallee())->setDoesNotThrow();
    Value *Counts = B.CreateCall(Choose, {Region});
    BasicBlock *Entry = B.GetInsertBlock();
    BasicBlock *Body = SplitBlock(Entry, &*B.GetInsertPoint());
    BasicBlock *Other = callCopy(F, *Untouched, Body);
    V.leaveOut(Other);
    Entry->getTerminator()->eraseFromParent();
    B.SetInsertPoint(Entry);
    B.CreateCondBr(B.CreateIsNotNull(Counts), Body, Other);
    cast<CallInst>(&Other->front())->setTailCall(false);
    B.SetInsertPoint(Other->getTerminator());
    B.SetCurrentDebugLocation(Here);
    B.CreateCall(Leave, {Region});
  } else {
    B.CreateCall(Enter, {Region});
  }
  for (Instruction *End : Ends) {
    B.SetInsertPoint(End);
    B.SetCurrentDebugLocation(Here);
    B.CreateCall(Leave, {Region});
  }
  for (BasicBlock &BB : F) // they would leave the frame before the region
    for (Instruction &I : BB)
      if (auto *Call = dyn_cast<CallInst>(&I); Call && Call->isTailCall() && !Call->isMustTailCall())
        Call->setTailCallKind(CallInst::TCK_None);
}

/// Whether code behind a call that returns twice ends a region of memlens.h that it does not begin there: the region is meant to be open
/// when the call returns again.
static bool endsWhatIsOpen(Instruction *After) {
  auto MayBeEnd = [](const Instruction &I) {
    if (isCallOf(I, "__memlens_count_end"))
      return true;
    if (!isCallOf(I, "__memlens_count_leave"))
      return false;
    const auto *Variable = dyn_cast<GlobalVariable>(cast<CallInst>(I).getArgOperand(0)->stripPointerCasts());
    const auto *Content =
        Variable && Variable->hasInitializer() ? dyn_cast<ConstantStruct>(Variable->getInitializer()) : nullptr;
    const auto *Number =
        Content && Content->getNumOperands() == 2 ? dyn_cast<ConstantInt>(Content->getOperand(1)) : nullptr;
    return !Number || (Number->getZExtValue() & ML_COUNT_REGION_ANY_FRAME) != 0;
  };
  std::vector<const Instruction *> Ends;
  for (const BasicBlock &BB : *After->getFunction())
    for (const Instruction &I : BB)
      if (MayBeEnd(I))
        Ends.push_back(&I);
  for (const Instruction *End : Ends) {
    const StringRef Name =
        isCallOf(*End, "__memlens_count_leave") ? nameOfRegion(cast<CallInst>(End)->getArgOperand(0)) : "";
    auto Begins = [&](const Instruction &I) { // by another name only where names are not known
      if (isCallOf(I, "__memlens_count_begin"))
        return true;
      return isCallOf(I, "__memlens_count_enter") &&
             (Name.empty() || nameOfRegion(cast<CallInst>(I).getArgOperand(0)) == Name);
    };
    std::vector<const Instruction *> Work{After};
    SmallPtrSet<const BasicBlock *, 16> Seen;
    while (!Work.empty()) {
      const Instruction *I = Work.back();
      Work.pop_back();
      for (; I && !Begins(*I); I = I->getNextNode()) {
        if (I == End)
          return true;
        if (I->isTerminator())
          for (const BasicBlock *Next : successors(I))
            if (Seen.insert(Next).second)
              Work.push_back(&Next->front());
      }
    }
  }
  return false;
}

/// Where control comes back, regions of frames that are gone are closed. A call that returns twice also closes what this function began behind it.
static void closeLostRegions(Function &F) {
  std::vector<Instruction *> Pads;
  std::vector<CallInst *> Twice;
  for (BasicBlock &BB : F) {
    if (BB.isLandingPad())
      Pads.push_back(&*BB.getFirstInsertionPt());
    for (Instruction &I : BB)
      if (returnsTwice(I) && !I.isTerminator())
        Twice.push_back(cast<CallInst>(&I));
  }
  if (Pads.empty() && Twice.empty())
    return;
  Module &M = *F.getParent();
  Type *Void = Type::getVoidTy(M.getContext()), *I64 = Type::getInt64Ty(M.getContext()),
       *I32 = Type::getInt32Ty(M.getContext());
  for (Instruction *Place : Pads) {
    FunctionCallee Unwound = M.getOrInsertFunction("__memlens_count_unwound", Void);
    cast<Function>(Unwound.getCallee())->setDoesNotThrow();
    IRBuilder<>(Place).CreateCall(Unwound);
  }
  for (CallInst *Call : Twice) {
    FunctionCallee Mark = M.getOrInsertFunction("__memlens_count_mark", I64);
    FunctionCallee Returned = M.getOrInsertFunction("__memlens_count_returned", Void, I64, I32);
    for (FunctionCallee One : {Mark, Returned})
      cast<Function>(One.getCallee())->setDoesNotThrow();
    cast<Function>(Mark.getCallee())->addFnAttr(Attribute::WillReturn); // it switches nothing
    const bool Keep = endsWhatIsOpen(Call->getNextNode());
    Value *Before = IRBuilder<>(Call).CreateCall(Mark);
    IRBuilder<>(Call->getNextNode()).CreateCall(Returned, {Before, ConstantInt::get(I32, Keep)});
  }
}

/// Our functions throw nothing, whatever they were declared as.
static void callPlainly(Function &F) {
  std::vector<InvokeInst *> Invokes;
  for (BasicBlock &BB : F)
    if (auto *Invoke = dyn_cast<InvokeInst>(BB.getTerminator()))
      if (const Function *Callee = Invoke->getCalledFunction();
          Callee && Callee->getName().starts_with("__memlens_count_"))
        Invokes.push_back(Invoke);
  for (InvokeInst *Invoke : Invokes)
    changeToCall(Invoke);
  if (!Invokes.empty())
    removeUnreachableBlocks(F);
}

void tellMatches(Module &M, const Options &O, const std::vector<unsigned> &Matches) {
  if (O.Functions.empty())
    return;
  std::string Text; // pairs of an expression and a number, each with a NUL behind it
  for (unsigned I = 0; I < O.Functions.size(); ++I)
    Text += O.Functions[I].first + '\0' + std::to_string(Matches[I]) + '\0';
  Constant *Bytes = ConstantDataArray::getString(M.getContext(), Text, false);
  auto *GV = new GlobalVariable(M, Bytes->getType(), true, GlobalValue::PrivateLinkage, Bytes, "memlens.patterns");
  GV->setSection("memlens_patterns");
  GV->setAlignment(Align(1));
  appendToUsed(M, {GV});
}

void markRegions(Function &F, const Options &O, Versions &V, std::vector<unsigned> &Matches) {
  callPlainly(F);
  closeLostRegions(F); // before there are copies
  std::string Name = readableName(F);
  bool IsRegion = false;
  for (unsigned I = 0; I < O.Functions.size(); ++I)
    if (const Regex &Expression = O.Functions[I].second; Expression.match(Name) || Expression.match(F.getName())) {
      IsRegion = true;
      ++Matches[I];
    }
  if (IsRegion) {
    Function *Untouched = O.Versions ? V.copyFunction(F) : nullptr;
    makeRegion(F, Name, Untouched, V);
    V.choosesItself(F);
  }
  if (O.Versions)
    V.copyRegions(F);
}

} // namespace memlens
