// What is mapped where in one process, as mapping records are replayed in time.
//
// A fork shares the parent's table until either side changes it, so a tree of
// thousands of processes costs what it changes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "memlens_format.h"

namespace memlens::replay {

struct Area {
  uint64_t begin = 0, end = 0;
  uint64_t file_offset = 0;
  uint64_t inode = 0, device = 0;
  uint32_t path = 0;  // string id
  uint8_t protection = 0;
  bool shared = false;
};

class AddressSpace {
 public:
  void clear() { areas_ = std::make_shared<std::vector<Area>>(); }

  void map(const ml_mapping& record) {
    Area area{.begin = record.address,
              .end = record.address + record.bytes,
              .file_offset = record.file_offset,
              .inode = record.inode,
              .device = (uint64_t{record.device_major} << 32) | record.device_minor,
              .path = record.path,
              .protection = record.protection,
              .shared = record.shared != 0};
    if (area.end <= area.begin) return;
    // The kernel reports a whole area again when it grows or changes protection:
    // often nothing new.
    const Area* known = find(area.begin);
    if (known != nullptr && known->begin <= area.begin && known->end >= area.end && known->path == area.path &&
        known->inode == area.inode && known->protection == area.protection && known->shared == area.shared &&
        known->file_offset + (area.begin - known->begin) * (area.inode != 0) == area.file_offset)
      return;
    std::vector<Area>& areas = own();
    carve(areas, area.begin, area.end);
    areas.insert(std::lower_bound(areas.begin(), areas.end(), area.begin,
                                  [](const Area& a, uint64_t address) { return a.begin < address; }),
                 area);
  }

  void unmap(uint64_t begin, uint64_t end) { carve(own(), begin, end); }

  const Area* find(uint64_t address) const {
    const std::vector<Area>& areas = *areas_;
    auto after = std::upper_bound(areas.begin(), areas.end(), address,
                                  [](uint64_t at, const Area& area) { return at < area.begin; });
    if (after == areas.begin()) return nullptr;
    const Area& area = *std::prev(after);
    return address < area.end ? &area : nullptr;
  }

  const std::vector<Area>& areas() const { return *areas_; }

 private:
  std::vector<Area>& own() {
    if (areas_.use_count() > 1) areas_ = std::make_shared<std::vector<Area>>(*areas_);
    return *areas_;
  }

  // Removes [begin, end) from what is mapped, cutting areas that overlap it.
  static void carve(std::vector<Area>& areas, uint64_t begin, uint64_t end) {
    auto first = std::lower_bound(areas.begin(), areas.end(), begin,
                                  [](const Area& area, uint64_t address) { return area.end <= address; });
    auto last = first;
    std::vector<Area> remains;
    for (; last != areas.end() && last->begin < end; ++last) {
      if (last->begin < begin) {
        Area left = *last;
        left.end = begin;
        remains.push_back(left);
      }
      if (last->end > end) {
        Area right = *last;
        if (right.inode != 0) right.file_offset += end - right.begin;
        right.begin = end;
        remains.push_back(right);
      }
    }
    first = areas.erase(first, last);
    areas.insert(first, remains.begin(), remains.end());
  }

  std::shared_ptr<std::vector<Area>> areas_ = std::make_shared<std::vector<Area>>();
};

}  // namespace memlens::replay
