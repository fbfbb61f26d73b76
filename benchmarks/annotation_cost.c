/* What a site of memlens.h costs in a tight loop while nothing records; run by annotation_cost.py. Each loop adds numbers from a
   small array; the second and the third also have one site, or a begin and an end, in every turn. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <time.h>

#include "memlens.h"

enum { TURNS = 50000000, RUNS = 9 };
static unsigned numbers[1024];

static double now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

/* The empty asm keeps the compiler from turning the plain loop into vectors, which no loop with a call in it could be. */
#define LOOP(name, before, after)                       \
  __attribute__((noinline)) static unsigned name(void) { \
    unsigned sum = 0;                                   \
    for (long turn = 0; turn < TURNS; turn++) {         \
      before;                                           \
      sum += numbers[turn & 1023];                      \
      __asm__ volatile("" : "+r"(sum));                 \
      after;                                            \
    }                                                   \
    return sum;                                         \
  }

LOOP(plain, (void)0, (void)0)
LOOP(one_site, memlens_begin("turn"), (void)0)
LOOP(region, memlens_begin("turn"), memlens_end("turn"))
LOOP(tagged, memlens_tag("numbers", numbers, sizeof numbers), memlens_untag(numbers))

static double best_ns(unsigned (*loop)(void)) {
  double best = 1e30;
  for (int run = 0; run < RUNS; run++) {
    double begin = now_ns();
    loop();
    double each = (now_ns() - begin) / TURNS;
    if (each < best) best = each;
  }
  return best;
}

int main(void) {
  double base = best_ns(plain);
  printf("  %6.2f ns  a turn without a site\n", base);
  printf("  %6.2f ns  more with one site\n", best_ns(one_site) - base);
  printf("  %6.2f ns  more with begin and end\n", best_ns(region) - base);
  printf("  %6.2f ns  more with tag and untag\n", best_ns(tagged) - base);
  return 0;
}
