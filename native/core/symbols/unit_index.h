// SPDX-License-Identifier: Apache-2.0
// Functions, inlined calls and lines of one compilation unit, indexed by address in a single pass
// over its entries. Names are not read here: most indexed functions are never asked for.
#pragma once

#include <cstdint>
#include <vector>

#include "dwarf_file.h"
#include "dwarf_lines.h"
#include "interval_map.h"
#include "split_units.h"

namespace memlens::symbols {

struct Scope {
  uint64_t entry_offset;          // in .debug_info of UnitIndex::entries: where the name is
  uint32_t parent;                // IntervalMap::kNone at the top
  uint32_t call_file, call_line;  // where an inlined call was written, in its parent
  uint16_t call_column;
  bool inlined;
};

struct UnitIndex {
  UnitRoot root;
  const DwarfFile* entries = nullptr;  // the file of the scopes: a split one, where there is one
  std::vector<Scope> scopes;
  IntervalMap scope_by_address;
  LineTable lines;
  std::vector<AddressRange> function_ranges;  // only when asked for: units that declare no ranges

  // Pure; may run on several threads at once. Damaged units give what came before the damage.
  // `split` has the unit's entries if it is a skeleton; without it those of the skeleton are used.
  static UnitIndex build(const DwarfFile& dwarf, const DwarfUnit& unit, const SplitUnit& split, const CodeRanges& code,
                         bool keep_function_ranges);
};

}  // namespace memlens::symbols
