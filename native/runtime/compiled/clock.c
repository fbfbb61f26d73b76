/* The cycle counter: the machine's where it is steady and can be read, the system's clock else. */
#include "count.h"

#include <errno.h>
#include <sys/prctl.h>
#include <time.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

uint32_t ml_clock_kind;
uint64_t ml_clock_read_cost;

uint64_t ml_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint32_t choose(void) {
#if defined(__x86_64__)
  /* Invariant: it neither stops nor changes its rate. A process may also have asked for a fault at each reading. */
  unsigned a, b, c, d;
  int setting = 0;
  if (!__get_cpuid(0x80000007u, &a, &b, &c, &d) || (d & 1u << 8) == 0) return ML_ENUM_count_clock_SYSTEM;
  const int saved = errno;
  const int asked = prctl(PR_GET_TSC, &setting, 0, 0, 0);
  errno = saved;
  return asked != 0 || setting == PR_TSC_ENABLE ? ML_ENUM_count_clock_TSC : ML_ENUM_count_clock_SYSTEM;
#elif defined(__aarch64__)
  return ML_ENUM_count_clock_CNTVCT;
#elif defined(__riscv)
  return ML_ENUM_count_clock_TIME;
#elif defined(__powerpc64__)
  return ML_ENUM_count_clock_TIMEBASE;
#else
  return ML_ENUM_count_clock_SYSTEM;
#endif
}

/* Of several tries the one that was least disturbed. */
void ml_clock_pair(uint64_t *ticks, uint64_t *ns) {
  uint64_t least = UINT64_MAX;
  for (int i = 0; i < 3; i++) {
    const uint64_t before = ml_ticks(), now = ml_now_ns(), after = ml_ticks();
    if (after - before >= least) continue;
    least = after - before;
    *ticks = before + least / 2;
    *ns = now;
  }
}

/* Not the least: some counters move in steps and now and then give two readings one tick apart. */
uint64_t ml_low_quartile(uint64_t *ticks, unsigned count) {
  for (unsigned i = 1; i < count; i++) {
    const uint64_t moved = ticks[i];
    unsigned at = i;
    for (; at > 0 && ticks[at - 1] > moved; at--) ticks[at] = ticks[at - 1];
    ticks[at] = moved;
  }
  return ticks[count / 4];
}

void ml_clock_start(void) {
  ml_clock_kind = choose();
  uint64_t spent[200];
  for (unsigned i = 0; i < 200; i++) {
    const uint64_t before = ml_ticks();
    spent[i] = ml_ticks() - before;
  }
  ml_clock_read_cost = ml_low_quartile(spent, 200);
}
