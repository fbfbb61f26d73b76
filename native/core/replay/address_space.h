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
  uint32_t path = 0;        // string id
  uint32_t generation = 0;  // +1 for each mapping made here: a page of an older one was given back
  uint64_t mapped_ns = 0;   // when this generation was mapped
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
    area.generation = ++generation_;
    area.mapped_ns = record.time_ns;
    std::vector<Area>& areas = own();
    std::vector<Area> pieces = {area};
    // The kernel reports an area again, whole, when it grew by merging or changed its protection. What
    // was there before stays the same mapping; the same range reported again is a new mapping, made
    // after an munmap that no record tells of.
    auto known = std::lower_bound(areas.begin(), areas.end(), area.begin,
                                  [](const Area& a, uint64_t address) { return a.end <= address; });
    for (; known != areas.end() && known->begin < area.end; ++known) {
      const bool same = known->path == area.path && known->inode == area.inode && known->shared == area.shared;
      const bool same_protection = known->protection == area.protection;
      const bool grew = same_protection && known->begin >= area.begin && known->end <= area.end &&
                        known->end - known->begin < area.end - area.begin;
      const bool changed_protection = !same_protection && known->begin <= area.begin && known->end >= area.end;
      if (!same || !(grew || changed_protection)) continue;
      Area kept = area;
      kept.begin = std::max(area.begin, known->begin);
      kept.end = std::min(area.end, known->end);
      kept.file_offset = area.file_offset + (area.inode != 0 ? kept.begin - area.begin : 0);
      kept.generation = known->generation;
      kept.mapped_ns = known->mapped_ns;
      Area rest = pieces.back();
      pieces.pop_back();
      if (rest.begin < kept.begin) {
        Area before = rest;
        before.end = kept.begin;
        pieces.push_back(before);
      }
      pieces.push_back(kept);
      if (kept.end < rest.end) {
        if (rest.inode != 0) rest.file_offset += kept.end - rest.begin;
        rest.begin = kept.end;
        pieces.push_back(rest);
      } else {
        break;
      }
    }
    carve(areas, area.begin, area.end);
    areas.insert(std::lower_bound(areas.begin(), areas.end(), area.begin,
                                  [](const Area& a, uint64_t address) { return a.begin < address; }),
                 pieces.begin(), pieces.end());
  }

  void unmap(uint64_t begin, uint64_t end) { carve(own(), begin, end); }

  // mremap of [old_begin, old_end) to [begin, end), which no mapping record reports. Returns the generation of
  // the moved area. What was known of it moves along; memory of an unknown area is private and writable.
  uint32_t move(uint64_t old_begin, uint64_t old_end, uint64_t begin, uint64_t end, uint64_t now) {
    Area area;
    area.protection = 3;
    if (const Area* known = find(old_begin)) {
      area = *known;
      if (area.inode != 0) area.file_offset += old_begin - known->begin;
    }
    area.begin = begin;
    area.end = end;
    area.generation = ++generation_;
    area.mapped_ns = now;
    std::vector<Area>& areas = own();
    carve(areas, old_begin, old_end);
    if (begin >= end) return area.generation;
    carve(areas, begin, end);
    areas.insert(std::lower_bound(areas.begin(), areas.end(), begin,
                                  [](const Area& a, uint64_t address) { return a.begin < address; }),
                 area);
    return area.generation;
  }

  // mremap that grows in place: the area around `address` now ends at `end`.
  void extend(uint64_t address, uint64_t end) {
    std::vector<Area>& areas = own();
    auto after = std::upper_bound(areas.begin(), areas.end(), address,
                                  [](uint64_t at, const Area& area) { return at < area.begin; });
    if (after == areas.begin() || std::prev(after)->end <= address || std::prev(after)->end >= end) return;
    const uint64_t begin = std::prev(after)->begin;
    Area grown = *std::prev(after);
    grown.end = end;
    carve(areas, begin, end);
    areas.insert(
        std::lower_bound(areas.begin(), areas.end(), begin, [](const Area& a, uint64_t at) { return a.begin < at; }),
        grown);
  }

  // MREMAP_DONTUNMAP: [begin, end) of an area that was moved away stays mapped, without pages.
  void restore(const Area& area, uint64_t begin, uint64_t end) {
    Area kept = area;
    if (kept.inode != 0) kept.file_offset += begin - kept.begin;
    kept.begin = begin;
    kept.end = end;
    kept.generation = ++generation_;
    std::vector<Area>& areas = own();
    carve(areas, begin, end);
    areas.insert(
        std::lower_bound(areas.begin(), areas.end(), begin, [](const Area& a, uint64_t at) { return a.begin < at; }),
        kept);
  }

  uint32_t generation() const { return generation_; }

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

  uint32_t generation_ = 0;
  std::shared_ptr<std::vector<Area>> areas_ = std::make_shared<std::vector<Area>>();
};

}  // namespace memlens::replay
