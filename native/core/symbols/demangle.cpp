// SPDX-License-Identifier: Apache-2.0
// Chooses the scheme; C++ through the C++ runtime, Rust legacy here, Rust v0 in
// demangle_rust_v0.cpp.
#include "demangle.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>

#include "utf8.h"

namespace memlens::symbols {
namespace {

// Longer names are damage; the C++ runtime's demangler uses stack in proportion to the length.
constexpr size_t kMaxMangledChars = 1 << 16;

bool is_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }

bool is_rust_hash(std::string_view part) {
  if (part.size() != 17 || part.front() != 'h') return false;
  for (char c : part.substr(1))
    if (!is_hex(c)) return false;
  return true;
}

// Replaces one "$...$" escape at the front of `rest`; false if it is none.
bool append_escape(std::string_view& rest, std::string& out) {
  static constexpr struct {
    std::string_view name;
    char character;
  } kEscapes[] = {{"SP", '@'}, {"BP", '*'}, {"RF", '&'}, {"LT", '<'},
                  {"GT", '>'}, {"LP", '('}, {"RP", ')'}, {"C", ','}};
  const size_t end = rest.find('$', 1);
  if (end == std::string_view::npos) return false;
  const std::string_view name = rest.substr(1, end - 1);
  for (const auto& escape : kEscapes) {
    if (name != escape.name) continue;
    out.push_back(escape.character);
    rest.remove_prefix(end + 1);
    return true;
  }
  if (name.size() < 2 || name.size() > 7 || name.front() != 'u') return false;
  uint32_t code_point = 0;
  for (char c : name.substr(1)) {
    if (!is_hex(c)) return false;
    code_point = code_point * 16 + static_cast<uint32_t>(c <= '9' ? c - '0' : c - 'a' + 10);
  }
  if (code_point < 0x20 || !append_utf8(code_point, out)) return false;
  rest.remove_prefix(end + 1);
  return true;
}

void append_legacy_part(std::string_view part, std::string& out) {
  if (part.starts_with("_$")) part.remove_prefix(1);
  while (!part.empty()) {
    if (part.starts_with("..")) {
      out += "::";
      part.remove_prefix(2);
    } else if (part.front() == '$' && append_escape(part, out)) {
      continue;
    } else {
      out.push_back(part.front());
      part.remove_prefix(1);
    }
  }
}

}  // namespace

std::string demangle_rust_legacy(std::string_view mangled) {
  if (!mangled.starts_with("_ZN")) return {};
  std::string_view rest = mangled.substr(3);
  std::string out;
  std::string_view pending;  // written once it is known not to be the hash
  size_t n_parts = 0;
  while (!rest.empty() && rest.front() >= '0' && rest.front() <= '9') {
    size_t n_chars = 0;
    while (!rest.empty() && rest.front() >= '0' && rest.front() <= '9') {
      n_chars = n_chars * 10 + static_cast<size_t>(rest.front() - '0');
      if (n_chars > mangled.size()) return {};
      rest.remove_prefix(1);
    }
    if (n_chars == 0 || n_chars > rest.size()) return {};
    if (n_parts > 0) {
      if (n_parts > 1) out += "::";
      append_legacy_part(pending, out);
    }
    pending = rest.substr(0, n_chars);
    rest.remove_prefix(n_chars);
    ++n_parts;
  }
  if (n_parts < 2 || !is_rust_hash(pending) || !rest.starts_with("E")) return {};
  rest.remove_prefix(1);
  // ".llvm.1234" only tells promoted locals apart; ".cold" and the like say something.
  if (!rest.empty() && rest.front() != '.') return {};
  out += rest.substr(0, rest.find(".llvm."));
  return out;
}

std::string demangle(std::string_view mangled) {
  if (mangled.size() > kMaxMangledChars) return std::string(mangled);
  if (mangled.starts_with("_R")) {
    if (std::string name = demangle_rust_v0(mangled); !name.empty()) return name;
  } else if (mangled.starts_with("_Z")) {
    if (std::string name = demangle_rust_legacy(mangled); !name.empty()) return name;
    const std::string terminated(mangled);
    int status = 0;
    const std::unique_ptr<char, void (*)(void*)> name(
        abi::__cxa_demangle(terminated.c_str(), nullptr, nullptr, &status), std::free);
    if (status == 0 && name) return name.get();
    // A clone whose suffix the runtime does not know (".omp_outlined."): its base, and the suffix as c++filt writes it.
    if (const size_t dot = mangled.find('.', 2); dot != std::string_view::npos) {
      const std::string base = demangle(mangled.substr(0, dot));
      if (base != mangled.substr(0, dot)) return base + " [clone " + std::string(mangled.substr(dot)) + "]";
    }
  }
  return std::string(mangled);
}

}  // namespace memlens::symbols
