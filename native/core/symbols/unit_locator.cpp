// SPDX-License-Identifier: Apache-2.0
#include "unit_locator.h"

#include <dwarf.h>

#include <algorithm>

namespace memlens::symbols {

UnitLocator::UnitLocator(const DwarfFile& dwarf, const CodeRanges& code) {
  const std::vector<DwarfUnit>& units = dwarf.units();
  std::vector<bool> covered(units.size());
  read_aranges(dwarf, code, covered);
  std::vector<AddressRange> found;
  for (uint32_t i = 0; i < units.size(); ++i) {
    const DwarfUnit& unit = units[i];
    if (covered[i] || unit.unit_type == DW_UT_type || unit.unit_type == DW_UT_partial) continue;
    const UnitRoot root = dwarf.read_root(unit);
    if (root.tag != DW_TAG_compile_unit && root.tag != DW_TAG_skeleton_unit) continue;
    found.clear();
    dwarf.append_ranges(root.low, root.high, root.ranges, unit, root, 1 << 20, found);
    if (found.empty()) units_without_ranges_.push_back(i);
    for (const AddressRange& r : found)
      if (code.contains(r.begin)) ranges_.push_back({r.begin, r.end, i, 0});
  }
  units_by_address_ = IntervalMap::flatten(std::vector(ranges_));
  if (units_without_ranges_.empty()) ranges_ = {};
}

void UnitLocator::read_aranges(const DwarfFile& dwarf, const CodeRanges& code, std::vector<bool>& covered) {
  const std::vector<DwarfUnit>& units = dwarf.units();
  const Bytes section = dwarf.aranges_section();
  for (uint64_t set_offset = 0; set_offset < section.size();) {
    ByteCursor cursor(section, set_offset);
    uint64_t length = cursor.u32();
    unsigned offset_bytes = 4;
    if (length == 0xffffffff) length = cursor.u64(), offset_bytes = 8;
    if (cursor.failed() || length > cursor.remaining()) return;
    const uint64_t end = cursor.offset() + length;
    const uint16_t version = cursor.u16();
    const uint64_t unit_offset = cursor.unsigned_of(offset_bytes);
    const unsigned address_bytes = cursor.u8();
    const unsigned segment_bytes = cursor.u8();
    auto unit = std::lower_bound(units.begin(), units.end(), unit_offset,
                                 [](const DwarfUnit& u, uint64_t o) { return u.offset < o; });
    const bool usable = !cursor.failed() && version == 2 && segment_bytes == 0 &&
                        (address_bytes == 4 || address_bytes == 8) && unit != units.end() &&
                        unit->offset == unit_offset;
    if (usable) {
      const auto owner = static_cast<uint32_t>(unit - units.begin());
      const uint64_t tuple_bytes = 2 * address_bytes;
      const uint64_t header_bytes = cursor.offset() - set_offset;
      cursor.seek(set_offset + (header_bytes + tuple_bytes - 1) / tuple_bytes * tuple_bytes);
      while (!cursor.failed() && cursor.offset() + tuple_bytes <= end) {
        const uint64_t begin = cursor.unsigned_of(address_bytes);
        const uint64_t n_bytes = cursor.unsigned_of(address_bytes);
        if (begin == 0 && n_bytes == 0) break;
        if (!code.contains(begin) || begin + n_bytes < begin) continue;
        ranges_.push_back({begin, begin + n_bytes, owner, 0});
        covered[owner] = true;
      }
    }
    set_offset = end;
  }
}

void UnitLocator::add_found_ranges(std::vector<NestedRange> found) {
  units_without_ranges_.clear();
  ranges_.insert(ranges_.end(), found.begin(), found.end());
  units_by_address_ = IntervalMap::flatten(std::move(ranges_));
  ranges_ = {};
}

}  // namespace memlens::symbols
