// The tags of one process. They may nest and overlap, and there are few: an interval tree over
// all that ever were, filtered by time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "object_columns.h"

namespace memlens::objects {

class TagIndex {
 public:
  void add(uint32_t id, const Columns& columns) {
    ids_.push_back(id);
    live_[columns.base[id - 1]].push_back(id);
    all_[columns.base[id - 1]].push_back(id);
  }
  void end(uint32_t id, const Columns& columns) {
    const auto found = live_.find(columns.base[id - 1]);
    if (found == live_.end()) return;
    std::erase(found->second, id);
    if (found->second.empty()) live_.erase(found);
  }
  // Live tags that begin at an address, oldest first; null = none.
  const std::vector<uint32_t>* live_at(uint64_t base) const {
    const auto found = live_.find(base);
    return found == live_.end() ? nullptr : &found->second;
  }
  const std::vector<uint32_t>* all_at(uint64_t base) const {
    const auto found = all_.find(base);
    return found == all_.end() ? nullptr : &found->second;
  }
  std::vector<uint32_t> clear() {
    std::vector<uint32_t> ids;
    for (const auto& [base, list] : live_) ids.insert(ids.end(), list.begin(), list.end());
    live_.clear();
    std::sort(ids.begin(), ids.end());
    return ids;
  }
  void renumber(const std::vector<uint32_t>& new_id) {
    for (uint32_t& id : ids_) id = new_id[id];
    for (auto* lists : {&live_, &all_})
      for (auto& [base, list] : *lists)
        for (uint32_t& id : list) id = new_id[id];
  }
  bool empty() const { return ids_.empty(); }

  // After the last change: sorts by base; greatest_end_ of a range of the sorted list is what prunes.
  void freeze(const Columns& columns) {
    std::sort(ids_.begin(), ids_.end(), [&](uint32_t a, uint32_t b) {
      return columns.base[a - 1] != columns.base[b - 1] ? columns.base[a - 1] < columns.base[b - 1] : a < b;
    });
    greatest_end_.assign(ids_.size(), 0);
    if (!ids_.empty()) fill(0, ids_.size(), columns);
  }

  // Visits every tag that contains the address at any time.
  template <typename Visit>
  void each_containing(uint64_t address, const Columns& columns, Visit&& visit) const {
    if (!ids_.empty()) walk(0, ids_.size(), address, columns, visit);
  }

 private:
  static uint64_t end_of(uint32_t id, const Columns& columns) {
    return columns.base[id - 1] + std::max<uint64_t>(columns.bytes[id - 1], 1);
  }
  // The middle of [first, last) is the node of that range.
  uint64_t fill(size_t first, size_t last, const Columns& columns) {
    if (first >= last) return 0;
    const size_t middle = first + (last - first) / 2;
    const uint64_t greatest =
        std::max({end_of(ids_[middle], columns), fill(first, middle, columns), fill(middle + 1, last, columns)});
    return greatest_end_[middle] = greatest;
  }
  template <typename Visit>
  void walk(size_t first, size_t last, uint64_t address, const Columns& columns, Visit& visit) const {
    if (first >= last) return;
    const size_t middle = first + (last - first) / 2;
    if (greatest_end_[middle] <= address) return;
    walk(first, middle, address, columns, visit);
    const uint32_t id = ids_[middle];
    if (columns.base[id - 1] > address) return;
    if (end_of(id, columns) > address) visit(id);
    walk(middle + 1, last, address, columns, visit);
  }

  std::vector<uint32_t> ids_;
  std::vector<uint64_t> greatest_end_;
  std::unordered_map<uint64_t, std::vector<uint32_t>> live_, all_;
};

}  // namespace memlens::objects
