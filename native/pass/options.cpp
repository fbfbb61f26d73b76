#include "options.h"

#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/ADT/Twine.h"

#include <cstdlib>

using namespace llvm;

namespace memlens {

static void turnOff(Options &O, StringRef Steps) {
  SmallVector<StringRef, 8> Names;
  Steps.split(Names, ',', -1, false);
  for (StringRef Name : Names) {
    if (Name == "sets")
      O.Sets = false;
    else if (Name == "constants")
      O.Constants = false;
    else if (Name == "trips")
      O.Trips = false;
    else if (Name == "exits")
      O.Exits = false;
    else if (Name == "keep")
      O.Keep = false;
    else if (Name == "publish")
      O.Publish = false;
    else if (Name == "callees")
      O.Callees = false;
    else if (Name == "tallies")
      O.Tallies = false;
    else if (Name == "flow")
      O.Flow = false;
    else if (Name == "rounds")
      O.Rounds = false;
    else if (Name == "nests")
      O.Nests = false;
    else
      O.Error = (Twine("unknown placement step '") + Name + "'").str();
  }
}

Options Options::fromEnvironment() {
  Options O;
  const char *Text = std::getenv("MEMLENS_PASS");
  StringRef Rest = Text ? Text : "";
  while (!Rest.empty()) {
    if (Rest.starts_with("functions=")) { // always the last: an expression may hold any character
      SmallVector<StringRef, 4> Patterns;
      Rest.drop_front(10).split(Patterns, '\x1f', -1, false);
      for (StringRef Pattern : Patterns) {
        Regex Expression(Pattern);
        std::string Why;
        if (Expression.isValid(Why))
          O.Functions.emplace_back(Pattern.str(), std::move(Expression));
        else
          O.Error = (Twine("the expression for functions, '") + Pattern + "', is not valid: " + Why).str();
      }
      break;
    }
    StringRef Field;
    std::tie(Field, Rest) = Rest.split(';');
    if (Field == "trace")
      O.Trace = true;
    else if (Field == "ptwrite")
      O.Trace = O.Ptwrite = true;
    else if (Field == "no-count")
      O.Count = false;
    else if (Field == "mix")
      O.Mix = true;
    else if (Field == "naive")
      O.Naive = true;
    else if (Field == "versions")
      O.Versions = true;
    else if (Field == "verify")
      O.Verify = true;
    else if (Field.starts_with("off="))
      turnOff(O, Field.drop_front(4));
    else if (!Field.empty())
      O.Error = (Twine("unknown field '") + Field + "' in MEMLENS_PASS").str();
  }
  if (O.Trace)
    O.Versions = false; // what runs untouched is not traced either
  return O;
}

} // namespace memlens
