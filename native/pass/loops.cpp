/// Counting of loops: before they run, when they are left, or in registers.
#include "function_counter.h"
#include "memlens_count.h"

#include "llvm/Analysis/DomTreeUpdater.h"
#include "llvm/Analysis/ScalarEvolutionExpressions.h"
#include "llvm/Analysis/TargetTransformInfo.h"
#include "llvm/IR/Instructions.h"
#include "llvm/IR/MDBuilder.h"
#include "llvm/IR/Module.h"
#include "llvm/Transforms/Utils/BasicBlockUtils.h"
#include "llvm/Transforms/Utils/ScalarEvolutionExpander.h"

using namespace llvm;

namespace memlens {

namespace {

constexpr unsigned ExpansionBudget = 6;            // in the units of LLVM's cost model
constexpr int64_t LargestScale = int64_t(1) << 40; // products of these do not overflow in any real nest
constexpr unsigned MostExits = 6;
constexpr unsigned MostKept = 8;            // registers are few
constexpr int64_t PublishedCount = 1 << 18; // of what a long loop counts, before it writes

} // namespace

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
    resolve(Class, {}, {{Equal->of(Before), N.getZExtValue()}});
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
  resolve(Class, {{Counter, 1}});
  return true;
}

/// What a loop counts may be written when it is left.
bool FunctionCounter::canBeTold(const Loop *L) const {
  SmallVector<BasicBlock *, 4> Exits = exitsOf(L);
  return isClosed(L) && L->getLoopPreheader() && !Exits.empty() && Exits.size() <= MostExits &&
         L->hasDedicatedExits() && none_of(Exits, [](const BasicBlock *Exit) { return Exit->isEHPad(); });
}

/// And registers may hold it until then.
bool FunctionCounter::canKeep(const Loop *L) const {
  for (const Loop *Inner : *L)
    if (!Inner->isInnermost())
      return false; // further out adds are seldom, and every register that is held makes the inner loops spill
  return canBeTold(L);
}

SmallVector<BasicBlock *, 4> FunctionCounter::exitsOf(const Loop *L) const {
  SmallVector<BasicBlock *, 4> Exits;
  L->getUniqueExitBlocks(Exits);
  return Exits;
}

AllocaInst *FunctionCounter::newVariable(Type *T, const char *Name) {
  IRBuilder<> B(&*F.getEntryBlock().getFirstInsertionPt());
  B.SetCurrentDebugLocation(DebugLoc());
  Kept.push_back(B.CreateAlloca(T, nullptr, Name));
  return Kept.back();
}

void FunctionCounter::store(Value *What, AllocaInst *To, Instruction *Before) {
  IRBuilder<> B(Before);
  B.SetCurrentDebugLocation(DebugLoc());
  B.CreateStore(What, To);
}

static Value *asNumber(IRBuilder<> &B, Value *V) {
  return V->getType()->isPointerTy() ? B.CreatePtrToInt(V, B.getInt64Ty()) : V;
}

/// The value of a variable, as a number. Frozen, so that loop strength reduction does not see what is made of it, and does not
/// rewrite the loop around it: it leaves loops as they are if it sees pointers as they are, and numbers with what is added.
Value *FunctionCounter::valueOf(IRBuilder<> &B, const Told &Variable) {
  Type *T = Variable.Now->getAllocatedType();
  Value *Now = B.CreateLoad(T, Variable.Now);
  if (T->isPointerTy())
    Now = asNumber(B, B.CreateFreeze(Now));
  if (Variable.More)
    Now = B.CreateAdd(Now, B.CreateLoad(I64, Variable.More));
  return T->isPointerTy() ? Now : B.CreateFreeze(Now);
}

/// How many steps it is beyond what has been written.
Value *FunctionCounter::stepsOf(IRBuilder<> &B, const Told &Variable) {
  Value *Now = valueOf(B, Variable);
  Value *From = asNumber(B, B.CreateLoad(Variable.From->getAllocatedType(), Variable.From));
  const APInt Size = Variable.Step.abs();
  Value *Distance = B.CreateZExt(Variable.Step.isNegative() ? B.CreateSub(From, Now) : B.CreateSub(Now, From), I64);
  if (Size.isPowerOf2())
    return B.CreateLShr(Distance, Size.logBase2());
  return B.CreateUDiv(Distance, ConstantInt::get(I64, Size.getZExtValue()));
}

/// What the counter of a sum is to get.
Value *FunctionCounter::amountOf(IRBuilder<> &B, const Sum &S) {
  Value *Amount = B.CreateLoad(I64, S.At);
  if (S.Start) // its low bits: the sum never gets beyond zero, where it is written
    return B.CreateAnd(Amount, ConstantInt::get(I64, PublishedCount - 1));
  if (S.Step.isNegative())
    Amount = B.CreateNeg(Amount);
  return S.Step.abs().isOne() ? Amount : B.CreateLShr(Amount, S.Step.abs().logBase2());
}

// ---- variables of the program ------------------------------------------------------------------------------------

/// What variables of the program tell when the loop is left, beside the number of its iterations.
void FunctionCounter::countTallies(Loop *L) {
  if (!canBeTold(L))
    return;
  for (PHINode &First : L->getHeader()->phis()) {
    std::optional<Tally> T = findTally(First, *L, F.getParent()->getDataLayout());
    const int Class = T ? Equal->of(T->From, T->To) : -1;
    if (Class < 0 || T->To == L->getHeader())
      continue;
    // The header of an inner loop runs once for each way round and once for each entry.
    const Loop *Inner = LI->getLoopFor(T->To);
    const bool IsRound = Inner->getHeader() == T->To && Inner->getLoopLatch() == T->From && Inner->getLoopPreheader();
    const int Header = IsRound ? classOf(Inner, false) : -1;
    if (!isWanted(Class) && (!isWanted(Header) || Classes[Class].Resolved))
      continue;
    const unsigned Counter = newCounter(ML_COUNTER_EXIT);
    resolve(Class, {{Counter, 1}});
    if (isWanted(Header))
      resolve(Header, {}, {{Class, 1}, {Equal->of(Inner->getLoopPreheader()), 1}});
    Type *Its = First.getType();
    const Told Variable{newVariable(Its, "memlens.now"), newVariable(Its, "memlens.from"), T->Step, {Counter}, nullptr};
    store(T->Begin, Variable.From, L->getLoopPreheader()->getTerminator());
    for (PHINode *Phi : T->Values)
      store(Phi, Variable.Now, startOf(*Phi->getParent()));
    for (BasicBlock *Exit : exitsOf(L)) {
      Instruction *At = startOf(*Exit);
      IRBuilder<> B(At);
      B.SetCurrentDebugLocation(DebugLoc());
      Adds.push_back({At, Counter, stepsOf(B, Variable)});
    }
    Pending[L].Variables.push_back(Variable);
  }
}

/// The variable that a clock reads. In 64 bits its steps are the iterations begun: before it steps they are one more than its
/// value says, and after that its old value is not asked for, and need not be held beside the new one. In fewer bits, where the
/// last step may come round, they are the iterations that another followed.
FunctionCounter::Told FunctionCounter::followClock(Loop *L, const Clock &C) {
  Type *T = C.Now->getType();
  Told Variable{newVariable(T, "memlens.now"), newVariable(T, "memlens.from"), C.Step, {}, nullptr};
  store(C.Begin, Variable.From, L->getLoopPreheader()->getTerminator());
  Instruction *At = startOf(*L->getHeader());
  store(C.Now, Variable.Now, At);
  if (C.Step.getBitWidth() != 64)
    return Variable;
  Variable.More = newVariable(I64, "memlens.more");
  store(ConstantInt::get(I64, C.Step), Variable.More, At);
  BasicBlock *Latch = L->getLoopLatch();
  auto *Next = Latch ? dyn_cast<Instruction>(C.Now->getIncomingValueForBlock(Latch)) : nullptr;
  if (Next && !isa<PHINode>(Next) && LI->getLoopFor(Next->getParent()) == L &&
      DT->dominates(Next->getParent(), Latch)) {
    At = Next->getNextNode();
    Next->dropPoisonGeneratingFlags(); // its last value may be one that the program does not use
    store(Next, Variable.Now, At);
    store(ConstantInt::get(I64, 0), Variable.More, At);
  }
  return Variable;
}

/// The loop around has a register that adds up where the variable ends and subtracts where it begins. Nothing is held
/// while the loop runs but that sum.
bool FunctionCounter::countAround(Loop *L, const Clock &C, const Told &Variable, bool Backedge) {
  Loop *Around = L->getParentLoop();
  if (!O.Tallies || !O.Keep || !Around || !canKeep(Around) || C.Step.getBitWidth() != 64 || !C.Step.abs().isPowerOf2())
    return false;
  Sum S{Variable.Counters.front(), newVariable(I64, "memlens.kept")};
  S.Step = C.Step;
  store(ConstantInt::get(I64, 0), S.At, Around->getLoopPreheader()->getTerminator());
  IRBuilder<> B(L->getLoopPreheader()->getTerminator());
  B.SetCurrentDebugLocation(DebugLoc());
  B.CreateStore(B.CreateSub(B.CreateLoad(I64, S.At), asNumber(B, C.Begin)), S.At);
  std::map<BasicBlock *, Instruction *> Places; // a block may be an exit of both loops
  for (BasicBlock *Exit : exitsOf(L)) {
    Instruction *At = Places[Exit] = startOf(*Exit);
    B.SetInsertPoint(At);
    B.SetCurrentDebugLocation(DebugLoc());
    Value *End = valueOf(B, Variable);
    if (Backedge)
      End = B.CreateSub(End, ConstantInt::get(I64, C.Step));
    B.CreateStore(B.CreateAdd(B.CreateLoad(I64, S.At), End), S.At);
  }
  for (BasicBlock *Exit : exitsOf(Around)) {
    auto Known = Places.find(Exit);
    Instruction *At = Known == Places.end() ? startOf(*Exit) : Known->second;
    B.SetInsertPoint(At);
    B.SetCurrentDebugLocation(DebugLoc());
    Adds.push_back({At, S.Counter, amountOf(B, S)});
  }
  Pending[Around].Sums.push_back(S);
  return true;
}

/// The count of a loop that only its end tells: from a variable that steps evenly.
void FunctionCounter::countOnExit(Loop *L, const std::vector<std::pair<int, bool>> &Needed) {
  const Clock C = O.Exits && canKeep(L) ? findClock(L, *SE) : Clock();
  if (!C.Now)
    return;
  for (auto [Class, Backedge] : Needed) {
    Told Variable = followClock(L, C);
    Variable.Counters = {newCounter(ML_COUNTER_EXIT)};
    resolve(Class, {{Variable.Counters[0], 1}});
    if (countAround(L, C, Variable, Backedge))
      continue;
    for (BasicBlock *Exit : exitsOf(L)) {
      Instruction *At = startOf(*Exit);
      IRBuilder<> B(At);
      B.SetCurrentDebugLocation(DebugLoc());
      Value *Amount = stepsOf(B, Variable);
      if (const bool Counts = Variable.More; Counts == Backedge) // another iteration did not follow the last
        Amount = B.CreateAdd(Amount, ConstantInt::get(I64, Backedge ? -1 : 1, true));
      Adds.push_back({At, Variable.Counters[0], Amount});
    }
    Pending[L].Variables.push_back(Variable);
    Pending[L].Regular = C.Step.abs().isPowerOf2() && C.Step.getBitWidth() > 30;
  }
}

void FunctionCounter::placeLoop(Loop *L, bool OnExit) {
  if (!isClosed(L))
    return;
  std::vector<std::pair<int, bool>> Needed;
  for (bool Backedge : {false, true}) {
    const int Class = classOf(L, Backedge);
    if (isWanted(Class) && !countOnEntry(L, Class, Backedge))
      Needed.push_back({Class, Backedge});
  }
  if (!Needed.empty() && OnExit)
    countOnExit(L, Needed);
}

void FunctionCounter::placeLoops() {
  // Inner loops first: they may ask for the count of what is around them.
  SmallVector<Loop *, 8> Loops = LI->getLoopsInPreorder();
  for (Loop *L : reverse(Loops))
    placeLoop(L, false);
  if (O.Tallies)
    for (Loop *L : Loops)
      countTallies(L);
  for (Loop *L : reverse(Loops))
    placeLoop(L, true);
}

// ---- registers -----------------------------------------------------------------------------------------------------

/// Has registers add up what a loop counts, and one add for each counter write it when the loop is left.
void FunctionCounter::keepInRegisters(Loop *L) {
  if (!canKeep(L))
    return;
  std::map<unsigned, std::vector<unsigned>> ByCounter; // counter → its adds in the loop
  for (unsigned I = 0; I < Adds.size(); ++I)
    if (L->contains(Adds[I].Before->getParent()))
      ByCounter[Adds[I].Counter].push_back(I);
  // What the loop adds less often than it is entered costs less where it is.
  const uint64_t Entered = frequency(L->getLoopPreheader());
  for (auto At = ByCounter.begin(); At != ByCounter.end();) {
    uint64_t Often = 0;
    for (unsigned I : At->second)
      Often += frequency(Adds[I].Before->getParent());
    At = Often <= Entered ? ByCounter.erase(At) : std::next(At);
  }
  if (ByCounter.empty() || ByCounter.size() > MostKept)
    return;
  IRBuilder<> B(F.getContext());
  std::vector<bool> Replaced(Adds.size(), false);
  std::vector<Add> New;
  Unwritten &U = Pending[L];
  unsigned Deepest = 0;
  for (auto &[Counter, Indices] : ByCounter) {
    Sum S{Counter, newVariable(I64, "memlens.kept")};
    for (unsigned I : Indices) {
      BasicBlock *BB = Adds[I].Before->getParent();
      B.SetInsertPoint(Adds[I].Before);
      B.SetCurrentDebugLocation(DebugLoc());
      Value *More = B.CreateAdd(B.CreateLoad(I64, S.At), Adds[I].Amount);
      B.CreateStore(More, S.At);
      Replaced[I] = true;
      // The most frequent tells when to write: the deepest, of these the first, which every iteration passes.
      if (unsigned Depth = LI->getLoopDepth(BB); Depth > Deepest) {
        Deepest = Depth;
        U.Watched = U.Sums.size();
      }
      const auto *One = dyn_cast<ConstantInt>(Adds[I].Amount);
      if (Indices.size() == 1 && One && One->isOne() && L->getLoopLatch() && DT->dominates(BB, L->getLoopLatch()))
        S.OnlyAdd = dyn_cast<Instruction>(More);
    }
    U.Sums.push_back(S);
    if (Result.Counters[Counter] == ML_COUNTER_BLOCK)
      Result.Counters[Counter] = ML_COUNTER_KEPT;
  }
  // A sum that begins below nothing is zero when it is time: its add tells, without a comparison.
  if (Sum &S = U.Sums[U.Watched]; O.Publish && S.OnlyAdd && L->isInnermost() && U.Variables.empty() && !isInPending(L))
    S.Start = -PublishedCount;
  const unsigned First = U.Sums.size() - ByCounter.size();
  for (unsigned I = First; I < U.Sums.size(); ++I) {
    const Sum &S = U.Sums[I];
    store(ConstantInt::get(I64, S.Start, true), S.At, L->getLoopPreheader()->getTerminator());
    for (BasicBlock *Exit : exitsOf(L)) {
      Instruction *At = startOf(*Exit);
      B.SetInsertPoint(At);
      B.SetCurrentDebugLocation(DebugLoc());
      New.push_back({At, S.Counter, amountOf(B, S)});
    }
  }
  std::vector<Add> Rest;
  for (unsigned I = 0; I < Adds.size(); ++I)
    if (!Replaced[I])
      Rest.push_back(Adds[I]);
  Rest.insert(Rest.end(), New.begin(), New.end());
  Adds = std::move(Rest);
}

/// A loop around this one writes what both have counted.
bool FunctionCounter::isInPending(const Loop *L) const {
  for (Loop *Outer = L->getParentLoop(); Outer; Outer = Outer->getParentLoop())
    if (Pending.count(Outer))
      return true;
  return false;
}

void FunctionCounter::keepLoops() {
  SmallVector<Loop *, 8> Loops = LI->getLoopsInPreorder();
  if (O.Keep)
    for (Loop *L : Loops) // the outer first: one register for the adds of both
      keepInRegisters(L);
  if (O.Publish)
    for (Loop *L : Loops)
      if (auto Found = Pending.find(L); Found != Pending.end() && !isInPending(L))
        publish(L, Found->second);
}

// ---- long loops ----------------------------------------------------------------------------------------------------

/// Whether a loop has counted much since it wrote; null = it cannot tell.
Value *FunctionCounter::isTime(IRBuilder<> &B, Unwritten &U) {
  if (U.Regular) {
    const Told &Variable = U.Variables.back();
    Value *Now = asNumber(B, B.CreateFreeze(B.CreateLoad(Variable.Now->getAllocatedType(), Variable.Now)));
    APInt Mask = APInt(Variable.Step.getBitWidth(), PublishedCount - 1) << Variable.Step.abs().logBase2();
    Value *Low = B.CreateAnd(Now, ConstantInt::get(Now->getType(), Mask));
    return B.CreateICmpEQ(Low, ConstantInt::get(Now->getType(), 0));
  }
  if (!U.Sums.empty()) {
    const Sum &S = U.Sums[U.Watched];
    const int64_t Limit = PublishedCount * S.Step.getSExtValue();
    Value *Now = B.CreateLoad(I64, S.At);
    return B.CreateICmp(Limit > 0 ? CmpInst::ICMP_SGT : CmpInst::ICMP_SLT, Now, ConstantInt::get(I64, Limit, true));
  }
  const Told &Variable = U.Variables.back();
  if (Variable.Step.getBitWidth() <= 30)
    return nullptr;
  Value *Now = valueOf(B, Variable),
        *From = asNumber(B, B.CreateLoad(Variable.From->getAllocatedType(), Variable.From));
  Value *Distance = Variable.Step.isNegative() ? B.CreateSub(From, Now) : B.CreateSub(Now, From);
  const uint64_t Limit = PublishedCount * Variable.Step.abs().getZExtValue();
  return B.CreateICmpUGT(Distance, ConstantInt::get(Distance->getType(), Limit));
}

/// Where the comparison begins that ends a block: it stays beside its branch, with loads that are part of it.
static Instruction *endOf(BasicBlock &BB) {
  Instruction *First = BB.getTerminator();
  auto *Branch = dyn_cast<BranchInst>(First);
  SmallVector<Value *, 8> Work;
  if (Branch && Branch->isConditional())
    Work.push_back(Branch->getCondition());
  while (!Work.empty()) {
    auto *I = dyn_cast<Instruction>(Work.pop_back_val());
    if (!I || I->getParent() != &BB || isa<PHINode>(I) || !I->hasOneUse())
      continue;
    if (I->comesBefore(First))
      First = I;
    Work.append(I->op_begin(), I->op_end());
  }
  return First;
}

/// Has a loop write what it has counted now and then, so that somebody who watches sees it move.
void FunctionCounter::publish(Loop *L, Unwritten &U) {
  BasicBlock *Latch = L->getLoopLatch();
  if (!Latch)
    return;
  const bool AddTells = !U.Sums.empty() && U.Sums[U.Watched].Start;
  Instruction *Before = endOf(*Latch);
  if (AddTells)
    Before = U.Sums[U.Watched].OnlyAdd->getNextNode()->getNextNode(); // after it is stored
  IRBuilder<> B(Before);
  B.SetCurrentDebugLocation(DebugLoc());
  Value *IsTime = AddTells ? B.CreateIsNull(U.Sums[U.Watched].OnlyAdd) : isTime(B, U);
  if (!IsTime)
    return;
  DomTreeUpdater Updater(*DT, DomTreeUpdater::UpdateStrategy::Eager);
  MDNode *Seldom = MDBuilder(F.getContext()).createBranchWeights(1, 1 << 20);
  Instruction *End = SplitBlockAndInsertIfThen(IsTime, Before, false, Seldom, &Updater, LI);
  B.SetInsertPoint(End);
  B.SetCurrentDebugLocation(DebugLoc());
  for (const Sum &S : U.Sums) {
    Adds.push_back({End, S.Counter, S.Start ? ConstantInt::get(I64, PublishedCount) : amountOf(B, S)});
    B.CreateStore(ConstantInt::get(I64, S.Start, true), S.At);
  }
  for (const Told &Variable : U.Variables) {
    Value *Amount = stepsOf(B, Variable), *Now = valueOf(B, Variable);
    if (Type *T = Variable.From->getAllocatedType(); T->isPointerTy())
      Now = B.CreateIntToPtr(Now, T);
    B.CreateStore(Now, Variable.From);
    for (unsigned Counter : Variable.Counters)
      Adds.push_back({End, Counter, Amount});
  }
}

} // namespace memlens
