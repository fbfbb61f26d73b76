// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace memlens::symbols {

struct OpenOptions {
  std::string expected_build_id_hex;  // empty: any build is accepted
  std::vector<std::string> debug_directories = {"/usr/lib/debug"};
  std::string sysroot;  // put in front of the module's path and tried in front of debug directories
};

}  // namespace memlens::symbols
