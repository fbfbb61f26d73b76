// SPDX-License-Identifier: Apache-2.0
#include "unit_scan.h"

#include <dwarf.h>

#include <algorithm>

namespace memlens::symbols {
namespace {

// Deeper nesting than this is damage; compilers stay below a few hundred.
constexpr size_t kMaxNesting = 4096;

class Scanner {
 public:
  Scanner(const DwarfFile& dwarf, const DwarfUnit& unit, bool is_alternate, UnitScan& scan)
      : dwarf_(dwarf), unit_(unit), is_alternate_(is_alternate), scan_(scan), table_(dwarf.abbreviations(unit)) {}

  void walk() {
    ByteCursor cursor(dwarf_.info().first(unit_.end_offset), unit_.first_entry_offset);
    std::vector<Open> open;
    while (!cursor.failed() && !cursor.at_end()) {
      const uint64_t offset = cursor.offset();
      const uint64_t code = cursor.uleb128();
      if (code == 0) {
        if (open.empty()) break;
        close(open.back(), cursor.offset());
        open.pop_back();
        if (open.empty()) break;
        continue;
      }
      const Abbreviation* entry = table_->find(code);
      if (!entry) break;
      Open inner{scope_, common_block_, false};
      if (read_entry(cursor, *entry, offset, inner)) continue;  // jumped over its children
      if (entry->has_children) {
        if (open.size() >= kMaxNesting) break;
        open.push_back(inner);
      } else if (open.empty()) {
        break;  // a root without children
      }
    }
    // A damaged unit may leave scopes open; what is in them still has its names.
    while (!open.empty()) {
      close(open.back(), unit_.end_offset);
      open.pop_back();
    }
  }

 private:
  // What to restore when an entry's children end.
  struct Open {
    uint32_t scope;
    bool common_block;
    bool pushed;  // the entry is a scope of its own
  };
  struct ScopeAttributes {
    FormValue name, origin, sibling;
    bool declaration = false;
  };

  // True when the entry's children were jumped over.
  bool read_entry(ByteCursor& cursor, const Abbreviation& entry, uint64_t offset, Open& inner) {
    switch (entry.tag) {
      case DW_TAG_variable: read_variable(cursor, entry, offset); return false;
      case DW_TAG_member:
        // Static members before DWARF 5: definitions elsewhere refer to them for their scope.
        if (has_attribute(entry, DW_AT_declaration) || has_attribute(entry, DW_AT_external)) mark_used();
        table_->skip_attributes(cursor, entry);
        return false;
      case DW_TAG_common_block:
        table_->skip_attributes(cursor, entry);
        common_block_ = entry.has_children;
        return false;
      case DW_TAG_structure_type:
      case DW_TAG_class_type:
      case DW_TAG_union_type:
      case DW_TAG_interface_type:
      case DW_TAG_typedef:
      case DW_TAG_enumeration_type:
      case DW_TAG_namespace:
      case DW_TAG_module:
      case DW_TAG_subprogram: return read_scope(cursor, entry, offset, inner);
      case DW_TAG_inlined_subroutine:
      case DW_TAG_subroutine_type:
      case DW_TAG_array_type:
      case DW_TAG_call_site:
      case DW_TAG_GNU_call_site:
        if (entry.has_children && has_attribute(entry, DW_AT_sibling)) {
          const ScopeAttributes found = read_attributes(cursor, entry);
          return jump(cursor, found.sibling);
        }
        table_->skip_attributes(cursor, entry);
        return false;
      default: table_->skip_attributes(cursor, entry); return false;
    }
  }

  bool has_attribute(const Abbreviation& entry, uint16_t attribute) const {
    const AttributeSpec* specs = table_->specs(entry);
    return std::any_of(specs, specs + entry.n_specs, [&](const AttributeSpec& s) { return s.attribute == attribute; });
  }

  ScopeAttributes read_attributes(ByteCursor& cursor, const Abbreviation& entry) const {
    ScopeAttributes found;
    const AttributeSpec* specs = table_->specs(entry);
    for (uint32_t i = 0; i < entry.n_specs; ++i) {
      switch (specs[i].attribute) {
        case DW_AT_name: found.name = dwarf_.read_form(cursor, specs[i], unit_.format); break;
        case DW_AT_specification:
        case DW_AT_abstract_origin: found.origin = dwarf_.read_form(cursor, specs[i], unit_.format); break;
        case DW_AT_sibling: found.sibling = dwarf_.read_form(cursor, specs[i], unit_.format); break;
        case DW_AT_declaration: found.declaration = dwarf_.read_form(cursor, specs[i], unit_.format).number != 0; break;
        default: run_skip_step(cursor, skip_step_of(specs[i].form, unit_.format), unit_.format);
      }
    }
    return found;
  }

  // Only forwards and inside the unit: a sibling that lies must not make the walk endless.
  bool jump(ByteCursor& cursor, const FormValue& sibling) const {
    const auto target = dwarf_.reference_of(sibling, unit_);
    if (cursor.failed() || !target || target->in_alternate || target->offset <= cursor.offset() ||
        target->offset > unit_.end_offset)
      return false;
    cursor.seek(target->offset);
    return true;
  }

  bool read_scope(ByteCursor& cursor, const Abbreviation& entry, uint64_t offset, Open& inner) {
    const ScopeAttributes found = read_attributes(cursor, entry);
    if (cursor.failed()) return false;
    const bool is_function = entry.tag == DW_TAG_subprogram;
    const bool is_namespace = entry.tag == DW_TAG_namespace || entry.tag == DW_TAG_module;
    const bool is_enumeration = entry.tag == DW_TAG_enumeration_type;
    // A namespace is used when something in it is. A function that a class declares needs the class
    // for its name, but functions in functions do not matter.
    if (!is_namespace) mark_used();
    std::string_view name = dwarf_.string_of(found.name, unit_, scan_.root);
    if (!is_function && !is_namespace && !is_enumeration && !found.declaration && !name.empty())
      scan_.types.push_back({hash_name(name, path_hash()), hash_name(name), offset});
    if (!entry.has_children) return false;
    // Declared functions hold parameters, enumerations enumerators.
    if (((is_function && found.declaration) || is_enumeration) && jump(cursor, found.sibling)) return true;
    if (is_enumeration || entry.tag == DW_TAG_typedef) return false;
    if (name.empty() && is_namespace) name = "(anonymous namespace)";
    EntryId origin = 0;
    if (name.empty()) {
      if (const auto target = dwarf_.reference_of(found.origin, unit_))
        origin = entry_id(target->offset, target->in_alternate || is_alternate_);
    }
    if (name.empty() && origin == 0) return false;  // unnamed classes add nothing to a name
    const uint64_t hash = hash_name("::", hash_name(name, path_hash()));
    // Open to the end until its end is seen: a damaged unit may not have one.
    scan_.scopes.push_back({offset, unit_.end_offset, scope_, name, origin, hash});
    used_.push_back(false);
    scope_ = static_cast<uint32_t>(scan_.scopes.size()) - 1;
    inner.pushed = true;
    return false;
  }

  void close(const Open& entry, uint64_t end_offset) {
    if (entry.pushed) {
      scan_.scopes[scope_].end_offset = end_offset;
      // Inner scopes have been closed, so an unused one is the last.
      if (!used_[scope_] && scope_ + 1 == scan_.scopes.size()) {
        scan_.scopes.pop_back();
        used_.pop_back();
      } else if (entry.scope != kNoScope) {
        used_[entry.scope] = true;
      }
    }
    scope_ = entry.scope;
    common_block_ = entry.common_block;
  }

  void read_variable(ByteCursor& cursor, const Abbreviation& entry, uint64_t offset) {
    const AttributeSpec* specs = table_->specs(entry);
    // Most variables are locals of functions, with a list of locations or none.
    const AttributeSpec* location = std::find_if(specs, specs + entry.n_specs,
                                                 [](const AttributeSpec& s) { return s.attribute == DW_AT_location; });
    if (location == specs + entry.n_specs) {
      if (has_attribute(entry, DW_AT_declaration)) mark_used();
      return table_->skip_attributes(cursor, entry);
    }
    std::optional<Bytes> expression;
    for (uint32_t i = 0; i < entry.n_specs; ++i) {
      if (&specs[i] == location) expression = dwarf_.read_block(cursor, specs[i], unit_.format);
      else run_skip_step(cursor, skip_step_of(specs[i].form, unit_.format), unit_.format);
    }
    if (cursor.failed() || !expression) return;
    if (const auto found = static_location(*expression, dwarf_, unit_, scan_.root)) {
      scan_.variables.push_back({offset, *found, common_block_});
      mark_used();
    }
  }

  void mark_used() {
    if (scope_ != kNoScope) used_[scope_] = true;
  }
  uint64_t path_hash() const { return scope_ == kNoScope ? kEmptyHash : scan_.scopes[scope_].path_hash; }

  const DwarfFile& dwarf_;
  const DwarfUnit& unit_;
  bool is_alternate_;
  UnitScan& scan_;
  std::shared_ptr<const AbbreviationTable> table_;
  uint32_t scope_ = kNoScope;
  bool common_block_ = false;
  std::vector<bool> used_;  // by scope: something in it has a name that needs it
};

}  // namespace

std::optional<StaticLocation> static_location(Bytes expression, const DwarfFile& dwarf, const DwarfUnit& unit,
                                              const UnitRoot& root) {
  ByteCursor cursor(expression);
  std::optional<uint64_t> value;
  bool is_address = true;  // else it is an offset and must be followed by the TLS operator
  switch (cursor.u8()) {
    case DW_OP_addr: value = cursor.unsigned_of(unit.format.address_bytes); break;
    case DW_OP_addrx:
    case DW_OP_GNU_addr_index: value = dwarf.indexed_address(cursor.uleb128(), unit, root); break;
    case DW_OP_constx:
    case DW_OP_GNU_const_index:
      value = dwarf.indexed_address(cursor.uleb128(), unit, root);
      is_address = false;
      break;
    case DW_OP_const8u:
      value = cursor.u64();
      is_address = false;
      break;
    case DW_OP_const4u:
      value = cursor.u32();
      is_address = false;
      break;
    case DW_OP_const2u:
      value = cursor.u16();
      is_address = false;
      break;
    case DW_OP_const1u:
      value = cursor.u8();
      is_address = false;
      break;
    case DW_OP_constu:
      value = cursor.uleb128();
      is_address = false;
      break;
    default: return std::nullopt;
  }
  if (cursor.failed() || !value) return std::nullopt;
  StaticLocation location{*value, false};
  while (!cursor.at_end()) {
    switch (cursor.u8()) {
      case DW_OP_form_tls_address:
      case DW_OP_GNU_push_tls_address: location.is_tls = true; break;
      case DW_OP_plus_uconst:  // members of a Fortran COMMON block
        location.address += cursor.uleb128();
        break;
      default: return std::nullopt;  // pieces, values, indirections: not one place in memory
    }
  }
  if (cursor.failed() || (!is_address && !location.is_tls)) return std::nullopt;
  return location;
}

uint32_t UnitScan::scope_around(uint64_t entry_offset) const {
  // Entries are nested intervals of offsets: the last scope that begins before this entry is around
  // it, or one of its parents is.
  auto after = std::lower_bound(scopes.begin(), scopes.end(), entry_offset,
                                [](const NameScope& s, uint64_t o) { return s.begin_offset < o; });
  auto index = static_cast<uint32_t>(after - scopes.begin()) - 1;
  while (index != kNoScope && scopes[index].end_offset <= entry_offset) index = scopes[index].parent;
  return index;
}

UnitScan UnitScan::build(const DwarfFile& dwarf, const DwarfUnit& unit, bool is_alternate) {
  UnitScan scan;
  scan.root = dwarf.read_root(unit);
  Scanner(dwarf, unit, is_alternate, scan).walk();
  scan.scopes.shrink_to_fit();
  scan.variables.shrink_to_fit();
  scan.types.shrink_to_fit();
  return scan;
}

}  // namespace memlens::symbols
