/// Counts one function: counting.cpp prepares it and gives every site its counters, loops.cpp has loops count.
#ifndef MEMLENS_PASS_FUNCTION_COUNTER_H
#define MEMLENS_PASS_FUNCTION_COUNTER_H

#include "clocks.h"
#include "code.h"
#include "equivalence.h"
#include "options.h"
#include "sites.h"
#include "table.h"
#include "versions.h"

#include "llvm/Analysis/BlockFrequencyInfo.h"
#include "llvm/Analysis/LoopInfo.h"
#include "llvm/Analysis/ScalarEvolution.h"
#include "llvm/IR/Dominators.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/PassManager.h"

#include <map>
#include <memory>

namespace memlens {

class FunctionCounter {
public:
  FunctionCounter(llvm::Function &F, llvm::FunctionAnalysisManager &FAM, const Options &O, const Versions &V)
      : F(F), FAM(FAM), O(O), V(V), I64(llvm::Type::getInt64Ty(F.getContext())) {}

  bool run(std::string &Problem);

private:
  using BasicBlock = llvm::BasicBlock;
  using Instruction = llvm::Instruction;
  using Loop = llvm::Loop;
  using Value = llvm::Value;
  using AllocaInst = llvm::AllocaInst;

  llvm::Function &F;
  llvm::FunctionAnalysisManager &FAM;
  const Options &O;
  const Versions &V;
  llvm::Type *I64;

  std::vector<Site> Sites;
  llvm::DenseMap<const BasicBlock *, Mix> Operations;
  llvm::SmallPtrSet<BasicBlock *, 16> MayLeave, MayEnter;
  llvm::DominatorTree *DT = nullptr;
  llvm::LoopInfo *LI = nullptr;
  llvm::ScalarEvolution *SE = nullptr;
  Table Result;
  std::vector<Add> Adds;

  // ---- preparation
  void splitAtOpaqueCalls();
  void prepareLoops();
  void takeAnalyses(bool Again);

  // ---- one counter for each site
  void placeNaively();
  void listOnly();

  // ---- few counters
  struct ClassState {
    bool Needed = false, Resolved = false;
    BasicBlock *Where = nullptr;                // of its own counter: the first of its blocks
    std::pair<BasicBlock *, unsigned> Edge;     // or, where it has none: an edge, the number of a block's successor
    std::vector<Term> Terms;                    // once resolved
    std::vector<std::pair<int, int64_t>> Parts; // and these other classes, so many times each
  };
  std::vector<ClassState> Classes;
  std::unique_ptr<Equivalence> Equal;

  void place();
  void resolve(int Class, std::vector<Term> Terms, std::vector<std::pair<int, int64_t>> Parts = {});
  bool isWanted(int Class) const { return Class >= 0 && Classes[Class].Needed && !Classes[Class].Resolved; }
  std::vector<Term> termsOf(int Class);
  Instruction *placeOf(const ClassState &C);

  // ---- what follows from other counts
  void deriveFromFlow();
  std::vector<uint64_t> costs();
  uint64_t frequency(const BasicBlock *BB) const;
  uint64_t edgeFrequency(const BasicBlock *From, unsigned Successor) const;
  llvm::BlockFrequencyInfo *Frequencies = nullptr;
  llvm::DenseMap<const BasicBlock *, uint64_t> OnEdges; // frequency of blocks that were put on edges
  unsigned newCounter(unsigned Kind) {
    Result.Counters.push_back(Kind);
    return Result.Counters.size() - 1;
  }
  int placeBytes(const Site &S);
  unsigned groupOf(const std::vector<Term> &Terms);
  std::map<std::vector<std::pair<unsigned, int64_t>>, unsigned> Groups;

  // ---- loops
  /// What a loop has added up and not yet written: `Step` × what the counter is to get, `Start` more.
  struct Sum {
    unsigned Counter;
    AllocaInst *At;
    int64_t Start = 0;
    llvm::APInt Step = llvm::APInt(64, 1);
    Instruction *OnlyAdd = nullptr; // of 1, where nothing else adds to it
  };
  /// A variable of the program, up to where it has been written, and the counters that get the steps between. `More`
  /// is to be added to its value, if it is not null.
  struct Told {
    AllocaInst *Now, *From;
    llvm::APInt Step;
    std::vector<unsigned> Counters;
    AllocaInst *More = nullptr;
  };
  struct Unwritten {
    std::vector<Sum> Sums;
    unsigned Watched = 0; // the sum that tells when it is time
    bool Regular = false; // or: the last of the variables, which steps in every iteration
    std::vector<Told> Variables;
  };
  bool isClosed(const Loop *L) const;
  bool canKeep(const Loop *L) const;
  bool canBeTold(const Loop *L) const;
  int classOf(const Loop *L, bool Backedge) const;
  const llvm::SCEV *executions(Loop *L, bool Backedge);
  bool countOnEntry(Loop *L, int Class, bool Backedge);
  void countTallies(Loop *L);
  void countOnExit(Loop *L, const std::vector<std::pair<int, bool>> &Needed);
  bool countAround(Loop *L, const Clock &C, const Told &Variable, bool Backedge);
  void placeLoop(Loop *L, bool OnExit);
  void keepInRegisters(Loop *L);
  void placeLoops();
  void keepLoops();

  std::map<Loop *, Unwritten> Pending;
  std::vector<AllocaInst *> Kept; // variables that become registers

  AllocaInst *newVariable(llvm::Type *T, const char *Name);
  void store(Value *What, AllocaInst *To, Instruction *Before);
  llvm::SmallVector<BasicBlock *, 4> exitsOf(const Loop *L) const;
  Value *valueOf(llvm::IRBuilder<> &B, const Told &Variable);
  Value *stepsOf(llvm::IRBuilder<> &B, const Told &Variable);
  Told followClock(Loop *L, const Clock &C);
  Value *amountOf(llvm::IRBuilder<> &B, const Sum &S);
  void publish(Loop *L, Unwritten &U);
  Value *isTime(llvm::IRBuilder<> &B, Unwritten &U);
  bool isInPending(const Loop *L) const;
};

} // namespace memlens

#endif
