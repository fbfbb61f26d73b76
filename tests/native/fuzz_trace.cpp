// Arbitrary streams and window payloads: the decoder reads nothing beyond them, a stream decoded in parts gives
// what it gives whole, and `is_sound` says what decoding finds. Then windows joined with arbitrary objects.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "memlens_segments.h"
#include "memlens_stream.h"
#include "trace/access_join.h"

using namespace memlens;

namespace {

std::mt19937_64 source(17);

std::vector<unsigned char> stream_of(size_t count) {
  std::vector<unsigned char> stream((count + 1) * ML_STREAM_MAX_ACCESS);
  auto state = std::make_unique<ml_stream>();
  unsigned char* at = stream.data();
  for (size_t i = 0; i < count; ++i)
    at = ml_stream_add_pc(state.get(), at, 0x400000 + source() % 64, source() % 3 ? 0x10000 + source() % 100000 : source(),
                          1u << source() % 6, 1 + source() % 3);
  stream.resize(static_cast<size_t>(at - stream.data()));
  return stream;
}

// Segments of a few shapes; `recorded` becomes the number of their accesses.
std::vector<unsigned char> segments_of(size_t count, uint32_t& recorded) {
  std::vector<unsigned char> names((count + 1) * ML_SEGMENTS_NAME_BYTES);
  const size_t front = names.size() + ML_SEGMENTS_FRONT_BYTES;
  std::vector<unsigned char> stream(front + (count + 1) * ML_SEGMENTS_WORD_BYTES);
  auto state = std::make_unique<ml_segments>();
  ml_segments_at at{names.data(), stream.data() + front, 0};
  recorded = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t site = 65536 + source() % 40;
    const unsigned form = site % 3, words = 2 * (1 + static_cast<unsigned>(site * 7 + (source() % 9 == 0)) % 15);
    uint64_t content[ML_SEGMENTS_WORDS];
    for (unsigned k = 0; k < words; ++k) content[k] = source() % 4 ? 0x1000 + 8 * i : 1 + source() % (1u << 30);
    for (size_t again = source() % 8 == 0 ? 1 + source() % 40 : 1; again > 0; --again, ++i) {  // loops, whose names are zeros
      ml_segments_add(state.get(), &at, 0, site, content, words, form);
      recorded += form == 1 ? words / 2 : words;
      if (i + 1 >= count) break;
    }
  }
  if (count == 0) return {};
  const unsigned char* first = ml_segments_join(names.data(), static_cast<size_t>(at.names - names.data()), stream.data() + front);
  return {first, static_cast<const unsigned char*>(at.words)};
}

// Exactly as long as it is said to be, so that the sanitizer sees a byte too many.
std::unique_ptr<unsigned char[]> exact(const std::vector<unsigned char>& bytes) {
  auto copy = std::make_unique<unsigned char[]>(bytes.size());
  if (!bytes.empty()) memcpy(copy.get(), bytes.data(), bytes.size());
  return copy;
}

int check_stream(std::vector<unsigned char> stream, uint32_t recorded, uint8_t encoding) {
  const auto bytes = exact(stream);
  const std::span<const unsigned char> view{bytes.get(), stream.size()};
  std::vector<uint64_t> code(recorded + 1), address(recorded + 1), part_code(recorded + 1), part_address(recorded + 1);
  std::vector<uint32_t> width(recorded + 1), part_width(recorded + 1);
  std::vector<uint8_t> operation(recorded + 1), part_operation(recorded + 1);
  trace::StreamDecoder whole(view, encoding);
  const size_t got = whole.next({code.data(), address.data(), width.data(), operation.data()}, recorded);
  const bool sound = got == recorded && whole.at_end();
  int failed = trace::is_sound(view, recorded, encoding) != sound;
  trace::StreamDecoder parts(view, encoding);
  size_t done = 0;
  while (done < recorded) {
    const size_t part = std::min<size_t>(1 + source() % 5, recorded - done);
    const size_t more = parts.next({part_code.data() + done, part_address.data() + done, part_width.data() + done,
                                    part_operation.data() + done}, part);
    done += more;
    if (more != part) break;
  }
  failed += done != got;
  failed += !std::equal(code.begin(), code.begin() + static_cast<ptrdiff_t>(got), part_code.begin());
  failed += !std::equal(address.begin(), address.begin() + static_cast<ptrdiff_t>(got), part_address.begin());
  return failed;
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? atoi(argv[1]) : 2000;
  int failed = 0;
  for (int round = 0; round < rounds; ++round) {
    uint32_t recorded = static_cast<uint32_t>(source() % 60);
    std::vector<unsigned char> stream;
    if (round % 3 == 0) {
      stream.resize(source() % 200);
      for (auto& byte : stream) byte = static_cast<unsigned char>(source() >> (source() % 8));
    } else {
      stream = stream_of(recorded);
      if (round % 3 == 1 && !stream.empty()) stream[source() % stream.size()] = static_cast<unsigned char>(source());
      if (round % 5 == 0) stream.resize(source() % (stream.size() + 1));
    }
    failed += check_stream(stream, recorded, static_cast<uint8_t>(1 + source() % 6));
    uint32_t told = 0;
    auto segments = segments_of(source() % 20, told);
    failed += !trace::is_sound(segments, told, ML_ENUM_stream_encoding_SITE_SEGMENTS);
    failed += check_stream(segments, told, ML_ENUM_stream_encoding_SITE_SEGMENTS);
    if (!segments.empty()) segments[source() % segments.size()] = static_cast<unsigned char>(source());
    if (round % 5 == 0) segments.resize(source() % (segments.size() + 1));
    failed += check_stream(segments, told, ML_ENUM_stream_encoding_SITE_SEGMENTS);
    failed += round % 3 == 2 && round % 5 != 0 && !trace::is_sound(stream, recorded, 2);
  }
  for (int round = 0; round < rounds / 20; ++round) {
    objects::ObjectTable table(4096);
    std::vector<unsigned char> allocations;
    for (int i = 0; i < 200; ++i) {
      ml_allocation record{};
      record.time_ns = source() % 1000;
      record.address = 0x10000 + source() % 1000 * 100;
      record.bytes = source() % 400;
      record.operation = static_cast<uint16_t>(source() % 5);
      const auto* raw = reinterpret_cast<const unsigned char*>(&record);
      allocations.insert(allocations.end(), raw, raw + sizeof record);
    }
    table.add_allocations(1, allocations);
    table.run();
    replay::CodeIndex codes;
    std::vector<uint32_t> groups(table.columns().size() + 1, 1), units, images;
    trace::AccessJoin join(table, codes, groups, {0});
    std::vector<unsigned char> payload;
    uint64_t sound = 0;
    for (uint32_t i = 0; i < 20; ++i) {
      ml_window window{};
      window.recorded = static_cast<uint32_t>(source() % 10 ? source() % 6000 : source());
      auto stream = stream_of(std::min(window.recorded, 6000u));
      if (source() % 8 == 0 && !stream.empty()) stream[source() % stream.size()] ^= static_cast<unsigned char>(source());
      window.begin_ns = source() % 1000;
      window.end_ns = source() % 1500;
      window.encoding = static_cast<uint8_t>(source() % 9 ? 2 : source());
      window.tail_bytes = static_cast<uint32_t>(stream.size());
      if (trace::is_sound(stream, window.recorded, window.encoding)) sound += window.recorded;
      const auto* raw = reinterpret_cast<const unsigned char*>(&window);
      payload.insert(payload.end(), raw, raw + sizeof window);
      payload.insert(payload.end(), stream.begin(), stream.end());
      payload.resize((payload.size() + 7) & ~size_t{7});
      units.push_back(i / 2);
      images.push_back(static_cast<uint32_t>(source() % 4));
    }
    join.set_units(std::vector<uint64_t>(10, 1000), std::vector<uint32_t>(10, 2));
    if (round % 4 == 3) payload.resize(source() % payload.size());
    const auto bytes = exact(payload);
    if (round % 2 == 0)
      join.set_sites({{0, 1, 2}, {4, 8, 0}, {1, 2, 3}}, {{0, 3, source() % 9}, {2, 1, 0}, {1, 700, UINT64_MAX}});
    join.add(1, {bytes.get(), payload.size()}, units, images);
    join.finish();
    uint64_t joined = 0;
    for (const auto& row : join.by_group()) joined += row.recorded;
    failed += joined != join.totals().recorded;
    failed += round % 4 != 3 && joined != sound;
  }
  printf("%d rounds, %d failures\n", rounds, failed);
  return failed == 0 ? 0 : 1;
}
