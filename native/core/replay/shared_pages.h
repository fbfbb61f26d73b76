// Which pages of shared memory anybody has placed: by file and page, a bit each in blocks of 512 pages.
//
// A record may name a range of any size: ranges that were there before the recording are kept as ranges, and a
// huge page takes about 100 bytes for each 2 MiB.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace memlens::replay {

class SharedPages {
 public:
  // `file`: a hash of device and inode.
  void insert(uint64_t file, uint64_t page) {
    blocks_[{file, page >> kShift}][(page >> 6) & 7] |= uint64_t{1} << (page & 63);
  }

  void restart() { blocks_.clear(); }

  // Pages [first, last), before anything is asked.
  void insert_before(uint64_t file, uint64_t first, uint64_t last) {
    if (first < last) before_[file].ranges.emplace_back(first, last);
  }

  bool contains(uint64_t file, uint64_t page) {
    const auto block = blocks_.find({file, page >> kShift});
    if (block != blocks_.end() && (block->second[(page >> 6) & 7] >> (page & 63) & 1) != 0) return true;
    const auto found = before_.find(file);
    if (found == before_.end()) return false;
    auto& [ranges, is_sorted] = found->second;
    if (!is_sorted) {  // and joined, so that one look is enough
      std::sort(ranges.begin(), ranges.end());
      size_t kept = 0;
      for (size_t i = 1; i < ranges.size(); ++i) {
        if (ranges[i].first <= ranges[kept].second)
          ranges[kept].second = std::max(ranges[kept].second, ranges[i].second);
        else ranges[++kept] = ranges[i];
      }
      ranges.resize(kept + 1);
      is_sorted = true;
    }
    const auto after = std::upper_bound(ranges.begin(), ranges.end(), page,
                                        [](uint64_t value, const auto& range) { return value < range.first; });
    return after != ranges.begin() && page < std::prev(after)->second;
  }

 private:
  static constexpr unsigned kShift = 9;
  struct Key {
    uint64_t file, block;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    size_t operator()(const Key& key) const {
      return (key.file ^ key.block * 0x9E3779B97F4A7C15u) * 0x165667B19E3779F9u;
    }
  };
  struct Before {
    std::vector<std::pair<uint64_t, uint64_t>> ranges;
    bool is_sorted = false;
  };
  std::unordered_map<Key, std::array<uint64_t, 8>, Hash> blocks_;
  std::unordered_map<uint64_t, Before> before_;
};

}  // namespace memlens::replay
