#include "table.h"

#include "memlens_count.h"

#include "llvm/ADT/SmallString.h"
#include "llvm/Support/LEB128.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/raw_ostream.h"

using namespace llvm;

namespace memlens {

namespace {

class Strings {
public:
  Strings() { (*this)(""); }
  unsigned operator()(StringRef Text) {
    auto [At, New] = Numbers.try_emplace(Text, All.size());
    if (New)
      All.push_back(Text.str());
    return At->second;
  }
  std::vector<std::string> All;

private:
  StringMap<unsigned> Numbers;
};

StringRef nameOf(const DISubprogram *SP) { return SP->getLinkageName().empty() ? SP->getName() : SP->getLinkageName(); }

std::string pathOf(const DIFile *File) {
  if (!File)
    return "";
  SmallString<128> Path(File->getFilename());
  if (!sys::path::is_absolute(Path) && !File->getDirectory().empty()) {
    Path = File->getDirectory();
    sys::path::append(Path, File->getFilename());
  }
  return std::string(Path);
}

class Encoder {
public:
  Encoder(const Table &T, const Function &F) : T(T), F(F) {}

  std::string encode() {
    std::string Body = body(); // collects strings and scopes
    std::string Out;
    raw_string_ostream OS(Out);
    // Older readers still read what has no loops.
    encodeULEB128(T.Flags & ML_TABLE_LOOPS ? ML_COUNT_TABLE_VERSION : ML_COUNT_TABLE_OLDEST, OS);
    encodeULEB128(T.Flags, OS);
    encodeULEB128(Text.All.size(), OS);
    for (const std::string &S : Text.All) {
      encodeULEB128(S.size(), OS);
      OS << S;
    }
    OS << Body;
    OS.flush();
    return Out;
  }

private:
  struct Scope {
    unsigned Name, File, Line, Caller, CallLine, CallColumn;
  };
  const Table &T;
  const Function &F;
  Strings Text;
  std::vector<Scope> Scopes;
  DenseMap<std::pair<const DILocation *, const DISubprogram *>, unsigned> ScopeNumbers;

  /// Number + 1 of the inlined function that holds a location; 0 = none.
  unsigned scope(const DILocation *L) {
    const DILocation *Call = L->getInlinedAt();
    if (!Call)
      return 0;
    const DISubprogram *SP = L->getScope()->getSubprogram();
    auto Found = ScopeNumbers.find({Call, SP});
    if (Found != ScopeNumbers.end())
      return Found->second;
    unsigned Caller = scope(Call);
    Scopes.push_back(
        {Text(nameOf(SP)), Text(pathOf(SP->getFile())), SP->getLine(), Caller, Call->getLine(), Call->getColumn()});
    return ScopeNumbers[{Call, SP}] = Scopes.size();
  }

  /// Names the scopes that its loops are in: before these are written.
  std::string loops() {
    std::string Out;
    raw_string_ostream OS(Out);
    encodeULEB128(T.Loops.Loops.size(), OS);
    for (const SourceLoop &One : T.Loops.Loops) {
      const DILocation *L = One.Start;
      for (unsigned Value : {One.Parent, L ? scope(L) : 0, L ? Text(pathOf(L->getFile())) : 0, L ? L->getLine() : 0,
                             L ? L->getColumn() : 0})
        encodeULEB128(Value, OS);
    }
    for (unsigned Innermost : T.Loops.OfSite)
      encodeULEB128(Innermost, OS);
    OS.flush();
    return Out;
  }

  std::string body() {
    std::string SitesText, Out;
    raw_string_ostream Sites(SitesText), OS(Out);
    auto Number = [](raw_ostream &To, uint64_t Value) { encodeULEB128(Value, To); };
    unsigned FunctionName = Text(F.getName());
    unsigned FunctionFile = 0, FunctionLine = 0;
    if (const DISubprogram *SP = F.getSubprogram()) {
      FunctionFile = Text(pathOf(SP->getFile()));
      FunctionLine = SP->getLine();
    }
    Number(Sites, T.Sites.size());
    for (const TableSite &S : T.Sites) {
      const DILocation *L = S.S->At->getDebugLoc().get();
      for (uint64_t Value :
           {uint64_t(S.S->Kind), uint64_t(S.S->Flags), uint64_t(S.Block), uint64_t(S.Group),
            S.S->hasOwnBytes() && (!(S.S->Flags & ML_SITE_MASKED) || S.S->Scalable) ? 0 : S.S->Bytes,
            uint64_t(S.BytesCounter + 1), uint64_t(L ? scope(L) : 0), uint64_t(L ? Text(pathOf(L->getFile())) : 0),
            uint64_t(L ? L->getLine() : 0), uint64_t(L ? L->getColumn() : 0), uint64_t(Text(S.S->Callee))})
        Number(Sites, Value);
    }
    Sites.flush();
    const std::string LoopsText = T.Flags & ML_TABLE_LOOPS ? loops() : "";

    for (unsigned Value : {FunctionName, FunctionFile, FunctionLine})
      Number(OS, Value);
    Number(OS, T.Counters.size());
    for (unsigned Kind : T.Counters)
      Number(OS, Kind);
    Number(OS, T.Groups.size());
    for (const std::vector<Term> &Terms : T.Groups) {
      Number(OS, Terms.size());
      for (const Term &One : Terms) {
        Number(OS, One.Counter);
        encodeSLEB128(One.Scale, OS);
      }
    }
    Number(OS, Scopes.size());
    for (const Scope &S : Scopes)
      for (unsigned Value : {S.Name, S.File, S.Line, S.Caller, S.CallLine, S.CallColumn})
        Number(OS, Value);
    Number(OS, T.Blocks.size());
    for (const TableBlock &B : T.Blocks) {
      for (unsigned Value : {B.Group, B.LoopDepth, B.Line})
        Number(OS, Value);
      if (T.Flags & ML_TABLE_MIX)
        for (unsigned Value : {B.Operations.Integer, B.Operations.Float, B.Operations.Vector, B.Operations.Branches,
                               B.Operations.Calls, B.Operations.Prefetches, B.Operations.FloatResults})
          Number(OS, Value);
    }
    OS << SitesText;
    if (T.Flags & ML_TABLE_TRACE) {
      Number(OS, T.Traced.size());
      for (const TableTraced &One : T.Traced) {
        for (unsigned Value : {One.Site, One.Class, One.Kind})
          Number(OS, Value);
        encodeSLEB128(One.Step, OS);
        Number(OS, One.IsWritten);
        Number(OS, One.Bytes);
        Number(OS, One.StandIn);
      }
    }
    OS << LoopsText;
    OS.flush();
    return Out;
  }
};

} // namespace

unsigned lineOf(const BasicBlock &BB) {
  for (const Instruction &I : BB)
    if (const DILocation *L = I.getDebugLoc().get(); L && L->getLine())
      return L->getLine();
  return 0;
}

std::string encode(const Table &T, const Function &F) { return Encoder(T, F).encode(); }

std::string encodeRefused(unsigned Reason, const Function &F) {
  Table T;
  T.Flags = Reason;
  return Encoder(T, F).encode();
}

} // namespace memlens
