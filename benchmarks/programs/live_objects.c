/* Many small objects that live at one time; prints the seconds that it took. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int main(int count, char **arguments) {
  const long objects = count > 1 ? atol(arguments[1]) : 10000000;
  struct timespec begin, end;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  char **kept = malloc((size_t)objects * sizeof *kept);
  if (kept == NULL) return 1;
  for (long i = 0; i < objects; i++) {
    kept[i] = malloc(16 + (size_t)(i % 7) * 16);
    if (kept[i] == NULL) return 1;
    kept[i][0] = 1;
  }
  long sum = 0;
  for (long i = 0; i < objects; i++) {
    sum += kept[i][0];
    free(kept[i]);
  }
  free(kept);
  clock_gettime(CLOCK_MONOTONIC, &end);
  printf("%.3f\n", (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) / 1e9);
  return sum != objects;
}
