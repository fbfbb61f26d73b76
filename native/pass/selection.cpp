/// Follows three combines of LLVM's SelectionDAG, which looks at one block at a time:
///
///   load, of which only a part is used          ReduceLoadWidth: trunc, and with a mask of low bytes, a shift right by whole bytes
///   load, used as the amount of a shift         x86: the amount is one byte
///   load, or/and/xor with a constant, store     ReduceLoadOpStoreWidth (x86): only the bytes that change
///
/// What is not followed makes a count too large: it is what the IR says.
#include "selection.h"

#include "llvm/ADT/APInt.h"
#include "llvm/ADT/bit.h"
#include "llvm/IR/Function.h"
#include "llvm/IR/Module.h"
#include "llvm/IR/PatternMatch.h"
#include "llvm/TargetParser/Triple.h"

using namespace llvm;
using namespace llvm::PatternMatch;

namespace memlens {

namespace {

bool isX86(const Instruction &I) { return Triple(I.getModule()->getTargetTriple()).getArch() == Triple::x86_64; }

/// The only user, in the same block; null = there is another.
const Instruction *onlyUser(const Instruction &I) {
  if (!I.hasOneUse())
    return nullptr;
  const auto *User = cast<Instruction>(*I.user_begin());
  return User->getParent() == I.getParent() ? User : nullptr;
}

bool isWidth(uint64_t Bits) { return Bits == 8 || Bits == 16 || Bits == 32; }

/// Bits of a load that its only user needs; 0 = all.
uint64_t usedBits(const LoadInst &L) {
  const Instruction *User = onlyUser(L);
  if (!User)
    return 0;
  const uint64_t All = L.getType()->getIntegerBitWidth();
  if (All > 64)
    return 0;
  const APInt *Number;
  // Where a store of a part is an instruction, the load of what is stored stays whole.
  auto OnlyStored = [&](const Instruction &Part) {
    return !isX86(L) && Part.hasOneUse() && isa<StoreInst>(*Part.user_begin());
  };
  if (isa<TruncInst>(User))
    return OnlyStored(*User) ? 0 : User->getType()->getScalarSizeInBits();
  if (match(User, m_And(m_Specific(&L), m_APInt(Number))) && Number->isMask())
    return llvm::countr_one(Number->getZExtValue());
  if (match(User, m_LShr(m_Specific(&L), m_APInt(Number))) && Number->ult(All)) {
    const uint64_t Shift = Number->getZExtValue();
    const Instruction *Next = onlyUser(*User);
    if (Next && isa<TruncInst>(Next)) {
      if (OnlyStored(*Next))
        return 0;
      const uint64_t Bits = Next->getType()->getScalarSizeInBits();
      return Shift % Bits == 0 && Shift + Bits <= All ? Bits : 0;
    }
    if (Next && match(Next, m_And(m_Specific(User), m_APInt(Number))) && Number->isMask()) {
      const uint64_t Bits = llvm::countr_one(Number->getZExtValue());
      return isWidth(Bits) && Shift % Bits == 0 && Shift + Bits <= All ? Bits : 0;
    }
    return Shift % 8 == 0 ? All - Shift : 0;
  }
  const Instruction *Amount = &L;
  if (isa<ZExtInst>(User) || isa<SExtInst>(User)) {
    Amount = User;
    User = onlyUser(*User);
  }
  if (User && User->isShift() && User->getOperand(1) == Amount && User->getOperand(0) != Amount && isX86(L))
    return 8;
  return 0;
}

/// Bytes of `*p = *p op constant` that are read and written; 0 = all.
uint64_t changedBytes(const StoreInst &S) {
  const auto *Change = dyn_cast<BinaryOperator>(S.getValueOperand());
  const APInt *Number;
  if (!Change || !Change->isBitwiseLogicOp() || !Change->hasOneUse() || !match(Change->getOperand(1), m_APInt(Number)))
    return 0;
  const auto *L = dyn_cast<LoadInst>(Change->getOperand(0));
  if (!L || !L->isSimple() || !L->hasOneUse() || L->getPointerOperand() != S.getPointerOperand() ||
      L->getParent() != S.getParent())
    return 0;
  for (const Instruction *I = L->getNextNode(); I != &S; I = I->getNextNode())
    if (!I || I->mayReadOrWriteMemory())
      return 0; // another access is between them
  const unsigned All = Number->getBitWidth();
  if (All > 64)
    return 0;
  const APInt Bits = Change->getOpcode() == Instruction::And ? ~*Number : *Number;
  if (All < 16 || Bits.isZero() || Bits.isAllOnes())
    return 0;
  const uint64_t Word = Bits.getZExtValue();
  unsigned First = llvm::countr_zero(Word);
  unsigned Width = std::max<unsigned>(NextPowerOf2(63 - llvm::countl_zero(Word) - First), 8);
  if (Width == 16 && All == 32)
    Width = 32; // not worth it
  if (Width >= All)
    return 0;
  First = First / Width * Width;
  return Bits.isSubsetOf(APInt::getBitsSet(All, First, std::min(First + Width, All))) ? Width / 8 : 0;
}

} // namespace

uint64_t selectedBytes(const Instruction &I, uint64_t Bytes) {
  if (I.getFunction()->hasOptNone())
    return Bytes;
  if (const auto *S = dyn_cast<StoreInst>(&I)) {
    const uint64_t Changed = S->isSimple() && isX86(I) ? changedBytes(*S) : 0;
    return Changed ? Changed : Bytes;
  }
  const auto *L = dyn_cast<LoadInst>(&I);
  if (!L || !L->isSimple() || !L->getType()->isIntegerTy() || Bytes > 8)
    return Bytes;
  if (isX86(I))
    if (const Instruction *User = onlyUser(*L))
      if (const Instruction *Next = onlyUser(*User); Next && isa<StoreInst>(Next) && cast<StoreInst>(Next)->isSimple())
        if (const uint64_t Changed = changedBytes(*cast<StoreInst>(Next)))
          return Changed;
  const uint64_t Bits = usedBits(*L);
  return isWidth(Bits) ? std::min(Bits / 8, Bytes) : Bytes;
}

} // namespace memlens
