#include "clocks.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/SmallPtrSet.h"
#include "llvm/Analysis/ScalarEvolutionExpressions.h"
#include "llvm/IR/CFG.h"
#include "llvm/IR/DataLayout.h"
#include "llvm/IR/Operator.h"

using namespace llvm;

namespace memlens {

namespace {

constexpr uint64_t LargestStep = 1024; // 2^54 iterations of it do not happen
constexpr unsigned MostValues = 16;    // of a variable
constexpr unsigned MostBlocks = 1000;  // of a loop: following takes their number squared

/// Follows a variable through its phis.
class Follower {
public:
  Follower(PHINode &First, const Loop &L, const DataLayout &DL) : First(First), L(L), DL(DL) {}

  std::optional<Tally> follow() {
    Type *T = First.getType();
    if (!T->isIntegerTy() && !(T->isPointerTy() && T->getPointerAddressSpace() == 0))
      return std::nullopt;
    Width = DL.getTypeSizeInBits(T);
    if (Width > 64 || L.getNumBlocks() > MostBlocks || !collect() || !settle())
      return std::nullopt;
    Tally Found;
    Found.Begin = First.getIncomingValueForBlock(L.getLoopPreheader());
    for (PHINode *Phi : Values)
      for (unsigned I = 0; I < Phi->getNumIncomingValues(); ++I) {
        BasicBlock *From = Phi->getIncomingBlock(I);
        if (!L.contains(From))
          continue; // where it begins
        auto [Base, Added] = resolve(Phi->getIncomingValue(I));
        if (Current.lookup(From) != Base)
          return std::nullopt; // an older value comes back
        if (Added.isZero())
          continue;
        if (Found.From || Added.abs().ugt(LargestStep))
          return std::nullopt;
        Found.From = From;
        Found.To = Phi->getParent();
        Found.Step = Added;
      }
    // In 64 bits it cannot come round; in fewer every step must say that it does not.
    if (!Found.From || (Width != 64 && !AllSigned && !AllUnsigned))
      return std::nullopt;
    Found.Values = Values;
    return Found;
  }

private:
  PHINode &First;
  const Loop &L;
  const DataLayout &DL;
  unsigned Width = 0;
  bool AllSigned = true, AllUnsigned = true;
  std::vector<PHINode *> Values;
  DenseMap<const BasicBlock *, PHINode *> Current; // at the end of a block

  /// A phi of the loop and what is added to it; a null phi = something else.
  std::pair<PHINode *, APInt> resolve(Value *V) {
    APInt Added(Width, 0);
    for (unsigned Depth = 0; Depth < 8; ++Depth) {
      if (auto *Phi = dyn_cast<PHINode>(V))
        return {L.contains(Phi->getParent()) ? Phi : nullptr, Added};
      if (auto *Step = dyn_cast<OverflowingBinaryOperator>(V); Step && Step->getOpcode() == Instruction::Add) {
        auto *Constant = dyn_cast<ConstantInt>(Step->getOperand(1));
        if (!Constant)
          break;
        Added += Constant->getValue();
        AllSigned &= Step->hasNoSignedWrap();
        AllUnsigned &= Step->hasNoUnsignedWrap();
        V = Step->getOperand(0);
      } else if (auto *Place = dyn_cast<GEPOperator>(V)) {
        APInt Offset(DL.getIndexTypeSizeInBits(Place->getType()), 0);
        if (Offset.getBitWidth() != Width || !Place->accumulateConstantOffset(DL, Offset))
          break;
        Added += Offset;
        V = Place->getPointerOperand();
      } else {
        break;
      }
    }
    return {nullptr, Added};
  }

  /// All phis that the variable passes on its way round.
  bool collect() {
    SmallPtrSet<PHINode *, 8> Seen{&First};
    SmallPtrSet<const BasicBlock *, 8> Blocks{First.getParent()};
    Values.push_back(&First);
    for (unsigned Next = 0; Next < Values.size(); ++Next)
      for (unsigned I = 0; I < Values[Next]->getNumIncomingValues(); ++I) {
        if (!L.contains(Values[Next]->getIncomingBlock(I)))
          continue;
        PHINode *Base = resolve(Values[Next]->getIncomingValue(I)).first;
        if (!Base)
          return false;
        if (!Seen.insert(Base).second)
          continue;
        if (Values.size() == MostValues || !Blocks.insert(Base->getParent()).second)
          return false;
        Values.push_back(Base);
      }
    return true;
  }

  /// Which of them ran last, at the end of every block: it must not depend on the way that led there.
  bool settle() {
    for (PHINode *Phi : Values)
      Current[Phi->getParent()] = Phi;
    for (bool Changed = true; Changed;) {
      Changed = false;
      for (BasicBlock *BB : L.blocks()) {
        if (Current.count(BB))
          continue;
        for (BasicBlock *Before : predecessors(BB))
          if (auto At = Current.find(Before); At != Current.end()) {
            PHINode *Last = At->second;
            Current[BB] = Last;
            Changed = true;
            break;
          }
      }
    }
    SmallPtrSet<const BasicBlock *, 8> Starts;
    for (PHINode *Phi : Values)
      Starts.insert(Phi->getParent());
    for (BasicBlock *BB : L.blocks())
      if (!Starts.contains(BB))
        for (BasicBlock *Before : predecessors(BB))
          if (Current.lookup(Before) != Current.lookup(BB))
            return false;
    return true;
  }
};

} // namespace

Clock findClock(const Loop *L, ScalarEvolution &SE) {
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
    auto Cost = [](const Clock &C) { return C.Step.abs().isOne() ? 0 : C.Step.abs().isPowerOf2() ? 1 : 2; };
    Clock Found{&Phi, Phi.getIncomingValueForBlock(L->getLoopPreheader()), Step->getAPInt()};
    if (!Best.Now || Cost(Found) < Cost(Best))
      Best = Found;
  }
  return Best;
}

std::optional<Tally> findTally(PHINode &First, const Loop &L, const DataLayout &DL) {
  return Follower(First, L, DL).follow();
}

} // namespace memlens
