/// The table of a function: what its counters mean (format/memlens_count.h).
#ifndef MEMLENS_PASS_TABLE_H
#define MEMLENS_PASS_TABLE_H

#include "sites.h"
#include "source_loops.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/IR/DebugInfoMetadata.h"

#include <string>
#include <vector>

namespace memlens {

struct Term {
  unsigned Counter;
  int64_t Scale;
};

struct TableBlock {
  unsigned Group = 0, LoopDepth = 0, Line = 0;
  Mix Operations;
};

struct TableSite {
  const Site *S;
  unsigned Block, Group;
  int BytesCounter; ///< -1 = none
};

/// An address that a trace records, or a constant one that it does not.
struct TableTraced {
  unsigned Site; ///< number in `Sites`
  unsigned Class, Kind;
  int64_t Step;
  bool IsWritten;   ///< of a copy: the side that it writes
  uint64_t Bytes;   ///< of one recorded access; 0 = the trace tells
  unsigned StandIn; ///< of an implied one: 1 + place of the recorded one that is executed with it; 0 = none
};

/// Everything that a table tells.
struct Table {
  unsigned Flags = 0;
  std::vector<unsigned> Counters; ///< enum ml_counter_kind
  std::vector<std::vector<Term>> Groups{{}};
  std::vector<TableBlock> Blocks;
  std::vector<TableSite> Sites;
  std::vector<TableTraced> Traced; ///< the recorded ones first
  SourceLoops Loops;               ///< with ML_TABLE_LOOPS
};

/// The line of a block's first instruction that has one; 0 = none has. Asked before counting splits the block.
unsigned lineOf(const llvm::BasicBlock &BB);

/// The bytes of section memlens_tables.
std::string encode(const Table &T, const llvm::Function &F);
/// Those of a function that is not counted; `Reason` is a flag of enum ml_count_table_flags.
std::string encodeRefused(unsigned Reason, const llvm::Function &F);

} // namespace memlens

#endif
