/// Between two windows a loop with several segments need not ask in each of them. It runs like this:
///
///     header:  (what the loop carries)
///              if (left >= most) {             // accesses of the longest way round
///                left -= those of the likely way round
///                body, with none of our code but on ways round that have more or fewer: there the difference
///              } else {
///                body, as it was, whose segments will count and record
///              }
///              goto header, or out
///
/// A branch that is never taken costs next to nothing; each one that is taken now and then is one that the processor has to predict. Here there
/// is one a round, and none of those that record lies on the usual way.
#include "rounds.h"

#include "code.h"
#include "llvm/ADT/PostOrderIterator.h"
#include "llvm/Analysis/LoopIterator.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/MDBuilder.h"
#include "llvm/Transforms/Utils/BasicBlockUtils.h"
#include "llvm/Transforms/Utils/Cloning.h"
#include "llvm/Transforms/Utils/LoopUtils.h"

using namespace llvm;

namespace memlens {

namespace {

constexpr uint64_t MostOfRound = 1024; // accesses: windows are some tens of thousands apart

/// What is executed from the start of a block to the end of the round.
struct Ahead {
  uint64_t Most = 0;
  int64_t Likely = 0;
};

class Rounds {
public:
  Rounds(Loop *L, const AccessesOfBlocks &Accesses, const BranchProbabilityInfo &Likely)
      : L(L), Accesses(Accesses), Likely(Likely) {}

  /// False: there are ways through the loop that are no part of one round.
  bool follow(LoopInfo &LI) {
    LoopBlocksRPO Order(L);
    Order.perform(&LI);
    DenseMap<const BasicBlock *, unsigned> Place;
    for (BasicBlock *BB : Order)
      Place.insert({BB, Place.size()});
    std::vector<BasicBlock *> Blocks(Order.begin(), Order.end());
    for (BasicBlock *BB : reverse(Blocks)) {
      if (!isa<BranchInst>(BB->getTerminator()) && !isa<UnreachableInst>(BB->getTerminator()))
        return false;
      Ahead &Mine = All[BB];
      Ahead Next;
      uint64_t Best = 0;
      for (unsigned I = 0, N = BB->getTerminator()->getNumSuccessors(); I < N; ++I) {
        BasicBlock *To = BB->getTerminator()->getSuccessor(I);
        if (!ends(To) && Place.lookup(To) <= Place.lookup(BB))
          return false; // a way back that is no loop of its own
        const Ahead There = from(To);
        const uint64_t Now = Likely.getEdgeProbability(BB, I).getNumerator();
        Next.Most = std::max(Next.Most, There.Most);
        // Where nobody knows, the one with less: what the other has more is then taken off in blocks that are there already.
        if (I == 0 || Now > 2 * Best || (There.Likely < Next.Likely && 2 * Now >= Best)) {
          Best = Now;
          Next.Likely = There.Likely;
        }
      }
      Mine.Most = Next.Most + Accesses.lookup(BB);
      Mine.Likely = Next.Likely + int64_t(Accesses.lookup(BB));
    }
    return true;
  }

  bool ends(const BasicBlock *To) const { return To == L->getHeader() || !L->contains(To); }
  Ahead from(const BasicBlock *BB) const { return ends(BB) ? Ahead() : All.lookup(BB); }
  Ahead round() const { return All.lookup(L->getHeader()); }
  /// What a way through this edge executes more than was taken off before.
  int64_t more(const BasicBlock *From, const BasicBlock *To) const {
    return int64_t(Accesses.lookup(From)) + from(To).Likely - All.lookup(From).Likely;
  }

private:
  Loop *L;
  const AccessesOfBlocks &Accesses;
  const BranchProbabilityInfo &Likely;
  DenseMap<const BasicBlock *, Ahead> All;
};

/// `Left -= Count`.
void takeOff(Instruction *Before, AllocaInst *Left, int64_t Count) {
  IRBuilder<> B(Before);
  B.SetCurrentDebugLocation(DebugLoc());
  Type *I64 = B.getInt64Ty();
  B.CreateStore(B.CreateSub(B.CreateLoad(I64, Left), ConstantInt::get(I64, Count, true)), Left);
}

/// A block between two others. (LLVM's own functions split more than was asked for, to keep loops in simplified form.)
BasicBlock *between(BasicBlock *From, BasicBlock *To, LoopInfo &LI) {
  BasicBlock *New = BasicBlock::Create(From->getContext(), "memlens.other", From->getParent(), To);
  BranchInst::Create(To, New);
  From->getTerminator()->replaceSuccessorWith(To, New);
  To->replacePhiUsesWith(From, New);
  Loop *Around = LI.getLoopFor(From);
  while (Around && !Around->contains(To))
    Around = Around->getParentLoop();
  if (Around)
    Around->addBasicBlockToLoop(New, LI);
  return New;
}

} // namespace

BranchInst *copyRound(Loop *L, const Twine &Suffix, DominatorTree &DT, LoopInfo &LI, ValueToValueMapTy &Map) {
  BasicBlock *Header = L->getHeader();
  Function &F = *Header->getParent();
  formLCSSARecursively(*L, DT, &LI, nullptr);
  BasicBlock *Body = SplitBlock(Header, &*Header->getFirstInsertionPt(), &DT, &LI);
  SmallVector<BasicBlock *, 8> Own, Copies, Exits;
  L->getUniqueExitBlocks(Exits);
  for (BasicBlock *BB : L->blocks())
    if (BB != Header)
      Own.push_back(BB);
  for (BasicBlock *BB : Own) {
    BasicBlock *Copy = CloneBasicBlock(BB, Map, Suffix, &F);
    Map[BB] = Copy;
    Copies.push_back(Copy);
  }
  remapInstructionsInBlocks(Copies, Map);
  for (BasicBlock *Copy : Copies)
    L->addBasicBlockToLoop(Copy, LI);
  // Behind the body there are two ways now: to the header and to the blocks outside.
  SmallPtrSet<BasicBlock *, 4> Ends(Exits.begin(), Exits.end());
  Ends.insert(Header);
  const SmallPtrSet<BasicBlock *, 8> IsOwn(Own.begin(), Own.end());
  for (BasicBlock *End : Ends)
    for (PHINode &Phi : End->phis())
      for (unsigned I = 0, N = Phi.getNumIncomingValues(); I < N; ++I)
        if (BasicBlock *From = Phi.getIncomingBlock(I); IsOwn.contains(From)) {
          auto Found = Map.find(Phi.getIncomingValue(I));
          Phi.addIncoming(Found != Map.end() ? static_cast<Value *>(Found->second) : Phi.getIncomingValue(I),
                          cast<BasicBlock>(Map[From]));
        }
  Header->getTerminator()->eraseFromParent();
  IRBuilder<> B(Header);
  B.SetCurrentDebugLocation(DebugLoc());
  MDNode *Often = MDBuilder(F.getContext()).createBranchWeights(1 << 20, 1);
  return B.CreateCondBr(B.getTrue(), cast<BasicBlock>(Map[Body]), Body, Often);
}

bool runByRounds(Loop *L, const AccessesOfBlocks &Accesses, AllocaInst *Left, const BranchProbabilityInfo &Likely,
                 DominatorTree &DT, LoopInfo &LI) {
  Rounds Of(L, Accesses, Likely);
  if (!Of.follow(LI) || Of.round().Most > MostOfRound)
    return false;
  BasicBlock *Header = L->getHeader();
  Function &F = *Header->getParent();

  // Where ways differ from the likely one, before blocks are split and copied.
  struct Difference {
    BasicBlock *From, *To;
    int64_t More;
  };
  std::vector<Difference> Differences;
  for (BasicBlock *BB : L->blocks()) {
    SmallPtrSet<BasicBlock *, 2> Seen;
    for (BasicBlock *To : successors(BB))
      if (const int64_t More = Of.more(BB, To); More != 0 && Seen.insert(To).second)
        Differences.push_back({BB, To, More});
  }

  ValueToValueMapTy Map;
  BranchInst *Choice = copyRound(L, ".memlens.round", DT, LI, Map);
  BasicBlock *Usual = Choice->getSuccessor(0), *Body = Choice->getSuccessor(1);
  IRBuilder<> B(Choice);
  B.SetCurrentDebugLocation(DebugLoc());
  Type *I64 = B.getInt64Ty();
  Choice->setCondition(B.CreateICmpUGE(B.CreateLoad(I64, Left), ConstantInt::get(I64, Of.round().Most)));

  takeOff(startOf(*Usual), Left, Of.round().Likely);
  for (const Difference &D : Differences) {
    BasicBlock *From = cast<BasicBlock>(Map[D.From == Header ? Body : D.From]);
    BasicBlock *To = Of.ends(D.To) ? D.To : cast<BasicBlock>(Map[D.To]);
    if (To->getUniquePredecessor())
      takeOff(startOf(*To), Left, D.More);
    else if (From->getUniqueSuccessor())
      takeOff(From->getTerminator(), Left, D.More);
    else
      takeOff(between(From, To, LI)->getTerminator(), Left, D.More);
  }
  DT.recalculate(F);
  return true;
}

} // namespace memlens
