#include "ring_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
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

constexpr off_t kMostBytes = off_t{1} << 28;  // a process's rings have at most a few MiB

// The whole of a regular file; a pipe would block for ever, and a device has no end.
std::string content_of(const std::string& path) {
  const auto refuse = [&](int number, int fd) {
    if (fd >= 0) ::close(fd);
    throw std::system_error(number, std::generic_category(), path);
  };
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) refuse(errno, fd);
  struct stat status{};
  if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) refuse(EINVAL, fd);
  if (status.st_size > kMostBytes) refuse(EFBIG, fd);
  std::string content(static_cast<size_t>(status.st_size), '\0');
  size_t at = 0;
  while (at < content.size()) {
    const ssize_t step = read(fd, content.data() + at, content.size() - at);
    if (step < 0 && errno == EINTR) continue;
    if (step < 0) refuse(errno, fd);
    if (step == 0) break;
    at += static_cast<size_t>(step);
  }
  ::close(fd);
  content.resize(at);
  return content;
}

}  // namespace

std::vector<RingRecords> read_ring_file(const std::string& path) {
  const std::string content = content_of(path);
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
