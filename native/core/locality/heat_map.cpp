#include "heat_map.h"

#include <algorithm>
#include <stdexcept>

namespace memlens::locality {

HeatMap::HeatMap(uint64_t begin_ns, uint64_t end_ns, uint32_t columns, uint32_t most_rows, uint64_t row_bytes)
    : begin_ns_(begin_ns),
      end_ns_(std::max(end_ns, begin_ns + 1)),
      columns_(columns),
      most_rows_(most_rows),
      shift_(shift_of(row_bytes)) {
  if (columns == 0 || most_rows == 0) throw std::invalid_argument("a heat map has rows and columns");
}

void HeatMap::coarsen() {
  while (rows_.size() > most_rows_ && shift_ < 63) {
    ++shift_;
    std::map<uint64_t, std::vector<HeatCell>> merged;
    for (auto& [row, cells] : rows_) {
      auto [at, is_new] = merged.try_emplace(row >> 1, std::move(cells));
      if (is_new) continue;
      for (uint32_t c = 0; c < columns_; ++c) {
        at->second[c].accesses += cells[c].accesses;
        at->second[c].reuses += cells[c].reuses;
        at->second[c].distance_sum += cells[c].distance_sum;
      }
    }
    rows_ = std::move(merged);
  }
}

void HeatMap::add(std::span<const uint64_t> addresses, std::span<const uint64_t> times_ns,
                  std::span<const uint32_t> distances) {
  if (times_ns.size() != addresses.size() || (!distances.empty() && distances.size() != addresses.size()))
    throw std::invalid_argument("the columns have one length");
  const double scale = static_cast<double>(columns_) / static_cast<double>(end_ns_ - begin_ns_);
  // Programs stay in a few ranges for a while: the map is asked only when this small table does not know the row.
  constexpr size_t kRecent = 256;
  struct Recent {
    uint64_t row = 0;
    HeatCell* cells = nullptr;
  };
  std::vector<Recent> recent(kRecent);
  for (size_t i = 0; i < addresses.size(); ++i) {
    const uint64_t row = addresses[i] >> shift_;
    Recent& known = recent[(row ^ row >> 8) % kRecent];
    if (known.cells == nullptr || known.row != row) {
      auto [at, is_new] = rows_.try_emplace(row);
      if (is_new) {
        at->second.resize(columns_);
        if (rows_.size() > most_rows_) {
          coarsen();
          std::fill(recent.begin(), recent.end(), Recent{});
          --i;  // once more, with longer rows
          continue;
        }
      }
      known = {row, at->second.data()};
    }
    const uint64_t since = times_ns[i] > begin_ns_ ? times_ns[i] - begin_ns_ : 0;
    const auto column = static_cast<uint32_t>(std::min<double>(static_cast<double>(since) * scale, columns_ - 1.0));
    HeatCell& cell = known.cells[column];
    ++cell.accesses;
    if (!distances.empty() && distances[i] < kEarlier) {
      ++cell.reuses;
      cell.distance_sum += distances[i];
    }
  }
}

void HeatMap::merge(const HeatMap& other) {
  if (other.columns_ != columns_ || other.begin_ns_ != begin_ns_ || other.end_ns_ != end_ns_)
    throw std::invalid_argument("heat maps of one time range are merged");
  const auto merge_row = [&](uint64_t row, const std::vector<HeatCell>& cells) {
    std::vector<HeatCell>& mine = rows_.try_emplace(row, columns_).first->second;
    for (uint32_t c = 0; c < columns_; ++c) {
      mine[c].accesses += cells[c].accesses;
      mine[c].reuses += cells[c].reuses;
      mine[c].distance_sum += cells[c].distance_sum;
    }
  };
  while (shift_ < other.shift_) {
    std::map<uint64_t, std::vector<HeatCell>> finer = std::move(rows_);
    rows_.clear();
    ++shift_;
    for (const auto& [row, cells] : finer) merge_row(row >> 1, cells);
  }
  for (const auto& [row, cells] : other.rows_) merge_row(row >> (shift_ - other.shift_), cells);
  coarsen();
}

}  // namespace memlens::locality
