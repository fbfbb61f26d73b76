#include "callees.h"

#include "sites.h"

#include "llvm/IR/Instructions.h"

using namespace llvm;

namespace memlens {

static const char *Mark = "memlens-returns";

/// The code that runs is the code that we see, and it can come back.
static bool mayBeMarked(const Function &F) {
  if (F.isDeclaration() || !F.hasExactDefinition() || !(F.hasLocalLinkage() || F.isDSOLocal()) ||
      F.hasFnAttribute(Attribute::Naked) || F.hasFnAttribute(Attribute::NoReturn) ||
      F.hasFnAttribute(Attribute::ReturnsTwice))
    return false;
  bool Returns = false;
  for (const BasicBlock &BB : F) {
    const Instruction *End = BB.getTerminator();
    if (isa<UnreachableInst>(End) || (!isa<CallBase>(End) && End->mayThrow()))
      return false; // a trap, which a handler may jump away from, or an exception on its way out
    Returns |= isa<ReturnInst>(End);
  }
  return Returns;
}

static bool callsUnknown(const Function &F) {
  for (const BasicBlock &BB : F)
    for (const Instruction &I : BB)
      if (isOpaque(I))
        return true;
  return false;
}

ReturningCallees::ReturningCallees(Module &M, bool Look) : M(M) {
  if (!Look)
    return;
  std::vector<Function *> Marked;
  for (Function &F : M)
    if (mayBeMarked(F)) {
      F.addFnAttr(Mark);
      Marked.push_back(&F);
    }
  // Functions that call each other all return unless one of them does something else.
  for (bool Changed = true; Changed;) {
    Changed = false;
    for (Function *&F : Marked)
      if (F && callsUnknown(*F)) {
        F->removeFnAttr(Mark);
        F = nullptr;
        Changed = true;
      }
  }
}

ReturningCallees::~ReturningCallees() {
  for (Function &F : M)
    F.removeFnAttr(Mark);
}

bool isReturning(const CallBase &Call) {
  const Function *Callee = Call.getCalledFunction();
  return Callee && Callee->hasFnAttribute(Mark);
}

} // namespace memlens
