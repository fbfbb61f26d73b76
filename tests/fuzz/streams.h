// Access streams as the program's side writes them, from a fuzzer's bytes.
#pragma once

#include "input.h"
#include "memlens_segments.h"
#include "memlens_stream.h"

namespace fuzz {

inline Bytes stream_of(Input& input, size_t count) {
  Bytes stream((count + 1) * ML_STREAM_MAX_ACCESS);
  auto state = std::make_unique<ml_stream>();
  unsigned char* at = stream.data();
  for (size_t i = 0; i < count; ++i) {
    const uint8_t what = input.byte();
    const uint64_t address = what % 4 != 0 ? 0x10000 + input.fixed(2) : input.number();
    at = ml_stream_add_pc(state.get(), at, 0x400000 + what / 4, address, 1u << what % 6, 1 + what % 3);
  }
  stream.resize(static_cast<size_t>(at - stream.data()));
  return stream;
}

// Segments of a few shapes; `recorded` becomes the number of their accesses.
inline Bytes segments_of(Input& input, size_t count, uint32_t& recorded) {
  Bytes names((count + 1) * ML_SEGMENTS_NAME_BYTES);
  const size_t front = names.size() + ML_SEGMENTS_FRONT_BYTES;
  Bytes stream(front + (count + 1) * ML_SEGMENTS_WORD_BYTES);
  auto state = std::make_unique<ml_segments>();
  ml_segments_at at{names.data(), stream.data() + front, 0};
  recorded = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint8_t what = input.byte();
    const uint64_t site = 65536 + what % 40;
    const unsigned form = site % 3, words = 2 * (1 + static_cast<unsigned>(site * 7 + (what >= 240)) % 15);
    uint64_t content[ML_SEGMENTS_WORDS];
    const uint8_t noise = input.byte();
    for (unsigned k = 0; k < words; ++k) content[k] = noise >> k % 8 & 1 ? 1 + input.fixed(3) : 0x1000 + 8 * i;
    // loops, whose names are zeros
    for (size_t again = what % 8 == 0 ? 1 + input.below(40) : 1; again > 0; --again, ++i) {
      ml_segments_add(state.get(), &at, 0, site, content, words, form);
      recorded += form == 1 ? words / 2 : words;
      if (i + 1 >= count) break;
    }
  }
  if (count == 0) return {};
  const unsigned char* first =
      ml_segments_join(names.data(), static_cast<size_t>(at.names - names.data()), stream.data() + front);
  return {first, static_cast<const unsigned char*>(at.words)};
}

}  // namespace fuzz
