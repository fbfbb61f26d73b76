#include "address_classes.h"

#include "memlens_trace.h"

#include "llvm/ADT/SmallPtrSet.h"
#include "llvm/Analysis/AssumptionCache.h"
#include "llvm/Analysis/ScalarEvolutionExpressions.h"
#include "llvm/Analysis/TargetLibraryInfo.h"
#include "llvm/Analysis/ValueTracking.h"
#include "llvm/IR/DataLayout.h"
#include "llvm/IR/Dominators.h"
#include "llvm/IR/Instructions.h"
#include "llvm/IR/IntrinsicInst.h"
#include "llvm/IR/Module.h"
#include "llvm/IR/Operator.h"
#include "llvm/TargetParser/Triple.h"
#include "llvm/Transforms/Utils/Cloning.h"
#include "llvm/Transforms/Utils/PromoteMemToReg.h"

#include <optional>

using namespace llvm;

namespace memlens {

namespace {

constexpr unsigned MostSteps = 64; // of a walk through operands

/// A place that the linker or the frame gives: always the same in one run of the function.
bool isFixed(const Value *Pointer, const DataLayout &DL) {
  APInt Offset(DL.getIndexTypeSizeInBits(Pointer->getType()), 0);
  const Value *Object = Pointer->stripAndAccumulateConstantOffsets(DL, Offset, true);
  if (const auto *II = dyn_cast<IntrinsicInst>(Object); II && II->getIntrinsicID() == Intrinsic::threadlocal_address)
    return true;
  if (const auto *A = dyn_cast<AllocaInst>(Object))
    return A->isStaticAlloca();
  if (const auto *A = dyn_cast<Argument>(Object))
    return A->hasByValAttr();
  return isa<GlobalVariable>(Object);
}

/// Values that an address is computed from, up to loads, arguments and the phis of loops.
struct Origin {
  bool Pointer = false; ///< its base was loaded
  bool Index = false;   ///< an index was loaded, or is not an even step of a loop
  bool Itself = false;  ///< the value that the access loads leads to it, around the loop
};

class Walk {
public:
  Walk(const Instruction &At, const LoopInfo &LI, ScalarEvolution &SE) : At(At), LI(LI), SE(SE) {}

  Origin from(const Value *Address) {
    const Value *Base = getUnderlyingObject(Address, 0);
    if (const auto *Phi = dyn_cast<PHINode>(Base); Phi && reachesLoad(Phi))
      Found.Pointer = true;
    else if (isa<LoadInst>(Base))
      Found.Pointer = true;
    follow(Address);
    return Found;
  }

private:
  const Instruction &At;
  const LoopInfo &LI;
  ScalarEvolution &SE;
  SmallPtrSet<const Value *, 16> Seen;
  Origin Found;

  bool isEven(const Value *V) const {
    if (!SE.isSCEVable(V->getType()))
      return false;
    const SCEV *S = SE.getSCEV(const_cast<Value *>(V));
    const Loop *L = LI.getLoopFor(At.getParent());
    if (const auto *R = dyn_cast<SCEVAddRecExpr>(S))
      return R->isAffine();
    return isa<SCEVConstant>(S) || (L && SE.isLoopInvariant(S, L));
  }

  bool reachesLoad(const PHINode *Phi) const {
    for (const Value *V : Phi->incoming_values())
      if (isa<LoadInst>(V->stripPointerCasts()))
        return true;
    return false;
  }

  void follow(const Value *V) {
    if (Seen.size() > MostSteps || !Seen.insert(V).second)
      return;
    if (V == &At) {
      Found.Itself = true;
      return;
    }
    const auto *I = dyn_cast<Instruction>(V);
    if (!I)
      return;
    if (isa<LoadInst>(I) || isa<CallBase>(I)) {
      if (!V->getType()->isPointerTy())
        Found.Index = true;
      else if (const Loop *L = LI.getLoopFor(At.getParent()); isa<LoadInst>(I) && L && L->contains(I))
        follow(cast<LoadInst>(I)->getPointerOperand()); // p->a->next: a chase of two steps
      return;
    }
    if (isa<PHINode>(I)) {
      for (const Value *Incoming : cast<PHINode>(I)->incoming_values())
        follow(Incoming);
      return;
    }
    if (I->getType()->isIntegerTy() && !isEven(I))
      Found.Index = true;
    for (const Value *Operand : I->operands())
      follow(Operand);
  }
};

/// The same in every iteration for all that can be seen: also a pointer that is loaded again each time from one place that the loop does not
/// write by the same name (the compiler had to fear that it does).
bool isSteady(const Value *V, const Loop &L, ScalarEvolution &SE, unsigned Depth = 0) {
  const auto *I = dyn_cast<Instruction>(V);
  if (!I || !L.contains(I))
    return true;
  if (Depth > 4)
    return false;
  if (isa<GetElementPtrInst>(I) || isa<CastInst>(I))
    return all_of(I->operands(), [&](const Use &U) { return isSteady(U.get(), L, SE, Depth + 1); });
  const auto *Load = dyn_cast<LoadInst>(I);
  if (!Load || !Load->isSimple() || !isSteady(Load->getPointerOperand(), L, SE, Depth + 1))
    return false;
  const Value *From = Load->getPointerOperand()->stripPointerCasts();
  const SCEV *Place = SE.getSCEV(const_cast<Value *>(From));
  for (const BasicBlock *BB : L.blocks())
    for (const Instruction &Other : *BB)
      if (const auto *Store = dyn_cast<StoreInst>(&Other);
          Store &&
          (Store->getPointerOperand() == From || SE.getSCEV(const_cast<Value *>(Store->getPointerOperand())) == Place))
        return false;
  return true;
}

/// An even step of the loop, if that is what an address is. The paper (section III-B) asks for a constant stride; one that the loop does not change
/// is constant while it runs, though only the program knows how long it is.
std::optional<AddressClass> steppingIn(const Loop &L, const SCEV *Address, ScalarEvolution &SE) {
  const auto *R = dyn_cast<SCEVAddRecExpr>(Address);
  if (!R || R->getLoop() != &L || !R->isAffine())
    return std::nullopt;
  const SCEV *Step = R->getStepRecurrence(SE);
  if (const auto *Known = dyn_cast<SCEVConstant>(Step))
    return AddressClass{ML_TRACE_STRIDED, ML_TRACE_PLAIN, Known->getAPInt().getSExtValue()};
  return AddressClass{ML_TRACE_STRIDED, ML_TRACE_STEP_AT_RUN, 0};
}

AddressClass classify(const Instruction &At, Value *Address, LoopInfo &LI, ScalarEvolution &SE) {
  const DataLayout &DL = At.getModule()->getDataLayout();
  if (!Address->getType()->isPointerTy())
    return {ML_TRACE_IRREGULAR, ML_TRACE_COMPUTED, 0}; // one address for each lane
  if (isFixed(Address, DL))
    return {ML_TRACE_CONSTANT, ML_TRACE_PLAIN, 0};
  const Loop *L = LI.getLoopFor(At.getParent());
  if (L && SE.isSCEVable(Address->getType())) {
    const SCEV *S = SE.getSCEV(Address);
    if (std::optional<AddressClass> Even = steppingIn(*L, S, SE))
      return *Even;
    if (SE.isLoopInvariant(S, L))
      return {ML_TRACE_STRIDED, ML_TRACE_PLAIN, 0};
    const Value *Base = getUnderlyingObject(Address, 0);
    if (isa<LoadInst>(Base) && isSteady(Base, *L, SE)) {
      const SCEV *Offset = SE.getMinusSCEV(S, SE.getSCEV(const_cast<Value *>(Base)));
      if (std::optional<AddressClass> Even = steppingIn(*L, Offset, SE))
        return *Even;
      if (!isa<SCEVCouldNotCompute>(Offset) && SE.isLoopInvariant(Offset, L))
        return {ML_TRACE_STRIDED, ML_TRACE_PLAIN, 0};
    }
  }
  const Origin O = Walk(At, LI, SE).from(Address);
  if (O.Itself && L)
    return {ML_TRACE_IRREGULAR, ML_TRACE_CHASE, 0};
  if (O.Index)
    return {ML_TRACE_IRREGULAR, ML_TRACE_COMPUTED, 0};
  return {ML_TRACE_IRREGULAR, O.Pointer ? unsigned(ML_TRACE_INDIRECT) : unsigned(ML_TRACE_PLAIN), 0};
}

} // namespace

/// A copy of a function whose variables are registers, outside any module's code.
struct Classifier::Promoted {
  ValueToValueMapTy Map;
  Function *F = nullptr;
  std::unique_ptr<DominatorTree> DT;
  std::unique_ptr<LoopInfo> LI;
  std::unique_ptr<TargetLibraryInfoImpl> Libraries;
  std::unique_ptr<TargetLibraryInfo> TLI;
  std::unique_ptr<AssumptionCache> AC;
  std::unique_ptr<ScalarEvolution> SE;

  ~Promoted() {
    SE.reset();
    if (F)
      F->eraseFromParent();
  }
};

static bool keepsVariablesInFrame(const Function &F) {
  if (F.hasOptNone())
    return true;
  for (const Instruction &I : F.getEntryBlock())
    if (const auto *A = dyn_cast<AllocaInst>(&I); A && isAllocaPromotable(A))
      return true;
  return false;
}

Classifier::Classifier(Function &F, LoopInfo &LI, ScalarEvolution &SE) : LI(LI), SE(SE) {
  for (const BasicBlock &BB : F)
    if (BB.hasAddressTaken() || isa<IndirectBrInst>(BB.getTerminator()))
      return; // not to be copied
  if (!keepsVariablesInFrame(F))
    return;
  Copy = std::make_unique<Promoted>();
  Copy->F = CloneFunction(&F, Copy->Map);
  std::vector<AllocaInst *> Variables;
  for (Instruction &I : Copy->F->getEntryBlock())
    if (auto *A = dyn_cast<AllocaInst>(&I); A && isAllocaPromotable(A))
      Variables.push_back(A);
  Copy->DT = std::make_unique<DominatorTree>(*Copy->F);
  PromoteMemToReg(Variables, *Copy->DT);
  Copy->LI = std::make_unique<LoopInfo>(*Copy->DT);
  Copy->Libraries = std::make_unique<TargetLibraryInfoImpl>(Triple(F.getParent()->getTargetTriple()));
  Copy->TLI = std::make_unique<TargetLibraryInfo>(*Copy->Libraries);
  Copy->AC = std::make_unique<AssumptionCache>(*Copy->F);
  Copy->SE = std::make_unique<ScalarEvolution>(*Copy->F, *Copy->TLI, *Copy->AC, *Copy->DT, *Copy->LI);
}

Classifier::~Classifier() = default;

AddressClass Classifier::of(const Instruction &At, unsigned Operand) const {
  Value *Address = At.getOperand(Operand);
  if (!Copy || !Address->getType()->isPointerTy())
    return classify(At, Address, LI, SE);
  // A variable of the frame is a constant here, though the copy has it in a register; what is left in the copy is looked at there.
  if (isFixed(Address, At.getModule()->getDataLayout()))
    return {ML_TRACE_CONSTANT, ML_TRACE_PLAIN, 0};
  auto Found = Copy->Map.find(&At);
  auto *Mine = Found != Copy->Map.end() ? dyn_cast_or_null<Instruction>(static_cast<Value *>(Found->second)) : nullptr;
  if (!Mine || !Mine->getParent())
    return classify(At, Address, LI, SE);
  return classify(*Mine, Mine->getOperand(Operand), *Copy->LI, *Copy->SE);
}

} // namespace memlens
