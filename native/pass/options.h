/// What the driver asks of the pass, through the environment variable MEMLENS_PASS.
#ifndef MEMLENS_PASS_OPTIONS_H
#define MEMLENS_PASS_OPTIONS_H

#include "llvm/Support/Regex.h"

#include <string>
#include <utility>
#include <vector>

namespace memlens {

struct Options {
  bool Count = true;     ///< counters
  bool Trace = false;    ///< addresses
  bool Ptwrite = false;  ///< addresses, by an instruction of the processor
  bool Mix = false;      ///< operation counts of every block
  bool Naive = false;    ///< one counter for each site
  bool Versions = false; ///< untouched copies of region bodies
  bool Verify = false;   ///< check the code that was made (for tests)
  // The steps of placement, each of which can be turned off.
  bool Sets = true;      ///< one counter for code that always runs equally often
  bool Constants = true; ///< loops of constant trip count
  bool Trips = true;     ///< loops whose trip count is known on entry
  bool Exits = true;     ///< loops whose trip count a variable tells on leaving
  bool Keep = true;      ///< a register counts in other loops
  bool Publish = true;   ///< long loops write their count now and then
  bool Callees = true;   ///< functions of the module that are seen to return do not end sets
  bool Flow = true;      ///< no counter where others tell
  bool Rounds = true;    ///< of traces: loops ask once a round whether a window begins
  bool Nests = true;     ///< of traces: loops around others have a copy that runs far from windows
  bool Tallies = true;   ///< variables of the program tell how often an edge was passed
  std::vector<std::pair<std::string, llvm::Regex>> Functions; ///< expressions for functions that are regions
  std::string Error;                                          ///< what could not be read, "" = nothing

  static Options fromEnvironment();
};

} // namespace memlens

#endif
