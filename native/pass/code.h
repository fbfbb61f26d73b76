/// The code of counting: adds, and the address that they add to.
#ifndef MEMLENS_PASS_CODE_H
#define MEMLENS_PASS_CODE_H

#include "llvm/ADT/SmallPtrSet.h"
#include "llvm/IR/IRBuilder.h"

#include <string>
#include <vector>

namespace memlens {

/// The descriptor of a function (ml_count_function), empty until the counters are known.
llvm::GlobalVariable *newDescriptor(llvm::Function &F);
/// Fills it in; `Table` are the bytes of its table.
void fillDescriptor(llvm::GlobalVariable *Descriptor, llvm::Function &F, unsigned Counters, const std::string &Table);
/// Makes the module refer to the symbol of our version.
void nameVersion(llvm::Module &M);

/// A variable of the runtime that each thread has.
llvm::GlobalVariable *threadVariable(llvm::Module &M, llvm::StringRef Name);
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
