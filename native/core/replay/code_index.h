// Which code an instruction pointer of a process meant at a time.
//
// Uses are collected first (add_use: one for each pointer and state of the process's code is kept, so
// that millions of windows cost what they differ), then resolved by the replay in time order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "memlens_format.h"

namespace memlens::replay {

class CodeIndex {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Use {
    uint64_t time_ns, pc;
    uint32_t process;
    bool anonymous;  // the collector saw that it lies in no file
  };

  // Times at which code of a process may have changed; all of them before the first use.
  void add_change(uint32_t process, uint64_t time_ns) { changes_[process].push_back(time_ns); }
  void sort_changes() {
    for (auto& [process, times] : changes_) std::sort(times.begin(), times.end());
  }
  uint32_t epoch(uint32_t process, uint64_t time_ns) const {
    const auto found = changes_.find(process);
    if (found == changes_.end()) return 0;
    return static_cast<uint32_t>(std::upper_bound(found->second.begin(), found->second.end(), time_ns) -
                                 found->second.begin());
  }
  void add_use(uint32_t process, uint64_t pc, uint64_t time_ns, bool anonymous = false) {
    if (seen_.insert({pc, process, epoch(process, time_ns)}).second) uses_.push_back({time_ns, pc, process, anonymous});
  }
  const std::vector<Use>& uses() const { return uses_; }

  void resolve(const Use& use, uint32_t code) { codes_[{use.pc, use.process, 0}].push_back({use.time_ns, code}); }
  void finish() {
    for (auto& [key, since] : codes_) std::sort(since.begin(), since.end());
    seen_.clear();
  }
  // The code that was there at the time or, when the pointer was met later only, at its first use.
  uint32_t find(uint32_t process, uint64_t pc, uint64_t time_ns) const {
    const auto found = codes_.find({pc, process, 0});
    if (found == codes_.end()) return kNone;
    const auto& since = found->second;
    const auto after = std::upper_bound(since.begin(), since.end(), std::pair{time_ns, kNone});
    if (after == since.begin()) return after->second;
    // Another use in the same state of the code may lie just after the time asked for.
    if (after != since.end() && epoch(process, after->first) == epoch(process, time_ns)) return after->second;
    return std::prev(after)->second;
  }

 private:
  struct Key {
    uint64_t pc;
    uint32_t process, epoch;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    size_t operator()(const Key& key) const {
      uint64_t mixed = (key.pc ^ (uint64_t{key.process} << 40) ^ (uint64_t{key.epoch} << 20)) * 0x9E3779B97F4A7C15u;
      return mixed ^ (mixed >> 32);
    }
  };
  std::unordered_map<uint32_t, std::vector<uint64_t>> changes_;
  std::unordered_set<Key, Hash> seen_;
  std::vector<Use> uses_;
  std::unordered_map<Key, std::vector<std::pair<uint64_t, uint32_t>>, Hash> codes_;
};

}  // namespace memlens::replay
