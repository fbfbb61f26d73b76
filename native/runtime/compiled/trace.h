/* Traces of a thread: which accesses are recorded, and how they become records. Shared by trace*.c only.
 *
 * Accesses of a thread have numbers, from 0 in the order of execution, constants included. A trace is in one of four states:
 *
 *   gap        thread variable: left = start - number of the next access, limit = 0
 *   buffering  left = 0: segments write their words between `words + base` and limit; their content is processed when room ends
 *   suspended  a window is open, but the thread is outside the regions asked for, or the words were just looked at
 *   parked     outside the regions asked for: left = ML_TRACE_IDLE, `parked_left` is what it was
 *
 * While the runtime works on a trace (busy), the thread variable is that of a thread that records nothing; what a signal handler
 * executes meanwhile is subtracted from ML_TRACE_IDLE, which gives the amount. */
#ifndef MEMLENS_COUNT_TRACE_H
#define MEMLENS_COUNT_TRACE_H

#include "count.h"
#include "memlens_channel.h"
#include "memlens_format.h"
#include "memlens_segments.h"
#include "memlens_trace.h"

#define ML_TRACE_RAW_WORDS 8192u
#define ML_TRACE_SLACK_WORDS 4u /* that a masked gather may write behind its last, or that are read together with it */
#define ML_TRACE_STREAM_BYTES (ML_RING_MAX_RECORD - sizeof(struct ml_ring_record) - sizeof(struct ml_window) - 8)

#define ML_TRACE_NAME_BYTES (ML_TRACE_STREAM_BYTES / 3)
#define ML_TRACE_WORDS_AT (ML_TRACE_NAME_BYTES + ML_SEGMENTS_FRONT_BYTES)

struct ml_trace_settings {
  uint64_t window, period, seed; /* of a full trace `window` is UINT64_MAX */
  /* executed accesses without a recorded one after which a window ends: it is in code that has nothing but constants */
  uint64_t patience;
  bool full, loads_only, wait, stacks, selects_regions, selects_functions;
  bool has_vectors; /* of 32 bytes */
};
extern struct ml_trace_settings ml_trace_settings;
extern const struct ml_services *ml_trace_services;

struct ml_trace_facts { /* of the moment at which a record's first access was near */
  uint64_t begin_ns;
  uint32_t stack, region;
  uint16_t cpu;
};

struct ml_trace {
  struct ml_thread *thread;
  uint64_t executed; /* number of the access that the next word looked at belongs to; stale in a gap */
  uint64_t start;    /* number at which the window begins that is waited for */
  uint64_t cell;     /* period in which it was drawn */
  uint64_t random;
  uint64_t told; /* of `executed`, to the process's total */
  uint64_t goal; /* accesses that the open window still records */
  uint64_t last; /* number behind its last recorded access */
  uint64_t parked_left;
  bool active, busy, open, buffering, parked, has_facts, found_torn;
  uint32_t words_each; /* words that an access takes, times 256 */
  uint32_t base;       /* first of `words` in use: behind a torn segment, whose writer may not be done */
  /* the record that is being made */
  uint64_t first; /* number of its first access */
  uint64_t recorded;
  struct ml_segments_at at;
  struct ml_trace_facts facts;
  /* records that found no room, not told yet */
  uint64_t lost, lost_records, lost_first, lost_executed, lost_begin_ns, lost_end_ns;
  uint32_t region_node, region_string; /* the last name asked for */
  uint32_t region_generation;
  uint32_t image_string, image_generation; /* names the program image in windows */
  const void *caller;                      /* of the runtime, the last time: where stacks begin */
  uint32_t node;                           /* that the thread was in then */
  struct ml_segments segments;
  unsigned char names[ML_TRACE_NAME_BYTES];
  /* of words, from ML_TRACE_WORDS_AT on; names come in front of them when the record ends */
  unsigned char bytes[ML_TRACE_STREAM_BYTES];
  uint64_t words[ML_TRACE_RAW_WORDS + ML_TRACE_SLACK_WORDS];
};

/* trace.c: whether the site is one of those that --functions names */
bool ml_trace_is_asked_for(uint64_t site);

/* trace_windows.c */
void ml_trace_begin(struct ml_trace *trace); /* a thread's first access comes */
void ml_trace_facts_now(struct ml_trace *trace);
void ml_trace_consume(struct ml_trace *trace, const uint64_t *until); /* what segments wrote */
void ml_trace_tell(struct ml_trace *trace); /* adds what was executed to the process's total */
void ml_trace_cut(struct ml_trace *trace);  /* the record ends here, the window goes on at ml_trace_resume */
void ml_trace_resume(struct ml_trace *trace);
void ml_trace_close(struct ml_trace *trace);                  /* the window ends here */
void ml_trace_finish(struct ml_trace *trace);                 /* the thread ends: what is open, and the total */
uint64_t ml_trace_words_wanted(const struct ml_trace *trace); /* that a window can need at least */

#endif
