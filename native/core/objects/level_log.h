// Every change of the live bytes of allocation sites, packed: what the peak of several sites together was.
//
// The sites that belong together are known only when code has names, which is after the replay. Three or four bytes a change:
// a header (site, death, estimated, half, new moment) and the bytes, as numbers of variable length.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace memlens::objects {

class LevelLog {
 public:
  static constexpr uint32_t kNoGroup = UINT32_MAX;

  struct Change {
    uint32_t site;
    bool is_death, estimated;
    unsigned half;  // of an estimated object, see SplitPeak
    uint64_t bytes;
  };
  void add(const Change& change, uint64_t now) {
    put(uint64_t{change.site} << 5 | (now != last_ns_ ? kNewMoment : 0) | (change.is_death ? kDeath : 0) |
        (change.estimated ? kEstimated : 0) | (change.half != 0 ? kHalf : 0));
    put(change.bytes);
    last_ns_ = now;
  }
  // What lives of a process then is gone.
  void end_process(uint32_t process, uint64_t now) {
    put(uint64_t{process} << 5 | kProcessEnd | (now != last_ns_ ? kNewMoment : 0));
    last_ns_ = now;
  }

  // Live bytes of the sites of a group: their peak, and the sum of both halves' levels at the peak of the other half (SplitPeak).
  struct Peak {
    uint64_t bytes = 0, halves_bytes = 0;
  };
  std::vector<Peak> peaks(std::span<const uint32_t> group_of_site, std::span<const uint32_t> process_of_site,
                          size_t groups) const;

 private:
  static constexpr uint64_t kNewMoment = 1, kDeath = 2, kEstimated = 4, kHalf = 8, kProcessEnd = 16;
  void put(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_.push_back(static_cast<uint8_t>(value | 0x80));
    bytes_.push_back(static_cast<uint8_t>(value));
  }
  uint64_t get(size_t& at) const {
    uint64_t value = 0;
    for (unsigned shift = 0;; shift += 7) {
      const uint8_t byte = bytes_[at++];
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
  }

  uint64_t last_ns_ = 0;
  std::vector<uint8_t> bytes_;
};

}  // namespace memlens::objects
