// Accesses that a program wrote with Intel's ptwrite instruction into a Processor Trace: the value is the address, the
// address packet behind it (where the trace has them) is the instruction.
//
// A stream is what one buffer of the kernel held: of a thread, or of a CPU, whose threads are then given by a list of
// context switches. Pieces of a stream come in order; after a piece that does not follow the one before, after an
// overflow, after bytes that are not a packet, and where tracing was off, a new window begins.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "pt_packets.h"
#include "window_builder.h"

namespace memlens::importing {

// How readings of the cycle counter become the times of perf's other records (perf_event_mmap_page), and how the
// crystal clock that kMtc counts relates to it. Zeros: not known.
struct PtClock {
  uint64_t time_zero = 0;
  uint32_t time_mult = 0;
  uint16_t time_shift = 0;
  uint32_t tsc_ticks = 0, ctc_ticks = 0;  // tsc_ticks cycles are ctc_ticks of the crystal clock
  uint8_t mtc_shift = 0;                  // a kMtc comes each 2^mtc_shift of those

  uint64_t ns(uint64_t tsc) const;
};

class PtWriteImport {
 public:
  // Accesses that were lost, between two times of one stream.
  struct Loss {
    uint64_t begin_ns, end_ns;
    uint32_t cpu;
  };
  struct Thread {
    uint32_t process, thread;
    uint64_t first_ns, last_ns, accesses;
  };
  struct Counts {
    uint64_t packets = 0, writes = 0, without_ip = 0, overflows = 0, damaged = 0, breaks = 0, switched_off = 0;
    uint64_t skipped_bytes = 0;   // before the first PSB, and after damage up to the next
    uint64_t left_bytes = 0;      // of packets that a stream's end cut
    uint64_t unknown_thread = 0;  // accesses of a CPU before it is known which thread runs
    uint64_t without_time = 0;    // accesses before a stream's first time stamp
  };

  PtWriteImport(ChunkSink& sink, const PtClock& clock) : sink_(&sink), clock_(clock) {}

  // A stream of one thread, or of a CPU whose thread is not known yet (process 0).
  void begin_stream(uint32_t cpu, uint32_t process, uint32_t thread);
  // From `time_ns` on, this thread runs on the stream's CPU; in order of time, before any feed of the stream.
  void add_switch(uint64_t time_ns, uint32_t process, uint32_t thread) {
    switches_.push_back({time_ns, process, thread});
  }
  bool feed(std::span<const unsigned char> block);
  // The next block does not follow the last one; `lost`: because the kernel had no room.
  void break_stream(bool lost);
  void end_stream();

  const Counts& counts() const { return counts_; }
  std::vector<Thread> threads() const;
  // Losses whose end is known, since the last call.
  std::vector<Loss> take_losses();

 private:
  struct Switch {
    uint64_t time_ns;
    uint32_t process, thread;
  };
  struct State {
    State(ChunkSink& sink, uint32_t process, uint32_t thread) : windows(sink, process, thread) {}
    ThreadWindows windows;
    uint64_t first_ns = 0, last_ns = 0, accesses = 0;
  };
  void take(const PtPacket& packet);
  void take_time(uint64_t tsc);
  void take_mtc(uint64_t count);
  void write(uint64_t address, uint64_t pc);
  void flush_pending();
  void gap();
  void lose();
  void follow_switches();

  ChunkSink* sink_;
  PtClock clock_;
  std::map<std::pair<uint32_t, uint32_t>, State> threads_;
  State* thread_ = nullptr;
  std::vector<State*> threads_of_stream_;  // that wrote in this stream
  static constexpr size_t kOpenThreads = 1024;
  uint32_t cpu_ = 0, process_ = 0, thread_id_ = 0;
  std::vector<Switch> switches_;
  size_t next_switch_ = 0;
  std::vector<unsigned char> rest_;
  bool in_step_ = false, has_time_ = false, has_tma_ = false;
  PtBlockState block_;
  PtLastIp last_ip_;
  std::optional<uint64_t> pending_;  // written, its address packet follows
  std::optional<size_t> open_loss_;  // the loss whose end is the next time
  uint64_t tsc_ = 0, now_ns_ = 0;
  uint64_t tma_tsc_ = 0, ctc_ = 0, mtc_ = 0;
  Counts counts_;
  std::vector<Loss> losses_;
};

}  // namespace memlens::importing
