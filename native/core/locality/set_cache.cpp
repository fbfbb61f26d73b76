// One set-associative cache.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "caches.h"

namespace memlens::locality {

SetCache::SetCache(const LevelGeometry& geometry, uint64_t block_bytes) : policy_(geometry.policy) {
  const uint64_t blocks = geometry.bytes / block_bytes;
  if (blocks == 0 || geometry.bytes % block_bytes != 0)
    throw std::invalid_argument("a cache of " + std::to_string(geometry.bytes) + " bytes does not hold whole blocks of " +
                                std::to_string(block_bytes));
  ways_ = geometry.ways == 0 ? static_cast<uint32_t>(blocks) : geometry.ways;
  if (blocks % ways_ != 0)
    throw std::invalid_argument(std::to_string(blocks) + " blocks do not make sets of " + std::to_string(ways_));
  sets_ = blocks / ways_;
  is_power_of_two_ = std::has_single_bit(sets_);
  entries_.assign(blocks, 0);
}

}  // namespace memlens::locality
