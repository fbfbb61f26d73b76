/* What the golden captures recorded: threads, a list, arrays, small and large objects, regions. Arguments: passes, MiB touched. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "memlens.h"

enum { COUNT = 1 << 12, NODES = 600 };
struct node {
  struct node *next;
  long key, value;
};
static double a[COUNT], b[COUNT];
static volatile long counters[2];

__attribute__((noinline)) static double triad(double scale) {
  for (int i = 0; i < COUNT; i++) a[i] = b[i] + scale * a[i];
  return a[COUNT / 2];
}

__attribute__((noinline)) static struct node *make_list(unsigned count) {
  struct node **all = malloc(count * sizeof *all), *first = NULL;
  for (unsigned i = 0; i < count; i++) {
    all[i] = malloc(sizeof **all);
    *all[i] = (struct node){.key = i};
  }
  unsigned seed = 1;
  for (unsigned i = count; i > 1; i--) {
    seed = seed * 1103515245u + 12345u;
    unsigned j = (seed >> 8) % i;
    struct node *other = all[j];
    all[j] = all[i - 1];
    all[i - 1] = other;
  }
  for (unsigned i = 0; i < count; i++) {
    all[i]->next = first;
    first = all[i];
  }
  free(all);
  return first;
}

__attribute__((noinline)) static long walk(struct node *at) {
  long sum = 0;
  for (; at != NULL; at = at->next) sum += at->value += at->key;
  return sum;
}

__attribute__((noinline)) static void churn(unsigned times) {
  for (unsigned i = 0; i < times; i++) {
    char *volatile text = malloc(24 + i % 100);
    text[0] = (char)i;
    free(text);
  }
}

static void *work(void *number) {
  const long n = (long)number;
  memlens_begin("worker");
  for (int i = 0; i < 20000; i++) counters[n]++;
  memlens_end("worker");
  return NULL;
}

int main(int argc, char **argv) {
  const int passes = argc > 1 ? atoi(argv[1]) : 3;
  const size_t bytes = (size_t)(argc > 2 ? atoi(argv[2]) : 1) << 20;
  pthread_t threads[2];
  for (long t = 0; t < 2; t++) pthread_create(&threads[t], NULL, work, (void *)t);
  for (int t = 0; t < 2; t++) pthread_join(threads[t], NULL);
  unsigned char *large = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (large == MAP_FAILED) return 1;
  madvise(large, bytes, MADV_NOHUGEPAGE);
  memlens_tag("large", large, bytes);
  memlens_phase("build");
  struct node *list = make_list(NODES);
  memlens_phase("passes");
  double sum = 0;
  for (int pass = 0; pass < passes; pass++) {
    memlens_begin("triad");
    sum += triad(0.5 + pass);
    memlens_end("triad");
    memlens_begin("walk");
    sum += (double)walk(list);
    memlens_end("walk");
    churn(500);
    memset(large, pass, bytes);
    if (pass % 2) madvise(large, bytes, MADV_DONTNEED);
  }
  printf("%g\n", sum);
  return 0;
}
