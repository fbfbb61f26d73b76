// SPDX-License-Identifier: Apache-2.0
// Random access to the entries of a module's DWARF, main and alternate (dwz) file alike:
// attributes, children, references, qualified names, declaration files. Knows neither variables nor
// layouts. Every walk is bounded: damaged references may form circles or point into the middle of
// entries. Threading: one thread at a time; the constructor uses several for itself.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "dwarf_lines.h"
#include "unit_scan.h"

namespace memlens::symbols {

struct DebugEntry {
  EntryId id = 0;
  const DwarfFile* file = nullptr;
  const DwarfUnit* unit = nullptr;
  const UnitScan* scan = nullptr;
  uint16_t tag = 0;
  bool has_children = false;
  uint64_t next_offset = 0;  // of the first child, if it has any
  FormValue name, linkage_name, type, origin, sibling;
  FormValue byte_size, bit_size, bit_offset, data_bit_offset, member_location;
  FormValue upper_bound, lower_bound, count, byte_stride, alignment;
  FormValue declaration_file, declaration_line, encoding;
  Bytes location_block;  // of a member's location, when it is an expression
  bool declaration = false, external = false, artificial = false, is_vector = false;

  uint64_t offset() const { return id >> 1; }
  bool in_alternate() const { return id & 1; }
};

class DebugEntries {
 public:
  // Scans all units, several at a time.
  explicit DebugEntries(const DwarfFile& dwarf);

  const std::vector<UnitScan>& scans() const { return scans_; }
  const std::vector<UnitScan>& alternate_scans() const { return alternate_scans_; }

  std::optional<DebugEntry> read(EntryId id) const;
  // Stops when `visit` returns false or the children end. Counts against a budget that only
  // overlapping, that is damaged, entries can use up; then truncated() is true.
  void visit_children(const DebugEntry& entry, const std::function<bool(const DebugEntry&)>& visit) const;
  // What a reference attribute points to; 0 when it is absent or wrong.
  EntryId target(const DebugEntry& entry, const FormValue& reference) const;
  std::string_view text(const DebugEntry& entry, const FormValue& value) const;
  // The entry that carries the name: itself, or what it specifies or originates from.
  std::optional<DebugEntry> named_entry(const DebugEntry& entry) const;
  // With the namespaces, classes and functions around it; "" when it has no name.
  std::string qualified_name(const DebugEntry& entry) const { return qualified_name(entry, 0); }
  // "" when unknown.
  std::string declaration_file(const DebugEntry& entry);
  bool truncated() const { return truncated_; }

 private:
  static void scan_units(const DwarfFile& file, bool is_alternate, std::vector<UnitScan>& scans);
  bool read_attributes(DebugEntry& entry, const AbbreviationTable& table, ByteCursor& cursor) const;
  std::string qualified_name(const DebugEntry& entry, int n_hops) const;

  const DwarfFile& dwarf_;
  std::vector<UnitScan> scans_, alternate_scans_;
  std::unordered_map<uint64_t, EntryId> type_by_signature_;
  std::unordered_map<const DwarfUnit*, LineTable> file_names_;
  mutable uint64_t n_children_left_;
  mutable bool truncated_ = false;
};

}  // namespace memlens::symbols
