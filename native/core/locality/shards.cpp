#include "shards.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace memlens::locality {

namespace {

constexpr size_t kPart = 1024;

// Multiplications of 32 bits only: there is a vector instruction for those.
MEMLENS_INLINE uint32_t mixed(uint64_t block) {
  uint32_t x = static_cast<uint32_t>(block) ^ static_cast<uint32_t>(block >> 32) * 0x85ebca6bu;
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  x ^= x >> 16;
  return x;
}

// Which of up to kPart accesses are in the sample: their places, and how many.
MEMLENS_INLINE size_t filter(const uint64_t* addresses, size_t count, unsigned shift, uint64_t threshold,
                             uint32_t* hashes, uint32_t* places) {
  for (size_t i = 0; i < count; ++i) hashes[i] = mixed(addresses[i] >> shift);
  const uint32_t last = static_cast<uint32_t>(threshold - 1);
  size_t found = 0;
  for (size_t i = 0; i < count; i += 16) {
    if (i + 16 <= count) {
      uint32_t any = 0;
      for (size_t k = 0; k < 16; ++k) any |= static_cast<uint32_t>(hashes[i + k] <= last);
      if (any == 0) continue;  // most often: a hundredth of the blocks is sampled
    }
    for (size_t k = i; k < std::min(i + 16, count); ++k) {
      places[found] = static_cast<uint32_t>(k);
      found += hashes[k] <= last;
    }
  }
  return found;
}

#if MEMLENS_HAS_FAST
MEMLENS_FAST size_t filter_fast(const uint64_t* addresses, size_t count, unsigned shift, uint64_t threshold,
                                uint32_t* hashes, uint32_t* places) {
  return filter(addresses, count, shift, threshold, hashes, places);
}
#endif

size_t choose(const uint64_t* addresses, size_t count, unsigned shift, uint64_t threshold, uint32_t* hashes,
              uint32_t* places) {
#if MEMLENS_HAS_FAST
  if (has_fast()) return filter_fast(addresses, count, shift, threshold, hashes, places);
#endif
  return filter(addresses, count, shift, threshold, hashes, places);
}

// Independent of the bits that decide about the sample.
unsigned part_of(uint64_t block) { return static_cast<unsigned>(block * 0x9E3779B97F4A7C15u >> 58); }

}  // namespace

uint32_t sample_hash(uint64_t block) { return mixed(block); }

Shards::Shards(double rate, uint64_t most_blocks, uint64_t block_bytes)
    : shift_(shift_of(block_bytes)), most_blocks_(most_blocks), reuse_(1) {
  if (!(rate > 0) || rate > 1) throw std::invalid_argument("a sampling rate is above 0 and at most 1");
  threshold_ = std::max<uint64_t>(1, static_cast<uint64_t>(std::llround(rate * 4294967296.0)));
}

unsigned Shards::bin_of(double distance) {
  const double exact = 1u << kSubShift;
  if (distance < exact) return static_cast<unsigned>(distance);
  const int octave = std::ilogb(distance) - static_cast<int>(kSubShift);
  const unsigned within = static_cast<unsigned>(std::ldexp(distance, -octave)) - (1u << kSubShift);
  return (1u << kSubShift) + (static_cast<unsigned>(octave) << kSubShift) + within;
}

double Shards::begin_of(unsigned bin) {
  if (bin < 1u << kSubShift) return bin;
  const unsigned octave = (bin >> kSubShift) - 1, within = bin & ((1u << kSubShift) - 1);
  return std::ldexp(static_cast<double>((1u << kSubShift) + within), static_cast<int>(octave));
}

void Shards::add(std::span<const uint64_t> addresses) {
  uint32_t hashes[kPart], places[kPart + 16];
  accesses_ += addresses.size();
  for (size_t done = 0; done < addresses.size(); done += kPart) {
    const size_t part = std::min(addresses.size() - done, kPart);
    const size_t found = choose(addresses.data() + done, part, shift_, threshold_, hashes, places);
    if (found == 0) continue;
    chosen_.resize(found);
    for (size_t i = 0; i < found; ++i) chosen_[i] = addresses[done + places[i]] >> shift_;
    take(chosen_.data(), found);
  }
}

void Shards::take(const uint64_t* blocks, size_t count) {
  distances_.resize(count);
  reuse_.add_blocks({blocks, count}, distances_);
  const double weight = 1 / rate();
  for (size_t i = 0; i < count; ++i) {
    const unsigned part = part_of(blocks[i]);
    weights_[part] += weight;
    if (distances_[i] >= kEarlier) {
      first_[part] += weight;
      continue;
    }
    const unsigned bin = bin_of(static_cast<double>(distances_[i]) * weight);
    if (bin >= histogram_.size()) histogram_.resize(bin + 1);
    histogram_[bin][part] += weight;
  }
  sampled_ += count;
  if (most_blocks_ != 0 && reuse_.blocks() > most_blocks_) shrink();
}

void Shards::shrink() {
  // An eighth leaves at a time, so that looking at all of them is rare.
  std::vector<uint32_t> hashes;
  hashes.reserve(reuse_.blocks());
  reuse_.each_block([&](uint64_t block) { hashes.push_back(mixed(block)); });
  const size_t keep = most_blocks_ - most_blocks_ / 8;
  std::nth_element(hashes.begin(), hashes.begin() + static_cast<ptrdiff_t>(keep), hashes.end());
  threshold_ = std::max<uint64_t>(1, hashes[keep]);
  reuse_.retain([&](uint64_t block) { return mixed(block) < threshold_; });
}

void Shards::misses_at(double cache_blocks, Parts& parts) const {
  parts = first_;
  for (size_t bin = histogram_.size(); bin-- > 0;) {
    const double begin = begin_of(static_cast<unsigned>(bin)), end = begin_of(static_cast<unsigned>(bin) + 1);
    if (end <= cache_blocks) break;
    // The bin that the size cuts counts in proportion.
    const double share = begin >= cache_blocks ? 1 : (end - cache_blocks) / (end - begin);
    for (unsigned p = 0; p < kParts; ++p) parts[p] += share * histogram_[bin][p];
  }
}

std::pair<double, double> Shards::estimate(double cache_blocks) const {
  const double total = static_cast<double>(accesses_);
  if (total == 0) return {0, 0};
  Parts parts;
  misses_at(cache_blocks, parts);
  double misses = 0, weights = 0;
  for (unsigned p = 0; p < kParts; ++p) misses += parts[p], weights += weights_[p];
  double both = 0, of_weights = 0;
  for (unsigned p = 0; p < kParts; ++p) {
    const double w = weights_[p] - weights / kParts;
    both += w * (parts[p] - misses / kParts);
    of_weights += w * w;
  }
  const double slope = of_weights > 0 ? std::clamp(both / of_weights, 0.0, 1.0) : 0.0;
  double squares = 0;
  for (unsigned p = 0; p < kParts; ++p) {
    const double left = parts[p] - misses / kParts - slope * (weights_[p] - weights / kParts);
    squares += left * left;
  }
  const double error = std::sqrt((1 - rate()) * kParts / (kParts - 2.0) * squares) / total;
  return {std::clamp((misses + slope * (total - weights)) / total, 0.0, 1.0), error};
}

std::vector<CurvePoint> Shards::curve(std::span<const uint64_t> cache_blocks) const {
  std::vector<CurvePoint> points;
  const double r = rate();
  for (const uint64_t size : cache_blocks) {
    CurvePoint point;
    point.cache_blocks = size;
    const double d = std::max<double>(1, static_cast<double>(size));
    const double spread = 2 * std::sqrt((1 - r) / (r * d));
    std::tie(point.miss_ratio, point.error) = estimate(static_cast<double>(size));
    const double above = estimate(d * (1 + spread)).first, below = spread >= 1 ? 1.0 : estimate(d * (1 - spread)).first;
    point.low = std::max(0.0, std::min(above, point.miss_ratio) - 2 * point.error);
    point.high = std::min(1.0, std::max(below, point.miss_ratio) + 2 * point.error);
    points.push_back(point);
  }
  return points;
}

}  // namespace memlens::locality
