/// Untouched copies of what a region runs, for executions that are not counted.
#ifndef MEMLENS_PASS_VERSIONS_H
#define MEMLENS_PASS_VERSIONS_H

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/IR/Function.h"
#include "llvm/IR/InstrTypes.h"

#include <vector>

namespace memlens {

bool isCallOf(const llvm::Instruction &I, llvm::StringRef Name);
/// The name of a region, where it can be read from the code: the begin and the end of one may have variables of their own. "" = it cannot.
llvm::StringRef nameOfRegion(const llvm::Value *Region);

class Versions {
public:
  /// Gives every region of the function that is marked in its code a second copy of the region's body, and has the call that
  /// enters it choose.
  void copyRegions(llvm::Function &F);
  /// For a function that is itself a region: an untouched copy of it; null = it cannot have one.
  llvm::Function *copyFunction(llvm::Function &F);
  /// Calls of this function stay calls of it: it chooses for itself.
  void choosesItself(llvm::Function &F) { Choosing.insert(&F); }
  /// Has a function that others may call through a pointer choose: in an execution that is not counted its untouched
  /// copy runs.
  void dispatch(llvm::Function &F);
  /// A block that only calls a copy.
  void leaveOut(const llvm::BasicBlock *BB) { Blocks.insert(BB); }
  bool hasCopies() const { return !Blocks.empty(); }
  /// Copies the functions that copies call. May be called again.
  void finish();

  /// Blocks and functions that are not to be counted.
  bool isUntouched(const llvm::BasicBlock *BB) const { return Blocks.contains(BB); }
  bool isOurs(const llvm::Value *V) const { return Own.contains(V); } ///< code of counting itself
  bool isUntouched(const llvm::Function *F) const { return Functions.contains(F); }

private:
  llvm::DenseSet<const llvm::BasicBlock *> Blocks;
  llvm::DenseSet<const llvm::Function *> Functions, Choosing;
  llvm::DenseSet<const llvm::Value *> Own;
  llvm::DenseMap<llvm::Function *, llvm::Function *> Copies;
  std::vector<llvm::BasicBlock *> Work; ///< blocks whose calls are to lead to copies

  void copyRegion(llvm::CallInst *Enter);
  void redirect(llvm::CallBase &Call);
};

} // namespace memlens

#endif
