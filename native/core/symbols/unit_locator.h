// SPDX-License-Identifier: Apache-2.0
// Which compilation unit holds an address: .debug_aranges where it covers a unit, otherwise the
// unit's own ranges. Units that state neither are listed, to be indexed when all else fails.
#pragma once

#include <cstdint>
#include <vector>

#include "dwarf_file.h"
#include "dwarf_lines.h"
#include "interval_map.h"

namespace memlens::symbols {

class UnitLocator {
 public:
  UnitLocator(const DwarfFile& dwarf, const CodeRanges& code);

  // Position in DwarfFile::units(), or IntervalMap::kNone.
  uint32_t unit_at(uint64_t vaddr) const { return units_by_address_.owner_at(vaddr); }
  const std::vector<uint32_t>& units_without_ranges() const { return units_without_ranges_; }
  // Adds what indexing the units without ranges found out; they are then no longer listed.
  void add_found_ranges(std::vector<NestedRange> found);

 private:
  void read_aranges(const DwarfFile& dwarf, const CodeRanges& code, std::vector<bool>& covered);

  std::vector<NestedRange> ranges_;
  IntervalMap units_by_address_;
  std::vector<uint32_t> units_without_ranges_;
};

}  // namespace memlens::symbols
