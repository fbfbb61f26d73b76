// SPDX-License-Identifier: Apache-2.0
// Static variables, named types and the scopes around them in one compilation unit, from a single
// pass over its entries. Owns which entries matter; reads neither names of variables nor layouts of
// types (variables, type_table): most are never asked for.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "dwarf_file.h"

namespace memlens::symbols {

// An entry of the main or the alternate file in one number; 0 = none. No entry has offset 0, where
// the first unit's header is.
using EntryId = uint64_t;
inline EntryId entry_id(uint64_t offset, bool in_alternate) { return offset << 1 | uint64_t{in_alternate}; }

// A namespace, class or function that variables or types lie in; those without any are not kept.
struct NameScope {
  uint64_t begin_offset, end_offset;  // in .debug_info
  uint32_t parent;                    // position in UnitScan::scopes, kNoScope at the top
  std::string_view name;              // "" when only the origin has one
  EntryId origin;                     // where the name is, when this only completes another entry
  uint64_t path_hash;                 // of "outer::inner::", as hash_name makes it
};
inline constexpr uint32_t kNoScope = UINT32_MAX;

struct StaticLocation {
  uint64_t address;  // vaddr, or offset in the thread-local block
  bool is_tls;
};

struct FoundVariable {
  uint64_t entry_offset;
  StaticLocation location;
  bool in_common_block;  // Fortran: the ELF symbol here is the whole block's
};

// A defined structure, class, union or typedef. 64-bit hashes instead of names: programs have
// hundreds of thousands of types, of which few are looked up.
struct FoundType {
  uint64_t qualified_hash, plain_hash;
  uint64_t entry_offset;
};

struct UnitScan {
  UnitRoot root;
  std::vector<NameScope> scopes;  // by begin_offset, nested
  std::vector<FoundVariable> variables;
  std::vector<FoundType> types;

  // Pure; may run on several threads at once. Damaged units give what came before the damage.
  static UnitScan build(const DwarfFile& dwarf, const DwarfUnit& unit, bool is_alternate);
  // The innermost scope around an entry, kNoScope at the top.
  uint32_t scope_around(uint64_t entry_offset) const;
};

inline constexpr uint64_t kEmptyHash = 0xcbf29ce484222325;
// FNV-1a, continued from `hash`: a path hashes the same in one piece and part by part.
inline uint64_t hash_name(std::string_view text, uint64_t hash = kEmptyHash) {
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash;
}

// Where a location expression says a variable is, if that is the same for the whole run.
std::optional<StaticLocation> static_location(Bytes expression, const DwarfFile& dwarf, const DwarfUnit& unit,
                                              const UnitRoot& root);

}  // namespace memlens::symbols
