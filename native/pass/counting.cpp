#include "counting.h"

#include "code.h"
#include "equivalence.h"
#include "llvm_versions.h"
#include "memlens_count.h"
#include "sites.h"
#include "table.h"

#include "llvm/ADT/PostOrderIterator.h"
#include "llvm/Analysis/LoopInfo.h"
#include "llvm/Analysis/ScalarEvolution.h"
#include "llvm/Analysis/ScalarEvolutionExpressions.h"
#include "llvm/Analysis/TargetLibraryInfo.h"
#include "llvm/Analysis/TargetTransformInfo.h"
#include "llvm/Analysis/DomTreeUpdater.h"
#include "llvm/IR/Dominators.h"
#include "llvm/IR/Instructions.h"
#include "llvm/IR/MDBuilder.h"
#include "llvm/IR/Module.h"
#include "llvm/Transforms/Utils/BasicBlockUtils.h"
#include "llvm/Transforms/Utils/LoopSimplify.h"
#include "llvm/Transforms/Utils/LoopUtils.h"
#include "llvm/Transforms/Utils/ModuleUtils.h"
#include "llvm/Transforms/Utils/PromoteMemToReg.h"
#include "llvm/Transforms/Utils/ScalarEvolutionExpander.h"

#include <map>

using namespace llvm;

namespace memlens {

namespace {

constexpr unsigned ExpansionBudget = 6;            // in the units of LLVM's cost model
constexpr int64_t LargestScale = int64_t(1) << 40; // products of these do not overflow in any real nest
constexpr uint64_t LargestStep = 1024;             // 2^54 iterations of it do not happen
constexpr unsigned MostExits = 4;
constexpr unsigned MostKept = 8; // registers are few
constexpr uint64_t PublishedCount = 1 << 18;      // of what a long loop counts, before it writes

class FunctionCounter {
public:
  FunctionCounter(Function &F, FunctionAnalysisManager &FAM, const Options &O, const Versions &V)
      : F(F), FAM(FAM), O(O), V(V), I64(Type::getInt64Ty(F.getContext())) {}

  bool run(std::string &Problem);

private:
  Function &F;
  FunctionAnalysisManager &FAM;
  const Options &O;
  const Versions &V;
  Type *I64;

  std::vector<Site> Sites;
  SmallPtrSet<BasicBlock *, 16> MayLeave, MayEnter;
  DominatorTree *DT = nullptr;
  LoopInfo *LI = nullptr;
  ScalarEvolution *SE = nullptr;
  Table Result;
  std::vector<Add> Adds;

  // ---- preparation
  void splitAtOpaqueCalls();
  void prepareLoops();
  void takeAnalyses(bool Again);

  // ---- one counter for each site
  void placeNaively();

  // ---- few counters
  struct ClassState {
    bool Needed = false, Resolved = false;
    BasicBlock *Where = nullptr;  // of its own counter: the first of its blocks
    std::vector<Term> Terms;      // once resolved
    int ScaledFrom = -1;          // or: another class, `Scale` times
    int64_t Scale = 1;
  };
  std::vector<ClassState> Classes;
  std::unique_ptr<Equivalence> Equal;

  void place();
  void placeLoop(Loop *L);
  bool isClosed(const Loop *L) const;
  int classOf(const Loop *L, bool Backedge) const;
  const SCEV *executions(Loop *L, bool Backedge);
  bool countOnEntry(Loop *L, int Class, bool Backedge);
  bool canKeep(const Loop *L) const;
  void keepInRegisters(Loop *L);
  std::vector<AllocaInst *> Kept; // variables that become registers

  // What a loop has counted and not yet written.
  struct Unwritten {
    std::vector<std::pair<unsigned, AllocaInst *>> Sums; // counter, sum
    unsigned Watched = 0;                                // the sum that tells when it is time
    PHINode *Now = nullptr;                              // of counters that the exit tells
    AllocaInst *From = nullptr;                          // up to where they are written
    APInt Step;
    std::vector<unsigned> Told;
  };
  std::map<Loop *, Unwritten> Pending;
  void publish(Loop *L, Unwritten &U);
  Value *iterations(IRBuilder<> &B, Value *Now, Value *From, const APInt &Step);
  bool countOnExit(Loop *L, const std::vector<std::pair<int, bool>> &Needed);
  const std::vector<Term> &termsOf(int Class);
  unsigned newCounter(unsigned Kind) {
    Result.Counters.push_back(Kind);
    return Result.Counters.size() - 1;
  }
  int placeBytes(const Site &S);
  unsigned groupOf(const std::vector<Term> &Terms);
  std::map<std::vector<std::pair<unsigned, int64_t>>, unsigned> Groups;
};

// ---- preparation -----------------------------------------------------------------------------------------------

/// Code after a call that may not return runs less often than the code before it: a block of its own, if anything is
/// counted there.
void FunctionCounter::splitAtOpaqueCalls() {
  SmallPtrSet<Instruction *, 32> Counted;
  for (const Site &S : Sites)
    Counted.insert(S.At);
  std::vector<BasicBlock *> Work;
  for (BasicBlock &BB : F)
    if (!V.isUntouched(&BB))
      Work.push_back(&BB);
  for (BasicBlock *BB : Work) {
    for (BasicBlock *Part = BB; Part;) {
      BasicBlock *Rest = nullptr;
      Instruction *Call = nullptr;
      for (Instruction &I : *Part) {
        // A call that returns twice is the last of its block in any case.
        if (Call && (Counted.contains(&I) || returnsTwice(*Call) || (O.Mix && !isa<ReturnInst>(I)))) {
          if (auto *Tail = dyn_cast<CallInst>(Call); Tail && Tail->isMustTailCall())
            break;
          Instruction *Next = Call->getNextNode();
          if (!isa<PHINode>(Next))
            Rest = SplitBlock(Part, Next);
          break;
        }
        if (!I.isTerminator() && !Call && isOpaque(I))
          Call = &I;
      }
      if (Rest && returnsTwice(*Call))
        MayEnter.insert(Rest);
      Part = Rest;
    }
  }
  for (BasicBlock &BB : F)
    for (Instruction &I : BB)
      if (isOpaque(I))
        MayLeave.insert(&BB);
}

void FunctionCounter::takeAnalyses(bool Again) {
  if (Again)
    FAM.invalidate(F, PreservedAnalyses::none());
  DT = &FAM.getResult<DominatorTreeAnalysis>(F);
  LI = &FAM.getResult<LoopAnalysis>(F);
}

/// A place before each loop and places after it, which nothing else passes.
void FunctionCounter::prepareLoops() {
  for (Loop *L : LI->getLoopsInPreorder()) {
    if (!isClosed(L) || V.isUntouched(L->getHeader()))
      continue;
    BasicBlock *Before = L->getLoopPreheader();
    if (!Before)
      Before = InsertPreheaderForLoop(L, DT, LI, nullptr, false);
    // Its call may not return; the loop then does not run.
    if (Before && MayLeave.contains(Before) && !isOpaque(*Before->getTerminator()))
      SplitBlock(Before, Before->getTerminator(), DT, LI);
    formDedicatedExitBlocks(L, DT, LI, nullptr, false);
  }
}

/// No call ends the loop, and nobody jumps into it.
bool FunctionCounter::isClosed(const Loop *L) const {
  for (BasicBlock *BB : L->blocks()) {
    if (MayLeave.contains(BB) || MayEnter.contains(BB))
      return false;
    const Instruction *End = BB->getTerminator();
    if (!isa<BranchInst>(End) && !isa<SwitchInst>(End) && !isa<UnreachableInst>(End))
      return false;
  }
  for (BasicBlock *Before : predecessors(L->getHeader())) {
    const Instruction *End = Before->getTerminator();
    if (!isa<BranchInst>(End) && !isa<SwitchInst>(End))
      return false;
  }
  return true;
}

// ---- counters -----------------------------------------------------------------------------------------------------

/// The bytes of a site, where they are known only when it runs. -1 = they are constant.
int FunctionCounter::placeBytes(const Site &S) {
  if (!S.hasOwnBytes())
    return -1;
  IRBuilder<> B(S.At);
  B.SetCurrentDebugLocation(DebugLoc());
  Value *Amount;
  if (S.Size) {
    Amount = B.CreateZExtOrTrunc(S.Size, I64);
  } else if (S.Mask) {
    auto *Lanes = cast<FixedVectorType>(S.Mask->getType());
    Type *Bits = B.getIntNTy(Lanes->getNumElements());
    Value *Mask = S.Mask;
    if (const unsigned Width = Lanes->getScalarSizeInBits(); Width > 1) { // the sign says it
      Mask = B.CreateBitCast(Mask, FixedVectorType::get(B.getIntNTy(Width), Lanes->getNumElements()));
      Mask = B.CreateICmpSLT(Mask, Constant::getNullValue(Mask->getType()));
    }
    Value *Count = B.CreateUnaryIntrinsic(Intrinsic::ctpop, B.CreateBitCast(Mask, Bits));
    Amount = B.CreateMul(B.CreateZExtOrTrunc(Count, I64), ConstantInt::get(I64, S.LaneBytes));
  } else {
    Function *Scale = intrinsicDeclaration(F.getParent(), Intrinsic::vscale, {I64});
    Amount = B.CreateMul(B.CreateCall(Scale), ConstantInt::get(I64, S.Bytes));
  }
  unsigned Counter = newCounter(ML_COUNTER_BYTES);
  Adds.push_back({S.At, Counter, Amount});
  return Counter;
}

unsigned FunctionCounter::groupOf(const std::vector<Term> &Terms) {
  std::vector<std::pair<unsigned, int64_t>> Key;
  for (const Term &T : Terms)
    Key.push_back({T.Counter, T.Scale});
  auto [At, New] = Groups.try_emplace(Key, Result.Groups.size());
  if (New)
    Result.Groups.push_back(Terms);
  return At->second;
}

void FunctionCounter::placeNaively() {
  DenseMap<BasicBlock *, unsigned> Blocks;
  auto BlockOf = [&](BasicBlock *BB) {
    auto [At, New] = Blocks.try_emplace(BB, Result.Blocks.size());
    if (New) {
      unsigned Group = 0;
      if (O.Mix) {
        unsigned Counter = newCounter(ML_COUNTER_BLOCK);
        Adds.push_back({startOf(*BB), Counter, ConstantInt::get(I64, 1)});
        Group = groupOf({{Counter, 1}});
      }
      Result.Blocks.push_back({Group, LI->getLoopDepth(BB), BB, operations(*BB)});
    }
    return At->second;
  };
  for (const Site &S : Sites) {
    unsigned Counter = newCounter(ML_COUNTER_BLOCK);
    Adds.push_back({S.At, Counter, ConstantInt::get(I64, 1)});
    int Bytes = placeBytes(S);
    Result.Sites.push_back({&S, BlockOf(S.At->getParent()), groupOf({{Counter, 1}}), Bytes});
  }
  if (O.Mix)
    for (BasicBlock &BB : F)
      if (DT->isReachableFromEntry(&BB) && !V.isUntouched(&BB))
        BlockOf(&BB);
}

/// How often a part of the loop runs each time the loop is entered, in 64 bits; null = not known before.
const SCEV *FunctionCounter::executions(Loop *L, bool Backedge) {
  const SCEV *Taken = SE->getBackedgeTakenCount(L);
  if (isa<SCEVCouldNotCompute>(Taken) || SE->getTypeSizeInBits(Taken->getType()) > 64 ||
      !Taken->getType()->isIntegerTy())
    return nullptr;
  Taken = SE->getNoopOrZeroExtend(Taken, I64);
  return Backedge ? Taken : SE->getAddExpr(Taken, SE->getOne(I64));
}

/// The class of what runs once for each iteration begun (the header), or for each one that another follows.
int FunctionCounter::classOf(const Loop *L, bool Backedge) const {
  if (!Backedge)
    return Equal->of(L->getHeader());
  BasicBlock *Latch = L->getLoopLatch();
  return Latch ? Equal->of(Latch, L->getHeader()) : -1;
}

bool FunctionCounter::countOnEntry(Loop *L, int Class, bool Backedge) {
  const SCEV *Times = executions(L, Backedge);
  BasicBlock *Before = L->getLoopPreheader();
  if (!Times || !Before)
    return false;
  if (const auto *Constant = dyn_cast<SCEVConstant>(Times)) {
    const APInt &N = Constant->getAPInt();
    if (!O.Constants || N.ugt(LargestScale))
      return false;
    Classes[Class].ScaledFrom = Equal->of(Before);
    Classes[Class].Scale = N.getZExtValue();
    Classes[Class].Resolved = true;
    Classes[Classes[Class].ScaledFrom].Needed = true;
    return true;
  }
  if (!O.Trips)
    return false;
  SCEVExpander Expander(*SE, F.getParent()->getDataLayout(), "memlens.trips");
  auto &TTI = FAM.getResult<TargetIRAnalysis>(F);
  auto Fits = [&](const SCEV *S, Loop *Around, BasicBlock *At) {
    return Expander.isSafeToExpandAt(S, At->getTerminator()) &&
           !Expander.isHighCostExpansion({S}, Around, ExpansionBudget, &TTI, At->getTerminator());
  };
  if (!Fits(Times, L, Before))
    return false;
  // Outwards as long as the outer loop's own count is known and ours does not change in it.
  for (Loop *Outer = LI->getLoopFor(Before); Outer; Outer = Outer->getParentLoop()) {
    BasicBlock *Further = Outer->getLoopPreheader();
    if (!Further || !isClosed(Outer) || !SE->isLoopInvariant(Times, Outer))
      break;
    const int Here = Equal->of(Before);
    const SCEV *Around = nullptr;
    if (Here == classOf(Outer, false))
      Around = executions(Outer, false);
    else if (Here == classOf(Outer, true))
      Around = executions(Outer, true);
    if (!Around)
      break;
    const SCEV *Product = SE->getMulExpr(Times, Around);
    if (!Fits(Product, Outer, Further))
      break;
    Times = Product;
    Before = Further;
  }
  Value *Amount = Expander.expandCodeFor(Times, I64, Before->getTerminator());
  unsigned Counter = newCounter(ML_COUNTER_ENTRY);
  Adds.push_back({Before->getTerminator(), Counter, Amount});
  Classes[Class].Terms = {{Counter, 1}};
  Classes[Class].Resolved = true;
  return true;
}

/// A variable of the loop whose value tells the number of the iteration: its value at the header, the value it began
/// with, and its step.
struct Clock {
  PHINode *Now = nullptr;
  Value *Begin = nullptr;
  APInt Step;
};

static Clock findClock(Loop *L, ScalarEvolution &SE) {
  Clock Best;
  for (PHINode &Phi : L->getHeader()->phis()) {
    Type *T = Phi.getType();
    if (!SE.isSCEVable(T))
      continue;
    const auto *Recurrence = dyn_cast<SCEVAddRecExpr>(SE.getSCEV(&Phi));
    if (!Recurrence || Recurrence->getLoop() != L || !Recurrence->isAffine())
      continue;
    const auto *Step = dyn_cast<SCEVConstant>(Recurrence->getStepRecurrence(SE));
    if (!Step || Step->getAPInt().isZero() || Step->getAPInt().abs().ugt(LargestStep))
      continue;
    // In 64 bits it cannot come round; in fewer it must be known not to.
    if (SE.getTypeSizeInBits(T) != 64 &&
        !(SE.getTypeSizeInBits(T) < 64 && (Recurrence->hasNoUnsignedWrap() || Recurrence->hasNoSignedWrap())))
      continue;
    if (T->isPointerTy() && T->getPointerAddressSpace() != 0)
      continue;
    auto Cost = [](const Clock &C) {
      return C.Step.abs().isOne() ? 0 : C.Step.abs().isPowerOf2() ? 1 : 2;
    };
    Clock Found{&Phi, Phi.getIncomingValueForBlock(L->getLoopPreheader()), Step->getAPInt()};
    if (!Best.Now || Cost(Found) < Cost(Best))
      Best = Found;
  }
  return Best;
}

/// What a loop counts may be added up when it is left.
bool FunctionCounter::canKeep(const Loop *L) const {
  for (const Loop *Inner : *L)
    if (!Inner->isInnermost())
      return false; // further out adds are seldom, and every register that is held makes the inner loops spill
  SmallVector<BasicBlock *, 4> Exits;
  L->getUniqueExitBlocks(Exits);
  return isClosed(L) && L->getLoopPreheader() && !Exits.empty() && Exits.size() <= MostExits && L->hasDedicatedExits() &&
         none_of(Exits, [](const BasicBlock *Exit) { return Exit->isEHPad(); });
}

/// Has registers add up what a loop counts, and one add for each counter write it when the loop is left.
void FunctionCounter::keepInRegisters(Loop *L) {
  if (!canKeep(L))
    return;
  std::map<unsigned, std::vector<unsigned>> ByCounter; // counter → its adds in the loop
  for (unsigned I = 0; I < Adds.size(); ++I)
    if (L->contains(Adds[I].Before->getParent()))
      ByCounter[Adds[I].Counter].push_back(I);
  if (ByCounter.empty() || ByCounter.size() > MostKept)
    return;
  SmallVector<BasicBlock *, 4> Exits;
  L->getUniqueExitBlocks(Exits);
  IRBuilder<> B(F.getContext());
  std::vector<bool> Replaced(Adds.size(), false);
  std::vector<Add> New;
  Unwritten &U = Pending[L];
  unsigned Deepest = 0;
  for (auto &[Counter, Indices] : ByCounter) {
    B.SetInsertPoint(&*F.getEntryBlock().getFirstInsertionPt());
    B.SetCurrentDebugLocation(DebugLoc());
    AllocaInst *Sum = B.CreateAlloca(I64, nullptr, "memlens.kept");
    Kept.push_back(Sum);
    B.SetInsertPoint(L->getLoopPreheader()->getTerminator());
    B.SetCurrentDebugLocation(DebugLoc());
    B.CreateStore(ConstantInt::get(I64, 0), Sum);
    for (unsigned I : Indices) {
      B.SetInsertPoint(Adds[I].Before);
      B.SetCurrentDebugLocation(DebugLoc());
      B.CreateStore(B.CreateAdd(B.CreateLoad(I64, Sum), Adds[I].Amount), Sum);
      Replaced[I] = true;
      // The most frequent tells when to write: the deepest, of these the first, which every iteration passes.
      if (unsigned Depth = LI->getLoopDepth(Adds[I].Before->getParent()); Depth > Deepest) {
        Deepest = Depth;
        U.Watched = U.Sums.size();
      }
    }
    U.Sums.push_back({Counter, Sum});
    for (BasicBlock *Exit : Exits) {
      Instruction *At = startOf(*Exit);
      B.SetInsertPoint(At);
      B.SetCurrentDebugLocation(DebugLoc());
      New.push_back({At, Counter, B.CreateLoad(I64, Sum)});
    }
    if (Result.Counters[Counter] == ML_COUNTER_BLOCK)
      Result.Counters[Counter] = ML_COUNTER_KEPT;
  }
  std::vector<Add> Rest;
  for (unsigned I = 0; I < Adds.size(); ++I)
    if (!Replaced[I])
      Rest.push_back(Adds[I]);
  Rest.insert(Rest.end(), New.begin(), New.end());
  Adds = std::move(Rest);
}

/// How many steps lie between two values of a loop's variable.
Value *FunctionCounter::iterations(IRBuilder<> &B, Value *Now, Value *From, const APInt &Step) {
  // Frozen, so that loop strength reduction does not see the difference and rewrite the loop around it.
  Now = B.CreateFreeze(Now);
  if (Now->getType()->isPointerTy()) {
    Now = B.CreatePtrToInt(Now, I64);
    From = B.CreatePtrToInt(From, I64);
  }
  Value *Distance = B.CreateZExt(Step.isNegative() ? B.CreateSub(From, Now) : B.CreateSub(Now, From), I64);
  const APInt Size = Step.abs();
  if (Size.isPowerOf2())
    return B.CreateLShr(Distance, Size.logBase2());
  return B.CreateUDiv(Distance, ConstantInt::get(I64, Size.getZExtValue()));
}

/// Has a loop write what it has counted now and then, so that somebody who watches sees it move.
void FunctionCounter::publish(Loop *L, Unwritten &U) {
  BasicBlock *Latch = L->getLoopLatch();
  if (!Latch)
    return;
  // At its start: the comparison that ends the loop stays beside its branch.
  Instruction *Before = startOf(*Latch);
  IRBuilder<> B(Before);
  B.SetCurrentDebugLocation(DebugLoc());
  Value *IsTime;
  if (!U.Sums.empty()) {
    Value *Sum = B.CreateLoad(I64, U.Sums[U.Watched].second);
    IsTime = B.CreateICmpUGT(Sum, ConstantInt::get(I64, PublishedCount));
  } else if (U.Step.abs().isPowerOf2() && U.Step.getBitWidth() > 30) {
    Value *Now = U.Now->getType()->isPointerTy() ? B.CreatePtrToInt(U.Now, I64) : static_cast<Value *>(U.Now);
    APInt Mask = APInt(U.Step.getBitWidth(), PublishedCount - 1) << U.Step.abs().logBase2();
    Value *Low = B.CreateAnd(Now, ConstantInt::get(Now->getType(), Mask));
    IsTime = B.CreateICmpEQ(Low, ConstantInt::get(Now->getType(), 0));
  } else {
    return;
  }
  DomTreeUpdater Updater(*DT, DomTreeUpdater::UpdateStrategy::Eager);
  MDNode *Seldom = MDBuilder(F.getContext()).createBranchWeights(1, 1 << 20);
  Instruction *End = SplitBlockAndInsertIfThen(IsTime, Before, false, Seldom, &Updater, LI);
  B.SetInsertPoint(End);
  B.SetCurrentDebugLocation(DebugLoc());
  for (auto [Counter, Sum] : U.Sums) {
    Value *Amount = B.CreateLoad(I64, Sum);
    B.CreateStore(ConstantInt::get(I64, 0), Sum);
    Adds.push_back({End, Counter, Amount});
  }
  if (U.Now) {
    Value *Amount = iterations(B, U.Now, B.CreateLoad(U.From->getAllocatedType(), U.From), U.Step);
    B.CreateStore(U.Now, U.From);
    for (unsigned Counter : U.Told)
      Adds.push_back({End, Counter, Amount});
  }
}

/// The count of a loop that only its end tells: from a variable that steps evenly.
bool FunctionCounter::countOnExit(Loop *L, const std::vector<std::pair<int, bool>> &Needed) {
  if (!canKeep(L))
    return false;
  SmallVector<BasicBlock *, 4> Exits;
  L->getUniqueExitBlocks(Exits);
  Clock C = O.Exits ? findClock(L, *SE) : Clock();
  if (!C.Now)
    return false;
  std::vector<unsigned> Counters;
  for (auto [Class, Backedge] : Needed) {
    Counters.push_back(newCounter(ML_COUNTER_EXIT));
    Classes[Class].Terms = {{Counters.back(), 1}};
    Classes[Class].Resolved = true;
  }
  IRBuilder<> B(&*F.getEntryBlock().getFirstInsertionPt());
  B.SetCurrentDebugLocation(DebugLoc());
  AllocaInst *From = B.CreateAlloca(C.Now->getType(), nullptr, "memlens.from");
  Kept.push_back(From);
  B.SetInsertPoint(L->getLoopPreheader()->getTerminator());
  B.SetCurrentDebugLocation(DebugLoc());
  B.CreateStore(C.Begin, From);
  Unwritten &U = Pending[L];
  U.Now = C.Now;
  U.From = From;
  U.Step = C.Step;
  U.Told = Counters;
  for (BasicBlock *Exit : Exits) {
    Instruction *At = startOf(*Exit);
    B.SetInsertPoint(At);
    B.SetCurrentDebugLocation(DebugLoc());
    Value *Iteration = iterations(B, C.Now, B.CreateLoad(From->getAllocatedType(), From), C.Step);
    for (unsigned I = 0; I < Needed.size(); ++I) {
      Value *Amount = Needed[I].second ? Iteration : B.CreateAdd(Iteration, ConstantInt::get(I64, 1));
      Adds.push_back({At, Counters[I], Amount});
    }
  }
  return true;
}

void FunctionCounter::placeLoop(Loop *L) {
  if (!isClosed(L))
    return;
  std::vector<std::pair<int, bool>> Needed;
  for (bool Backedge : {false, true}) {
    int Class = classOf(L, Backedge);
    if (Class < 0 || !Classes[Class].Needed || Classes[Class].Resolved)
      continue;
    if (!countOnEntry(L, Class, Backedge))
      Needed.push_back({Class, Backedge});
  }
  if (!Needed.empty())
    countOnExit(L, Needed);
}

const std::vector<Term> &FunctionCounter::termsOf(int Class) {
  ClassState &C = Classes[Class];
  if (C.ScaledFrom >= 0 && C.Terms.empty()) {
    for (Term T : termsOf(C.ScaledFrom))
      C.Terms.push_back({T.Counter, T.Scale * C.Scale});
  } else if (!C.Resolved) {
    unsigned Counter = newCounter(ML_COUNTER_BLOCK);
    Adds.push_back({startOf(*C.Where), Counter, ConstantInt::get(I64, 1)});
    C.Terms = {{Counter, 1}};
    C.Resolved = true;
  }
  return C.Terms;
}

void FunctionCounter::place() {
  prepareLoops();
  takeAnalyses(true);
  SE = &FAM.getResult<ScalarEvolutionAnalysis>(F);
  Equal = std::make_unique<Equivalence>(F, MayLeave, MayEnter, O.Sets);
  Classes.resize(Equal->count());
  for (BasicBlock *BB : ReversePostOrderTraversal<Function *>(&F)) {
    ClassState &C = Classes[Equal->of(BB)];
    if (!C.Where)
      C.Where = BB;
    C.Needed |= O.Mix && !V.isUntouched(BB);
  }
  for (const Site &S : Sites)
    if (int Class = Equal->of(S.At->getParent()); Class >= 0)
      Classes[Class].Needed = true;

  // Inner loops first: they may ask for the count of what is around them.
  SmallVector<Loop *, 8> Loops = LI->getLoopsInPreorder();
  for (auto L = Loops.rbegin(); L != Loops.rend(); ++L)
    placeLoop(*L);

  DenseMap<BasicBlock *, unsigned> Blocks;
  auto BlockOf = [&](BasicBlock *BB) {
    auto [At, New] = Blocks.try_emplace(BB, Result.Blocks.size());
    if (New) {
      int Class = Equal->of(BB);
      unsigned Group = Class >= 0 && Classes[Class].Needed ? groupOf(termsOf(Class)) : 0;
      Result.Blocks.push_back({Group, LI->getLoopDepth(BB), BB, operations(*BB)});
    }
    return At->second;
  };
  // How often the function is called, where something is counted that runs as often: the first block of the table.
  BasicBlock &Entry = F.getEntryBlock();
  if (int Class = Equal->of(&Entry); Class >= 0 && Classes[Class].Needed && !V.isUntouched(&Entry)) {
    BlockOf(&Entry);
    Result.Flags |= ML_TABLE_ENTRY;
  }
  if (O.Mix)
    for (BasicBlock &BB : F)
      if (DT->isReachableFromEntry(&BB) && !V.isUntouched(&BB))
        BlockOf(&BB);
  for (const Site &S : Sites) {
    unsigned Block = BlockOf(S.At->getParent());
    Result.Sites.push_back({&S, Block, Result.Blocks[Block].Group, placeBytes(S)});
  }
  if (O.Keep)
    for (auto L = Loops.rbegin(); L != Loops.rend(); ++L)
      keepInRegisters(*L);
  if (O.Publish)
    for (Loop *L : Loops) {
      auto Found = Pending.find(L);
      bool IsOutermost = Found != Pending.end();
      for (Loop *Outer = L->getParentLoop(); Outer && IsOutermost; Outer = Outer->getParentLoop())
        IsOutermost = !Pending.count(Outer);
      if (IsOutermost)
        publish(L, Found->second);
    }
}


bool FunctionCounter::run(std::string &Problem) {
  Sites = findSites(F, FAM.getResult<TargetLibraryAnalysis>(F), FAM.getResult<ScalarEvolutionAnalysis>(F));
  erase_if(Sites, [&](const Site &S) { return V.isUntouched(S.At->getParent()) || V.isOurs(S.At); });
  if (Sites.empty() && !O.Mix)
    return false;
  splitAtOpaqueCalls();
  takeAnalyses(true);
  Result.Flags = (O.Mix ? ML_TABLE_MIX : 0) | (O.Naive ? ML_TABLE_NAIVE : 0);
  if (O.Naive)
    placeNaively();
  else
    place();
  if (Result.Counters.size() > ML_COUNT_MAX_OF_FUNCTION) {
    Problem = ("function '" + F.getName() + "' needs " + Twine(Result.Counters.size()) + " counters and can have " +
               Twine(ML_COUNT_MAX_OF_FUNCTION) + ": it is not counted")
                  .str();
    tellRefused(F, ML_TABLE_TOO_LARGE);
    return true;
  }
  GlobalVariable *Descriptor = newDescriptor(F);
  AddWriter(F, Descriptor).write(Adds);
  if (!Kept.empty())
    PromoteMemToReg(Kept, *DT);
  fillDescriptor(Descriptor, F, Result.Counters.size(), encode(Result, F));
  return true;
}

} // namespace

void tellRefused(Function &F, unsigned Reason) {
  GlobalVariable *Descriptor = newDescriptor(F);
  fillDescriptor(Descriptor, F, 0, encodeRefused(Reason, F));
  appendToCompilerUsed(*F.getParent(), {Descriptor}); // no code names it
}

bool countFunction(Function &F, FunctionAnalysisManager &FAM, const Options &O, const Versions &V,
                   std::string &Problem) {
  return FunctionCounter(F, FAM, O, V).run(Problem);
}

} // namespace memlens
