// SPDX-License-Identifier: Apache-2.0
// What tests share: a temporary folder, running tools, compiling small programs, resolved frames.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "symbols/module_symbols.h"

namespace tools {

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "memlens-XXXXXX").string();
    if (mkdtemp(pattern.data())) path_ = pattern;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline void write_file(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}
inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}
inline bool run(const std::string& command) { return std::system(command.c_str()) == 0; }
inline std::string output_of(const std::string& command) {
  std::string text;
  if (FILE* pipe = popen(command.c_str(), "r")) {
    char buffer[65536];
    while (size_t n_read = fread(buffer, 1, sizeof buffer, pipe)) text.append(buffer, n_read);
    pclose(pipe);
  }
  return text;
}
inline bool has_tool(const std::string& name) { return run("command -v " + name + " >/dev/null 2>&1"); }

// The number of the source line that carries a marker comment: tests do not count lines by hand.
inline uint32_t line_of(const std::string& source, const std::string& marker) {
  const size_t at = source.find(marker);
  if (at == std::string::npos) return 0;
  uint32_t line = 1;
  for (size_t i = 0; i < at; ++i) line += source[i] == '\n';
  return line;
}

struct NamedFrame {
  std::string function, file;
  uint32_t line, column;
  bool inlined;
};
inline std::vector<std::vector<NamedFrame>> resolve(memlens::symbols::ModuleSymbols& module,
                                                    const memlens::symbols::StringTable& strings,
                                                    std::span<const uint64_t> vaddrs) {
  std::vector<memlens::symbols::Frame> frames;
  std::vector<uint32_t> first;
  module.resolve(vaddrs, frames, first);
  std::vector<std::vector<NamedFrame>> named(vaddrs.size());
  for (size_t i = 0; i < vaddrs.size(); ++i)
    for (uint32_t k = first[i]; k < first[i + 1]; ++k)
      named[i].push_back({strings.at(frames[k].function), strings.at(frames[k].file), frames[k].line, frames[k].column,
                          frames[k].inlined != 0});
  return named;
}

// vaddr of a symbol by its demangled-or-not name as `nm` prints it; 0 if there is none.
inline uint64_t address_of(const std::string& binary, const std::string& symbol) {
  const std::string text = output_of("nm " + binary + " 2>/dev/null | grep ' [tTwW] " + symbol + "$'");
  return text.empty() ? 0 : std::strtoull(text.c_str(), nullptr, 16);
}

}  // namespace tools
