// SPDX-License-Identifier: Apache-2.0
// Address ranges of an entry: low_pc/high_pc, .debug_ranges (DWARF 2-4), .debug_rnglists (DWARF 5).
#include <dwarf.h>

#include "dwarf_file.h"

namespace memlens::symbols {

void DwarfFile::append_ranges(const FormValue& low, const FormValue& high, const FormValue& ranges,
                              const DwarfUnit& unit, const UnitRoot& root, size_t max_ranges,
                              std::vector<AddressRange>& out) const {
  if (ranges.present()) {
    if (unit.format.version < 5)
      return append_list_v4(unit.split.ranges_base + ranges.number, unit, root, max_ranges, out);
    uint64_t offset = unit.split.range_lists_offset + ranges.number;
    if (ranges.form == DW_FORM_rnglistx) {
      if (ranges.number > range_lists_.size()) return;
      ByteCursor cursor(range_lists_, root.range_lists_base + ranges.number * unit.format.offset_bytes);
      offset = root.range_lists_base + cursor.unsigned_of(unit.format.offset_bytes);
      if (cursor.failed()) return;
    }
    return append_list_v5(offset, unit, root, max_ranges, out);
  }
  const auto begin = address_of(low, unit, root);
  if (!begin || !high.present() || max_ranges == 0) return;
  const auto absolute_end = address_of(high, unit, root);
  const uint64_t end = absolute_end ? *absolute_end : *begin + high.number;
  if (end > *begin) out.push_back({*begin, end});
}

void DwarfFile::append_list_v4(uint64_t offset, const DwarfUnit& unit, const UnitRoot& root, size_t max_ranges,
                               std::vector<AddressRange>& out) const {
  ByteCursor cursor(ranges_, offset);
  const unsigned address_bytes = unit.format.address_bytes;
  const uint64_t base_marker = address_bytes == 8 ? UINT64_MAX : UINT32_MAX;
  uint64_t base = root.low_pc;
  for (size_t n_added = 0; n_added < max_ranges;) {
    const uint64_t begin = cursor.unsigned_of(address_bytes);
    const uint64_t end = cursor.unsigned_of(address_bytes);
    if (cursor.failed() || (begin == 0 && end == 0)) return;
    if (begin == base_marker) {
      base = end;
    } else if (end > begin) {
      out.push_back({base + begin, base + end});
      ++n_added;
    }
  }
}

void DwarfFile::append_list_v5(uint64_t offset, const DwarfUnit& unit, const UnitRoot& root, size_t max_ranges,
                               std::vector<AddressRange>& out) const {
  ByteCursor cursor(range_lists_, offset);
  const unsigned address_bytes = unit.format.address_bytes;
  std::optional<uint64_t> base = root.low_pc;
  for (size_t n_added = 0; n_added < max_ranges;) {
    std::optional<uint64_t> begin, end;
    switch (cursor.u8()) {
      case DW_RLE_base_addressx: base = indexed_address(cursor.uleb128(), unit, root); break;
      case DW_RLE_base_address: base = cursor.unsigned_of(address_bytes); break;
      case DW_RLE_startx_endx:
        begin = indexed_address(cursor.uleb128(), unit, root);
        end = indexed_address(cursor.uleb128(), unit, root);
        break;
      case DW_RLE_startx_length:
        begin = indexed_address(cursor.uleb128(), unit, root);
        if (const uint64_t n_bytes = cursor.uleb128(); begin) end = *begin + n_bytes;
        break;
      case DW_RLE_start_end:
        begin = cursor.unsigned_of(address_bytes);
        end = cursor.unsigned_of(address_bytes);
        break;
      case DW_RLE_start_length:
        begin = cursor.unsigned_of(address_bytes);
        end = *begin + cursor.uleb128();
        break;
      case DW_RLE_offset_pair: {
        const uint64_t from = cursor.uleb128(), to = cursor.uleb128();
        if (base) begin = *base + from, end = *base + to;
        break;
      }
      default: return;  // DW_RLE_end_of_list, or damage
    }
    if (cursor.failed()) return;
    if (begin && end && *end > *begin) {
      out.push_back({*begin, *end});
      ++n_added;
    }
  }
}

}  // namespace memlens::symbols
