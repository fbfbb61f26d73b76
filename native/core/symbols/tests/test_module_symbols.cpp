// SPDX-License-Identifier: Apache-2.0
// Known lines of a small program, in every way its symbols can be stored: in the binary, in a debug
// file found by link or build id, shared (dwz), split, mini debug info, symbols only, nothing.
#include <sys/resource.h>

#include <algorithm>

#include "check.h"
#include "symbols/elf_image.h"
#include "toolchain.h"

using namespace memlens::symbols;
namespace {

const char* kProgram = R"(
volatile int sink;
static inline __attribute__((always_inline)) int innermost(int x) {
  return sink + x;                          // LINE innermost
}
static inline __attribute__((always_inline)) int middle(int x) {
  return innermost(x) * 2;                  // LINE middle
}
extern "C" __attribute__((noinline)) int outer(int x) {
  int y = middle(x);                        // LINE outer
  sink = y;                                 // LINE store
  return y;
}
namespace space { struct Thing { __attribute__((noinline)) int method(int x) const; }; }
int space::Thing::method(int x) const { return outer(x) + sink; }  // LINE method
int main(int argc, char**) { return space::Thing().method(argc) == 77; }
)";

struct Built {
  tools::TemporaryDirectory folder;
  std::string binary;
  uint64_t outer = 0, method = 0, outer_bytes = 0;

  explicit Built(const std::string& flags, const std::string& compiler = "g++") : binary(folder / "program") {
    tools::write_file(folder / "program.cpp", kProgram);
    CHECK(tools::run("cd " + folder.path() + " && " + compiler + " -Wl,--build-id " + flags +
                     " program.cpp -o program 2>&1"));
    outer = tools::address_of(binary, "outer");
    method = tools::address_of(binary, "_ZNK5space5Thing6methodEi");
    const std::string sizes = tools::output_of("nm -S " + binary + " | grep ' outer$' | cut -d' ' -f2");
    outer_bytes = std::strtoull(sizes.c_str(), nullptr, 16);
    CHECK(outer != 0 && method != 0 && outer_bytes != 0);
  }
  bool run(const std::string& command) { return tools::run("cd " + folder.path() + " && " + command); }
  std::vector<uint64_t> outer_vaddrs() const {
    std::vector<uint64_t> vaddrs;
    for (uint64_t i = 0; i < outer_bytes; ++i) vaddrs.push_back(outer + i);
    return vaddrs;
  }
};

uint32_t line(const char* marker) { return tools::line_of(kProgram, std::string("LINE ") + marker); }

void check_dwarf(Built& built, const OpenOptions& options = {}, bool inlined = true) {
  StringTable strings;
  auto module = ModuleSymbols::open(built.binary, options, strings);
  CHECK_EQUAL(module->status(), "");
  CHECK(module->quality() == DebugQuality::dwarf);
  const uint64_t method_list[] = {built.method};
  const auto method = tools::resolve(*module, strings, method_list)[0];
  CHECK_EQUAL(method.size(), 1u);
  if (method.size() == 1) {
    CHECK_EQUAL(method[0].function, "space::Thing::method(int) const");
    CHECK_EQUAL(method[0].line, line("method"));
    CHECK_EQUAL(method[0].file, built.folder / "program.cpp");
    CHECK(!method[0].inlined);
  }
  bool saw_chain = false, saw_store = false;
  for (const auto& frames : tools::resolve(*module, strings, built.outer_vaddrs())) {
    CHECK(!frames.empty());
    if (frames.empty()) continue;
    CHECK_EQUAL(frames.back().function, "outer");
    saw_store |= frames.size() == 1 && frames[0].line == line("store");
    if (frames.size() != 3) continue;
    saw_chain |= frames[0].line == line("innermost") && frames[1].line == line("middle") &&
                 frames[2].line == line("outer") && frames[0].inlined && frames[1].inlined && !frames[2].inlined &&
                 frames[0].function.find("innermost") == 0 && frames[1].function.find("middle") == 0;
  }
  CHECK(saw_store);
  if (inlined) CHECK(saw_chain);
}

void check_symbols_only(const Built& built, const OpenOptions& options = {}) {
  StringTable strings;
  auto module = ModuleSymbols::open(built.binary, options, strings);
  CHECK_EQUAL(module->status(), "");
  CHECK(module->quality() == DebugQuality::symbol_table);
  const uint64_t vaddrs[] = {built.outer + 1, built.method, 1};
  const auto frames = tools::resolve(*module, strings, vaddrs);
  CHECK_EQUAL(frames[0].size(), 1u);
  CHECK_EQUAL(frames[1].size(), 1u);
  CHECK(frames[2].empty());
  if (frames[0].size() == 1) CHECK_EQUAL(frames[0][0].function, "outer");
  if (frames[1].size() == 1) CHECK_EQUAL(frames[1][0].function, "space::Thing::method(int) const");
}

std::string build_id_debug_path(const std::string& directory, const std::string& id) {
  return directory + "/.build-id/" + id.substr(0, 2) + "/" + id.substr(2) + ".debug";
}

}  // namespace

TEST(inlined_chain_and_lines_in_every_dwarf_version_and_level) {
  for (const char* flags :
       {"-O0 -gdwarf-4", "-O0 -gdwarf-5", "-O2 -gdwarf-4", "-O2 -gdwarf-5", "-O2 -gdwarf-3", "-O2 -gdwarf-2",
        "-O1 -g -no-pie", "-O2 -g -gz", "-O2 -g -gno-as-loc-support", "-O2 -g -flto -fno-ipa-cp -fno-ipa-sra -rdynamic",
        "-O2 -g -fdebug-types-section", "-O2 -g -ffunction-sections"}) {
    Built built(flags);
    check_dwarf(built);
  }
  if (tools::has_tool("clang++"))
    for (const char* flags : {"-O0 -gdwarf-4", "-O2 -gdwarf-5", "-O2 -gdwarf-4"}) {
      Built built(flags, "clang++");
      check_dwarf(built);
    }
}

TEST(a_64_bit_dwarf_file_is_read) {
  Built built("-O2 -gdwarf-5 -gdwarf64");
  check_dwarf(built);
}

TEST(file_offsets_become_virtual_addresses) {
  Built built("-O2 -g -no-pie");
  StringTable strings;
  auto module = ModuleSymbols::open(built.binary, {}, strings);
  const std::string header = tools::output_of("readelf -SW " + built.binary + " | grep ' \\.text '");
  uint64_t vaddr = 0, offset = 0;
  std::sscanf(header.c_str() + header.find("PROGBITS"), "PROGBITS %lx %lx", &vaddr, &offset);
  CHECK(vaddr != offset);
  CHECK_EQUAL(module->file_offset_to_vaddr(offset + 5).value_or(0), vaddr + 5);
  CHECK(!module->file_offset_to_vaddr(uint64_t{1} << 40));
}

TEST(symbol_at_gives_begin_size_and_name) {
  Built built("-O2");
  StringTable strings;
  auto module = ModuleSymbols::open(built.binary, {}, strings);
  const auto symbol = module->symbol_at(built.outer + 2);
  CHECK(symbol.has_value());
  if (symbol) {
    CHECK_EQUAL(symbol->begin_vaddr, built.outer);
    CHECK_EQUAL(symbol->size_bytes, built.outer_bytes);
    CHECK_EQUAL(strings.at(symbol->name), "outer");
  }
  CHECK(!module->symbol_at(0));
}

TEST(debug_link_is_followed_beside_the_binary_and_in_dot_debug) {
  for (const char* place : {".", ".debug"}) {
    Built built("-O2 -g");
    CHECK(built.run(std::string("mkdir -p ") + place + " && objcopy --only-keep-debug program " + place +
                    "/program.debug && strip program && cd " + place +
                    " && objcopy --add-gnu-debuglink=program.debug " + (built.folder / "program")));
    check_dwarf(built);
  }
}

TEST(debug_link_without_build_id_is_checked_by_its_checksum) {
  Built built("-O2 -g -Wl,--build-id=none");
  CHECK(
      built.run("objcopy --only-keep-debug program program.debug && strip program && objcopy "
                "--add-gnu-debuglink=program.debug program"));
  check_dwarf(built);
  CHECK(built.run("printf x >> program.debug"));
  StringTable strings;
  auto module = ModuleSymbols::open(built.binary, {}, strings);
  CHECK(module->quality() != DebugQuality::dwarf);
  CHECK(module->debug_note().find("checksum") != std::string::npos);
}

TEST(debug_file_is_found_by_build_id_in_a_debug_directory_and_a_sysroot) {
  Built built("-O2 -g");
  const std::string id = read_build_id_hex(built.binary);
  CHECK_EQUAL(id.size(), 40u);
  const std::string path = build_id_debug_path(built.folder / "root/debug", id);
  CHECK(
      built.run("mkdir -p $(dirname " + path + ") && objcopy --only-keep-debug program " + path + " && strip program"));
  check_dwarf(built, {.expected_build_id_hex = id, .debug_directories = {built.folder / "root/debug"}, .sysroot = {}});
  StringTable strings;
  auto module = ModuleSymbols::open(
      built.binary, {.expected_build_id_hex = {}, .debug_directories = {built.folder / "root/debug"}, .sysroot = {}},
      strings);
  CHECK_EQUAL(module->debug_file(), path);
  // Below a sysroot both the module and the debug directory are looked for.
  CHECK(built.run("mkdir -p root/bin && cp program root/bin/"));
  auto below = ModuleSymbols::open(
      "/bin/program", {.expected_build_id_hex = id, .debug_directories = {"/debug"}, .sysroot = built.folder / "root"},
      strings);
  CHECK_EQUAL(below->status(), "");
  CHECK(below->quality() == DebugQuality::dwarf);
}

TEST(a_debug_file_of_another_build_is_refused) {
  Built built("-O2 -g"), other("-O0 -g");
  CHECK(tools::run("objcopy --only-keep-debug " + other.binary + " " + (built.folder / "program.debug")));
  CHECK(built.run("strip program && objcopy --add-gnu-debuglink=program.debug program"));
  StringTable strings;
  auto module = ModuleSymbols::open(built.binary, {}, strings);
  CHECK(module->quality() != DebugQuality::dwarf);
  CHECK(module->debug_note().find("build-id") != std::string::npos);
}

TEST(dwz_alternate_files_are_read) {
  if (!tools::has_tool("dwz")) return std::puts("skipped: dwz is not installed"), CHECK(true);
  Built built("-O2 -gdwarf-4");
  // Three copies make it worth dwz's while to move shared entries to the common file.
  CHECK(built.run("cp program copy && cp program third && dwz -m common.debug program copy third"));
  CHECK(tools::output_of("readelf -SW " + built.binary).find(".gnu_debugaltlink") != std::string::npos);
  check_dwarf(built);
}

TEST(split_dwarf_gives_lines_and_symbols) {
  for (const char* flags : {"-O2 -gdwarf-5 -gsplit-dwarf", "-O2 -gdwarf-4 -gsplit-dwarf"}) {
    Built built(flags);
    StringTable strings;
    auto module = ModuleSymbols::open(built.binary, {}, strings);
    const uint64_t vaddrs[] = {built.method};
    const auto frames = tools::resolve(*module, strings, vaddrs);
    CHECK_EQUAL(frames[0].size(), 1u);
    if (frames[0].empty()) continue;
    CHECK_EQUAL(frames[0][0].function, "space::Thing::method(int) const");
    CHECK_EQUAL(frames[0][0].line, line("method"));
  }
}

TEST(without_debug_info_symbols_are_used) {
  Built built("-O2");
  check_symbols_only(built);
}

TEST(a_stripped_library_still_has_its_dynamic_symbols) {
  Built built("-O2 -shared -fPIC");
  CHECK(built.run("strip program"));
  check_symbols_only(built);
}

TEST(mini_debug_info_is_used_when_elfutils_can_read_it) {
  if (!tools::has_tool("xz")) return std::puts("skipped: xz is not installed"), CHECK(true);
  Built built("-O2");
  CHECK(
      built.run("objcopy -S --keep-symbol=outer --keep-symbol=_ZNK5space5Thing6methodEi program "
                "mini && xz mini && "
                "strip program && objcopy --add-section .gnu_debugdata=mini.xz program"));
  check_symbols_only(built);
}

// 300 MB of zeros are 46 kB of xz; libdwfl unpacks them whatever the index says.
TEST(mini_debug_info_that_claims_far_more_than_it_has_is_left_packed) {
  if (!tools::has_tool("xz")) return std::puts("skipped: xz is not installed"), CHECK(true);
  Built built("-O2");
  CHECK(
      built.run("strip program && head -c 300M /dev/zero | xz -0 > zeros.xz && "
                "objcopy --add-section .gnu_debugdata=zeros.xz program bomb"));
  std::string lying = tools::read_file(built.folder / "zeros.xz");
  lying[lying.size() - 12 - 8] = 1;  // somewhere in the index: it claims less, or makes no sense
  tools::write_file(built.folder / "lying.xz", lying);
  CHECK(built.run("objcopy --add-section .gnu_debugdata=lying.xz program liar"));
  const auto peak_kib = [] {
    rusage use{};
    getrusage(RUSAGE_SELF, &use);
    return use.ru_maxrss;
  };
  const long before = peak_kib();
  for (const char* name : {"bomb", "liar"}) {
    StringTable strings;
    auto module = ModuleSymbols::open(built.folder / name, {}, strings);
    const uint64_t vaddrs[] = {built.outer};
    CHECK(tools::resolve(*module, strings, vaddrs)[0].empty());
  }
  CHECK(peak_kib() - before < 100 << 10);
}

TEST(a_compressed_section_that_claims_far_more_than_it_has_is_left_packed) {
  Built built("-O2 -g -gz");
  std::string error;
  const auto whole = ElfImage::open(built.binary, false, error);
  CHECK(whole && !whole->section(".debug_info").empty());
  CHECK(built.run(
      "head -c 64M /dev/zero > zeros && strip -o bomb program && objcopy --add-section .debug_str=zeros bomb && "
      "objcopy --compress-debug-sections=zlib bomb"));
  const auto bomb = ElfImage::open(built.folder / "bomb", false, error);
  CHECK(bomb && bomb->section(".debug_str").empty());  // 64 MiB from 64 KiB
}

TEST(a_fully_stripped_program_resolves_to_nothing) {
  Built built("-O2");
  CHECK(built.run("strip program"));
  StringTable strings;
  auto module = ModuleSymbols::open(built.binary, {}, strings);
  CHECK_EQUAL(module->status(), "");
  CHECK(module->quality() == DebugQuality::none);
  const uint64_t vaddrs[] = {built.outer, UINT64_MAX, 0};
  for (const auto& frames : tools::resolve(*module, strings, vaddrs)) CHECK(frames.empty());
}

TEST(bad_files_say_why) {
  Built built("-O2 -g");
  StringTable strings;
  auto status = [&](const std::string& path, const std::string& id) {
    auto module =
        ModuleSymbols::open(path, {.expected_build_id_hex = id, .debug_directories = {}, .sysroot = {}}, strings);
    const uint64_t vaddrs[] = {built.outer};
    CHECK(module->status().empty() || tools::resolve(*module, strings, vaddrs)[0].empty());
    CHECK(module->status().empty() || !module->file_offset_to_vaddr(0));
    return module->status();
  };
  CHECK(status("/no/such/file", "").find("cannot open") != std::string::npos);
  CHECK(status(built.folder.path(), "").find("not a regular file") != std::string::npos);
  CHECK(status(built.folder / "program.cpp", "").find("not an ELF file") != std::string::npos);
  CHECK(built.run("head -c 9000 program > short; : > empty"));
  CHECK(status(built.folder / "short", "").find("truncated") != std::string::npos);
  CHECK(status(built.folder / "empty", "").find("not an ELF file") != std::string::npos);
  const std::string id = read_build_id_hex(built.binary), other(40, 'a');
  CHECK_EQUAL(status(built.binary, id), "");
  std::string upper = id;
  std::transform(upper.begin(), upper.end(), upper.begin(), [](char c) { return c >= 'a' ? char(c - 32) : c; });
  CHECK_EQUAL(status(built.binary, upper), "");
  const std::string differs = status(built.binary, other);
  CHECK(differs.find(other) != std::string::npos && differs.find(id) != std::string::npos);
  CHECK_EQUAL(read_build_id_hex("/no/such/file"), "");
}

int main(int argc, char** argv) { return check::run_all(argc, argv); }
