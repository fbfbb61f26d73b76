/// Traces one function: tracing.cpp cuts it into segments that record, trace_loops.cpp reduces the checks in loops.
#ifndef MEMLENS_PASS_FUNCTION_TRACER_H
#define MEMLENS_PASS_FUNCTION_TRACER_H

#include "address_classes.h"
#include "code.h"
#include "memlens_trace.h"
#include "tracing.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/Analysis/BranchProbabilityInfo.h"
#include "llvm/Analysis/LoopInfo.h"
#include "llvm/Analysis/ScalarEvolution.h"
#include "llvm/IR/Dominators.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/Instructions.h"

namespace memlens {

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
  std::vector<unsigned> Recorded;      ///< numbers of accesses
  std::vector<llvm::Instruction *> By; ///< what makes them; in a copy of the code not what the site says
  /// accesses that it executes and does not record, and what makes them
  std::vector<std::pair<unsigned, llvm::Instruction *>> Constants;
  unsigned Implied = 0;                ///< their number, when the segment has ended
  unsigned First = 0;                  ///< number of its first site in the function
  llvm::Instruction *Before = nullptr; ///< where the code goes; null until the segment has ended
  llvm::Instruction *After = nullptr;  ///< or: behind this one

  unsigned executed() const { return Recorded.size() + Implied; }
  llvm::BasicBlock *block() const { return (Before ? Before : After)->getParent(); }
};

class FunctionTracer::Implementation {
  using AllocaInst = llvm::AllocaInst;
  using BasicBlock = llvm::BasicBlock;
  using CallInst = llvm::CallInst;
  using Function = llvm::Function;
  using GlobalVariable = llvm::GlobalVariable;
  using Instruction = llvm::Instruction;
  using LoadInst = llvm::LoadInst;
  using Loop = llvm::Loop;
  using SCEV = llvm::SCEV;
  using Type = llvm::Type;
  using Value = llvm::Value;

public:
  Implementation(Function &F, llvm::FunctionAnalysisManager &FAM, const Options &O, const Versions &V,
                 const std::vector<Site> &Sites)
      : F(F), FAM(FAM), O(O), V(V), Sites(Sites), I64(Type::getInt64Ty(F.getContext())) {
    classify();
  }

  void write(GlobalVariable *Descriptor, Table &Result);
  unsigned Recorded = 0; ///< sites of the trace

private:
  Function &F;
  llvm::FunctionAnalysisManager &FAM;
  const Options &O;
  const Versions &V;
  const std::vector<Site> &Sites;
  Type *I64;
  std::vector<Access> Accesses;
  std::vector<Segment> Segments;
  llvm::DenseMap<const Instruction *, std::vector<unsigned>> Of; // instruction → its accesses
  llvm::DominatorTree *DT = nullptr;
  llvm::LoopInfo *LI = nullptr;
  llvm::ScalarEvolution *SE = nullptr;
  std::vector<AllocaInst *> Held;                            // `left` in loops
  llvm::DenseMap<const Loop *, AllocaInst *> HeldIn;         // outermost loop → its variable
  std::vector<std::pair<CallInst *, AllocaInst *>> AtCalls;  // in loops that hold it
  llvm::DenseMap<const Instruction *, Instruction *> TwinOf; // in copies that are told too → the one that has sites
  llvm::DenseSet<const BasicBlock *> Near;   // blocks of loops of which others have the usual executions
  std::vector<LoadInst *> Choices;           // of what is left, by such loops
  llvm::DenseSet<const Segment *> InWindows; // of copies that run in windows, and shortly before them
  GlobalVariable *Thread = nullptr, *Descriptor = nullptr;
  llvm::DenseMap<uint64_t, GlobalVariable *> Constants;

  bool mayTrace(const Instruction &I) const;
  bool isPassed(const std::vector<unsigned> &Numbers) const; // accesses that copy arguments of a call
  uint64_t bytesOfOne(const Access &A) const;
  void classify();
  bool isShared(const Access &A) const;
  void chooseStandIn(Segment &S) const;
  unsigned standInOf(const Segment &S) const;
  void cut();
  void takeAnalyses();

  Value *member(llvm::IRBuilder<> &B, unsigned Number) {
    return B.CreateConstInBoundsGEP1_64(B.getInt8Ty(), Thread, 8 * Number);
  }
  LoadInst *load(llvm::IRBuilder<> &B, Type *T, Value *From) {
    LoadInst *L = B.CreateAlignedLoad(T, From, llvm::Align(8));
    markOurs(*L);
    return L;
  }
  void store(llvm::IRBuilder<> &B, Value *What, Value *To) {
    markOurs(*B.CreateAlignedStore(What, To, llvm::Align(8)));
  }

  bool isClosed(const Loop *L, std::vector<CallInst *> *Calls = nullptr) const;
  void holdInRegister(Loop *L, const std::vector<CallInst *> &Calls);
  AllocaInst *heldAt(const BasicBlock *BB) const;
  bool mayCopy(const Loop *L, unsigned Most) const;
  const SCEV *timesOf(Loop *L, unsigned &Each);
  void copyNests();
  void fillChoices();
  bool passAtOnce(Loop *L);
  void askOnceARound(Loop *L, const llvm::BranchProbabilityInfo &Likely);
  void writeSegment(const Segment &S);
  void writeForProcessor(const Segment &S);
  struct Room {
    BasicBlock *Write; ///< where `Words` are to be written
    BasicBlock *Done;  ///< behind it
    Value *Words;
  };
  Room askForRoom(llvm::IRBuilder<> &B, Value *Left, Value *Header, Value *Count, BasicBlock *Before);
  static Instruction *beforeCondition(Instruction *End);
  Value *outOfLine(llvm::IRBuilder<> &B, uint64_t Number);
  Value *again(llvm::IRBuilder<> &B, Value *Address, unsigned Depth);
  void writeWords(llvm::IRBuilder<> &B, const Segment &S, Value *Words);
  Value *lanes(llvm::IRBuilder<> &B, const Access &A, Value *&Mask);
};

} // namespace memlens

#endif
