// A module's variables and types: DWARF entries, ELF symbols, layouts.
// Oracles: variables come by address; a packed type is not longer than the type.
#include "elf_input.h"
#include "symbols_use.h"

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  return fuzz::mutate_elf(data, size, most, seed, [](std::string_view name) {
    return name == ".debug_info" || name == ".debug_abbrev" || name == ".symtab" || name == ".debug_str" ||
           name == ".debug_addr";
  });
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::use_variables(fuzz::MemoryFile({data, size}).path(), size ? data[size - 1] * 2654435761u : 0);
  return 0;
}
