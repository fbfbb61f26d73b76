// Numbers in text, scanned without locale, allocation or exceptions; each says where it ended.
#pragma once

#include <array>
#include <cstdint>

namespace memlens::importing {

inline constexpr std::array<int8_t, 256> kHexDigits = [] {
  std::array<int8_t, 256> digits{};
  digits.fill(-1);
  for (int i = 0; i < 10; ++i) digits['0' + i] = static_cast<int8_t>(i);
  for (int i = 0; i < 6; ++i) digits['a' + i] = digits['A' + i] = static_cast<int8_t>(10 + i);
  return digits;
}();

// Hexadecimal digits from `at`; null when there is none, or more than 64 bits of them.
inline const char* scan_hex(const char* at, const char* end, uint64_t& value) {
  const char* const begin = at;
  uint64_t sum = 0, overflow = 0;
  for (; at < end; ++at) {
    const int digit = kHexDigits[static_cast<unsigned char>(*at)];
    if (digit < 0) break;
    overflow |= sum >> 60;
    sum = sum << 4 | static_cast<uint64_t>(digit);
  }
  value = sum;
  return at == begin || overflow != 0 ? nullptr : at;
}

// The same after an optional 0x.
inline const char* scan_prefixed_hex(const char* at, const char* end, uint64_t& value) {
  if (end - at > 2 && at[0] == '0' && (at[1] == 'x' || at[1] == 'X')) at += 2;
  return scan_hex(at, end, value);
}

// Decimal digits from `at`; null when there is none, or more than 18.
inline const char* scan_decimal(const char* at, const char* end, uint64_t& value) {
  const char* const begin = at;
  uint64_t sum = 0;
  while (at < end && *at >= '0' && *at <= '9') sum = sum * 10 + static_cast<uint64_t>(*at++ - '0');
  value = sum;
  return at == begin || at - begin > 18 ? nullptr : at;
}

}  // namespace memlens::importing
