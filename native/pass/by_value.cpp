#include "by_value.h"

#include "llvm/IR/DataLayout.h"
#include "llvm/IR/Instructions.h"
#include "llvm/IR/Module.h"
#include "llvm/TargetParser/Triple.h"

using namespace llvm;

namespace memlens {

namespace {

bool isForPower(const Module &M) { return Triple(M.getTargetTriple()).isPPC64(); }

/// POWER (ELFv2): arguments take doublewords of the parameter save area in order, and the first eight of them are in registers. A structure
/// that does not fit the registers left is copied as a whole, and those doublewords that have registers are loaded as well.
class SaveArea {
public:
  explicit SaveArea(const DataLayout &DL) : DL(DL) {}

  void add(Type *T) {
    const uint64_t Bytes = DL.getTypeAllocSize(T).getKnownMinValue();
    align(T->isVectorTy() ? 16 : 8);
    At += alignTo(Bytes, 8);
  }
  /// Bytes of the structure that are in registers.
  uint64_t add(Type *T, MaybeAlign Alignment) {
    const uint64_t Bytes = DL.getTypeAllocSize(T).getKnownMinValue();
    align(std::min<uint64_t>(std::max<uint64_t>(Alignment.valueOrOne().value(), 8), 16));
    const uint64_t Left = At < Registers ? Registers - At : 0;
    At += alignTo(Bytes, 8);
    return std::min(Left, alignTo(Bytes, 8));
  }

private:
  static constexpr uint64_t Registers = 8 * 8;
  const DataLayout &DL;
  uint64_t At = 0;

  void align(uint64_t To) { At = alignTo(At, To); }
};

/// A tail call that hands on the caller's own argument in the place where it already is (x86-64: sibling calls). Both have the same
/// arguments before it, so that the places are the same.
bool staysInPlace(const CallBase &Call, unsigned Operand) {
  const auto *Direct = dyn_cast<CallInst>(&Call);
  const auto *Own = dyn_cast<Argument>(Call.getArgOperand(Operand)->stripPointerCasts());
  const Function &F = *Call.getFunction();
  if (!Direct || !Direct->isTailCall() || !Own || !Own->hasByValAttr() || Own->getArgNo() != Operand ||
      F.hasOptNone() || Call.arg_size() != F.arg_size() || F.isVarArg())
    return false;
  for (unsigned I = 0; I < Call.arg_size(); ++I)
    if (Call.getArgOperand(I)->getType() != F.getArg(I)->getType() ||
        Call.isByValArgument(I) != F.getArg(I)->hasByValAttr() ||
        (Call.isByValArgument(I) && Call.getParamByValType(I) != F.getArg(I)->getParamByValType()))
      return false;
  const Instruction *Next = Call.getNextNode();
  while (Next && Next->isDebugOrPseudoInst())
    Next = Next->getNextNode();
  const auto *Return = dyn_cast_or_null<ReturnInst>(Next);
  return Return && (!Return->getReturnValue() || Return->getReturnValue() == &Call) &&
         Call.getType() == F.getReturnType();
}

} // namespace

std::vector<PassedByValue> passedByValue(const CallBase &Call) {
  std::vector<PassedByValue> Found;
  if (!Call.hasByValArgument())
    return Found;
  const Module &M = *Call.getModule();
  const DataLayout &DL = M.getDataLayout();
  const bool Power = isForPower(M);
  SaveArea Area(DL);
  for (unsigned I = 0; I < Call.arg_size(); ++I) {
    if (!Call.isByValArgument(I)) {
      Area.add(Call.getArgOperand(I)->getType());
      continue;
    }
    Type *T = Call.getParamByValType(I);
    PassedByValue One;
    One.Operand = I;
    One.CopiedBytes = DL.getTypeAllocSize(T).getKnownMinValue();
    if (Power) {
      One.LoadedBytes = Area.add(T, Call.getParamAlign(I));
      if (One.LoadedBytes == alignTo(One.CopiedBytes, 8)) // all of it
        One.CopiedBytes = 0;
    } else if (staysInPlace(Call, I)) {
      continue;
    }
    if (One.CopiedBytes || One.LoadedBytes)
      Found.push_back(One);
  }
  return Found;
}

uint64_t storedOnEntry(const Function &F) {
  if (!isForPower(*F.getParent()))
    return 0;
  SaveArea Area(F.getParent()->getDataLayout());
  uint64_t Bytes = 0;
  for (const Argument &A : F.args())
    if (A.hasByValAttr())
      Bytes += Area.add(A.getParamByValType(), A.getParamAlign());
    else
      Area.add(A.getType());
  return Bytes;
}

} // namespace memlens
