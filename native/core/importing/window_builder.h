// Turns the accesses of other tools' traces into window records, as a collector would have written them.
//
// A ThreadWindows takes the accesses of one thread in their order; a ChunkSink gathers the records of each process
// into payloads of a few megabytes. Memory is bounded by the number of threads, never by the length of a trace.
// Knows the delta stream (format/memlens_stream.h), not where accesses come from and not how files are written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "memlens_format.h"
#include "memlens_stream.h"

namespace memlens::importing {

// Accesses in a record: enough that its fixed part and the fresh state of its stream cost nothing.
inline constexpr uint32_t kWindowAccesses = 1 << 16;
inline constexpr size_t kChunkBytes = 4u << 20;

// Window records of one process, ready to be appended to a record file.
struct ImportedChunk {
  uint32_t process = 0;
  uint32_t records = 0;
  uint64_t begin_ns = 0;
  uint64_t end_ns = 0;
  std::vector<unsigned char> payload;
};

class ChunkSink {
 public:
  explicit ChunkSink(size_t chunk_bytes = kChunkBytes) : chunk_bytes_(chunk_bytes) {}

  void add(uint32_t process, const ml_window& window, std::span<const unsigned char> stream);
  // Ends the chunks that are not full.
  void flush();
  // Full chunks since the last call.
  std::vector<ImportedChunk> take();

  uint64_t windows() const { return windows_; }
  uint64_t accesses() const { return accesses_; }
  uint64_t stream_bytes() const { return stream_bytes_; }
  uint64_t first_ns() const { return windows_ == 0 ? 0 : first_ns_; }
  uint64_t last_ns() const { return last_ns_; }

 private:
  size_t chunk_bytes_;
  std::map<uint32_t, ImportedChunk> open_;
  std::vector<ImportedChunk> done_;
  uint64_t windows_ = 0, accesses_ = 0, stream_bytes_ = 0, first_ns_ = UINT64_MAX, last_ns_ = 0;
};

class ThreadWindows {
 public:
  ThreadWindows(ChunkSink& sink, uint32_t process, uint32_t thread, uint32_t window_accesses = kWindowAccesses);
  ThreadWindows(ThreadWindows&&) = default;

  void add(uint64_t time_ns, uint64_t pc, uint64_t address, uint32_t bytes, unsigned operation) {
    if (recorded_ == window_accesses_) [[unlikely]]
      end_window();
    if (recorded_ == 0) [[unlikely]]
      begin_window(time_ns);
    if (room_end_ - at_ < static_cast<ptrdiff_t>(ML_STREAM_MAX_ACCESS)) [[unlikely]]
      grow();
    at_ = ml_stream_add_pc(state_.get(), at_, pc, address, bytes, operation);
    ++recorded_;
    end_ns_ = time_ns;
  }
  // Constant accesses that were executed with the last one and that the trace leaves out.
  void imply(uint64_t constants) { implied_ += constants; }
  void set_cpu(uint16_t cpu) { cpu_ = cpu; }

  // Ends the window: the next access follows without a gap.
  void end_window() { write(implied_ + recorded_, 0); }
  // Ends a window that was sampled: it stands for `period` executed accesses, and the next begins `distance` after it.
  void end_sample(uint64_t period, uint64_t distance);
  // The next access is the thread's `first`th; a place that is behind us changes nothing.
  void skip_to(uint64_t first) {
    if (recorded_ == 0 && first > first_executed_) first_executed_ = sample_first_ = first;
  }
  // Something is missing between this window and the next; nobody knows how many accesses, so one stands for all.
  void gap();

  // Ends the window and gives the memory back until the next access.
  void release();

  uint32_t recorded() const { return recorded_; }
  uint64_t executed() const { return first_executed_ + recorded_ + implied_; }

 private:
  void begin_window(uint64_t time_ns);
  void write(uint64_t executed, uint64_t period);
  void grow();

  ChunkSink* sink_;
  uint32_t process_, thread_, window_accesses_;
  uint32_t recorded_ = 0;
  uint16_t cpu_ = 0;
  uint64_t implied_ = 0, begin_ns_ = 0, end_ns_ = 0;
  uint64_t first_executed_ = 0, sample_first_ = 0;
  std::unique_ptr<ml_stream> state_;
  std::unique_ptr<unsigned char[]> buffer_;  // grows: a trace may have a hundred thousand threads of few accesses
  unsigned char *at_ = nullptr, *room_end_ = nullptr;
};

}  // namespace memlens::importing
