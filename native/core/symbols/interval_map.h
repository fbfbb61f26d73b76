// SPDX-License-Identifier: Apache-2.0
// Turns nested address ranges into disjoint segments, so that "innermost range that holds this
// address" is one binary search. Used for functions and inlined code of a unit, and for the units
// of a file.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace memlens::symbols {

struct NestedRange {
  uint64_t begin;
  uint64_t end;    // exclusive
  uint32_t owner;  // what the range belongs to
  uint32_t depth;  // nesting depth: where ranges coincide, the deeper one is the inner one
};

class IntervalMap {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // Stack sweep in O(n log n). Ranges that overlap without nesting (only in damaged or folded code)
  // get the later-starting owner up to its end, then what is left of the earlier one.
  static IntervalMap flatten(std::vector<NestedRange>&& ranges) {
    std::sort(ranges.begin(), ranges.end(), [](const NestedRange& a, const NestedRange& b) {
      if (a.begin != b.begin) return a.begin < b.begin;
      if (a.depth != b.depth) return a.depth < b.depth;
      if (a.end != b.end) return a.end > b.end;
      return a.owner > b.owner;  // exact duplicates: the first declared wins (it ends up on top)
    });
    IntervalMap map;
    map.segments_.reserve(ranges.size() + ranges.size() / 2);
    std::vector<NestedRange> open;
    uint64_t position = 0;
    auto close_until = [&](uint64_t limit) {
      while (!open.empty() && open.back().end <= limit) {
        if (open.back().end > position) {
          map.append(position, open.back().owner);
          position = open.back().end;
        }
        open.pop_back();
      }
    };
    for (const NestedRange& range : ranges) {
      if (range.end <= range.begin) continue;
      close_until(range.begin);
      if (open.empty()) {
        if (range.begin > position) map.append(position, kNone);
      } else if (range.begin > position) {
        map.append(position, open.back().owner);
      }
      position = std::max(position, range.begin);
      open.push_back(range);
    }
    close_until(UINT64_MAX);
    if (!map.segments_.empty()) map.append(position, kNone);
    map.segments_.shrink_to_fit();
    return map;
  }

  uint32_t owner_at(uint64_t address) const {
    auto after = std::upper_bound(segments_.begin(), segments_.end(), address,
                                  [](uint64_t a, const Segment& s) { return a < s.begin; });
    return after == segments_.begin() ? kNone : std::prev(after)->owner;
  }
  bool empty() const { return segments_.empty(); }

 private:
  struct Segment {
    uint64_t begin;  // ends where the next segment begins
    uint32_t owner;
  };
  void append(uint64_t begin, uint32_t owner) {
    if (!segments_.empty() && segments_.back().owner == owner) return;
    segments_.push_back({begin, owner});
  }
  std::vector<Segment> segments_;
};

}  // namespace memlens::symbols
