// What a process that wrote for itself had not written out when it was killed: its rings lie in a
// file (format/memlens_channel.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace memlens::capture {

struct RingRecords {
  uint16_t kind = 0;
  uint32_t count = 0;
  std::string payload;
};

// Records of each kind. Stops in a ring at the first invalid record; never throws for
// bad content, std::system_error when the file cannot be read.
std::vector<RingRecords> read_ring_file(const std::string& path);

}  // namespace memlens::capture
