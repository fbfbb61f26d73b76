// Lines that several threads use and at least one writes: who, which bytes, and whether they use the same bytes.
//
//   true sharing   hand-overs of the line pass data: a thread uses a byte that another one wrote
//   false sharing  hand-overs pass none: the threads use different bytes of the line, and one of them writes
//
// A hand-over is what a coherent cache pays for: a thread reads a line that another one has written since its own last use of it, or writes
// to a line that another one used last. A reader that follows other readers finds its copy: no hand-over. A hand-over is useful (essential in
// Dubois et al., The detection and elimination of useless misses, 1993) if the thread uses, before it hands the line on, a byte that another one wrote
// since the thread's last useful hand-over; a write to a line that others have only read since is useful if they read a byte of it that it writes.
// Hand-overs need accesses in the order of time; the rest does not.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels.h"

namespace memlens::locality {

struct SharedPair {
  uint64_t line = 0;  // address of its first byte
  uint32_t thread = 0, other = 0;
  uint64_t reads = 0, writes = 0, other_reads = 0, other_writes = 0;
  // Bytes of the line, bit by bit (a bit stands for line_bytes / 64 bytes in longer lines).
  uint64_t read_mask = 0, write_mask = 0, other_read_mask = 0, other_write_mask = 0;
  uint64_t common_mask = 0;  // written by one and used by the other
  uint64_t hand_overs = 0;   // between the two
  uint64_t useful = 0;       // of those: that pass data
};

class Sharing {
 public:
  // Throws MemoryLimit when the lines that were used need more than `memory_limit_bytes`: one access may claim gigabytes.
  explicit Sharing(uint64_t line_bytes = 64, uint64_t memory_limit_bytes = uint64_t{2} << 30);
  // Accesses of any threads in the order of time; numbers of threads are the caller's.
  void add(std::span<const uint64_t> addresses, std::span<const uint32_t> bytes, std::span<const uint8_t> is_store,
           std::span<const uint32_t> threads);
  // Pairs of threads by line, most hand-overs first.
  std::vector<SharedPair> pairs() const;
  uint64_t lines() const { return lines_.size(); }

 private:
  struct Use {
    uint32_t thread = 0, next = 0xFFFFFFFF;  // of the same line
    uint64_t reads = 0, writes = 0, read_mask = 0, write_mask = 0;
    uint64_t version = 0;      // of the line, when the thread last used it
    uint64_t unseen_mask = 0;  // bytes that others wrote since the thread's last useful hand-over
    // the last one that brought the line to the thread, until it is known to be useful
    uint32_t hand_over = 0xFFFFFFFF;
  };
  struct Line {
    uint64_t number = 0;
    uint64_t version = 0;    // writes so far
    uint64_t read_mask = 0;  // bytes that other threads read since the last write
    uint32_t first_use = 0xFFFFFFFF, last_thread = 0, last_writer = 0xFFFFFFFF, first_hand_over = 0xFFFFFFFF;
  };
  struct HandOverLink {
    uint32_t low, high, next;
    uint64_t times, useful;
  };
  uint64_t memory_bytes() const;
  uint32_t line_of(uint64_t number);
  Use& use_of(Line& line, uint32_t thread);
  uint32_t hand_over(Line& line, uint32_t from, uint32_t to);
  void take(uint64_t number, uint64_t mask, bool is_store, uint32_t thread);

  unsigned shift_, bit_shift_;
  uint64_t limit_;
  std::vector<uint32_t> index_;  // number of the line + 1, 0 = empty
  std::vector<Line> lines_;
  std::vector<Use> uses_;
  std::vector<HandOverLink> hand_overs_;
};

}  // namespace memlens::locality
