// SPDX-License-Identifier: Apache-2.0
// Opens a binary with at least 50 MB of .debug_info and resolves 100,000 distinct addresses with
// inlined frames; then checks 1,000 of them against other symbolisers.
//
//   bench_symbols                 generates a program (minutes, once; kept in the temporary folder)
//   bench_symbols BINARY          measures that binary
//   bench_symbols --no-verify ... only measures
//
// Fails when it takes more than 5 s or an answer is disputed by all other tools.
#include <sys/resource.h>

#include <chrono>
#include <cstring>
#include <random>
#include <set>
#include <thread>

#include "oracle.h"
#include "symbols/elf_image.h"

using namespace memlens::symbols;
namespace {

constexpr size_t kAddresses = 100000;
constexpr size_t kVerified = 1000;
constexpr double kMaxSeconds = 5.0;
constexpr int kUnits = 20;

// Many small types, each put through containers and algorithms: what large C++ programs look like.
std::string unit_source(int unit) {
  const std::string id = std::to_string(unit);
  std::string text =
      "#include <algorithm>\n#include <deque>\n#include <functional>\n#include <map>\n"
      "#include <memory>\n#include <numeric>\n#include <set>\n#include <string>\n"
      "#include <unordered_map>\n#include <vector>\nnamespace unit" +
      id + " {\n";
  for (int type = 0; type < 12; ++type) {
    const std::string name = "Item" + std::to_string(type);
    text += "struct " + name +
            " { int a; double b; std::string c;\n"
            "  bool operator<(const " +
            name +
            "& o) const { return a < o.a || (a == o.a && c < o.c); }\n"
            "  int weight() const { return a * " +
            std::to_string(type + 2) +
            " + int(c.size()); } };\n"
            "int use_" +
            name +
            "(int n) {\n"
            "  std::vector<" +
            name + "> v; std::map<int, " + name + "> m; std::deque<" + name +
            "> d;\n"
            "  std::unordered_map<std::string, " +
            name + "> u; std::set<" + name +
            "> s;\n"
            "  for (int i = 0; i < n; ++i) { " +
            name +
            " x{i, i * 0.5, std::to_string(i)};\n"
            "    v.push_back(x); m[i] = x; d.push_front(x); u.emplace(x.c, x); s.insert(x); }\n"
            "  std::sort(v.begin(), v.end()); std::stable_sort(d.begin(), d.end());\n"
            "  std::function<int(int)> f = [&](int i) { return v[i % v.size()].weight(); };\n"
            "  auto p = std::make_shared<" +
            name +
            ">(v.front());\n"
            "  return std::accumulate(v.begin(), v.end(), 0, [](int t, const " +
            name +
            "& x) { return t + x.weight(); }) + m.begin()->second.weight() + d.back().weight()\n"
            "    + int(u.size()) + s.begin()->weight() + f(n) + p->weight(); }\n";
  }
  text += "}\nint run_unit" + id + "(int n) { int t = 0;\n";
  for (int type = 0; type < 12; ++type) text += "  t += unit" + id + "::use_Item" + std::to_string(type) + "(n);\n";
  return text + "  return t; }\n";
}

std::string generated_program() {
  const std::string folder = (std::filesystem::temp_directory_path() / "memlens-bench-symbols").string();
  const std::string binary = folder + "/program";
  if (std::filesystem::exists(binary)) return binary;
  std::filesystem::remove_all(folder);  // of an interrupted run
  std::filesystem::create_directories(folder);
  std::string main_text, calls;
  for (int unit = 0; unit < kUnits; ++unit) {
    tools::write_file(folder + "/unit" + std::to_string(unit) + ".cpp", unit_source(unit));
    main_text += "int run_unit" + std::to_string(unit) + "(int);\n";
    calls += "  t += run_unit" + std::to_string(unit) + "(c);\n";
  }
  tools::write_file(folder + "/main.cpp",
                    main_text + "int main(int c, char**) { int t = 0;\n" + calls + "  return t == 1; }\n");
  const std::string jobs = std::to_string(std::max(1u, std::thread::hardware_concurrency()));
  std::printf("generating %s (once)\n", binary.c_str());
  std::fflush(stdout);
  if (!tools::run("cd " + folder + " && ls *.cpp | xargs -P" + jobs +
                  " -I{} g++ -std=c++17 -g -O1 -c {} && g++ *.o -o building && mv building program"))
    return {};
  return binary;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

long peak_rss_kb() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

// Distinct addresses, spread evenly over the symbols' code.
std::vector<uint64_t> pick_addresses(const std::string& binary) {
  std::string error;
  auto image = ElfImage::open(binary, false, error);
  if (!image) return {};
  std::set<std::pair<uint64_t, uint64_t>> code;
  uint64_t total_bytes = 0;
  image->visit_code_symbols(true, [&](const ElfSymbolRecord& r) {
    if (r.size_bytes > 0 && code.emplace(r.vaddr, r.size_bytes).second) total_bytes += r.size_bytes;
  });
  const uint64_t step = std::max<uint64_t>(1, total_bytes / (kAddresses + kAddresses / 8));
  std::set<uint64_t> picked;
  uint64_t carry = 0;
  for (const auto& [vaddr, size_bytes] : code)
    for (; carry < size_bytes || (carry -= size_bytes, false); carry += step) picked.insert(vaddr + carry);
  std::vector<uint64_t> vaddrs(picked.begin(), picked.end());
  std::shuffle(vaddrs.begin(), vaddrs.end(), std::mt19937(1));  // samples come in no order
  vaddrs.resize(std::min(vaddrs.size(), kAddresses));
  return vaddrs;
}

}  // namespace

int main(int argc, char** argv) {
  bool verify = true;
  std::string binary;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--no-verify") == 0) verify = false;
    else binary = argv[i];
  }
  if (binary.empty()) binary = generated_program();
  const std::vector<uint64_t> vaddrs = binary.empty() ? std::vector<uint64_t>() : pick_addresses(binary);
  if (vaddrs.empty()) {
    std::printf("no binary with symbols: give one that is not stripped\n");
    return 1;
  }
  {
    std::string error;
    std::printf("%s: .debug_info %.1f MB\n", binary.c_str(),
                double(ElfImage::open(binary, false, error)->section(".debug_info").size()) / 1e6);
  }
  const auto begin = std::chrono::steady_clock::now();
  StringTable strings;
  auto module = ModuleSymbols::open(binary, {}, strings);
  const double open_seconds = seconds_since(begin);
  std::vector<Frame> frames;
  std::vector<uint32_t> first_frame;
  module->resolve(vaddrs, frames, first_frame);
  const double total_seconds = seconds_since(begin);
  size_t n_inlined = 0, n_empty = 0;
  for (const Frame& f : frames) n_inlined += f.inlined;
  for (size_t i = 0; i < vaddrs.size(); ++i) n_empty += first_frame[i] == first_frame[i + 1];
  std::printf("%zu addresses: %zu frames, %zu inlined, %zu without a frame, %zu strings\n", vaddrs.size(),
              frames.size(), n_inlined, n_empty, strings.size());
  std::printf("open %.3f s, total %.3f s, peak RSS %.1f MB\n", open_seconds, total_seconds, peak_rss_kb() / 1024.0);

  size_t n_wrong = 0;
  if (verify) {
    const std::vector<uint64_t> some(vaddrs.begin(), vaddrs.begin() + std::min(kVerified, vaddrs.size()));
    const auto named = tools::resolve(*module, strings, some);
    std::map<oracle::Verdict, size_t> counts;
    tools::TemporaryDirectory folder;
    n_wrong = oracle::unsettled(binary, some, named, folder / "addresses", counts).size();
    std::printf("verified %zu: %zu as binutils says, %zu decided against it, %zu wrong\n", some.size(),
                some.size() - counts[oracle::Verdict::differs], counts[oracle::Verdict::differs] - n_wrong, n_wrong);
  }
  return total_seconds <= kMaxSeconds && n_wrong == 0 ? 0 : 1;
}
