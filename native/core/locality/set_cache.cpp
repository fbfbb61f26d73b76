// Geometry of one set-associative cache.
#include "set_cache.h"

#include <stdexcept>
#include <string>

namespace memlens::locality {

namespace {
uint64_t blocks_of(const LevelGeometry& geometry, uint64_t block_bytes) {
  const uint64_t blocks = geometry.bytes / block_bytes;
  if (blocks == 0 || geometry.bytes % block_bytes != 0)
    throw std::invalid_argument("a cache of " + std::to_string(geometry.bytes) +
                                " bytes does not hold whole blocks of " + std::to_string(block_bytes));
  if (geometry.ways != 0 && blocks % geometry.ways != 0)
    throw std::invalid_argument(std::to_string(blocks) + " blocks do not make sets of " +
                                std::to_string(geometry.ways));
  return blocks;
}
uint32_t ways_of(const LevelGeometry& geometry, uint64_t block_bytes) {
  return geometry.ways == 0 ? static_cast<uint32_t>(blocks_of(geometry, block_bytes)) : geometry.ways;
}
constexpr uint64_t kInOrder = 0xFEDCBA9876543210u;
}  // namespace

PackedSets::PackedSets(uint64_t sets, uint32_t ways, Policy policy)
    : n_sets_(sets),
      ways_(ways),
      stride_(ways <= 8 ? 8 : 16),
      set_bits_(static_cast<unsigned>(std::countr_zero(sets))),
      last_(4 * (ways - 1)),
      policy_(policy),
      is_power_of_two_(std::has_single_bit(sets)),
      lows_((sets * stride_ + 15) / 16),
      sets_(sets, Set{kInOrder}) {}

void PackedSets::note_high(uint32_t high) {
  if (!is_empty_ && !has_several_highs_) {
    has_several_highs_ = true;
    Line same;
    for (uint32_t& tag : same.tags) tag = high_;
    highs_.assign(lows_.size(), same);
  }
  if (is_empty_) high_ = high;
  is_empty_ = false;
}

OrderedSets::OrderedSets(uint64_t sets, uint32_t ways, Policy policy)
    : n_sets_(sets), ways_(ways), policy_(policy), entries_(sets * ways) {}

SetCache::SetCache(const LevelGeometry& geometry, uint64_t block_bytes)
    : SetCache(blocks_of(geometry, block_bytes) / ways_of(geometry, block_bytes), ways_of(geometry, block_bytes),
               geometry.policy) {}

SetCache::SetCache(uint64_t sets, uint32_t ways, Policy policy)
    : is_packed_(ways <= PackedSets::kMostWays),
      packed_(is_packed_ ? sets : 1, is_packed_ ? ways : 1, policy),
      ordered_(is_packed_ ? 1 : sets, is_packed_ ? 1 : ways, policy) {}

}  // namespace memlens::locality
