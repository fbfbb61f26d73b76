// Joins the accesses of windows with objects and code, and estimates totals from them.
//
// A unit is one window; a window that was written as several records is one unit of several parts. The
// unit's n accesses (recorded, or implied by those) stand for the e that were executed from its start to the next one's, so a
// count x in it stands for y = x · e / n. The estimate of a total is T = Σ y. Its standard error takes
// the unit as the sampling unit (accesses in one window are alike, so windows vary), with the ratio
// R = T / Σ e known to spread evenly over what was executed:
//
//   s² = (1 − f) · m / (m − 1) · Σ (y − R · e)²,   f = Σ n / Σ e,   m units;  0 when everything was recorded.
//
// Σ (y − R e)² = Σ y² − 2 R Σ y e + R² Σ e², so each total keeps three sums and one pass is enough.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "memlens_format.h"
#include "objects/object_table.h"
#include "packed.h"
#include "replay/code_index.h"
#include "window_walk.h"

namespace memlens::trace {

struct Estimate {
  double sum = 0, sum_squares = 0, sum_by_executed = 0;
  void add(double y, double e) {
    sum += y;
    sum_squares += y * y;
    sum_by_executed += y * e;
  }
};

// Of an object group, a function, or both.
struct Traffic {
  uint32_t group = 0, function = 0;
  uint64_t recorded = 0;  // accesses that were seen
  uint64_t units = 0;     // windows that have any
  Estimate loads, stores, load_bytes, store_bytes, accesses, bytes;
};

// Of one instruction.
struct CodeTraffic {
  uint32_t code = 0;
  uint64_t recorded = 0, units = 0;
  Estimate accesses, bytes, split, narrow, narrow_sequential;
};

struct JoinTotals {
  uint64_t units = 0, recorded = 0, executed = 0;
  uint64_t covered = 0;  // recorded, and those inside windows that streams leave out
  double executed_squares = 0;
  uint64_t damaged_windows = 0, damaged_executed = 0;
  uint64_t without_code = 0;  // accesses of site_delta streams whose sites nobody tells of
};

// What the sites of traces mean, by number from a window's first on: `operation` as in streams, `bytes` 0 = the stream tells.
struct SiteFacts {
  std::vector<uint32_t> code, bytes;
  std::vector<uint8_t> operation;
};
// Where the sites of a window's image lie in SiteFacts: site number s is entry `first` + s − `number`, if that is below `end`.
struct SiteRange {
  uint32_t first = 0, end = 0;
  uint64_t number = 0;
};

class AccessJoin {
 public:
  static constexpr unsigned kLineBytes = 64;
  static constexpr uint32_t kNarrowBytes = 2;
  static constexpr uint32_t kLeftOut = UINT32_MAX;  // group or function whose accesses are in no row

  // `group_of_object`: by object id, entry 0 for no object. `function_of_code`: by code, the last for code that is not known.
  AccessJoin(const objects::ObjectTable& objects, const replay::CodeIndex& codes, std::vector<uint32_t> group_of_object,
             std::vector<uint32_t> function_of_code);

  // By unit: what it stands for, and how many records it has.
  void set_units(std::vector<uint64_t> executed, std::vector<uint32_t> parts);
  void set_sites(SiteFacts facts, std::vector<SiteRange> ranges);
  // The windows of a chunk; `units` and `images` (number of the window's SiteRange) have one entry for each record.
  void add(uint32_t process, std::span<const unsigned char> payload, std::span<const uint32_t> units,
           std::span<const uint32_t> images);
  // The same of windows that are decoded already: their records without streams, which of them are damaged, and their accesses.
  void add_decoded(uint32_t process, std::span<const ml_window> windows, std::span<const uint8_t> damaged,
                   std::span<const Packed> batches, std::span<const uint32_t> units, std::span<const uint32_t> images);
  void finish();

  const std::vector<Traffic>& by_pair() const { return pairs_; }
  const std::vector<Traffic>& by_group() const { return groups_; }
  const std::vector<Traffic>& by_function() const { return functions_; }
  const std::vector<CodeTraffic>& by_code() const { return codes_; }
  const JoinTotals& totals() const { return totals_; }
  double standard_error(const Estimate& estimate) const;

 private:
  struct Counts {
    uint64_t key = 0;  // group << 32 | code
    uint64_t loads = 0, stores = 0, load_bytes = 0, store_bytes = 0;
    uint64_t accesses = 0, split = 0, narrow = 0, narrow_sequential = 0;
  };
  struct Unit {
    uint32_t parts_left = 0;
    uint64_t recorded = 0, covered = 0, damaged_parts = 0;
    std::vector<Counts> counts;
    std::unordered_map<uint64_t, uint32_t> index;
  };
  // What one instruction did last: most of its next accesses are to the same object.
  struct Recent {
    uint64_t pc = 0, window = 0;  // number of the window, 0 = none
    uint64_t base = 0, bytes = 0, until_ns = 0;
    uint64_t last_address[2] = {0, 0};  // of loads, of stores: x86 does both in one instruction
    uint32_t last_bytes[2] = {0, 0};
    uint32_t code = 0, id = 0, group = 0, counts = 0;
    bool has_counts = false;
  };
  Unit* begin_record(uint32_t row, std::span<const uint32_t> units);
  void end_record(const ml_window& window, uint32_t number, Unit& unit, bool is_sound);
  const SiteRange* sites_of(uint32_t row, std::span<const uint32_t> images) const;
  void take(uint32_t process, Unit& unit, const Part& part, const SiteRange* sites);
  void flush(uint32_t number, Unit& unit);
  template <typename Row, typename Key>
  static Row& row_of(std::vector<Row>& rows, std::unordered_map<Key, uint32_t>& index, Key key);

  const objects::ObjectTable& objects_;
  const replay::CodeIndex& code_index_;
  std::vector<uint32_t> group_of_object_, function_of_code_;
  SiteFacts site_facts_;
  std::vector<SiteRange> site_ranges_;
  std::vector<uint64_t> unit_executed_;
  std::vector<uint32_t> unit_parts_;
  std::unordered_map<uint32_t, Unit> open_;
  std::vector<Traffic> pairs_, groups_, functions_;
  std::vector<CodeTraffic> codes_;
  std::unordered_map<uint64_t, uint32_t> pair_index_;
  std::unordered_map<uint32_t, uint32_t> group_index_, function_index_, code_rows_;
  JoinTotals totals_;
  WindowWalker walker_;
  std::vector<Recent> recent_;
  uint64_t windows_ = 0;
  bool has_tags_ = false;
  // Of one part.
  std::vector<uint64_t> times_, asked_addresses_, asked_times_;
  std::vector<uint32_t> ids_, asked_, found_;
};

}  // namespace memlens::trace
