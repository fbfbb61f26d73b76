// SPDX-License-Identifier: Apache-2.0
// Other symbolisers as oracles: binutils' addr2line first; where it disagrees with us, elfutils' is
// asked, and where both disagree, LLVM's. One of the three must agree. The disagreements there are,
// and who is right:
//
// * Padding after a function (counted as gap): binutils names the function before it, elfutils says
//   nothing. We say nothing: no instruction there belongs to a function.
// * The innermost of several inlined frames in a ".cold" part, or at the start of a symbol:
// binutils
//   prints the ELF symbol, which is the outermost function. DWARF and elfutils name the inlined
//   one.
// * clang, DWARF 5: binutils 2.40 misses inlined frames whose ranges are in .debug_rnglists by
// index,
//   and both it and elfutils 0.188 misread file numbers of that line table (main.cpp:866 or ??:0
//   for stl_pair.h:866). LLVM, `readelf --debug-dump=decodedline` and we agree.
// * Code in separate sections: binutils may print the right line with the unit's main file, in
// which
//   there is no such line.
// * Functions with internal linkage have no linkage name in DWARF. The tools print the bare name
// for
//   inlined ones; we add their namespaces, and take the symbol's name for the ones not inlined
//   (counted as name form: everything else about the frame is equal).
#pragma once

#include <algorithm>
#include <map>

#include "toolchain.h"

namespace oracle {

struct OracleFrame {
  std::string function, location;  // "??" and "??:0" when unknown; location without column
};
using OracleStacks = std::map<uint64_t, std::vector<OracleFrame>>;

inline bool is_address_line(const std::string& line) {
  return line.starts_with("0x") && line.find_first_not_of("0123456789abcdef", 2) == std::string::npos;
}

inline OracleStacks parse(const std::string& text, bool elfutils) {
  OracleStacks stacks;
  std::vector<OracleFrame>* current = nullptr;
  std::string function;
  bool expect_function = true;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    at = end + 1;
    if (is_address_line(line)) {
      current = &stacks[std::strtoull(line.c_str(), nullptr, 16)];
      expect_function = true;
    } else if (current && expect_function) {
      function = line.substr(0, line.find(" inlined at "));  // elfutils adds the call to the name
      expect_function = false;
    } else if (current) {
      line = line.substr(0, line.find(" (discriminator"));
      // elfutils appends ":column"; cut it, so that both end in ":line".
      if (elfutils && line != "??:0" && std::count(line.begin(), line.end(), ':') >= 2)
        line = line.substr(0, line.rfind(':'));
      current->push_back({function, line});
      expect_function = true;
    }
  }
  return stacks;
}

inline std::string show(const std::vector<tools::NamedFrame>& frames) {
  std::string text;
  for (const auto& f : frames) text += "\n      " + f.function + " " + f.file + ":" + std::to_string(f.line);
  return text.empty() ? " nothing" : text;
}
inline std::string show(const std::vector<OracleFrame>& frames) {
  std::string text;
  for (const auto& f : frames) text += "\n      " + f.function + " " + f.location;
  return text;
}

inline bool same_location(const tools::NamedFrame& ours, const std::string& theirs) {
  if (ours.line == 0) return theirs.ends_with(":0") || theirs.ends_with(":?");
  return ours.file + ":" + std::to_string(ours.line) == theirs;
}

enum class Verdict { same, name_form, only_symbol, gap, differs };

// "void std::f<int>(int)" for their "f<int>": the same function, written out more fully.
inline bool is_fuller_form(const std::string& ours, const std::string& theirs) {
  const std::string bare = theirs.substr(0, theirs.find_first_of("<("));
  return !bare.empty() && ours.find(bare) != std::string::npos;
}

inline Verdict compare(const std::vector<tools::NamedFrame>& ours, const std::vector<OracleFrame>& theirs) {
  const bool tool_knows_nothing = theirs.empty() || (theirs.size() == 1 && theirs[0].location.starts_with("??"));
  if (ours.empty())  // in padding elfutils prints the line before, but no function
    return tool_knows_nothing || theirs[0].function == "??" ? Verdict::gap : Verdict::differs;
  // No DWARF there (start-up code): we still give the ELF symbol.
  if (tool_knows_nothing && ours.size() == 1 && ours[0].line == 0) return Verdict::only_symbol;
  if (ours.size() != theirs.size()) return Verdict::differs;
  bool names_differ = false;
  for (size_t i = 0; i < ours.size(); ++i) {
    if (!same_location(ours[i], theirs[i].location)) return Verdict::differs;
    if (ours[i].function == theirs[i].function) continue;
    if (!is_fuller_form(ours[i].function, theirs[i].function)) return Verdict::differs;
    names_differ = true;
  }
  return names_differ ? Verdict::name_form : Verdict::same;
}

// Asked in turn about what the one before could not settle.
inline std::vector<std::string> arbiters() {
  std::vector<std::string> found = {"eu-addr2line"};
  for (const char* name : {"llvm-addr2line", "llvm-addr2line-19", "llvm-addr2line-16", "llvm-addr2line-14"})
    if (found.size() == 1 && tools::has_tool(name)) found.push_back(name);
  return found;
}

inline OracleStacks ask(const std::string& tool, const std::string& binary, const std::vector<uint64_t>& vaddrs,
                        const std::string& list_path) {
  std::string list;
  char text[32];
  for (uint64_t a : vaddrs) list.append(text, std::snprintf(text, sizeof text, "0x%lx\n", a));
  tools::write_file(list_path, list);
  return parse(tools::output_of(tool + " -a -i -f -C -e " + binary + " < " + list_path), tool == "eu-addr2line");
}

// Which of `vaddrs` no tool agrees with us about. `counts` is about binutils only.
inline std::vector<uint64_t> unsettled(const std::string& binary, const std::vector<uint64_t>& vaddrs,
                                       const std::vector<std::vector<tools::NamedFrame>>& ours,
                                       const std::string& scratch_path, std::map<Verdict, size_t>& counts) {
  std::map<uint64_t, const std::vector<tools::NamedFrame>*> ours_by_vaddr;
  for (size_t i = 0; i < vaddrs.size(); ++i) ours_by_vaddr[vaddrs[i]] = &ours[i];
  OracleStacks answers = ask("addr2line", binary, vaddrs, scratch_path);
  std::vector<uint64_t> disputed;
  for (uint64_t a : vaddrs) {
    const Verdict verdict = compare(*ours_by_vaddr[a], answers[a]);
    ++counts[verdict];
    if (verdict == Verdict::differs) disputed.push_back(a);
  }
  for (const std::string& tool : arbiters()) {
    if (disputed.empty()) break;
    answers = ask(tool, binary, disputed, scratch_path);
    std::erase_if(disputed, [&](uint64_t a) { return compare(*ours_by_vaddr[a], answers[a]) != Verdict::differs; });
  }
  for (size_t i = 0; i < disputed.size() && i < 3; ++i)
    std::printf("  0x%lx\n    ours:%s\n    theirs:%s\n", disputed[i], show(*ours_by_vaddr[disputed[i]]).c_str(),
                show(answers[disputed[i]]).c_str());
  return disputed;
}

}  // namespace oracle
