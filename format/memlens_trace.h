/* Compile-time tracing: what the compiler plugin (native/pass), the library inside a traced program (native/runtime/compiled),
 * the library that records (native/runtime) and the reader agree on.
 *
 * 1. What compiled code does. A segment is a run of accesses of one block that always execute together, up to
 *    the next call that may not return. At its end, with n = the accesses that it executes:
 *
 *        if (left >= n) left -= n;                        // the usual case: nothing of it is recorded
 *        else {                                           // out of line
 *          header = ml_trace_header(...) + function.first_site
 *          words = __memlens_trace.cursor
 *          if (words + 1 + W > __memlens_trace.limit) words = __memlens_trace_room(left, header);
 *          if (words) { __memlens_trace.cursor = words + 1 + W; words[0] = header; words[1..W] = addresses; }
 *          left = __memlens_trace.left;
 *        }
 *
 *    `left` is __memlens_trace.left, or a register that holds it inside a loop without such calls. While a window is open the
 *    thread's `left` is 0, so every segment comes by; between windows `limit` is 0, so the first one of a window calls
 *    the runtime. The cursor moves before the words are written: a signal handler that records too writes behind them.
 *    A loop whose number of accesses is known on entry takes them off at once, if so many are left, and runs without any of this;
 *    if fewer are left, it does so for as many of its iterations as fit, and again when a window has ended. A loop of which only the most accesses of
 *    one iteration are known compares that with what is left, and if it fits, takes off in one copy of its body what the iteration executes.
 *
 *    Accesses are numbered in the order of execution; the constants of a segment come after its recorded ones. Access number
 *    S = (number of the segment's first access) + left is the one at which a window was drawn to begin.
 *
 * 2. What a binary carries: `first_site` and `trace_sites` of ml_count_function, and the part `traced` of its table
 *    (memlens_count.h). A site of a trace is one address that a segment writes; sites of a module are numbered by
 *    adding up `trace_sites` in the order of the section; the runtime puts the modules of a process one after the other, from
 *    ML_TRACE_FIRST_SITE on. Smaller numbers are written by functions that are not registered: nobody knows which.
 *
 * 3. What a traced process writes: `window` records with encoding site_segments, through the library that records
 *    (memlens_services). */
#ifndef MEMLENS_TRACE_H
#define MEMLENS_TRACE_H

#include <stddef.h>
#include <stdint.h>

#include "memlens_lists.h"

/* Thread-local, initial-exec, default visibility: `extern __thread struct ml_trace_thread __memlens_trace`. */
struct ml_trace_thread {
  /* accesses before the one at which a window begins; 0 inside a window and before a thread is known */
  uint64_t left;
  uint64_t *cursor; /* where the next record goes */
  uint64_t *limit;  /* where room ends; 0 outside a window */
};

/* Room for the words of a segment that begins `left` accesses before the next window, or inside one. NULL: it is not recorded, and
 * __memlens_trace.left has its accesses already taken off. Calling convention: preserve_most on x86-64 and AArch64, C elsewhere; never
 * bound lazily, as that does not keep what preserve_most keeps: on these two machines compiled code calls __memlens_trace_room_near, a hidden
 * function of each module that jumps there.
 *   uint64_t *__memlens_trace_room(uint64_t left, uint64_t header); */

/* Where nobody records, a thread's `left` is this: about a day. Products of a trip count and the accesses of an iteration are compared
 * with it, so it is small enough that they do not overflow. */
#define ML_TRACE_IDLE (UINT64_C(1) << 47)

#define ML_TRACE_FIRST_SITE (1u << 16) /* a function has fewer trace_sites than this */

/* ---- words ----------------------------------------------------------------------------------------------------
 * A header, then W words. Bits of a header, from the lowest: */
#define ML_TRACE_SITE_BITS 32     /* site of the first word, in the numbering of the process */
#define ML_TRACE_WORDS_SHIFT 32   /* 5 bits: W */
#define ML_TRACE_IMPLIED_SHIFT 37 /* 11 bits: constants that the segment executes and does not record */
#define ML_TRACE_FORM_SHIFT 48    /* 2 bits: enum ml_trace_form */
/* 14 bits: bit i = word i (or pair i; for lanes bit 0) is a store and nothing else; atomics count as loads */
#define ML_TRACE_STORES_SHIFT 50
#define ML_TRACE_WORDS_MAX 14 /* of a segment in the form of words */
#define ML_TRACE_LANES_MAX 31 /* of a gather */
#define ML_TRACE_IMPLIED_MAX 2047
enum ml_trace_form {
  ML_TRACE_WORDS = 0, /* word i is an address of site + i */
  /* words 2i and 2i + 1 are an address and the number of bytes of site + i; no bytes: not an access after all */
  ML_TRACE_SIZED = 1,
  ML_TRACE_LANES = 2, /* every word is an address of the same site: the lanes of a gather that take part */
};

/* Accesses that a segment executes. */
static inline uint64_t ml_trace_executed(uint64_t header) {
  const uint64_t words = header >> ML_TRACE_WORDS_SHIFT & 31,
                 implied = header >> ML_TRACE_IMPLIED_SHIFT & ML_TRACE_IMPLIED_MAX;
  return (header >> ML_TRACE_FORM_SHIFT & 3) == ML_TRACE_SIZED ? words / 2 + implied : words + implied;
}

/* Classes of sites (part `traced` of a table): lists.def, trace_class and trace_kind. */

/* ---- settings ---------------------------------------------------------------------------------------------------------
 * The recorder tells them in this variable: NAME=VALUE separated by commas.
 *   window=W      accesses that a window records
 *   period=P      executed accesses from window to window, on average; P = W records everything
 *   loads=1       stores are executed but not recorded
 *   seed=N        of the random places of windows
 *   wait=1        a full ring is waited for; else the window is dropped and counted
 *   stacks=0      no call stacks
 *   functions=1   only sites that the arena's selection names; what else is executed counts in windows, and is not recorded
 *   regions=A\x1fB   only while a thread is in one of these regions; executed accesses are then counted only there */
#define ML_TRACE_VARIABLE "MEMLENS_TRACE"

/* ---- selection ---------------------------------------------------------------------------------------------------------
 * In the arena of memlens_count.h: for each module that the recorder knows one of these, behind it a bit for each site of the module in the
 * order of their numbers, the lowest first, and zeros up to a multiple of 8 bytes. */
struct ml_trace_selection {
  uint32_t build_id_bytes; /* 1 to 64 */
  uint32_t sites;
  uint8_t build_id[64];
};

/* ---- what the library that records does for others in the process --------------------------------------------------------
 * A symbol of default visibility of libmemlens: `const struct ml_services memlens_services`. Found by name. */
#define ML_SERVICES_VERSION 1
struct ml_services {
  uint32_t version, bytes; /* ML_SERVICES_VERSION, size of this struct */
  /* A record of records.def and its tail. 0: it is lost (and counted as a dropped record). Ids in it are those of this process. */
  int (*write)(unsigned kind, const void *record, size_t record_bytes, const void *tail, size_t tail_bytes, int wait);
  uint32_t (*string)(const char *text, size_t bytes); /* id of a text, 0 = none */
  /* Id of the call stack from the function on that `caller`, a return address of the stack, leads to; 0 = none. */
  uint32_t (*stack)(const void *caller);
  int (*is_recording)(void);
};

#ifdef __cplusplus
static_assert(sizeof(ml_trace_thread) == 24, "layout");
#else
_Static_assert(sizeof(struct ml_trace_thread) == 24, "compiled code");
#endif

#endif
