// A module's names and lines: ELF headers, symbol tables, MiniDebugInfo, compressed sections, DWARF 4 and 5.
// Oracles: each address has its frames, in order; a symbol holds the address that it was found for.
#include "elf_input.h"
#include "symbols_use.h"

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  return fuzz::mutate_elf(data, size, most, seed, [](std::string_view name) {
    return fuzz::is_debug(name) || name == ".symtab" || name == ".strtab" || name == ".dynsym";
  });
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::use_symbols(fuzz::MemoryFile({data, size}).path());
  return 0;
}
