/* A tight loop of malloc and free; prints the nanoseconds of its fastest series. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1e9 + now.tv_nsec;
}

int main(int count, char **arguments) {
  const long pairs = count > 1 ? atol(arguments[1]) : 10000000;
  double best = 1e18;
  for (int series = 0; series < 5; series++) {
    const double begin = now_ns();
    for (long i = 0; i < pairs; i++) {
      void *volatile block = malloc(32 + (i & 63));
      free(block);
    }
    const double each = (now_ns() - begin) / pairs;
    if (each < best) best = each;
  }
  printf("%.3f\n", best);
  return 0;
}
