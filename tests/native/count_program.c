/* A counted program written by hand: count_program WHAT [NUMBERS]. What it must have counted is in tests/count/test_count_runtime.py. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <threads.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "count_by_hand.h"

COUNTED(work, 3);
REGION(a, "a");
REGION(b, "b");
REGION(c, "c");
static long number[4];

__attribute__((noinline)) static void work(long n) {
  ADD(work, 0, 1);
  for (long i = 0; i < n; i++) ADD(work, 1, 1);
}
/* work(n) adds n + 1. */

static void *work_in_thread(void *argument) {
  work((long)argument);
  return NULL;
}
static int work_c11(void *argument) {
  work((long)argument);
  return 7;
}

static void run_threads(long count, long n) {
  pthread_t *threads = calloc((size_t)count, sizeof *threads);
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 65536);
  for (long i = 0; i < count; i++)
    if (pthread_create(&threads[i], &small, work_in_thread, (void *)n) != 0) abort();
  for (long i = 0; i < count; i++) pthread_join(threads[i], NULL);
  free(threads);
}

static void *wait_then_work(void *barrier) {
  pthread_barrier_wait(barrier);
  work(10);
  pthread_barrier_wait(barrier);
  return NULL;
}

static void flat(void) { work(number[0]); }
static void threads(void) { run_threads(number[0], number[1]); }

static void concurrent(void) {
  static pthread_t all[2000];
  pthread_barrier_t barrier;
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 65536);
  pthread_barrier_init(&barrier, NULL, (unsigned)number[0]);
  for (long i = 0; i < number[0]; i++)
    if (pthread_create(&all[i], &small, wait_then_work, &barrier) != 0) abort();
  for (long i = 0; i < number[0]; i++) pthread_join(all[i], NULL);
}

static void sequential(void) {
  ENTER(a);
  for (long i = 0; i < number[0]; i++) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, work_in_thread, (void *)9L) != 0) abort();
    pthread_join(thread, NULL);
  }
  LEAVE(a);
}

static void nested(void) {
  work(0);
  for (int i = 0; i < 3; i++) {
    ENTER(a);
    work(9);
    ENTER(b);
    work(99);
    LEAVE(b);
    LEAVE(a);
  }
  ENTER(b);
  work(4);
  LEAVE(b);
  work(0);
}

__attribute__((noinline)) static void descend(int left) {
  ENTER(a);
  work(9);
  if (left > 0) descend(left - 1);
  LEAVE(a);
}
static void recursive(void) { descend(number[0] ? (int)number[0] : 4); }

__attribute__((noinline)) static void forgets(int which) {
  ENTER(a);
  work(9);
  if (which) return; /* a's end is passed by */
  LEAVE(a);
}
static void early(void) {
  for (int i = 0; i < 3; i++) {
    forgets(1);
    ENTER(b); /* closes a first */
    work(99);
    LEAVE(b);
  }
  forgets(0);
  work(4);
}

static void loop_without_end(void) {
  for (int i = 0; i < 200; i++) {
    ENTER(a);
    work(9);
    if (i % 2) continue;
    LEAVE(a);
  }
}

static jmp_buf target;
__attribute__((noinline)) static void jumps(void) {
  ENTER(b);
  work(9);
  ENTER(c);
  work(9);
  longjmp(target, 1);
}
static void jump(void) {
  ENTER(a);
  if (setjmp(target) == 0) jumps();
  __memlens_count_unwound();
  work(99);
  LEAVE(a);
  work(4);
}

static void unmatched(void) {
  LEAVE(a);
  ENTER(a);
  ENTER(b);
  ENTER(c);
  work(9);
  LEAVE(a); /* closes c and b */
  LEAVE(b);
  work(4);
}

static void deep(void) { /* more open regions than are kept, all different */
  static struct ml_count_region regions[80];
  static char names[80][8];
  for (int i = 0; i < 80; i++) {
    snprintf(names[i], sizeof names[i], "r%d", i);
    regions[i].name = names[i];
    ENTER(regions[i]);
    work(9);
  }
  for (int i = 79; i >= 0; i--) LEAVE(regions[i]);
  work(4);
}

static void inherit(void) {
  ENTER(a);
  run_threads(4, 99);
  ENTER(b);
  thrd_t thread;
  int result = 0;
  if (thrd_create(&thread, work_c11, (void *)49L) != thrd_success) abort();
  thrd_join(thread, &result);
  if (result != 7) abort();
  LEAVE(b);
  LEAVE(a);
  run_threads(2, 9);
}

static void *exits_in_region(void *argument) {
  ENTER(b);
  work((long)argument);
  pthread_exit(argument);
}
static void *is_cancelled(void *argument) {
  ENTER(c);
  work((long)argument);
  for (;;) pause();
  return NULL;
}
static void thread_exits(void) {
  pthread_t one, two;
  void *result;
  pthread_create(&one, NULL, exits_in_region, (void *)9L);
  pthread_join(one, &result);
  if (result != (void *)9L) abort();
  pthread_create(&two, NULL, is_cancelled, (void *)9L);
  usleep(20000);
  pthread_cancel(two);
  pthread_join(two, &result);
  if (result != PTHREAD_CANCELED) abort();
}

static pthread_key_t late;
static void late_destructor(void *value) {
  if ((long)value > 1) pthread_setspecific(late, (void *)((long)value - 1));
  work(9);
}
static void *uses_key(void *argument) {
  pthread_setspecific(late, argument);
  return NULL;
}
static void thread_destructors(void) {
  pthread_t thread;
  pthread_key_create(&late, late_destructor);
  pthread_create(&thread, NULL, uses_key, (void *)3L);
  pthread_join(thread, NULL);
}

static void forks(void) {
  ENTER(a);
  work(9);
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    work(99);
    ENTER(b);
    work(999);
    pid_t grandchild = fork();
    if (grandchild == 0) {
      run_threads(2, 4);
      LEAVE(b);
      LEAVE(a);
      work(1);
      exit(0);
    }
    waitpid(grandchild, NULL, 0);
    LEAVE(b);
    LEAVE(a);
    exit(0);
  }
  waitpid(child, NULL, 0);
  work(9);
  LEAVE(a);
}

static void *keeps_forking(void *argument) {
  for (int i = 0; i < (int)(long)argument; i++) {
    pid_t child = fork();
    if (child == 0) {
      work(9);
      _exit(0);
    }
    waitpid(child, NULL, 0);
  }
  return NULL;
}
static void forks_among_threads(void) {
  pthread_t forker, others[3];
  pthread_create(&forker, NULL, keeps_forking, (void *)20L);
  for (int round = 0; round < 50; round++) {
    for (int i = 0; i < 3; i++) pthread_create(&others[i], NULL, work_in_thread, (void *)9L);
    for (int i = 0; i < 3; i++) pthread_join(others[i], NULL);
  }
  pthread_join(forker, NULL);
}

static void dies(void) {
  ENTER(a);
  work(999);
  if (number[0] == SIGKILL) kill(getpid(), SIGKILL);
  if (number[0] == SIGSEGV) *(volatile int *)NULL = 1;
  abort();
}
static void exits(void) {
  ENTER(a);
  work(9);
  usleep(30000);
  exit(3);
}
static void executes(void) {
  ENTER(a);
  work(9);
  execl("/proc/self/exe", "count_program", "flat", "99", NULL);
  abort();
}

static volatile sig_atomic_t handled, enough;
static void handler(int signal_number) {
  (void)signal_number;
  ENTER(c);
  work(0);
  LEAVE(c);
  handled++;
}
static void *pesters(void *thread) {
  while (!enough) {
    pthread_kill(*(pthread_t *)thread, SIGUSR1);
    struct timespec pause = {0, 20000};
    nanosleep(&pause, NULL);
  }
  return NULL;
}
static void signals(void) {
  pthread_t self = pthread_self(), pest;
  struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART | (number[1] ? SA_ONSTACK : 0)};
  static char memory[1 << 16];
  stack_t other = {.ss_sp = memory, .ss_size = sizeof memory};
  if (number[1]) sigaltstack(&other, NULL);
  sigaction(SIGUSR1, &action, NULL);
  pthread_create(&pest, NULL, pesters, &self);
  while (handled < 1) usleep(100);
  for (long i = 0; i < number[0]; i++) {
    ENTER(a);
    ENTER(b);
    work(0);
    LEAVE(b);
    LEAVE(a);
  }
  enough = 1;
  pthread_join(pest, NULL);
  usleep(1000);
  printf("%ld\n", (long)handled);
}

#ifdef __GLIBC__ /* others have no makecontext */
static ucontext_t main_context, other_context;
static void coroutine(void) {
  ENTER(b);
  work(9);
  swapcontext(&other_context, &main_context); /* away and back, twice */
  work(9);
  swapcontext(&other_context, &main_context);
  work(9);
  LEAVE(b);
}
static void coroutines(void) {
  getcontext(&other_context);
  other_context.uc_stack.ss_size = 1 << 18;
  other_context.uc_stack.ss_sp = mmap(NULL, 1 << 18, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  other_context.uc_link = &main_context;
  makecontext(&other_context, coroutine, 0);
  ENTER(a);
  for (int i = 0; i < 3; i++) {
    swapcontext(&main_context, &other_context);
    ENTER(c);
    work(4);
    LEAVE(c);
  }
  LEAVE(a);
}
#else
static void coroutines(void) {}
#endif

__attribute__((noinline)) static void helper_counted(void) { work(9); }
static void sampled(void) {
  for (long i = 0; i < number[0]; i++) {
    if (__memlens_count_enter_sampled(&a)) {
      work(9);
      if (number[1]) usleep((useconds_t)number[1]);
    } else {
      helper_counted(); /* stayed instrumented: its counts must go nowhere */
      ENTER(b);
      helper_counted();
      LEAVE(b);
    }
    LEAVE(a);
  }
}

static void faults(void) {
  char *memory = mmap(NULL, 64 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  madvise(memory, 64 * 4096, MADV_NOHUGEPAGE);
  for (int i = 0; i < 3; i++) {
    ENTER(a);
    LEAVE(a);
  }
  ENTER(b);
  for (int i = 0; i < 64; i++) memory[i * 4096] = 1;
  LEAVE(b);
}

static void limited(void) { /* RLIMIT_AS was set by the caller */
  ENTER(a);
  work(9);
  run_threads(3, 9);
  LEAVE(a);
}

static void no_descriptors(void) {
  struct rlimit limit = {8, 8};
  setrlimit(RLIMIT_NOFILE, &limit);
  while (dup(0) >= 0) {
  }
  ENTER(a);
  run_threads(40, 9);
  LEAVE(a);
}

static struct ml_count_region many[64];
static char many_text[64][8];
static void *storms(void *seed) {
  uint64_t random = (uint64_t)(uintptr_t)seed * 0x9e3779b97f4a7c15u | 1;
  for (int i = 0; i < 20000; i++) {
    unsigned chosen[4];
    for (int k = 0; k < 4; k++) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      chosen[k] = (unsigned)(random >> 40) % 8 + (unsigned)k * 8; /* never the same twice on a path */
      ENTER(many[chosen[k]]);
      work(0);
    }
    for (int k = 3; k >= 0; k--) LEAVE(many[chosen[k]]);
  }
  return NULL;
}
static void storm(void) { /* eight threads meet 4,680 paths */
  pthread_t all[8];
  for (int i = 0; i < 64; i++) {
    snprintf(many_text[i], sizeof many_text[i], "m%d", i);
    many[i].name = many_text[i];
  }
  for (long i = 0; i < 8; i++) pthread_create(&all[i], NULL, storms, (void *)i);
  for (int i = 0; i < 8; i++) pthread_join(all[i], NULL);
}

static void many_names(void) {
  static char text[32];
  for (long i = 0; i < number[0]; i++) {
    struct ml_count_region region = {text, 0};
    snprintf(text, sizeof text, "name%ld", i);
    ENTER(region);
    work(9);
    LEAVE(region);
  }
}

static void keeps_errno(void) {
  errno = 77;
  ENTER(a);
  ENTER(b);
  LEAVE(b);
  LEAVE(a);
  LEAVE(c);
  run_threads(1, 1);
  if (errno != 77) abort();
}

static void cost(void) {
  struct timespec begin, end;
  ENTER(a);
  for (int outer = 0; outer < 3; outer++) {
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int i = 0; i < 1000000; i++) {
      ENTER(b);
      LEAVE(b);
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
  }
  LEAVE(a);
  printf("%.1f\n", ((double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec)) / 1e6);
}

static const struct {
  const char *name;
  void (*run)(void);
} modes[] = {{"flat", flat},
             {"threads", threads},
             {"concurrent", concurrent},
             {"sequential", sequential},
             {"nested", nested},
             {"recursive", recursive},
             {"early", early},
             {"loop_without_end", loop_without_end},
             {"jump", jump},
             {"unmatched", unmatched},
             {"deep", deep},
             {"inherit", inherit},
             {"thread_exits", thread_exits},
             {"thread_destructors", thread_destructors},
             {"forks", forks},
             {"forks_among_threads", forks_among_threads},
             {"dies", dies},
             {"exits", exits},
             {"executes", executes},
             {"signals", signals},
             {"coroutines", coroutines},
             {"sampled", sampled},
             {"faults", faults},
             {"limited", limited},
             {"no_descriptors", no_descriptors},
             {"storm", storm},
             {"many_names", many_names},
             {"keeps_errno", keeps_errno},
             {"cost", cost}};

int main(int argc, char **argv) {
  for (int i = 0; i < 4 && i + 2 < argc; i++) number[i] = atol(argv[i + 2]);
  for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
    if (argc > 1 && strcmp(argv[1], modes[i].name) == 0) {
      modes[i].run();
      printf("done\n");
      return 0;
    }
  return 2;
}
