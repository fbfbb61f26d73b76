#include "versions.h"

#include "code.h"
#include "sites.h"

#include "llvm/ADT/SetVector.h"
#include "llvm/IR/CFG.h"
#include "llvm/IR/Constants.h"
#include "llvm/IR/Dominators.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/Instructions.h"
#include "llvm/IR/MDBuilder.h"
#include "llvm/IR/Module.h"
#include "llvm/Transforms/Utils/BasicBlockUtils.h"
#include "llvm/Transforms/Utils/Cloning.h"
#include "llvm/Transforms/Utils/SSAUpdater.h"

using namespace llvm;

namespace memlens {

bool isCallOf(const Instruction &I, StringRef Name) {
  const auto *Call = dyn_cast<CallInst>(&I);
  const Function *Callee = Call ? Call->getCalledFunction() : nullptr;
  return Callee && Callee->getName() == Name;
}

StringRef nameOfRegion(const Value *Region) {
  const auto *Variable = dyn_cast<GlobalVariable>(Region->stripPointerCasts());
  if (!Variable || !Variable->hasDefinitiveInitializer() || Variable->getInitializer()->getNumOperands() < 1)
    return "";
  const auto *Text = dyn_cast<GlobalVariable>(Variable->getInitializer()->getOperand(0)->stripPointerCasts());
  const auto *Characters =
      Text && Text->hasDefinitiveInitializer() ? dyn_cast<ConstantDataSequential>(Text->getInitializer()) : nullptr;
  return Characters && Characters->isCString() ? Characters->getAsCString() : "";
}

void Versions::copyRegions(Function &F) {
  std::vector<CallInst *> Enters;
  for (BasicBlock &BB : F)
    for (Instruction &I : BB)
      if (isCallOf(I, "__memlens_count_enter"))
        Enters.push_back(cast<CallInst>(&I));
  for (CallInst *Enter : Enters) // an inner region's copy inside an outer one's stays as it is
    copyRegion(Enter);
}

void Versions::copyRegion(CallInst *Enter) {
  Function &F = *Enter->getFunction();
  const Value *Region = Enter->getArgOperand(0);
  const StringRef Name = nameOfRegion(Region);
  if (Blocks.contains(Enter->getParent()))
    return;
  BasicBlock *First = SplitBlock(Enter->getParent(), Enter->getNextNode());
  SmallPtrSet<BasicBlock *, 4> Ends;
  std::vector<Instruction *> Leaves;
  for (BasicBlock &BB : F)
    for (Instruction &I : BB)
      if (isCallOf(I, "__memlens_count_leave"))
        if (const Value *Left = cast<CallInst>(I).getArgOperand(0);
            Left == Region || (!Name.empty() && nameOfRegion(Left) == Name))
          Leaves.push_back(&I);
  for (Instruction *Leave : Leaves) {
    BasicBlock *BB = Leave->getParent();
    Ends.insert(Leave == &BB->front() ? BB : SplitBlock(BB, Leave));
  }

  BasicBlock *Before = Enter->getParent(); // only now: the end of an earlier region may have been in its block

  // What is reached only through the call, up to where the region ends.
  DominatorTree DT(F);
  SetVector<BasicBlock *> Body;
  Body.insert(First);
  for (unsigned I = 0; I < Body.size(); ++I) {
    const Instruction *End = Body[I]->getTerminator();
    if (isa<IndirectBrInst>(End) || isa<CallBrInst>(End) || Body[I]->hasAddressTaken() || isa<CatchSwitchInst>(End))
      return;
    for (const Instruction &One : *Body[I])
      if (const auto *Call = dyn_cast<CallBase>(&One);
          Call && (Call->cannotDuplicate() || Call->isConvergent() || returnsTwice(*Call)))
        return;
    for (BasicBlock *Next : successors(Body[I]))
      if (!Ends.contains(Next) && Next != First && DT.dominates(First, Next))
        Body.insert(Next);
  }
  if (Ends.contains(First))
    return; // nothing is inside

  ValueToValueMapTy Map;
  SmallVector<BasicBlock *, 16> Copied;
  for (BasicBlock *BB : Body) {
    BasicBlock *Copy = CloneBasicBlock(BB, Map, ".untouched", &F);
    Map[BB] = Copy;
    Copied.push_back(Copy);
    Blocks.insert(Copy);
    Work.push_back(Copy);
  }
  remapInstructionsInBlocks(Copied, Map);

  // Blocks after the region have two predecessors for each they had.
  for (BasicBlock *BB : Body)
    for (BasicBlock *Next : successors(BB)) {
      if (Body.contains(Next))
        continue;
      for (PHINode &Phi : Next->phis()) {
        if (Phi.getBasicBlockIndex(cast<BasicBlock>(Map[BB])) >= 0)
          continue; // several edges of one block
        for (unsigned I = 0, N = Phi.getNumIncomingValues(); I < N; ++I)
          if (Phi.getIncomingBlock(I) == BB) {
            Value *Old = Phi.getIncomingValue(I);
            auto Mapped = Map.find(Old);
            Phi.addIncoming(Mapped == Map.end() ? Old : static_cast<Value *>(Mapped->second),
                            cast<BasicBlock>(Map[BB]));
          }
      }
    }

  LLVMContext &C = F.getContext();
  Module &M = *F.getParent();
  FunctionCallee Choose =
      M.getOrInsertFunction("__memlens_count_enter_sampled", Type::getInt32Ty(C), Enter->getArgOperand(0)->getType());
  cast<Function>(Choose.getCallee())->setDoesNotThrow();
  Enter->setCalledFunction(Choose);
  IRBuilder<> B(Before->getTerminator());
  Value *Counts = B.CreateICmpNE(Enter, ConstantInt::get(Type::getInt32Ty(C), 0));
  B.CreateCondBr(Counts, First, cast<BasicBlock>(Map[First]));
  Before->getTerminator()->eraseFromParent();

  // What the body computes and others use has two definitions now.
  for (BasicBlock *BB : Body)
    for (Instruction &I : *BB) {
      SmallVector<Use *, 8> Outside;
      for (Use &U : I.uses()) {
        auto *User = cast<Instruction>(U.getUser());
        BasicBlock *At = User->getParent();
        if (auto *Phi = dyn_cast<PHINode>(User))
          At = Phi->getIncomingBlock(U);
        if (!Body.contains(At) && !Blocks.contains(At))
          Outside.push_back(&U);
      }
      if (Outside.empty())
        continue;
      SSAUpdater Values;
      Values.Initialize(I.getType(), I.getName());
      Values.AddAvailableValue(BB, &I);
      Values.AddAvailableValue(cast<BasicBlock>(Map[BB]), Map[&I]);
      for (Use *U : Outside)
        Values.RewriteUse(*U);
    }
}

Function *Versions::copyFunction(Function &F) {
  if (Functions.contains(&F) || F.isDeclaration() || F.isInterposable() || F.hasFnAttribute(Attribute::NoDuplicate) ||
      F.isVarArg() || F.hasFnAttribute(Attribute::Naked) || F.hasFnAttribute(Attribute::ReturnsTwice))
    return nullptr;
  Function *&Copy = Copies[&F];
  if (Copy)
    return Copy;
  ValueToValueMapTy Map;
  Copy = CloneFunction(&F, Map);
  Copy->setName(F.getName() + ".untouched");
  Copy->setLinkage(GlobalValue::InternalLinkage);
  Copy->setVisibility(GlobalValue::DefaultVisibility);
  Copy->setComdat(nullptr);
  Functions.insert(Copy);
  for (BasicBlock &BB : *Copy) {
    Blocks.insert(&BB);
    Work.push_back(&BB);
  }
  return Copy;
}

void Versions::dispatch(Function &F) {
  if (Choosing.contains(&F) || Functions.contains(&F) || !F.hasAddressTaken())
    return;
  Function *Copy = copyFunction(F);
  if (!Copy)
    return;
  LLVMContext &C = F.getContext();
  IRBuilder<> B(startOf(F.getEntryBlock()));
  B.SetCurrentDebugLocation(DebugLoc());
  Value *Base = B.CreateLoad(PointerType::get(C, 0), threadVariable(*F.getParent(), "__memlens_count_base"));
  Value *Dump = B.CreateLoad(PointerType::get(C, 0), threadVariable(*F.getParent(), "__memlens_count_dump"));
  for (Value *Ours : {Base, Dump})
    Own.insert(Ours);
  BasicBlock *Entry = B.GetInsertBlock();
  Instruction *First = &*B.GetInsertPoint();
  Value *IsUntouched = B.CreateICmpEQ(Base, Dump);
  BasicBlock *Body = SplitBlock(Entry, First);
  Entry->getTerminator()->eraseFromParent();
  BasicBlock *Other = callCopy(F, *Copy, Body);
  Blocks.insert(Other);
  MDNode *Seldom = MDBuilder(C).createBranchWeights(1, 1000);
  B.SetInsertPoint(Entry);
  B.CreateCondBr(IsUntouched, Other, Body, Seldom);
}

/// A call, or a parallel part or task that is handed to threads, from a copy leads to copies.
void Versions::redirect(CallBase &Call) {
  if (Function *Callee = Call.getCalledFunction()) {
    const StringRef Name = Callee->getName();
    if (Name == "__kmpc_fork_call" || Name == "__kmpc_fork_call_if" || Name == "__kmpc_fork_teams" ||
        Name == "__kmpc_omp_task_alloc") {
      for (Use &Argument : Call.args())
        if (auto *Part = dyn_cast<Function>(Argument.get()))
          if (Function *Copy = copyFunction(*Part))
            Argument.set(Copy);
    } else if (!Choosing.contains(Callee)) {
      if (Function *Copy = copyFunction(*Callee))
        Call.setCalledFunction(Copy);
    }
  }
}

void Versions::finish() {
  while (!Work.empty()) {
    BasicBlock *BB = Work.back();
    Work.pop_back();
    for (Instruction &I : *BB)
      if (auto *Call = dyn_cast<CallBase>(&I))
        redirect(*Call);
  }
}

} // namespace memlens
