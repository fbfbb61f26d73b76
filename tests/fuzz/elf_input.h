// Mutation of ELF files: the content of sections that are decoded here, in place, most of the time. Flips anywhere in a file of some
// kilobytes are refused at its headers as a rule.
#pragma once

#include <elf.h>

#include <string_view>

#include "input.h"

namespace fuzz {

struct Region {
  size_t at, bytes;
};

// File regions of sections whose name `wanted` accepts. Headers may be damaged: every number is checked.
template <typename Wanted>
std::vector<Region> sections_of(View file, Wanted&& wanted) {
  std::vector<Region> found;
  Elf64_Ehdr header;
  if (file.size() < sizeof header) return found;
  memcpy(&header, file.data(), sizeof header);
  const auto section = [&](size_t i, Elf64_Shdr& into) {
    const uint64_t at = header.e_shoff + i * sizeof into;
    if (header.e_shoff > file.size() || at > file.size() || file.size() - at < sizeof into) return false;
    memcpy(&into, file.data() + at, sizeof into);
    return into.sh_offset <= file.size() && into.sh_size <= file.size() - into.sh_offset;
  };
  Elf64_Shdr names;
  if (!section(header.e_shstrndx, names)) return found;
  for (size_t i = 1; i < header.e_shnum; ++i) {
    Elf64_Shdr one;
    if (!section(i, one) || one.sh_type == SHT_NOBITS || one.sh_size == 0 || one.sh_name >= names.sh_size) continue;
    const auto* name = reinterpret_cast<const char*>(file.data() + names.sh_offset + one.sh_name);
    if (wanted(std::string_view(name, strnlen(name, names.sh_size - one.sh_name))))
      found.push_back({one.sh_offset, one.sh_size});
  }
  return found;
}

inline bool is_debug(std::string_view name) { return name.starts_with(".debug_") || name.starts_with(".zdebug_"); }

// Mutates a few bytes of a region, keeping its length.
inline void mutate_inside(uint8_t* data, const Region& region, unsigned seed) {
  const size_t part = std::min<size_t>(region.bytes, size_t{1} << seed % 7);
  const size_t at = region.at + (seed / 7 * size_t{2654435761u}) % (region.bytes - part + 1);
  uint8_t copy[64] = {};
  memcpy(copy, data + at, part);
  const size_t made = LLVMFuzzerMutate(copy, part, part);
  memcpy(data + at, copy, std::min(made, part));
}

// A mutator for files of which the interesting part is in sections.
template <typename Wanted>
size_t mutate_elf(uint8_t* data, size_t size, size_t most, unsigned seed, Wanted&& wanted) {
  if (seed % 10 != 0) {
    const auto regions = sections_of({data, size}, wanted);
    if (!regions.empty()) {
      for (unsigned times = 1 + seed / 10 % 3; times > 0; --times, seed = seed * 1664525u + 1013904223u)
        mutate_inside(data, regions[seed / 64 % regions.size()], seed / 16);
      return size;
    }
  }
  return LLVMFuzzerMutate(data, size, most);
}

}  // namespace fuzz
