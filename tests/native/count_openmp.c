/* Work that OpenMP hands to its threads: N calls of work(9) in region a, in threads and tasks; N outside. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

#include "count_by_hand.h"

COUNTED(work, 2);
REGION(a, "a");
REGION(b, "b");
REGION(t, "tasks");

__attribute__((noinline)) static void work(long n) {
  ADD(work, 0, 1);
  for (long i = 0; i < n; i++) ADD(work, 1, 1);
}

int main(int argc, char **argv) {
  const int n = argc > 1 ? atoi(argv[1]) : 100;
  omp_set_dynamic(0);
  omp_set_num_threads(4);
  for (int round = 0; round < 3; round++) {
    ENTER(a);
#pragma omp parallel for schedule(static, 1)
    for (int i = 0; i < n; i++) work(9);
    LEAVE(a);
#pragma omp parallel for schedule(static, 1)
    for (int i = 0; i < n; i++) work(9);
    ENTER(b);
#pragma omp parallel for schedule(static, 1)
    for (int i = 0; i < n; i++) work(9);
    LEAVE(b);
  }
#pragma omp parallel
#pragma omp single
  {
    ENTER(t);
    for (int i = 0; i < n; i++) {
#pragma omp task
      work(9);
    }
#pragma omp taskwait
    LEAVE(t);
  }
  puts("done");
  return 0;
}
