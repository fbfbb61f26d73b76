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
#include <vector>

#include "reuse.h"

namespace memlens::locality {

// A ratio Y / X over windows: windows are what was drawn, so its error comes from how they differ.
//   s = sqrt(m / (m - 1) · Σ (e_i - e_(i-1))² / 2) / X,   e = y - R x,   R = Y / X,   m windows with x > 0
// One window is drawn in each period, so slow changes of the program are in every sample alike and are no error:
// neighbours are compared (successive differences), not each with the mean. Where neighbours have nothing to do with
// each other both are the same.
// Of a share (y between 0 and x), windows that all have none, or nothing else, do not differ, which is no proof that others have none: how many
// windows have some of it and some of the rest, and the most of either in a window, bound what was not drawn.
struct Ratio {
  uint64_t windows = 0;
  double x = 0, y = 0;
  uint64_t windows_with = 0, windows_without = 0;  // with y > 0, with y < x
  double most = 0, most_rest = 0;                   // of y, of x - y

  // Adds what another thread's windows have: its neighbours stay its own.
  void merge(const Ratio& other) {
    windows += other.windows;
    windows_with += other.windows_with;
    windows_without += other.windows_without;
    most = std::max(most, other.most);
    most_rest = std::max(most_rest, other.most_rest);
    pairs_ += other.pairs_;
    x += other.x, y += other.y, xx_ += other.xx_, xy_ += other.xy_, yy_ += other.yy_;
  }
  void add(double window_x, double window_y) {
    if (window_x == 0 && window_y == 0) return;
    if (windows++ > 0) {
      const double dx = window_x - last_x_, dy = window_y - last_y_;
      ++pairs_;
      xx_ += dx * dx;
      xy_ += dx * dy;
      yy_ += dy * dy;
    }
    windows_with += window_y > 0;
    windows_without += window_y < window_x;
    most = std::max(most, window_y);
    most_rest = std::max(most_rest, window_x - window_y);
    last_x_ = window_x, last_y_ = window_y;
    x += window_x;
    y += window_y;
  }
  // The greatest share that few windows with some of it leave possible (0 where there are more than a few), and the least that few without do.
  double rare_high() const { return rare(windows_with, most); }
  double rare_low() const { return 1 - rare(windows_without, most_rest); }
  double value() const { return x > 0 ? y / x : std::numeric_limits<double>::quiet_NaN(); }
  double error() const {
    if (pairs_ == 0 || x <= 0) return std::numeric_limits<double>::quiet_NaN();
    const double r = y / x, m = static_cast<double>(windows);
    const double squares = yy_ - 2 * r * xy_ + r * r * xx_;
    return std::sqrt(std::max(0.0, squares) / (2 * static_cast<double>(pairs_)) * m) / x;
  }

 private:
  // So many windows or fewer are drawn with a chance of 2.5 % where the mean is kLimits[n] (Poisson).
  double rare(uint64_t n, double most_of_window) const {
    constexpr double kLimits[] = {3.689, 5.572, 7.225};
    if (n >= std::size(kLimits) || x <= 0) return 0;
    return std::min(1.0, kLimits[n] * (n == 0 ? x / static_cast<double>(windows) : most_of_window) / x);
  }

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
