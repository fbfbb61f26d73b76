// What memlens asks of a module: frames, symbols, variables, types. Shared by the targets whose input is an ELF file.
#pragma once

#include "input.h"
#include "symbols/elf_image.h"
#include "symbols/module_symbols.h"
#include "symbols/variables.h"

namespace fuzz {

inline const memlens::symbols::OpenOptions& no_debug_directories() {
  static const memlens::symbols::OpenOptions options{.expected_build_id_hex = {},
                                                     .debug_directories = {"/nonexistent"},
                                                     .sysroot = {}};
  return options;
}

// Some addresses in each of the first functions, and a few that no module has.
inline std::vector<uint64_t> code_addresses(const std::string& path) {
  using namespace memlens::symbols;
  std::vector<uint64_t> vaddrs = {0, 1, UINT64_MAX};
  std::string error;
  if (const auto image = ElfImage::open(path, false, error)) {
    image->visit_code_symbols(true, [&](const ElfSymbolRecord& r) {
      for (uint64_t i = 0; i < std::min<uint64_t>(r.size_bytes, 400) && vaddrs.size() < 400; i += 5)
        vaddrs.push_back(r.vaddr + i);
    });
    for (const LoadSegment& segment : image->segments())
      for (uint64_t i = 0; segment.executable && i < 16; ++i)
        vaddrs.push_back(segment.vaddr + segment.memory_bytes / 16 * i);
  }
  return vaddrs;
}

// Returns how many frames came out.
inline size_t use_symbols(const std::string& path) {
  using namespace memlens::symbols;
  const auto vaddrs = code_addresses(path);
  StringTable strings;
  const auto module = ModuleSymbols::open(path, no_debug_directories(), strings);
  std::vector<Frame> frames;
  std::vector<uint32_t> first;
  module->resolve(vaddrs, frames, first);
  require(first.size() == vaddrs.size() + 1 && first.back() == frames.size(), "frames of each address");
  for (size_t i = 1; i < first.size(); ++i) require(first[i - 1] <= first[i], "frames in order");
  for (const Frame& frame : frames) strings.at(frame.function), strings.at(frame.file);
  for (size_t i = 0; i < vaddrs.size(); i += 7) {
    if (const auto symbol = module->symbol_at(vaddrs[i]))
      require(symbol->begin_vaddr <= vaddrs[i] && vaddrs[i] - symbol->begin_vaddr < symbol->size_bytes,
              "a symbol holds its address");
    (void)module->nearest_symbol(vaddrs[i]);
    (void)module->file_offset_to_vaddr(vaddrs[i]);
  }
  (void)module->split_note();
  (void)module->build_id_hex();
  (void)module->debug_file();
  return frames.size();
}

inline size_t use_variables(const std::string& path, uint32_t state) {
  using namespace memlens::symbols;
  const auto module = ModuleVariables::open(path, no_debug_directories());
  uint64_t last_vaddr = 0;
  size_t asked = 0;
  for (const Variable& variable : module->variables()) {
    if (!variable.is_tls) {
      require(variable.vaddr >= last_vaddr, "variables by address");
      last_vaddr = variable.vaddr;
    }
    if (++asked > 200) continue;
    if (const auto type = module->describe_type(variable.type)) {
      for (size_t i = 0; i < std::min<size_t>(type->fields.size(), 20); ++i)
        module->describe_type(type->fields[i].type);
      require(type->packed_bytes <= type->bytes, "packing makes nothing longer");
    }
    for (const uint64_t offset : {uint64_t{0}, variable.bytes / 2, variable.bytes, uint64_t{state}, UINT64_MAX})
      for (const bool as_array : {false, true}) module->field_at(variable.type, offset, as_array);
  }
  for (const char* name : {"shape", "struct node", "ns::held", "", "::"}) module->describe_type(std::string_view(name));
  for (int i = 0; i < 30; ++i) {
    state = state * 1664525 + 1013904223;
    module->describe_type(EntryId{state / 256 % 20000});
    module->field_at(EntryId{state / 256 % 20000}, state % 4096);
  }
  return module->variables().size();
}

}  // namespace fuzz
