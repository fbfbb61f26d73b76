// What a process that wrote for itself left in its rings: any content, and rings that were written right and then damaged.
//
// Oracles: no more comes out than lies in the file; what was written right is all there.
#include <map>

#include "capture/ring_file.h"
#include "input.h"
#include "memlens_channel.h"

using namespace memlens::capture;

namespace {

constexpr size_t kRings = 4;

void put(fuzz::Bytes& file, size_t at, const void* from, size_t bytes) { memcpy(file.data() + at, from, bytes); }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const uint8_t how = input.byte();
  if (how % 2 == 0) {
    const fuzz::View content = input.rest();
    uint64_t given = 0;
    for (const auto& records : read_ring_file(fuzz::MemoryFile(content).path())) {
      fuzz::require(records.kind != 0 && records.count > 0, "records of a kind");
      given += records.payload.size();
    }
    fuzz::require(given <= content.size(), "no more comes out than is in the file");
    return 0;
  }
  const size_t ring_bytes = size_t{256} << how / 2 % 4;
  fuzz::Bytes file(ML_CHANNEL_SLOT_HEADER_BYTES + kRings * ring_bytes);
  std::map<uint16_t, std::string> expected;
  for (size_t ring = 0; ring < kRings; ++ring) {
    const uint64_t begin = input.number() & ~uint64_t{7} & 0xffffffff;
    uint64_t head = begin;
    const size_t base = ML_CHANNEL_SLOT_HEADER_BYTES + ring * ring_bytes;
    for (uint64_t records = input.below(20); records > 0; --records) {
      const uint64_t bytes = input.below(12) * 8;
      const auto kind = static_cast<uint16_t>(1 + input.below(40));
      const uint64_t offset = head & (ring_bytes - 1), need = sizeof(ml_ring_record) + bytes;
      const uint64_t padding = offset + need > ring_bytes ? ring_bytes - offset : 0;
      if (head + padding + need - begin > ring_bytes) break;
      if (padding) {
        const uint32_t commit = static_cast<uint32_t>(padding) | ML_RING_COMMITTED;
        put(file, base + offset, &commit, sizeof commit);
      }
      const size_t at = base + ((head + padding) & (ring_bytes - 1));
      const uint32_t commit = static_cast<uint32_t>(need) | ML_RING_COMMITTED;
      put(file, at, &commit, sizeof commit);
      put(file, at + offsetof(ml_ring_record, kind), &kind, sizeof kind);
      std::string record(bytes, '\0');
      for (auto& c : record) c = static_cast<char>(input.byte());
      put(file, at + sizeof(ml_ring_record), record.data(), record.size());
      expected[kind] += record;
      head += padding + need;
    }
    const size_t state = offsetof(ml_channel_slot, rings) + ring * sizeof(ml_channel_ring);
    put(file, state + offsetof(ml_channel_ring, head), &head, sizeof head);
    put(file, state + offsetof(ml_channel_ring, tail), &begin, sizeof begin);
  }
  std::map<uint16_t, std::string> got;
  for (const auto& records : read_ring_file(fuzz::MemoryFile(file).path())) got[records.kind] = records.payload;
  fuzz::require(got == expected, "what was written right is all there");
  while (!input.empty()) file[input.below(file.size())] = input.byte();
  read_ring_file(fuzz::MemoryFile(file).path());
  return 0;
}
