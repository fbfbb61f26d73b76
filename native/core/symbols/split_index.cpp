// SPDX-License-Identifier: Apache-2.0
// Split DWARF files: sections of a .dwo, and the index of a .dwp (.debug_cu_index, version 2 for DWARF 4 and 5).
#include <dwarf.h>

#include <algorithm>

#include "dwarf_file.h"

namespace memlens::symbols {
namespace {

// Columns of the index. Range lists have a number of their own in version 5 only; 5 (locations) is not read.
enum : uint32_t { kInfo = 1, kAbbrev = 3, kStringOffsets = 6, kRangeLists = 8 };

constexpr size_t kMaxInfoSections = 1 << 16;

struct Contribution {
  uint64_t offset = 0, n_bytes = 0;
};

}  // namespace

std::unique_ptr<DwarfFile> DwarfFile::open_split(std::shared_ptr<ElfImage> image, const DwarfFile& skeletons) {
  std::unique_ptr<DwarfFile> file(new DwarfFile);
  file->abbrev_ = image->section(".debug_abbrev.dwo");
  file->is_split_ = true;
  file->strings_ = image->section(".debug_str.dwo");
  file->string_offsets_ = image->section(".debug_str_offsets.dwo");
  file->range_lists_ = image->section(".debug_rnglists.dwo");
  // Whatever the linker has to relocate stays in the program.
  file->addresses_ = skeletons.addresses_;
  file->ranges_ = skeletons.ranges_;
  const Bytes index = image->section(".debug_cu_index");
  // GCC and Clang give each DWARF 5 type unit a section of its own, of the same name: functions are in none of those.
  auto has_functions = [](const DwarfUnit& unit) { return unit.unit_type != DW_UT_split_type; };
  for (size_t nth = 0; nth < kMaxInfoSections; ++nth) {
    file->info_ = image->section(".debug_info.dwo", nth);
    if (file->info_.empty()) return nullptr;
    file->units_.clear();
    file->read_unit_headers();
    if (std::any_of(file->units_.begin(), file->units_.end(), has_functions)) break;
  }
  file->image_ = std::move(image);
  if (file->units_.empty()) return nullptr;
  if (!index.empty()) {
    file->is_package_ = true;
    file->read_package_index(index);
  }
  return file;
}

void DwarfFile::read_package_index(Bytes index) {
  ByteCursor cursor(index);
  uint32_t version = cursor.u32();
  if ((version & 0xffff) == 5) version = 5;  // 16 bits and padding
  const uint64_t n_columns = cursor.u32(), n_units = cursor.u32(), n_slots = cursor.u32();
  if (cursor.failed() || (version != 2 && version != 5) || n_columns == 0 || n_columns > 16) return;
  const uint64_t slots_at = cursor.offset();
  if (n_slots > cursor.remaining() / 12) return;
  const uint64_t columns_at = slots_at + n_slots * 12;
  const uint64_t table_at = columns_at + n_columns * 4, row_bytes = n_columns * 4;
  if (table_at > index.size() || n_units > (index.size() - table_at) / (2 * row_bytes)) return;
  std::vector<uint32_t> columns;
  cursor.seek(columns_at);
  for (uint64_t i = 0; i < n_columns; ++i) columns.push_back(cursor.u32());

  ByteCursor signatures(index, slots_at), rows(index, slots_at + n_slots * 8);
  for (uint64_t slot = 0; slot < n_slots; ++slot) {
    const uint64_t signature = signatures.u64(), row = rows.u32();
    if (row == 0 || row > n_units) continue;  // an empty slot, or damage
    ByteCursor offsets(index, table_at + (row - 1) * row_bytes);
    ByteCursor sizes(index, table_at + (n_units + row - 1) * row_bytes);
    Contribution info, abbrev, string_offsets, range_lists;
    for (const uint32_t column : columns) {
      const Contribution part{offsets.u32(), sizes.u32()};
      if (column == kInfo) info = part;
      if (column == kAbbrev) abbrev = part;
      if (column == kStringOffsets) string_offsets = part;
      if (column == kRangeLists && version == 5) range_lists = part;
    }
    auto unit = std::lower_bound(units_.begin(), units_.end(), info.offset,
                                 [](const DwarfUnit& u, uint64_t o) { return u.offset < o; });
    // A part may hold type units before the compilation unit.
    for (; unit != units_.end() && unit->offset < info.offset + info.n_bytes; ++unit) {
      if (unit->split.in_index) continue;  // damage: two rows with the same part
      unit->split.in_index = true;
      unit->split.info_offset = info.offset;
      unit->split.string_offsets_offset = string_offsets.offset;
      unit->split.range_lists_offset = range_lists.offset;
      unit->abbrev_offset += abbrev.offset;
      if (unit->unit_type == DW_UT_split_type) continue;
      package_units_.emplace(signature, static_cast<size_t>(unit - units_.begin()));
    }
  }
}

DwarfUnit* DwarfFile::split_unit(uint64_t dwo_id) {
  auto matches = [&](const DwarfUnit& unit) {
    if (unit.unit_type == DW_UT_split_type || unit.unit_type == DW_UT_type) return false;
    return (unit.format.version >= 5 ? unit.dwo_id : read_root(unit).dwo_id) == dwo_id;
  };
  if (is_package_) {
    const auto [first, last] = package_units_.equal_range(dwo_id);
    for (auto entry = first; entry != last; ++entry)
      if (matches(units_[entry->second])) return &units_[entry->second];
    return nullptr;
  }
  const auto found = std::find_if(units_.begin(), units_.end(), matches);
  return found == units_.end() ? nullptr : &*found;
}

}  // namespace memlens::symbols
