// SPDX-License-Identifier: Apache-2.0
// Unit headers, root entries and attribute values. Range lists are in dwarf_ranges.cpp.
#include "dwarf_file.h"

#include <dwarf.h>

#include <algorithm>

namespace memlens::symbols {

std::unique_ptr<DwarfFile> DwarfFile::open(std::shared_ptr<ElfImage> image) {
  std::unique_ptr<DwarfFile> file(new DwarfFile);
  file->info_ = image->section(".debug_info");
  file->abbrev_ = image->section(".debug_abbrev");
  if (file->info_.empty() || file->abbrev_.empty()) return nullptr;
  file->strings_ = image->section(".debug_str");
  file->line_strings_ = image->section(".debug_line_str");
  file->string_offsets_ = image->section(".debug_str_offsets");
  file->addresses_ = image->section(".debug_addr");
  file->ranges_ = image->section(".debug_ranges");
  file->range_lists_ = image->section(".debug_rnglists");
  file->line_ = image->section(".debug_line");
  file->aranges_ = image->section(".debug_aranges");
  file->image_ = std::move(image);
  file->read_unit_headers();
  if (file->units_.empty()) return nullptr;
  return file;
}

void DwarfFile::read_unit_headers() {
  ByteCursor cursor(info_);
  while (!cursor.at_end()) {
    DwarfUnit unit;
    unit.offset = cursor.offset();
    uint64_t length = cursor.u32();
    unit.format.offset_bytes = 4;
    if (length == 0xffffffff) {
      length = cursor.u64();
      unit.format.offset_bytes = 8;
    } else if (length >= 0xfffffff0) {
      return;  // reserved
    }
    if (cursor.failed() || length > cursor.remaining()) return;
    unit.end_offset = cursor.offset() + length;
    unit.format.version = cursor.u16();
    unit.unit_type = DW_UT_compile;
    if (unit.format.version >= 5) {
      unit.unit_type = cursor.u8();
      unit.format.address_bytes = cursor.u8();
      unit.abbrev_offset = cursor.unsigned_of(unit.format.offset_bytes);
      if (unit.unit_type == DW_UT_skeleton || unit.unit_type == DW_UT_split_compile) unit.dwo_id = cursor.u64();
      if (unit.unit_type == DW_UT_type || unit.unit_type == DW_UT_split_type) {
        unit.type_signature = cursor.u64();
        unit.type_entry_offset = unit.offset + cursor.unsigned_of(unit.format.offset_bytes);
      }
    } else {
      unit.abbrev_offset = cursor.unsigned_of(unit.format.offset_bytes);
      unit.format.address_bytes = cursor.u8();
    }
    unit.first_entry_offset = cursor.offset();
    const bool readable = !cursor.failed() && unit.format.version >= 2 && unit.format.version <= 5 &&
                          (unit.format.address_bytes == 4 || unit.format.address_bytes == 8) &&
                          unit.first_entry_offset <= unit.end_offset;
    if (readable) units_.push_back(unit);
    cursor = ByteCursor(info_, unit.end_offset);
  }
}

const DwarfUnit* DwarfFile::unit_containing(uint64_t offset) const {
  auto after = std::upper_bound(units_.begin(), units_.end(), offset,
                                [](uint64_t o, const DwarfUnit& u) { return o < u.offset; });
  if (after == units_.begin()) return nullptr;
  const DwarfUnit& unit = *std::prev(after);
  return offset >= unit.first_entry_offset && offset < unit.end_offset ? &unit : nullptr;
}

std::shared_ptr<const AbbreviationTable> DwarfFile::abbreviations(const DwarfUnit& unit) const {
  {
    std::lock_guard lock(abbreviations_mutex_);
    auto [first, last] = abbreviations_.equal_range(unit.abbrev_offset);
    for (; first != last; ++first)
      if (first->second.first == unit.format) return first->second.second;
  }
  auto table = std::make_shared<const AbbreviationTable>(abbrev_, unit.abbrev_offset, unit.format);
  std::lock_guard lock(abbreviations_mutex_);
  abbreviations_.emplace(unit.abbrev_offset, std::pair(unit.format, table));
  return table;
}

FormValue DwarfFile::read_form(ByteCursor& cursor, const AttributeSpec& spec, const UnitFormat& format) const {
  uint16_t form = spec.form;
  if (form == DW_FORM_indirect) {
    form = static_cast<uint16_t>(cursor.uleb128());
    if (form == DW_FORM_indirect || form == DW_FORM_implicit_const) {
      cursor.fail();
      return {};
    }
  }
  FormValue value;
  value.form = form;
  switch (form) {
    case DW_FORM_flag_present: value.number = 1; return value;
    case DW_FORM_implicit_const: value.number = static_cast<uint64_t>(spec.implicit_value); return value;
    case DW_FORM_string: value.text = cursor.c_string(); return value;
    case DW_FORM_sdata: value.number = static_cast<uint64_t>(cursor.sleb128()); return value;
    default: break;
  }
  const SkipStep step = skip_step_of(form, format);
  if (step.kind == SkipKind::fixed && step.n_bytes <= 8) value.number = cursor.unsigned_of(step.n_bytes);
  else if (step.kind == SkipKind::leb128) value.number = cursor.uleb128();
  else run_skip_step(cursor, step, format);  // blocks: no attribute we use has one
  return value;
}

std::optional<Bytes> DwarfFile::read_block(ByteCursor& cursor, const AttributeSpec& spec,
                                           const UnitFormat& format) const {
  switch (spec.form) {
    case DW_FORM_block1: return cursor.take(cursor.u8());
    case DW_FORM_block2: return cursor.take(cursor.u16());
    case DW_FORM_block4: return cursor.take(cursor.u32());
    case DW_FORM_block:
    case DW_FORM_exprloc: return cursor.take(cursor.uleb128());
    default: run_skip_step(cursor, skip_step_of(spec.form, format), format); return std::nullopt;
  }
}

UnitRoot DwarfFile::read_root(const DwarfUnit& unit) const {
  UnitRoot root;
  ByteCursor cursor(info_.first(unit.end_offset), unit.first_entry_offset);
  const uint64_t code = cursor.uleb128();
  if (cursor.failed()) return root;
  // The root's abbreviation is the table's first, whatever compiler. Reading only that one matters:
  // where .debug_aranges is missing, the roots of all units are read, tens of thousands of them.
  auto table = std::make_shared<const AbbreviationTable>(abbrev_, unit.abbrev_offset, unit.format, 1);
  const Abbreviation* entry = table->find(code);
  if (!entry) {
    table = abbreviations(unit);
    entry = table->find(code);
  }
  if (!entry) return root;
  root.tag = entry->tag;
  // DWARF 5 without an explicit base: just past the table's header.
  root.string_offsets_base = unit.format.version >= 5 ? (unit.format.offset_bytes == 8 ? 16 : 8) : 0;
  root.dwo_id = unit.dwo_id;
  if (is_split_) {
    root.string_offsets_base += unit.split.string_offsets_offset;
    root.range_lists_base =
        unit.split.range_lists_offset + (unit.format.offset_bytes == 8 ? 20 : 12);  // past the header
    root.address_base = unit.split.address_base;
  }
  FormValue name, directory, dwo_name;
  const AttributeSpec* specs = table->specs(*entry);
  for (uint32_t i = 0; i < entry->n_specs && !cursor.failed(); ++i) {
    const FormValue value = read_form(cursor, specs[i], unit.format);
    if (cursor.failed()) break;
    switch (specs[i].attribute) {
      case DW_AT_name: name = value; break;
      case DW_AT_comp_dir: directory = value; break;
      case DW_AT_language: root.language = value.number; break;
      case DW_AT_stmt_list: root.line_table_offset = value.number; break;
      case DW_AT_low_pc: root.low = value; break;
      case DW_AT_high_pc: root.high = value; break;
      case DW_AT_ranges: root.ranges = value; break;
      case DW_AT_str_offsets_base: root.string_offsets_base = value.number; break;
      case DW_AT_addr_base:
      case DW_AT_GNU_addr_base: root.address_base = value.number; break;
      case DW_AT_rnglists_base: root.range_lists_base = value.number; break;
      case DW_AT_dwo_name:
      case DW_AT_GNU_dwo_name: dwo_name = value; break;
      case DW_AT_GNU_dwo_id: root.dwo_id = value.number; break;
      case DW_AT_GNU_ranges_base: root.split_ranges_base = value.number; break;
      default: break;
    }
  }
  // Only now are the bases known that indexed strings and addresses need.
  root.name = string_of(name, unit, root);
  root.compilation_directory = string_of(directory, unit, root);
  if (!is_split_) root.dwo_name = string_of(dwo_name, unit, root);
  root.low_pc = address_of(root.low, unit, root).value_or(unit.split.low_pc);
  return root;
}

std::string_view DwarfFile::string_at(Bytes section, uint64_t offset) {
  ByteCursor cursor(section, offset);
  return cursor.c_string();
}

std::string_view DwarfFile::string_of(const FormValue& value, const DwarfUnit& unit, const UnitRoot& root) const {
  switch (value.form) {
    case DW_FORM_string: return value.text;
    case DW_FORM_strp: return debug_string(value.number);
    case DW_FORM_line_strp: return line_string(value.number);
    case DW_FORM_strp_sup:
    case DW_FORM_GNU_strp_alt: return alternate_ ? alternate_->debug_string(value.number) : std::string_view();
    case DW_FORM_strx:
    case DW_FORM_strx1:
    case DW_FORM_strx2:
    case DW_FORM_strx3:
    case DW_FORM_strx4:
    case DW_FORM_GNU_str_index: {
      if (value.number > string_offsets_.size()) return {};
      ByteCursor cursor(string_offsets_, root.string_offsets_base + value.number * unit.format.offset_bytes);
      const uint64_t offset = cursor.unsigned_of(unit.format.offset_bytes);
      return cursor.failed() ? std::string_view() : debug_string(offset);
    }
    default: return {};
  }
}

std::optional<uint64_t> DwarfFile::indexed_address(uint64_t index, const DwarfUnit& unit, const UnitRoot& root) const {
  if (index > addresses_.size()) return std::nullopt;
  ByteCursor cursor(addresses_, root.address_base + index * unit.format.address_bytes);
  const uint64_t address = cursor.unsigned_of(unit.format.address_bytes);
  return cursor.failed() ? std::nullopt : std::optional(address);
}

std::optional<uint64_t> DwarfFile::address_of(const FormValue& value, const DwarfUnit& unit,
                                              const UnitRoot& root) const {
  switch (value.form) {
    case DW_FORM_addr: return value.number;
    case DW_FORM_addrx:
    case DW_FORM_addrx1:
    case DW_FORM_addrx2:
    case DW_FORM_addrx3:
    case DW_FORM_addrx4:
    case DW_FORM_GNU_addr_index: return indexed_address(value.number, unit, root);
    default: return std::nullopt;
  }
}

std::optional<EntryReference> DwarfFile::reference_of(const FormValue& value, const DwarfUnit& unit) const {
  switch (value.form) {
    case DW_FORM_ref1:
    case DW_FORM_ref2:
    case DW_FORM_ref4:
    case DW_FORM_ref8:
    case DW_FORM_ref_udata: return EntryReference{unit.offset + value.number, false};
    case DW_FORM_ref_addr: return EntryReference{unit.split.info_offset + value.number, false};
    case DW_FORM_GNU_ref_alt:
    case DW_FORM_ref_sup4:
    case DW_FORM_ref_sup8: return EntryReference{value.number, true};
    default: return std::nullopt;  // DW_FORM_ref_sig8 names types: see TypeTable
  }
}

}  // namespace memlens::symbols
