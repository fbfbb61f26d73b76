// Lines that several threads use and at least one writes: who, which bytes, and whether they use the same bytes.
//
//   true sharing   a byte that one thread writes is used by another one as well
//   false sharing  the threads use different bytes of the line, and one of them writes
//
// A hand-over is what a coherent cache pays for: a thread reads a line that another one has written since its own last use of it, or writes
// to a line that another one used last. A reader that follows other readers finds its copy: no hand-over. It needs accesses in the order of time;
// the rest does not.
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
  bool is_false() const { return common_mask == 0; }
};

class Sharing {
 public:
  explicit Sharing(uint64_t line_bytes = 64);
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
    uint64_t version = 0;  // of the line, when the thread last used it
  };
  struct Line {
    uint64_t number = 0;
    uint64_t version = 0;  // writes so far
    uint32_t first_use = 0xFFFFFFFF, last_thread = 0, last_writer = 0xFFFFFFFF, first_hand_over = 0xFFFFFFFF;
  };
  struct HandOverLink {
    uint32_t low, high, next;
    uint64_t times;
  };
  uint32_t line_of(uint64_t number);
  Use& use_of(Line& line, uint32_t thread);
  void hand_over(Line& line, uint32_t from, uint32_t to);
  void take(uint64_t number, uint64_t mask, bool is_store, uint32_t thread);

  unsigned shift_, bit_shift_;
  std::vector<uint32_t> index_;  // number of the line + 1, 0 = empty
  std::vector<Line> lines_;
  std::vector<Use> uses_;
  std::vector<HandOverLink> hand_overs_;
};

}  // namespace memlens::locality
