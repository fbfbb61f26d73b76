/* Spans of a node: from when the first thread of the process enters it to when the last one leaves it. Their sum is the region's wall-clock time,
 * whatever its threads do at the same time or in turns.
 *
 * One compare-and-swap on a word that all threads share: about 10 ns alone, more where several threads come and go. So only executions that last long enough take
 * part (is_worth_a_span); the others keep their time in unspanned_ticks, and a reader has bounds. */
#ifndef MEMLENS_COUNT_SPANS_H
#define MEMLENS_COUNT_SPANS_H
#include "count.h"

#define ML_SPAN_THREADS UINT64_C(0xffff)
#define ML_SPAN_TIME ((UINT64_C(1) << 48) - 1)
#define ML_SPAN_FIRST 64u /* executions of a place that take part in any case */

static inline void ml_span_enter(struct ml_count_span *span, uint64_t now) {
  const uint64_t begin = (now - ml_process.shared->start_ticks) & ML_SPAN_TIME;
  uint64_t old = __atomic_load_n(&span->inside, __ATOMIC_RELAXED), next;
  do {
    if ((old & ML_SPAN_THREADS) == ML_SPAN_THREADS) return;
    next = (old & ML_SPAN_THREADS) == 0 ? begin << 16 | 1 : old + 1;
  } while (!__atomic_compare_exchange_n(&span->inside, &old, next, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}

static inline void ml_span_leave(struct ml_count_span *span, uint64_t now) {
  uint64_t old = __atomic_load_n(&span->inside, __ATOMIC_RELAXED), next;
  do {
    if ((old & ML_SPAN_THREADS) == 0) return;
    next = (old & ML_SPAN_THREADS) == 1 ? 0 : old - 1;
  } while (!__atomic_compare_exchange_n(&span->inside, &old, next, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  if (next != 0) return;
  const uint64_t spent = (now - ml_process.shared->start_ticks - (old >> 16)) & ML_SPAN_TIME;
  /* else a thread came between its clock and the word */
  if (spent <= ML_SPAN_TIME / 2) ml_add(&span->union_ticks, spent);
}

#endif
