// SPDX-License-Identifier: Apache-2.0
// Names and look-ups of types; their layouts are in type_layout.cpp.
#include "type_table.h"

#include <dwarf.h>

#include <algorithm>

namespace memlens::symbols {
namespace {

constexpr int kMaxNameDepth = 32;
// Parameters of functions that take functions: a damaged file can make them a tree without end.
constexpr int kMaxNameEntries = 256;
constexpr size_t kMaxNameChars = 8192;
constexpr int kMaxPathDepth = 64;
constexpr size_t kMaxCached = 1 << 20;

enum class Writing : uint8_t { c, cplusplus, rust, fortran };

Writing writing_of(uint64_t language) {
  switch (language) {
    case DW_LANG_C:
    case DW_LANG_C89:
    case DW_LANG_C99:
    case DW_LANG_C11:
    case 0x2c:  // DW_LANG_C17
      return Writing::c;
    case 0x1c:  // DW_LANG_Rust
      return Writing::rust;
    case DW_LANG_Fortran77:
    case DW_LANG_Fortran90:
    case DW_LANG_Fortran95:
    case 0x22:  // DW_LANG_Fortran03
    case 0x23:  // DW_LANG_Fortran08
    case 0x2d:  // DW_LANG_Fortran18
      return Writing::fortran;
    default: return Writing::cplusplus;
  }
}

const char* keyword_of(uint16_t tag) {
  switch (tag) {
    case DW_TAG_union_type: return "union";
    case DW_TAG_enumeration_type: return "enum";
    case DW_TAG_class_type: return "class";
    default: return "struct";
  }
}

std::string_view without_keyword(std::string_view name) {
  for (std::string_view keyword : {"struct ", "class ", "union "})
    if (name.starts_with(keyword)) name.remove_prefix(keyword.size());
  while (name.starts_with(' ')) name.remove_prefix(1);
  while (name.ends_with(' ')) name.remove_suffix(1);
  if (name.starts_with("::")) name.remove_prefix(2);
  return name;
}

}  // namespace

const char* type_kind_name(TypeKind kind) {
  static constexpr const char* kNames[] = {"unknown", "base",  "pointer", "enum",    "struct",
                                           "class",   "union", "array",   "function"};
  return kNames[static_cast<size_t>(kind)];
}

std::string TypeTable::name(EntryId id) {
  if (id == 0) return {};
  if (auto found = names_.find(id); found != names_.end()) return found->second;
  int n_entries_left = kMaxNameEntries;
  std::string text = declarator(id, 0, n_entries_left).text();
  if (text.size() > kMaxNameChars) text = text.substr(0, kMaxNameChars) + "...";
  if (names_.size() >= kMaxCached) names_.clear();
  return names_.emplace(id, std::move(text)).first->second;
}

// C writes types from the inside out: `int (*)[3]` points to an array. So a type is two pieces of
// text, and what is derived from it goes between them.
TypeTable::Declarator TypeTable::declarator(EntryId id, int depth, int& n_entries_left) {
  if (id == 0) return {"void", "", false};
  const auto entry = entries_.read(id);
  if (!entry || depth > kMaxNameDepth || --n_entries_left < 0) return {"...", "", false};
  const Writing writing = writing_of(entry->scan->root.language);
  auto inner = [&] { return declarator(entries_.target(*entry, entry->type), depth + 1, n_entries_left); };
  auto points = [&](const char* sign) {
    Declarator target = inner();
    if (target.before.size() > kMaxNameChars) return target;
    if (target.needs_parentheses) return Declarator{target.before + " (" + sign, ")" + target.after, false};
    const char last = target.before.empty() ? ' ' : target.before.back();
    target.before += last == '*' || last == '&' ? sign : std::string(" ") + sign;
    return target;
  };
  auto qualified = [&](const char* word) {
    Declarator target = inner();
    const char last = target.before.empty() ? ' ' : target.before.back();
    // GCC qualifies a constant array and its elements: once is what was written.
    std::string_view rest = target.before;
    for (bool more = true; more;) {
      if (rest.starts_with(word + std::string(" "))) return target;
      more = false;
      for (std::string_view other : {"const ", "volatile ", "restrict ", "_Atomic "})
        if (rest.starts_with(other)) {
          rest.remove_prefix(other.size());
          more = true;
        }
    }
    // `char *const` is a constant pointer, `const char *` points to constants.
    if (last == '*' || last == '&') target.before += word;
    else target.before = std::string(word) + " " + target.before;
    return target;
  };
  const std::string_view own_name = entries_.text(*entry, entry->name);
  switch (entry->tag) {
    case DW_TAG_pointer_type:
      if (!own_name.empty()) return {std::string(own_name), "", false};  // Rust names them
      return points("*");
    case DW_TAG_reference_type: return points("&");
    case DW_TAG_rvalue_reference_type: return points("&&");
    case DW_TAG_const_type: return qualified("const");
    case DW_TAG_volatile_type: return qualified("volatile");
    case DW_TAG_restrict_type: return qualified("restrict");
    case DW_TAG_atomic_type: return qualified("_Atomic");
    case DW_TAG_ptr_to_member_type: {
      Declarator target = inner();
      return {target.before + " (::*", ")" + target.after, false};
    }
    case DW_TAG_array_type: {
      Declarator element = inner();
      std::string counts;
      const TypeInfo* array = layout(id, 0);
      for (const uint64_t count : array ? array->counts : std::vector<uint64_t>()) {
        if (writing == Writing::rust) return {"[" + element.text() + "; " + std::to_string(count) + "]", "", false};
        counts += count != 0 ? "[" + std::to_string(count) + "]" : "[]";
      }
      return {element.before, counts + element.after, true};
    }
    case DW_TAG_subroutine_type: {
      Declarator result = inner();
      std::string parameters;
      entries_.visit_children(*entry, [&](const DebugEntry& child) {
        if (child.tag == DW_TAG_formal_parameter) {
          if (!parameters.empty()) parameters += ", ";
          parameters += declarator(entries_.target(child, child.type), depth + 1, n_entries_left).text();
        } else if (child.tag == DW_TAG_unspecified_parameters) {
          parameters += parameters.empty() ? "..." : ", ...";
        }
        return n_entries_left > 0 && parameters.size() < kMaxNameChars;
      });
      return {result.before, "(" + parameters + ")" + result.after, true};
    }
    case DW_TAG_structure_type:
    case DW_TAG_class_type:
    case DW_TAG_union_type:
    case DW_TAG_enumeration_type: {
      // A stand-in for a type unit's type has no name of its own.
      const auto named = entries_.named_entry(*entry);
      std::string text = writing != Writing::c ? entries_.qualified_name(*entry)
                         : named               ? std::string(entries_.text(*named, named->name))
                                               : std::string();
      if (text.empty()) return {keyword_of(entry->tag) + std::string(" {...}"), "", false};
      if (writing == Writing::c) text = keyword_of(entry->tag) + (" " + text);
      return {std::move(text), "", false};
    }
    case DW_TAG_typedef:
      return {writing == Writing::c ? std::string(own_name) : entries_.qualified_name(*entry), "", false};
    default:
      if (!own_name.empty()) return {std::string(own_name), "", false};
      return entry->type.present() ? inner() : Declarator{"?", "", false};
  }
}

void TypeTable::index_names() {
  if (indexed_) return;
  indexed_ = true;
  for (const bool in_alternate : {false, true})
    for (const UnitScan& scan : in_alternate ? entries_.alternate_scans() : entries_.scans())
      for (const FoundType& type : scan.types) {
        const EntryId id = entry_id(type.entry_offset, in_alternate);
        by_qualified_.push_back({type.qualified_hash, type.qualified_hash, id});
        by_plain_.push_back({type.plain_hash, type.qualified_hash, id});
      }
  for (std::vector<NamedType>* index : {&by_qualified_, &by_plain_}) {
    std::sort(index->begin(), index->end(), [](const NamedType& a, const NamedType& b) {
      if (a.hash != b.hash) return a.hash < b.hash;
      if (a.qualified_hash != b.qualified_hash) return a.qualified_hash < b.qualified_hash;
      return a.id < b.id;
    });
    // Headers repeat their types in every unit. A few of each are enough to find a structure
    // behind a typedef of the same name.
    size_t n_kept = 0, n_same = 0;
    for (size_t i = 0; i < index->size(); ++i) {
      const NamedType& type = (*index)[i];
      const bool same = n_kept > 0 && (*index)[n_kept - 1].hash == type.hash &&
                        (*index)[n_kept - 1].qualified_hash == type.qualified_hash;
      n_same = same ? n_same + 1 : 0;
      if (n_same < 4) (*index)[n_kept++] = type;
    }
    index->resize(n_kept);
    index->shrink_to_fit();
  }
}

EntryId TypeTable::find(std::string_view wanted) {
  index_names();
  wanted = without_keyword(wanted);
  if (wanted.empty()) return 0;
  const uint64_t hash = hash_name(wanted);
  auto first_with = [&](const std::vector<NamedType>& index) {
    return std::lower_bound(index.begin(), index.end(), hash,
                            [](const NamedType& t, uint64_t h) { return t.hash < h; });
  };
  EntryId typedef_id = 0;
  // Hashes may collide: the entry's own name decides.
  auto accepts = [&](const NamedType& type) {
    const auto entry = entries_.read(type.id);
    if (!entry || !wanted.ends_with(entries_.text(*entry, entry->name))) return false;
    if (entry->tag != DW_TAG_typedef) return true;
    if (typedef_id == 0) typedef_id = type.id;
    return false;
  };
  for (auto at = first_with(by_qualified_); at != by_qualified_.end() && at->hash == hash; ++at)
    if (accepts(*at)) return at->id;
  if (typedef_id != 0) return typedef_id;
  // Types of type units lie outside their scopes, and only their declarations know them.
  if (const size_t scope = wanted.substr(0, wanted.find('<')).rfind("::"); scope != std::string_view::npos) {
    const uint64_t tail_hash = hash_name(wanted.substr(scope + 2));
    auto at = std::lower_bound(by_plain_.begin(), by_plain_.end(), tail_hash,
                               [](const NamedType& t, uint64_t h) { return t.hash < h; });
    for (int n_looks = 0; at != by_plain_.end() && at->hash == tail_hash && n_looks < 256; ++at, ++n_looks) {
      const auto entry = entries_.read(at->id);
      if (entry && entries_.qualified_name(*entry) == wanted) return at->id;
    }
    return 0;
  }
  const auto begin = first_with(by_plain_);
  for (auto at = begin; at != by_plain_.end() && at->hash == hash; ++at) {
    if (at->qualified_hash != begin->qualified_hash) return 0;  // ambiguous
  }
  for (auto at = begin; at != by_plain_.end() && at->hash == hash; ++at)
    if (accepts(*at)) return at->id;
  return typedef_id;
}

std::optional<DebugEntry> TypeTable::definition_of(const DebugEntry& declaration) {
  auto [slot, is_new] = definitions_.try_emplace(declaration.id, 0);
  if (is_new) {
    index_names();
    const uint64_t hash = hash_name(entries_.qualified_name(declaration));
    auto at = std::lower_bound(by_qualified_.begin(), by_qualified_.end(), hash,
                               [](const NamedType& t, uint64_t h) { return t.hash < h; });
    for (; at != by_qualified_.end() && at->hash == hash; ++at) {
      const auto entry = entries_.read(at->id);
      if (!entry || entry->tag == DW_TAG_typedef || entry->declaration) continue;
      slot->second = at->id;
      break;
    }
  }
  return entries_.read(slot->second);
}

Place TypeTable::field_at(EntryId type, uint64_t offset, bool as_array) {
  Place place;
  const uint64_t element_bytes = as_array ? bytes(type) : 0;
  if (element_bytes != 0) {
    place.path = "[" + std::to_string(offset / element_bytes) + "]";
    place.stride_bytes = element_bytes;
    offset %= element_bytes;
  }
  for (int depth = 0; depth < kMaxPathDepth && place.path.size() < kMaxNameChars; ++depth) {
    place.type = type;
    place.offset_in_place = offset;
    const auto entry = stripped(type);
    const TypeInfo* info = entry ? layout(entry->id, 0) : nullptr;
    if (!info) break;
    place.found = place.found || depth > 0 || info->bytes == 0 || offset < info->bytes;
    if (!place.found) break;
    if (info->kind == TypeKind::array) {
      if (info->element_bytes == 0 || info->counts.empty()) break;
      const bool fortran = writing_of(entry->scan->root.language) == Writing::fortran;
      // Strides from the fastest index to the slowest.
      const size_t n_dimensions = info->counts.size();
      std::vector<uint64_t> indexes(n_dimensions);
      uint64_t rest = offset / info->element_bytes;
      for (size_t i = 0; i < n_dimensions; ++i) {
        const size_t dimension = info->column_major ? i : n_dimensions - 1 - i;
        const uint64_t count = info->counts[dimension];
        // The slowest index has no limit: trailing arrays are often longer than declared.
        const bool bounded = i + 1 < n_dimensions && count != 0;
        indexes[dimension] = bounded ? rest % count : rest;
        rest = bounded ? rest / count : 0;
      }
      std::string text = fortran ? "(" : "";
      for (size_t i = 0; i < n_dimensions; ++i) {
        const auto index = static_cast<int64_t>(indexes[i]) + info->lower_bounds[i];
        if (fortran) text += (i > 0 ? "," : "") + std::to_string(index);
        else text += "[" + std::to_string(index) + "]";
      }
      place.path += fortran ? text + ")" : text;
      place.stride_bytes = info->element_bytes;
      offset %= info->element_bytes;
      type = info->element;
      continue;
    }
    const TypeField* inside = nullptr;
    for (const TypeField& field : info->fields) {
      // A trailing array without a length has no bytes, but what follows is in it.
      const bool open_ended = field.bytes == 0 && &field == &info->fields.back() && info->kind != TypeKind::union_ &&
                              field.offset == info->bytes;
      if (offset < field.offset || (offset - field.offset >= field.bytes && !open_ended)) continue;
      // Of a union the first; else the innermost: a base's tail may hold the derived class's field.
      if (inside && info->kind == TypeKind::union_) break;
      if (!inside || field.offset >= inside->offset) inside = &field;
    }
    if (!inside) {
      place.padding =
          info->kind == TypeKind::structure || info->kind == TypeKind::class_ || info->kind == TypeKind::union_;
      break;
    }
    if (!inside->name.empty() && !inside->is_base_class) place.path += "." + inside->name;
    offset -= inside->offset;
    type = inside->type;
    if (inside->bit_size != 0) {
      place.type = type;
      place.offset_in_place = offset;
      break;
    }
  }
  place.type_name = name(place.type);
  return place;
}

}  // namespace memlens::symbols
