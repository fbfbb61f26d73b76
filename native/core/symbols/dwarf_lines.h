// SPDX-License-Identifier: Apache-2.0
// The line table of one unit: which file, line and column an address came from.
// Rows are 16 bytes; a row that a later row at the same address overrides is not kept.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dwarf_file.h"

namespace memlens::symbols {

// Executable address ranges of a module. Linkers leave code they dropped at address 0 or at
// all-ones; such ranges lie outside and are ignored everywhere.
class CodeRanges {
 public:
  explicit CodeRanges(const std::vector<LoadSegment>& segments) {
    for (const LoadSegment& s : segments)
      if (s.executable) ranges_.push_back({s.vaddr, s.vaddr + s.memory_bytes});
  }
  bool contains(uint64_t address) const {
    if (address == 0) return false;
    for (const AddressRange& r : ranges_)
      if (address >= r.begin && address < r.end) return true;
    return false;
  }

 private:
  std::vector<AddressRange> ranges_;
};

struct LineRow {
  uint32_t address_delta;  // from the sequence's begin
  uint32_t line;
  uint32_t file;  // index as in the line program; LineTable::path() reads it
  uint16_t column;
};

class LineTable {
 public:
  LineTable() = default;
  // Damaged programs give the rows before the damage.
  LineTable(const DwarfFile& dwarf, const DwarfUnit& unit, const UnitRoot& root, const CodeRanges& code);
  // Only the names of files, without running the program: for declarations.
  static LineTable files_only(const DwarfFile& dwarf, const DwarfUnit& unit, const UnitRoot& root);

  const LineRow* find(uint64_t address) const;
  // Full path of a file number, joined with its directory and the compilation directory; "" if
  // none.
  std::string path(uint32_t file) const;
  uint32_t n_files() const { return static_cast<uint32_t>(files_.size()) + 1; }

 private:
  struct Header;
  struct File {
    std::string_view name;
    uint64_t directory;
  };
  struct Sequence {
    uint64_t begin, end;
    uint32_t first_row, n_rows;
  };
  bool read_header(ByteCursor& cursor, Header& header, const DwarfFile& dwarf, const DwarfUnit& unit,
                   const UnitRoot& root);
  bool read_entries_v5(ByteCursor& cursor, const Header& header, const DwarfFile& dwarf, const DwarfUnit& unit,
                       const UnitRoot& root, bool directories);
  void run(ByteCursor& cursor, const Header& header, const CodeRanges& code);

  uint16_t version_ = 0;
  std::string_view compilation_directory_;
  std::vector<std::string_view> directories_;
  std::vector<File> files_;
  std::vector<LineRow> rows_;
  std::vector<Sequence> sequences_;  // by begin
};

}  // namespace memlens::symbols
