/// Loops of a trace: what is left in a register, accesses that are taken off at once, copies that ask less often.
#include "function_tracer.h"
#include "parts.h"
#include "rounds.h"

#include "llvm/ADT/SetVector.h"
#include "llvm/Analysis/ScalarEvolutionExpressions.h"
#include "llvm/Analysis/TargetTransformInfo.h"
#include "llvm/IR/MDBuilder.h"
#include "llvm/IR/Module.h"
#include "llvm/Transforms/Utils/BasicBlockUtils.h"
#include "llvm/Transforms/Utils/Cloning.h"
#include "llvm/Transforms/Utils/LoopUtils.h"
#include "llvm/Transforms/Utils/ScalarEvolutionExpander.h"

using namespace llvm;

namespace memlens {

namespace {

constexpr unsigned ExpansionBudget = 6; // in the units of LLVM's cost model
constexpr unsigned MostCopied = 200;    // instructions of a loop that gets a second copy
constexpr unsigned MostOfNest = 400;    // and of one with others inside
constexpr uint64_t NearWindow = 1024;   // accesses before a window in which the copy for windows runs
constexpr uint64_t ShortLoop = 4096;    // accesses of a loop that need not run in parts

} // namespace

/// One way in, and no call behind which nothing of before may be told; with `Calls`, those are taken that not every round makes.
bool FunctionTracer::Implementation::isClosed(const Loop *L, std::vector<CallInst *> *Calls) const {
  auto IsInEveryRound = [&](BasicBlock *BB) {
    for (const Loop *Inner = LI->getLoopFor(BB); Inner != L->getParentLoop(); Inner = Inner->getParentLoop())
      if (!Inner->getLoopLatch() || DT->dominates(BB, Inner->getLoopLatch()))
        return true;
    return false;
  };
  for (BasicBlock *BB : L->blocks()) {
    for (Instruction &I : *BB) {
      if (!mayTrace(I))
        continue;
      auto *Call = dyn_cast<CallInst>(&I);
      if (!Calls || !Call || Call->canReturnTwice() || Call->isMustTailCall() || IsInEveryRound(BB))
        return false;
      Calls->push_back(Call);
    }
    const Instruction *End = BB->getTerminator();
    if (!isa<BranchInst>(End) && !isa<SwitchInst>(End) && !isa<UnreachableInst>(End))
      return false;
  }
  for (BasicBlock *Before : predecessors(L->getHeader()))
    if (const Instruction *End = Before->getTerminator(); !isa<BranchInst>(End) && !isa<SwitchInst>(End))
      return false;
  return true;
}

AllocaInst *FunctionTracer::Implementation::heldAt(const BasicBlock *BB) const {
  for (const Loop *L = LI->getLoopFor(BB); L; L = L->getParentLoop())
    if (auto Found = HeldIn.find(L); Found != HeldIn.end())
      return Found->second;
  return nullptr;
}

/// A register holds `left` while the loop runs; calls in it find and leave it in memory.
void FunctionTracer::Implementation::holdInRegister(Loop *L, const std::vector<CallInst *> &Calls) {
  BasicBlock *Before = L->getLoopPreheader();
  SmallVector<BasicBlock *, 4> Exits;
  L->getUniqueExitBlocks(Exits);
  if (!Before || !L->hasDedicatedExits() || any_of(Exits, [](const BasicBlock *Exit) { return Exit->isEHPad(); }))
    return;
  IRBuilder<> B(&*F.getEntryBlock().getFirstInsertionPt());
  B.SetCurrentDebugLocation(DebugLoc());
  AllocaInst *Left = B.CreateAlloca(I64, nullptr, "memlens.left");
  Held.push_back(Left);
  HeldIn[L] = Left;
  for (CallInst *Call : Calls)
    AtCalls.push_back({Call, Left});
  B.SetInsertPoint(Before->getTerminator());
  B.SetCurrentDebugLocation(DebugLoc());
  B.CreateStore(load(B, I64, Thread), Left);
  for (BasicBlock *Exit : Exits) {
    B.SetInsertPoint(startOf(*Exit));
    B.SetCurrentDebugLocation(DebugLoc());
    store(B, B.CreateLoad(I64, Left), Thread);
  }
}

/// It has the form that copies need, and neither calls that may trace nor more than so many instructions.
bool FunctionTracer::Implementation::mayCopy(const Loop *L, unsigned Most) const {
  unsigned Size = 0;
  for (const BasicBlock *BB : L->blocks())
    for (const Instruction &I : *BB) {
      if (const auto *Call = dyn_cast<CallBase>(&I); Call && (Call->cannotDuplicate() || Call->isConvergent()))
        return false;
      ++Size;
    }
  return Size <= Most && L->isLoopSimplifyForm() && isClosed(L);
}

/// How often a loop will run, if that and its accesses each time are known before it does; else null.
const SCEV *FunctionTracer::Implementation::timesOf(Loop *L, unsigned &Each) {
  BasicBlock *Latch = L->getLoopLatch(), *Exit = L->getUniqueExitBlock();
  if (!L->isInnermost() || !mayCopy(L, MostCopied) || !Latch || !Exit || L->getExitingBlock() != Latch ||
      Exit->isEHPad())
    return nullptr;
  Each = 0;
  for (const Segment &S : Segments) {
    const BasicBlock *BB = S.block();
    if (!L->contains(BB))
      continue;
    if (S.Form == ML_TRACE_LANES || !DT->dominates(BB, Latch))
      return nullptr;
    Each += S.executed();
  }
  const SCEV *Taken = SE->getBackedgeTakenCount(L);
  if (!Each || Each > 4096 || isa<SCEVCouldNotCompute>(Taken) || !Taken->getType()->isIntegerTy() ||
      SE->getTypeSizeInBits(Taken->getType()) > 64)
    return nullptr;
  const SCEV *Times = SE->getAddExpr(SE->getNoopOrZeroExtend(Taken, I64), SE->getOne(I64));
  Instruction *Place = L->getLoopPreheader()->getTerminator();
  SCEVExpander Expander(*SE, F.getParent()->getDataLayout(), "memlens.trips");
  if (!Expander.isSafeToExpandAt(Times, Place) ||
      Expander.isHighCostExpansion({Times}, L, ExpansionBudget, &FAM.getResult<TargetIRAnalysis>(F), Place))
    return nullptr;
  return Times;
}

/// A loop whose accesses are known before it runs: where so many are left, they are taken off at once and a copy without any of our code
/// runs; where fewer are, as many times of it as fit.
bool FunctionTracer::Implementation::passAtOnce(Loop *L) {
  unsigned Each = 0;
  const SCEV *Times = timesOf(L, Each);
  if (!Times)
    return false;
  BasicBlock *Latch = L->getLoopLatch(), *Exit = L->getUniqueExitBlock(), *Check = L->getLoopPreheader();
  const unsigned Bits = SE->getTypeSizeInBits(SE->getBackedgeTakenCount(L)->getType());
  const uint64_t MostTrips = SE->getSmallConstantMaxTripCount(L); // 0 = not known
  SCEVExpander Expander(*SE, F.getParent()->getDataLayout(), "memlens.trips");
  Value *Trips = Expander.expandCodeFor(Times, I64, Check->getTerminator());

  formLCSSA(*L, *DT, LI, SE);
  BasicBlock *Before = SplitBlock(Check, Check->getTerminator(), DT, LI);
  ValueToValueMapTy Map;
  SmallVector<BasicBlock *, 8> Copies;
  Loop *Copy = cloneLoopWithPreheader(Before, Check, L, Map, ".memlens", LI, DT, Copies);
  remapInstructionsInBlocks(Copies, Map);
  BasicBlock *CopyBefore = cast<BasicBlock>(Map[Before]);
  (void)Copy;
  for (PHINode &Phi : Exit->phis()) {
    Value *Mine = Phi.getIncomingValueForBlock(Latch);
    auto Found = Map.find(Mine);
    Phi.addIncoming(Found != Map.end() ? static_cast<Value *>(Found->second) : Mine, cast<BasicBlock>(Map[Latch]));
  }
  DT->changeImmediateDominator(Exit, Check);
  SE->forgetTopmostLoop(L);
  for (PHINode &Phi : Exit->phis())
    SE->forgetValue(&Phi);

  IRBuilder<> B(Check->getTerminator());
  B.SetCurrentDebugLocation(DebugLoc());
  AllocaInst *Register = heldAt(L->getHeader()); // set before the loop, written when it is left
  auto Read = [&](IRBuilder<> &B) -> Value * { return Register ? B.CreateLoad(I64, Register) : load(B, I64, Thread); };
  auto Write = [&](IRBuilder<> &B, Value *What) {
    if (Register)
      B.CreateStore(What, Register);
    else
      store(B, What, Thread);
  };
  Value *Left = Read(B);
  Value *All = B.CreateMul(Trips, ConstantInt::get(I64, Each));
  Value *Fits = B.CreateICmpULE(All, Left);
  if (Bits == 64 && Each > 1) // the product may be too large for 64 bits
    Fits = B.CreateAnd(Fits, B.CreateICmpULE(Trips, Left));
  MDNode *Often = MDBuilder(F.getContext()).createBranchWeights(1 << 10, 1);
  const bool IsLong = isa<BranchInst>(Latch->getTerminator()) && (!MostTrips || MostTrips * Each > ShortLoop);
  BasicBlock *Otherwise = IsLong ? runInParts({L, Check, Before, Exit, Trips, Each}, *DT, *LI, Read, Write) : Before;
  B.SetInsertPoint(Check->getTerminator());
  B.CreateCondBr(Fits, CopyBefore, Otherwise, Often);
  Check->getTerminator()->eraseFromParent();
  B.SetInsertPoint(CopyBefore->getTerminator());
  B.SetCurrentDebugLocation(DebugLoc());
  Write(B, B.CreateSub(Left, All));
  if (IsLong)
    DT->recalculate(F);
  return true;
}

/// A loop of which only the most accesses of one round are known.
void FunctionTracer::Implementation::askOnceARound(Loop *L, const BranchProbabilityInfo &Likely) {
  AllocaInst *Register = heldAt(L->getHeader());
  if (!Register || !L->isInnermost() || !mayCopy(L, MostCopied))
    return;
  unsigned Count = 0;
  AccessesOfBlocks Executed;
  for (const Segment &S : Segments)
    if (L->contains(S.block())) {
      if (S.Form == ML_TRACE_LANES)
        return; // how many take part only the program knows
      Executed[S.block()] += S.executed();
      ++Count;
    }
  if (Count < 2 || !runByRounds(L, Executed, Register, Likely, *DT, *LI))
    return;
  SE->forgetTopmostLoop(L);
  for (const Segment &S : Segments)
    if (L->contains(S.block()))
      InWindows.insert(&S);
}

/// Loops around such that ask now and then: far from a window a copy of them runs in which nothing is ever recorded, if it can be helped. It has
/// all that the other one has; but a branch that was never taken is one that the processor need not know of, and after
/// the first window that runs into a short loop each of its checks costs more than before.
void FunctionTracer::Implementation::copyNests() {
  SmallSetVector<Loop *, 8> Nests;
  for (Loop *L : LI->getLoopsInPreorder()) {
    unsigned Each = 0;
    Loop *Nest = L->getParentLoop();
    if (!L->isInnermost() || !Nest || V.isUntouched(L->getHeader()) || timesOf(L, Each) ||
        none_of(Segments, [&](const Segment &S) { return L->contains(S.block()); }))
      continue;
    auto May = [&](Loop *Which) {
      return mayCopy(Which, MostOfNest) && all_of(Segments, [&](const Segment &S) {
               return !Which->contains(S.block()) || S.Form == ML_TRACE_WORDS;
             });
    };
    if (May(Nest))
      Nests.insert(Nest);
  }
  bool Any = false;
  for (Loop *Nest : Nests) {
    if (any_of(Nests, [&](Loop *Other) { return Other != Nest && Other->contains(Nest); }))
      continue;
    ValueToValueMapTy Map;
    BranchInst *Choice = copyRound(Nest, ".memlens.far", *DT, *LI, Map);
    for (auto Pair : Map)
      if (const auto *Own = dyn_cast<Instruction>(Pair.first))
        TwinOf[cast<Instruction>(static_cast<Value *>(Pair.second))] = const_cast<Instruction *>(Own);
      else if (const auto *BB = dyn_cast<BasicBlock>(Pair.first))
        Near.insert(BB);
    IRBuilder<> B(Choice);
    B.SetCurrentDebugLocation(DebugLoc());
    Choices.push_back(load(B, I64, Thread));
    Choice->setCondition(B.CreateICmpUGE(Choices.back(), ConstantInt::get(I64, NearWindow)));
    DT->recalculate(F);
    Any = true;
  }
  if (Any)
    takeAnalyses();
}

/// Loops that choose read what is left from where it is held.
void FunctionTracer::Implementation::fillChoices() {
  for (LoadInst *Choice : Choices)
    if (AllocaInst *Register = heldAt(Choice->getParent())) {
      IRBuilder<> B(Choice);
      Choice->replaceAllUsesWith(B.CreateLoad(I64, Register));
      Choice->eraseFromParent();
    }
}

} // namespace memlens
