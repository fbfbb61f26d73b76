// SPDX-License-Identifier: Apache-2.0
// Damaged binaries: bits flipped in debug sections and anywhere, files cut short. Built with the
// address and undefined-behaviour sanitizers; to end without a report is the test.
// Argument: number of damaged files per kind (default 600).
#include <chrono>
#include <cstring>
#include <random>

#include "check.h"
#include "oracle_program.h"
#include "symbols/elf_image.h"
#include "symbols/unwind.h"
#include "symbols/variables.h"
#include "toolchain.h"

using namespace memlens::symbols;
namespace {

int n_rounds = 600;

// What the variable reader looks at: nested and recursive types, bit-fields, arrays, unions, bases,
// pointers to functions, static and thread-local variables in all kinds of scopes.
constexpr const char* kVariables = R"(
struct node { node* next; char kind; double weight; struct { short a, b; } pair[3]; unsigned low : 3, high : 9; };
typedef node node_list[7];
union number { int i; double d; char text[24]; };
struct derived_node : node, virtual shapes::Shape { char c; int (*call)(node&, int (*)(int)); double area() const { return 0; } };
node nodes[5][4];
volatile const number numbers[3] = {};
node_list lists[2];
derived_node derived;
thread_local node own_nodes[9];
namespace outer { namespace { int hidden[64]; } template <class T> struct held { static T all[6]; }; template <class T> T held<T>::all[6]; }
template struct outer::held<node>;
int use_variables(int i) { static number inside[8]; { static thread_local int deep[5]; deep[i]++; } return inside[i].i + outer::hidden[i]++; }
)";

struct Region {
  size_t offset, n_bytes;
};

// File regions of the sections that we decode ourselves, and of those that libelf reads for us.
std::vector<Region> interesting_regions(const std::string& binary) {
  std::vector<Region> regions;
  const std::string text = tools::output_of("readelf -SW " + binary);
  for (const char* name : {".debug_info", ".debug_abbrev", ".debug_line", ".debug_rnglists", ".debug_ranges",
                           ".debug_aranges", ".debug_addr", ".debug_str_offsets", ".debug_line_str", ".symtab",
                           ".eh_frame", ".note.gnu.build-id", ".debug_info.dwo", ".debug_abbrev.dwo",
                           ".debug_rnglists.dwo", ".debug_str_offsets.dwo", ".debug_str.dwo", ".debug_cu_index"}) {
    const size_t at = text.find(std::string(name) + " ");
    if (at == std::string::npos) continue;
    uint64_t offset = 0, n_bytes = 0;
    if (std::sscanf(text.c_str() + at, "%*s %*s %*x %lx %lx", &offset, &n_bytes) == 2 && n_bytes > 0)
      regions.push_back({offset, n_bytes});
  }
  return regions;
}

std::vector<uint64_t> code_addresses(const std::string& binary) {
  std::string error;
  auto image = ElfImage::open(binary, false, error);
  std::vector<uint64_t> vaddrs = {0, 1, UINT64_MAX};
  if (!image) return vaddrs;
  image->visit_code_symbols(true, [&](const ElfSymbolRecord& r) {
    for (uint64_t i = 0; i < r.size_bytes; i += 5) vaddrs.push_back(r.vaddr + i);
  });
  return vaddrs;
}

// Every variable, its type, and some places in it; types too that no variable has.
size_t use_variables(const std::string& path, std::mt19937& random) {
  auto module = ModuleVariables::open(path, {});
  uint64_t last_vaddr = 0;
  size_t n_typed = 0;
  for (const Variable& variable : module->variables()) {
    if (!variable.is_tls) CHECK(variable.vaddr >= last_vaddr);
    if (!variable.is_tls) last_vaddr = variable.vaddr;
    if (const auto type = module->describe_type(variable.type)) {
      ++n_typed;
      for (const TypeField& field : type->fields) module->describe_type(field.type);
      CHECK(type->packed_bytes <= type->bytes);
    }
    for (const uint64_t offset : {uint64_t{0}, variable.bytes / 2, variable.bytes, uint64_t(random()), UINT64_MAX})
      for (const bool as_array : {false, true}) module->field_at(variable.type, offset, as_array);
  }
  for (const char* name : {"shapes::Shape", "Circle", "struct node", "std::string", "", "::"})
    module->describe_type(std::string_view(name));
  for (int i = 0; i < 50; ++i) {
    module->describe_type(EntryId{random() % 200000});
    module->field_at(EntryId{random() % 200000}, random() % 4096);
  }
  return n_typed;
}

// Returns how many frames came out.
size_t use(const std::string& path, const std::vector<uint64_t>& vaddrs, std::mt19937& random) {
  StringTable strings;
  auto module = ModuleSymbols::open(path, {}, strings);
  std::vector<Frame> frames;
  std::vector<uint32_t> first;
  module->resolve(vaddrs, frames, first);
  CHECK_EQUAL(first.size(), vaddrs.size() + 1);
  for (const Frame& f : frames) strings.at(f.function), strings.at(f.file);
  for (int i = 0; i < 20; ++i) module->symbol_at(vaddrs[random() % vaddrs.size()]);
  module->file_offset_to_vaddr(random() % 100000);

  use_variables(path, random);

  // The unwinder on the same file: its call-frame information may be damaged too.
  const ExecutableMapping mapping{0x400000, 0x800000, 0x2000, path};
  ProcessUnwinder unwinder(Architecture::x86_64, {&mapping, 1});
  std::vector<uint64_t> registers(17, 0x7fff0000), stack(256);
  for (uint64_t& word : stack) word = random() % 2 ? 0x400000 + random() % 0x8000 : 0x7fff0000 + random() % 2048;
  for (int i = 0; i < 10; ++i) {
    registers[8] = 0x400000 + random() % 0x8000;
    CHECK(unwinder
              .unwind({0xff01ff, registers}, {0x7fff0000, {reinterpret_cast<uint8_t*>(stack.data()), stack.size() * 8}})
              .addresses.size() <= kMaxUnwindDepth);
  }
  return frames.size();
}

void damage(const std::string& flags, unsigned seed) {
  tools::TemporaryDirectory folder;
  tools::write_file(folder / "shapes.h", kOracleHeader);
  tools::write_file(folder / "program.cpp", kOracleFactory + std::string(kVariables));
  const std::string binary = folder / "program", copy = folder / "damaged";
  CHECK(tools::run("cd " + folder.path() + " && g++ -std=c++17 -shared -fPIC " + flags + " program.cpp -o program"));
  const std::string whole = tools::read_file(binary);
  const std::vector<Region> regions = interesting_regions(binary);
  const std::vector<uint64_t> vaddrs = code_addresses(binary);
  CHECK(regions.size() >= 6 && vaddrs.size() > 500 && whole.size() > 10000);
  std::mt19937 random(seed);
  CHECK(use(binary, vaddrs, random) > vaddrs.size());  // undamaged: inlined frames too
  CHECK(use_variables(binary, random) >= 9);
  size_t n_usable = 0;
  double slowest_seconds = 0;
  auto attempt = [&](const std::string& bytes) {
    tools::write_file(copy, bytes);
    const auto begin = std::chrono::steady_clock::now();
    n_usable += use(copy, vaddrs, random) > 0;
    slowest_seconds =
        std::max(slowest_seconds, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  };
  for (int i = 0; i < n_rounds; ++i) {
    std::string in_sections = whole;
    const Region& region = regions[random() % regions.size()];
    for (unsigned n = 1 + random() % 4; n > 0; --n)
      in_sections[region.offset + random() % region.n_bytes] ^= char(1u << random() % 8);
    attempt(in_sections);
    if (i % 2 == 0) {
      std::string anywhere = whole;
      for (unsigned n = 1 + random() % 8; n > 0; --n) anywhere[random() % whole.size()] ^= char(1u << random() % 8);
      if (i % 4 == 0) anywhere[random() % 64] = char(random());                       // ELF header
      if (i % 8 == 0) anywhere[whole.size() - 1 - random() % 2000] = char(random());  // section headers
      attempt(anywhere);
    }
    if (i % 2 == 1) attempt(whole.substr(0, random() % whole.size()));
  }
  std::printf("%s: %d damaged files, %zu of them still usable, slowest %.2f s\n", flags.c_str(), n_rounds * 2, n_usable,
              slowest_seconds);
  CHECK(slowest_seconds < 20);
  CHECK(n_usable > size_t(n_rounds));  // damage that is refused at the door tests little
}

// Split debug information: the program, its .dwo file or its .dwp package is damaged in turn.
void damage_split(const std::string& compiler, const std::string& flags, const std::string& packager, unsigned seed) {
  for (const std::string& tool : {compiler, packager}) {
    if (tool.empty() || tools::has_tool(tool)) continue;
    std::printf("skipped: %s is not installed\n", tool.c_str());
    CHECK(true);
    return;
  }
  tools::TemporaryDirectory folder;
  tools::write_file(folder / "shapes.h", kOracleHeader);
  tools::write_file(folder / "program.cpp", kOracleFactory + std::string(kVariables));
  const std::string binary = folder / "program";
  CHECK(tools::run("cd " + folder.path() + " && " + compiler + " -std=c++17 -fPIC -gsplit-dwarf " + flags +
                   " -c program.cpp && " + compiler + " -shared program.o -o program"));
  std::string part = folder / "program.dwo";
  if (!packager.empty()) {
    CHECK(tools::run("cd " + folder.path() + " && " + packager + " -e program -o program.dwp && rm program.dwo"));
    part = folder / "program.dwp";
  }
  const std::vector<uint64_t> vaddrs = code_addresses(binary);
  std::mt19937 random(seed);
  const size_t n_frames = use(binary, vaddrs, random);
  CHECK(n_frames > vaddrs.size());  // undamaged: inlined frames too
  size_t n_with_inlined = 0;
  for (const std::string& path : {part, binary}) {
    const std::string whole = tools::read_file(path);
    const std::vector<Region> regions = interesting_regions(path);
    CHECK(regions.size() >= 4);
    for (int i = 0; i < n_rounds; ++i) {
      std::string bytes = whole;
      const Region& region = regions[random() % regions.size()];
      for (unsigned n = 1 + random() % 4; n > 0; --n)
        bytes[region.offset + random() % region.n_bytes] ^= char(1u << random() % 8);
      if (i % 8 == 7) bytes[random() % bytes.size()] = char(random());
      if (i % 8 == 6) bytes.resize(random() % bytes.size());
      tools::write_file(path, bytes);
      n_with_inlined += use(binary, vaddrs, random) > vaddrs.size();
    }
    tools::write_file(path, whole);
  }
  std::printf("%s %s: %d damaged files, %zu of them with inlined frames\n", flags.c_str(), packager.c_str(),
              n_rounds * 2, n_with_inlined);
  CHECK_EQUAL(use(binary, vaddrs, random), n_frames);
  CHECK(n_with_inlined > size_t(n_rounds) / 2);  // damage that is refused at the door tests little
}

}  // namespace

TEST(damaged_dwo_files_do_not_crash) {
  damage_split("g++", "-O2 -gdwarf-5", "", 4);
  damage_split("g++", "-O2 -gdwarf-4", "", 5);
}
TEST(damaged_packages_do_not_crash) {
  damage_split("g++", "-O2 -gdwarf-4", "dwp", 6);
  // Binutils' dwp does not make packages of DWARF 5.
  damage_split("clang++-19", "-O2 -gdwarf-5", "llvm-dwp-19", 7);
}
TEST(damaged_dwarf_5_does_not_crash) { damage("-O2 -gdwarf-5", 1); }
TEST(damaged_dwarf_4_does_not_crash) { damage("-O2 -gdwarf-4", 2); }
TEST(damaged_compressed_dwarf_does_not_crash) { damage("-O1 -g -gz", 3); }

int main(int argc, char** argv) {
  if (argc > 1) n_rounds = std::atoi(argv[1]);
  return check::run_all(1, argv);
}
