// SPDX-License-Identifier: Apache-2.0
// A bounds-checked little-endian reader. Policy: a read past the end returns 0, moves to the end
// and sets failed(); callers test failed() once per record instead of once per field.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace memlens::symbols {

using Bytes = std::span<const uint8_t>;

class ByteCursor {
 public:
  ByteCursor() = default;
  explicit ByteCursor(Bytes bytes) : begin_(bytes.data()), at_(bytes.data()), end_(bytes.data() + bytes.size()) {}
  ByteCursor(Bytes bytes, uint64_t offset) : ByteCursor(bytes) { seek(offset); }

  bool failed() const { return failed_; }
  bool at_end() const { return at_ == end_; }
  uint64_t offset() const { return static_cast<uint64_t>(at_ - begin_); }
  uint64_t remaining() const { return static_cast<uint64_t>(end_ - at_); }

  void seek(uint64_t offset) {
    if (offset > static_cast<uint64_t>(end_ - begin_)) return fail();
    at_ = begin_ + offset;
  }
  void skip(uint64_t n_bytes) {
    if (n_bytes > remaining()) return fail();
    at_ += n_bytes;
  }
  // The next n_bytes as they are; empty and failed() when there are fewer.
  Bytes take(uint64_t n_bytes) {
    const uint8_t* first = at_;
    skip(n_bytes);
    return failed_ ? Bytes() : Bytes(first, static_cast<size_t>(n_bytes));
  }
  void fail() {
    failed_ = true;
    at_ = end_;
  }

  uint8_t u8() { return fixed<uint8_t>(); }
  uint16_t u16() { return fixed<uint16_t>(); }
  uint32_t u32() { return fixed<uint32_t>(); }
  uint64_t u64() { return fixed<uint64_t>(); }
  // 1 to 8 bytes; any other width is a corrupt header and fails.
  uint64_t unsigned_of(unsigned n_bytes) {
    if (n_bytes == 8) return u64();
    if (n_bytes == 4) return u32();
    if (n_bytes == 0 || n_bytes > 8 || n_bytes > remaining()) {
      fail();
      return 0;
    }
    uint64_t value = 0;
    for (unsigned i = 0; i < n_bytes; ++i) value |= uint64_t{at_[i]} << (8 * i);
    at_ += n_bytes;
    return value;
  }
  uint64_t uleb128() {
    if (at_ != end_ && *at_ < 0x80) return *at_++;  // most values fit one byte
    uint64_t value = 0;
    for (unsigned shift = 0; at_ != end_; shift += 7) {
      const uint8_t byte = *at_++;
      if (shift < 64) value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
    fail();
    return 0;
  }
  int64_t sleb128() {
    uint64_t value = 0;
    for (unsigned shift = 0; at_ != end_;) {
      const uint8_t byte = *at_++;
      if (shift < 64) value |= uint64_t{byte & 0x7fu} << shift;
      shift += 7;
      if (byte < 0x80) {
        if ((byte & 0x40) && shift < 64) value |= ~uint64_t{0} << shift;
        return static_cast<int64_t>(value);
      }
    }
    fail();
    return 0;
  }
  void skip_leb128() {
    while (at_ != end_)
      if (*at_++ < 0x80) return;
    fail();
  }
  // A NUL-terminated string; the terminator must lie inside the bytes.
  std::string_view c_string() {
    const void* nul = at_ == end_ ? nullptr : std::memchr(at_, 0, remaining());
    if (!nul) {
      fail();
      return {};
    }
    const auto* text = reinterpret_cast<const char*>(at_);
    const auto n_chars = static_cast<size_t>(static_cast<const uint8_t*>(nul) - at_);
    at_ += n_chars + 1;
    return {text, n_chars};
  }

 private:
  template <typename T>
  T fixed() {
    if (remaining() < sizeof(T)) {
      fail();
      return 0;
    }
    T value;
    std::memcpy(&value, at_, sizeof value);
    at_ += sizeof value;
    return value;
  }

  const uint8_t* begin_ = nullptr;
  const uint8_t* at_ = nullptr;
  const uint8_t* end_ = nullptr;
  bool failed_ = false;
};

}  // namespace memlens::symbols
