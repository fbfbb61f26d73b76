// SPDX-License-Identifier: Apache-2.0
#include "punycode.h"

#include <cstdint>
#include <vector>

#include "utf8.h"

namespace memlens::symbols {

// RFC 3492, with Rust's alphabet: the delimiter is '_' and was split off by the caller.
bool append_punycode(std::string_view ascii, std::string_view encoded, std::string& out) {
  std::vector<uint32_t> text(ascii.begin(), ascii.end());
  uint64_t code_point = 0x80, i = 0, bias = 72;
  bool first = true;
  while (!encoded.empty()) {
    const uint64_t old_i = i;
    uint64_t weight = 1;
    for (uint64_t k = 36;; k += 36) {
      if (encoded.empty()) return false;
      const char c = encoded.front();
      encoded.remove_prefix(1);
      uint64_t digit;
      if (c >= 'a' && c <= 'z') digit = static_cast<uint64_t>(c - 'a');
      else if (c >= '0' && c <= '9') digit = static_cast<uint64_t>(c - '0') + 26;
      else return false;
      i += digit * weight;
      if (i > UINT32_MAX) return false;
      const uint64_t threshold = k <= bias ? 1 : k >= bias + 26 ? 26 : k - bias;
      if (digit < threshold) break;
      weight *= 36 - threshold;
      if (weight > UINT32_MAX) return false;
    }
    const uint64_t n_points = text.size() + 1;
    uint64_t delta = first ? (i - old_i) / 700 : (i - old_i) / 2;
    first = false;
    delta += delta / n_points;
    uint64_t k = 0;
    for (; delta > 455; k += 36) delta /= 35;
    bias = k + 36 * delta / (delta + 38);
    code_point += i / n_points;
    i %= n_points;
    if (code_point > 0x10ffff) return false;
    text.insert(text.begin() + static_cast<long>(i), static_cast<uint32_t>(code_point));
    ++i;
  }
  for (uint32_t c : text)
    if (!append_utf8(c, out)) return false;
  return true;
}

}  // namespace memlens::symbols
