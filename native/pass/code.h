/// The code of counting: adds, and the address that they add to.
#ifndef MEMLENS_PASS_CODE_H
#define MEMLENS_PASS_CODE_H

#include "llvm/ADT/SmallPtrSet.h"
#include "llvm/IR/IRBuilder.h"

#include <string>
#include <vector>

namespace memlens {

struct Site;

/// The descriptor of a function (ml_count_function), empty until the counters are known.
llvm::GlobalVariable *newDescriptor(llvm::Function &F);
/// Fills it in; `Table` are the bytes of its table.
void fillDescriptor(llvm::GlobalVariable *Descriptor, llvm::Function &F, unsigned Counters, unsigned TraceSites,
                    const std::string &Table);
/// The member `first_site` of it.
llvm::Value *firstSite(llvm::IRBuilder<> &B, llvm::GlobalVariable *Descriptor);
/// Makes the module refer to the symbol of our version.
void nameVersion(llvm::Module &M);

/// A variable of the runtime that each thread has, a pointer unless `T` says otherwise.
llvm::GlobalVariable *threadVariable(llvm::Module &M, llvm::StringRef Name, llvm::Type *T = nullptr);
/// Marks an access of ours: sanitizers leave it alone.
void markOurs(llvm::Instruction &I);
/// The bytes that an execution of a site moves, where they are known only when it runs; i64.
llvm::Value *bytesOf(llvm::IRBuilder<> &B, const Site &S);
/// A new block that calls `Copy`, a copy of `F`, with the arguments of `F` and returns what it returns.
llvm::BasicBlock *callCopy(llvm::Function &F, llvm::Function &Copy, llvm::BasicBlock *Before);

/// One add, not yet in the code.
struct Add {
  llvm::Instruction *Before;
  unsigned Counter;
  llvm::Value *Amount; ///< i64
};

/// Inserts the adds and what they need: the address of the counters, read at the entry and again wherever another
/// region may be in force.
class AddWriter {
public:
  AddWriter(llvm::Function &F, llvm::GlobalVariable *Descriptor) : F(F), Descriptor(Descriptor) {}
  void write(const std::vector<Add> &Adds);

private:
  llvm::Function &F;
  llvm::GlobalVariable *Descriptor;

  llvm::Value *readAddress(llvm::Instruction *Before);
};

/// Where code may be put at the start of a block.
llvm::Instruction *startOf(llvm::BasicBlock &BB);

} // namespace memlens

#endif
