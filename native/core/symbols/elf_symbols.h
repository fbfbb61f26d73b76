// SPDX-License-Identifier: Apache-2.0
// Sorted function symbols of a module: which symbol holds an address. Owns the preference between
// aliases; knows nothing of DWARF.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "elf_image.h"

namespace memlens::symbols {

struct CodeSymbol {
  uint64_t begin_vaddr;
  uint64_t end_vaddr;  // exclusive
  std::string mangled_name;
};

// Visits the xz-compressed symbol table some distributions leave in stripped binaries
// (.gnu_debugdata), and what is in .dynsym. Names live as long as the call of `visit`.
void visit_mini_debug_info(ElfImage& image, const std::function<void(const ElfSymbolRecord&)>& visit);

class ElfSymbols {
 public:
  // Adds `.symtab`, else `.dynsym`, else the mini debug info of an image; merges with what is
  // there. True when the image gave any symbol.
  bool add(ElfImage& image, bool static_table);
  bool add_mini_debug_info(ElfImage& image);
  void finish();  // sort, drop aliases, extend symbols without a size to their successor

  const CodeSymbol* find(uint64_t vaddr) const;
  // The last symbol that begins at or before an address, whether it holds it or not.
  const CodeSymbol* nearest(uint64_t vaddr) const;
  bool empty() const { return symbols_.empty(); }

 private:
  struct Candidate {
    CodeSymbol symbol;
    uint64_t limit_vaddr;
    uint8_t rank;  // smaller is better among symbols at one address
  };
  void add_candidate(const ElfSymbolRecord& record);
  std::vector<Candidate> candidates_;
  std::vector<CodeSymbol> symbols_;
};

}  // namespace memlens::symbols
