#include "sites.h"

#include "by_value.h"
#include "callees.h"
#include "lane_accesses.h"
#include "library_calls.h"
#include "memlens_count.h"
#include "selection.h"

#include "llvm/Analysis/ValueTracking.h"
#include "llvm/IR/DataLayout.h"
#include "llvm/IR/InlineAsm.h"
#include "llvm/IR/Instructions.h"
#include "llvm/IR/IntrinsicInst.h"
#include "llvm/IR/Module.h"
#include "llvm/IR/Operator.h"

using namespace llvm;

namespace memlens {

/// In the frame of this function: an alloca or an argument passed there. Anything else is called heap or global,
/// also a pointer that leads to a caller's frame.
static bool isOnStack(const Value *Pointer) {
  const Value *Object = getUnderlyingObject(Pointer, 32);
  if (isa<AllocaInst>(Object))
    return true;
  const auto *A = dyn_cast<Argument>(Object);
  return A && A->hasByValAttr();
}

namespace {

class Finder {
public:
  Finder(Function &F, const TargetLibraryInfo &TLI, const TargetTransformInfo &TTI, ScalarEvolution &SE)
      : F(F), DL(F.getParent()->getDataLayout()), TLI(TLI), TTI(TTI), SE(SE) {}

  std::vector<Site> find() {
    if (const uint64_t Bytes = storedOnEntry(F)) {
      Site &S = add(*F.getEntryBlock().getFirstInsertionPt(), ML_SITE_FILL);
      S.Bytes = Bytes;
      S.Flags = ML_SITE_STACK_WRITTEN;
    }
    for (BasicBlock &BB : F) {
      Loaded.clear();
      for (Instruction &I : BB) {
        if (!isRepeated(I) && !isOfProfile(I))
          visit(I);
        if (I.mayHaveSideEffects())
          Loaded.clear();
      }
    }
    return std::move(Sites);
  }

private:
  Function &F;
  const DataLayout &DL;
  const TargetLibraryInfo &TLI;
  const TargetTransformInfo &TTI;
  ScalarEvolution &SE;
  std::vector<Site> Sites;
  std::vector<LoadInst *> Loaded; // in this block since the last write or call

  /// A counter of clang's own instrumentation (-fprofile-instr-generate, -fprofile-generate, --coverage, -fsanitize-coverage), which is no traffic of the
  /// program.
  static bool isOfProfile(const Instruction &I) {
    const Value *Pointer = getLoadStorePointerOperand(&I);
    if (const auto *RMW = dyn_cast<AtomicRMWInst>(&I))
      Pointer = RMW->getPointerOperand();
    const auto *Variable = Pointer ? dyn_cast<GlobalVariable>(getUnderlyingObject(Pointer, 32)) : nullptr;
    if (!Variable)
      return false;
    for (const char *Prefix :
         {"__profc_", "__profbm_", "__llvm_prf", "__llvm_gcov_ctr", "__llvm_profile_", "__sancov_gen_", "__covrec_"})
      if (Variable->getName().starts_with(Prefix))
        return true;
    return Variable->getSection() == "__llvm_prf_cnts" || Variable->getSection() == "__sancov_cntrs";
  }

  /// A load that instruction selection merges with an earlier one of the same block: it does not run.
  bool isRepeated(Instruction &I) {
    auto *L = dyn_cast<LoadInst>(&I);
    if (!L || !L->isSimple() || F.hasOptNone())
      return false;
    for (LoadInst *Before : Loaded)
      if (Before->getType() == L->getType() && isSame(Before->getPointerOperand(), L->getPointerOperand()))
        return true;
    Loaded.push_back(L);
    return false;
  }

  /// Addresses are equal, however they are computed.
  bool isSame(Value *A, Value *B) { return A == B || SE.getSCEV(A) == SE.getSCEV(B); }

  Site &add(Instruction &I, unsigned Kind) {
    Sites.emplace_back();
    Sites.back().At = &I;
    Sites.back().Kind = Kind;
    if (I.isVolatile())
      Sites.back().Flags |= ML_SITE_VOLATILE;
    if (I.hasMetadata(LLVMContext::MD_nontemporal))
      Sites.back().Flags |= ML_SITE_NONTEMPORAL;
    return Sites.back();
  }

  void typed(Site &S, Type *T, const Value *Pointer, bool Reads, bool Writes, int Operand) {
    S.ReadOperand = Reads ? Operand : -1;
    S.WrittenOperand = Writes ? Operand : -1;
    TypeSize Size = DL.getTypeStoreSize(T);
    S.Bytes = Size.getKnownMinValue();
    S.Scalable = Size.isScalable();
    if (T->isVectorTy())
      S.Flags |= ML_SITE_VECTOR;
    if (T->getScalarType()->isFloatingPointTy())
      S.Flags |= ML_SITE_FLOAT;
    placed(S, Reads ? Pointer : nullptr, Writes ? Pointer : nullptr);
  }

  static void placed(Site &S, const Value *Read, const Value *Written) {
    if (Read && isOnStack(Read))
      S.Flags |= ML_SITE_STACK_READ;
    if (Written && isOnStack(Written))
      S.Flags |= ML_SITE_STACK_WRITTEN;
  }

  /// A copy or fill: the operands of a call are its arguments.
  static void placed(Site &S, const CallBase &Call, int Read, int Written) {
    S.ReadOperand = Read;
    S.WrittenOperand = Written;
    placed(S, Read >= 0 ? Call.getArgOperand(Read) : nullptr, Written >= 0 ? Call.getArgOperand(Written) : nullptr);
  }

  static void sized(Site &S, Value *Size, uint64_t Unit = 1) {
    if (auto *Constant = dyn_cast<ConstantInt>(Size)) {
      S.Bytes = Constant->getZExtValue() * Unit;
    } else {
      S.Size = Size;
      S.Unit = Unit;
    }
  }

  void visit(Instruction &I) {
    if (auto *L = dyn_cast<LoadInst>(&I)) {
      Site &S = add(I, ML_SITE_LOAD);
      typed(S, L->getType(), L->getPointerOperand(), true, false, 0);
      S.Bytes = selectedBytes(I, S.Bytes);
      if (L->isAtomic())
        S.Flags |= ML_SITE_ATOMIC_ORDER;
    } else if (auto *W = dyn_cast<StoreInst>(&I)) {
      Site &S = add(I, ML_SITE_STORE);
      typed(S, W->getValueOperand()->getType(), W->getPointerOperand(), false, true, 1);
      S.Bytes = selectedBytes(I, S.Bytes);
      if (W->isAtomic())
        S.Flags |= ML_SITE_ATOMIC_ORDER;
    } else if (auto *RMW = dyn_cast<AtomicRMWInst>(&I)) {
      typed(add(I, ML_SITE_ATOMIC), RMW->getValOperand()->getType(), RMW->getPointerOperand(), true, true, 0);
    } else if (auto *X = dyn_cast<AtomicCmpXchgInst>(&I)) {
      typed(add(I, ML_SITE_ATOMIC), X->getNewValOperand()->getType(), X->getPointerOperand(), true, true, 0);
    } else if (auto *Call = dyn_cast<CallBase>(&I)) {
      visitCall(*Call);
    } else if (tellsFarCall(I)) {
      add(I, ML_SITE_CALL).Callee = ML_SITE_CALLEE_FAR;
    }
  }

  /// The area of arguments is part of this function's frame.
  void visitByValue(CallBase &Call) {
    for (const PassedByValue &One : passedByValue(Call))
      for (const auto &[Kind, Bytes] :
           {std::pair{ML_SITE_COPY, One.CopiedBytes}, std::pair{ML_SITE_READ, One.LoadedBytes}})
        if (Bytes) {
          Site &S = add(Call, Kind);
          S.Bytes = Bytes;
          S.OfArgument = true;
          S.Flags = Kind == ML_SITE_COPY ? ML_SITE_STACK_WRITTEN : 0;
          S.ReadOperand = One.Operand;
          placed(S, Call.getArgOperand(One.Operand), nullptr);
        }
  }

  /// Both sides of a comparison are read as far as it goes.
  void compares(CallBase &Call, Value *Bytes, uint64_t Constant) {
    for (int Side : {0, 1}) {
      Site &S = add(Call, ML_SITE_READ);
      S.Bytes = Constant;
      S.Size = Bytes;
      S.ReadOperand = Side;
      placed(S, Call.getArgOperand(Side), nullptr);
    }
  }

  void visitCall(CallBase &Call) {
    visitByValue(Call);
    if (auto *M = dyn_cast<AnyMemTransferInst>(&Call)) {
      Site &S = add(Call, ML_SITE_COPY);
      sized(S, M->getLength());
      placed(S, Call, 1, 0);
      return;
    }
    if (auto *M = dyn_cast<AnyMemSetInst>(&Call)) {
      Site &S = add(Call, ML_SITE_FILL);
      sized(S, M->getLength());
      placed(S, Call, -1, 0);
      return;
    }
    if (auto *II = dyn_cast<IntrinsicInst>(&Call)) {
      visitIntrinsic(*II);
      return;
    }
    if (tellsComparison(Call))
      return compares(Call, &Call, 0);
    if (isAssemblyWithMemory(Call)) {
      add(Call, ML_SITE_CALL).Callee = ML_SITE_CALLEE_ASSEMBLY;
      return;
    }
    const Function *Callee = Call.getCalledFunction();
    if (!Callee || !Callee->isDeclaration())
      return;
    if (std::optional<LibraryMove> Move = libraryMove(Call)) {
      Site &S = add(Call, Move->Read >= 0 ? ML_SITE_COPY : ML_SITE_FILL);
      sized(S, Move->Count, Move->Unit);
      placed(S, Call, Move->Read, Move->Written);
      return;
    }
    if (std::optional<uint64_t> Bytes = expandedComparison(Call, TLI, TTI))
      return compares(Call, nullptr, *Bytes);
    if (const Instruction *Next = Call.getNextNode())
      if (const auto *Told = dyn_cast<CallBase>(Next);
          Told && tellsComparison(*Told) && Told->getArgOperand(3) == &Call)
        return; // counted there
    if (Callee->getName().starts_with("__memlens_"))
      return;
    add(Call, ML_SITE_CALL).Callee = Callee->getName().str();
  }

  void masked(IntrinsicInst &II, unsigned Kind, Type *T, unsigned Operand, Value *Mask, bool Gather) {
    auto *V = cast<VectorType>(T);
    Site &S = add(II, Kind);
    typed(S, T, Gather ? nullptr : II.getArgOperand(Operand), Kind == ML_SITE_LOAD, Kind == ML_SITE_STORE, Operand);
    S.Flags |= Gather ? ML_SITE_GATHER : 0;
    if (auto *C = dyn_cast<Constant>(Mask); C && C->isAllOnesValue())
      return;
    S.Flags |= ML_SITE_MASKED;
    S.Mask = Mask;
    S.LaneBytes = DL.getTypeStoreSize(V->getElementType());
  }

  /// Of which a predicate or a length chooses lanes.
  void predicated(IntrinsicInst &II, const LaneAccess &A) {
    Site &S = add(II, A.Writes ? ML_SITE_STORE : ML_SITE_LOAD);
    typed(S, A.T, A.OneAddress ? II.getArgOperand(A.Operand) : nullptr, !A.Writes, A.Writes, A.Operand);
    S.Bytes *= A.Vectors;
    S.LaneBytes = DL.getTypeStoreSize(A.T->getElementType()) * A.Vectors;
    S.Lanes = A.T->getElementCount();
    if (!A.OneAddress && II.getArgOperand(A.Operand)->getType()->isVectorTy())
      S.Flags |= ML_SITE_GATHER;
    S.Mask = A.Mask;
    S.Limit = A.Limit;
    if (auto *C = dyn_cast_or_null<Constant>(S.Mask); C && C->isAllOnesValue())
      S.Mask = nullptr;
    S.Flags |= ML_SITE_MASKED;
  }

  void visitIntrinsic(IntrinsicInst &II) {
    switch (II.getIntrinsicID()) {
    case Intrinsic::masked_load:
      return masked(II, ML_SITE_LOAD, II.getType(), 0, II.getArgOperand(2), false);
    case Intrinsic::masked_store:
      return masked(II, ML_SITE_STORE, II.getArgOperand(0)->getType(), 1, II.getArgOperand(3), false);
    case Intrinsic::masked_gather:
      return masked(II, ML_SITE_LOAD, II.getType(), 0, II.getArgOperand(2), true);
    case Intrinsic::masked_scatter:
      return masked(II, ML_SITE_STORE, II.getArgOperand(0)->getType(), 1, II.getArgOperand(3), true);
    case Intrinsic::masked_expandload:
      return masked(II, ML_SITE_LOAD, II.getType(), 0, II.getArgOperand(1), false);
    case Intrinsic::masked_compressstore:
      return masked(II, ML_SITE_STORE, II.getArgOperand(0)->getType(), 1, II.getArgOperand(2), false);
    case Intrinsic::prefetch:
      add(II, ML_SITE_PREFETCH);
      return;
    default:
      break;
    }
    if (std::optional<LaneAccess> A = laneAccess(II))
      return predicated(II, *A);
    const size_t Before = Sites.size();
    visitMachineIntrinsic(II);
    if (Sites.size() == Before && isUnknownAccess(II))
      add(II, ML_SITE_CALL).Callee = ("(" + II.getCalledFunction()->getName() + ")").str();
  }

  /// Vector accesses that only one machine has (x86 gathers, NEON's structure loads, …).
  void visitMachineIntrinsic(IntrinsicInst &II) {
    StringRef Name = II.getCalledFunction()->getName();
    const bool OfX86 = Name.consume_front("llvm.x86.");
    if (!OfX86 && !Name.consume_front("llvm.aarch64.neon.") && !Name.consume_front("llvm.ppc."))
      return;
    const bool Gather = OfX86 && Name.contains("gather"), Scatter = OfX86 && Name.contains(".scatter");
    const bool MaskedLoad = OfX86 && Name.contains(".maskload."), MaskedStore = OfX86 && Name.contains(".maskstore.");
    const bool Known = Gather || Scatter || MaskedLoad || MaskedStore; // LLVM knows less of their memory than we
    if (!Known && (!II.mayReadOrWriteMemory() || !II.onlyAccessesArgMemory()))
      return;
    const Value *Pointer = nullptr;
    int Operand = -1;
    for (unsigned I = 0; I < II.arg_size(); ++I)
      if (II.getArgOperand(I)->getType()->isPointerTy()) {
        Pointer = II.getArgOperand(I);
        Operand = I;
      }
    if (!Pointer)
      return;
    auto IsVector = [](Type *T) { return isa<FixedVectorType>(T); };
    auto *Several = dyn_cast<StructType>(II.getType());
    const bool Loads =
        IsVector(II.getType()) || (Several && Several->getNumElements() && all_of(Several->elements(), IsVector));
    if (Loads && (Known || II.onlyReadsMemory())) {
      Site &S = add(II, ML_SITE_LOAD);
      typed(S, II.getType(), Gather ? nullptr : Pointer, true, false, Operand);
      S.Flags |= ML_SITE_VECTOR | (Gather ? ML_SITE_GATHER : 0);
      if (MaskedLoad)
        lanes(S, II.getArgOperand(1), II.getType());
      else if (Gather && II.arg_size() == 5)
        lanes(S, II.getArgOperand(3), II.getType());
    } else if (II.getType()->isVoidTy() && (Known || !II.onlyReadsMemory())) {
      uint64_t Bytes = 0;
      const Value *Last = nullptr;
      for (const Value *A : II.args())
        if (IsVector(A->getType())) {
          Bytes += DL.getTypeStoreSize(A->getType()).getKnownMinValue();
          Last = A;
        }
      if (!Last)
        return;
      Site &S = add(II, ML_SITE_STORE);
      typed(S, Last->getType(), Scatter ? nullptr : Pointer, false, true, Operand);
      if (Scatter && II.arg_size() == 5)
        lanes(S, II.getArgOperand(1), Last->getType());
      else if (MaskedStore)
        lanes(S, II.getArgOperand(1), Last->getType());
      else
        S.Bytes = Bytes;
      S.Flags |= Scatter ? ML_SITE_GATHER : 0;
    }
  }

  /// Only the lanes of a mask move: a bit for each, or the sign of each.
  void lanes(Site &S, Value *Mask, Type *T) {
    auto *V = cast<FixedVectorType>(T);
    auto *M = dyn_cast<FixedVectorType>(Mask->getType());
    if (auto *C = dyn_cast<Constant>(Mask);
        !M || M->getNumElements() != V->getNumElements() || (C && C->isAllOnesValue()))
      return;
    S.Flags |= ML_SITE_MASKED;
    S.Mask = Mask;
    S.LaneBytes = DL.getTypeStoreSize(V->getElementType());
  }
};

} // namespace

std::vector<Site> findSites(Function &F, const TargetLibraryInfo &TLI, const TargetTransformInfo &TTI,
                            ScalarEvolution &SE) {
  return Finder(F, TLI, TTI, SE).find();
}

bool returnsTwice(const Instruction &I) {
  const auto *Call = dyn_cast<CallBase>(&I);
  return Call && Call->hasFnAttr(Attribute::ReturnsTwice);
}

bool isOpaque(const Instruction &I) {
  const auto *Call = dyn_cast<CallBase>(&I);
  if (!Call)
    return false;
  if (Call->isInlineAsm())
    return isa<CallBrInst>(Call) || Call->mayThrow();
  if (const auto *II = dyn_cast<IntrinsicInst>(Call)) {
    switch (II->getIntrinsicID()) {
    case Intrinsic::experimental_gc_statepoint:
    case Intrinsic::eh_sjlj_longjmp:
    case Intrinsic::eh_sjlj_setjmp:
      return true;
    default:
      return false;
    }
  }
  if (returnsTwice(I))
    return true;
  return !isReturning(*Call) && (!Call->doesNotThrow() || !Call->hasFnAttr(Attribute::WillReturn));
}

Mix operations(const BasicBlock &BB) {
  Mix M;
  for (const Instruction &I : BB) {
    Type *T = I.getType();
    unsigned Lanes = 1;
    if (const auto *V = dyn_cast<FixedVectorType>(T))
      Lanes = V->getNumElements();
    const bool IsFloat = T->isFPOrFPVectorTy();
    if (const auto *Call = dyn_cast<CallBase>(&I)) {
      const auto *II = dyn_cast<IntrinsicInst>(Call);
      if (!II) {
        M.Calls += !Call->isInlineAsm();
        continue;
      }
      switch (II->getIntrinsicID()) {
      case Intrinsic::prefetch:
        ++M.Prefetches;
        break;
      case Intrinsic::fma:
      case Intrinsic::fmuladd:
        ++(T->isVectorTy() ? M.Vector : M.Float);
        M.FloatResults += 2 * Lanes;
        break;
      case Intrinsic::sqrt:
      case Intrinsic::minnum:
      case Intrinsic::maxnum:
      case Intrinsic::fabs:
        ++(T->isVectorTy() ? M.Vector : M.Float);
        M.FloatResults += Lanes;
        break;
      case Intrinsic::vector_reduce_fadd:
      case Intrinsic::vector_reduce_fmul:
        ++M.Vector;
        if (const auto *V = dyn_cast<FixedVectorType>(II->getArgOperand(1)->getType()))
          M.FloatResults += V->getNumElements();
        break;
      default:
        break;
      }
      continue;
    }
    if (I.isTerminator()) {
      const auto *Branch = dyn_cast<BranchInst>(&I);
      M.Branches += (Branch && Branch->isConditional()) || isa<SwitchInst>(I) || isa<IndirectBrInst>(I);
    } else if (isa<BinaryOperator>(I) || isa<UnaryOperator>(I)) {
      if (T->isVectorTy())
        ++M.Vector;
      else
        ++(IsFloat ? M.Float : M.Integer);
      if (IsFloat)
        M.FloatResults += Lanes;
    } else if (isa<CmpInst>(I)) {
      if (I.getOperand(0)->getType()->isVectorTy())
        ++M.Vector;
      else
        ++(I.getOperand(0)->getType()->isFloatingPointTy() ? M.Float : M.Integer);
    }
  }
  return M;
}

} // namespace memlens
