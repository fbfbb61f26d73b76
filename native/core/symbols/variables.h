// SPDX-License-Identifier: Apache-2.0
// Static and thread-local variables of one ELF module, with their types: ELF symbols merged with
// DWARF, one entry a variable.
//
// Lifecycle: open() finds the files (as ModuleSymbols does), walks the debug information once and
// merges. Types are read when they are asked for. Not read: .dwo files (variables of split units
// keep what their symbols say), .debug_types of DWARF 4, and variables that a compiler keeps in
// pieces or registers.
// Threading: one thread at a time per ModuleVariables.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "elf_image.h"
#include "open_options.h"
#include "type_table.h"

namespace memlens::symbols {

enum class VariableSource : uint8_t { elf, dwarf, both };

struct Variable {
  uint64_t vaddr = 0;       // thread-local: offset in the module's block
  uint64_t bytes = 0;       // the symbol's size where there is one, else the type's
  uint64_t type_bytes = 0;  // 0 = no type known; differs from `bytes` for open-ended arrays
  bool is_tls = false;
  VariableSource source = VariableSource::elf;
  std::string name;          // with namespaces, classes and functions: "ns::function::counter"
  std::string linkage_name;  // of the ELF symbol, else of the debug information; "" if none
  std::string file;          // of the declaration; "" unknown
  uint32_t line = 0;
  std::string type_name;
  EntryId type = 0;
};

class ModuleVariables {
 public:
  // Never throws for a bad file: status() then says why, and there are no variables.
  static std::unique_ptr<ModuleVariables> open(const std::string& path, const OpenOptions& options);
  ~ModuleVariables();
  ModuleVariables(const ModuleVariables&) = delete;
  ModuleVariables& operator=(const ModuleVariables&) = delete;

  const std::string& status() const;      // "" when fine, else cause and remedy
  const std::string& debug_note() const;  // why a debug file that exists was not used; "" if none
  std::string build_id_hex() const;
  bool has_debug_info() const;
  bool truncated() const;  // limits against damaged files were reached: some is missing
  const std::vector<LoadSegment>& segments() const;
  uint64_t tls_bytes() const;

  // By (is_tls, vaddr); no two have the same.
  const std::vector<Variable>& variables() const;

  // As TypeTable; null, 0 or not found without debug information.
  std::shared_ptr<const TypeInfo> describe_type(EntryId id);
  std::shared_ptr<const TypeInfo> describe_type(std::string_view name);
  Place field_at(EntryId type, uint64_t offset, bool as_array = false);

 private:
  ModuleVariables();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace memlens::symbols
