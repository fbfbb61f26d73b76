/* What one compiled-in counter costs here: an add to memory, beside a loop that has none. */
#include "internal.h"

/* Counters of neighbouring blocks: each waits for its own last add, not for the others'. */
enum { COUNTERS = 4, ROUNDS = 20000, REPEATS = 15 };

static uint64_t run(volatile uint64_t *counters, int adding) {
  uint64_t kept = 1;
  const uint64_t begin = ml_monotonic_ns();
  for (int round = 0; round < ROUNDS; round++)
    for (int i = 0; i < COUNTERS; i++) {
      __asm__ volatile("" : "+r"(kept));
      if (adding) counters[i]++;
    }
  return ml_monotonic_ns() - begin;
}

uint64_t ml_counter_add_ps(void) {
  volatile uint64_t counters[COUNTERS] = {0};
  uint64_t with = UINT64_MAX, without = UINT64_MAX;
  for (int repeat = 0; repeat < REPEATS; repeat++) {
    const uint64_t a = run(counters, 1), b = run(counters, 0);
    if (a < with) with = a;
    if (b < without) without = b;
  }
  return with > without ? (with - without) * 1000 / (COUNTERS * ROUNDS) : 0;
}
