// Reads the delta stream of a window (FORMAT.md); format/memlens_stream.h writes it.
//
// A decoder gives the accesses of one stream in parts of any size, into columns of the caller. It
// reads nothing beyond the stream. A damaged stream is found at the latest at its end; `is_sound`
// looks at a whole stream beforehand, so that a damaged window can be left out whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "memlens_format.h"

namespace memlens::trace {

// Where decoded accesses go. For site_delta `code` is the site's number, `bytes` is 0 where the site's table tells it, and
// `operation` is 0: the table tells it.
struct AccessColumns {
  uint64_t* code = nullptr;
  uint64_t* address = nullptr;
  uint32_t* bytes = nullptr;
  uint8_t* operation = nullptr;
};

// The fewest bytes that an access takes: bounds `recorded` by the length of a stream.
constexpr size_t fewest_bytes(uint8_t encoding) { return encoding == ML_ENUM_stream_encoding_PC_DELTA ? 3 : 2; }

class StreamDecoder {
 public:
  StreamDecoder(std::span<const unsigned char> stream, uint8_t encoding)
      : at_(stream.data()), end_(stream.data() + stream.size()), encoding_(encoding) {}

  // Decodes up to `count` more accesses; fewer only when the stream is damaged there.
  size_t next(const AccessColumns& columns, size_t count);
  bool at_end() const { return at_ == end_; }

 private:
  template <bool kPc>
  size_t decode(const AccessColumns& columns, size_t count);

  const unsigned char* at_;
  const unsigned char* end_;
  uint8_t encoding_;
  uint64_t previous_ = 0;
  uint64_t last_[1024] = {};
};

// True when the stream holds exactly `recorded` accesses.
bool is_sound(std::span<const unsigned char> stream, uint64_t recorded, uint8_t encoding);

}  // namespace memlens::trace
