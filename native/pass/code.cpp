#include "code.h"

#include "llvm_versions.h"
#include "memlens_count.h"
#include "sites.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/PostOrderIterator.h"
#include "llvm/IR/CFG.h"
#include "llvm/IR/Constants.h"
#include "llvm/IR/DebugInfoMetadata.h"
#include "llvm/IR/Module.h"
#include "llvm/Transforms/Utils/ModuleUtils.h"
#include "llvm/Transforms/Utils/SSAUpdater.h"

using namespace llvm;

#define ML_STRING_(Text) #Text
#define ML_STRING(Text) ML_STRING_(Text)

namespace memlens {

Instruction *startOf(BasicBlock &BB) {
  if (&BB == &BB.getParent()->getEntryBlock())
    return &*BB.getFirstNonPHIOrDbgOrAlloca();
  return &*BB.getFirstInsertionPt();
}

static StructType *descriptorType(LLVMContext &C) {
  Type *I64 = Type::getInt64Ty(C), *I32 = Type::getInt32Ty(C);
  return StructType::get(C, {I64, I64, I32, I32, I64, I32, I32}); // ml_count_function
}

/// Kept and dropped with the function, by the linker too.
static void bind(GlobalVariable *GV, Function &F) {
  GV->setComdat(F.getComdat());
  GV->setMetadata(LLVMContext::MD_associated, MDNode::get(F.getContext(), ValueAsMetadata::get(&F)));
}

GlobalVariable *newDescriptor(Function &F) {
  auto *GV = new GlobalVariable(*F.getParent(), descriptorType(F.getContext()), false, GlobalValue::PrivateLinkage,
                                nullptr, "memlens.function." + F.getName());
  GV->setSection("memlens_functions");
  GV->setAlignment(Align(8));
  bind(GV, F);
  return GV;
}

/// The address of `To` minus that of `From`, which the linker knows.
static Constant *distance(Constant *To, Constant *From) {
  Type *I64 = Type::getInt64Ty(To->getContext());
  return ConstantExpr::getSub(ConstantExpr::getPtrToInt(To, I64), ConstantExpr::getPtrToInt(From, I64));
}

void fillDescriptor(GlobalVariable *Descriptor, Function &F, unsigned Counters, unsigned TraceSites,
                    const std::string &Table) {
  LLVMContext &C = F.getContext();
  Type *I64 = Type::getInt64Ty(C), *I32 = Type::getInt32Ty(C);
  Constant *Bytes = ConstantDataArray::getString(C, Table, false);
  auto *GV = new GlobalVariable(*F.getParent(), Bytes->getType(), true, GlobalValue::PrivateLinkage, Bytes,
                                "memlens.table." + F.getName());
  GV->setSection("memlens_tables");
  GV->setAlignment(Align(1));
  bind(GV, F);
  Constant *Here = ConstantExpr::getGetElementPtr(
      descriptorType(C), Descriptor, ArrayRef<Constant *>{ConstantInt::get(I32, 0), ConstantInt::get(I32, 1)});
  Descriptor->setInitializer(ConstantStruct::get(
      descriptorType(C), {ConstantInt::get(I64, 0), distance(GV, Here), ConstantInt::get(I32, Counters),
                          ConstantInt::get(I32, Table.size()), ConstantInt::get(I64, 0),
                          ConstantInt::get(I32, TraceSites), ConstantInt::get(I32, 0)}));
}

Value *firstSite(IRBuilder<> &B, GlobalVariable *Descriptor) {
  Value *Member = B.CreateConstInBoundsGEP2_32(descriptorType(B.getContext()), Descriptor, 0, 4);
  LoadInst *First = B.CreateAlignedLoad(B.getInt64Ty(), Member, Align(8), "memlens.site");
  markOurs(*First);
  return First;
}

void nameVersion(Module &M) {
  LLVMContext &C = M.getContext();
  Constant *Symbol = M.getOrInsertGlobal(ML_STRING(ML_COUNT_ABI_SYMBOL), Type::getInt8Ty(C));
  cast<GlobalVariable>(Symbol)->setVisibility(GlobalValue::HiddenVisibility);
  auto *GV = new GlobalVariable(M, Type::getInt64Ty(C), true, GlobalValue::PrivateLinkage, nullptr, "memlens.version");
  GV->setInitializer(distance(Symbol, GV));
  GV->setSection("memlens_version");
  appendToUsed(M, {GV});
}

GlobalVariable *threadVariable(Module &M, StringRef Name, Type *T) {
  if (GlobalVariable *Known = M.getNamedGlobal(Name))
    return Known;
  return new GlobalVariable(M, T ? T : PointerType::get(M.getContext(), 0), false, GlobalValue::ExternalLinkage,
                            nullptr, Name, nullptr, GlobalValue::InitialExecTLSModel);
}

BasicBlock *callCopy(Function &F, Function &Copy, BasicBlock *Before) {
  LLVMContext &C = F.getContext();
  BasicBlock *BB = BasicBlock::Create(C, "memlens.untouched", &F, Before);
  IRBuilder<> B(BB);
  if (DISubprogram *SP = F.getSubprogram())
    B.SetCurrentDebugLocation(DILocation::get(C, SP->getLine(), 0, SP));
  SmallVector<Value *, 8> Arguments;
  for (Argument &A : F.args())
    Arguments.push_back(&A);
  CallInst *Result = B.CreateCall(Copy.getFunctionType(), &Copy, Arguments);
  Result->setCallingConv(F.getCallingConv());
  Result->setAttributes(F.getAttributes().removeFnAttributes(C));
  // Nothing of this frame is left to do, unless arguments lie in it.
  if (none_of(F.args(), [](const Argument &A) { return A.hasPassPointeeByValueCopyAttr(); }))
    Result->setTailCall();
  if (F.getReturnType()->isVoidTy())
    B.CreateRetVoid();
  else
    B.CreateRet(Result);
  return BB;
}

void markOurs(Instruction &I) { I.setMetadata(LLVMContext::MD_nosanitize, MDNode::get(I.getContext(), {})); }

/// How many lanes take part, in 64 bits.
static Value *activeLanes(IRBuilder<> &B, const Site &S) {
  Type *I64 = B.getInt64Ty();
  Module *M = B.GetInsertBlock()->getModule();
  if (!S.Mask) { // the first ones; a length beyond all lanes means all of them
    Value *All = ConstantInt::get(I64, S.Lanes.getKnownMinValue());
    if (S.Lanes.isScalable())
      All = B.CreateMul(B.CreateCall(intrinsicDeclaration(M, Intrinsic::vscale, {I64})), All);
    return B.CreateBinaryIntrinsic(Intrinsic::umin, B.CreateZExtOrTrunc(S.Limit, I64), All);
  }
  Value *Mask = S.Mask;
  auto *T = cast<VectorType>(Mask->getType());
  if (const unsigned Width = T->getScalarSizeInBits(); Width > 1) { // the sign says it
    Mask = B.CreateBitCast(Mask, VectorType::get(B.getIntNTy(Width), T->getElementCount()));
    Mask = B.CreateICmpSLT(Mask, Constant::getNullValue(Mask->getType()));
  }
  if (S.Limit) {
    Function *First = intrinsicDeclaration(M, Intrinsic::get_active_lane_mask, {Mask->getType(), I64});
    Mask = B.CreateAnd(Mask, B.CreateCall(First, {ConstantInt::get(I64, 0), B.CreateZExt(S.Limit, I64)}));
  }
  if (auto *Fixed = dyn_cast<FixedVectorType>(T)) {
    Value *Bits = B.CreateBitCast(Mask, B.getIntNTy(Fixed->getNumElements()));
    return B.CreateZExtOrTrunc(B.CreateUnaryIntrinsic(Intrinsic::ctpop, Bits), I64);
  }
  // Elements as wide as a register of 128 bits holds, and wide enough for the sum: a vector has at most 256 lanes times vectors in a group.
  const unsigned Width = std::max<unsigned>(128 / PowerOf2Ceil(T->getElementCount().getKnownMinValue()), 16);
  Value *Ones = B.CreateZExt(Mask, VectorType::get(B.getIntNTy(std::min(Width, 64u)), T->getElementCount()));
  return B.CreateZExtOrTrunc(B.CreateAddReduce(Ones), I64);
}

Value *bytesOf(IRBuilder<> &B, const Site &S) {
  Type *I64 = B.getInt64Ty();
  if (S.Size)
    return S.Unit == 1 ? B.CreateZExtOrTrunc(S.Size, I64)
                       : B.CreateMul(B.CreateZExtOrTrunc(S.Size, I64), ConstantInt::get(I64, S.Unit));
  if (S.Mask || S.Limit)
    return B.CreateMul(activeLanes(B, S), ConstantInt::get(I64, S.LaneBytes));
  Function *Scale = intrinsicDeclaration(B.GetInsertBlock()->getModule(), Intrinsic::vscale, {I64});
  return B.CreateMul(B.CreateCall(Scale), ConstantInt::get(I64, S.Bytes));
}

Value *AddWriter::readAddress(Instruction *Before) {
  Module &M = *F.getParent();
  LLVMContext &C = F.getContext();
  Type *I64 = Type::getInt64Ty(C), *Pointer = PointerType::get(C, 0);
  GlobalVariable *Base = threadVariable(M, "__memlens_count_base");
  IRBuilder<> B(Before);
  B.SetCurrentDebugLocation(DebugLoc());
  LoadInst *Address = B.CreateAlignedLoad(Pointer, Base, Align(8), "memlens.base");
  LoadInst *Offset = B.CreateAlignedLoad(I64, Descriptor, Align(8), "memlens.offset");
  markOurs(*Address);
  markOurs(*Offset);
  // Frozen, so that it is one value and one register: instruction selection would hold the base and the offset, and add
  // them at each use.
  return B.CreateFreeze(B.CreateGEP(B.getInt8Ty(), Address, Offset), "memlens.counters");
}

void AddWriter::write(const std::vector<Add> &Adds) {
  if (Adds.empty())
    return;
  // What a block does to the address.
  struct Facts {
    bool Uses = false, ReadsAtStart = false, NeedsIn = false, NeedsOut = false;
    Instruction *LastOpaque = nullptr; // not a terminator
    bool OpaqueEnd = false;
  };
  DenseMap<BasicBlock *, Facts> All;
  std::vector<BasicBlock *> Order;
  for (BasicBlock *BB : post_order(&F.getEntryBlock())) {
    Order.push_back(BB);
    Facts &B = All[BB];
    for (Instruction &I : *BB)
      if (isOpaque(I)) {
        if (I.isTerminator())
          B.OpaqueEnd = true;
        else
          B.LastOpaque = &I;
      }
  }
  for (BasicBlock *BB : Order) {
    if (BB == &F.getEntryBlock() || BB->isLandingPad())
      All[BB].ReadsAtStart = true;
    if (All[BB].OpaqueEnd)
      for (BasicBlock *Next : successors(BB))
        All[Next].ReadsAtStart = true;
  }
  for (const Add &A : Adds)
    if (All.count(A.Before->getParent()))
      All[A.Before->getParent()].Uses = true;
  for (bool Changed = true; Changed;) {
    Changed = false;
    for (BasicBlock *BB : Order) {
      Facts &B = All[BB];
      bool Out = false;
      for (BasicBlock *Next : successors(BB))
        Out |= All[Next].NeedsIn && !All[Next].ReadsAtStart;
      bool In = B.Uses || (Out && !B.LastOpaque);
      Changed |= Out != B.NeedsOut || In != B.NeedsIn;
      B.NeedsOut = Out;
      B.NeedsIn = In;
    }
  }

  SSAUpdater Values;
  Values.Initialize(PointerType::get(F.getContext(), 0), "memlens.counters");
  DenseMap<BasicBlock *, Value *> AtStart;
  for (BasicBlock *BB : Order) {
    Facts &B = All[BB];
    Value *Last = nullptr;
    if (B.ReadsAtStart && B.NeedsIn)
      Last = AtStart[BB] = readAddress(startOf(*BB));
    if (B.LastOpaque && B.NeedsOut)
      Last = readAddress(B.LastOpaque->getNextNode());
    if (Last)
      Values.AddAvailableValue(BB, Last);
  }
  Type *I64 = Type::getInt64Ty(F.getContext());
  for (const Add &A : Adds) {
    BasicBlock *BB = A.Before->getParent();
    if (!All.count(BB))
      continue; // cannot be reached
    Value *&Address = AtStart[BB];
    if (!Address)
      Address = Values.GetValueInMiddleOfBlock(BB);
    IRBuilder<> B(A.Before);
    B.SetCurrentDebugLocation(DebugLoc());
    Value *Counter = B.CreateConstGEP1_64(B.getInt8Ty(), Address, 8 * uint64_t(A.Counter));
    LoadInst *Old = B.CreateAlignedLoad(I64, Counter, Align(8));
    StoreInst *New = B.CreateAlignedStore(B.CreateAdd(Old, A.Amount), Counter, Align(8));
    markOurs(*Old);
    markOurs(*New);
  }
}

} // namespace memlens
