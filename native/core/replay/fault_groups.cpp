#include "fault_groups.h"

#include <algorithm>
#include <cstring>

namespace memlens::replay {
namespace {

bool alike(const FaultGroups::Group& a, const FaultGroups::Group& b) {
  return a.code == b.code && a.thread == b.thread && a.process == b.process && a.stack == b.stack &&
         a.new_pages == b.new_pages && a.weight == b.weight && a.fault_class == b.fault_class && a.area == b.area &&
         a.span_shift == b.span_shift && a.stack_weight_shift == b.stack_weight_shift && a.inferred == b.inferred &&
         a.in_kernel == b.in_kernel && a.node == b.node;
}

size_t hash_of(const FaultGroups::Group& group) {
  uint32_t weight;
  memcpy(&weight, &group.weight, sizeof weight);
  uint64_t mixed = (uint64_t{group.process} << 32 | group.thread) * 0x9E3779B97F4A7C15u;
  mixed = (mixed ^ (uint64_t{group.code} << 32 | group.stack)) * 0xC2B2AE3D27D4EB4Fu;
  mixed ^= (uint64_t{group.new_pages} << 32 | weight) ^
           (uint64_t{static_cast<uint8_t>(group.fault_class)} << 8 | static_cast<uint64_t>(group.area) << 16 |
            uint64_t{group.span_shift} << 24 | static_cast<uint64_t>(static_cast<uint16_t>(group.node)) << 40 |
            uint64_t{group.inferred} << 1 | uint64_t{group.in_kernel});
  mixed *= 0x165667B19E3779F9u;
  return mixed ^ (mixed >> 29);
}

}  // namespace

void FaultGroups::grow() {
  slots_.assign(std::max<size_t>(256, 2 * slots_.size()), kNone);
  for (uint32_t i = 0; i < groups_.size(); ++i) {
    size_t at = hash_of(groups_[i]) & (slots_.size() - 1);
    while (slots_[at] != kNone) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = i;
  }
}

uint32_t FaultGroups::find(const Group& group) {
  if (2 * groups_.size() >= slots_.size()) grow();
  size_t at = hash_of(group) & (slots_.size() - 1);
  for (; slots_[at] != kNone; at = (at + 1) & (slots_.size() - 1))
    if (alike(groups_[slots_[at]], group)) return slots_[at];
  slots_[at] = static_cast<uint32_t>(groups_.size());
  groups_.push_back(group);
  groups_.back().pair = pair_of(group);
  return slots_[at];
}

uint32_t FaultGroups::pair_of(const Group& group) {
  if (group.code >= pairs_of_code_.size()) pairs_of_code_.resize(size_t{group.code} + 1);
  auto& known = pairs_of_code_[group.code];
  const auto found =
      std::find_if(known.begin(), known.end(), [&](const auto& e) { return e.first == group.fault_class; });
  if (found != known.end()) return found->second;
  const uint32_t pair = static_cast<uint32_t>(pairs_.size());
  known.emplace_back(group.fault_class, pair);
  pairs_.emplace_back(group.code, group.fault_class);
  of_pair_.push_back(0);
  return pair;
}

void FaultGroups::add(const ClassifiedFault& fault) {
  const ml_fault& record = fault.record;
  const bool has_stack = record.stack != 0;
  Group& group = groups_[find(
      {fault.process, record.thread, fault.code, record.stack, fault.new_pages, fault.weight, fault.fault_class,
       fault.area, fault.span_shift, has_stack ? record.stack_weight_shift : uint8_t{0}, fault.inferred,
       (record.flags & ML_ENUM_fault_flags_KERNEL_MODE) != 0, fault.node, 0, 0, fault.arrival, 0})];
  if (has_stack)
    stacked_.push_back({record.time_ns, fault.process, record.thread, fault.code, record.stack, fault.fault_class});
  ++group.faults;
  group.first = std::min(group.first, fault.arrival);
  group.weights += static_cast<double>(fault.weight);
  add_to_bin(group.pair, record.time_ns, fault.weight);
}

void FaultGroups::add_to_bin(uint32_t pair, uint64_t time_ns, float weight) {
  if (bins_.edges_s.size() < 2) return;
  const double time_s = static_cast<double>(static_cast<int64_t>(time_ns) - static_cast<int64_t>(bins_.begin_ns)) / 1e9;
  const auto& edges = bins_.edges_s;
  if (bin_ == kNone || !(edges[bin_] <= time_s && time_s < edges[bin_ + 1])) {
    if (!(edges.front() <= time_s && time_s <= edges.back())) return;
    leave_bin();
    const auto after = std::upper_bound(edges.begin(), edges.end(), time_s);
    bin_ =
        static_cast<uint32_t>(std::min<ptrdiff_t>(after - edges.begin() - 1, static_cast<ptrdiff_t>(edges.size()) - 2));
  }
  if (of_pair_[pair] == 0) used_pairs_.push_back(pair);
  of_pair_[pair] += static_cast<double>(weight);
}

void FaultGroups::finish() {
  leave_bin();
  slots_.clear();
  std::sort(groups_.begin(), groups_.end(), [](const Group& a, const Group& b) { return a.first < b.first; });
}

void FaultGroups::leave_bin() {
  for (const uint32_t pair : used_pairs_) {
    if (of_pair_[pair] != 0) in_time_.push_back({bin_, pairs_[pair].first, pairs_[pair].second, of_pair_[pair]});
    of_pair_[pair] = 0;
  }
  used_pairs_.clear();
}

}  // namespace memlens::replay
