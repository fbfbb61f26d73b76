// Threads, forks, signals and cancellation in regions, with numbers of accesses that are known. The first argument says which.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile long data[256];

// Reads memory n times.
__attribute__((noinline)) static long work(long n) {
  long s = 0;
  for (long i = 0; i < n; i++) s += data[i & 255];
  return s;
}
__attribute__((noinline)) static long work_of_handler(long n) {
  long s = 0;
  for (long i = 0; i < n; i++) s += data[i & 255];
  return s;
}

static void *in_thread(void *argument) {
  work((long)argument);
#pragma memlens begin(own)
  work(7);
#pragma memlens end
  return NULL;
}

static void threads(long n) {
  pthread_t *all = malloc((size_t)n * sizeof *all);
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 128 << 10);
#pragma memlens begin(all)
  for (long i = 0; i < n; i++)
    if (pthread_create(&all[i], &small, in_thread, (void *)100)) { puts("no thread"); exit(1); }
  for (long i = 0; i < n; i++) pthread_join(all[i], NULL);
#pragma memlens end
  free(all);
}

static long recursive(long depth) {
  long s = 0;
#pragma memlens begin(even)
  s += work(3);
  if (depth > 0) {
#pragma memlens begin(odd)
    s += work(2) + recursive(depth - 1);
#pragma memlens end
  }
#pragma memlens end
  return s + work(1);
}

static void forks(void) {
#pragma memlens begin(forked)
  work(1000);
  pid_t child = fork();
  if (child == 0) {
    work(50);
#pragma memlens begin(child)
    work(5);
    if (fork() == 0) { work(3); exit(0); }
    wait(NULL);
#pragma memlens end
    work(6);
    exit(0);
  }
  work(30);
  waitpid(child, NULL, 0);
#pragma memlens end
}

static volatile sig_atomic_t handled;
static void handler(int number) {
  (void)number;
#pragma memlens begin(handler)
  work_of_handler(10);
#pragma memlens end
  handled++;
}
static void signals(long n) {
  struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
  sigaction(SIGALRM, &action, NULL);
  struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
  setitimer(ITIMER_REAL, &often, NULL);
  for (long i = 0; i < n; i++) {
#pragma memlens begin(outer)
    work(10);
#pragma memlens begin(inner)
    work(20);
#pragma memlens end
#pragma memlens end
  }
  setitimer(ITIMER_REAL, &never, NULL);
  printf("handled %d\n", handled);
}

static pthread_barrier_t barrier;
static void *cancelled(void *argument) {
  (void)argument;
#pragma memlens begin(cancelled)
#pragma memlens begin(deeper)
  work(11);
  pthread_barrier_wait(&barrier);
  for (;;) pause();
#pragma memlens end
#pragma memlens end
  return NULL;
}
static void *leaves(void *argument) {
  (void)argument;
#pragma memlens begin(leaves)
  work(13);
  pthread_exit(NULL);
#pragma memlens end
}
static void cancellation(long n) {
  pthread_barrier_init(&barrier, NULL, 2);
  for (long i = 0; i < n; i++) {
    pthread_t thread;
    pthread_create(&thread, NULL, cancelled, NULL);
    pthread_barrier_wait(&barrier);
    pthread_cancel(thread);
    pthread_join(thread, NULL);
    pthread_create(&thread, NULL, leaves, NULL);
    pthread_join(thread, NULL);
  }
  work(1);
}

int main(int argc, char **argv) {
  const char *mode = argc > 1 ? argv[1] : "";
  long n = argc > 2 ? atol(argv[2]) : 0;
  if (!strcmp(mode, "threads")) threads(n);
  else if (!strcmp(mode, "recursion")) recursive(n);
  else if (!strcmp(mode, "forks")) forks();
  else if (!strcmp(mode, "signals")) signals(n);
  else if (!strcmp(mode, "cancellation")) cancellation(n);
  else return 1;
  puts("done");
  return 0;
}
