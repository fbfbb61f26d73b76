/// A loop that runs for longer than from one window to the next can never be taken off at once. It runs like this:
///
///     check:                                   // what came before: all of it does not fit
///     some:    (trips, left)
///              part = min(left / each, trips)
///              if (part >= Least) {
///                left -= part * each; trips -= part
///                the loop, `part` times, with none of our code
///                if (trips == 0) goto exit
///              }
///              do {                            // the loop as it was, whose segments will count and record
///                body; if (it is over) goto exit
///                trips -= 1
///              } while (left < Again * each)   // inside a window nothing is left
///              goto some
///
/// So the code of ours runs in windows and in the few times before them, and accesses are still counted one by one where a window begins.
#include "parts.h"

#include "code.h"
#include "llvm/IR/Instructions.h"
#include "llvm/IR/MDBuilder.h"
#include "llvm/Transforms/Utils/BasicBlockUtils.h"
#include "llvm/Transforms/Utils/Cloning.h"
#include "llvm/Transforms/Utils/LoopUtils.h"

using namespace llvm;

namespace memlens {

namespace {
constexpr uint64_t Least = 32; // times: fewer are not worth the way there
constexpr uint64_t Again = 64; // more than that: or the loop would come back at once
} // namespace

BasicBlock *runInParts(const CountedLoop &Counted, DominatorTree &DT, LoopInfo &LI, ReadLeft Read, WriteLeft Write) {
  Loop *L = Counted.L;
  BasicBlock *Header = L->getHeader(), *Latch = L->getLoopLatch(), *Before = Counted.Before, *Exit = Counted.Exit;
  Function &F = *Header->getParent();
  LLVMContext &C = F.getContext();
  Type *I64 = Type::getInt64Ty(C);
  auto Number = [&](uint64_t N) { return ConstantInt::get(I64, N); };

  ValueToValueMapTy Map;
  SmallVector<BasicBlock *, 8> Copies;
  cloneLoopWithPreheader(Before, Counted.Check, L, Map, ".memlens.part", &LI, &DT, Copies);
  remapInstructionsInBlocks(Copies, Map);
  auto InCopy = [&](Value *V) {
    auto Found = Map.find(V);
    return Found != Map.end() ? static_cast<Value *>(Found->second) : V;
  };
  BasicBlock *PartBefore = cast<BasicBlock>(Map[Before]), *PartHeader = cast<BasicBlock>(Map[Header]),
             *PartLatch = cast<BasicBlock>(Map[Latch]);
  BasicBlock *Some = BasicBlock::Create(C, "memlens.some", &F, PartBefore),
             *After = BasicBlock::Create(C, "memlens.after", &F, Before);
  if (Loop *Parent = L->getParentLoop())
    for (BasicBlock *BB : {Some, After})
      Parent->addBasicBlockToLoop(BB, LI);
  BasicBlock *Back = SplitEdge(Latch, Header, &DT, &LI);

  // What the loop carries: where it begins, where a part of it does, and where the loop as it was does.
  struct Carried {
    PHINode *Own, *AtSome, *AtBefore;
    Value *Next;
  };
  SmallVector<Carried, 8> All;
  auto NewPhi = [&](Type *T, BasicBlock *In, const Twine &Name) {
    IRBuilder<> B(In, In->begin());
    return B.CreatePHI(T, 2, Name);
  };
  for (PHINode &Phi : Header->phis())
    All.push_back({&Phi, nullptr, nullptr, Phi.getIncomingValueForBlock(Back)});
  for (Carried &P : All) {
    Value *First = P.Own->getIncomingValueForBlock(Before);
    P.AtSome = NewPhi(P.Own->getType(), Some, P.Own->getName() + ".some");
    P.AtBefore = NewPhi(P.Own->getType(), Before, P.Own->getName() + ".before");
    P.AtSome->addIncoming(First, Counted.Check);
    P.AtSome->addIncoming(P.Next, Back);
    P.AtBefore->addIncoming(P.AtSome, Some);
    P.AtBefore->addIncoming(InCopy(P.Next), After);
    P.Own->setIncomingValueForBlock(Before, P.AtBefore);
    cast<PHINode>(Map[P.Own])->setIncomingValueForBlock(PartBefore, P.AtSome);
  }
  PHINode *Trips = NewPhi(I64, Some, "memlens.trips"), *Rest = NewPhi(I64, Before, "memlens.rest"),
          *Now = NewPhi(I64, Header, "memlens.now");

  auto At = [](IRBuilder<> &B, Instruction *Place) {
    B.SetInsertPoint(Place);
    B.SetCurrentDebugLocation(DebugLoc());
  };
  IRBuilder<> B(Some);
  B.SetCurrentDebugLocation(DebugLoc());
  Value *Left = Read(B), *Fit = B.CreateUDiv(Left, Number(Counted.Each));
  Value *Part = B.CreateSelect(B.CreateICmpULT(Fit, Trips), Fit, Trips, "memlens.part");
  B.CreateCondBr(B.CreateICmpUGE(Part, Number(Least)), PartBefore, Before);
  At(B, PartBefore->getTerminator());
  Write(B, B.CreateSub(Left, B.CreateMul(Part, Number(Counted.Each))));

  PHINode *Times = NewPhi(I64, PartHeader, "memlens.times");
  Instruction *End = PartLatch->getTerminator();
  At(B, End);
  Value *Fewer = B.CreateSub(Times, Number(1));
  Instruction *NewEnd = B.CreateCondBr(B.CreateIsNull(Fewer), After, PartHeader);
  NewEnd->copyMetadata(*End, {LLVMContext::MD_loop});
  End->eraseFromParent();
  Times->addIncoming(Part, PartBefore);
  Times->addIncoming(Fewer, PartLatch);

  B.SetInsertPoint(After);
  B.SetCurrentDebugLocation(DebugLoc());
  Value *Left2 = B.CreateSub(Trips, Part);
  B.CreateCondBr(B.CreateIsNull(Left2), Exit, Before);
  for (PHINode &Phi : Exit->phis())
    Phi.addIncoming(InCopy(Phi.getIncomingValueForBlock(Latch)), After);

  At(B, Back->getTerminator());
  Value *Next = B.CreateSub(Now, Number(1));
  Value *IsMuch = B.CreateICmpUGE(Read(B), Number(Again * Counted.Each));
  B.CreateCondBr(IsMuch, Some, Header, MDBuilder(C).createBranchWeights(1, 1 << 10));
  Back->getTerminator()->eraseFromParent();
  Trips->addIncoming(Counted.Trips, Counted.Check);
  Trips->addIncoming(Next, Back);
  Rest->addIncoming(Trips, Some);
  Rest->addIncoming(Left2, After);
  Now->addIncoming(Rest, Before);
  Now->addIncoming(Next, Back);
  return Some;
}

} // namespace memlens
