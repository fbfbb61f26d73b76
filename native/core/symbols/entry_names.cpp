// SPDX-License-Identifier: Apache-2.0
#include "entry_names.h"

#include <dwarf.h>

#include <algorithm>

#include "demangle.h"

namespace memlens::symbols {
namespace {

// Real chains have three hops (call, abstract function, declaration); damaged ones can be circles.
constexpr int kMaxHops = 16;
constexpr uint32_t kNoContainer = UINT32_MAX;
constexpr size_t kMaxNesting = 4096;

// C has no namespaces: its units need not be searched for them.
bool has_qualified_names(uint64_t language) {
  switch (language) {
    case DW_LANG_C:
    case DW_LANG_C89:
    case DW_LANG_C99:
    case DW_LANG_C11:
    case 0x2c:  // DW_LANG_C17
    case DW_LANG_Mips_Assembler: return false;
    default: return true;
  }
}

bool is_container(uint16_t tag) {
  return tag == DW_TAG_namespace || tag == DW_TAG_class_type || tag == DW_TAG_structure_type ||
         tag == DW_TAG_union_type || tag == DW_TAG_module || tag == DW_TAG_subprogram;
}

}  // namespace

const UnitRoot& EntryNames::root_of(const DwarfFile& file, const DwarfUnit& unit) {
  auto found = roots_.find(&unit);
  if (found == roots_.end()) found = roots_.emplace(&unit, file.read_root(unit)).first;
  return found->second;
}

EntryName EntryNames::name_of(const DwarfFile& file, uint64_t entry_offset, int n_hops) {
  auto& names = names_[&file];
  if (auto found = names.find(entry_offset); found != names.end()) return found->second;
  const DwarfUnit* unit = file.unit_containing(entry_offset);
  if (!unit || n_hops > kMaxHops) return {};
  const auto table = file.abbreviations(*unit);
  ByteCursor cursor(file.info().first(unit->end_offset), entry_offset);
  const Abbreviation* entry = table->find(cursor.uleb128());
  if (!entry) return {};

  FormValue linkage_name, name, origin;
  const AttributeSpec* specs = table->specs(*entry);
  for (uint32_t i = 0; i < entry->n_specs && !cursor.failed(); ++i) {
    const FormValue value = file.read_form(cursor, specs[i], unit->format);
    if (cursor.failed()) break;
    switch (specs[i].attribute) {
      case DW_AT_linkage_name:
      case DW_AT_MIPS_linkage_name: linkage_name = value; break;
      case DW_AT_name: name = value; break;
      case DW_AT_abstract_origin:
      case DW_AT_specification: origin = value; break;
      default: break;
    }
  }
  EntryName result;
  if (linkage_name.present()) {
    const std::string_view mangled = file.string_of(linkage_name, *unit, root_of(file, *unit));
    result = {strings_.intern(demangle(mangled)), true};
  }
  if (result.id == 0 && origin.present()) {
    if (const auto target = file.reference_of(origin, *unit)) {
      const DwarfFile* target_file = target->in_alternate ? file.alternate() : &file;
      if (target_file) result = name_of(*target_file, target->offset, n_hops + 1);
    }
  }
  if (result.id == 0 && name.present()) {
    const std::string_view plain = file.string_of(name, *unit, root_of(file, *unit));
    result = {strings_.intern(qualified(file, *unit, entry_offset, plain)), false};
  }
  names.emplace(entry_offset, result);
  return result;
}

std::string EntryNames::qualified(const DwarfFile& file, const DwarfUnit& unit, uint64_t entry_offset,
                                  std::string_view name) {
  if (name.empty() || !has_qualified_names(root_of(file, unit).language)) return std::string(name);
  auto found = containers_.find(&unit);
  if (found == containers_.end()) found = containers_.emplace(&unit, scan_containers(file, unit)).first;
  const std::vector<Container>& containers = found->second;
  // Entries are nested intervals of offsets: the last container that begins before this entry is
  // around it, or one of its parents is.
  auto after = std::lower_bound(containers.begin(), containers.end(), entry_offset,
                                [](const Container& c, uint64_t o) { return c.begin_offset < o; });
  auto index = static_cast<uint32_t>(after - containers.begin()) - 1;
  while (index != kNoContainer && containers[index].end_offset <= entry_offset) index = containers[index].parent;
  std::string text(name);
  for (size_t n_parts = 0; index != kNoContainer && n_parts < 64; ++n_parts) {
    text = std::string(containers[index].name) + "::" + text;
    index = containers[index].parent;
  }
  return text;
}

std::vector<EntryNames::Container> EntryNames::scan_containers(const DwarfFile& file, const DwarfUnit& unit) {
  std::vector<Container> containers;
  const auto table = file.abbreviations(unit);
  const UnitRoot& root = root_of(file, unit);
  ByteCursor cursor(file.info().first(unit.end_offset), unit.first_entry_offset);
  struct Open {
    uint32_t around;  // container of the entry itself
    bool is_own;      // the entry is a container
  };
  std::vector<Open> open;
  uint32_t current = kNoContainer;
  while (!cursor.failed() && !cursor.at_end()) {
    const uint64_t offset = cursor.offset();
    const uint64_t code = cursor.uleb128();
    if (code == 0) {
      if (open.empty()) break;
      if (open.back().is_own) containers[current].end_offset = cursor.offset();
      current = open.back().around;
      open.pop_back();
      if (open.empty()) break;
      continue;
    }
    const Abbreviation* entry = table->find(code);
    if (!entry) break;
    if (!entry->has_children || !is_container(entry->tag)) {
      table->skip_attributes(cursor, *entry);
      if (entry->has_children) open.push_back({current, false});
    } else {
      FormValue name;
      const AttributeSpec* specs = table->specs(*entry);
      for (uint32_t i = 0; i < entry->n_specs; ++i) {
        const FormValue value = file.read_form(cursor, specs[i], unit.format);
        if (specs[i].attribute == DW_AT_name) name = value;
      }
      std::string_view text = file.string_of(name, unit, root);
      if (text.empty() && entry->tag == DW_TAG_namespace) text = "(anonymous namespace)";
      // Unnamed classes and concrete functions add nothing to a name.
      open.push_back({current, !text.empty()});
      if (!text.empty()) {
        // Open to the end until its end is seen: a damaged unit may not have one.
        containers.push_back({offset, unit.end_offset, current, text});
        current = static_cast<uint32_t>(containers.size()) - 1;
      }
    }
    if (open.empty() || open.size() > kMaxNesting) break;
  }
  return containers;
}

}  // namespace memlens::symbols
