// Records with arbitrary content: the replay must neither crash nor run away, and must give one class
// for each fault it was given.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "replay/fault_classifier.h"

using namespace memlens::replay;

namespace {

std::mt19937_64 source(7);

template <typename Record>
std::vector<unsigned char> noise(size_t count, bool plausible) {
  std::vector<unsigned char> bytes(count * sizeof(Record) + source() % 8);
  for (auto& byte : bytes) byte = static_cast<unsigned char>(source());
  if (plausible) {
    for (size_t i = 0; i < count; ++i) {
      Record record;
      memcpy(&record, bytes.data() + i * sizeof record, sizeof record);
      if constexpr (requires { record.address; }) record.address = (source() % 4096) << 12;
      if constexpr (requires { record.pc; }) record.pc = source() % (uint64_t{4096} << 12);
      if constexpr (requires { record.bytes; }) record.bytes = (source() % 64) << 12;
      if constexpr (requires { record.time_ns; }) record.time_ns = source() % 100000;
      if constexpr (requires { record.operation; }) record.operation = static_cast<decltype(record.operation)>(source() % 9);
      if constexpr (requires { record.parent_process; }) record.parent_process = static_cast<uint32_t>(source() % 6);
      if constexpr (requires { record.after_shift; }) {
        static const uint8_t shifts[] = {0, 12, 21, 255, 200, 3};
        record.after_shift = shifts[source() % 6];
        record.before_shift = shifts[source() % 6];
      }
      memcpy(bytes.data() + i * sizeof record, &record, sizeof record);
    }
  }
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? atoi(argv[1]) : 100;
  int failed = 0;
  for (int round = 0; round < rounds; ++round) {
    const bool plausible = round % 4 != 0;
    FaultClassifier replay({.page_shift = 12, .numa_balancing = round % 2 == 0});
    size_t faults = 0;
    replay.add_strings(noise<ml_string>(20, false));
    replay.add_stacks(noise<ml_stack>(20, false));
    for (uint32_t process = 1; process < 6; ++process) {
      const size_t count = source() % 40;
      faults += count;
      auto payload = noise<ml_fault>(count, plausible);
      payload.resize(count * sizeof(ml_fault) + source() % 8);
      // A huge span costs a page entry each; the engine caps it, and noise must not make the test crawl.
      for (size_t i = 0; i < count; ++i) {
        ml_fault record;
        memcpy(&record, payload.data() + i * sizeof record, sizeof record);
        if (record.after_shift > 24 && record.after_shift != 255) record.after_shift = 24;
        memcpy(payload.data() + i * sizeof record, &record, sizeof record);
      }
      replay.add_faults(process, payload);
      replay.add_mappings(process, noise<ml_mapping>(source() % 60, plausible));
      replay.add_process_events(process, noise<ml_process_event>(source() % 20, plausible));
      if (plausible) replay.add_residency(process, noise<ml_residency>(source() % 10, true));
    }
    std::vector<std::pair<uint32_t, std::vector<unsigned char>>> counts;
    for (uint32_t process = 1; process < 7; ++process) {
      counts.emplace_back(process, noise<ml_code_count>(source() % 60, plausible));
      replay.add_code_counts(process, counts.back().second);
      replay.add_page_counts(process, noise<ml_page_count>(source() % 60, plausible));
      replay.add_unseen(process, noise<ml_unseen>(source() % 10, plausible));
    }
    replay.run();
    // Every instruction that a record named has a code.
    for (const auto& [process, payload] : counts)
      for (size_t at = 0; at + sizeof(ml_code_count) <= payload.size(); at += sizeof(ml_code_count)) {
        ml_code_count record;
        memcpy(&record, payload.data() + at, sizeof record);
        if (replay.code_index().find(process, record.pc, record.time_ns) >= replay.codes().size()) ++failed;
      }
    if (replay.faults().size() != faults) ++failed;
    for (const auto& fault : replay.faults())
      if (fault.code >= replay.codes().size()) ++failed;
  }
  printf("%d passed, %d failed\n", rounds - failed, failed);
  return failed == 0 ? 0 : 1;
}
