// Footprint of accesses by group and class (MemGaze, sections IV and V), in one pass.
//
//   A        accesses that are not constant        A_const   those that are (recorded, or implied by a window)
//   F        unique addresses; all constants of a group together are one
//   F_str    unique addresses of strided accesses, F_irr of irregular ones; one that both touch is in both
//   C, S     addresses of F (without the constants' one) that were accessed again, and that were not; F = C + S (+ 1)
//   kappa    1 + A_const / A, so that kappa · A = A + A_const (Eq. 2)
//   growth   F / (kappa · A) (Eq. 4)
//
// Bytes and lines (64 B) that accesses touch are counted as well, constants left out. All of that over everything that
// was recorded, and F also window by window. An entry of the table is one line of one group: a bit for each address
// that it has, in one cache line of ours. A filter in front of it remembers what
// can change nothing any more because it was seen twice: `Settled`.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kernels.h"
#include "named_list.h"
#include "settled.h"
#include "summaries.h"

namespace memlens::locality {

// clang-format off
#define MEMLENS_ACCESS_CLASSES(X) \
  X(kUnknown, "unknown") X(kConstant, "constant") X(kStrided, "strided") X(kIrregular, "irregular")
// clang-format on
enum class AccessClass : uint8_t { MEMLENS_ACCESS_CLASSES(MEMLENS_LIST_VALUE) };
inline constexpr const char* kAccessClassNames[] = {MEMLENS_ACCESS_CLASSES(MEMLENS_LIST_NAME)};

struct FootprintRow {
  uint64_t accesses = 0;  // without constants
  uint64_t constants = 0;
  uint64_t accesses_strided = 0, accesses_irregular = 0;  // unknown is counted as irregular
  uint64_t addresses = 0, addresses_strided = 0, addresses_irregular = 0;
  uint64_t again = 0;  // addresses that were accessed more than once
  uint64_t bytes = 0, lines = 0;
  // Of windows: F, F_str and F_irr over kappa · A; F's own sums give its mean.
  Ratio growth, growth_strided, growth_irregular;
  Ratio constant;   // A_const over kappa · A
  Ratio irregular;  // F_irr over F_str + F_irr

  uint64_t footprint() const { return addresses + (constants > 0); }
};

class Footprint {
 public:
  static constexpr unsigned kLineShift = 6;
  // Without `windows` nothing is kept window by window: a trace that is whole has only one.
  explicit Footprint(bool windows = true, uint64_t memory_limit_bytes = std::numeric_limits<uint64_t>::max());

  // `bytes` may be empty (1 each), `groups` too (all of group 0), `classes` too (all irregular).
  void add(std::span<const uint64_t> addresses, std::span<const uint32_t> bytes, std::span<const uint8_t> classes,
           std::span<const uint32_t> groups);
  // Constant accesses that a stream leaves out.
  void add_implied_constants(uint32_t group, uint64_t count);
  void end_window();
  // Figures of all groups so far.
  std::vector<FootprintRow> rows() const;
  // Adds what another one saw. Windows must have ended in both.
  void merge(const Footprint& other);

  uint64_t lines() const { return live_; }
  uint64_t memory_bytes() const { return table_.capacity() * sizeof(Entry) + settled_.bytes(); }

 private:
  static constexpr size_t kBatch = 64;
  static constexpr uint32_t kNone = 0xFFFFFFFF;
  struct alignas(64) Entry {
    uint64_t line = 0;
    uint32_t group = kNone, window = 0;
    uint64_t seen[2] = {0, 0};  // addresses by strided and by irregular accesses
    uint64_t again = 0, touched = 0;
    uint64_t seen_now[2] = {0, 0};  // in the window `window`
  };
  struct Counts {
    uint64_t by_class[4] = {0, 0, 0, 0};
    uint64_t constants_of_window = 0, accesses_of_window = 0;
    uint64_t seen = 0, seen_by[2] = {0, 0};  // addresses of the window: all, by strided and by irregular accesses
    bool is_open = false;
  };
  struct Columns {
    const uint64_t* addresses;
    const uint32_t* bytes;
    const uint8_t* classes;
    const uint32_t* groups;
    size_t count;
  };
  template <bool kWindows, bool kGroups>
  MEMLENS_INLINE void batches(const Columns& columns);
  MEMLENS_INLINE void choose(const Columns& columns);
#if MEMLENS_HAS_FAST
  void run_fast(const Columns& columns);
#endif
  MEMLENS_INLINE Entry& find(uint64_t line, uint32_t group, uint64_t place);
  void touch_further(uint64_t line, uint32_t group, uint64_t bytes);
  MEMLENS_INLINE void note_window(Entry& entry, unsigned irregular, uint64_t bit, Counts& counts);
  void open_group(uint32_t group);
  void grow();
  static uint64_t place_of(uint64_t line, uint32_t group) { return scatter_all(line ^ uint64_t{group} << 40); }

  MEMLENS_INLINE bool take(uint64_t address, uint32_t width, unsigned irregular, uint32_t group);

  Settled settled_;
  bool by_window_;
  uint64_t limit_;
  LargeVector<Entry> table_;
  uint64_t mask_, live_ = 0;
  uint32_t window_ = 1;
  std::vector<Counts> counts_;
  std::vector<uint32_t> open_groups_;
  struct Sums {
    Ratio all, strided, irregular, constant, irregular_share;
  };
  std::vector<Sums> sums_;
};

}  // namespace memlens::locality
