// SPDX-License-Identifier: Apache-2.0
#include "debug_entries.h"

#include <dwarf.h>

#include <algorithm>
#include <atomic>

#include "helpers.h"

namespace memlens::symbols {
namespace {

// Real chains have three hops (definition, abstract function, declaration); damaged ones can be
// circles.
constexpr int kMaxHops = 16;
constexpr int kMaxScopes = 64;
// A name for people: longer ones are cut, or a damaged file could ask for gigabytes.
constexpr size_t kMaxNameChars = 8192;
constexpr size_t kMaxNesting = 4096;
constexpr size_t kMaxFileTables = 256;

}  // namespace

DebugEntries::DebugEntries(const DwarfFile& dwarf) : dwarf_(dwarf) {
  scan_units(dwarf, false, scans_);
  n_children_left_ = std::max<uint64_t>(dwarf.info().size(), 1 << 20);
  if (const DwarfFile* alternate = dwarf.alternate()) {
    scan_units(*alternate, true, alternate_scans_);
    n_children_left_ += alternate->info().size();
  }
  for (const DwarfUnit& unit : dwarf.units())
    if (unit.type_signature != 0)
      type_by_signature_.emplace(unit.type_signature, entry_id(unit.type_entry_offset, false));
}

void DebugEntries::scan_units(const DwarfFile& file, bool is_alternate, std::vector<UnitScan>& scans) {
  const std::vector<DwarfUnit>& units = file.units();
  scans.resize(units.size());
  std::atomic<size_t> next = 0;
  auto work = [&] {
    for (size_t i; (i = next.fetch_add(1)) < units.size();) {
      try {
        scans[i] = UnitScan::build(file, units[i], is_alternate);
      } catch (const std::bad_alloc&) {
        scans[i] = UnitScan();  // the variables of this unit keep their symbols
      }
    }
  };
  work_together(work, units.size());
}

std::optional<DebugEntry> DebugEntries::read(EntryId id) const {
  DebugEntry entry;
  entry.id = id;
  entry.file = entry.in_alternate() ? dwarf_.alternate() : &dwarf_;
  if (id == 0 || !entry.file) return std::nullopt;
  entry.unit = entry.file->unit_containing(entry.offset());
  if (!entry.unit) return std::nullopt;
  const auto& scans = entry.in_alternate() ? alternate_scans_ : scans_;
  entry.scan = &scans[static_cast<size_t>(entry.unit - entry.file->units().data())];
  ByteCursor cursor(entry.file->info().first(entry.unit->end_offset), entry.offset());
  const auto table = entry.file->abbreviations(*entry.unit);
  if (!read_attributes(entry, *table, cursor)) return std::nullopt;
  return entry;
}

bool DebugEntries::read_attributes(DebugEntry& entry, const AbbreviationTable& table, ByteCursor& cursor) const {
  const Abbreviation* abbreviation = table.find(cursor.uleb128());
  if (cursor.failed() || !abbreviation) return false;
  entry.tag = abbreviation->tag;
  entry.has_children = abbreviation->has_children;
  const UnitFormat& format = entry.unit->format;
  const AttributeSpec* specs = table.specs(*abbreviation);
  for (uint32_t i = 0; i < abbreviation->n_specs; ++i) {
    const AttributeSpec& spec = specs[i];
    if (spec.attribute == DW_AT_data_member_location &&
        (spec.form == DW_FORM_exprloc || spec.form == DW_FORM_block1 || spec.form == DW_FORM_block2 ||
         spec.form == DW_FORM_block4 || spec.form == DW_FORM_block)) {
      entry.location_block = entry.file->read_block(cursor, spec, format).value_or(Bytes());
      continue;
    }
    const FormValue value = entry.file->read_form(cursor, spec, format);
    switch (spec.attribute) {
      case DW_AT_name: entry.name = value; break;
      case DW_AT_linkage_name:
      case DW_AT_MIPS_linkage_name: entry.linkage_name = value; break;
      case DW_AT_type: entry.type = value; break;
      case DW_AT_specification:
      case DW_AT_abstract_origin: entry.origin = value; break;
      case DW_AT_signature:  // a declaration that stands for a type unit
        if (!entry.origin.present()) entry.origin = value;
        break;
      case DW_AT_sibling: entry.sibling = value; break;
      case DW_AT_byte_size: entry.byte_size = value; break;
      case DW_AT_bit_size: entry.bit_size = value; break;
      case DW_AT_bit_offset: entry.bit_offset = value; break;
      case DW_AT_data_bit_offset: entry.data_bit_offset = value; break;
      case DW_AT_data_member_location: entry.member_location = value; break;
      case DW_AT_upper_bound: entry.upper_bound = value; break;
      case DW_AT_lower_bound: entry.lower_bound = value; break;
      case DW_AT_count: entry.count = value; break;
      case DW_AT_byte_stride: entry.byte_stride = value; break;
      case DW_AT_alignment: entry.alignment = value; break;
      case DW_AT_decl_file: entry.declaration_file = value; break;
      case DW_AT_decl_line: entry.declaration_line = value; break;
      case DW_AT_encoding: entry.encoding = value; break;
      case DW_AT_declaration: entry.declaration = value.number != 0; break;
      case DW_AT_external: entry.external = value.number != 0; break;
      case DW_AT_artificial: entry.artificial = value.number != 0; break;
      case DW_AT_GNU_vector: entry.is_vector = value.number != 0; break;
      default: break;
    }
  }
  entry.next_offset = cursor.offset();
  return !cursor.failed();
}

void DebugEntries::visit_children(const DebugEntry& parent, const std::function<bool(const DebugEntry&)>& visit) const {
  if (!parent.has_children) return;
  const auto table = parent.file->abbreviations(*parent.unit);
  ByteCursor cursor(parent.file->info().first(parent.unit->end_offset), parent.next_offset);
  for (size_t depth = 0; !cursor.failed() && !cursor.at_end();) {
    if (n_children_left_ == 0) {
      truncated_ = true;
      return;
    }
    --n_children_left_;
    const uint64_t offset = cursor.offset();
    if (cursor.uleb128() == 0) {
      if (depth == 0) return;
      --depth;
      continue;
    }
    cursor.seek(offset);
    DebugEntry child;
    child.id = entry_id(offset, parent.in_alternate());
    child.file = parent.file;
    child.unit = parent.unit;
    child.scan = parent.scan;
    if (!read_attributes(child, *table, cursor)) return;
    if (depth == 0 && !visit(child)) return;
    if (!child.has_children) continue;
    const auto next = child.file->reference_of(child.sibling, *child.unit);
    if (next && !next->in_alternate && next->offset > cursor.offset() && next->offset <= child.unit->end_offset)
      cursor.seek(next->offset);
    else if (++depth > kMaxNesting) return;
  }
}

EntryId DebugEntries::target(const DebugEntry& entry, const FormValue& reference) const {
  if (reference.form == DW_FORM_ref_sig8) {
    const auto found = type_by_signature_.find(reference.number);
    return found == type_by_signature_.end() ? 0 : found->second;
  }
  const auto found = entry.file->reference_of(reference, *entry.unit);
  if (!found || found->offset > UINT64_MAX >> 1) return 0;
  return entry_id(found->offset, found->in_alternate || entry.in_alternate());
}

std::string_view DebugEntries::text(const DebugEntry& entry, const FormValue& value) const {
  return entry.file->string_of(value, *entry.unit, entry.scan->root).substr(0, kMaxNameChars);
}

std::optional<DebugEntry> DebugEntries::named_entry(const DebugEntry& entry) const {
  std::optional<DebugEntry> current = entry;
  for (int n_hops = 0; current && n_hops < kMaxHops; ++n_hops) {
    if (current->name.present() || !current->origin.present()) return current;
    current = read(target(*current, current->origin));
  }
  return std::nullopt;
}

std::string DebugEntries::qualified_name(const DebugEntry& entry, int n_hops) const {
  const auto named = n_hops < kMaxHops ? named_entry(entry) : std::nullopt;
  if (!named) return {};
  std::string result(text(*named, named->name));
  if (result.empty()) return result;
  // GCC puts a type unit's type at the top, with a declaration in its namespace.
  if (named->tag != DW_TAG_subprogram && named->origin.present() && named->origin.form != DW_FORM_ref_sig8) {
    const auto declared = read(target(*named, named->origin));
    const std::string outer = declared ? qualified_name(*declared, n_hops + 1) : std::string();
    if (!outer.empty()) return outer;
  }
  const std::vector<NameScope>& scopes = named->scan->scopes;
  uint32_t index = named->scan->scope_around(named->offset());
  for (int n_parts = 0; index != kNoScope && n_parts < kMaxScopes; ++n_parts) {
    if (result.size() > kMaxNameChars) break;
    const NameScope& scope = scopes[index];
    if (scope.origin != 0) {
      // The body of a function that was declared elsewhere: its name knows all scopes around it.
      const auto origin = read(scope.origin);
      const std::string outer = origin ? qualified_name(*origin, n_hops + 1) : std::string();
      return outer.empty() ? result : outer + "::" + result;
    }
    result = std::string(scope.name.substr(0, kMaxNameChars)) + "::" + result;
    index = scope.parent;
  }
  return result;
}

std::string DebugEntries::declaration_file(const DebugEntry& entry) {
  if (!entry.declaration_file.present()) return {};
  auto found = file_names_.find(entry.unit);
  if (found == file_names_.end()) {
    if (file_names_.size() >= kMaxFileTables) file_names_.clear();
    found = file_names_.emplace(entry.unit, LineTable::files_only(*entry.file, *entry.unit, entry.scan->root)).first;
  }
  return found->second.path(static_cast<uint32_t>(entry.declaration_file.number));
}

}  // namespace memlens::symbols
