// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace memlens::symbols {

// False, and nothing appended, for what is no Unicode scalar value.
inline bool append_utf8(uint32_t code_point, std::string& out) {
  if (code_point > 0x10ffff || (code_point >= 0xd800 && code_point < 0xe000)) return false;
  if (code_point < 0x80) {
    out.push_back(static_cast<char>(code_point));
    return true;
  }
  const int n_trailing = code_point < 0x800 ? 1 : code_point < 0x10000 ? 2 : 3;
  static constexpr uint32_t kLead[] = {0, 0xc0, 0xe0, 0xf0};
  out.push_back(static_cast<char>(kLead[n_trailing] | (code_point >> (6 * n_trailing))));
  for (int i = n_trailing - 1; i >= 0; --i) out.push_back(static_cast<char>(0x80 | ((code_point >> (6 * i)) & 0x3f)));
  return true;
}

}  // namespace memlens::symbols
