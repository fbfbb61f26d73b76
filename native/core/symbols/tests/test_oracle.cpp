// SPDX-License-Identifier: Apache-2.0
// Every executable address of a medium program, built in eleven ways, against other symbolisers:
// function, file and line of every frame, inlined ones included.
#include "check.h"
#include "oracle.h"
#include "oracle_program.h"

using namespace memlens::symbols;
using oracle::Verdict;
namespace {

void compare_program(const std::string& compile) {
  tools::TemporaryDirectory folder;
  tools::write_file(folder / "shapes.h", kOracleHeader);
  tools::write_file(folder / "factory.cpp", kOracleFactory);
  tools::write_file(folder / "main.cpp", kOracleMain);
  const std::string binary = folder / "program";
  if (!tools::run("cd " + folder.path() + " && " + compile + " main.cpp factory.cpp -o program")) {
    CHECK(!"the test program does not compile");
    return;
  }
  const std::string header = tools::output_of("readelf -SW " + binary + " | grep ' \\.text '");
  uint64_t begin = 0, offset = 0, n_bytes = 0;
  if (const size_t at = header.find("PROGBITS"); at != std::string::npos)
    std::sscanf(header.c_str() + at, "PROGBITS %lx %lx %lx", &begin, &offset, &n_bytes);
  CHECK(n_bytes > 5000);
  std::vector<uint64_t> vaddrs;
  for (uint64_t a = begin; a < begin + n_bytes; ++a) vaddrs.push_back(a);

  StringTable strings;
  auto module = ModuleSymbols::open(binary, {}, strings);
  CHECK_EQUAL(module->status(), "");
  const auto ours = tools::resolve(*module, strings, vaddrs);
  std::map<Verdict, size_t> counts;
  const auto disputed = oracle::unsettled(binary, vaddrs, ours, folder / "addresses", counts);
  std::printf(
      "%s: %zu addresses: %zu same, %zu name forms, %zu only a symbol, %zu gaps, "
      "%zu decided against binutils, %zu differ\n",
      compile.c_str(), vaddrs.size(), counts[Verdict::same], counts[Verdict::name_form], counts[Verdict::only_symbol],
      counts[Verdict::gap], counts[Verdict::differs] - disputed.size(), disputed.size());
  CHECK_EQUAL(disputed.size(), 0u);
}

}  // namespace

TEST(every_address_agrees_with_addr2line) {
  for (const char* tool : {"addr2line", "eu-addr2line", "readelf", "g++"}) {
    if (tools::has_tool(tool)) continue;
    std::printf("skipped: %s is not installed\n", tool);
    CHECK(true);
    return;
  }
  for (const char* flags : {"-O0 -gdwarf-4", "-O0 -gdwarf-5", "-O2 -gdwarf-4", "-O2 -gdwarf-5", "-O2 -g -flto",
                            "-O2 -g -ffunction-sections -Wl,--gc-sections"}) {
    // Binutils loses inlined frames across link-time units: only with a third tool there is a judge.
    if (std::string(flags).find("lto") != std::string::npos && oracle::arbiters().size() < 2) {
      std::printf("skipped: %s needs llvm-addr2line: sudo apt-get install llvm\n", flags);
      continue;
    }
    compare_program(std::string("g++ -std=c++17 ") + flags);
    // Only LLVM's own tool reads all of clang's DWARF 5; without it there is no judge.
    if (tools::has_tool("clang++") && oracle::arbiters().size() > 1 &&
        std::string(flags).find("lto") == std::string::npos)
      compare_program(std::string("clang++ -std=c++17 ") + flags);
  }
}

int main(int argc, char** argv) { return check::run_all(argc, argv); }
