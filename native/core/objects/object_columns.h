// Objects of a capture as columns, in the order of their birth; object `id` is row id - 1. `number` counts all objects that were
// ever made, from 1: it is the id as long as none was forgotten (ObjectTable).
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "large_vector.h"
#include "named_list.h"

namespace memlens::objects {

// clang-format off
#define MEMLENS_OBJECT_KINDS(X) \
  X(heap, "heap") X(mmap, "mmap") X(brk, "brk") X(tag, "tag") X(stack, "stack") X(file, "file") \
  X(memlens, "memlens") X(variable, "static") X(thread_local_variable, "tls") X(reserved, "reserved")
// clang-format on
enum class Kind : uint8_t { MEMLENS_OBJECT_KINDS(MEMLENS_LIST_VALUE) };
inline constexpr const char* kKindNames[] = {MEMLENS_OBJECT_KINDS(MEMLENS_LIST_NAME)};
inline constexpr size_t kKinds = std::size(kKindNames);

// Beside enum ml_allocation_flags, which take the low bits.
inline constexpr uint8_t kPiece = 0x80;  // what a partial munmap left of an older object
inline constexpr uint8_t kCut = 0x40;    // ended because a part of it was unmapped; pieces may follow

inline constexpr uint32_t kNoSite = UINT32_MAX;

// What an event reads of an object lies side by side: 1.4 cache lines instead of one for each value. Columns go to NumPy as they are,
// with steps of a row.
struct Row {
  uint64_t base = 0, bytes = 0, born_ns = 0, died_ns = 0 /* 0 = alive at the end */, weight_bytes = 0;
  uint32_t site = kNoSite, number = 0, thread = 0, death_thread = 0;
  uint8_t kind = 0, operation = 0, alignment_shift = 0, flags = 0, protection = 0;
  uint32_t process = 0, stack = 0, previous = 0, name = 0, map_flags = 0;
};

template <typename T, T Row::* Member>
class Column {
 public:
  using Value = T;
  explicit Column(LargeVector<Row>& rows) : rows_(rows) {}
  const T& operator[](size_t row) const { return rows_[row].*Member; }
  T& operator[](size_t row) { return rows_[row].*Member; }
  size_t size() const { return rows_.size(); }

 private:
  LargeVector<Row>& rows_;
};

struct Columns {
  Columns() = default;
  Columns(const Columns&) = delete;
  Columns& operator=(const Columns&) = delete;

  LargeVector<Row> rows;
  Column<uint64_t, &Row::base> base{rows};
  Column<uint64_t, &Row::bytes> bytes{rows};
  Column<uint64_t, &Row::born_ns> born_ns{rows};
  Column<uint64_t, &Row::died_ns> died_ns{rows};
  Column<uint64_t, &Row::weight_bytes> weight_bytes{rows};
  Column<uint32_t, &Row::site> site{rows};
  Column<uint32_t, &Row::number> number{rows};
  Column<uint32_t, &Row::thread> thread{rows};
  Column<uint32_t, &Row::death_thread> death_thread{rows};
  Column<uint8_t, &Row::kind> kind{rows};
  Column<uint8_t, &Row::operation> operation{rows};
  Column<uint8_t, &Row::alignment_shift> alignment_shift{rows};
  Column<uint8_t, &Row::flags> flags{rows};
  Column<uint8_t, &Row::protection> protection{rows};
  Column<uint32_t, &Row::process> process{rows};
  Column<uint32_t, &Row::stack> stack{rows};
  Column<uint32_t, &Row::previous> previous{rows};
  Column<uint32_t, &Row::name> name{rows};
  Column<uint32_t, &Row::map_flags> map_flags{rows};

  size_t size() const { return rows.size(); }

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
