// Accesses and reuse distances over address and time, in one pass and bounded memory.
//
// Rows are aligned ranges of 2^k bytes that were accessed, columns are equal parts of the time. When there would be more rows
// than allowed, ranges become twice as long and rows are added up: what is far apart stays apart.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "reuse.h"

namespace memlens::locality {

struct HeatCell {
  uint64_t accesses = 0, reuses = 0, distance_sum = 0;
};

class HeatMap {
 public:
  HeatMap(uint64_t begin_ns, uint64_t end_ns, uint32_t columns = 128, uint32_t most_rows = 1024,
          uint64_t row_bytes = 4096);
  // `distances` may be empty; ones that are not known count no reuse. Times outside go to the first or the last column.
  void add(std::span<const uint64_t> addresses, std::span<const uint64_t> times_ns,
           std::span<const uint32_t> distances);
  void merge(const HeatMap& other);

  uint64_t row_bytes() const { return uint64_t{1} << shift_; }
  uint32_t columns() const { return columns_; }
  const std::map<uint64_t, std::vector<HeatCell>>& rows() const { return rows_; }  // by address / row_bytes

 private:
  void coarsen();
  uint64_t begin_ns_, end_ns_;
  uint32_t columns_, most_rows_;
  unsigned shift_;
  std::map<uint64_t, std::vector<HeatCell>> rows_;
};

}  // namespace memlens::locality
