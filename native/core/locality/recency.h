// The order in which blocks were last accessed, and how many were accessed after a given one.
//
// Every access takes the next slot; the slot of a block's last access has its bit set, so the number of blocks
// accessed after it is the number of bits behind it. Bits lie in leaves of 256; above them is a tree whose nodes
// are a cache line: entry j of a node is the number of bits in its children behind child j. A look-up reads one
// entry a level; taking a bit away lowers the entries before it, one vector operation a level. The leaf that is
// being filled is not in the tree yet, so that an access that is added costs nothing there.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "kernels.h"

namespace memlens::locality {

class Recency {
  typedef uint32_t Lanes __attribute__((vector_size(32)));
  static constexpr Lanes kLow = {0, 1, 2, 3, 4, 5, 6, 7};
  union alignas(64) Node {
    uint32_t behind[16];
    Lanes lanes[2];
  };

 public:
  static constexpr unsigned kLeafShift = 8, kLeafWords = 4, kFanShift = 4, kFan = 1u << kFanShift;
  static constexpr unsigned kMaxLevels = 6;  // 2^8 · 16^6 = 2^32 slots

  explicit Recency(uint64_t slots) { reset(slots); }

  // All bits cleared; `slots` is rounded up to a power of two.
  void reset(uint64_t slots);
  uint64_t slots() const { return bits_.size() * 64; }
  uint64_t next() const { return next_; }
  uint64_t bytes() const { return bits_.size() * 8 + nodes_.size() * sizeof(Node); }

  // Takes the bit at `slot` away: how many bits lie behind it.
  MEMLENS_INLINE uint32_t take(uint64_t slot) {
    const uint64_t leaf = slot >> kLeafShift;
    uint64_t* words = &bits_[leaf * kLeafWords];
    const unsigned word = static_cast<unsigned>(slot >> 6) & (kLeafWords - 1);
    const uint64_t bit = uint64_t{1} << (slot & 63);
    uint32_t behind = 0;
    for (unsigned i = 0; i < kLeafWords; ++i) {
      const uint64_t mask = i < word ? 0 : i > word ? ~uint64_t{0} : ~(bit | (bit - 1));
      behind += static_cast<uint32_t>(std::popcount(words[i] & mask));
    }
    words[word] &= ~bit;
    if (leaf == open_leaf_) {
      --open_bits_;
      return behind;
    }
    uint64_t at = leaf;
    for (unsigned level = 0; level < levels_; ++level) {
      const unsigned child = static_cast<unsigned>(at) & (kFan - 1);
      at >>= kFanShift;
      Node& node = nodes_[first_[level] + at];
      behind += node.behind[child];
      const Lanes limit = Lanes{} + child;
      node.lanes[0] += kLow < limit;  // a true comparison is -1
      node.lanes[1] += kLow + 8u < limit;
    }
    return behind + open_bits_;
  }

  // Sets the next slot's bit. There must be one: next() < slots().
  MEMLENS_INLINE uint64_t append() {
    const uint64_t slot = next_++;
    const uint64_t leaf = slot >> kLeafShift;
    if (leaf != open_leaf_) close_leaf(leaf);
    bits_[slot >> 6] |= uint64_t{1} << (slot & 63);
    ++open_bits_;
    return slot;
  }

  // Only clears the bit's leaf and node lines into the cache.
  MEMLENS_INLINE void prefetch(uint64_t slot) const {
    __builtin_prefetch(&bits_[slot >> kLeafShift << 2], 1);
    __builtin_prefetch(&nodes_[first_[0] + (slot >> (kLeafShift + kFanShift))], 1);
  }

  // Renumbering: ranks() first, then rank(slot) of any slot; afterwards compact() makes the ranks the slots.
  void ranks();
  uint64_t rank(uint64_t slot) const {  // bits before `slot`
    if (slot >= slots()) return total_;
    const uint64_t below = (uint64_t{1} << (slot & 63)) - 1;
    return before_[slot >> 6] + static_cast<uint64_t>(std::popcount(bits_[slot >> 6] & below));
  }
  template <typename Visit>
  void each(Visit&& visit) const {  // all set slots, ascending
    for (uint64_t w = 0; w < bits_.size(); ++w)
      for (uint64_t bits = bits_[w]; bits != 0; bits &= bits - 1)
        visit(w * 64 + static_cast<uint64_t>(std::countr_zero(bits)));
  }
  void compact(uint64_t slots);

 private:
  void close_leaf(uint64_t next_leaf);
  void add_leaf(uint64_t leaf, uint32_t count);

  LargeVector<uint64_t> bits_;
  std::vector<Node> nodes_;
  std::array<uint64_t, kMaxLevels> first_{};
  unsigned levels_ = 0;
  uint64_t next_ = 0, open_leaf_ = 0;
  uint32_t open_bits_ = 0;
  std::vector<uint32_t> before_;
  uint64_t total_ = 0;
};

}  // namespace memlens::locality
