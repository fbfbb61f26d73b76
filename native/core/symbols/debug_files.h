// SPDX-License-Identifier: Apache-2.0
// Where the debug information of a stripped binary lives: by build id, by .gnu_debuglink, and the
// dwz supplementary file by .gnu_debugaltlink. A file is only accepted when it provably belongs.
// Never uses the network.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "elf_image.h"

namespace memlens::symbols {

struct DebugSearch {
  std::vector<std::string> debug_directories;
  std::string sysroot;  // tried in front of each debug directory
};

// Null when none was found. `why` then says which candidates were rejected, if any existed.
std::unique_ptr<ElfImage> find_debug_file(ElfImage& main, const DebugSearch& search, std::string& why);
// The file that .gnu_debugaltlink of `debug` names, or null.
std::unique_ptr<ElfImage> find_alternate_file(ElfImage& debug, const DebugSearch& search);

}  // namespace memlens::symbols
