// The replay of faults on records of any content: a program that gives records of several processes, in any order.
//
// Oracles: one class for each fault that it was given (less those of our own library); every instruction that a record named has a code;
// codes of faults and stacks are codes that there are.
#include "records.h"
#include "replay/replay.h"
#include "replay/record_walk.h"

using namespace memlens::replay;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const uint8_t how = input.byte();
  fuzz::Scale scale{.places = 4096, .unit = 4096, .most_times = 65536, .plausible = how % 4 != 0};
  Replay replay({.page_shift = 12, .numa_balancing = how % 8 >= 4});
  size_t faults = 0;
  std::vector<std::pair<uint32_t, fuzz::Bytes>> counts;
  std::vector<std::pair<uint32_t, fuzz::Bytes>> later, calls;
  for (int step = 0; step < 40 && !input.empty(); ++step) {
    const uint8_t what = input.byte();
    const uint32_t process = 1 + what / 16 % 6;
    switch (what % 13) {
      case 0: replay.spaces().add_strings(fuzz::tailed_of<ml_string>(input, 6, scale.plausible)); break;
      case 1: replay.code().add_stacks(fuzz::tailed_of<ml_stack>(input, 6, scale.plausible)); break;
      case 2: replay.spaces().add_process_events(process, fuzz::records_of<ml_process_event>(input, scale, 12)); break;
      case 3:
      case 4: replay.spaces().add_mappings(process, fuzz::records_of<ml_mapping>(input, scale, 30)); break;
      case 5:
      case 6: {
        const auto payload = fuzz::records_of<ml_fault>(input, scale, 40);
        faults += payload.size() / sizeof(ml_fault);
        replay.add_faults(process, payload);
        break;
      }
      case 7: {
        // Looks may claim 2^26 pages before the rest is left out: seconds, and more of them under sanitizers.
        auto payload = fuzz::records_of<ml_residency>(input, scale, 10);
        for (size_t at = 0; at + sizeof(ml_residency) <= payload.size(); at += sizeof(ml_residency)) {
          ml_residency look;
          memcpy(&look, payload.data() + at, sizeof look);
          look.bytes = std::min<uint64_t>(look.bytes, 1 << 26);
          memcpy(payload.data() + at, &look, sizeof look);
        }
        replay.add_residency(process, payload);
        break;
      }
      case 8: {
        const auto payload = fuzz::records_of<ml_allocation>(input, scale, 30);
        calls.emplace_back(process, payload);
        replay.note_allocations(process, payload);
        break;
      }
      case 9: replay.spaces().add_tags(process, fuzz::records_of<ml_tag_event>(input, scale, 8)); break;
      case 10:
        replay.classifier().add_shared_before(input.byte() % 4, 0, input.byte() % 4, input.below(64) << 12,
                                              input.number() << 12);
        break;
      case 11: counts.emplace_back(process, fuzz::records_of<ml_code_count>(input, scale, 40)); break;
      default: later.emplace_back(what, fuzz::records_of<ml_page_count>(input, scale, 40));
    }
  }
  for (const auto& [process, payload] : counts) replay.code().add_code_counts(process, payload);
  for (const auto& [what, payload] : later) {
    replay.code().add_page_counts(1 + what / 16 % 6, payload);
    replay.code().add_unseen(1 + what / 16 % 6, payload);
    replay.code().add_code_use(1 + what / 16 % 6, input.below(1 << 24), input.below(65536), what % 2);
    replay.code().add_stack_use(1 + what / 16 % 6, input.byte() % 8, input.below(65536));
  }
  for (const auto& [process, payload] : calls) replay.add_calls(process, payload);
  replay.begin();
  for (uint64_t before_ns = 0; how >= 128 && before_ns < 65536; before_ns += 4096) replay.advance(before_ns);
  replay.finish();
  const std::vector<ClassifiedFault> classed = replay.take();
  for (const auto& [process, payload] : counts)
    each_record<ml_code_count>(payload, [&](const ml_code_count& record) {
      fuzz::require(replay.code().code_index().find(process, record.pc, record.time_ns) < replay.code().codes().size(),
                    "an instruction that a record named has a code");
    });
  fuzz::require(classed.size() + replay.own_faults() == faults, "a class for each fault");
  for (const auto& fault : classed)
    fuzz::require(fault.code < replay.code().codes().size(), "a fault's code is one that there is");
  for (const auto& [stack, frames] : replay.code().stacks())
    for (const uint32_t code : frames)
      fuzz::require(code < replay.code().codes().size(), "a stack's code is one that there is");
  return 0;
}
