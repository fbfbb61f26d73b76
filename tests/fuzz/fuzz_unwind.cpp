// Call stacks from a dump of registers and stack: call-frame information of any content, and any stack. The input is a length, an
// ELF file, registers and a stack.
// Oracles: the first address is the one that the sample has; no stack is deeper than the limit.
#include "elf_input.h"
#include "symbols/unwind.h"

using namespace memlens::symbols;

namespace {

constexpr size_t kHead = 4;

size_t first_bytes(const uint8_t* data, size_t size) {
  uint32_t length = 0;
  if (size >= kHead) memcpy(&length, data, kHead);
  return size < kHead ? 0 : std::min<size_t>(length, size - kHead);
}

}  // namespace

// elfutils 0.188 loses the state of call-frame instructions that end early: 256 bytes for a damaged entry that a stack meets.
extern "C" const char* __lsan_default_suppressions() { return "leak:libdw.so\n"; }

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  const size_t first = first_bytes(data, size);
  if (first == 0 || seed % 3 == 0) {  // the stack
    const size_t from = kHead + first;
    return size <= from ? LLVMFuzzerMutate(data, size, most)
                        : from + LLVMFuzzerMutate(data + from, size - from, most - from);
  }
  fuzz::mutate_elf(data + kHead, first, first, seed / 3 | 1,
                   [](std::string_view name) { return name.starts_with(".eh_frame") || name == ".debug_frame"; });
  return size;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const size_t first = first_bytes(data, size);
  const fuzz::MemoryFile module({data + std::min(size, kHead), first});
  fuzz::Input input(size < kHead ? fuzz::View() : fuzz::View(data + kHead + first, size - kHead - first));
  constexpr uint64_t kCode = 0x400000, kStack = 0x7fff0000;
  const uint8_t how = input.byte();
  const ExecutableMapping mapping{kCode, kCode + 0x8000, how & 1 ? 0x1000u : 0u, module.path()};
  ProcessUnwinder unwinder(how & 128 ? Architecture::aarch64 : Architecture::x86_64, {&mapping, 1});
  std::vector<uint64_t> registers(how & 128 ? 33 : 17);
  for (uint64_t& value : registers) {
    const uint8_t what = input.byte();
    value = what < 64     ? kStack + what * 8
            : what < 128  ? kCode + input.below(0x8000)
            : what == 255 ? input.number()
                          : kStack;
  }
  const unsigned pc = how & 128 ? 32 : 8, sp = how & 128 ? 31 : 7;
  registers[sp] = kStack;
  if (how & 2) registers[pc] = kCode + input.below(0x8000);
  std::vector<uint8_t> stack;
  while (!input.empty() && stack.size() < 4096) {
    const uint8_t what = input.byte();
    const uint64_t word = what < 96 ? kCode + input.below(0x8000) : what < 200 ? kStack + what * 8 : input.number();
    for (int i = 0; i < 8; ++i) stack.push_back(static_cast<uint8_t>(word >> (8 * i)));
  }
  const Unwound unwound = unwinder.unwind({how & 128 ? 0x1ffffffffull : 0xff01ffull, registers}, {kStack, stack});
  fuzz::require(!unwound.addresses.empty() && unwound.addresses.size() <= kMaxUnwindDepth,
                "a stack of at least one address and at most the limit");
  fuzz::require(unwound.addresses[0] == registers[pc], "the first address is the sample's");
  return 0;
}
