// The object engine on records of any content, its look-ups and what faults say about objects.
//
// Oracles: objects come in the order of birth, die after it, and continue older ones; a look-up agrees with a scan of all objects
// (processes without a parent); pages never touched are not more than the object has.
#include "objects/object_table.h"
#include "records.h"

using namespace memlens::objects;

namespace {

void check(const ObjectTable& table, fuzz::Input& input, const fuzz::Scale& scale, bool forks) {
  const Columns& columns = table.columns();
  for (size_t row = 0; row < columns.size(); ++row) {
    fuzz::require(row == 0 || columns.born_ns[row] >= columns.born_ns[row - 1], "objects come in the order of birth");
    fuzz::require(columns.died_ns[row] == 0 || columns.died_ns[row] >= columns.born_ns[row],
                  "no object dies before its birth");
    fuzz::require(columns.previous[row] <= row, "an object continues an older one");
  }
  const uint32_t number = 1;
  for (int query = 0; query < 40; ++query) {
    const uint64_t address = scale.plausible ? input.below(scale.places * scale.unit) : input.number();
    const uint64_t time = scale.plausible ? input.below(scale.most_times + 1) : input.number();
    for (size_t layer = 0; layer <= kLayers; ++layer) {
      uint32_t found = 0;
      table.find({{&number, 1}, {&address, 1}, {&time, 1}}, layer, {&found, 1}, 1);
      fuzz::require(found <= columns.size(), "what is found is an object");
      if (layer != 0 || forks || !scale.plausible) continue;
      uint32_t expected = 0;
      for (size_t row = 0; row < columns.size(); ++row)
        if (columns.process[row] == number && columns.kind[row] == static_cast<uint8_t>(Kind::heap) &&
            columns.base[row] <= address && address - columns.base[row] < std::max<uint64_t>(columns.bytes[row], 1) &&
            columns.born_ns[row] <= time && (columns.died_ns[row] == 0 || time < columns.died_ns[row]))
          expected = static_cast<uint32_t>(row + 1);
      fuzz::require(found == expected, "a look-up agrees with a scan");
    }
    uint32_t tag = 0;
    table.find_tags({{&number, 1}, {&address, 1}, {&time, 1}}, {&tag, 1});
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const uint8_t how = input.byte();
  const fuzz::Scale scale{.places = how & 1 ? 300u : 4000u,
                          .unit = how & 2 ? 16u : 4096u,
                          .most_times = 5000,
                          .plausible = how % 16 < 12};
  const bool odd_pages = how >= 240;
  ObjectTable table(odd_pages ? input.number() : 4096);
  bool forks = false;
  for (int step = 0; step < 40 && !input.empty(); ++step) {
    const uint8_t what = input.byte();
    const uint32_t process = 1 + what / 16 % 5;
    switch (what % 8) {
      case 0: table.add_strings(fuzz::tailed_of<ml_string>(input, 6, scale.plausible)); break;
      case 1:
      case 2:
      case 3: table.add_allocations(process, fuzz::records_of<ml_allocation>(input, scale, 120)); break;
      case 4: table.add_tag_events(process, fuzz::records_of<ml_tag_event>(input, scale, 20)); break;
      case 5: table.add_thread_memory(process, fuzz::records_of<ml_thread_memory>(input, scale, 20)); break;
      case 6: table.add_mappings(process, fuzz::records_of<ml_mapping>(input, scale, 20)); break;
      default:
        if (what >= 128) {
          table.add_variable({input.below(5000), input.below(scale.places) * scale.unit, input.below(512), process,
                              input.byte(), input.byte(), input.one_in(2)});
        } else {
          forks = true;
          table.add_process_events(process, fuzz::records_of<ml_process_event>(input, scale, 12));
        }
    }
  }
  table.run();
  check(table, input, scale, forks);

  constexpr size_t kRows = 30;
  std::vector<uint32_t> process(kRows), thread(kRows), code(kRows);
  std::vector<uint64_t> time(kRows), address(kRows), span(kRows), fresh(kRows), end(kRows), bytes(kRows);
  for (size_t i = 0; i < kRows; ++i) {
    process[i] = input.byte() % 6;
    thread[i] = input.byte();
    time[i] = scale.plausible ? input.below(5000) : input.number();
    end[i] = scale.plausible ? time[i] + input.byte() : input.number();
    address[i] = scale.plausible ? input.below(scale.places * scale.unit) : input.number();
    const uint8_t what = input.byte();
    span[i] = what % 3 ? 4096 : what % 5 ? 1 << 21 : input.number();
    fresh[i] = input.below(8192);
    bytes[i] = what == 255 ? input.number() : input.below(1 << 18);
  }
  const std::vector<uint8_t> around(kRows, how / 4 % 2);
  std::vector<double> weight(kRows);
  for (double& one : weight) one = how / 8 % 2 ? 1.0 : input.byte() / 4.0;
  const uint64_t sampled_from = how / 16 % 2 ? UINT64_MAX : input.below(5000);
  const TouchColumns touched = table.touch({process, thread, code, time, address, span, fresh, around, weight,
                                            sampled_from, process, time, end, address, bytes});
  for (size_t row = 0; row < table.columns().size(); ++row) {
    if (touched.never_pages[row] == TouchColumns::kNotCounted || odd_pages) continue;
    fuzz::require(touched.never_pages[row] <= table.columns().bytes[row] / 4096,
                  "no more pages were never touched than there are");
  }
  return 0;
}
