// SPDX-License-Identifier: Apache-2.0
// Types of a module by id: names as a programmer writes them, layouts with their holes, and which
// field lies at an offset. Reads a type when it is asked for.
//
// Alignments are what the debug information says or, where it says nothing (nearly always), the
// type's natural alignment, lowered where a field's offset or the structure's size contradicts it
// (packed structures).
// Threading: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "debug_entries.h"

namespace memlens::symbols {

enum class TypeKind : uint8_t {
  unknown,
  base,
  pointer,  // and references
  enumeration,
  structure,
  class_,
  union_,
  array,
  function,
};
const char* type_kind_name(TypeKind kind);

struct TypeField {
  std::string name;  // "" for unnamed structures and unions; their fields are reached through them
  uint64_t offset;   // first byte that holds a part of it
  uint64_t bytes;    // for a bit-field: bytes that hold a part of it
  EntryId type;
  std::string type_name;
  uint32_t bit_offset, bit_size;  // bit-fields: from the lowest bit at `offset`; 0, 0 for others
  uint64_t alignment;
  bool is_base_class;
  bool is_fixed;  // must stay first: base classes and the pointer to the virtual functions
};

struct Hole {
  uint64_t offset, bytes;
};

struct TypeInfo {
  EntryId id = 0;
  TypeKind kind = TypeKind::unknown;
  std::string name;  // as the programmer wrote it, typedefs included
  uint64_t bytes = 0;
  uint64_t alignment = 1;
  // Structures, classes, unions
  std::vector<TypeField> fields;  // in the order of declaration
  bool layout_known = false;      // false: virtual bases or variants, whose places are not in the list
  std::vector<Hole> holes;        // whole bytes between fields
  uint64_t tail_padding_bytes = 0;
  uint64_t padding_bytes = 0;  // holes and tail; not what is inside fields
  uint64_t packed_bytes = 0;   // size with the fields sorted by alignment; bit-fields stay together
  // Arrays; `element` is also what a pointer points to
  EntryId element = 0;
  uint64_t element_bytes = 0;         // stride
  std::vector<uint64_t> counts;       // by dimension as written; 0 = not known
  std::vector<int64_t> lower_bounds;  // by dimension
  bool column_major = false;          // the first index is the fastest: Fortran
  bool truncated = false;             // more fields or dimensions than we read
};

struct Place {
  std::string path;  // "[12].position.x"; "" for the variable itself
  EntryId type = 0;  // of what the path names
  std::string type_name;
  uint64_t offset_in_place = 0;
  uint64_t stride_bytes = 0;  // of the innermost array on the path, 0 = none
  bool padding = false;       // the byte belongs to no field of what the path names
  bool found = false;         // false: no such type, or the offset lies outside it
};

class TypeTable {
 public:
  explicit TypeTable(DebugEntries& entries) : entries_(entries) {}

  // "" for none; `id` may be any number.
  std::string name(EntryId id);
  // With typedefs and qualifiers looked through. Null when there is no such type.
  std::shared_ptr<const TypeInfo> describe(EntryId id);
  uint64_t bytes(EntryId id);
  // A structure, class, union or typedef: "particle", "struct particle", "ns::particle". A name
  // without its scopes is enough if only one type ends in it. C allows several types of one name in
  // different files: the first is taken. 0 when there is none.
  EntryId find(std::string_view name);
  // as_array: the type is that of the elements of an array at whose start `offset` counts.
  Place field_at(EntryId type, uint64_t offset, bool as_array = false);

 private:
  struct Declarator {
    std::string before, after;       // "int (*" and ")[3]"
    bool needs_parentheses = false;  // an array or function: a pointer to it binds less
    std::string text() const { return before + after; }
  };
  Declarator declarator(EntryId id, int depth, int& n_entries_left);
  std::optional<DebugEntry> stripped(EntryId id);
  const TypeInfo* layout(EntryId id, int depth);
  uint64_t size_of(EntryId id, int depth);
  uint64_t alignment_of(EntryId id, int depth);
  void read_array(const DebugEntry& entry, TypeInfo& type, int depth);
  void read_structure(const DebugEntry& entry, TypeInfo& type, int depth);
  bool read_field(const DebugEntry& member, TypeField& field, int depth);
  std::optional<DebugEntry> definition_of(const DebugEntry& declaration);
  void index_names();

  struct NamedType {
    uint64_t hash, qualified_hash;
    EntryId id;
  };
  DebugEntries& entries_;
  std::unordered_map<EntryId, std::unique_ptr<TypeInfo>> layouts_;
  std::unordered_map<EntryId, std::string> names_;
  std::unordered_map<EntryId, EntryId> definitions_;
  std::vector<NamedType> by_qualified_, by_plain_;
  bool indexed_ = false;
};

}  // namespace memlens::symbols
