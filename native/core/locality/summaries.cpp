#include "summaries.h"

#include <algorithm>
#include <stdexcept>

namespace memlens::locality {

ReuseRow& ReuseSummary::row(uint32_t group) {
  if (group >= rows_.size()) {
    rows_.resize(std::max<size_t>(group + size_t{1}, rows_.size() + rows_.size() / 2));
    open_.resize(rows_.size());
  }
  return rows_[group];
}

void ReuseSummary::add(std::span<const uint32_t> distances, std::span<const uint64_t> intervals,
                       std::span<const uint32_t> groups) {
  if ((!groups.empty() && groups.size() != distances.size()) || intervals.size() != distances.size())
    throw std::invalid_argument("the columns have one length");
  for (size_t i = 0; i < distances.size(); ++i) {
    const uint32_t group = groups.empty() ? 0 : groups[i];
    ReuseRow& mine = row(group);
    ++mine.accesses;
    if (open_[group].accesses++ == 0) touched_.push_back(group);
    if (distances[i] == kFirst) {
      ++mine.first;
    } else if (distances[i] == kEarlier) {
      ++mine.earlier;
    } else {
      mine.distance.add(distances[i]);
      mine.interval.add(intervals[i]);
      ++open_[group].reuses;
      open_[group].distance += distances[i];
    }
  }
}

void ReuseSummary::end_window() {
  for (const uint32_t group : touched_) {
    rows_[group].mean_distance.add(static_cast<double>(open_[group].reuses),
                                   static_cast<double>(open_[group].distance));
    rows_[group].new_blocks.add(static_cast<double>(open_[group].accesses),
                                static_cast<double>(open_[group].accesses - open_[group].reuses));
    open_[group] = {};
  }
  touched_.clear();
}

void ReuseSummary::merge(const ReuseSummary& other) {
  for (uint32_t group = 0; group < other.rows_.size(); ++group) {
    const ReuseRow& from = other.rows_[group];
    if (from.accesses == 0) continue;
    ReuseRow& to = row(group);
    to.accesses += from.accesses;
    to.first += from.first;
    to.earlier += from.earlier;
    to.distance.merge(from.distance);
    to.interval.merge(from.interval);
    to.mean_distance.merge(from.mean_distance);
    to.new_blocks.merge(from.new_blocks);
  }
}

void MissCurve::add(std::span<const uint32_t> distances) {
  accesses_ += distances.size();
  uint64_t greatest = 0;
  for (const uint32_t d : distances)
    if (d < kEarlier && d > greatest) greatest = d;
  if (greatest >= counts_.size()) counts_.resize(std::max<size_t>(greatest + 1, counts_.size() * 3 / 2));
  if (counts_.empty()) counts_.resize(1);
  for (const uint32_t d : distances) {
    if (d < kEarlier) ++counts_[d];
    else ++(d == kFirst ? first_ : earlier_);
  }
}

void MissCurve::merge(const MissCurve& other) {
  if (other.counts_.size() > counts_.size()) counts_.resize(other.counts_.size());
  for (size_t i = 0; i < other.counts_.size(); ++i) counts_[i] += other.counts_[i];
  accesses_ += other.accesses_;
  first_ += other.first_;
  earlier_ += other.earlier_;
}

std::vector<uint64_t> MissCurve::misses(std::span<const uint64_t> cache_blocks) const {
  std::vector<size_t> order(cache_blocks.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return cache_blocks[a] < cache_blocks[b]; });
  std::vector<uint64_t> found(cache_blocks.size());
  uint64_t hits = 0, at = 0;
  for (const size_t i : order) {
    for (; at < cache_blocks[i] && at < counts_.size(); ++at) hits += counts_[at];
    found[i] = accesses_ - hits;
  }
  return found;
}

}  // namespace memlens::locality
