#include "ring_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <system_error>

#include "memlens_channel.h"

namespace memlens::capture {
namespace {

template <typename Number>
Number number_at(const std::string& content, size_t offset) {
  Number value{};
  if (offset + sizeof value <= content.size()) memcpy(&value, content.data() + offset, sizeof value);
  return value;
}

}  // namespace

std::vector<RingRecords> read_ring_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::system_error(errno, std::generic_category(), path);
  std::ostringstream buffer;
  buffer << file.rdbuf();
  const std::string content = std::move(buffer).str();
  std::map<uint16_t, RingRecords> kinds;
  if (content.size() <= ML_CHANNEL_SLOT_HEADER_BYTES) return {};
  // The number of rings is the writer's; their size follows from it. It has four.
  constexpr size_t kRings = 4;
  const size_t ring_bytes = (content.size() - ML_CHANNEL_SLOT_HEADER_BYTES) / kRings;
  if (ring_bytes == 0 || (ring_bytes & (ring_bytes - 1)) != 0) return {};
  for (size_t ring = 0; ring < kRings; ring++) {
    const size_t state = offsetof(ml_channel_slot, rings) + ring * sizeof(ml_channel_ring);
    const auto head = number_at<uint64_t>(content, state + offsetof(ml_channel_ring, head));
    auto tail = number_at<uint64_t>(content, state + offsetof(ml_channel_ring, tail));
    const size_t data = ML_CHANNEL_SLOT_HEADER_BYTES + ring * ring_bytes;
    if (head - tail > ring_bytes) continue;
    while (tail < head) {
      const size_t offset = tail & (ring_bytes - 1);
      const auto commit = number_at<uint32_t>(content, data + offset);
      const auto kind = number_at<uint16_t>(content, data + offset + offsetof(ml_ring_record, kind));
      const size_t length = commit & ~ML_RING_COMMITTED;
      if ((commit & ML_RING_COMMITTED) == 0 || length < sizeof(ml_ring_record) || length % 8 != 0 ||
          offset + length > ring_bytes)
        break;
      if (kind != 0) {
        RingRecords& records = kinds[kind];
        records.kind = kind;
        records.count++;
        records.payload.append(content, data + offset + sizeof(ml_ring_record), length - sizeof(ml_ring_record));
      }
      tail += length;
    }
  }
  std::vector<RingRecords> result;
  for (auto& [kind, records] : kinds) result.push_back(std::move(records));
  return result;
}

}  // namespace memlens::capture
