/// `#pragma memlens begin(name)` and `#pragma memlens end`: regions on stock clang, in C and C++.
///
/// In two steps, because a pragma is seen before the parser knows where it is, and because the code must not
/// forbid what was allowed without it (a cleanup variable forbids jumps past its declaration).
///
/// 1. Lexing. The handler injects, with the location of the pragma but as a system header, so that no warning
///    option of the program judges it:
///
///      begin(x)   (void)sizeof("a region of memlens is inside a function");   may stand behind a label
///                 static struct __memlens_region R = {"x", 0};
///                 struct __memlens_region *G;
///                 G = __memlens_enter(&R);
///                 __memlens_close(&G);                                        the end, kept here for step 2
///      end(x)     (void)sizeof("a region of memlens is inside a function");   may stand behind a label
///                 (void)sizeof("memlens end:x");                              the place of the end
///
///    The first of each is a mark: when it is not in the block that holds the rest, it became the body of an `if`
///    without braces. At file scope it is what the compiler's error shows.
///
/// 2. The finished function, before code is generated for it. Begins and ends of one block are paired; G gets a cleanup
///    that closes the region however its block is left; the close is moved to the end's place. Where a jump would
///    come past G's declaration, the region becomes a block of its own:
///
///      goto fail; … G; …; end; …; fail:    →    goto fail; … { G; …; } …; fail:
///
///    which is possible unless a variable of the region is used after its end, or the jump leads into the region. These are
///    errors that say so.
#include "clang/AST/ASTConsumer.h"
#include "clang/AST/ASTContext.h"
#include "clang/AST/Attr.h"
#include "clang/AST/RecursiveASTVisitor.h"
#include "clang/Frontend/CompilerInstance.h"
#include "clang/Frontend/FrontendPluginRegistry.h"
#include "clang/Lex/LiteralSupport.h"
#include "clang/Lex/Pragma.h"
#include "clang/Lex/Preprocessor.h"
#include "clang/Lex/PreprocessorOptions.h"

#include <map>

using namespace clang;

namespace {

constexpr char GuardPrefix[] = "__memlens_guard_";
constexpr char Mark[] = "a region of memlens is inside a function";
constexpr char EndMark[] = "memlens end:";

/// Before everything else in a translation unit. The names after __asm__ are those of format/memlens_count.h; the
/// functions have names of their own here, so that a program may declare the real ones as it likes.
std::string prelude(const LangOptions &Language) {
  std::string Text = "# 1 \"<memlens>\" 1 3\n";
  if (Language.CPlusPlus)
    Text += "extern \"C\" {\n";
  Text += R"(struct __memlens_region { const char *name; unsigned long long number; };
int __memlens_pragma_enter(struct __memlens_region *) __asm__("__memlens_count_enter") __attribute__((__nothrow__));
void __memlens_pragma_leave(struct __memlens_region *) __asm__("__memlens_count_leave") __attribute__((__nothrow__));
static __inline__ __attribute__((__always_inline__, __unused__, __nodebug__, __nothrow__))
struct __memlens_region *__memlens_enter(struct __memlens_region *region) {
  __memlens_pragma_enter(region);
  return region;
}
static __inline__ __attribute__((__always_inline__, __unused__, __nodebug__, __nothrow__))
void __memlens_close(struct __memlens_region **guard) {
  struct __memlens_region *region = *guard;
  if (region) { *guard = 0; __memlens_pragma_leave(region); }
}
)";
  if (Language.CPlusPlus)
    Text += "}\n";
  return Text + "# 1 \"<built-in>\" 2\n";
}

// ---- step 1 ------------------------------------------------------------------------------------------------------

class RegionPragma : public PragmaHandler {
public:
  RegionPragma(bool &Used, bool HasPrelude) : PragmaHandler("memlens"), Used(Used), HasPrelude(HasPrelude) {}

  void HandlePragma(Preprocessor &PP, PragmaIntroducer Introducer, Token &First) override {
    SourceLocation At = First.getLocation();
    Token Tok;
    PP.LexUnexpandedToken(Tok);
    const IdentifierInfo *What = Tok.getIdentifierInfo();
    if (!What || (!What->isStr("begin") && !What->isStr("end"))) {
      report(PP, Tok.getLocation(), DiagnosticsEngine::Warning,
             "'#pragma memlens' is followed by begin(name), end or end(name); ignored");
      return;
    }
    bool IsBegin = What->isStr("begin");
    PP.LexUnexpandedToken(Tok);
    std::string Name;
    bool HasName = Tok.is(tok::l_paren);
    if (HasName && !readName(PP, Tok, Name))
      return;
    if (IsBegin && !HasName) {
      report(PP, Tok.getLocation(), DiagnosticsEngine::Error, "a region needs a name: #pragma memlens begin(name)");
      return;
    }
    if (Tok.isNot(tok::eod))
      report(PP, Tok.getLocation(), DiagnosticsEngine::Warning,
             "extra tokens at the end of '#pragma memlens' are ignored");
    while (Tok.isNot(tok::eod))
      PP.LexUnexpandedToken(Tok);
    if (!HasPrelude) {
      report(PP, At, DiagnosticsEngine::Warning,
             "'#pragma memlens' is not possible in a unit of a named module; ignored (use memlens.h)");
      return;
    }
    Used = true;
    inject(PP, At, IsBegin ? begin(PP, At, Name) : end(Name));
  }

private:
  bool &Used;
  bool HasPrelude;
  std::map<std::pair<unsigned, unsigned>, unsigned> Repeated; ///< begins at one place: of one expansion of a macro

  static void report(Preprocessor &PP, SourceLocation At, DiagnosticsEngine::Level Level, StringRef Text) {
    DiagnosticsEngine &D = PP.getDiagnostics();
    D.Report(At, D.getDiagnosticIDs()->getCustomDiagID(static_cast<DiagnosticIDs::Level>(Level), Text));
  }

  /// Reads "(name)"; Tok becomes the token behind it. Names are kept as they are written: no escapes.
  static bool readName(Preprocessor &PP, Token &Tok, std::string &Name) {
    PP.LexUnexpandedToken(Tok);
    SourceLocation At = Tok.getLocation();
    if (Tok.is(tok::string_literal)) {
      StringLiteralParser Literal(Tok, PP);
      if (Literal.hadError)
        return false;
      Name = Literal.GetString().str();
    } else if (const IdentifierInfo *II = Tok.getIdentifierInfo()) {
      Name = II->getName().str();
    }
    if (Name.empty() || Name.find_first_of("\"\\\n") != std::string::npos) {
      report(PP, At, DiagnosticsEngine::Error,
             "the name of a region is an identifier or a string without quotes and backslashes");
      return false;
    }
    PP.LexUnexpandedToken(Tok);
    if (Tok.isNot(tok::r_paren)) {
      report(PP, Tok.getLocation(), DiagnosticsEngine::Error, "expected ')' after the name of a region");
      return false;
    }
    PP.LexUnexpandedToken(Tok);
    return true;
  }

  /// Variables are named by place, not by a running number: an inline function is the same in every file.
  std::string begin(Preprocessor &PP, SourceLocation At, StringRef Name) {
    PresumedLoc Place = PP.getSourceManager().getPresumedLoc(At);
    std::pair<unsigned, unsigned> Key(Place.getLine(), Place.getColumn());
    std::string N = std::to_string(Key.first) + "_" + std::to_string(Key.second);
    if (unsigned Before = Repeated[{At.getRawEncoding(), 0}]++)
      N += "_" + std::to_string(Before);
    std::string R = "__memlens_region_" + N, G = GuardPrefix + N;
    return mark(Mark) + "static struct __memlens_region " + R + " = {\"" + Name.str() + "\", 0};" +
           "struct __memlens_region *" + G + ";" + G + " = __memlens_enter(&" + R + ");" + "__memlens_close(&" + G +
           ");";
  }

  static std::string end(StringRef Name) { return mark(Mark) + mark(EndMark + Name.str()); }

  static std::string mark(StringRef Text) { return "(void)sizeof(\"" + Text.str() + "\");"; }

  static void inject(Preprocessor &PP, SourceLocation At, StringRef Text) {
    SourceManager &SM = PP.getSourceManager();
    PresumedLoc Place = SM.getPresumedLoc(At);
    FileID File = SM.createFileID(llvm::MemoryBuffer::getMemBufferCopy("\n" + Text.str() + "\n", "<memlens>"),
                                  SrcMgr::C_System, 0, 0, SM.getExpansionLoc(At));
    // What follows the first line is, to diagnostics and debug information, the pragma's own line.
    SM.AddLineNote(SM.getLocForStartOfFile(File), Place.getLine(), SM.getLineTableFilenameID(Place.getFilename()),
                   false, false, SrcMgr::C_System);
    Lexer Raw(File, SM.getBufferOrFake(File), SM, PP.getLangOpts());
    SmallVector<Token, 48> Tokens;
    for (Token Tok;;) {
      Raw.LexFromRawLexer(Tok);
      if (Tok.is(tok::eof))
        break;
      if (Tok.is(tok::raw_identifier))
        PP.LookUpIdentifierInfo(Tok);
      Tokens.push_back(Tok);
    }
    auto Copy = std::make_unique<Token[]>(Tokens.size());
    std::copy(Tokens.begin(), Tokens.end(), Copy.get());
    PP.EnterTokenStream(std::move(Copy), Tokens.size(), /*DisableMacroExpansion=*/true, /*IsReinject=*/false);
  }
};

// ---- step 2 ------------------------------------------------------------------------------------------------------

VarDecl *guardOf(Stmt *S) {
  auto *Declaration = dyn_cast_or_null<DeclStmt>(S);
  if (!Declaration || !Declaration->isSingleDecl())
    return nullptr;
  auto *Var = dyn_cast<VarDecl>(Declaration->getSingleDecl());
  return Var && Var->getIdentifier() && Var->getName().starts_with(GuardPrefix) ? Var : nullptr;
}

/// The text of a mark, "" if S is none.
StringRef markOf(Stmt *S) {
  auto *Cast = dyn_cast_or_null<CStyleCastExpr>(S);
  auto *Size = Cast ? dyn_cast<UnaryExprOrTypeTraitExpr>(Cast->getSubExpr()->IgnoreParenImpCasts()) : nullptr;
  if (!Size || Size->isArgumentType())
    return "";
  auto *Text = dyn_cast<StringLiteral>(Size->getArgumentExpr()->IgnoreParenImpCasts());
  return Text && Text->getCharByteWidth() == 1 ? Text->getString() : "";
}

/// The statement behind labels and cases.
Stmt *behindLabels(Stmt *S) {
  while (S)
    if (auto *Label = dyn_cast<LabelStmt>(S))
      S = Label->getSubStmt();
    else if (auto *Case = dyn_cast<SwitchCase>(S))
      S = Case->getSubStmt();
    else
      break;
  return S;
}

/// Calls Do for S and everything in it that belongs to the same function.
template <typename Callback> void forEach(Stmt *S, const Callback &Do) {
  if (!S)
    return;
  Do(S);
  if (isa<LambdaExpr>(S) || isa<BlockExpr>(S))
    return;
  if (auto *Captured = dyn_cast<CapturedStmt>(S)) // the code of an OpenMP construct, which is not among its children
    forEach(Captured->getCapturedStmt(), Do);
  for (Stmt *Child : S->children())
    forEach(Child, Do);
}

class Pairing {
public:
  Pairing(ASTContext &Context, Stmt *Body, bool IsPattern, bool IsInstance)
      : Context(Context), Body(Body), Changes(!IsPattern), Reports(!IsInstance) {}

  void run() {
    SmallVector<CompoundStmt *, 8> Blocks;
    forEach(Body, [&](Stmt *S) {
      if (auto *Block = dyn_cast<CompoundStmt>(S))
        Blocks.push_back(Block);
    });
    for (CompoundStmt *Block : Blocks)
      pair(Block);
  }

private:
  ASTContext &Context;
  Stmt *Body;
  bool Changes, Reports;

  void report(SourceLocation At, DiagnosticIDs::Level Level, const std::string &Text, StringRef Name,
              SourceLocation Other = SourceLocation()) {
    DiagnosticsEngine &D = Context.getDiagnostics();
    unsigned ID = D.getDiagnosticIDs()->getCustomDiagID(Level, Text);
    D.Report(At, ID) << Name;
    if (Other.isValid())
      D.Report(Other, D.getDiagnosticIDs()->getCustomDiagID(DiagnosticIDs::Note, "the open region begins here"));
  }

  /// Where the pragma is that a location was injected for.
  SourceLocation pragmaAt(SourceLocation Injected) {
    SourceManager &SM = Context.getSourceManager();
    SourceLocation At = SM.getIncludeLoc(SM.getFileID(SM.getExpansionLoc(Injected)));
    return At.isValid() ? At : Injected;
  }

  struct Begin {
    size_t Index;
    VarDecl *Guard;
    std::string Name;
  };

  void pair(CompoundStmt *Block) {
    SmallVector<Begin, 4> Open;
    auto IsMarked = [&](size_t I, size_t Distance) {
      return I >= Distance && markOf(behindLabels(Block->body_begin()[I - Distance])) == Mark;
    };
    for (size_t I = 0; I < Block->size(); I++) {
      Stmt *S = Block->body_begin()[I];
      if (VarDecl *Guard = guardOf(S)) {
        if (Guard->hasAttr<CleanupAttr>() || I + 2 >= Block->size())
          continue;
        Open.push_back({I, Guard, nameOf(Block->body_begin()[I + 1])});
        if (!IsMarked(I, 2) && Reports)
          report(pragmaAt(Guard->getLocation()), DiagnosticIDs::Error,
                 "region '%0' begins where only one statement may stand; put braces around it", Open.back().Name);
        continue;
      }
      StringRef End = markOf(S);
      if (!End.consume_front(EndMark))
        continue;
      SourceLocation At = pragmaAt(S->getBeginLoc());
      if (!IsMarked(I, 1) && Reports)
        report(At, DiagnosticIDs::Error, "a region ends where only one statement may stand; put braces around it", "");
      if (Open.empty()) {
        if (Reports)
          report(At, DiagnosticIDs::Error, "'#pragma memlens end' without a begin in the same block", "");
        continue;
      }
      Begin B = Open.pop_back_val();
      if (!End.empty() && End != B.Name && Reports)
        report(At, DiagnosticIDs::Error, "this ends region '%0', but '" + B.Name + "' is open", End,
               pragmaAt(B.Guard->getLocation()));
      close(Block, B, I);
    }
    for (Begin &B : Open) {
      if (Reports)
        report(pragmaAt(B.Guard->getLocation()), DiagnosticIDs::Warning,
               "region '%0' has no '#pragma memlens end' in this block: it ends with the block", B.Name);
      close(Block, B, Block->size());
    }
  }

  static std::string nameOf(Stmt *Enter) {
    std::string Name;
    forEach(Enter, [&](Stmt *S) {
      auto *Ref = dyn_cast<DeclRefExpr>(S);
      auto *Region = Ref ? dyn_cast<VarDecl>(Ref->getDecl()) : nullptr;
      if (Region && Region->isStaticLocal() && Region->getInit())
        forEach(const_cast<Expr *>(Region->getInit()), [&](Stmt *Part) {
          if (auto *Text = dyn_cast<StringLiteral>(Part))
            Name = Text->getString().str();
        });
    });
    return Name;
  }

  /// Closes the region that begins at B and ends at End (Block->size(): with the block).
  void close(CompoundStmt *Block, const Begin &B, size_t End) {
    Stmt **Children = Block->body_begin();
    auto *Close = dyn_cast<CallExpr>(skipped(Children[B.Index + 2]));
    FunctionDecl *Function = Close ? Close->getDirectCallee() : nullptr;
    if (!Changes || !Function)
      return;
    size_t N = Block->size();
    bool OwnBlock = false;
    if (isJumpedTo(Children, B.Index + 1, N)) {
      if (isJumpedTo(Children, B.Index + 1, std::min(End, N))) {
        report(pragmaAt(B.Guard->getLocation()), DiagnosticIDs::Error, "a jump leads into region '%0' past its begin",
               B.Name);
        return;
      }
      if (End == N || usedAfter(Children, B.Index, End, N)) {
        report(
            pragmaAt(B.Guard->getLocation()), DiagnosticIDs::Error,
            "a jump leads past the begin of region '%0' to a place in the same block; declare the region's variables before it, "
            "or put braces around it",
            B.Name);
        return;
      }
      OwnBlock = true;
    }
    B.Guard->addAttr(CleanupAttr::CreateImplicit(Context, Function));
    SourceLocation At = Children[B.Index]->getBeginLoc();
    Stmt *Leave = Children[B.Index + 2];
    Children[B.Index + 2] = new (Context) NullStmt(At);
    if (OwnBlock) { // its cleanup closes the region
      SourceLocation Last = Children[End]->getEndLoc();
      Children[End] = new (Context) NullStmt(Last);
      ArrayRef<Stmt *> Inside(Children + B.Index, End - B.Index + 1);
      Stmt *Nested = CompoundStmt::Create(Context, Inside, FPOptionsOverride(), At, Last);
      for (size_t I = B.Index + 1; I <= End; I++)
        Children[I] = new (Context) NullStmt(Last);
      Children[B.Index] = Nested;
    } else if (End < N) {
      Children[End] = Leave;
    }
  }

  static Stmt *skipped(Stmt *S) {
    if (auto *E = dyn_cast<Expr>(S))
      return E->IgnoreUnlessSpelledInSource();
    return S;
  }

  /// Whether something outside of the range First..Last of a block's statements jumps to a label or case inside.
  bool isJumpedTo(Stmt **Children, size_t First, size_t Last) {
    llvm::SmallPtrSet<const Stmt *, 8> InnerCases, InnerJumps;
    SmallVector<const SwitchCase *, 8> Cases;
    llvm::SmallPtrSet<const LabelDecl *, 8> Labels;
    for (size_t I = First; I < Last; I++)
      forEach(Children[I], [&](Stmt *S) {
        if (auto *Switch = dyn_cast<SwitchStmt>(S))
          for (const SwitchCase *C = Switch->getSwitchCaseList(); C; C = C->getNextSwitchCase())
            InnerCases.insert(C);
        if (auto *Case = dyn_cast<SwitchCase>(S))
          Cases.push_back(Case);
        if (auto *Label = dyn_cast<LabelStmt>(S))
          Labels.insert(Label->getDecl());
        if (isa<GotoStmt>(S))
          InnerJumps.insert(S);
      });
    for (const SwitchCase *Case : Cases)
      if (!InnerCases.contains(Case))
        return true;
    if (Labels.empty())
      return false;
    bool Found = false;
    forEach(Body, [&](Stmt *S) {
      if (auto *Goto = dyn_cast<GotoStmt>(S))
        Found = Found || (Labels.contains(Goto->getLabel()) && !InnerJumps.contains(Goto));
      if (auto *Address = dyn_cast<AddrLabelExpr>(S)) // a computed goto may be anywhere
        Found = Found || Labels.contains(Address->getLabel());
      if (auto *Asm = dyn_cast<GCCAsmStmt>(S))
        for (unsigned I = 0; I < Asm->getNumLabels(); I++)
          Found = Found || Labels.contains(Asm->getLabelExpr(I)->getLabel());
    });
    return Found;
  }

  /// Whether ending the life of the region's own variables at its end could be noticed.
  bool usedAfter(Stmt **Children, size_t First, size_t End, size_t N) {
    llvm::SmallPtrSet<const Decl *, 8> Own;
    bool Noticed = false;
    for (size_t I = First + 1; I < End; I++) {
      auto *Declaration = dyn_cast<DeclStmt>(Children[I]);
      if (!Declaration)
        continue;
      for (Decl *D : Declaration->decls()) {
        auto *Var = dyn_cast<VarDecl>(D);
        if (!Var || !Var->hasLocalStorage() || guardOf(Children[I]))
          continue;
        // In C++ an object may be referred to in ways that are not seen here; its jumps rarely pass declarations.
        Noticed = Noticed || Context.getLangOpts().CPlusPlus || Var->getType()->isArrayType();
        Own.insert(Var);
      }
    }
    if (Own.empty() || Noticed)
      return Noticed;
    auto Names = [&](Stmt *S) {
      forEach(S, [&](Stmt *Part) {
        if (auto *Ref = dyn_cast<DeclRefExpr>(Part))
          Noticed = Noticed || Own.contains(Ref->getDecl());
      });
    };
    for (size_t I = First; I < N; I++)
      forEach(Children[I], [&](Stmt *S) {
        auto *Unary = dyn_cast<UnaryOperator>(S);
        auto *Cast = dyn_cast<CastExpr>(S);
        if (I > End)
          Names(S);
        else if ((Unary && Unary->getOpcode() == UO_AddrOf) || (Cast && Cast->getCastKind() == CK_ArrayToPointerDecay))
          Names(S);
      });
    return Noticed;
  }
};

class Functions : public RecursiveASTVisitor<Functions> {
public:
  explicit Functions(ASTContext &Context) : Context(Context) {}
  bool VisitFunctionDecl(FunctionDecl *F) {
    if (F->doesThisDeclarationHaveABody())
      Pairing(Context, F->getBody(), F->isDependentContext(), F->isTemplateInstantiation()).run();
    return true;
  }
  bool VisitLambdaExpr(LambdaExpr *L) {
    CXXMethodDecl *Call = L->getCallOperator();
    bool IsInstance = false;
    for (const DeclContext *C = Call; C; C = C->getParent())
      if (auto *F = dyn_cast<FunctionDecl>(C))
        IsInstance = IsInstance || F->isTemplateInstantiation();
    Pairing(Context, L->getBody(), Call->isDependentContext(), IsInstance).run();
    return true;
  }
  bool VisitBlockDecl(BlockDecl *B) {
    Pairing(Context, B->getBody(), B->isDependentContext(), false).run();
    return true;
  }

private:
  ASTContext &Context;
};

class RegionConsumer : public ASTConsumer {
public:
  RegionConsumer(CompilerInstance &CI) : CI(CI) {}
  bool Used = false;

  bool HandleTopLevelDecl(DeclGroupRef Group) override {
    if (Used)
      for (Decl *D : Group)
        Functions(CI.getASTContext()).TraverseDecl(D);
    return true;
  }
  void HandleInlineFunctionDefinition(FunctionDecl *F) override {
    if (Used)
      Functions(CI.getASTContext()).TraverseDecl(F);
  }

private:
  CompilerInstance &CI;
};

/// Nothing may be declared before a module declaration, also not by the compiler.
bool mayBeModuleUnit(CompilerInstance &CI) {
  if (!CI.getLangOpts().CPlusPlusModules)
    return false;
  SourceManager &SM = CI.getSourceManager();
  StringRef Text = SM.getBufferData(SM.getMainFileID());
  while (!Text.empty()) {
    StringRef Line;
    std::tie(Line, Text) = Text.split('\n');
    Line = Line.ltrim();
    Line.consume_front("export");
    Line = Line.ltrim();
    if (Line.consume_front("module") && (Line.empty() || !(isAlphanumeric(Line[0]) || Line[0] == '_')))
      return true;
  }
  return false;
}

class RegionAction : public PluginASTAction {
protected:
  // Made only where code is parsed: with -E the pragma stays in the text.
  std::unique_ptr<ASTConsumer> CreateASTConsumer(CompilerInstance &CI, StringRef) override {
    auto Consumer = std::make_unique<RegionConsumer>(CI);
    Consumer->Used = !CI.getPreprocessorOpts().ImplicitPCHInclude.empty(); // templates in it may hold regions
    Preprocessor &PP = CI.getPreprocessor();
    bool HasPrelude = !mayBeModuleUnit(CI);
    PP.AddPragmaHandler(new RegionPragma(Consumer->Used, HasPrelude));
    if (HasPrelude)
      PP.setPredefines(prelude(CI.getLangOpts()) + PP.getPredefines());
    return Consumer;
  }
  bool ParseArgs(const CompilerInstance &, const std::vector<std::string> &) override { return true; }
  ActionType getActionType() override { return AddBeforeMainAction; }
};

} // namespace

static FrontendPluginRegistry::Add<RegionAction> Registered("memlens", "regions marked by #pragma memlens");
