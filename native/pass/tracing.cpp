#include "tracing.h"

#include "address_classes.h"
#include "code.h"
#include "llvm_versions.h"
#include "memlens_count.h"
#include "memlens_trace.h"
#include "parts.h"
#include "rounds.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/Analysis/BranchProbabilityInfo.h"
#include "llvm/Analysis/LoopInfo.h"
#include "llvm/Analysis/ScalarEvolution.h"
#include "llvm/Analysis/ScalarEvolutionExpressions.h"
#include "llvm/Analysis/TargetTransformInfo.h"
#include "llvm/IR/DiagnosticInfo.h"
#include "llvm/IR/Dominators.h"
#include "llvm/IR/InlineAsm.h"
#include "llvm/IR/Instructions.h"
#include "llvm/IR/IntrinsicInst.h"
#include "llvm/IR/MDBuilder.h"
#include "llvm/IR/Module.h"
#include "llvm/TargetParser/Triple.h"
#include "llvm/Transforms/Utils/BasicBlockUtils.h"
#include "llvm/Transforms/Utils/Cloning.h"
#include "llvm/Transforms/Utils/LoopSimplify.h"
#include "llvm/Transforms/Utils/LoopUtils.h"
#include "llvm/Transforms/Utils/PromoteMemToReg.h"
#include "llvm/Transforms/Utils/ScalarEvolutionExpander.h"

using namespace llvm;

namespace memlens {

namespace {

constexpr unsigned ExpansionBudget = 6; // in the units of LLVM's cost model
constexpr unsigned MostCopied = 200;    // instructions of a loop that gets a second copy
constexpr unsigned MostOfNest = 400;    // and of one with others inside
constexpr size_t MostBlocks = 8192;     // of a function whose loops are copied: each time its dominators are computed anew
constexpr uint64_t NearWindow = 1024;   // accesses before a window in which the copy for windows runs
constexpr uint64_t ShortLoop = 4096;    // accesses of a loop that need not run in parts
constexpr unsigned DeepestAddress = 4;  // steps of an address that are computed again out of line

/// One access as a trace has it: a copy is two.
struct Access {
  unsigned Site;    ///< number among the sites
  unsigned Operand; ///< of the instruction: its address
  AddressClass Is;
  bool IsStore, IsWritten;
};

/// Accesses that are told together.
struct Segment {
  unsigned Form = ML_TRACE_WORDS;
  std::vector<unsigned> Recorded; ///< numbers of accesses
  std::vector<Instruction *> By;  ///< what makes them; in a copy of the code not what the site says
  unsigned Implied = 0;
  unsigned First = 0; ///< number of its first site in the function
  Instruction *Before = nullptr; ///< where the code goes; null until the segment has ended
  Instruction *After = nullptr;  ///< or: behind this one

  unsigned executed() const { return Recorded.size() + Implied; }
  BasicBlock *block() const { return (Before ? Before : After)->getParent(); }
};

unsigned formOf(const Site &S) {
  if (S.Flags & ML_SITE_GATHER)
    return ML_TRACE_LANES;
  return S.hasOwnBytes() ? ML_TRACE_SIZED : ML_TRACE_WORDS;
}

} // namespace

class FunctionTracer::Implementation {
public:
  Implementation(Function &F, FunctionAnalysisManager &FAM, const Options &O, const Versions &V, const std::vector<Site> &Sites)
      : F(F), FAM(FAM), O(O), V(V), Sites(Sites), I64(Type::getInt64Ty(F.getContext())) {
    classify();
  }

  void write(GlobalVariable *Descriptor, Table &Result);
  unsigned Recorded = 0; ///< sites of the trace

private:
  Function &F;
  FunctionAnalysisManager &FAM;
  const Options &O;
  const Versions &V;
  const std::vector<Site> &Sites;
  Type *I64;
  std::vector<Access> Accesses;
  std::vector<Segment> Segments;
  DenseMap<const Instruction *, std::vector<unsigned>> Of; // instruction → its accesses
  DominatorTree *DT = nullptr;
  LoopInfo *LI = nullptr;
  ScalarEvolution *SE = nullptr;
  std::vector<AllocaInst *> Held;            // `left` in loops
  DenseMap<const Loop *, AllocaInst *> HeldIn; // outermost loop → its variable
  std::vector<std::pair<CallInst *, AllocaInst *>> AtCalls; // in loops that hold it
  DenseMap<const Instruction *, Instruction *> TwinOf; // in copies that are told too → the one that has sites
  DenseSet<const BasicBlock *> Near; // blocks of loops of which others have the usual executions
  std::vector<LoadInst *> Choices;   // of what is left, by such loops
  DenseSet<const Segment *> InWindows; // of copies that run in windows, and shortly before them
  GlobalVariable *Thread = nullptr, *Descriptor = nullptr;
  DenseMap<uint64_t, GlobalVariable *> Constants;

  bool mayTrace(const Instruction &I) const;
  uint64_t bytesOfOne(const Access &A) const;
  void classify();
  void cut();
  void takeAnalyses();

  Value *member(IRBuilder<> &B, unsigned Number) {
    return B.CreateConstInBoundsGEP1_64(B.getInt8Ty(), Thread, 8 * Number);
  }
  LoadInst *load(IRBuilder<> &B, Type *T, Value *From) {
    LoadInst *L = B.CreateAlignedLoad(T, From, Align(8));
    markOurs(*L);
    return L;
  }
  void store(IRBuilder<> &B, Value *What, Value *To) { markOurs(*B.CreateAlignedStore(What, To, Align(8))); }

  bool isClosed(const Loop *L, std::vector<CallInst *> *Calls = nullptr) const;
  void holdInRegister(Loop *L, const std::vector<CallInst *> &Calls);
  AllocaInst *heldAt(const BasicBlock *BB) const;
  bool mayCopy(const Loop *L, unsigned Most) const;
  const SCEV *timesOf(Loop *L, unsigned &Each);
  void copyNests();
  void fillChoices();
  bool passAtOnce(Loop *L);
  void askOnceARound(Loop *L, const BranchProbabilityInfo &Likely);
  void writeSegment(const Segment &S);
  void writeForProcessor(const Segment &S);
  struct Room {
    BasicBlock *Write; ///< where `Words` are to be written
    BasicBlock *Done;  ///< behind it
    Value *Words;
  };
  Room askForRoom(IRBuilder<> &B, Value *Left, Value *Header, Value *Count, BasicBlock *Before);
  static Instruction *beforeCondition(Instruction *End);
  Value *outOfLine(IRBuilder<> &B, uint64_t Number);
  Value *again(IRBuilder<> &B, Value *Address, unsigned Depth);
  void writeWords(IRBuilder<> &B, const Segment &S, Value *Words);
  Value *lanes(IRBuilder<> &B, const Access &A, Value *&Mask);
};

void FunctionTracer::Implementation::takeAnalyses() {
  FAM.invalidate(F, PreservedAnalyses::none());
  DT = &FAM.getResult<DominatorTreeAnalysis>(F);
  LI = &FAM.getResult<LoopAnalysis>(F);
  SE = &FAM.getResult<ScalarEvolutionAnalysis>(F);
}

// ---- what there is -----------------------------------------------------------------------------------------------

void FunctionTracer::Implementation::classify() {
  takeAnalyses();
  Classifier Classes(F, *LI, *SE);
  for (unsigned I = 0; I < Sites.size(); ++I) {
    const Site &S = Sites[I];
    const bool Reads = S.ReadOperand >= 0, Writes = S.WrittenOperand >= 0;
    auto Add = [&](int Operand, bool IsStore, bool IsWritten) {
      AddressClass Is = Classes.of(*S.At, Operand);
      if (Is.Class == ML_TRACE_CONSTANT && formOf(S) != ML_TRACE_WORDS)
        Is.Class = ML_TRACE_STRIDED; // how much it moves is not constant
      Of[S.At].push_back(Accesses.size());
      Accesses.push_back({I, unsigned(Operand), Is, IsStore, IsWritten});
    };
    if (S.Kind == ML_SITE_COPY) {
      Add(S.ReadOperand, false, false);
      Add(S.WrittenOperand, true, true);
    } else if (Reads) {
      Add(S.ReadOperand, false, false); // an atomic operation is one access
    } else if (Writes) {
      Add(S.WrittenOperand, true, false);
    }
  }
}

/// A call behind which nothing of before may be told: it may run code that traces too, or not come back. (A function of this module
/// that is known to return is no end of a segment for counting, but it is for a trace.)
bool FunctionTracer::Implementation::mayTrace(const Instruction &I) const {
  const auto *Call = dyn_cast<CallBase>(&I);
  if (!Call)
    return false;
  if (isOpaque(I))
    return true;
  const Instruction *Twin = TwinOf.lookup(&I);
  if (isa<IntrinsicInst>(I) || Call->isInlineAsm() || Of.count(Twin ? Twin : &I)) // Of: copies and fills of the C library
    return false;
  const Function *Callee = Call->getCalledFunction();
  return !Callee || !Callee->isDeclaration() || !Call->doesNotAccessMemory();
}

/// What one word of the trace stands for; 0 = the trace tells.
uint64_t FunctionTracer::Implementation::bytesOfOne(const Access &A) const {
  const Site &S = Sites[A.Site];
  if (formOf(S) != ML_TRACE_LANES)
    return formOf(S) == ML_TRACE_SIZED ? 0 : S.Bytes;
  Type *T = A.IsStore ? nullptr : S.At->getType();
  for (const Value *Operand : S.At->operands())
    if (!T && isa<FixedVectorType>(Operand->getType()) && !Operand->getType()->getScalarType()->isPointerTy())
      T = Operand->getType();
  const auto *Lanes = T ? dyn_cast<FixedVectorType>(T) : nullptr;
  return S.LaneBytes ? S.LaneBytes : Lanes ? S.Bytes / Lanes->getNumElements() : 0;
}

/// Cuts the blocks into segments.
void FunctionTracer::Implementation::cut() {
  Segments.clear();
  for (BasicBlock &BB : F) {
    if (V.isUntouched(&BB) || !DT->isReachableFromEntry(&BB))
      continue;
    Segment Now;
    auto End = [&](Instruction *Before, Instruction *After) {
      if (Now.executed()) {
        Now.Before = Before;
        Now.After = After;
        Segments.push_back(Now);
      }
      Now = Segment();
    };
    for (Instruction &I : BB) {
      if (I.isTerminator() || mayTrace(I))
        End(&I, nullptr);
      const Instruction *Twin = TwinOf.lookup(&I);
      auto Found = Of.find(Twin ? Twin : &I);
      if (Found == Of.end())
        continue;
      for (unsigned Number : Found->second) {
        const Access &A = Accesses[Number];
        const unsigned Form = formOf(Sites[A.Site]);
        if (A.Is.Class == ML_TRACE_CONSTANT) {
          if (Now.Implied == ML_TRACE_IMPLIED_MAX)
            End(nullptr, &I);
          ++Now.Implied;
          continue;
        }
        const unsigned Most = Form == ML_TRACE_LANES ? 0 : Form == ML_TRACE_SIZED ? ML_TRACE_WORDS_MAX / 2 : ML_TRACE_WORDS_MAX;
        if (!Now.Recorded.empty() && (Form != Now.Form || Now.Recorded.size() >= Most))
          End(&I, nullptr); // before it: the words of its own segment follow
        if (Now.Recorded.empty() && Form != ML_TRACE_WORDS && Now.Implied)
          End(&I, nullptr);
        Now.Form = Form;
        Now.Recorded.push_back(Number);
        Now.By.push_back(&I);
      }
      if (isOpaque(I) && !I.isTerminator()) // a copy by a function that may not return: told when it has
        End(nullptr, &I);
    }
  }
}

// ---- loops --------------------------------------------------------------------------------------------------------

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
  if (!L->isInnermost() || !mayCopy(L, MostCopied) || !Latch || !Exit || L->getExitingBlock() != Latch || Exit->isEHPad())
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

// ---- segments -------------------------------------------------------------------------------------------------------

/// What computes the condition of a branch and nothing else moves down to it, so that instruction selection sees them together: else the
/// condition becomes a value that is tested. Returns the first instruction of these, behind which nothing is recorded.
Instruction *FunctionTracer::Implementation::beforeCondition(Instruction *End) {
  auto *Branch = dyn_cast<BranchInst>(End);
  if (!Branch || !Branch->isConditional())
    return End;
  Instruction *First = End;
  SmallVector<Value *, 8> Wanted{Branch->getCondition()};
  while (!Wanted.empty()) {
    auto *I = dyn_cast<Instruction>(Wanted.pop_back_val());
    if (!I || I->getParent() != End->getParent() || !I->hasOneUse() || !I->getType()->isIntegerTy(1) ||
        !(isa<CmpInst>(I) || isa<BinaryOperator>(I) || isa<SelectInst>(I) || isa<FreezeInst>(I)))
      continue;
    I->moveBefore(First);
    First = I;
    if (!isa<CmpInst>(I))
      Wanted.append(I->value_op_begin(), I->value_op_end());
  }
  return First;
}

/// A constant in memory, read where it is used.
Value *FunctionTracer::Implementation::outOfLine(IRBuilder<> &B, uint64_t Number) {
  GlobalVariable *&Place = Constants[Number];
  if (!Place) {
    Place = new GlobalVariable(*F.getParent(), I64, true, GlobalValue::PrivateLinkage, ConstantInt::get(I64, Number), "memlens.header");
    Place->setUnnamedAddr(GlobalValue::UnnamedAddr::Global);
    Place->setAlignment(Align(8));
  }
  LoadInst *Read = load(B, I64, Place);
  Read->setAtomic(AtomicOrdering::Monotonic);
  return Read;
}

/// The address, computed once more out of line: the one of the usual path can then stay part of its instruction.
Value *FunctionTracer::Implementation::again(IRBuilder<> &B, Value *Address, unsigned Depth) {
  auto *I = dyn_cast<Instruction>(Address);
  const bool IsCheap = I && Depth < DeepestAddress &&
                       (isa<GetElementPtrInst>(I) || isa<CastInst>(I) ||
                        (isa<BinaryOperator>(I) && isa<Constant>(I->getOperand(1)) && !I->isIntDivRem()));
  if (!IsCheap || I->getType()->isVectorTy())
    return Address;
  Instruction *Mine = I->clone();
  for (Use &U : Mine->operands())
    if (isa<Instruction>(U.get()))
      U.set(again(B, U.get(), Depth + 1));
  Mine->setDebugLoc(DebugLoc());
  B.Insert(Mine);
  return Mine;
}

/// The addresses of a gather or scatter, a vector of 64-bit numbers, and which of them take part (null = all).
Value *FunctionTracer::Implementation::lanes(IRBuilder<> &B, const Access &A, Value *&Mask) {
  const Site &S = Sites[A.Site];
  Value *Where = S.At->getOperand(A.Operand);
  Mask = S.Mask;
  if (auto *V = dyn_cast<VectorType>(Where->getType()))
    return B.CreatePtrToInt(Where, VectorType::get(I64, V->getElementCount()));
  // Of one machine: a base, a vector of indices and, as the last operand, a scale.
  const auto *Call = cast<CallBase>(S.At);
  Value *Index = Call->getArgOperand(A.Operand == 0 ? 2 : A.Operand + 1);
  if (!isa<FixedVectorType>(Index->getType()))
    Index = Call->getArgOperand(2);
  auto *V = dyn_cast<FixedVectorType>(Index->getType());
  auto *Scale = dyn_cast<ConstantInt>(Call->getArgOperand(Call->arg_size() - 1));
  if (!V || !Scale)
    return nullptr;
  auto *Wide = FixedVectorType::get(I64, V->getNumElements());
  Value *Far = B.CreateMul(B.CreateSExt(Index, Wide), ConstantInt::get(Wide, Scale->getZExtValue()));
  return B.CreateAdd(Far, B.CreateVectorSplat(V->getNumElements(), B.CreatePtrToInt(Where, I64)));
}

void FunctionTracer::Implementation::writeWords(IRBuilder<> &B, const Segment &S, Value *Words) {
  unsigned At = 1;
  for (unsigned I = 0; I < S.Recorded.size(); ++I) {
    const Access &A = Accesses[S.Recorded[I]];
    Value *Address = again(B, S.By[I]->getOperand(A.Operand), 0);
    store(B, B.CreatePtrToInt(Address, I64), B.CreateConstGEP1_64(I64, Words, At++));
    if (S.Form == ML_TRACE_SIZED)
      store(B, bytesOf(B, Sites[A.Site]), B.CreateConstGEP1_64(I64, Words, At++));
  }
}

/// Code that finds room for a header and `Count` words, from where `B` stands; `B` then stands where they are written. The block has no
/// terminator.
FunctionTracer::Implementation::Room FunctionTracer::Implementation::askForRoom(IRBuilder<> &B, Value *Left, Value *Header,
                                                                                Value *Count, BasicBlock *Before) {
  Module &M = *F.getParent();
  LLVMContext &C = F.getContext();
  Type *Pointer = PointerType::get(C, 0);
  BasicBlock *Here = B.GetInsertBlock();
  Value *Cursor = load(B, Pointer, member(B, 1)), *Limit = load(B, Pointer, member(B, 2));
  Value *Ahead = B.CreateAdd(Count, ConstantInt::get(I64, 1));
  // Inside a window nothing is left, but for a loop that held it in a register while a signal handler opened one: the runtime is to know.
  Value *IsFull = B.CreateOr(B.CreateICmpUGT(B.CreateGEP(I64, Cursor, Ahead), Limit), B.CreateIsNotNull(Left));
  BasicBlock *Ask = BasicBlock::Create(C, "memlens.ask", &F, Before), *Write = BasicBlock::Create(C, "memlens.write", &F, Before),
             *Done = BasicBlock::Create(C, "memlens.done", &F, Before);
  if (Loop *L = LI->getLoopFor(Here))
    for (BasicBlock *BB : {Ask, Write, Done})
      L->addBasicBlockToLoop(BB, *LI);
  B.CreateCondBr(IsFull, Ask, Write);
  B.SetInsertPoint(Ask);
  const Triple T(M.getTargetTriple());
  const bool HasNear = T.getArch() == Triple::x86_64 || T.isAArch64();
  const CallingConv::ID Convention = HasNear ? CallingConv::PreserveMost : CallingConv::C;
  FunctionCallee Callee = M.getOrInsertFunction(HasNear ? "__memlens_trace_room_near" : "__memlens_trace_room", Pointer, I64, I64);
  auto *Function = cast<llvm::Function>(Callee.getCallee());
  Function->setCallingConv(Convention);
  Function->setDoesNotThrow();
  Function->addFnAttr(Attribute::WillReturn);
  if (HasNear)
    Function->setVisibility(GlobalValue::HiddenVisibility); // no register of the loop is kept for its address
  CallInst *Found = B.CreateCall(Callee, {Left, Header});
  Found->setCallingConv(Convention);
  B.CreateCondBr(B.CreateIsNull(Found), Done, Write);
  B.SetInsertPoint(Write);
  PHINode *Words = B.CreatePHI(Pointer, 2);
  Words->addIncoming(Cursor, Here);
  Words->addIncoming(Found, Ask);
  store(B, B.CreateGEP(I64, Words, Ahead), member(B, 1)); // first: a signal handler that records too writes behind
  store(B, Header, Words);
  return {Write, Done, Words};
}

void FunctionTracer::Implementation::writeSegment(const Segment &S) {
  LLVMContext &C = F.getContext();
  Instruction *Place = S.Before ? beforeCondition(S.Before) : S.After->getNextNode();
  IRBuilder<> B(Place);
  B.SetCurrentDebugLocation(DebugLoc());
  uint64_t Stores = 0;
  for (unsigned I = 0; I < S.Recorded.size(); ++I)
    Stores |= uint64_t(Accesses[S.Recorded[I]].IsStore) << I;
  uint64_t Bits = uint64_t(S.First) | uint64_t(S.Implied) << ML_TRACE_IMPLIED_SHIFT | uint64_t(S.Form) << ML_TRACE_FORM_SHIFT |
                  Stores << ML_TRACE_STORES_SHIFT;
  // How many words, and how many accesses.
  Value *Executed, *Count;
  Value *Lanes = nullptr, *Mask = nullptr;
  unsigned LaneCount = 0;
  if (S.Form == ML_TRACE_LANES) {
    Lanes = lanes(B, Accesses[S.Recorded[0]], Mask);
    if (!Lanes || !isa<FixedVectorType>(Lanes->getType()))
      return; // scalable: not told
    LaneCount = cast<FixedVectorType>(Lanes->getType())->getNumElements();
    if (Mask) {
      const Site &Gather = Sites[Accesses[S.Recorded[0]].Site];
      Count = B.CreateUDiv(bytesOf(B, Gather), ConstantInt::get(I64, Gather.LaneBytes));
    } else {
      Count = ConstantInt::get(I64, LaneCount);
    }
    Executed = Count;
  } else {
    Count = ConstantInt::get(I64, S.Form == ML_TRACE_SIZED ? 2 * S.Recorded.size() : S.Recorded.size());
    Executed = ConstantInt::get(I64, S.executed());
  }

  AllocaInst *Register = heldAt(Place->getParent());
  Value *Left = Register ? static_cast<Value *>(B.CreateLoad(I64, Register)) : load(B, I64, Thread);
  Value *Difference = B.CreateBinaryIntrinsic(Intrinsic::usub_with_overflow, Left, Executed);
  Value *Rest = B.CreateExtractValue(Difference, 0);
  if (Register)
    B.CreateStore(Rest, Register);
  else
    store(B, Rest, Thread);
  Value *IsTime = B.CreateExtractValue(Difference, 1);
  MDNode *Seldom = InWindows.contains(&S) ? MDBuilder(C).createBranchWeights(1 << 10, 1) : MDBuilder(C).createBranchWeights(1, 1 << 20);
  Instruction *End = SplitBlockAndInsertIfThen(IsTime, Place, false, Seldom);
  BasicBlock *Out = End->getParent(), *Join = cast<BranchInst>(End)->getSuccessor(0);
  if (Loop *L = LI->getLoopFor(Out->getSinglePredecessor())) {
    L->addBasicBlockToLoop(Out, *LI);
    if (!LI->getLoopFor(Join))
      L->addBasicBlockToLoop(Join, *LI);
  }

  B.SetInsertPoint(End);
  B.SetCurrentDebugLocation(DebugLoc());
  // Computed again, so that no register keeps it; from memory, so that the usual path is one instruction there.
  Value *Before = B.CreateAdd(Register ? Rest : load(B, I64, Thread), Executed);
  if (!Register)
    store(B, Before, Thread);
  // Of constants that do not fit an instruction only the address is known here: registers of the loop would be kept for them otherwise.
  Value *Header = firstSite(B, Descriptor);
  if (auto *Known = dyn_cast<ConstantInt>(Count))
    Header = B.CreateAdd(Header, outOfLine(B, Bits | Known->getZExtValue() << ML_TRACE_WORDS_SHIFT));
  else
    Header = B.CreateAdd(B.CreateAdd(Header, outOfLine(B, Bits)), B.CreateShl(Count, ML_TRACE_WORDS_SHIFT));
  End->eraseFromParent();
  B.SetInsertPoint(Out);
  auto [Write, Done, Words] = askForRoom(B, Before, Header, Count, Join);
  if (S.Form == ML_TRACE_LANES) {
    // Lanes that take no part leave no word: the next one is written over theirs, the last behind the end, which is ours too.
    Value *At = ConstantInt::get(I64, 1);
    Value *Takes = nullptr;
    if (Mask) {
      Takes = Mask;
      if (const unsigned Width = Mask->getType()->getScalarSizeInBits(); Width > 1) {
        Takes = B.CreateBitCast(Takes, FixedVectorType::get(B.getIntNTy(Width), LaneCount));
        Takes = B.CreateICmpSLT(Takes, Constant::getNullValue(Takes->getType()));
      }
    }
    for (unsigned Lane = 0; Lane < LaneCount; ++Lane) {
      store(B, B.CreateExtractElement(Lanes, Lane), B.CreateGEP(I64, Words, At));
      Value *Step = Takes ? B.CreateZExt(B.CreateExtractElement(Takes, Lane), I64) : ConstantInt::get(I64, 1);
      At = B.CreateAdd(At, Step);
    }
  } else {
    writeWords(B, S, Words);
  }
  B.CreateBr(Done);
  B.SetInsertPoint(Done);
  if (Register)
    B.CreateStore(load(B, I64, Thread), Register);
  B.CreateBr(Join);
}

/// The processor itself takes the addresses down (ptwrite), if the runtime has found that it can and somebody asks for it: elsewhere the
/// instruction does not exist.
void FunctionTracer::Implementation::writeForProcessor(const Segment &S) {
  if (S.Recorded.empty() || S.Form == ML_TRACE_LANES)
    return;
  Module &M = *F.getParent();
  LLVMContext &C = F.getContext();
  Instruction *Place = S.Before ? S.Before : S.After->getNextNode();
  IRBuilder<> B(Place);
  B.SetCurrentDebugLocation(DebugLoc());
  Constant *Enabled = M.getOrInsertGlobal("__memlens_trace_ptwrite", B.getInt8Ty());
  LoadInst *IsEnabled = B.CreateAlignedLoad(B.getInt8Ty(), Enabled, Align(1));
  markOurs(*IsEnabled);
  MDNode *Seldom = MDBuilder(C).createBranchWeights(1, 1 << 20);
  B.SetInsertPoint(SplitBlockAndInsertIfThen(B.CreateIsNotNull(IsEnabled), Place, false, Seldom));
  // In bytes: not every assembler knows it. F3 REX.W 0F AE /4 with rax.
  InlineAsm *Instruction = InlineAsm::get(FunctionType::get(B.getVoidTy(), {I64}, false), ".byte 0xf3, 0x48, 0x0f, 0xae, 0xe0",
                                          "{rax},~{dirflag},~{fpsr},~{flags}", true);
  for (unsigned Number : S.Recorded) {
    const Access &A = Accesses[Number];
    B.SetCurrentDebugLocation(DebugLoc());
    Value *Address = B.CreatePtrToInt(again(B, Sites[A.Site].At->getOperand(A.Operand), 0), I64);
    B.CreateCall(Instruction, {Address})->setDebugLoc(Sites[A.Site].At->getDebugLoc()); // the trace names it by its place in the code
  }
}

void FunctionTracer::Implementation::write(GlobalVariable *TheDescriptor, Table &Result) {
  Descriptor = TheDescriptor;
  Thread = threadVariable(*F.getParent(), "__memlens_trace", StructType::get(F.getContext(), {I64, I64, I64}));
  takeAnalyses();
  for (Loop *L : LI->getLoopsInPreorder())
    if (std::vector<CallInst *> Calls; !V.isUntouched(L->getHeader()) && isClosed(L, &Calls)) {
      // A block of its own before it: what is told of the code before the loop is told before the loop's own code begins.
      if (BasicBlock *Before = L->getLoopPreheader())
        SplitBlock(Before, Before->getTerminator(), DT, LI);
      else
        InsertPreheaderForLoop(L, DT, LI, nullptr, false);
      formDedicatedExitBlocks(L, DT, LI, nullptr, false);
    }
  takeAnalyses();
  cut();
  std::vector<unsigned> Order; // of the recorded sites
  DenseMap<unsigned, unsigned> FirstOf; // number of a segment's first access → of its first site
  for (const Segment &S : Segments) {
    if (!S.Recorded.empty())
      FirstOf[S.Recorded.front()] = Order.size();
    Order.insert(Order.end(), S.Recorded.begin(), S.Recorded.end());
  }
  if (Order.size() >= ML_TRACE_FIRST_SITE) { // numbers of functions that are not registered yet
    F.getContext().diagnose(DiagnosticInfoUnsupported(
        F, "memlens: function '" + F.getName() + "' has " + Twine(Order.size()) + " addresses and can have " +
               Twine(ML_TRACE_FIRST_SITE - 1) + ": it is not traced", DiagnosticLocation(), DS_Warning));
    return;
  }
  const bool IsHuge = F.size() > MostBlocks;
  if (O.Nests && O.Keep && !O.Ptwrite && !IsHuge) {
    copyNests();
    if (!Near.empty())
      cut();
  }
  for (Segment &S : Segments) {
    S.First = S.Recorded.empty() ? 0 : FirstOf.lookup(S.Recorded.front());
    if (Near.contains(S.block()))
      InWindows.insert(&S);
  }
  auto Needs = [&](const Loop *L) { return any_of(Segments, [&](const Segment &S) { return L->contains(S.block()); }); };
  std::vector<Loop *> Loops;
  for (Loop *L : LI->getLoopsInPreorder())
    if (!V.isUntouched(L->getHeader()) && Needs(L))
      Loops.push_back(L);
  // Outermost loops first: what is inside them uses their register.
  if (O.Keep && !O.Ptwrite)
    for (Loop *L : Loops) {
      std::vector<CallInst *> Calls;
      if (!heldAt(L->getHeader()) && isClosed(L, &Calls))
        holdInRegister(L, Calls);
    }
  if (!O.Ptwrite) {
    const auto &Likely = FAM.getResult<BranchProbabilityAnalysis>(F);
    for (Loop *L : Loops)
      if (!(O.Trips && passAtOnce(L)) && O.Rounds && !IsHuge)
        askOnceARound(L, Likely);
  }
  fillChoices();
  for (const Segment &S : Segments) {
    if (O.Ptwrite)
      writeForProcessor(S);
    else
      writeSegment(S);
  }
  for (auto [Call, Left] : AtCalls) { // last: what is told before the call stands before it
    IRBuilder<> B(Call);
    B.SetCurrentDebugLocation(DebugLoc());
    store(B, B.CreateLoad(I64, Left), Thread);
    B.SetInsertPoint(Call->getNextNode());
    B.SetCurrentDebugLocation(DebugLoc());
    B.CreateStore(load(B, I64, Thread), Left);
  }
  if (!Held.empty()) {
    DT->recalculate(F);
    PromoteMemToReg(Held, *DT);
  }
  Recorded = Order.size();
  for (unsigned Number : Order) {
    const Access &A = Accesses[Number];
    Result.Traced.push_back({A.Site, A.Is.Class, A.Is.Kind, A.Is.Step, A.IsWritten, bytesOfOne(A)});
  }
  for (const Access &A : Accesses)
    if (A.Is.Class == ML_TRACE_CONSTANT)
      Result.Traced.push_back({A.Site, A.Is.Class, A.Is.Kind, A.Is.Step, A.IsWritten, bytesOfOne(A)});
}

FunctionTracer::FunctionTracer(Function &F, FunctionAnalysisManager &FAM, const Options &O, const Versions &V,
                               const std::vector<Site> &Sites)
    : I(std::make_unique<Implementation>(F, FAM, O, V, Sites)) {}
FunctionTracer::~FunctionTracer() = default;
void FunctionTracer::write(GlobalVariable *Descriptor, Table &Result) { I->write(Descriptor, Result); }
unsigned FunctionTracer::recordedSites() const { return I->Recorded; }

} // namespace memlens
