// SPDX-License-Identifier: Apache-2.0
#include "elf_symbols.h"

#include <dlfcn.h>
#include <elf.h>
#include <elfutils/libdwfl.h>

#include <algorithm>
#include <memory>

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
  candidates_.push_back({{record.vaddr, end, std::string(name)}, std::max(end, record.section_end_vaddr), rank});
}

bool ElfSymbols::add(ElfImage& image, bool static_table) {
  const size_t n_before = candidates_.size();
  image.visit_code_symbols(static_table, [&](const ElfSymbolRecord& r) { add_candidate(r); });
  return candidates_.size() > n_before;
}

namespace {

// What an .xz file says that it holds: the sum over the records of its index; 0 when there is no sound index.
uint64_t claimed_by_xz(Bytes file) {
  constexpr size_t kEnd = 12;  // CRC of 4 bytes, size of the index / 4 - 1, flags, "YZ"
  if (file.size() < 2 * kEnd || file[file.size() - 2] != 'Y' || file[file.size() - 1] != 'Z') return 0;
  const uint64_t index_bytes = (uint64_t{ByteCursor(file, file.size() - 8).u32()} + 1) * 4;
  if (index_bytes > file.size() - 2 * kEnd) return 0;
  ByteCursor index(file.subspan(file.size() - kEnd - index_bytes, index_bytes));
  if (index.u8() != 0) return 0;
  uint64_t claimed = 0;
  for (uint64_t left = index.uleb128(); left > 0 && !index.failed(); --left) {
    index.uleb128();
    claimed += std::min(index.uleb128(), UINT64_MAX / 2 - claimed);
  }
  return index.failed() ? 0 : claimed;
}

// libdwfl unpacks whatever is there, 7000 bytes from one. So the file must hold what it says, and that must be plausible. Unpacked here
// for that, into memory of that size: liblzma is libdw's, which cannot read such sections without it.
bool is_worth_unpacking(Bytes file) {
  constexpr uint64_t kMostRatio = 100, kAlwaysBytes = uint64_t{16} << 20;
  const uint64_t claimed = claimed_by_xz(file);
  if (claimed == 0 || (claimed > kAlwaysBytes && claimed / kMostRatio > file.size())) return false;
  using Decode = int (*)(uint64_t*, uint32_t, const void*, const uint8_t*, size_t*, size_t, uint8_t*, size_t*, size_t);
  static const auto decode = [] {
    void* library = dlopen("liblzma.so.5", RTLD_NOW | RTLD_LOCAL);
    return library ? reinterpret_cast<Decode>(dlsym(library, "lzma_stream_buffer_decode")) : nullptr;
  }();
  if (!decode) return false;
  const auto room = std::make_unique_for_overwrite<uint8_t[]>(claimed);
  uint64_t memory_limit = uint64_t{1} << 30;
  size_t read = 0, written = 0;
  return decode(&memory_limit, 0, nullptr, file.data(), &read, file.size(), room.get(), &written, claimed) == 0 &&
         read == file.size() && written == claimed;
}

}  // namespace

void visit_mini_debug_info(ElfImage& image, const std::function<void(const ElfSymbolRecord&)>& visit) {
  const Bytes packed = image.section(".gnu_debugdata");
  if (packed.empty() || !is_worth_unpacking(packed)) return;
  // libdwfl decompresses it. Its debug-file search must stay off: it may go to the network.
  Dwfl_Callbacks callbacks = {};
  callbacks.find_elf = [](Dwfl_Module*, void**, const char*, Dwarf_Addr, char**, Elf**) { return -1; };
  callbacks.find_debuginfo = [](Dwfl_Module*, void**, const char*, Dwarf_Addr, const char*, const char*, GElf_Word,
                                char**) { return -1; };
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
    const char* name = dwfl_module_getsym_info(module, i, &symbol, &vaddr, nullptr, nullptr, nullptr);
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
    if (a.symbol.begin_vaddr != b.symbol.begin_vaddr) return a.symbol.begin_vaddr < b.symbol.begin_vaddr;
    if (a.rank != b.rank) return a.rank < b.rank;
    return a.symbol.mangled_name < b.symbol.mangled_name;  // stable between runs
  });
  for (size_t i = 0; i < candidates_.size();) {
    size_t next = i + 1;
    while (next < candidates_.size() && candidates_[next].symbol.begin_vaddr == candidates_[i].symbol.begin_vaddr)
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
