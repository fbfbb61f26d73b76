/// One loop of the source may be several of the code: a vector body and what remains, copies of unrolling and unswitching, versions with
/// and without checks. They are one loop here if they lie in the same loop and
///
///   1. begin at one place: line, column, block and inlined call of the location that clang gives a loop (`llvm.loop`), which LLVM hands on
///      to copies; a loop directly inside one of the same place is that loop too (two ways back to its head make two loops of it);
///   2. or the one has no such place (the rest of an unrolled loop) and an instruction of it has the location of one in the other.
///
/// A loop that has no place and nothing in common with its neighbours (goto, a recursion that became a loop, a place that LLVM lost) begins where
/// its code does.
#include "source_loops.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/SmallPtrSet.h"
#include "llvm/IR/Instructions.h"

#include <optional>

using namespace llvm;

namespace memlens {

namespace {

/// Where a location is, whichever copy of the code it belongs to.
using Place = std::pair<std::pair<unsigned, unsigned>, std::pair<const DILocalScope *, const DILocation *>>;

Place placeOf(const DILocation *L) {
  return {{L->getLine(), L->getColumn()}, {L->getScope()->getNonLexicalBlockFileScope(), L->getInlinedAt()}};
}

/// The place that clang told; null = it did not, or LLVM lost it.
const DILocation *toldStart(const Loop *L) {
  SmallVector<BasicBlock *, 4> Latches;
  L->getLoopLatches(Latches);
  for (const BasicBlock *Latch : Latches)
    if (const MDNode *Told = Latch->getTerminator()->getMetadata(LLVMContext::MD_loop))
      for (const MDOperand &Operand : Told->operands())
        if (const auto *Start = dyn_cast_or_null<DILocation>(Operand.get()); Start && Start->getLine())
          return Start;
  return nullptr;
}

const DILocation *locationOf(const Instruction &I) {
  const DILocation *L = I.isDebugOrPseudoInst() ? nullptr : I.getDebugLoc().get();
  return L && L->getLine() ? L : nullptr;
}

/// The earliest place of the loop's code, in the function that the condition which ends it is in (clang gives that the place of `while` or `for`).
const DILocation *startOfCode(const Loop *L) {
  const DILocation *Start = nullptr;
  auto Take = [&](const DILocation *At) {
    auto Of = [](const DILocation *L) { return std::pair(L->getScope()->getSubprogram(), L->getInlinedAt()); };
    auto Where = [](const DILocation *L) { return std::pair(L->getLine(), L->getColumn()); };
    if (At && (!Start || (Of(At) == Of(Start) && Where(At) < Where(Start)))) // not what was inlined into it
      Start = At;
  };
  SmallVector<BasicBlock *, 4> Ends;
  L->getLoopLatches(Ends);
  Ends.push_back(L->getHeader());
  for (const BasicBlock *BB : Ends)
    if (const Instruction *End = BB->getTerminator(); L->isLoopExiting(BB))
      Take(locationOf(*End));
  for (const BasicBlock *BB : L->blocks()) // the head is the first
    for (const Instruction &I : *BB)
      Take(isa<PHINode>(I) ? nullptr : locationOf(I));
  return Start;
}

class Finder {
public:
  Finder(const LoopInfo &LI, const std::vector<Site> &Sites) {
    for (const Site &S : Sites)
      for (const Loop *L = LI.getLoopFor(S.At->getParent()); L && Needed.insert(L).second; L = L->getParentLoop()) {
      }
    visit(SmallVector<const Loop *, 4>(LI.begin(), LI.end()), 0, nullptr);
    for (const Site &S : Sites)
      Found.OfSite.push_back(Numbers.lookup(LI.getLoopFor(S.At->getParent())));
  }

  SourceLoops Found;

private:
  struct Group {
    const DILocation *Start = nullptr;
    SmallVector<const Loop *, 2> Loops;
  };
  SmallPtrSet<const Loop *, 16> Needed;
  DenseMap<const Loop *, unsigned> Numbers;

  using Code = DenseMap<Place, unsigned>; ///< where instructions are → number of a group that has one there

  static void addCode(Code &All, const Loop *L, unsigned Group) {
    for (const BasicBlock *BB : L->blocks())
      for (const Instruction &I : *BB)
        if (const DILocation *At = locationOf(I))
          All.try_emplace(placeOf(At), Group);
  }

  /// The group of an instruction that the loop has too.
  static std::optional<unsigned> ofTheSameCode(const Code &All, const Loop *L) {
    for (const BasicBlock *BB : L->blocks())
      for (const Instruction &I : *BB)
        if (const DILocation *At = locationOf(I))
          if (auto Known = All.find(placeOf(At)); Known != All.end())
            return Known->second;
    return std::nullopt;
  }

  /// Loops that lie in one loop of the source, in its order.
  void visit(SmallVector<const Loop *, 4> Inside, unsigned Parent, const DILocation *ParentStart) {
    std::vector<Group> Groups;
    DenseMap<Place, unsigned> ByPlace;
    SmallVector<const Loop *, 4> Untold;
    auto Add = [&](const Loop *L, const DILocation *Start) {
      unsigned Group = Groups.size();
      if (Start)
        Group = ByPlace.try_emplace(placeOf(Start), Group).first->second;
      if (Group == Groups.size())
        Groups.push_back({Start, {}});
      Groups[Group].Loops.push_back(L);
      return Group;
    };
    for (unsigned I = 0; I < Inside.size(); ++I) { // it grows
      const Loop *L = Inside[I];
      if (!Needed.contains(L))
        continue;
      const DILocation *Start = toldStart(L);
      if (Start && ParentStart && placeOf(Start) == placeOf(ParentStart)) {
        Numbers[L] = Parent;
        Inside.append(L->begin(), L->end());
      } else if (Start) {
        Add(L, Start);
      } else {
        Untold.push_back(L);
      }
    }
    Code All;
    if (!Untold.empty())
      for (unsigned Group = 0; Group < Groups.size(); ++Group)
        for (const Loop *L : Groups[Group].Loops)
          addCode(All, L, Group);
    for (const Loop *L : Untold) {
      std::optional<unsigned> Group = ofTheSameCode(All, L);
      if (Group)
        Groups[*Group].Loops.push_back(L);
      else
        Group = Add(L, startOfCode(L));
      addCode(All, L, *Group);
    }
    for (const Group &G : Groups) {
      Found.Loops.push_back({G.Start, Parent});
      const unsigned Number = Found.Loops.size();
      SmallVector<const Loop *, 4> Inner;
      for (const Loop *L : G.Loops) {
        Numbers[L] = Number;
        Inner.append(L->begin(), L->end());
      }
      visit(std::move(Inner), Number, G.Start);
    }
  }
};

} // namespace

SourceLoops findSourceLoops(const LoopInfo &LI, const std::vector<Site> &Sites) { return Finder(LI, Sites).Found; }

} // namespace memlens
