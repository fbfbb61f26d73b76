/* The channel between the library inside a profiled process (native/runtime) and the recorder
 * (native/recorder): one memory file that the recorder makes, with rings that processes write and
 * the recorder empties. Not part of a capture: both sides come from one build, and a version that
 * differs is refused.
 *
 * Layout: a header page, then `slot_max` slots of `slot_stride` bytes. A process claims a free slot,
 * which has one page of state and `ring_count` rings. A thread writes to one of its process's rings;
 * when there are more threads than rings they share, so a ring takes several writers and has one
 * reader. Only slots below `slots_published` have memory behind them (fallocate): touching one can
 * never raise SIGBUS.
 *
 * A ring record is `struct ml_ring_record`, then one record of records.def as a capture has it
 * (ids are the process's own; the recorder gives them the capture's). To write: move `head` by
 * compare-and-swap, fill in, then store `commit` with release order. The recorder reads commit words
 * in order, stops at a zero, and zeroes what it has taken before it moves `tail`. */
#ifndef MEMLENS_CHANNEL_H
#define MEMLENS_CHANNEL_H

#include <stdint.h>
#ifdef __cplusplus
#include <atomic>
#define ML_ATOMIC(type) std::atomic<type>
#define ML_ALIGNED(bytes) alignas(bytes)
#else
#include <stdatomic.h>
#define ML_ATOMIC(type) _Atomic(type)
#define ML_ALIGNED(bytes) _Alignas(bytes)
#endif

#define ML_CHANNEL_MAGIC UINT64_C(0x4c454e4e4148434d) /* "MCHANNEL" in memory order */
#define ML_CHANNEL_VERSION 2
#define ML_CHANNEL_HEADER_BYTES 4096
#define ML_CHANNEL_SLOT_HEADER_BYTES 4096
#define ML_CHANNEL_MAX_RINGS 16
#define ML_CHANNEL_MAX_SLOTS 2048
#define ML_CHANNEL_MAX_RING_BYTES (UINT64_C(1) << 32)
#define ML_RING_COMMITTED UINT32_C(0x80000000)
#define ML_RING_MAX_RECORD 32768 /* with its header */

enum ml_channel_flags { ML_CHANNEL_ALLOC = 1, ML_CHANNEL_ANNOTATIONS = 2 };
enum ml_claim { ML_CLAIM_FREE = 0, ML_CLAIM_TAKEN = 1, ML_CLAIM_LEAVING = 2 };

/* An emulated process has two slots: its own library's and the emulator's. */
enum ml_channel_writer { ML_CHANNEL_WRITER_LIBRARY = 0, ML_CHANNEL_WRITER_EMULATOR = 1 };

struct ml_channel_header {
  uint64_t magic;
  uint32_t version;
  uint32_t recorder_pid;
  uint64_t token[2]; /* random: proves that a path leads to this channel */
  uint64_t file_bytes;
  uint64_t slot_stride;
  uint64_t ring_bytes; /* a power of two */
  uint32_t slot_max;
  uint32_t ring_count;   /* of a slot */
  uint64_t sample_bytes; /* 0 = record every object */
  uint64_t large_bytes;
  uint32_t flags;   /* enum ml_channel_flags */
  uint32_t wait_ms; /* how long a writer waits for a reader that makes no progress */
  uint64_t recorder_pid_namespace;
  uint32_t budget_ppm; /* of a thread's time, what recording its objects may cost; 0 = whatever it costs */
  uint32_t reserved;
  ML_ATOMIC(uint32_t) slots_published;
  ML_ATOMIC(uint32_t) closed;   /* 1: nobody reads any more */
  ML_ATOMIC(uint32_t) wake;     /* futex: a writer wants the recorder to come */
  ML_ATOMIC(uint32_t) refused;  /* processes that found no slot */
  ML_ATOMIC(uint32_t) left_out; /* programs that were started without the library, which they could not load */
  /* A bit for each slot that is free: whoever clears it may claim that slot. The slot's own state decides. */
  ML_ATOMIC(uint64_t) free_slots[ML_CHANNEL_MAX_SLOTS / 64];
};

struct ml_channel_ring {
  ML_ALIGNED(64) ML_ATOMIC(uint64_t) head;
  ML_ALIGNED(64) ML_ATOMIC(uint64_t) tail;
};

struct ml_channel_slot {
  ML_ATOMIC(uint32_t) state; /* enum ml_claim */
  uint32_t pid;              /* in the process's own PID namespace */
  uint64_t pid_namespace;
  uint64_t claimed_ns;
  ML_ATOMIC(uint64_t) dropped, nested, untracked, waits, waited_ns, stacks;
  uint64_t own_bytes;
  ML_ATOMIC(uint32_t) flags; /* enum runtime_flags of memlens_format.h */
  uint32_t writer;           /* enum ml_channel_writer */
  struct ml_channel_ring rings[ML_CHANNEL_MAX_RINGS];
};

struct ml_ring_record {
  ML_ATOMIC(uint32_t) commit; /* bytes of header and record, padded to 8, with ML_RING_COMMITTED; 0 = not there yet */
  uint16_t kind;              /* enum ml_kind, 0 = padding to the end of the ring */
  uint16_t reserved;
};

/* The recorder names the channel in this variable: TOKEN0:TOKEN1:PATH, the tokens in hexadecimal. */
#define ML_CHANNEL_VARIABLE "MEMLENS_CHANNEL"

#endif
