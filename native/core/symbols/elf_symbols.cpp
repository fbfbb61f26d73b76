// SPDX-License-Identifier: Apache-2.0
#include "elf_symbols.h"

#include <elf.h>
#include <elfutils/libdwfl.h>

#include <algorithm>

namespace memlens::symbols {

void ElfSymbols::add_candidate(const ElfSymbolRecord& record) {
  std::string_view name = record.name;
  // AArch64, ARM and RISC-V mapping symbols ($x, $d.12) mark code against data; they name nothing.
  if (name.front() == '$' && record.type == STT_NOTYPE) return;
  // "memcpy@@GLIBC_2.14": the version is not part of the name. A leading '@' would be.
  if (const size_t version = name.find('@'); version != std::string_view::npos && version > 0)
    name = name.substr(0, version);
  uint8_t rank = record.type == STT_NOTYPE ? 8 : 0;
  if (record.size_bytes == 0) rank += 4;
  rank += record.binding == STB_GLOBAL ? 0 : record.binding == STB_WEAK ? 1 : 2;
  const uint64_t end = record.vaddr + record.size_bytes;
  if (end < record.vaddr) return;
  candidates_.push_back(
      {{record.vaddr, end, std::string(name)}, std::max(end, record.section_end_vaddr), rank});
}

bool ElfSymbols::add(ElfImage& image, bool static_table) {
  const size_t n_before = candidates_.size();
  image.visit_code_symbols(static_table, [&](const ElfSymbolRecord& r) { add_candidate(r); });
  return candidates_.size() > n_before;
}

void visit_mini_debug_info(ElfImage& image,
                           const std::function<void(const ElfSymbolRecord&)>& visit) {
  if (image.section(".gnu_debugdata").empty()) return;
  // libdwfl decompresses it. Its debug-file search must stay off: it may go to the network.
  Dwfl_Callbacks callbacks = {};
  callbacks.find_elf = [](Dwfl_Module*, void**, const char*, Dwarf_Addr, char**, Elf**) {
    return -1;
  };
  callbacks.find_debuginfo = [](Dwfl_Module*, void**, const char*, Dwarf_Addr, const char*,
                                const char*, GElf_Word, char**) { return -1; };
  callbacks.section_address = dwfl_offline_section_address;
  Dwfl* dwfl = dwfl_begin(&callbacks);
  if (!dwfl) return;
  // add_p_vaddr with base 0: addresses stay the file's own.
  Dwfl_Module* module = dwfl_report_elf(dwfl, "module", image.path().c_str(), -1, 0, true);
  dwfl_report_end(dwfl, nullptr, nullptr);
  const int n_symbols = module ? dwfl_module_getsymtab(module) : 0;
  for (int i = 1; i < n_symbols; ++i) {
    GElf_Sym symbol;
    GElf_Addr vaddr = 0;
    const char* name =
        dwfl_module_getsym_info(module, i, &symbol, &vaddr, nullptr, nullptr, nullptr);
    const uint8_t type = GELF_ST_TYPE(symbol.st_info);
    if (!name || !*name || symbol.st_shndx == SHN_UNDEF) continue;
    visit({name, vaddr, symbol.st_size, type, uint8_t(GELF_ST_BIND(symbol.st_info)), 0});
  }
  dwfl_end(dwfl);
}

bool ElfSymbols::add_mini_debug_info(ElfImage& image) {
  const size_t n_before = candidates_.size();
  visit_mini_debug_info(image, [&](const ElfSymbolRecord& r) {
    if (r.type == STT_FUNC || r.type == STT_GNU_IFUNC) add_candidate(r);
  });
  return candidates_.size() > n_before;
}

void ElfSymbols::finish() {
  std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
    if (a.symbol.begin_vaddr != b.symbol.begin_vaddr)
      return a.symbol.begin_vaddr < b.symbol.begin_vaddr;
    if (a.rank != b.rank) return a.rank < b.rank;
    return a.symbol.mangled_name < b.symbol.mangled_name;  // stable between runs
  });
  for (size_t i = 0; i < candidates_.size();) {
    size_t next = i + 1;
    while (next < candidates_.size() &&
           candidates_[next].symbol.begin_vaddr == candidates_[i].symbol.begin_vaddr)
      ++next;
    CodeSymbol symbol = std::move(candidates_[i].symbol);
    if (symbol.end_vaddr == symbol.begin_vaddr) {
      symbol.end_vaddr = candidates_[i].limit_vaddr;
      if (next < candidates_.size())
        symbol.end_vaddr = std::min(symbol.end_vaddr, candidates_[next].symbol.begin_vaddr);
    }
    if (symbol.end_vaddr > symbol.begin_vaddr) symbols_.push_back(std::move(symbol));
    i = next;
  }
  candidates_ = {};
}

const CodeSymbol* ElfSymbols::find(uint64_t vaddr) const {
  auto after = std::upper_bound(symbols_.begin(), symbols_.end(), vaddr,
                                [](uint64_t a, const CodeSymbol& s) { return a < s.begin_vaddr; });
  // A short symbol may lie inside a longer one (assembler entry points): look back a little.
  for (int n_looks = 0; after != symbols_.begin() && n_looks < 16; ++n_looks) {
    --after;
    if (vaddr < after->end_vaddr) return &*after;
  }
  return nullptr;
}

const CodeSymbol* ElfSymbols::nearest(uint64_t vaddr) const {
  const auto after = std::upper_bound(symbols_.begin(), symbols_.end(), vaddr,
                                      [](uint64_t a, const CodeSymbol& s) { return a < s.begin_vaddr; });
  return after != symbols_.begin() ? &*std::prev(after) : nullptr;
}

}  // namespace memlens::symbols
