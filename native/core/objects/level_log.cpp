#include "level_log.h"

namespace memlens::objects {
namespace {

// Levels of one group, judged at the end of each moment.
struct Group {
  uint64_t level[3] = {0, 0, 0};  // all, and each half
  uint64_t peak[3] = {0, 0, 0};
  uint64_t at_other[2] = {0, 0};
  bool changed = false;
  void settle() {
    changed = false;
    for (unsigned i = 0; i < 3; ++i) {
      if (level[i] <= peak[i]) continue;
      peak[i] = level[i];
      if (i > 0) at_other[2 - i] = level[3 - i];
    }
  }
};

}  // namespace

std::vector<LevelLog::Peak> LevelLog::peaks(std::span<const uint32_t> group_of_site,
                                            std::span<const uint32_t> process_of_site, size_t groups) const {
  std::vector<Group> found(groups);
  struct Level {
    uint64_t of[3] = {0, 0, 0};
  };
  std::vector<Level> sites(group_of_site.size());
  std::vector<uint32_t> changed;
  const auto settle = [&] {
    for (const uint32_t group : changed) found[group].settle();
    changed.clear();
  };
  const auto group_at = [&](uint32_t site) -> Group* {
    const uint32_t group = site < group_of_site.size() ? group_of_site[site] : kNoGroup;
    if (group >= groups) return nullptr;
    if (!found[group].changed) changed.push_back(group);
    found[group].changed = true;
    return &found[group];
  };
  for (size_t at = 0; at < bytes_.size();) {
    const uint64_t header = get(at);
    if ((header & kNewMoment) != 0) settle();
    if ((header & kProcessEnd) != 0) {
      for (uint32_t site = 0; site < sites.size(); ++site) {
        if (process_of_site[site] != header >> 5) continue;
        if (Group* group = group_at(site))
          for (unsigned i = 0; i < 3; ++i) group->level[i] -= sites[site].of[i];
        sites[site] = {};
      }
      continue;
    }
    const uint64_t bytes = get(at);
    const uint32_t site = static_cast<uint32_t>(header >> 5);
    Group* group = group_at(site);
    if (group == nullptr) continue;
    const bool estimated = (header & kEstimated) != 0;
    const unsigned half = (header & kHalf) != 0 ? 1 : 0;
    for (unsigned i = 0; i < 3; ++i) {
      const uint64_t change = i == 0 || !estimated ? bytes : i - 1 == half ? 2 * bytes : 0;
      uint64_t& level = sites[site].of[i];
      const uint64_t before = level;
      // its process may have ended before
      level = (header & kDeath) != 0 ? level - std::min(level, change) : level + change;
      group->level[i] += level - before;
    }
  }
  settle();
  std::vector<Peak> result;
  for (const Group& group : found) result.push_back({group.peak[0], group.at_other[0] + group.at_other[1]});
  return result;
}

}  // namespace memlens::objects
