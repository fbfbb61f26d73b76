// SPDX-License-Identifier: Apache-2.0
#include "module_files.h"

#include "debug_files.h"

namespace memlens::symbols {
namespace {

bool same_build_id(std::string expected, const std::string& actual) {
  for (char& c : expected)
    if (c >= 'A' && c <= 'F') c = static_cast<char>(c - 'A' + 'a');
  if (expected == actual) return true;
  // Kernel records pad short build ids with zeros to 20 bytes.
  return !actual.empty() && expected.size() == 40 && expected.starts_with(actual) &&
         expected.find_first_not_of('0', actual.size()) == std::string::npos;
}

}  // namespace

ModuleFiles ModuleFiles::open(const std::string& path, const OpenOptions& options) {
  ModuleFiles files;
  std::string full_path = path;
  if (!options.sysroot.empty() && !path.starts_with(options.sysroot))
    full_path = options.sysroot + (path.starts_with("/") ? "" : "/") + path;
  files.main = ElfImage::open(full_path, false, files.status);
  if (!files.main) return files;
  ElfImage& main = *files.main;
  const std::string& expected = options.expected_build_id_hex;
  if (!expected.empty() && !same_build_id(expected, main.build_id_hex())) {
    files.status = full_path + ": build-id differs: recorded " + expected + ", the file has " +
                   (main.build_id_hex().empty() ? "none" : main.build_id_hex()) +
                   "; restore the binary that was profiled, or record again";
    return files;
  }
  const DebugSearch search{options.debug_directories, options.sysroot};
  files.dwarf = DwarfFile::open(files.main);
  if (!files.dwarf) {
    files.debug = find_debug_file(main, search, files.debug_note);
    if (files.debug) files.dwarf = DwarfFile::open(files.debug);
  }
  if (files.dwarf) {
    if (auto alternate = find_alternate_file(files.debug ? *files.debug : main, search))
      files.dwarf->set_alternate(DwarfFile::open(std::move(alternate)));
  }
  return files;
}

}  // namespace memlens::symbols
