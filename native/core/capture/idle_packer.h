// Compresses payloads in a thread that runs only while a CPU is idle (SCHED_IDLE): the program that is being recorded
// does not wait for it. Nothing else waits for it either: no lock is shared, and results are asked for.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace memlens::capture {

class IdlePacker {
 public:
  static constexpr size_t MOST = 16;  // payloads that are given and not taken

  explicit IdlePacker(int level);  // the thread starts with the first payload
  // What was given must live until it is taken; what is_working() leaves behind here, until the process ends.
  ~IdlePacker();
  IdlePacker(const IdlePacker&) = delete;
  IdlePacker& operator=(const IdlePacker&) = delete;

  // False: it has as many as it takes, or no thread.
  bool give(std::span<const unsigned char> payload);
  bool is_working() const;
  // The oldest that was given, once it is done; `packed` is empty if it cannot be made smaller.
  bool take(std::vector<unsigned char>* packed);

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace memlens::capture
