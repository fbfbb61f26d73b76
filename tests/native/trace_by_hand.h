/* What the compiler plugin makes of a traced function, written by hand (format/memlens_trace.h). */
#ifndef TRACE_BY_HAND_H
#define TRACE_BY_HAND_H
#include "count_by_hand.h"
#include "memlens_trace.h"

extern __thread struct ml_trace_thread __memlens_trace __attribute__((tls_model("initial-exec")));
uint64_t *__memlens_trace_room(uint64_t left, uint64_t header);

#define TRACED(function, sites)                                                                                   \
  static const unsigned char function##_table[4] __attribute__((section("memlens_tables"), used)) = {1, 4, 0, 0}; \
  static struct ml_count_function function##_traced __attribute__((                                               \
      section("memlens_functions"), used, aligned(8))) = {0, 0, 0, sizeof function##_table, 0, sites, 0}

#define TRACE_HEADER(site, words, implied, form, stores)                                                          \
  ((uint64_t)(site) | (uint64_t)(words) << ML_TRACE_WORDS_SHIFT | (uint64_t)(implied) << ML_TRACE_IMPLIED_SHIFT | \
   (uint64_t)(form) << ML_TRACE_FORM_SHIFT | (uint64_t)(stores) << ML_TRACE_STORES_SHIFT)

#define COMPILER_BARRIER() __asm__ volatile("" ::: "memory")

/* The out-of-line part of a segment; `left` is a register or the thread variable. Returns the new left. */
__attribute__((noinline, unused)) static uint64_t trace_record(uint64_t left, uint64_t header, const uint64_t *values) {
  volatile struct ml_trace_thread *thread = &__memlens_trace;
  const uint64_t n = header >> ML_TRACE_WORDS_SHIFT & 31;
  uint64_t *words = thread->cursor;
  if (((uintptr_t)(words + 1 + n) > (uintptr_t)thread->limit) | (left != 0)) words = __memlens_trace_room(left, header);
  if (words != NULL) {
    thread->cursor = words + 1 + n;
    COMPILER_BARRIER();
    *(volatile uint64_t *)words = header;
    for (uint64_t i = 0; i < n; i++) ((volatile uint64_t *)words)[1 + i] = values[i];
  }
  return thread->left;
}

static inline uint64_t trace_step(uint64_t left, uint64_t header, const uint64_t *values) {
  const uint64_t executed = ml_trace_executed(header);
  if (__builtin_expect(left >= executed, 1)) return left - executed;
  return trace_record(left, header, values);
}

/* A segment that keeps `left` in the thread variable. */
static inline void trace_segment(uint64_t header, const uint64_t *values) {
  volatile struct ml_trace_thread *thread = &__memlens_trace;
  const uint64_t executed = ml_trace_executed(header), left = thread->left; /* read once: a handler may change it */
  if (__builtin_expect(left >= executed, 1)) thread->left = left - executed;
  else trace_record(left, header, values);
}
#endif
