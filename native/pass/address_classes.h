/// What can be said before the program runs about the addresses that a site accesses.
#ifndef MEMLENS_PASS_ADDRESS_CLASSES_H
#define MEMLENS_PASS_ADDRESS_CLASSES_H

#include "llvm/Analysis/LoopInfo.h"
#include "llvm/Analysis/ScalarEvolution.h"
#include "llvm/IR/Function.h"

#include <memory>

namespace memlens {

struct AddressClass {
  unsigned Class; ///< enum ml_trace_class
  unsigned Kind;  ///< enum ml_trace_kind
  int64_t Step;   ///< bytes
};

/// Classes of a function's addresses. Code that was compiled without optimisation keeps its variables in the frame, where
/// nothing is known of them: a copy of the function with registers for variables is looked at instead.
class Classifier {
public:
  Classifier(llvm::Function &F, llvm::LoopInfo &LI, llvm::ScalarEvolution &SE);
  ~Classifier();

  /// Of the address that `At` accesses through its operand number `Operand`.
  AddressClass of(const llvm::Instruction &At, unsigned Operand) const;

private:
  struct Promoted;
  llvm::LoopInfo &LI;
  llvm::ScalarEvolution &SE;
  std::unique_ptr<Promoted> Copy;
};

} // namespace memlens

#endif
