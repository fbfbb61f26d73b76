// The footprint table that MemGaze's own analyser prints, by its own rules, for comparing with it.
//
// Its tree is not quite the paper's. Constants leave the trace: how many there were goes with the next access, or with
// the last one of the sample before. A sample is cut into leaves of 8 accesses; two neighbours make a node, a last one without a
// neighbour makes a node alone, and so on up to the sample, and in the same way from samples up to the root. A row of
// the table is the mean over all nodes of which the size, constants included, is above 2^(level - 1) and at
// most 2^level; nodes of up to 8 are level 3. An address that several classes touch counts for each by its share of the accesses.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace memlens::locality {

enum class MemgazeClass : uint8_t { kConstant = 0, kStrided = 1, kIrregular = 2, kUnknown = 3, kOther = 4 };

struct MemgazeLevel {
  uint32_t level = 0;
  uint64_t nodes = 0;
  bool is_scaled = false;  // the last node of the level, in its order, is a sample or more
  double window = 0, footprint = 0, strided = 0, irregular = 0, unknown = 0, constants = 0;  // sums over nodes
};

struct MemgazeTable {
  std::vector<MemgazeLevel> levels;
  uint64_t samples = 0, accesses = 0, loads = 0;  // loads: with constants
  double multiplier = 1;
};

// `samples` are the trace's own numbers: MemGaze joins a sample with the number 0 to the one after it.
MemgazeTable memgaze_table(std::span<const uint64_t> addresses, std::span<const uint8_t> classes,
                           std::span<const uint32_t> implied, std::span<const uint64_t> samples, uint64_t period);

}  // namespace memlens::locality
