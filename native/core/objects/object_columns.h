// All objects of a capture as columns, in the order of their birth; object `id` is row id - 1.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "large_vector.h"

namespace memlens::objects {

enum class Kind : uint8_t { heap, mmap, brk, tag, stack, file, memlens, variable, thread_local_variable, reserved };
inline constexpr const char* kKindNames[] = {"heap", "mmap",    "brk",    "tag", "stack",
                                             "file", "memlens", "static", "tls", "reserved"};

// Beside enum ml_allocation_flags, which take the low bits.
inline constexpr uint8_t kPiece = 0x80;  // what a partial munmap left of an older object
inline constexpr uint8_t kCut = 0x40;    // ended because a part of it was unmapped; pieces may follow

inline constexpr uint32_t kNoSite = UINT32_MAX;

// Rows of 77 bytes; apart from them, so that one column goes to NumPy as it is.
struct Columns {
  LargeVector<uint64_t> base, bytes, born_ns, died_ns /* 0 = alive at the end */, weight_bytes;
  LargeVector<uint32_t> process, thread, death_thread, stack, previous, name, map_flags, site;
  LargeVector<uint8_t> kind, operation, alignment_shift, flags, protection;

  size_t size() const { return base.size(); }

  template <typename Visit>
  void each(Visit&& visit) {
    visit(base), visit(bytes), visit(born_ns), visit(died_ns), visit(weight_bytes);
    visit(process), visit(thread), visit(death_thread), visit(stack), visit(previous), visit(name), visit(map_flags);
    visit(site), visit(kind), visit(operation), visit(alignment_shift), visit(flags), visit(protection);
  }

  // A sampled object stands for more than itself.
  uint64_t weighted_bytes(uint32_t id) const {
    return weight_bytes[id - 1] != 0 ? weight_bytes[id - 1] : bytes[id - 1];
  }
  // The chance with which the object was picked.
  double chance(uint32_t id) const {
    const uint64_t weight = weight_bytes[id - 1];
    if (weight == 0) return 1.0;
    return std::min(1.0, static_cast<double>(bytes[id - 1] != 0 ? bytes[id - 1] : 1) / static_cast<double>(weight));
  }
  double weighted_count(uint32_t id) const {
    if (weight_bytes[id - 1] == 0) return 1.0;
    return static_cast<double>(weight_bytes[id - 1]) / static_cast<double>(bytes[id - 1] != 0 ? bytes[id - 1] : 1);
  }
};

}  // namespace memlens::objects
