// SPDX-License-Identifier: Apache-2.0
// Names for the code addresses of one ELF module: functions, inlined calls, files and lines.
//
// Lifecycle: open() reads headers and symbol tables and finds the debug file. The first resolve()
// learns which compilation unit holds which address; a unit is walked when an address in it is
// asked for, several units at once on several threads. Threading: one thread at a time per
// ModuleSymbols, and one per StringTable.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "open_options.h"
#include "string_table.h"

namespace memlens::symbols {

// Ids are of the StringTable given to open(); 0 = unknown.
struct Frame {
  uint32_t function;
  uint32_t file;
  uint32_t line;
  uint32_t column;
  uint8_t inlined;  // 1: this function was inlined into the next frame
};

// What could actually be used.
enum class DebugQuality : uint8_t { none, symbol_table, dwarf };

struct SymbolRange {
  uint64_t begin_vaddr;
  uint64_t size_bytes;
  uint32_t name;  // demangled, in the StringTable
};

class ModuleSymbols {
 public:
  // Never throws for a bad file: status() then says why, and resolve() gives no frames.
  static std::unique_ptr<ModuleSymbols> open(const std::string& path, const OpenOptions& options, StringTable& strings);
  ~ModuleSymbols();
  ModuleSymbols(const ModuleSymbols&) = delete;
  ModuleSymbols& operator=(const ModuleSymbols&) = delete;

  const std::string& status() const;      // "" when fine, else cause and remedy
  const std::string& debug_note() const;  // why a debug file that exists was not used; "" if none
  // After resolve(): which split debug information (.dwo, .dwp) was not found or is stale; "" if none.
  std::string split_note() const;
  std::string build_id_hex() const;
  DebugQuality quality() const;
  std::string debug_file() const;  // the file the DWARF or symbols came from; "" if none

  // The demangled name of the last symbol before an address, and how far that is from it: a hint for code that no symbol
  // holds. Empty when there is none within 1 MiB.
  std::pair<std::string, uint64_t> nearest_symbol(uint64_t vaddr) const;

  // A mapped file's offset as the ELF virtual address that symbols and DWARF use. Pass the offset
  // of the instruction itself, not of its mapping: mappings begin on page boundaries, where the
  // bytes may still belong to the segment before. nullopt if no load segment holds it.
  std::optional<uint64_t> file_offset_to_vaddr(uint64_t offset) const;

  // Appends the frames of each vaddr, innermost first: inlined calls, then the function that holds
  // them. Frames of vaddrs[i] are frames[first_frame[i] .. first_frame[i + 1]); first_frame is
  // overwritten. An address about which nothing is known has no frames.
  // Return addresses: pass address - 1, or a call that ends a line is blamed on the next line.
  void resolve(std::span<const uint64_t> vaddrs, std::vector<Frame>& frames, std::vector<uint32_t>& first_frame);

  // The ELF symbol that holds vaddr, for grouping by function.
  std::optional<SymbolRange> symbol_at(uint64_t vaddr);

 private:
  ModuleSymbols();
  struct State;
  std::unique_ptr<State> state_;
};

// "" when the file cannot be read or has none.
std::string read_build_id_hex(const std::string& path);

}  // namespace memlens::symbols
