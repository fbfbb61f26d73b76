// OpenMP constructs inside regions. Every array element is read once, through volatile, so totals are known.
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
enum { N = 1 << 12 };
static volatile long data[N];

__attribute__((noinline)) static long read_one(long i) { return data[i]; }
__attribute__((noinline)) static long outside(long n) {
  long s = 0;
  for (long i = 0; i < n; i++) s += data[i & (N - 1)];
  return s;
}

static long loops(void) {
  long s = 0;
#pragma memlens begin(loops)
#pragma omp parallel for reduction(+ : s) schedule(static)
  for (long i = 0; i < N; i++) s += data[i];
#pragma omp parallel for reduction(+ : s) schedule(dynamic, 16)
  for (long i = 0; i < N; i++) s += read_one(i);
#pragma omp parallel for reduction(+ : s) schedule(guided) collapse(2)
  for (long i = 0; i < N / 64; i++)
    for (long k = 0; k < 64; k++) s += data[i * 64 + k];
#pragma omp parallel for simd reduction(+ : s)
  for (long i = 0; i < N; i++) s += data[i];
#pragma memlens end
  return s;
}

static long sections(void) {
  long a = 0, b = 0, c = 0;
#pragma memlens begin(sections)
#pragma omp parallel sections
  {
#pragma omp section
    for (long i = 0; i < 100; i++) a += data[i];
#pragma omp section
    for (long i = 0; i < 200; i++) b += data[i];
#pragma omp section
    for (long i = 0; i < 300; i++) c += read_one(i);
  }
#pragma omp parallel
  {
#pragma omp single
    for (long i = 0; i < 50; i++) a += data[i];
#pragma omp critical
    b += 0;
#pragma omp masked
    for (long i = 0; i < 25; i++) c += data[i];
  }
#pragma memlens end
  return a + b + c;
}

static long tree(long begin, long end) {
  if (end - begin <= 16) {
    long s = 0;
    for (long i = begin; i < end; i++) s += data[i];
    return s;
  }
  long left, right;
#pragma omp task shared(left)
  left = tree(begin, (begin + end) / 2);
#pragma omp task shared(right)
  right = tree((begin + end) / 2, end);
#pragma omp taskwait
  return left + right;
}
static long tasks(void) {
  long s = 0, t = 0;
#pragma memlens begin(tasks)
#pragma omp parallel
#pragma omp single
  s = tree(0, N);
#pragma omp parallel
#pragma omp single
#pragma omp taskloop reduction(+ : t) grainsize(100)
  for (long i = 0; i < N; i++) t += read_one(i);
#pragma memlens end
  return s + t;
}

static long nested(void) {
  long s = 0;
#pragma memlens begin(nested)
#pragma omp parallel for num_threads(2) reduction(+ : s)
  for (long i = 0; i < 4; i++) {
    long inner = 0;
#pragma memlens begin(inner)
#pragma omp parallel for num_threads(2) reduction(+ : inner)
    for (long k = 0; k < 256; k++) inner += data[i * 256 + k];
#pragma memlens end
    s += inner + data[i];
  }
#pragma memlens end
  return s;
}

// Regions that the worker itself begins, in a parallel part that no region is around.
static long own(void) {
  long s = 0;
#pragma omp parallel for reduction(+ : s) schedule(static)
  for (long i = 0; i < 64; i++) {
#pragma memlens begin(own)
    s += read_one(i);
#pragma memlens end
    s += data[i];
  }
  return s;
}

int main(int argc, char **argv) {
  long rounds = argc > 1 ? atol(argv[1]) : 1, s = 0;
  for (long i = 0; i < N; i++) data[i] = i * 7 % 101;
  omp_set_max_active_levels(2);
  for (long round = 0; round < rounds; round++) {
    s += loops();
    s += outside(33);
    s += sections();
#pragma omp parallel reduction(+ : s)
    if (omp_get_thread_num() == omp_get_num_threads() - 1) s += outside(11);
    s += tasks();
    s += nested();
    s += own();
  }
  printf("%ld\n", s);
  return 0;
}
