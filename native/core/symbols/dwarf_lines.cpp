// SPDX-License-Identifier: Apache-2.0
// Line number programs, DWARF 2 to 5. Rows come at most one per program byte, so memory is bounded
// by the section's length whatever the contents.
#include "dwarf_lines.h"

#include <dwarf.h>

#include <algorithm>

namespace memlens::symbols {

struct LineTable::Header {
  UnitFormat format;
  uint64_t program_offset = 0, end_offset = 0;
  uint8_t min_instruction_bytes = 1;
  int8_t line_base = 0;
  uint8_t line_range = 1;
  uint8_t opcode_base = 1;
  uint8_t operand_counts[256] = {};
};

LineTable::LineTable(const DwarfFile& dwarf, const DwarfUnit& unit, const UnitRoot& root, const CodeRanges& code)
    : compilation_directory_(root.compilation_directory) {
  if (!root.line_table_offset) return;
  ByteCursor cursor(dwarf.line_section(), *root.line_table_offset);
  Header header;
  if (!read_header(cursor, header, dwarf, unit, root)) return;
  run(cursor, header, code);
  std::stable_sort(sequences_.begin(), sequences_.end(),
                   [](const Sequence& a, const Sequence& b) { return a.begin < b.begin; });
  rows_.shrink_to_fit();
}

LineTable LineTable::files_only(const DwarfFile& dwarf, const DwarfUnit& unit, const UnitRoot& root) {
  LineTable table;
  table.compilation_directory_ = root.compilation_directory;
  if (!root.line_table_offset) return table;
  ByteCursor cursor(dwarf.line_section(), *root.line_table_offset);
  Header header;
  table.read_header(cursor, header, dwarf, unit, root);
  return table;
}

bool LineTable::read_header(ByteCursor& cursor, Header& header, const DwarfFile& dwarf, const DwarfUnit& unit,
                            const UnitRoot& root) {
  uint64_t length = cursor.u32();
  header.format = unit.format;
  header.format.offset_bytes = 4;
  if (length == 0xffffffff) {
    length = cursor.u64();
    header.format.offset_bytes = 8;
  }
  if (cursor.failed() || length > cursor.remaining()) return false;
  header.end_offset = cursor.offset() + length;
  version_ = header.format.version = cursor.u16();
  if (version_ < 2 || version_ > 5) return false;
  if (version_ >= 5) {
    header.format.address_bytes = cursor.u8();
    cursor.skip(1);  // segment selector size
  }
  const uint64_t header_bytes = cursor.unsigned_of(header.format.offset_bytes);
  if (cursor.failed() || header_bytes > header.end_offset - std::min(header.end_offset, cursor.offset())) return false;
  header.program_offset = cursor.offset() + header_bytes;
  header.min_instruction_bytes = cursor.u8();
  if (version_ >= 4) cursor.skip(1);  // operations per instruction: 1 except on VLIW machines
  cursor.skip(1);                     // default is_stmt
  header.line_base = static_cast<int8_t>(cursor.u8());
  header.line_range = cursor.u8();
  header.opcode_base = cursor.u8();
  if (cursor.failed() || header.line_range == 0 || header.opcode_base == 0) return false;
  for (unsigned i = 1; i < header.opcode_base; ++i) header.operand_counts[i] = cursor.u8();

  if (version_ >= 5) {
    if (!read_entries_v5(cursor, header, dwarf, unit, root, true) ||
        !read_entries_v5(cursor, header, dwarf, unit, root, false))
      return false;
  } else {
    for (std::string_view name = cursor.c_string(); !name.empty(); name = cursor.c_string())
      directories_.push_back(name);
    for (std::string_view name = cursor.c_string(); !name.empty(); name = cursor.c_string()) {
      files_.push_back({name, cursor.uleb128()});
      cursor.skip_leb128();  // modification time
      cursor.skip_leb128();  // length
    }
  }
  return !cursor.failed();
}

bool LineTable::read_entries_v5(ByteCursor& cursor, const Header& header, const DwarfFile& dwarf, const DwarfUnit& unit,
                                const UnitRoot& root, bool directories) {
  struct Field {
    uint64_t content;
    AttributeSpec spec;
  };
  std::vector<Field> fields;
  for (unsigned n = cursor.u8(); n > 0 && !cursor.failed(); --n) {
    const uint64_t content = cursor.uleb128();
    fields.push_back({content, {0, static_cast<uint16_t>(cursor.uleb128()), 0}});
  }
  const uint64_t n_entries = cursor.uleb128();
  // Every real entry takes at least a byte; a larger count would only spin.
  if (cursor.failed() || n_entries > cursor.remaining()) return false;
  for (uint64_t i = 0; i < n_entries && !cursor.failed() && !fields.empty(); ++i) {
    File file{};
    for (const Field& field : fields) {
      const FormValue value = dwarf.read_form(cursor, field.spec, header.format);
      if (field.content == DW_LNCT_path) file.name = dwarf.string_of(value, unit, root);
      if (field.content == DW_LNCT_directory_index) file.directory = value.number;
    }
    if (directories) directories_.push_back(file.name);
    else files_.push_back(file);
  }
  return !cursor.failed();
}

void LineTable::run(ByteCursor& section, const Header& header, const CodeRanges& code) {
  section.seek(header.program_offset);
  uint64_t address = 0, sequence_begin = 0;
  uint32_t line = 1, file = 1;
  uint16_t column = 0;
  size_t first_row = rows_.size();
  bool in_sequence = false;

  auto end_sequence = [&](uint64_t end) {
    const size_t n_rows = rows_.size() - first_row;
    if (in_sequence && n_rows > 0 && end > sequence_begin && code.contains(sequence_begin))
      sequences_.push_back({sequence_begin, end, uint32_t(first_row), uint32_t(n_rows)});
    else rows_.resize(first_row);
    first_row = rows_.size();
    in_sequence = false;
  };
  auto emit_row = [&] {
    if (in_sequence) {
      const uint64_t last = sequence_begin + rows_.back().address_delta;
      // Addresses must not fall or jump 4 GB inside a sequence; if they do, it is a new sequence.
      if (address < last || address - sequence_begin > UINT32_MAX) end_sequence(last);
    }
    if (!in_sequence) {
      in_sequence = true;
      sequence_begin = address;
    }
    const LineRow row{static_cast<uint32_t>(address - sequence_begin), line, file, column};
    if (rows_.size() > first_row) {
      LineRow& previous = rows_.back();
      // Several rows at one address: only the last one's instructions are not empty.
      if (previous.address_delta == row.address_delta) {
        previous = row;
        return;
      }
      if (previous.line == line && previous.file == file && previous.column == column) return;
    }
    rows_.push_back(row);
  };

  while (!section.failed() && section.offset() < header.end_offset) {
    const uint8_t opcode = section.u8();
    if (opcode >= header.opcode_base) {
      const uint8_t adjusted = opcode - header.opcode_base;
      address += uint64_t{header.min_instruction_bytes} * (adjusted / header.line_range);
      line += static_cast<uint32_t>(header.line_base + adjusted % header.line_range);
      emit_row();
      continue;
    }
    switch (opcode) {
      case 0: {
        const uint64_t n_bytes = section.uleb128();
        if (section.failed() || n_bytes == 0 || n_bytes > section.remaining()) return end_sequence(address);
        const uint64_t next = section.offset() + n_bytes;
        const uint8_t extended = section.u8();
        if (extended == DW_LNE_end_sequence) {
          end_sequence(address);
          address = 0, line = 1, file = 1, column = 0;
        } else if (extended == DW_LNE_set_address && n_bytes - 1 <= 8) {
          address = section.unsigned_of(static_cast<unsigned>(n_bytes - 1));
        }
        section.seek(next);
        break;
      }
      case DW_LNS_copy: emit_row(); break;
      case DW_LNS_advance_pc: address += header.min_instruction_bytes * section.uleb128(); break;
      case DW_LNS_advance_line: line += static_cast<uint32_t>(section.sleb128()); break;
      case DW_LNS_set_file: file = static_cast<uint32_t>(section.uleb128()); break;
      case DW_LNS_set_column: column = static_cast<uint16_t>(std::min<uint64_t>(section.uleb128(), UINT16_MAX)); break;
      case DW_LNS_negate_stmt:
      case DW_LNS_set_basic_block:
      case DW_LNS_set_prologue_end:
      case DW_LNS_set_epilogue_begin: break;
      case DW_LNS_const_add_pc:
        address += uint64_t{header.min_instruction_bytes} * ((255 - header.opcode_base) / header.line_range);
        break;
      case DW_LNS_fixed_advance_pc: address += section.u16(); break;
      default:  // DW_LNS_set_isa and opcodes of the future: the header says how many operands
        for (unsigned n = header.operand_counts[opcode]; n > 0; --n) section.skip_leb128();
    }
  }
  end_sequence(address);
}

const LineRow* LineTable::find(uint64_t address) const {
  auto after = std::upper_bound(sequences_.begin(), sequences_.end(), address,
                                [](uint64_t a, const Sequence& s) { return a < s.begin; });
  // Sequences overlap only where the linker folded identical code: look back a little, not far.
  for (int n_looks = 0; after != sequences_.begin() && n_looks < 8; ++n_looks) {
    const Sequence& sequence = *--after;
    if (address >= sequence.end) continue;
    const LineRow* first = rows_.data() + sequence.first_row;
    const uint64_t delta = address - sequence.begin;
    const LineRow* row = std::upper_bound(first, first + sequence.n_rows, delta,
                                          [](uint64_t d, const LineRow& r) { return d < r.address_delta; });
    return row == first ? nullptr : row - 1;
  }
  return nullptr;
}

std::string LineTable::path(uint32_t number) const {
  // DWARF 5 counts files and directories from 0, with the compilation directory as directory 0.
  const uint64_t index = version_ >= 5 ? number : uint64_t{number} - 1;
  if (index >= files_.size() || files_[index].name.empty()) return {};
  const File& file = files_[index];
  if (file.name.front() == '/') return std::string(file.name);
  std::string_view directory;
  if (version_ >= 5) {
    if (file.directory < directories_.size()) directory = directories_[file.directory];
  } else if (file.directory > 0 && file.directory - 1 < directories_.size()) {
    directory = directories_[file.directory - 1];
  }
  std::string path;
  if (directory.empty() || directory.front() != '/') path = compilation_directory_;
  for (std::string_view part : {directory, file.name}) {
    if (part.empty()) continue;
    if (!path.empty() && path.back() != '/') path += '/';
    path += part;
  }
  return path;
}

}  // namespace memlens::symbols
