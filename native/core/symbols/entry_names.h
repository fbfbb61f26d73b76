// SPDX-License-Identifier: Apache-2.0
// The demangled name of a function entry: its linkage name where there is one, found through
// abstract origins and specifications, also into the alternate (dwz) file; else its plain name with
// the namespaces and classes around it. Cached per entry.
// Threading: one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "dwarf_file.h"
#include "string_table.h"

namespace memlens::symbols {

struct EntryName {
  uint32_t id = 0;                 // in the string table; 0 when the entry has no name
  bool from_linkage_name = false;  // complete, with parameters; else internal linkage or C
};

class EntryNames {
 public:
  explicit EntryNames(StringTable& strings) : strings_(strings) {}
  // Of an entry of the module's debug information, or of a split file of it.
  EntryName name_of(const DwarfFile& file, uint64_t entry_offset) { return name_of(file, entry_offset, 0); }

 private:
  // A namespace, class or function that other entries lie in.
  struct Container {
    uint64_t begin_offset, end_offset;
    uint32_t parent;  // position in the unit's containers
    std::string_view name;
  };
  EntryName name_of(const DwarfFile& file, uint64_t entry_offset, int n_hops);
  const UnitRoot& root_of(const DwarfFile& file, const DwarfUnit& unit);
  std::string qualified(const DwarfFile& file, const DwarfUnit& unit, uint64_t entry_offset, std::string_view name);
  std::vector<Container> scan_containers(const DwarfFile& file, const DwarfUnit& unit);

  StringTable& strings_;
  std::unordered_map<const DwarfFile*, std::unordered_map<uint64_t, EntryName>> names_;
  std::unordered_map<const DwarfUnit*, UnitRoot> roots_;
  std::unordered_map<const DwarfUnit*, std::vector<Container>> containers_;
};

}  // namespace memlens::symbols
