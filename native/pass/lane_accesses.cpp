#include "lane_accesses.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/IR/Module.h"

using namespace llvm;

namespace memlens {

namespace {

bool isMask(const Value *V) { return V->getType()->isVectorTy() && V->getType()->getScalarType()->isIntegerTy(1); }

int firstPointer(const IntrinsicInst &II) {
  for (unsigned I = 0; I < II.arg_size(); ++I)
    if (II.getArgOperand(I)->getType()->isPtrOrPtrVectorTy())
      return I;
  return -1;
}

/// llvm.vp.load(ptr, mask, length), llvm.vp.store(value, ptr, mask, length), and their gathers and strided forms.
std::optional<LaneAccess> ofPredicated(const IntrinsicInst &II, StringRef Name) {
  LaneAccess A;
  A.Writes = II.getType()->isVoidTy();
  A.Operand = firstPointer(II);
  A.T = dyn_cast<VectorType>(A.Writes ? II.getArgOperand(0)->getType() : II.getType());
  A.OneAddress =
      Name == "vp.load" || Name == "vp.store" || Name.starts_with("vp.load.") || Name.starts_with("vp.store.");
  if (!A.T || A.Operand < 0 || II.arg_size() < 3)
    return std::nullopt;
  A.Limit = II.getArgOperand(II.arg_size() - 1);
  A.Mask = II.getArgOperand(II.arg_size() - 2);
  return A;
}

/// SVE: a predicate and an address. Loads that widen return what is in memory.
std::optional<LaneAccess> ofSve(const IntrinsicInst &II, StringRef Name) {
  LaneAccess A;
  StringRef Rest = Name;
  A.Writes = Rest.consume_front("st");
  if (!A.Writes && !Rest.consume_front("ld"))
    return std::nullopt;
  if (!Rest.consume_front("nt1") && !Rest.consume_front("ff1") && !Rest.consume_front("nf1")) {
    if (Rest.empty() || Rest[0] < '1' || Rest[0] > '4')
      return std::nullopt;
    A.Vectors = Rest[0] - '0';
    Rest = Rest.drop_front();
  } else if (Name.starts_with("ldff") || Name.starts_with("ldnf")) {
    return std::nullopt; // stop at the first lane that cannot be read
  }
  if (!Rest.starts_with("."))
    return std::nullopt; // ld1rq, ld1ro: a part of the vector, repeated
  A.OneAddress = !Name.contains("gather") && !Name.contains("scatter");
  Type *T = A.Writes ? II.getArgOperand(0)->getType() : II.getType();
  if (auto *Several = dyn_cast<StructType>(T); Several && Several->getNumElements() == A.Vectors)
    T = Several->getElementType(0);
  A.T = dyn_cast<VectorType>(T);
  A.Operand = firstPointer(II);
  for (Value *Argument : II.args())
    if (isMask(Argument))
      A.Mask = Argument;
  if (!A.T || !A.Mask || A.Operand < 0 ||
      cast<VectorType>(A.Mask->getType())->getElementCount() != A.T->getElementCount())
    return std::nullopt;
  return A;
}

/// RVV: [old value | value], address, [stride | indices], [mask], length, [policy].
std::optional<LaneAccess> ofRvv(const IntrinsicInst &II, StringRef Name) {
  LaneAccess A;
  StringRef Base = Name.take_until([](char C) { return C == '.'; });
  const bool Masked = Base.consume_back(".mask") || Name.contains(".mask.");
  if (Base == "vle" || Base == "vlse" || Base == "vluxei" || Base == "vloxei")
    A.Writes = false;
  else if (Base == "vse" || Base == "vsse" || Base == "vsuxei" || Base == "vsoxei")
    A.Writes = true;
  else
    return std::nullopt;
  A.OneAddress = Base == "vle" || Base == "vse";
  A.T = dyn_cast<VectorType>(A.Writes ? II.getArgOperand(0)->getType() : II.getType());
  A.Operand = firstPointer(II);
  unsigned Length = II.arg_size() - 1;
  for (unsigned I = 0; I < II.arg_size(); ++I)
    if (isMask(II.getArgOperand(I))) {
      A.Mask = II.getArgOperand(I);
      Length = I + 1;
    }
  if (!A.T || A.Operand < 0 || (Masked && !A.Mask) || Length >= II.arg_size() ||
      !II.getArgOperand(Length)->getType()->isIntegerTy())
    return std::nullopt;
  A.Limit = II.getArgOperand(Length);
  return A;
}

} // namespace

std::optional<LaneAccess> laneAccess(const IntrinsicInst &II) {
  StringRef Name = II.getCalledFunction()->getName();
  if (!Name.consume_front("llvm."))
    return std::nullopt;
  if (Name.starts_with("vp.load") || Name.starts_with("vp.store") || Name.starts_with("vp.gather") ||
      Name.starts_with("vp.scatter") || Name.starts_with("experimental.vp.strided."))
    return ofPredicated(II, Name);
  if (Name.consume_front("aarch64.sve."))
    return ofSve(II, Name);
  if (Name.consume_front("riscv."))
    return ofRvv(II, Name);
  return std::nullopt;
}

bool isUnknownAccess(const IntrinsicInst &II) {
  StringRef Name = II.getCalledFunction()->getName();
  if (!Name.starts_with("llvm.x86.") && !Name.starts_with("llvm.aarch64.") && !Name.starts_with("llvm.riscv.") &&
      !Name.starts_with("llvm.ppc.") && !Name.starts_with("llvm.vp."))
    return false;
  for (const char *Hint : {"clflush", "clwb", "cldemote", "prefetch", ".prf", "monitor", ".dcb"}) // move no data
    if (Name.contains(Hint))
      return false;
  return II.mayReadOrWriteMemory() && firstPointer(II) >= 0;
}

} // namespace memlens
