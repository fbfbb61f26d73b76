#include "function_tracer.h"
#include "llvm_versions.h"
#include "memlens_count.h"

#include "llvm/Analysis/ValueTracking.h"
#include "llvm/IR/DiagnosticInfo.h"
#include "llvm/IR/InlineAsm.h"
#include "llvm/IR/IntrinsicInst.h"
#include "llvm/IR/MDBuilder.h"
#include "llvm/IR/Module.h"
#include "llvm/TargetParser/Triple.h"
#include "llvm/Transforms/Utils/BasicBlockUtils.h"
#include "llvm/Transforms/Utils/LoopSimplify.h"
#include "llvm/Transforms/Utils/LoopUtils.h"
#include "llvm/Transforms/Utils/PromoteMemToReg.h"

using namespace llvm;

namespace memlens {

namespace {

// of a function whose loops are copied: each time its dominators are computed anew
constexpr size_t MostBlocks = 8192;
constexpr unsigned DeepestAddress = 4; // steps of an address that are computed again out of line

unsigned formOf(const Site &S) {
  if (S.Flags & ML_SITE_GATHER)
    return ML_TRACE_LANES;
  return S.hasOwnBytes() ? ML_TRACE_SIZED : ML_TRACE_WORDS;
}

} // namespace

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
      if (Writes) // where a call puts its arguments is not told
        Add(S.WrittenOperand, true, true);
    } else if (Reads) {
      Add(S.ReadOperand, false, false); // an atomic operation is one access
    } else if (Writes) {
      Add(S.WrittenOperand, true, false);
    }
  }
}

bool FunctionTracer::Implementation::isPassed(const std::vector<unsigned> &Numbers) const {
  return all_of(Numbers, [&](unsigned Number) { return Sites[Accesses[Number].Site].OfArgument; });
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
  if (isa<IntrinsicInst>(I) || Call->isInlineAsm())
    return false;
  // copies and fills of the C library
  if (auto Found = Of.find(Twin ? Twin : &I); Found != Of.end() && !isPassed(Found->second))
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

/// A constant that other threads may write: a global variable. It is recorded, so that threads that share its line can be seen.
bool FunctionTracer::Implementation::isShared(const Access &A) const {
  const auto *Variable = dyn_cast<GlobalVariable>(getUnderlyingObject(Sites[A.Site].At->getOperand(A.Operand), 0));
  return Variable && !Variable->isThreadLocal() && !Variable->isConstant();
}

/// Constants are known to have run by an access of their segment that is recorded (MemGaze, section III-B: a proxy). A segment that has none, or only
/// stores, which a trace may leave out, records one of its constants, a load if there is one.
void FunctionTracer::Implementation::chooseStandIn(Segment &S) const {
  if (S.Constants.empty())
    return;
  auto IsLoad = [&](unsigned Number) { return !Accesses[Number].IsStore; };
  auto Chosen = find_if(S.Constants, [&](const auto &C) { return IsLoad(C.first); });
  const bool HasLoad = Chosen != S.Constants.end();
  if (Chosen == S.Constants.end())
    Chosen = S.Constants.begin();
  if ((S.Recorded.empty() || (HasLoad && none_of(S.Recorded, IsLoad))) && S.Recorded.size() < ML_TRACE_WORDS_MAX) {
    S.Recorded.push_back(Chosen->first);
    S.By.push_back(Chosen->second);
    S.Constants.erase(Chosen);
  }
  S.Implied = S.Constants.size();
}

/// The access that stands for the constants of a segment: its last recorded load, else its last store.
unsigned FunctionTracer::Implementation::standInOf(const Segment &S) const {
  for (unsigned Number : reverse(S.Recorded))
    if (!Accesses[Number].IsStore)
      return Number;
  return S.Recorded.back();
}

/// Cuts the blocks into segments.
void FunctionTracer::Implementation::cut() {
  Segments.clear();
  for (BasicBlock &BB : F) {
    if (V.isUntouched(&BB) || !DT->isReachableFromEntry(&BB))
      continue;
    Segment Now;
    auto End = [&](Instruction *Before, Instruction *After) {
      chooseStandIn(Now);
      if (Now.executed()) {
        Now.Before = Before;
        Now.After = After;
        Segments.push_back(Now);
      }
      Now = Segment();
    };
    for (Instruction &I : BB) {
      const Instruction *Twin = TwinOf.lookup(&I);
      auto Found = Of.find(Twin ? Twin : &I);
      const bool Ends = I.isTerminator() || mayTrace(I), Passes = Found != Of.end() && isPassed(Found->second);
      if (Ends && !Passes)
        End(&I, nullptr);
      if (Found == Of.end())
        continue;
      for (unsigned Number : Found->second) {
        const Access &A = Accesses[Number];
        const unsigned Form = formOf(Sites[A.Site]);
        if (A.Is.Class == ML_TRACE_CONSTANT) {
          if (!Now.Recorded.empty() && Now.Form != ML_TRACE_WORDS)
            End(&I, nullptr); // an address alone is no word of such a segment
          if (!isShared(A)) {
            if (Now.Constants.size() == ML_TRACE_IMPLIED_MAX)
              End(&I, nullptr);
            Now.Constants.emplace_back(Number, &I);
            continue;
          }
        }
        const unsigned Most = Form == ML_TRACE_LANES   ? 0
                              : Form == ML_TRACE_SIZED ? ML_TRACE_WORDS_MAX / 2
                                                       : ML_TRACE_WORDS_MAX;
        if (!Now.Recorded.empty() && (Form != Now.Form || Now.Recorded.size() >= Most))
          End(&I, nullptr); // before it: the words of its own segment follow
        if (Now.Recorded.empty() && Form != ML_TRACE_WORDS && !Now.Constants.empty())
          End(&I, nullptr);
        Now.Form = Form;
        Now.Recorded.push_back(Number);
        Now.By.push_back(&I);
      }
      if (Passes) { // arguments are copied before the call
        End(&I, nullptr);
        continue;
      }
      if (isOpaque(I) && !I.isTerminator()) // a copy by a function that may not return: told when it has
        End(nullptr, &I);
    }
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
    Place = new GlobalVariable(*F.getParent(), I64, true, GlobalValue::PrivateLinkage, ConstantInt::get(I64, Number),
                               "memlens.header");
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
FunctionTracer::Implementation::Room FunctionTracer::Implementation::askForRoom(IRBuilder<> &B, Value *Left,
                                                                                Value *Header, Value *Count,
                                                                                BasicBlock *Before) {
  Module &M = *F.getParent();
  LLVMContext &C = F.getContext();
  Type *Pointer = PointerType::get(C, 0);
  BasicBlock *Here = B.GetInsertBlock();
  Value *Cursor = load(B, Pointer, member(B, 1)), *Limit = load(B, Pointer, member(B, 2));
  Value *Ahead = B.CreateAdd(Count, ConstantInt::get(I64, 1));
  // Inside a window nothing is left, but for a loop that held it in a register while a signal handler opened one: the runtime is to know.
  Value *IsFull = B.CreateOr(B.CreateICmpUGT(B.CreateGEP(I64, Cursor, Ahead), Limit), B.CreateIsNotNull(Left));
  BasicBlock *Ask = BasicBlock::Create(C, "memlens.ask", &F, Before),
             *Write = BasicBlock::Create(C, "memlens.write", &F, Before),
             *Done = BasicBlock::Create(C, "memlens.done", &F, Before);
  if (Loop *L = LI->getLoopFor(Here))
    for (BasicBlock *BB : {Ask, Write, Done})
      L->addBasicBlockToLoop(BB, *LI);
  B.CreateCondBr(IsFull, Ask, Write);
  B.SetInsertPoint(Ask);
  const Triple T(M.getTargetTriple());
  const bool HasNear = T.getArch() == Triple::x86_64 || T.isAArch64();
  const CallingConv::ID Convention = HasNear ? CallingConv::PreserveMost : CallingConv::C;
  FunctionCallee Callee =
      M.getOrInsertFunction(HasNear ? "__memlens_trace_room_near" : "__memlens_trace_room", Pointer, I64, I64);
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
  uint64_t Bits = uint64_t(S.First) | uint64_t(S.Implied) << ML_TRACE_IMPLIED_SHIFT |
                  uint64_t(S.Form) << ML_TRACE_FORM_SHIFT | Stores << ML_TRACE_STORES_SHIFT;
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
  MDNode *Seldom = InWindows.contains(&S) ? MDBuilder(C).createBranchWeights(1 << 10, 1)
                                          : MDBuilder(C).createBranchWeights(1, 1 << 20);
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
  if (S.Form == ML_TRACE_LANES ||
      all_of(S.Recorded, [&](unsigned Number) { return Accesses[Number].Is.Class == ML_TRACE_CONSTANT; }))
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
  InlineAsm *Instruction =
      InlineAsm::get(FunctionType::get(B.getVoidTy(), {I64}, false), ".byte 0xf3, 0x48, 0x0f, 0xae, 0xe0",
                     "{rax},~{dirflag},~{fpsr},~{flags}", true);
  for (unsigned Number : S.Recorded) {
    const Access &A = Accesses[Number];
    if (A.Is.Class == ML_TRACE_CONSTANT)
      continue;
    B.SetCurrentDebugLocation(DebugLoc());
    Value *Address = B.CreatePtrToInt(again(B, Sites[A.Site].At->getOperand(A.Operand), 0), I64);
    // the trace names it by its place in the code
    B.CreateCall(Instruction, {Address})->setDebugLoc(Sites[A.Site].At->getDebugLoc());
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
  std::vector<unsigned> Order;          // of the recorded sites
  DenseMap<unsigned, unsigned> FirstOf; // number of a segment's first access → of its first site
  for (const Segment &S : Segments) {
    if (!S.Recorded.empty())
      FirstOf[S.Recorded.front()] = Order.size();
    Order.insert(Order.end(), S.Recorded.begin(), S.Recorded.end());
  }
  DenseMap<unsigned, unsigned> PlaceOf; // number of a recorded access → its place in the table, from 1
  for (unsigned I = 0; I < Order.size(); ++I)
    PlaceOf[Order[I]] = I + 1;
  DenseMap<unsigned, unsigned> StandInOf; // number of a constant → place of the access that stands for it
  for (const Segment &S : Segments)
    for (const auto &[Number, By] : S.Constants)
      StandInOf[Number] = PlaceOf.lookup(standInOf(S));
  if (Order.size() >= ML_TRACE_FIRST_SITE) { // numbers of functions that are not registered yet
    F.getContext().diagnose(DiagnosticInfoUnsupported(F,
                                                      "memlens: function '" + F.getName() + "' has " +
                                                          Twine(Order.size()) + " addresses and can have " +
                                                          Twine(ML_TRACE_FIRST_SITE - 1) + ": it is not traced",
                                                      DiagnosticLocation(), DS_Warning));
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
  auto Needs = [&](const Loop *L) {
    return any_of(Segments, [&](const Segment &S) { return L->contains(S.block()); });
  };
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
    Result.Traced.push_back({A.Site, A.Is.Class, A.Is.Kind, A.Is.Step, A.IsWritten, bytesOfOne(A), 0});
  }
  for (unsigned Number = 0; Number < Accesses.size(); ++Number)
    if (const Access &A = Accesses[Number]; A.Is.Class == ML_TRACE_CONSTANT && !PlaceOf.lookup(Number))
      Result.Traced.push_back(
          {A.Site, A.Is.Class, A.Is.Kind, A.Is.Step, A.IsWritten, bytesOfOne(A), StandInOf.lookup(Number)});
}

FunctionTracer::FunctionTracer(Function &F, FunctionAnalysisManager &FAM, const Options &O, const Versions &V,
                               const std::vector<Site> &Sites)
    : I(std::make_unique<Implementation>(F, FAM, O, V, Sites)) {}
FunctionTracer::~FunctionTracer() = default;
void FunctionTracer::write(GlobalVariable *Descriptor, Table &Result) { I->write(Descriptor, Result); }
unsigned FunctionTracer::recordedSites() const { return I->Recorded; }

} // namespace memlens
