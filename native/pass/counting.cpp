#include "counting.h"

#include "function_counter.h"
#include "library_calls.h"
#include "llvm_versions.h"
#include "memlens_count.h"
#include "tracing.h"

#include "llvm/ADT/PostOrderIterator.h"
#include "llvm/Analysis/BranchProbabilityInfo.h"
#include "llvm/Analysis/TargetLibraryInfo.h"
#include "llvm/Analysis/TargetTransformInfo.h"
#include "llvm/IR/Instructions.h"
#include "llvm/IR/Module.h"
#include "llvm/Transforms/Utils/BasicBlockUtils.h"
#include "llvm/Transforms/Utils/LoopSimplify.h"
#include "llvm/Transforms/Utils/LoopUtils.h"
#include "llvm/Transforms/Utils/ModuleUtils.h"
#include "llvm/Transforms/Utils/PromoteMemToReg.h"

using namespace llvm;

namespace memlens {

namespace {

// Of what follows from other counts: sums of more terms cost more to read than they save, and huge functions time to compile.
constexpr unsigned MostNew = 2, MostParts = 12;
constexpr uint64_t MostWork = 4000000; // edges of the graph for each class

} // namespace

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

// ---- counters -----------------------------------------------------------------------------------------------------

/// The bytes of a site, where they are known only when it runs. -1 = they are constant.
int FunctionCounter::placeBytes(const Site &S) {
  if (!S.hasOwnBytes())
    return -1;
  Instruction *Place = S.Size == S.At ? S.At->getNextNode() : S.At; // known when it has run
  IRBuilder<> B(Place);
  B.SetCurrentDebugLocation(DebugLoc());
  Value *Amount = bytesOf(B, S);
  unsigned Counter = newCounter(ML_COUNTER_BYTES);
  Adds.push_back({Place, Counter, Amount});
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
      Result.Blocks.push_back({Group, LI->getLoopDepth(BB), lineOf(*BB), Operations.lookup(BB)});
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

void FunctionCounter::resolve(int Class, std::vector<Term> Terms, std::vector<std::pair<int, int64_t>> Parts) {
  ClassState &C = Classes[Class];
  C.Terms = std::move(Terms);
  C.Parts = std::move(Parts);
  C.Resolved = true;
  for (auto [Other, Scale] : C.Parts)
    Classes[Other].Needed = true;
}

/// Where the counter of a class adds.
Instruction *FunctionCounter::placeOf(const ClassState &C) {
  if (C.Where)
    return startOf(*C.Where);
  BasicBlock *From = C.Edge.first;
  const uint64_t Often = edgeFrequency(From, C.Edge.second);
  BasicBlock *Between = SplitEdge(From, From->getTerminator()->getSuccessor(C.Edge.second), DT, LI);
  OnEdges[Between] = Often;
  return Between->getTerminator();
}

/// The counters that tell how often a class ran. One that nothing else tells gets its own.
std::vector<Term> FunctionCounter::termsOf(int Class) {
  ClassState &C = Classes[Class];
  if (!C.Resolved) {
    unsigned Counter = newCounter(ML_COUNTER_BLOCK);
    Adds.push_back({placeOf(C), Counter, ConstantInt::get(I64, 1)});
    resolve(Class, {{Counter, 1}});
  }
  std::map<unsigned, int64_t> Sums;
  for (Term T : C.Terms)
    Sums[T.Counter] += T.Scale;
  for (auto [Other, Scale] : std::vector<std::pair<int, int64_t>>(C.Parts))
    for (Term T : termsOf(Other))
      Sums[T.Counter] += T.Scale * Scale;
  std::vector<Term> All;
  for (auto [Counter, Scale] : Sums)
    if (Scale)
      All.push_back({Counter, Scale});
  return All;
}

uint64_t FunctionCounter::frequency(const BasicBlock *BB) const {
  auto OnEdge = OnEdges.find(BB);
  return std::max<uint64_t>(OnEdge != OnEdges.end() ? OnEdge->second : Frequencies->getBlockFreq(BB).getFrequency(), 1);
}

uint64_t FunctionCounter::edgeFrequency(const BasicBlock *From, unsigned Successor) const {
  const BranchProbability Share = FAM.getResult<BranchProbabilityAnalysis>(F).getEdgeProbability(From, Successor);
  return std::max<uint64_t>(Share.scale(frequency(From)), 1);
}

/// How often LLVM expects each class to run.
std::vector<uint64_t> FunctionCounter::costs() {
  std::vector<uint64_t> Costs(Classes.size(), Flow::Never);
  for (BasicBlock &From : F) {
    const Instruction *End = From.getTerminator();
    for (unsigned I = 0; I < End->getNumSuccessors(); ++I) {
      const BasicBlock *To = End->getSuccessor(I);
      const int Class = Equal->of(&From, To);
      // Nothing is added where an untouched copy runs, nor where code cannot be put.
      if (Class < 0 || Classes[Class].Where || V.isUntouched(&From) || V.isUntouched(To) || To->isEHPad() ||
          (!isa<BranchInst>(End) && !isa<SwitchInst>(End)))
        continue;
      // A block of its own on the way round is a jump more in every iteration.
      const uint64_t Often = edgeFrequency(&From, I) * (DT->dominates(To, &From) ? 2 : 1);
      if (Often < Costs[Class]) {
        Costs[Class] = Often;
        Classes[Class].Edge = {&From, I};
      }
    }
  }
  for (unsigned Class = 0; Class < Classes.size(); ++Class)
    if (const BasicBlock *Where = Classes[Class].Where; Where && !V.isUntouched(Where))
      Costs[Class] = frequency(Where);
  for (unsigned Class = 0; Class < Classes.size(); ++Class)
    if (Classes[Class].Resolved) // one that others tell cannot tell these
      Costs[Class] = Classes[Class].Parts.empty() ? 0 : Flow::Never;
  return Costs;
}

/// Has no counter where others tell: of two branches and what is before them, the cheapest two are counted; where a loop has
/// many ways out, those and not its iterations.
void FunctionCounter::deriveFromFlow() {
  std::vector<int> Wanted;
  for (unsigned Class = 0; Class < Classes.size(); ++Class)
    if (isWanted(Class))
      Wanted.push_back(Class);
  if (Wanted.empty() || Wanted.size() * Equal->flow().size() > MostWork)
    return;
  Flow Graph(Equal->nodes(), Equal->flow(), costs());
  stable_sort(Wanted, [&](int A, int B) { return Graph.cost(A) > Graph.cost(B); });
  for (int Class : Wanted) {
    const uint64_t Own = Graph.cost(Class);
    if (Own == 0)
      continue; // counted for another
    std::vector<std::pair<int, int64_t>> Parts = Graph.express(Class);
    uint64_t Cost = 0;
    unsigned New = 0;
    for (auto [Other, Sign] : Parts) {
      const uint64_t More = Graph.cost(Other);
      const bool Counted = isWanted(Other); // it would cost something in any case
      Cost = More == Flow::Never || Cost == Flow::Never ? Flow::Never : Cost + (Counted ? More / 2 : More);
      New += More > 0 && !Counted;
    }
    // Two counters for one have to be worth it.
    const uint64_t Worth = New > 1 ? Own / 4 * 3 : Own - Own / 128;
    if (Parts.empty() || Cost >= Worth || New > MostNew || Parts.size() > MostParts) {
      Graph.know(Class);
      continue;
    }
    for (auto [Other, Sign] : Parts)
      if (Graph.cost(Other))
        Graph.know(Other);
    resolve(Class, {}, Parts);
  }
}

void FunctionCounter::place() {
  prepareLoops();
  takeAnalyses(true);
  Frequencies = &FAM.getResult<BlockFrequencyAnalysis>(F);
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

  placeLoops();
  if (O.Flow && O.Sets)
    deriveFromFlow();

  DenseMap<BasicBlock *, unsigned> Blocks;
  auto BlockOf = [&](BasicBlock *BB) {
    auto [At, New] = Blocks.try_emplace(BB, Result.Blocks.size());
    if (New) {
      int Class = Equal->of(BB);
      unsigned Group = Class >= 0 && Classes[Class].Needed ? groupOf(termsOf(Class)) : 0;
      Result.Blocks.push_back({Group, LI->getLoopDepth(BB), lineOf(*BB), Operations.lookup(BB)});
    }
    return At->second;
  };
  // How often the function is called, where something is counted that runs as often: the first block of the table.
  BasicBlock &Entry = F.getEntryBlock();
  if (int Class = Equal->of(&Entry); Class >= 0 && Classes[Class].Needed && !V.isUntouched(&Entry)) {
    BlockOf(&Entry);
    Result.Flags |= ML_TABLE_ENTRY;
  }
  std::vector<BasicBlock *> All; // before edges get blocks
  for (BasicBlock &BB : F)
    if (O.Mix && DT->isReachableFromEntry(&BB) && !V.isUntouched(&BB))
      All.push_back(&BB);
  for (BasicBlock *BB : All)
    BlockOf(BB);
  for (const Site &S : Sites) {
    unsigned Block = BlockOf(S.At->getParent());
    Result.Sites.push_back({&S, Block, Result.Blocks[Block].Group, placeBytes(S)});
  }
  keepLoops();
}

/// A trace needs the sites, but no counters.
void FunctionCounter::listOnly() {
  DenseMap<BasicBlock *, unsigned> Blocks;
  for (const Site &S : Sites) {
    BasicBlock *BB = S.At->getParent();
    auto [At, New] = Blocks.try_emplace(BB, Result.Blocks.size());
    if (New)
      Result.Blocks.push_back({0, LI->getLoopDepth(BB), lineOf(*BB), Mix()});
    Result.Sites.push_back({&S, At->second, 0, -1});
  }
}

bool FunctionCounter::run(std::string &Problem) {
  const TargetLibraryInfo &TLI = FAM.getResult<TargetLibraryAnalysis>(F);
  const TargetTransformInfo &TTI = FAM.getResult<TargetIRAnalysis>(F);
  prepareCalls(F, TLI, TTI, V, O.Count && !O.Trace);
  takeAnalyses(true);
  Sites = findSites(F, FAM.getResult<TargetLibraryAnalysis>(F), FAM.getResult<TargetIRAnalysis>(F),
                    FAM.getResult<ScalarEvolutionAnalysis>(F));
  erase_if(Sites, [&](const Site &S) { return V.isUntouched(S.At->getParent()) || V.isOurs(S.At); });
  if (Sites.empty() && !O.Mix)
    return false;
  std::unique_ptr<FunctionTracer> Tracer;
  if (O.Trace) {
    Result.Loops = findSourceLoops(FAM.getResult<LoopAnalysis>(F), Sites);
    Tracer = std::make_unique<FunctionTracer>(F, FAM, O, V, Sites);
  }
  if (O.Count)
    splitAtOpaqueCalls();
  for (BasicBlock &BB : F) // before there are ours
    Operations[&BB] = operations(BB);
  takeAnalyses(true);
  Result.Flags = (O.Mix ? ML_TABLE_MIX : 0) | (O.Naive ? ML_TABLE_NAIVE : 0) |
                 (O.Trace ? ML_TABLE_TRACE | ML_TABLE_TRACE_BYTES | ML_TABLE_TRACE_STAND_INS | ML_TABLE_LOOPS : 0) |
                 (O.Count ? 0 : ML_TABLE_UNCOUNTED);
  if (!O.Count)
    listOnly();
  else if (O.Naive)
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
  if (Tracer)
    Tracer->write(Descriptor, Result);
  fillDescriptor(Descriptor, F, Result.Counters.size(), Tracer ? Tracer->recordedSites() : 0, encode(Result, F));
  return true;
}

void tellRefused(Function &F, unsigned Reason) {
  GlobalVariable *Descriptor = newDescriptor(F);
  fillDescriptor(Descriptor, F, 0, 0, encodeRefused(Reason, F));
  appendToCompilerUsed(*F.getParent(), {Descriptor}); // no code names it
}

bool countFunction(Function &F, FunctionAnalysisManager &FAM, const Options &O, const Versions &V,
                   std::string &Problem) {
  return FunctionCounter(F, FAM, O, V).run(Problem);
}

} // namespace memlens
