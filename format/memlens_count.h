/* Compile-time counting: what the compiler plugin (native/pass), the library inside a counted program
 * (native/runtime/compiled), the recorder and the reader agree on.
 *
 * 1. What compiled code does. One 64-bit add for each counter, at
 *
 *        __memlens_count_base + ml_count_function.offset_bytes + 8 * (number of the counter in its function)
 *
 *    The base is thread-local. It points at the counters of the region that the thread is in; entering and
 *    leaving a region replaces it. The offset is 0 until the runtime has given the module a place among all
 *    counters of the process, so code that runs before that, or without a recorder, counts into the first
 *    ML_COUNT_MAX_OF_FUNCTION words of a dump. Compiled code reads the base and the offset at a function's entry
 *    and again after every call that it does not know.
 *
 * 2. What a binary carries: for each counted function an ml_count_function in section `memlens_functions` (data) and
 *    a table in section `memlens_tables` (read-only), which tells what its counters mean. Both are in the group of
 *    the function, so the linker keeps or drops them together. The counters of a module are numbered by
 *    adding up `counters` in the order of the section: the file and the loaded module agree.
 *
 * 3. The arena: a sparse memory file of the recorder in which every counted process keeps its counters, so
 *    that they outlive it, however it ends, and can be read while it runs. */
#ifndef MEMLENS_COUNT_H
#define MEMLENS_COUNT_H

#include <stdint.h>

#include "memlens_lists.h"

/* ---- compiled code and runtime --------------------------------------------------------------------------- */
/* Changes when anything below or a symbol's meaning does. Objects name the symbol of their version: a program
 * whose objects or runtime differ does not link, and the linker prints this name. */
#define ML_COUNT_ABI 2
#define ML_COUNT_ABI_SYMBOL memlens_count_abi_2__all_objects_must_be_built_by_one_memlens_version

#define ML_COUNT_MAX_OF_FUNCTION 32768 /* counters; a function that needs more is not counted, and told */

/* Words that a base can be told to point at, whatever the recorder asks for: the dump of a thread that the runtime has not met
 * is part of the module. Words below ML_COUNT_MAX_OF_FUNCTION of every array belong to nobody: functions that are not
 * registered count there. */
#define ML_COUNT_WORDS_MAX (1u << 20)

struct ml_count_function {
  uint64_t offset_bytes; /* of its first counter behind the base; 0 until registered */
  int64_t table;         /* address of its table minus address of this member */
  uint32_t counters;
  uint32_t table_bytes;
  uint64_t first_site; /* of a trace (memlens_trace.h), in the numbering of the process; 0 until registered */
  uint32_t trace_sites;
  uint32_t reserved;
};

/* A region that is marked at compile time: one variable for each name and translation unit. */
struct ml_count_region {
  const char *name;
  uint64_t number; /* of the runtime: 0 = not asked for yet, but for ML_COUNT_REGION_ANY_FRAME */
};
/* The region may be begun by a function that returns before its end (memlens.h). Without it, begin and end are in one
 * function, and a region whose frame is gone is closed at the next switch. */
#define ML_COUNT_REGION_ANY_FRAME (UINT64_C(1) << 63)

/* Symbols, all of default visibility so that one definition serves the whole process:
 *   extern __thread uint64_t *__memlens_count_base;             initial-exec
 *   extern __thread uint64_t *__memlens_count_dump;     initial-exec: the base of this thread while an execution is not counted;
 *                                                       functions that are called through pointers run their untouched copy then
 *   int __memlens_count_enter(struct ml_count_region *);       always counts, but inside an untouched execution
 *   int __memlens_count_enter_sampled(struct ml_count_region *);   1: count this execution, 0: run the untouched copy;
 *                                         for code that has one. 0 also when nobody records
 *   void __memlens_count_leave(struct ml_count_region *);
 *   void __memlens_count_begin(const char *), __memlens_count_end(const char *);   the same for names that are not constant
 *   void __memlens_count_unwound(void);   after a landing pad: closes the regions of frames that are gone
 *   uint64_t __memlens_count_mark(void);  before a call that returns twice (setjmp)
 *   void __memlens_count_returned(uint64_t mark, int keep);   after it: closes the regions of frames that are gone, and those of the calling frame
 *                                         that were begun after the mark; with `keep` not those of memlens.h
 *   uint64_t __memlens_count_compared(a, b, bytes, result, unit, steps);   hidden, each module's own: bytes that a comparison with that result read on each
 *                                         side: up to the end of the first unit that differs. Or, of one that is done in steps: steps is pairs of
 *                                         uint32_t { end of the step, bytes read up to it }, the last end UINT32_MAX
 * Both enter and leave change the base of the calling thread. Code that was built for sampling by versions calls
 * enter_sampled and branches; an execution that is not counted leaves the base where the skipped counters of callees go. */

/* ---- tables (section memlens_tables): bytes; numbers are unsigned LEB128 unless marked s = signed LEB128 -----------
 *   version            ML_COUNT_TABLE_VERSION
 *   flags              enum ml_count_table_flags
 *   strings            n, then n × { bytes, that many characters }; string 0 is ""
 *   function           string: linkage name
 *   file, line         string, number: where it is defined, 0 = not known
 *   counters           n, then n × { enum ml_counter_kind }: n is that of ml_count_function
 *   groups             n, then n × { number of terms, that many × { counter, s scale } }
 *                      a group is a set of code that always runs equally often: Σ counter × scale times. A scale may be
 *                      negative: what enters a block leaves it, so a group may be what two counters leave between them.
 *                      Such a sum is right when the function is not running; while it is, it may be below zero
 *   scopes             n, then n × { string: linkage name, string: file, line, scope of the caller + 1 (0 = the
 *                      function itself), line of the call, column of the call }: inlined functions
 *   blocks             n, then n × { group, loop depth, line of its first instruction, and only with ML_TABLE_MIX the
 *                      numbers of: integer, floating-point, vector operations, branches, calls, prefetches,
 *                      floating-point results (each lane one) }
 *   sites              n, then n × { enum ml_site_kind, enum ml_site_flags, block, group, bytes, counter of its bytes + 1,
 *                      scope + 1 (0 = not inlined), string: file, line, column, string: callee }
 *   traced             only with ML_TABLE_TRACE: n, then n × { site, enum ml_trace_class, enum ml_trace_kind, s step in bytes, 1 = what
 *                      the site writes (of a copy) else 0, and only with ML_TABLE_TRACE_BYTES bytes of one recorded access
 *                      (of one lane; 0 = the stream tells), and only with ML_TABLE_TRACE_STAND_INS 1 + the recorded one of this table that is executed exactly
 *                      when this one is (0 = none is known) }: the first `trace_sites` are those that a trace records, in the order of their numbers; the rest are constants, which are implied.
 *                      With ML_TABLE_TRACE_STAND_INS a recorded one may be a constant too: a global variable, or one that stands for others
 *   loops              only with ML_TABLE_LOOPS (version 2): n, then n × { loop around it + 1 (0 = none; a smaller number than its own), scope + 1
 *                      (0 = not inlined), string: file, line, column: where the source begins it, 0 = not known }, then for each
 *                      site the innermost loop around it + 1 (0 = none). A loop of the source is one loop, however many the
 *                      compiler made of it (native/pass/source_loops.cpp)
 * A site's executions are those of its group. `bytes` is what one execution moves; of a site whose size is known only at
 * run time it is 0, and the counter named sums the bytes. A block without anything countable has group 0, which
 * has no terms, when the mix was not asked for. */
#define ML_COUNT_TABLE_VERSION 3
#define ML_COUNT_TABLE_OLDEST 1 /* still read: without loops */
/* Flags of a function that is not counted, each a reason. */
#define ML_TABLE_REFUSED (ML_TABLE_NAKED | ML_TABLE_RESOLVER | ML_TABLE_EXCLUDED | ML_TABLE_TOO_LARGE)
/* Callees of ML_SITE_CALL that are no names: no function can be called so. */
/* with an operand in memory, or that says that it changes memory */
#define ML_SITE_CALLEE_ASSEMBLY "(inline assembly)"
#define ML_SITE_CALLEE_FAR "(through a pointer)" /* a call through a pointer that leads out of the module */

/* ---- arena ----------------------------------------------------------------------------------------------------
 * A header page, a directory of ML_COUNT_ENTRIES entries, then what the entries point to, each a multiple of 4096
 * bytes at a multiple of 4096. A process claims an entry by adding to `entries`, room by adding to `next_byte`, fills both in,
 * and stores `kind` last (release): an entry of kind 0 below `entries` belongs to somebody who died or is not done. The file is sparse; what
 * was never written reads as zero and has no memory behind it. Nothing is ever given back to the file. */
#define ML_COUNT_VARIABLE "MEMLENS_COUNT" /* TOKEN0:TOKEN1:PATH, the tokens in hexadecimal, as ML_CHANNEL_VARIABLE */
#define ML_COUNT_MAGIC UINT64_C(0x544e554f434c454d) /* "MELCOUNT" in memory order */
#define ML_COUNT_VERSION 2
#define ML_COUNT_ENTRIES (1u << 20)
#define ML_COUNT_DIRECTORY_BYTE 4096
#define ML_COUNT_EVENTS 4

enum ml_count_sampling {
  ML_SAMPLE_ALL = 0, /* count every execution */
  /* count the first `sample_first` executions of a region, then every `sample_every`-th: aliases with periodic programs */
  ML_SAMPLE_EVERY = 1,
  ML_SAMPLE_RANDOM = 2, /* the same, but each later one with probability 1 / `sample_every`, from `seed` */
  ML_SAMPLE_BUDGET = 3, /* count as long as counting costs less than `budget_ppm` of the region's time */
};

/* Structs of the arena, from count_arena.def. */
#define ML_STRUCTS "count_arena.def"
#include "memlens_structs.h"

#define ML_COUNT_GROUPS_MAX 64u

enum ml_count_kind {
  ML_COUNT_PROCESS = 1,
  ML_COUNT_MODULE = 2,
  ML_COUNT_NODE = 3,
  ML_COUNT_PLACE = 4,
  ML_COUNT_GROUPS = 5
};

enum ml_count_entry_flags {
  ML_COUNT_ENDED = 1,        /* of a place: its thread has ended */
  ML_COUNT_UNATTRIBUTED = 2, /* of a place: the thread was started in a way that does not tell its region */
};

/* What every window adds to lies in the page of the process, in an ml_trace_share for each thread (those beyond the last share it). */
#define ML_TRACE_SHARES 48u
#define ML_TRACE_SHARES_BYTE 1024 /* behind the start of the process's content */

/* A node is a path of regions: a name below a parent. A region that is entered again while it is open (recursion) is counted for the
 * node that is open. Content of its entry: a page, the name, NUL-terminated, and at ML_COUNT_SPAN_BYTE a span. */

/* Of a span `inside` is one word, so that its begin and the number of threads change together. What executions outside of any span add to the time
 * is only known within bounds. */
#define ML_COUNT_SPAN_BYTE 4032 /* behind the longest name */

/* Random groups. With sampling at random an execution that is counted by chance counts in the arrays of one of `sample_groups` groups, drawn at random for the
 * outermost such execution; regions inside it and work that it hands to other threads count for the same group. The place itself keeps
 * executions that are counted in any case. How groups differ gives the error of an estimate, of any quantity and with nested regions. An entry of kind
 * ML_COUNT_GROUPS has for one thread and node `sample_groups` places one after another, each a page (entered, counted and counted_ticks are used) and
 * counters_max words, rounded up to whole pages. */
#define ML_COUNT_PLACE_COUNTERS 4096 /* bytes before the first counter */

#ifdef __cplusplus
static_assert(sizeof(ml_count_function) == 40 && sizeof(ml_count_region) == 16 && sizeof(ml_count_entry) == 64,
              "layout");
#else
_Static_assert(sizeof(struct ml_count_function) == 40 && sizeof(struct ml_count_region) == 16, "compiled code");
_Static_assert(sizeof(struct ml_count_process) <= ML_TRACE_SHARES_BYTE && sizeof(struct ml_trace_share) == 64 &&
                   ML_TRACE_SHARES_BYTE + ML_TRACE_SHARES * 64 <= 4096,
               "one page");
_Static_assert(sizeof(struct ml_count_entry) == 64 && sizeof(struct ml_count_place) <= ML_COUNT_PLACE_COUNTERS,
               "arena");
#endif

#endif
