// SPDX-License-Identifier: Apache-2.0
// Records page faults of a program without frame pointers, with registers and a stack copy, and
// checks that unwinding names the ten functions that called each other, in order, down to main.
#include <fcntl.h>
#include <linux/perf_event.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <sstream>

#include "check.h"
#include "symbols/unwind.h"
#include "toolchain.h"

using namespace memlens::symbols;
namespace {

const char* kProgram = R"(
#include <sys/mman.h>
#include <unistd.h>
#include <cstdio>
static volatile char* fresh;
static volatile int sink;
template <int N> [[gnu::noinline]] int level(int x) { int y = level<N - 1>(x + N); sink = y; return y * 3 + N; }
template <> [[gnu::noinline]] int level<0>(int x) { for (int i = 0; i < 200; ++i) fresh[i * 4096] = x; sink = x; return x; }
int main() {
  fresh = (volatile char*)mmap(nullptr, 200 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  int r = level<10>(1);
  char c; r += write(1, "x", 1); r += read(0, &c, 1);  // the test reads /proc/PID/maps here
  return r == 12345;
}
)";

#if defined(__x86_64__)
constexpr Architecture kHere = Architecture::x86_64;
constexpr uint64_t kRegisterMask = 0xff01ff;  // AX..IP and R8..R15
constexpr unsigned kStackPointerValue = 7;
#else
constexpr Architecture kHere = Architecture::aarch64;
constexpr uint64_t kRegisterMask = (uint64_t{1} << 33) - 1;
constexpr unsigned kStackPointerValue = 31;
#endif

struct Sample {
  std::vector<uint64_t> registers;
  std::vector<uint8_t> stack;
};
struct Recording {
  std::vector<Sample> samples;
  std::vector<ExecutableMapping> mappings;
};

std::vector<ExecutableMapping> read_mappings(pid_t pid) {
  std::vector<ExecutableMapping> mappings;
  std::istringstream maps(tools::read_file("/proc/" + std::to_string(pid) + "/maps"));
  for (std::string line; std::getline(maps, line);) {
    ExecutableMapping m{};
    char rights[8] = "", path[512] = "";
    std::sscanf(line.c_str(), "%lx-%lx %7s %lx %*s %*s %511s", &m.start, &m.end, rights, &m.file_offset, path);
    m.path = path;
    if (rights[2] == 'x') mappings.push_back(m);
  }
  return mappings;
}

// The ring buffer is large enough to hold everything; it is read once, at the end.
std::vector<Sample> read_samples(const uint8_t* ring, size_t ring_bytes) {
  const auto* control = reinterpret_cast<const perf_event_mmap_page*>(ring);
  const uint8_t* data = ring + control->data_offset;
  const size_t data_bytes = ring_bytes - control->data_offset;
  std::vector<Sample> samples;
  const uint64_t head = __atomic_load_n(&control->data_head, __ATOMIC_ACQUIRE);
  for (uint64_t at = 0; at + sizeof(perf_event_header) <= head && head <= data_bytes;) {
    perf_event_header header;
    std::memcpy(&header, data + at, sizeof header);
    if (header.size < sizeof header) break;
    const uint8_t* body = data + at + sizeof header;
    at += header.size;
    uint64_t abi = 0, dump_bytes = 0;
    if (header.type != PERF_RECORD_SAMPLE) continue;
    std::memcpy(&abi, body, 8);
    if (abi == 0) continue;
    Sample sample;
    sample.registers.resize(__builtin_popcountll(kRegisterMask));
    std::memcpy(sample.registers.data(), body + 8, sample.registers.size() * 8);
    body += 8 + sample.registers.size() * 8;
    std::memcpy(&dump_bytes, body, 8);
    uint64_t valid_bytes = 0;
    if (dump_bytes > 0) std::memcpy(&valid_bytes, body + 8 + dump_bytes, 8);
    sample.stack.assign(body + 8, body + 8 + valid_bytes);
    samples.push_back(std::move(sample));
  }
  return samples;
}

std::optional<Recording> record(const std::string& program, uint32_t stack_bytes) {
  int go[2], out[2], in[2];
  if (pipe(go) || pipe(out) || pipe(in)) return std::nullopt;
  const pid_t child = fork();
  if (child == 0) {
    char c;
    dup2(out[1], 1);
    dup2(in[0], 0);
    close(go[1]), close(in[1]);
    if (read(go[0], &c, 1) == 1) execl(program.c_str(), program.c_str(), nullptr);
    _exit(127);
  }
  close(go[0]), close(out[1]), close(in[0]);
  perf_event_attr attributes = {};
  attributes.size = sizeof attributes;
  attributes.type = PERF_TYPE_SOFTWARE;
  attributes.config = PERF_COUNT_SW_PAGE_FAULTS;
  attributes.sample_period = 1;
  attributes.sample_type = PERF_SAMPLE_REGS_USER | PERF_SAMPLE_STACK_USER;
  attributes.sample_regs_user = kRegisterMask;
  attributes.sample_stack_user = stack_bytes;
  attributes.disabled = attributes.enable_on_exec = attributes.exclude_kernel = 1;
  const int fd = static_cast<int>(syscall(SYS_perf_event_open, &attributes, child, -1, -1, 0));
  const size_t ring_bytes = (1 + 4096) * size_t(sysconf(_SC_PAGESIZE));
  void* ring = fd < 0 ? MAP_FAILED : mmap(nullptr, ring_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  std::optional<Recording> recording;
  if (ring != MAP_FAILED) {
    char c;
    if (write(go[1], "x", 1) == 1 && read(out[0], &c, 1) == 1)
      recording = Recording{read_samples(static_cast<uint8_t*>(ring), ring_bytes), read_mappings(child)};
    munmap(ring, ring_bytes);
  } else {
    std::printf("skipped: perf_event_open: %s\n", std::strerror(errno));
  }
  close(go[1]), close(in[1]), close(out[0]);
  if (fd >= 0) close(fd);
  waitpid(child, nullptr, 0);
  return recording;
}

std::vector<std::string> names_of(const Unwound& stack, const std::vector<ExecutableMapping>& mappings,
                                  ModuleSymbols& module, StringTable& strings, const std::string& program) {
  std::vector<std::string> names;
  for (size_t i = 0; i < stack.addresses.size(); ++i) {
    const uint64_t address = stack.addresses[i] - (i > 0);  // into the call, not after it
    for (const ExecutableMapping& m : mappings) {
      if (address < m.start || address >= m.end || m.path != program) continue;
      const auto vaddr = module.file_offset_to_vaddr(address - m.start + m.file_offset);
      const uint64_t list[] = {vaddr.value_or(0)};
      const auto resolved = tools::resolve(module, strings, list);
      for (const auto& f : resolved[0]) names.push_back(f.function);
    }
  }
  return names;
}

void check_program(const std::string& flags) {
  tools::TemporaryDirectory folder;
  const std::string program = folder / "recursion";
  tools::write_file(folder / "recursion.cpp", kProgram);
  CHECK(tools::run("g++ " + flags + " " + (folder / "recursion.cpp") + " -o " + program));
  const auto recording = record(program, 16384);
  if (!recording) return CHECK(true);
  CHECK(recording->samples.size() > 200);
  StringTable strings;
  auto module = ModuleSymbols::open(program, {}, strings);
  UnwinderCache cache(kHere);
  size_t n_complete = 0, n_in_leaf = 0;
  for (const Sample& sample : recording->samples) {
    ProcessUnwinder& unwinder = cache.get(recording->mappings);
    CHECK(&unwinder == &cache.get(recording->mappings));
    const Unwound stack =
        unwinder.unwind({kRegisterMask, sample.registers}, {sample.registers[kStackPointerValue], sample.stack});
    const auto names = names_of(stack, recording->mappings, *module, strings, program);
    if (names.empty() || names[0] != "int level<0>(int)") continue;
    ++n_in_leaf;
    bool complete = names.size() >= 12;
    for (size_t i = 0; i <= 10 && complete; ++i) complete = names[i] == "int level<" + std::to_string(i) + ">(int)";
    complete = complete && names[11] == "main";
    n_complete += complete;
    if (!complete && n_in_leaf < 3)
      for (const auto& n : names) std::printf("  %s\n", n.c_str());
  }
  std::printf("%s: %zu samples, %zu in the leaf, %zu complete\n", flags.c_str(), recording->samples.size(), n_in_leaf,
              n_complete);
  CHECK(n_in_leaf >= 199);
  CHECK_EQUAL(n_complete, n_in_leaf);
}

}  // namespace

TEST(stacks_without_frame_pointers_reach_main) { check_program("-O2 -g -fomit-frame-pointer"); }
TEST(stacks_of_position_dependent_code_reach_main) { check_program("-O2 -g -fomit-frame-pointer -no-pie"); }
TEST(stacks_with_frame_pointers_reach_main) { check_program("-O1 -g -fno-omit-frame-pointer"); }

TEST(a_short_stack_dump_says_that_it_was_short) {
  tools::TemporaryDirectory folder;
  const std::string program = folder / "recursion";
  tools::write_file(folder / "recursion.cpp", kProgram);
  CHECK(tools::run("g++ -O2 -g " + (folder / "recursion.cpp") + " -o " + program));
  const auto recording = record(program, 64);
  if (!recording) return CHECK(true);
  ProcessUnwinder unwinder(kHere, recording->mappings);
  size_t n_exhausted = 0;
  for (const Sample& s : recording->samples) {
    const Unwound stack = unwinder.unwind({kRegisterMask, s.registers}, {s.registers[kStackPointerValue], s.stack});
    CHECK(!stack.addresses.empty());
    n_exhausted += stack.stop == UnwindStop::stack_exhausted;
  }
  CHECK(n_exhausted >= 199);
}

// No AArch64 machine is needed: three functions in assembler, and the registers and stack they
// would have left behind, written down by hand.
TEST(aarch64_stacks_are_unwound_also_when_return_addresses_are_signed) {
  const std::string compiler = "aarch64-linux-gnu-gcc";
  if (!tools::has_tool(compiler)) {
    std::printf("skipped: %s is not installed\n", compiler.c_str());
    return CHECK(true);
  }
  tools::TemporaryDirectory folder;
  const std::string library = folder / "frames.so";
  tools::write_file(folder / "frames.s", R"(
.text
.globl leaf, middle, middle_return, outermost, outermost_return
leaf: .cfi_startproc
  nop
  ret
  .cfi_endproc
middle: .cfi_startproc
  stp x29, x30, [sp, #-48]!
  .cfi_def_cfa_offset 48
  .cfi_offset 29, -48
  .cfi_offset 30, -40
  bl leaf
middle_return: nop
  ret
  .cfi_endproc
outermost: .cfi_startproc
  stp x29, x30, [sp, #-32]!
  .cfi_def_cfa_offset 32
  .cfi_offset 29, -32
  .cfi_offset 30, -24
  bl middle
outermost_return: nop
  ret
  .cfi_endproc
)");
  CHECK(tools::run(compiler + " -shared -nostdlib -Wl,-Bsymbolic " + (folder / "frames.s") + " -o " + library));
  constexpr uint64_t kBase = 0xffff80000000, kStack = 0xfffff0000000;
  const ExecutableMapping mapping{kBase, kBase + 0x10000, 0, library};
  ProcessUnwinder unwinder(Architecture::aarch64, {&mapping, 1});
  CHECK_EQUAL(unwinder.n_unreadable_files(), 0u);
  const uint64_t leaf = kBase + tools::address_of(library, "leaf");
  const uint64_t in_middle = kBase + tools::address_of(library, "middle_return");
  const uint64_t in_outermost = kBase + tools::address_of(library, "outermost_return");
  for (const uint64_t signature : {uint64_t{0}, uint64_t{0x0075} << 48}) {
    std::vector<uint64_t> registers(33), stack(16);
    registers[30] = in_middle | signature;
    registers[31] = kStack;
    registers[32] = leaf;
    stack[1] = in_outermost | signature;  // saved by middle at its sp + 8
    const Unwound unwound =
        unwinder.unwind({(uint64_t{1} << 33) - 1, registers},
                        {kStack, {reinterpret_cast<const uint8_t*>(stack.data()), stack.size() * 8}});
    CHECK_EQUAL(unwound.addresses.size(), 3u);
    if (unwound.addresses.size() < 3) continue;
    CHECK_EQUAL(unwound.addresses[0], leaf);
    CHECK_EQUAL(unwound.addresses[1], in_middle);
    CHECK_EQUAL(unwound.addresses[2], in_outermost);
    CHECK(unwound.stop == UnwindStop::outermost);
  }
}

TEST(bad_input_gives_at_most_the_pc) {
  const ExecutableMapping nowhere{0x1000, 0x2000, 0, "/no/such/file"};
  ProcessUnwinder unwinder(kHere, {&nowhere, 1});
  CHECK_EQUAL(unwinder.n_unreadable_files(), 1u);
  CHECK(unwinder.unwind({}, {}).addresses.empty());
  CHECK(unwinder.unwind({}, {}).stop == UnwindStop::no_registers);
  const std::vector<uint64_t> values(64, 0x1234);
  const Unwound stack = unwinder.unwind({kRegisterMask, values}, {});
  CHECK_EQUAL(stack.addresses.size(), 1u);
  CHECK(stack.stop == UnwindStop::no_module);
}

int main(int argc, char** argv) { return check::run_all(argc, argv); }
