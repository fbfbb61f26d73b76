// Distances and intervals summed up by group (function, object, …), with what an error between windows needs.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "reuse.h"

namespace memlens::locality {

// A ratio Y / X over windows: windows are what was drawn, so its error comes from how they differ.
//   s = sqrt(m / (m - 1) · Σ (e_i - e_(i-1))² / 2) / X,   e = y - R x,   R = Y / X,   m windows with x > 0
// One window is drawn in each period, so slow changes of the program are in every sample alike and are no error:
// neighbours are compared (successive differences), not each with the mean. Where neighbours have nothing to do with
// each other both are the same.
// Of a share (y between 0 and x) the spread of the drawn windows does not show bursts that were not drawn: a phase of 1 % of the run that none or one of
// 150 windows hits may have most of y. So the greatest three windows bound what the others may hide: of k windows beyond a size, Poisson's limit says how
// many there may be in the run, up to whole windows of y (rare_high) or of the rest (rare_low).
struct Ratio {
  uint64_t windows = 0;
  double x = 0, y = 0;

  // Adds what another thread's windows have: its neighbours stay its own.
  void merge(const Ratio& other) {
    windows += other.windows;
    for (const double one : other.most_) keep(most_, one);
    for (const double one : other.most_rest_) keep(most_rest_, one);
    room_ = std::max(room_, other.room_);
    is_fixed_ = is_fixed_ && other.is_fixed_;
    pairs_ += other.pairs_;
    x += other.x, y += other.y, xx_ += other.xx_, xy_ += other.xy_, yy_ += other.yy_;
  }
  void add(double window_x, double window_y) { add(window_x, window_y, window_x); }
  // room: the most that y, or the rest, could be in such a window, where x itself is not fixed by the window's length.
  void add(double window_x, double window_y, double room) {
    room_ = std::max(room_, room);
    is_fixed_ = is_fixed_ && room <= window_x;
    if (window_x == 0 && window_y == 0) return;
    if (windows++ > 0) {
      const double dx = window_x - last_x_, dy = window_y - last_y_;
      ++pairs_;
      xx_ += dx * dx;
      xy_ += dx * dy;
      yy_ += dy * dy;
    }
    keep(most_, window_y);
    keep(most_rest_, window_x - window_y);
    last_x_ = window_x, last_y_ = window_y;
    x += window_x;
    y += window_y;
  }
  // The greatest and the least share that windows which were not drawn leave possible.
  double rare_high() const {
    if (x <= 0) return 0;
    const double more = hidden(most_);
    return std::min(1.0, (y + more) / (is_fixed_ ? x : x + more));
  }
  double rare_low() const {
    if (x <= 0) return 1;
    const double more = hidden(most_rest_);
    return std::max(0.0, is_fixed_ ? (y - more) / x : y / (x + more));
  }
  double value() const { return x > 0 ? y / x : std::numeric_limits<double>::quiet_NaN(); }
  double error() const {
    if (pairs_ == 0 || x <= 0) return std::numeric_limits<double>::quiet_NaN();
    const double r = y / x, m = static_cast<double>(windows);
    const double squares = yy_ - 2 * r * xy_ + r * r * xx_;
    return std::sqrt(std::max(0.0, squares) / (2 * static_cast<double>(pairs_)) * m) / x;
  }

 private:
  static void keep(std::array<double, 3>& most, double value) {
    for (double& one : most)
      if (value > one) std::swap(one, value);
  }
  // k windows or fewer are drawn with a chance of 2.5 % where the mean is k + kBeyond[k] (Poisson).
  double hidden(const std::array<double, 3>& most) const {
    constexpr std::array<double, 3> kBeyond = {3.689, 4.572, 5.225};
    double more = kBeyond[0] * std::max(0.0, room_ - most[0]);
    for (size_t k = 1; k < most.size(); ++k) more += kBeyond[k] * (most[k - 1] - most[k]);
    return more;
  }

  std::array<double, 3> most_{}, most_rest_{};  // the greatest y and x - y of a window, greatest first
  double room_ = 0;
  bool is_fixed_ = true;
  uint64_t pairs_ = 0;
  double xx_ = 0, xy_ = 0, yy_ = 0, last_x_ = 0, last_y_ = 0;
};

// Bin 0 holds 0; bin k holds 2^(k-1) ≤ value < 2^k.
constexpr unsigned bin_of(uint64_t value) { return static_cast<unsigned>(std::bit_width(value)); }

struct Spread {
  static constexpr unsigned kBins = 48;  // up to 2^47, later ones in the last
  uint64_t count = 0, sum = 0, least = std::numeric_limits<uint64_t>::max(), most = 0;
  std::array<uint64_t, kBins> bins{};
  void add(uint64_t value) {
    ++count;
    sum += value;
    least = std::min(least, value);
    most = std::max(most, value);
    ++bins[std::min(bin_of(value), kBins - 1)];
  }
  void merge(const Spread& other) {
    count += other.count;
    sum += other.sum;
    least = std::min(least, other.least);
    most = std::max(most, other.most);
    for (unsigned i = 0; i < kBins; ++i) bins[i] += other.bins[i];
  }
};

struct ReuseRow {
  uint64_t accesses = 0;
  uint64_t first = 0;    // the block's first access of all
  uint64_t earlier = 0;  // the block was last seen in an earlier window: its distance cannot be observed
  Spread distance, interval;
  Ratio mean_distance;  // distance over reuses
  Ratio new_blocks;     // accesses that are their window's first to a block, over accesses
};

class ReuseSummary {
 public:
  // `groups` may be empty: all belongs to group 0.
  void add(std::span<const uint32_t> distances, std::span<const uint64_t> intervals, std::span<const uint32_t> groups);
  void end_window();
  void merge(const ReuseSummary& other);
  const std::vector<ReuseRow>& rows() const { return rows_; }

 private:
  struct Open {
    uint64_t accesses = 0, reuses = 0, distance = 0;
  };
  ReuseRow& row(uint32_t group);
  std::vector<ReuseRow> rows_;
  std::vector<Open> open_;
  std::vector<uint32_t> touched_;
};

// The miss ratio of a fully associative LRU cache of every size, from exact distances.
class MissCurve {
 public:
  void add(std::span<const uint32_t> distances);
  void merge(const MissCurve& other);
  // Misses of caches of so many blocks. Accesses without a known distance are misses in `misses`; those last seen in
  // an earlier window may be hits, so the truth lies between misses - earlier() and misses.
  std::vector<uint64_t> misses(std::span<const uint64_t> cache_blocks) const;
  uint64_t accesses() const { return accesses_; }
  uint64_t first() const { return first_; }
  uint64_t earlier() const { return earlier_; }
  uint64_t greatest() const { return counts_.empty() ? 0 : counts_.size() - 1; }

 private:
  LargeVector<uint64_t> counts_;  // by distance
  uint64_t accesses_ = 0, first_ = 0, earlier_ = 0;
};

}  // namespace memlens::locality
