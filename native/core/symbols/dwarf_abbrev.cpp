// SPDX-License-Identifier: Apache-2.0
#include "dwarf_abbrev.h"

#include <dwarf.h>

namespace memlens::symbols {

SkipStep skip_step_of(uint64_t form, const UnitFormat& format) {
  auto fixed = [](uint32_t n_bytes) { return SkipStep{SkipKind::fixed, n_bytes}; };
  switch (form) {
    case DW_FORM_flag_present:
    case DW_FORM_implicit_const: return fixed(0);
    case DW_FORM_data1:
    case DW_FORM_flag:
    case DW_FORM_ref1:
    case DW_FORM_strx1:
    case DW_FORM_addrx1: return fixed(1);
    case DW_FORM_data2:
    case DW_FORM_ref2:
    case DW_FORM_strx2:
    case DW_FORM_addrx2: return fixed(2);
    case DW_FORM_strx3:
    case DW_FORM_addrx3: return fixed(3);
    case DW_FORM_data4:
    case DW_FORM_ref4:
    case DW_FORM_ref_sup4:
    case DW_FORM_strx4:
    case DW_FORM_addrx4: return fixed(4);
    case DW_FORM_data8:
    case DW_FORM_ref8:
    case DW_FORM_ref_sig8:
    case DW_FORM_ref_sup8: return fixed(8);
    case DW_FORM_data16: return fixed(16);
    case DW_FORM_addr: return fixed(format.address_bytes);
    case DW_FORM_ref_addr:  // DWARF 2 used the address width here
      return fixed(format.version <= 2 ? format.address_bytes : format.offset_bytes);
    case DW_FORM_strp:
    case DW_FORM_line_strp:
    case DW_FORM_strp_sup:
    case DW_FORM_sec_offset:
    case DW_FORM_GNU_ref_alt:
    case DW_FORM_GNU_strp_alt: return fixed(format.offset_bytes);
    case DW_FORM_sdata:
    case DW_FORM_udata:
    case DW_FORM_ref_udata:
    case DW_FORM_strx:
    case DW_FORM_addrx:
    case DW_FORM_loclistx:
    case DW_FORM_rnglistx:
    case DW_FORM_GNU_addr_index:
    case DW_FORM_GNU_str_index: return {SkipKind::leb128, 0};
    case DW_FORM_string: return {SkipKind::c_string, 0};
    case DW_FORM_block1: return {SkipKind::block1, 0};
    case DW_FORM_block2: return {SkipKind::block2, 0};
    case DW_FORM_block4: return {SkipKind::block4, 0};
    case DW_FORM_block:
    case DW_FORM_exprloc: return {SkipKind::block_leb, 0};
    case DW_FORM_indirect: return {SkipKind::indirect, 0};
    default: return {SkipKind::invalid, 0};
  }
}

void run_skip_step(ByteCursor& cursor, const SkipStep& step, const UnitFormat& format) {
  switch (step.kind) {
    case SkipKind::fixed: return cursor.skip(step.n_bytes);
    case SkipKind::leb128: return cursor.skip_leb128();
    case SkipKind::c_string: return void(cursor.c_string());
    case SkipKind::block1: return cursor.skip(cursor.u8());
    case SkipKind::block2: return cursor.skip(cursor.u16());
    case SkipKind::block4: return cursor.skip(cursor.u32());
    case SkipKind::block_leb: return cursor.skip(cursor.uleb128());
    case SkipKind::indirect: {
      const SkipStep inner = skip_step_of(cursor.uleb128(), format);
      // An indirect form that names itself again would recurse without end.
      if (inner.kind == SkipKind::indirect) return cursor.fail();
      return run_skip_step(cursor, inner, format);
    }
    case SkipKind::invalid: return cursor.fail();
  }
}

AbbreviationTable::AbbreviationTable(Bytes debug_abbrev, uint64_t offset, const UnitFormat& format, size_t max_entries)
    : format_(format) {
  ByteCursor cursor(debug_abbrev, offset);
  for (size_t n_entries = 0; n_entries < max_entries && !cursor.failed(); ++n_entries) {
    const uint64_t code = cursor.uleb128();
    if (code == 0) break;
    Abbreviation entry;
    entry.tag = static_cast<uint16_t>(cursor.uleb128());
    entry.has_children = cursor.u8() != 0;
    entry.first_spec = static_cast<uint32_t>(specs_.size());
    entry.first_step = static_cast<uint32_t>(steps_.size());
    for (;;) {
      const uint64_t attribute = cursor.uleb128();
      const uint64_t form = cursor.uleb128();
      if (cursor.failed() || (attribute == 0 && form == 0)) break;
      AttributeSpec spec{static_cast<uint16_t>(attribute), static_cast<uint16_t>(form), 0};
      if (form == DW_FORM_implicit_const) spec.implicit_value = cursor.sleb128();
      specs_.push_back(spec);
      const SkipStep step = skip_step_of(form, format);
      const bool merges =
          step.kind == SkipKind::fixed && steps_.size() > entry.first_step && steps_.back().kind == SkipKind::fixed;
      if (merges) steps_.back().n_bytes += step.n_bytes;
      else if (step.kind != SkipKind::fixed || step.n_bytes != 0) steps_.push_back(step);
    }
    entry.n_specs = static_cast<uint32_t>(specs_.size()) - entry.first_spec;
    entry.n_steps = static_cast<uint32_t>(steps_.size()) - entry.first_step;
    if (cursor.failed()) break;
    if (code == dense_.size() + 1) dense_.push_back(entry);
    else sparse_.emplace(code, entry);
  }
}

}  // namespace memlens::symbols
