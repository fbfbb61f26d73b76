// Reads the stream of a window (FORMAT.md); format/memlens_stream.h and format/memlens_segments.h write it.
//
// A decoder gives the accesses of one stream in parts of any size, into columns of the caller. It
// reads nothing beyond the stream. A damaged stream is found at the latest at its end; `is_sound`
// looks at a whole stream beforehand, so that a damaged window can be left out whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "memlens_format.h"
#include "memlens_segments.h"

namespace memlens::trace {

// Where decoded accesses go. For site_delta and site_segments `code` is the site's number, `bytes` is 0 where the site's table tells it, and
// `operation` is 0: the table tells it.
struct AccessColumns {
  uint64_t* code = nullptr;
  uint64_t* address = nullptr;
  uint32_t* bytes = nullptr;
  uint8_t* operation = nullptr;
};

// The most accesses that a stream of so many bytes can hold.
constexpr uint64_t most_accesses(size_t bytes, uint8_t encoding) {
  switch (encoding) {
    case ML_ENUM_stream_encoding_PC_DELTA: return bytes / 3;
    case ML_ENUM_stream_encoding_SITE_SEGMENTS: return bytes == 0 ? 0 : uint64_t{bytes} * 4 + ML_SEGMENTS_MOST_RECORDED;
    default: return bytes / 2;
  }
}

class StreamDecoder {
 public:
  StreamDecoder(std::span<const unsigned char> stream, uint8_t encoding)
      : at_(stream.data()), end_(stream.data() + stream.size()), encoding_(encoding) {}

  // Decodes up to `count` more accesses; fewer only when the stream is damaged there.
  size_t next(const AccessColumns& columns, size_t count);
  bool at_end() const { return at_ == end_ && next_word_ == words_end_ && given_ == accesses_; }

 private:
  template <bool kPc>
  size_t decode(const AccessColumns& columns, size_t count);
  size_t decode_segments(const AccessColumns& columns, size_t count);
  bool find_words();
  bool read_segment();
  bool tell(size_t entry, unsigned shape);

  const unsigned char* at_;
  const unsigned char* end_;
  uint8_t encoding_;
  uint64_t previous_ = 0;
  uint64_t last_[1024] = {};
  // Of site_segments only: what entries expect, and the segment that was read last.
  struct Expected {
    unsigned form = 0, next_block = 0;
    uint8_t shape[ML_SEGMENTS_ENTRIES] = {};
    // Not cleared: an entry that has a shape has a block, and that was cleared when it was handed out.
    uint16_t block[ML_SEGMENTS_ENTRIES];
    uint64_t words[ML_SEGMENTS_WORDS];
    ml_segments_block blocks[ML_SEGMENTS_BLOCKS];
    std::vector<unsigned char> names;  // where the stream tells them in parts
  };
  std::unique_ptr<Expected> expected_;
  unsigned accesses_ = 0, given_ = 0;  // of that segment
  const unsigned char *next_word_ = nullptr, *words_end_ = nullptr;
};

// True when the stream holds exactly `recorded` accesses.
bool is_sound(std::span<const unsigned char> stream, uint64_t recorded, uint8_t encoding);

}  // namespace memlens::trace
