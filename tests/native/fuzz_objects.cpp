// Records with arbitrary content: the object engine must neither crash nor run away, objects must come in
// the order of birth, and every look-up must agree with a scan of all objects of a process without a parent.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "objects/object_table.h"

using namespace memlens::objects;

namespace {

std::mt19937_64 source(11);

template <typename Record>
std::vector<unsigned char> noise(size_t count, bool plausible, uint64_t places, uint64_t unit) {
  std::vector<unsigned char> bytes(count * sizeof(Record) + source() % 8);
  for (auto& byte : bytes) byte = static_cast<unsigned char>(source());
  for (size_t i = 0; plausible && i < count; ++i) {
    Record record;
    memcpy(&record, bytes.data() + i * sizeof record, sizeof record);
    if constexpr (requires { record.address; }) record.address = source() % places * unit;
    if constexpr (requires { record.old_address; }) record.old_address = source() % places * unit;
    if constexpr (requires { record.thread_pointer; }) record.thread_pointer = source() % places * unit;
    if constexpr (requires { record.bytes; }) record.bytes = source() % (4 * unit);
    if constexpr (requires { record.time_ns; }) record.time_ns = source() % 5000;
    if constexpr (requires { record.operation; })
      record.operation = static_cast<decltype(record.operation)>(source() % (sizeof(Record) == sizeof(ml_allocation) ? 12 : 7));
    if constexpr (requires { record.parent_process; }) record.parent_process = static_cast<uint32_t>(source() % 5);
    if constexpr (requires { record.path; }) record.path = static_cast<uint32_t>(source() % 4);
    memcpy(bytes.data() + i * sizeof record, &record, sizeof record);
  }
  return bytes;
}

int check(const ObjectTable& table, bool plausible, uint64_t places, uint64_t unit, bool forks) {
  const Columns& columns = table.columns();
  int failed = 0;
  for (size_t row = 1; row < columns.size(); ++row) failed += columns.born_ns[row] < columns.born_ns[row - 1];
  for (size_t row = 0; row < columns.size(); ++row) {
    failed += columns.died_ns[row] != 0 && columns.died_ns[row] < columns.born_ns[row];
    failed += columns.previous[row] > row;  // an object continues an older one
  }
  const uint32_t number = 1;
  for (int query = 0; query < 200; ++query) {
    const uint64_t address = plausible ? source() % (places * unit) : source(), time = plausible ? source() % 5001 : source();
    for (size_t layer = 0; layer <= kLayers; ++layer) {
      uint32_t found = 0;
      table.find({{&number, 1}, {&address, 1}, {&time, 1}}, layer, {&found, 1}, 1);
      if (layer != 0 || forks || !plausible) continue;
      uint32_t expected = 0;
      for (size_t row = 0; row < columns.size(); ++row)
        if (columns.process[row] == number && columns.kind[row] == static_cast<uint8_t>(Kind::heap) &&
            columns.base[row] <= address && address - columns.base[row] < std::max<uint64_t>(columns.bytes[row], 1) &&
            columns.born_ns[row] <= time && (columns.died_ns[row] == 0 || time < columns.died_ns[row]))
          expected = static_cast<uint32_t>(row + 1);
      failed += found != expected;
    }
    uint32_t tag = 0;
    table.find_tags({{&number, 1}, {&address, 1}, {&time, 1}}, {&tag, 1});
  }
  return failed;
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? atoi(argv[1]) : 100;
  int failed = 0;
  for (int round = 0; round < rounds; ++round) {
    const bool plausible = round % 4 != 0, forks = round % 3 == 0;
    const uint64_t places = round % 2 ? 300 : 4000, unit = round % 5 ? 16 : 4096;
    ObjectTable table(round % 7 ? 4096 : source());
    table.add_strings(noise<ml_string>(20, false, 1, 1));
    for (uint32_t process = 1; process < 5; ++process) {
      table.add_allocations(process, noise<ml_allocation>(source() % 4000, plausible, places, unit));
      table.add_tag_events(process, noise<ml_tag_event>(source() % 60, plausible, places, unit));
      table.add_thread_memory(process, noise<ml_thread_memory>(source() % 20, plausible, places, unit));
      table.add_mappings(process, noise<ml_mapping>(source() % 60, plausible, places, unit));
      if (forks) table.add_process_events(process, noise<ml_process_event>(source() % 20, plausible, places, unit));
    }
    table.run();
    failed += check(table, plausible, places, unit, forks);

    std::vector<uint32_t> process(100), thread(100), code(100);
    std::vector<uint64_t> time(100), address(100), span(100), fresh(100), end(100), bytes(100);
    for (size_t i = 0; i < 100; ++i) {
      process[i] = static_cast<uint32_t>(source() % 6);
      thread[i] = static_cast<uint32_t>(source() % 300);
      time[i] = plausible ? source() % 5000 : source();
      end[i] = plausible ? time[i] + source() % 500 : source();
      address[i] = plausible ? source() % (places * unit) : source();
      span[i] = source() % 3 ? 4096 : source() % 5 ? 1 << 21 : source();
      fresh[i] = source() % 8192;
      bytes[i] = source() % (1 << 18);
    }
    const std::vector<uint8_t> around(process.size(), process.size() % 2);
    const TouchColumns touched = table.touch({process, thread, code, time, address, span, fresh, around, process, time, end, address, bytes});
    for (size_t row = 0; row < table.columns().size(); ++row) {
      if (touched.never_pages[row] == TouchColumns::kNotCounted) continue;
      failed += touched.never_pages[row] > table.columns().bytes[row] / 4096 && round % 7;
    }
  }
  printf("%d rounds, %d failures\n", rounds, failed);
  return failed == 0 ? 0 : 1;
}
