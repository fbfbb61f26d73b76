// What page faults say about objects.
//
// A page counts as touched in an object if a fault or a placed run (memory that the kernel
// filled inside a system call, known to have come between two looks) fell into the object's
// life; as recycled if not, but it was touched before in the same mapping: the object got
// memory that was in use already; as never touched otherwise. Only pages that lie wholly
// inside an object count as recycled or never touched.
//
// An object that continues another one (realloc, mremap, a part that munmap left) takes the history of its pages
// along: what was touched in the old one counts as touched in the new one.
//
// "Never touched" needs evidence for every page: it is known for private anonymous memory only. Of files and shared
// memory one fault maps up to 16 pages, and other processes fill them (`never_known`); `touched_known` is 0 where such a
// fault was met. Memory that was mapped with MAP_POPULATE or MAP_LOCKED has all its pages. A page that only a child
// of a fork touched is neither touched nor never touched in its parent's object: the child used the object.
//
// Where faults were sampled, a recorded fault stands for `weight` faults: touched pages are an estimate with an error
// (`touched_error_pages`, half of a 95 % interval). What was never touched is not known of objects that lived then or later: their
// memory may have been touched, and given back, by faults that were not recorded.
//
// Who touched an object first: the faults whose address lies in it. A fault by a child of a
// fork says nothing about its parent's objects.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace memlens::objects {

struct TouchInput {
  // Faults, one row each.
  std::span<const uint32_t> process, thread, code;
  std::span<const uint64_t> time_ns, address, span_bytes, new_bytes;
  std::span<const uint8_t> mapped_around;  // the kernel may have mapped pages around it too (content of a file)
  std::span<const double> weight;          // faults that it stands for
  uint64_t sampled_from_ns = UINT64_MAX;   // the first time from which not every fault was recorded
  // Placed runs.
  std::span<const uint32_t> placed_process;
  std::span<const uint64_t> placed_begin_ns, placed_end_ns, placed_address, placed_bytes;
};

// One row for each object.
struct TouchColumns {
  static constexpr uint64_t kNotCounted = UINT64_MAX;  // no whole page inside
  std::vector<uint64_t> touched_pages, recycled_pages, never_pages;
  std::vector<uint64_t> touched_error_pages, first_touch_ns, top_thread_bytes;
  std::vector<uint32_t> faults, first_touch_thread, first_touch_code;
  std::vector<uint8_t> touching_threads, has_touch, never_known, touched_known;
};

}  // namespace memlens::objects
