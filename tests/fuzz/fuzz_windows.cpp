// Window records with streams, sound and damaged, joined with arbitrary objects and sites.
//
// Oracles: the rows of all objects add up to what was recorded; a payload that is whole joins exactly its sound windows; a walk over
// windows gives as many accesses.
#include <cmath>

#include "input.h"
#include "streams.h"
#include "trace/access_join.h"

using namespace memlens;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const uint8_t how = input.byte();
  trace::WindowWalker walker(how % 2 ? 4096 : 7);
  if (how % 4 == 0) {  // a payload of any content
    const fuzz::Exact payload(input.rest());
    std::vector<uint32_t> recorded;
    uint64_t walked = 0;
    walker.walk(
        payload.view(),
        [&](const trace::Part& part) {
          walked += part.count;
          for (size_t i = 0; i < part.count; ++i) {
            const uint64_t time = part.time_ns(i);
            fuzz::require(time >= part.window->begin_ns &&
                              (time <= part.window->end_ns || part.window->end_ns < part.window->begin_ns),
                          "a time lies in its window");
          }
        },
        [&](const ml_window&, uint32_t) {});
    uint64_t codes = 0;
    trace::each_window_code(payload.view(), walker, [&](const ml_window&, uint64_t) { ++codes; });
    fuzz::require(codes <= walked, "codes are those of accesses");
    return 0;
  }
  objects::ObjectTable table(4096);
  fuzz::Bytes allocations;
  for (uint64_t i = input.below(100); i > 0; --i) {
    ml_allocation record{};
    record.time_ns = input.below(1000);
    record.address = 0x10000 + input.below(256) * 100;
    record.bytes = input.byte() * 2;
    record.operation = static_cast<uint16_t>(input.below(5));
    fuzz::append(allocations, record);
  }
  table.add_allocations(1, allocations);
  table.run();
  replay::CodeIndex codes;
  trace::AccessJoin join(table, codes, std::vector<uint32_t>(table.columns().size() + 1, 1), {0});
  std::vector<uint32_t> units, images;
  fuzz::Bytes payload;
  uint64_t sound = 0;
  const auto windows = static_cast<uint32_t>(input.below(12));
  for (uint32_t i = 0; i < windows; ++i) {
    ml_window window{};
    const uint8_t what = input.byte();
    uint32_t recorded = static_cast<uint32_t>(input.below(what >= 250 ? 6000 : 100));
    const bool is_segments = what % 8 == 7;
    auto stream = is_segments ? fuzz::segments_of(input, recorded % 60, recorded) : fuzz::stream_of(input, recorded);
    window.recorded = what % 16 == 3 ? static_cast<uint32_t>(input.number()) : recorded;
    if (what % 5 == 4 && !stream.empty()) stream[input.below(stream.size())] = input.byte();
    window.begin_ns = input.below(1000);
    window.end_ns = what % 16 == 5 ? input.number() : input.below(1500);
    window.executed = what % 3 ? window.recorded : input.number();
    window.implied_constant = static_cast<uint32_t>(what % 7 ? 0 : input.number());
    window.encoding = is_segments ? ML_ENUM_stream_encoding_SITE_SEGMENTS
                      : what % 9  ? ML_ENUM_stream_encoding_PC_DELTA
                                  : input.byte();
    window.tail_bytes = static_cast<uint32_t>(stream.size());
    if (trace::is_sound(stream, window.recorded, window.encoding)) sound += window.recorded;
    fuzz::append(payload, window);
    payload.insert(payload.end(), stream.begin(), stream.end());
    payload.resize((payload.size() + 7) & ~size_t{7});
    units.push_back(i / 2);
    images.push_back(static_cast<uint32_t>(input.below(4)));
  }
  join.set_units(std::vector<uint64_t>(6, 1000), std::vector<uint32_t>(6, 2));
  const bool cut = how % 4 == 3 && !payload.empty();
  if (cut) payload.resize(input.below(payload.size()));
  if (how >= 128)
    join.set_sites({{0, 1, 2}, {4, 8, 0}, {1, 2, 3}}, {{0, 3, input.below(9)}, {2, 1, 0}, {1, 700, UINT64_MAX}});
  const fuzz::Exact bytes(payload);
  join.add(1, bytes.view(), units, images);
  join.finish();
  uint64_t joined = 0, walked = 0;
  for (const auto& row : join.by_group()) {
    joined += row.recorded;
    (void)join.standard_error(row.loads);
  }
  fuzz::require(joined == join.totals().recorded, "objects add up to what was recorded");
  fuzz::require(cut || joined == sound, "all sound windows are joined, and no other");
  walker.walk(bytes.view(), [&](const trace::Part& part) { walked += part.count; }, [](const ml_window&, uint32_t) {});
  fuzz::require(cut || walked == sound, "all sound windows are walked, and no other");
  return 0;
}
