#include "recency.h"

#include <algorithm>
#include <stdexcept>

namespace memlens::locality {

void Recency::reset(uint64_t slots) {
  slots = std::bit_ceil(std::max<uint64_t>(slots, uint64_t{1} << (kLeafShift + kFanShift)));
  if (slots > uint64_t{1} << 32) throw std::length_error("more than 2^30 distinct blocks");
  bits_.assign(slots / 64, 0);
  uint64_t nodes = 0;
  levels_ = 0;
  for (uint64_t children = slots >> kLeafShift; children > 1; children = (children + kFan - 1) >> kFanShift) {
    first_[levels_++] = nodes;
    nodes += (children + kFan - 1) >> kFanShift;
  }
  nodes_.assign(nodes, Node{});
  next_ = open_leaf_ = 0;
  open_bits_ = 0;
}

void Recency::add_leaf(uint64_t leaf, uint32_t count) {
  uint64_t at = leaf;
  for (unsigned level = 0; level < levels_; ++level) {
    const unsigned child = static_cast<unsigned>(at) & (kFan - 1);
    at >>= kFanShift;
    uint32_t* entries = nodes_[first_[level] + at].behind;
    for (unsigned j = 0; j < kFan; ++j) entries[j] += j < child ? count : 0;
  }
}

void Recency::close_leaf(uint64_t next_leaf) {
  if (open_bits_ > 0) add_leaf(open_leaf_, open_bits_);
  open_leaf_ = next_leaf;
  open_bits_ = 0;
}

void Recency::ranks() {
  before_.resize(bits_.size());
  uint64_t total = 0;
  for (uint64_t w = 0; w < bits_.size(); ++w) {
    before_[w] = static_cast<uint32_t>(total);
    total += static_cast<uint64_t>(std::popcount(bits_[w]));
  }
  total_ = total;
}

void Recency::compact(uint64_t slots) {
  const uint64_t live = total_;
  reset(slots);
  const uint64_t leaf_slots = uint64_t{1} << kLeafShift;
  std::fill(bits_.begin(), bits_.begin() + static_cast<ptrdiff_t>(live / 64), ~uint64_t{0});
  if (live % 64 != 0) bits_[live / 64] = (uint64_t{1} << (live % 64)) - 1;
  next_ = live;
  for (uint64_t leaf = 0; leaf < live / leaf_slots; ++leaf) add_leaf(leaf, static_cast<uint32_t>(leaf_slots));
  // The leaf of the last slot stays open; a full one is in the tree, and the next slot opens another.
  open_leaf_ = live / leaf_slots;
  open_bits_ = static_cast<uint32_t>(live % leaf_slots);
}

}  // namespace memlens::locality
