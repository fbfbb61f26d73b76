// Split debug information: the input is a length, a module with skeleton units, and its .dwo file or .dwp package.
// Oracles: as of symbols.
#include <sys/stat.h>

#include "elf_input.h"
#include "symbols_use.h"

namespace {

constexpr size_t kHead = 4;

size_t first_bytes(const uint8_t* data, size_t size) {
  uint32_t length = 0;
  if (size >= kHead) memcpy(&length, data, kHead);
  return size < kHead ? 0 : std::min<size_t>(length, size - kHead);
}

// Files beside each other, as a linker leaves them.
struct Folder {
  Folder() : path("/dev/shm/memlens-fuzz-split-" + std::to_string(getpid())) { mkdir(path.c_str(), 0700); }
  ~Folder() {
    for (const char* name : {"/program", "/program.dwo", "/program.dwp"}) unlink((path + name).c_str());
    rmdir(path.c_str());
  }
  void write(const char* name, fuzz::View content) const {
    FILE* file = fopen((path + name).c_str(), "wb");
    fuzz::require(file != nullptr, "a file in memory");
    fwrite(content.data(), 1, content.size(), file);
    fclose(file);
  }
  std::string path;
};

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  const size_t first = first_bytes(data, size);
  if (first == 0 || first + kHead >= size) return LLVMFuzzerMutate(data, size, most);
  const auto wanted = [](std::string_view name) { return fuzz::is_debug(name); };
  // Lengths stay, so that the second file begins where the head says.
  if (seed % 3 == 0) fuzz::mutate_elf(data + kHead, first, first, seed / 3 | 1, wanted);
  else
    return kHead + first +
           fuzz::mutate_elf(data + kHead + first, size - kHead - first, most - kHead - first, seed / 3, wanted);
  return size;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Folder folder;
  const size_t first = first_bytes(data, size);
  const fuzz::View second = size < kHead ? fuzz::View() : fuzz::View(data + kHead + first, size - kHead - first);
  folder.write("/program", {data + std::min(size, kHead), first});
  folder.write("/program.dwo", second);
  folder.write("/program.dwp", second);
  fuzz::use_symbols(folder.path + "/program");
  return 0;
}
