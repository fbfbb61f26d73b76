// Miss-ratio curve from a sample of blocks (SHARDS, Waldspurger et al., FAST 2015).
//
// A block is in the sample if a hash of its number is below a threshold: all its accesses then are, and reuse distances
// among sampled blocks are the true ones times the rate. Most accesses end at the hash, which is vector code.
// With a fixed size the rate falls whenever the sample has more blocks than it may: the ones with the highest hashes
// leave. Every sampled access counts 1 / rate of its time.
//
// The number of accesses N is known exactly, so the sum of weights W can be corrected: sampled blocks are split by other hash bits
// into kParts random parts with misses m and weights w each, and the estimate is (Σ m + b · (N - W)) / N, b being how
// m goes with w over the parts (a regression estimate). Where a few hot blocks that always hit make W differ from N, b is near 0
// (the paper's adjustment); where all blocks are alike, it is near the miss ratio. What is left of m's spread over the
// parts gives the standard error. A distance of d blocks is estimated from about rate · d blocks, hence its relative
// error sqrt((1 - rate) / (rate · d)). `low` and `high` allow two of each.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "reuse.h"

namespace memlens::locality {

struct CurvePoint {
  uint64_t cache_blocks = 0;
  double miss_ratio = 0, error = 0;  // standard error of the ratio at this size
  double low = 0, high = 0;          // with the error of distances as well: about 95 %
};

class Shards {
 public:
  static constexpr unsigned kParts = 64;
  // `rate` in (0, 1]; `most_blocks` 0: the rate is kept.
  explicit Shards(double rate, uint64_t most_blocks = 0, uint64_t block_bytes = 64);

  void add(std::span<const uint64_t> addresses);
  std::vector<CurvePoint> curve(std::span<const uint64_t> cache_blocks) const;

  double rate() const { return static_cast<double>(threshold_) / 4294967296.0; }
  uint64_t accesses() const { return accesses_; }
  uint64_t sampled() const { return sampled_; }
  uint64_t blocks() const { return reuse_.blocks(); }  // in the sample now
  double distinct_blocks() const { return static_cast<double>(reuse_.blocks()) / rate(); }
  uint64_t memory_bytes() const { return reuse_.memory_bytes() + histogram_.size() * sizeof(Parts); }

 private:
  using Parts = std::array<double, kParts>;
  static constexpr unsigned kSubShift = 7;  // bins of a factor of two: 0.8 % wide
  static unsigned bin_of(double distance);
  static double begin_of(unsigned bin);
  void take(const uint64_t* blocks, size_t count);
  void shrink();
  void misses_at(double cache_blocks, Parts& parts) const;
  std::pair<double, double> estimate(double cache_blocks) const;  // miss ratio, standard error

  unsigned shift_;
  uint64_t threshold_, most_blocks_, accesses_ = 0, sampled_ = 0;
  Reuse reuse_;
  std::vector<Parts> histogram_;
  Parts first_{}, weights_{};
  std::vector<uint64_t> chosen_;
  std::vector<uint32_t> distances_;
};

// 32 well-mixed bits of a block number.
uint32_t sample_hash(uint64_t block);

}  // namespace memlens::locality
