// Access streams of every encoding: arbitrary bytes, streams as the writers make them, and those damaged.
//
// Oracles: the decoder reads nothing beyond them; a stream decoded in parts gives what it gives whole; `is_sound` says what
// decoding finds; what a writer made is sound, and gives back what was written.
#include "input.h"
#include "streams.h"
#include "trace/stream_decoder.h"

using namespace memlens;

namespace {

void check_stream(fuzz::View stream, uint32_t recorded, uint8_t encoding, uint8_t parts_of) {
  const fuzz::Exact bytes(stream);
  std::vector<uint64_t> code(recorded + 1), address(recorded + 1), part_code(recorded + 1), part_address(recorded + 1);
  std::vector<uint32_t> width(recorded + 1), part_width(recorded + 1);
  std::vector<uint8_t> operation(recorded + 1), part_operation(recorded + 1);
  trace::StreamDecoder whole(bytes.view(), encoding);
  const size_t got = whole.next({code.data(), address.data(), width.data(), operation.data()}, recorded);
  const bool sound = got == recorded && whole.at_end();
  fuzz::require(trace::is_sound(bytes.view(), recorded, encoding) == sound, "is_sound says what decoding finds");
  trace::StreamDecoder parts(bytes.view(), encoding);
  size_t done = 0;
  while (done < recorded) {
    const size_t part = std::min<size_t>(1 + parts_of % 7, recorded - done);
    parts_of = static_cast<uint8_t>(parts_of * 5 + 3);
    const size_t more = parts.next(
        {part_code.data() + done, part_address.data() + done, part_width.data() + done, part_operation.data() + done},
        part);
    done += more;
    if (more != part) break;
  }
  fuzz::require(done == got, "parts give as many accesses as the whole");
  const auto same = [&](const auto& a, const auto& b) {
    return std::equal(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(got), b.begin());
  };
  fuzz::require(same(code, part_code) && same(address, part_address), "parts give the accesses of the whole");
  // Widths and operations of site encodings are the sites', not the stream's.
  if (encoding == ML_ENUM_stream_encoding_PC_DELTA)
    fuzz::require(same(width, part_width) && same(operation, part_operation), "parts give the widths of the whole");
}

// Decoding gives back what the writer was given.
void check_round_trip(fuzz::View program) {
  fuzz::Input input(program), again(program);
  const size_t count = input.below(200);
  again.below(200);
  const fuzz::Bytes stream = fuzz::stream_of(input, count);
  const fuzz::Exact bytes(stream);
  std::vector<uint64_t> code(count + 1), address(count + 1);
  std::vector<uint32_t> width(count + 1);
  std::vector<uint8_t> operation(count + 1);
  trace::StreamDecoder decoder(bytes.view(), ML_ENUM_stream_encoding_PC_DELTA);
  fuzz::require(decoder.next({code.data(), address.data(), width.data(), operation.data()}, count) == count &&
                    decoder.at_end(),
                "all accesses that were written are read");
  for (size_t i = 0; i < count; ++i) {
    const uint8_t what = again.byte();
    const uint64_t expected = what % 4 != 0 ? 0x10000 + again.fixed(2) : again.number();
    fuzz::require(code[i] == 0x400000u + what / 4 && address[i] == expected && width[i] == 1u << what % 6 &&
                      operation[i] == 1 + what % 3,
                  "an access is what was written");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const uint8_t how = input.byte(), parts = input.byte();
  if (how % 4 == 0) {
    const auto recorded = static_cast<uint32_t>(input.fixed(2));
    check_stream(input.rest(), recorded, static_cast<uint8_t>(how / 4 % 8), parts);
    return 0;
  }
  if (how % 4 == 1) {
    check_round_trip(input.rest());
    return 0;
  }
  uint32_t recorded = static_cast<uint32_t>(input.below(200));
  uint8_t encoding = ML_ENUM_stream_encoding_PC_DELTA;
  fuzz::Bytes stream;
  if (how % 4 == 2) {
    stream = fuzz::stream_of(input, recorded);
  } else {
    stream = fuzz::segments_of(input, recorded % 60, recorded);
    encoding = ML_ENUM_stream_encoding_SITE_SEGMENTS;
  }
  fuzz::require(trace::is_sound(fuzz::Exact(stream).view(), recorded, encoding), "what was written is sound");
  check_stream(stream, recorded, encoding, parts);
  if (stream.empty()) return 0;
  const uint8_t damages = input.byte();
  for (unsigned i = 0; i < damages % 4u; ++i) stream[input.below(stream.size())] = input.byte();
  if (damages >= 192) stream.resize(input.below(stream.size() + 1));
  check_stream(stream, recorded, how >= 128 ? static_cast<uint8_t>(how / 4 % 8) : encoding, parts);
  return 0;
}
