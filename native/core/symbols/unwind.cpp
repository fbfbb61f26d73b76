// SPDX-License-Identifier: Apache-2.0
#include "unwind.h"

#include <elf.h>
#include <elfutils/libdwfl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "elf_image.h"

namespace memlens::symbols {
namespace {

// libdwfl knows a process by a thread id; ours has one, which stands for the sample at hand.
constexpr pid_t kSampleThread = 1;

// DWARF register number of each perf register, -1 for those unwinding does not need.
// x86-64: enum perf_event_x86_regs; AX BX CX DX SI DI BP SP IP FLAGS CS SS DS ES FS GS R8..R15.
constexpr std::array<int8_t, 24> kX86Dwarf = {0,  3,  2,  1,  4, 5, 6,  7,  16, -1, -1, -1,
                                              -1, -1, -1, -1, 8, 9, 10, 11, 12, 13, 14, 15};
constexpr unsigned kX86PerfSp = 7, kX86PerfPc = 8;
// AArch64: X0..X29, LR, SP are DWARF 0..31 in the same order; PC (32) is handed over apart.
constexpr unsigned kArmPerfSp = 31, kArmPerfPc = 32;

// Address minus ELF vaddr of a mapped file. The segment is found by overlap, not by its first byte:
// a mapping begins on a page boundary (up to 64 KB), where the file may still hold another segment.
std::optional<uint64_t> bias_of(const ElfImage& image, const ExecutableMapping& mapping) {
  const uint64_t mapped_end = mapping.file_offset + (mapping.end - mapping.start);
  for (const LoadSegment& s : image.segments())
    if (s.executable && s.file_offset < mapped_end && mapping.file_offset < s.file_offset + s.file_bytes)
      return mapping.start - mapping.file_offset + s.file_offset - s.vaddr;
  return std::nullopt;
}

int refuse_elf(Dwfl_Module*, void**, const char*, Dwarf_Addr, char**, Elf**) { return -1; }
// Debug files hold no more unwind information than .eh_frame does, and libdwfl's own search may go
// to the network.
int refuse_debug_file(Dwfl_Module*, void**, const char*, Dwarf_Addr, const char*, const char*, GElf_Word, char**) {
  return -1;
}
constexpr Dwfl_Callbacks kFileCallbacks = {refuse_elf, refuse_debug_file, nullptr, nullptr};

}  // namespace

struct ProcessUnwinder::State {
  Architecture architecture;
  Dwfl* dwfl = nullptr;
  bool attached = false;
  size_t n_unreadable_files = 0;
  std::vector<std::pair<uint64_t, uint64_t>> code;  // executable address ranges

  // The sample at hand; set for the duration of unwind().
  std::array<uint64_t, 64> registers{};
  uint64_t mask = 0;
  StackDump stack;
  bool read_past_dump = false;
  Unwound* result = nullptr;

  bool has(unsigned perf_register) const { return mask >> perf_register & 1; }
  bool set_registers(Dwfl_Thread* thread) const;
  bool read_word(uint64_t address, uint64_t& word);
  uint64_t without_signature(uint64_t word) const;

  static const Dwfl_Thread_Callbacks kThreadCallbacks;
};

const Dwfl_Thread_Callbacks ProcessUnwinder::State::kThreadCallbacks = {
    .next_thread = [](Dwfl*, void* state, void** thread_state) -> pid_t {
      if (*thread_state) return 0;
      *thread_state = state;
      return kSampleThread;
    },
    .get_thread =
        [](Dwfl*, pid_t, void* state, void** thread_state) {
          *thread_state = state;
          return true;
        },
    .memory_read =
        [](Dwfl*, Dwarf_Addr address, Dwarf_Word* word, void* state) {
          uint64_t value = 0;
          if (!static_cast<State*>(state)->read_word(address, value)) return false;
          *word = value;
          return true;
        },
    .set_initial_registers = [](Dwfl_Thread* thread,
                                void* state) { return static_cast<State*>(state)->set_registers(thread); },
    .detach = nullptr,
    .thread_detach = nullptr,
};

// AArch64 programs may sign return addresses in the bits above the address (pointer
// authentication). Which words of a stack are return addresses is not known here, so a word loses
// its upper bits only when what is left points into code.
uint64_t ProcessUnwinder::State::without_signature(uint64_t word) const {
  if (architecture != Architecture::aarch64 || word >> 48 == 0) return word;
  const uint64_t address = word & ((uint64_t{1} << 48) - 1);
  for (const auto& [start, end] : code)
    if (address >= start && address < end) return address;
  return word;
}

bool ProcessUnwinder::State::read_word(uint64_t address, uint64_t& word) {
  const uint64_t n_bytes = stack.bytes.size();
  if (address < stack.base_sp || n_bytes < sizeof word || address - stack.base_sp > n_bytes - sizeof word) {
    // Above the dump it was too short; anywhere else it is no stack and unwinding went wrong.
    if (address >= stack.base_sp && address - stack.base_sp < (uint64_t{8} << 20)) read_past_dump = true;
    return false;
  }
  std::memcpy(&word, stack.bytes.data() + (address - stack.base_sp), sizeof word);
  word = without_signature(word);
  return true;
}

bool ProcessUnwinder::State::set_registers(Dwfl_Thread* thread) const {
  if (architecture == Architecture::x86_64) {
    for (unsigned i = 0; i < kX86Dwarf.size(); ++i) {
      const Dwarf_Word value = registers[i];
      if (has(i) && kX86Dwarf[i] >= 0 && !dwfl_thread_state_registers(thread, kX86Dwarf[i], 1, &value)) return false;
    }
    dwfl_thread_state_register_pc(thread, registers[kX86PerfPc]);
    return true;
  }
  for (unsigned i = 0; i <= kArmPerfSp; ++i) {
    const Dwarf_Word value = without_signature(registers[i]);
    if (has(i) && !dwfl_thread_state_registers(thread, static_cast<int>(i), 1, &value)) return false;
  }
  dwfl_thread_state_register_pc(thread, registers[kArmPerfPc]);
  return true;
}

ProcessUnwinder::ProcessUnwinder(Architecture architecture, std::span<const ExecutableMapping> mappings,
                                 const std::string& sysroot)
    : state_(std::make_unique<State>()) {
  state_->architecture = architecture;
  state_->dwfl = dwfl_begin(&kFileCallbacks);
  if (!state_->dwfl) return;
  const uint16_t machine = architecture == Architecture::x86_64 ? EM_X86_64 : EM_AARCH64;
  std::vector<std::pair<std::string, uint64_t>> reported;
  dwfl_report_begin(state_->dwfl);
  for (const ExecutableMapping& mapping : mappings) {
    state_->code.emplace_back(mapping.start, mapping.end);
    std::string error;
    const std::string path = sysroot + mapping.path;
    const auto image = mapping.path.starts_with("/") ? ElfImage::open(path, false, error) : nullptr;
    const auto bias = image && image->machine() == machine ? bias_of(*image, mapping) : std::nullopt;
    if (!bias) {
      ++state_->n_unreadable_files;
      continue;
    }
    // One file may be mapped in several pieces; libdwfl wants to hear of it once per place.
    const std::pair key(path, *bias);
    if (std::find(reported.begin(), reported.end(), key) != reported.end()) continue;
    // add_p_vaddr: the base is what is added to the file's own addresses.
    if (dwfl_report_elf(state_->dwfl, path.c_str(), path.c_str(), -1, *bias, true)) reported.push_back(key);
    else ++state_->n_unreadable_files;
  }
  dwfl_report_end(state_->dwfl, nullptr, nullptr);
  state_->attached = !reported.empty() &&
                     dwfl_attach_state(state_->dwfl, nullptr, kSampleThread, &State::kThreadCallbacks, state_.get());
}

ProcessUnwinder::~ProcessUnwinder() {
  if (state_->dwfl) dwfl_end(state_->dwfl);
}

size_t ProcessUnwinder::n_unreadable_files() const { return state_->n_unreadable_files; }

Unwound ProcessUnwinder::unwind(const UserRegisters& registers, const StackDump& stack) {
  State& state = *state_;
  Unwound result;
  state.mask = 0;
  size_t n_values = 0;
  for (unsigned i = 0; i < 64 && n_values < registers.values.size(); ++i) {
    if (!(registers.mask >> i & 1)) continue;
    state.registers[i] = registers.values[n_values++];
    state.mask |= uint64_t{1} << i;
  }
  const bool is_x86 = state.architecture == Architecture::x86_64;
  const unsigned pc = is_x86 ? kX86PerfPc : kArmPerfPc, sp = is_x86 ? kX86PerfSp : kArmPerfSp;
  if (!state.has(pc)) {
    result.stop = UnwindStop::no_registers;
    return result;
  }
  result.addresses.push_back(state.registers[pc]);
  if (!state.has(sp)) {
    result.stop = UnwindStop::no_registers;
    return result;
  }
  if (!state.attached || !dwfl_addrmodule(state.dwfl, state.registers[pc])) {
    result.stop = UnwindStop::no_module;
    return result;
  }
  state.stack = stack;
  state.read_past_dump = false;
  result.addresses.clear();
  state.result = &result;
  auto on_frame = [](Dwfl_Frame* frame, void* argument) -> int {
    Unwound& unwound = *static_cast<State*>(argument)->result;
    Dwarf_Addr address = 0;
    bool is_activation = false;
    if (!dwfl_frame_pc(frame, &address, &is_activation) || address == 0) return DWARF_CB_ABORT;
    unwound.addresses.push_back(address);
    if (unwound.addresses.size() < kMaxUnwindDepth) return DWARF_CB_OK;
    unwound.stop = UnwindStop::depth_limit;
    return DWARF_CB_ABORT;
  };
  dwfl_getthread_frames(state.dwfl, kSampleThread, on_frame, &state);
  state.result = nullptr;
  state.stack = {};
  if (result.addresses.empty()) result.addresses.push_back(state.registers[pc]);
  if (result.stop == UnwindStop::outermost && state.read_past_dump) result.stop = UnwindStop::stack_exhausted;
  return result;
}

ProcessUnwinder& UnwinderCache::get(std::span<const ExecutableMapping> mappings) {
  for (auto slot = slots_.begin(); slot != slots_.end(); ++slot) {
    if (!std::equal(slot->mappings.begin(), slot->mappings.end(), mappings.begin(), mappings.end())) continue;
    slots_.splice(slots_.begin(), slots_, slot);
    return *slots_.front().unwinder;
  }
  if (slots_.size() >= std::max<size_t>(capacity_, 1)) slots_.pop_back();
  slots_.push_front(
      {{mappings.begin(), mappings.end()}, std::make_unique<ProcessUnwinder>(architecture_, mappings, sysroot_)});
  return *slots_.front().unwinder;
}

}  // namespace memlens::symbols
