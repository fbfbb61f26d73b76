// SPDX-License-Identifier: Apache-2.0
// The DWARF of one ELF file: unit headers, attribute values, strings, addresses, range lists and
// references. Everything here reads; nothing interprets functions or lines (unit_index,
// dwarf_lines).
//
// We decode .debug_info ourselves rather than through libdw: a symboliser wants one linear pass per
// unit with a handful of attributes, from several threads at once, and with every access bounded.
// Threading: all const members may be called from several threads at once.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "dwarf_abbrev.h"
#include "elf_image.h"

namespace memlens::symbols {

// Of a unit in a split file (.dwo, .dwp) only.
struct SplitBases {
  // What the skeleton unit in the program says.
  uint64_t address_base = 0, ranges_base = 0, low_pc = 0;
  // Where a package has the unit's parts of its sections; 0 in a .dwo.
  uint64_t info_offset = 0, string_offsets_offset = 0, range_lists_offset = 0;
  bool in_index = false;  // of a package
};

struct DwarfUnit {
  uint64_t offset = 0;  // of the header in .debug_info
  uint64_t first_entry_offset = 0;
  uint64_t end_offset = 0;
  uint64_t abbrev_offset = 0;
  UnitFormat format;
  uint8_t unit_type = 0;           // DW_UT_*; DW_UT_compile before DWARF 5
  uint64_t type_signature = 0;     // DW_UT_type only
  uint64_t type_entry_offset = 0;  // DW_UT_type only: the type, in .debug_info
  uint64_t dwo_id = 0;             // DW_UT_skeleton and DW_UT_split_compile; before DWARF 5 the root has it
  SplitBases split;
};

// An attribute as stored: indices and offsets are resolved by DwarfFile on demand.
struct FormValue {
  uint16_t form = 0;  // 0 = attribute absent
  uint64_t number = 0;
  std::string_view text;  // DW_FORM_string only
  bool present() const { return form != 0; }
};

// What the unit's own entry says; the bases are needed to read every other entry of the unit.
struct UnitRoot {
  uint16_t tag = 0;
  uint64_t language = 0;  // DW_LANG_*
  std::string_view name, compilation_directory;
  std::optional<uint64_t> line_table_offset;
  uint64_t low_pc = 0;
  uint64_t string_offsets_base = 0, address_base = 0, range_lists_base = 0;
  FormValue low, high, ranges;
  // A skeleton unit: the functions are in a .dwo file; only lines and ranges are here.
  std::string_view dwo_name;
  uint64_t dwo_id = 0;
  uint64_t split_ranges_base = 0;  // DWARF 4: of the split unit's lists in .debug_ranges
};

struct AddressRange {
  uint64_t begin, end;
};

struct EntryReference {
  uint64_t offset = 0;        // in .debug_info
  bool in_alternate = false;  // of the alternate (dwz) file
};

class DwarfFile {
 public:
  // Null when the image has no usable .debug_info.
  static std::unique_ptr<DwarfFile> open(std::shared_ptr<ElfImage> image);

  // A .dwo file or a .dwp package, whose addresses are in the file with the skeleton units, which must
  // live longer. Null when it has no usable .debug_info.dwo.
  static std::unique_ptr<DwarfFile> open_split(std::shared_ptr<ElfImage> image, const DwarfFile& skeletons);
  // The unit of a split file that has this id, or null. Its skeleton's bases have to be filled in before anything
  // else of it is read.
  DwarfUnit* split_unit(uint64_t dwo_id);

  const std::vector<DwarfUnit>& units() const { return units_; }
  const DwarfUnit* unit_containing(uint64_t offset) const;
  Bytes info() const { return info_; }
  Bytes line_section() const { return line_; }
  Bytes aranges_section() const { return aranges_; }
  void set_alternate(std::unique_ptr<DwarfFile> alternate) { alternate_ = std::move(alternate); }
  const DwarfFile* alternate() const { return alternate_.get(); }

  std::shared_ptr<const AbbreviationTable> abbreviations(const DwarfUnit& unit) const;
  UnitRoot read_root(const DwarfUnit& unit) const;

  FormValue read_form(ByteCursor& cursor, const AttributeSpec& spec, const UnitFormat& format) const;
  // The contents of a block or expression; nullopt, with the field passed over, for other forms.
  std::optional<Bytes> read_block(ByteCursor& cursor, const AttributeSpec& spec, const UnitFormat& format) const;
  std::string_view string_of(const FormValue& value, const DwarfUnit& unit, const UnitRoot& root) const;
  std::optional<uint64_t> address_of(const FormValue& value, const DwarfUnit& unit, const UnitRoot& root) const;
  // The address at an index of the unit's part of .debug_addr.
  std::optional<uint64_t> indexed_address(uint64_t index, const DwarfUnit& unit, const UnitRoot& root) const;
  std::optional<EntryReference> reference_of(const FormValue& value, const DwarfUnit& unit) const;
  // Ranges of an entry from its low_pc/high_pc or ranges attribute, at most `max_ranges`.
  void append_ranges(const FormValue& low, const FormValue& high, const FormValue& ranges, const DwarfUnit& unit,
                     const UnitRoot& root, size_t max_ranges, std::vector<AddressRange>& out) const;
  // A NUL-terminated string at an offset of .debug_str or .debug_line_str; "" when out of bounds.
  std::string_view debug_string(uint64_t offset) const { return string_at(strings_, offset); }
  std::string_view line_string(uint64_t offset) const { return string_at(line_strings_, offset); }

 private:
  DwarfFile() = default;
  void read_unit_headers();
  void read_package_index(Bytes index);
  static std::string_view string_at(Bytes section, uint64_t offset);
  void append_list_v4(uint64_t offset, const DwarfUnit& unit, const UnitRoot& root, size_t max_ranges,
                      std::vector<AddressRange>& out) const;
  void append_list_v5(uint64_t offset, const DwarfUnit& unit, const UnitRoot& root, size_t max_ranges,
                      std::vector<AddressRange>& out) const;

  std::shared_ptr<ElfImage> image_;
  Bytes info_, abbrev_, strings_, line_strings_, string_offsets_, addresses_, ranges_, range_lists_, line_, aranges_;
  std::vector<DwarfUnit> units_;
  bool is_split_ = false, is_package_ = false;
  std::unordered_multimap<uint64_t, size_t> package_units_;  // by id, of a package
  std::unique_ptr<DwarfFile> alternate_;
  mutable std::mutex abbreviations_mutex_;
  // Link-time-optimised programs share one table between all units; others have one each.
  mutable std::multimap<uint64_t, std::pair<UnitFormat, std::shared_ptr<const AbbreviationTable>>> abbreviations_;
};

}  // namespace memlens::symbols
