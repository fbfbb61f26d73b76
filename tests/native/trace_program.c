/* A traced program written by hand: trace_program WHAT [NUMBERS]. Everything that it executes goes into LOG.tid too, so that a test knows
 * what each window must hold: tests/trace/test_trace_runtime.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "trace_by_hand.h"

#define SITES 64
#define SIZED_SITE 40
#define LANES_SITE 60
TRACED(work, SITES);
REGION(inner, "inner");
REGION(outer, "outer");
static long number[4];
static const char *log_path;

/* ---- what was executed ---------------------------------------------------------------------------------------------- */
struct access {
  uint64_t site, address, bytes, kind;
}; /* kind: 0 constant, 1 load, 2 store, 3 nothing after all */
struct log {
  struct access *accesses;
  uint64_t count, room;
};
static __thread struct log log_of_thread;

static void note(uint64_t site, uint64_t address, uint64_t bytes, uint64_t kind) {
  struct log *log = &log_of_thread;
  if (log_path == NULL) return;
  if (log->count == log->room) {
    log->room = log->room ? 2 * log->room : 1 << 16;
    log->accesses = realloc(log->accesses, log->room * sizeof *log->accesses);
  }
  log->accesses[log->count++] = (struct access){site, address, bytes, kind};
}

static void save_log(void) {
  if (log_path == NULL) return;
  char path[512];
  snprintf(path, sizeof path, "%s.%ld", log_path, syscall(SYS_gettid));
  const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  const char *at = (const char *)log_of_thread.accesses;
  for (size_t left = log_of_thread.count * sizeof(struct access); left > 0;) {
    const ssize_t wrote = write(fd, at, left);
    if (wrote <= 0) abort();
    at += wrote;
    left -= (size_t)wrote;
  }
  close(fd);
  free(log_of_thread.accesses);
  log_of_thread = (struct log){NULL, 0, 0};
}

/* ---- segments ------------------------------------------------------------------------------------------------------------ */
static uint64_t next_random(uint64_t *state) {
  uint64_t x = *state;
  x ^= x << 13;
  x ^= x >> 7;
  x ^= x << 17;
  return *state = x;
}

/* Draws a segment: its header without the function's first site, and its words. */
static uint64_t draw_segment(uint64_t *random, uint64_t *words) {
  const uint64_t r = next_random(random);
  const uint64_t form = r % 8 == 0 ? ML_TRACE_SIZED : r % 8 == 1 ? ML_TRACE_LANES : ML_TRACE_WORDS;
  uint64_t implied = (r >> 8) % 4 == 0 ? (r >> 16) % 5 : 0, n, site, stores = 0;
  if (form == ML_TRACE_WORDS) {
    n = 1 + (r >> 24) % 14;
    /* constants only */
    if ((r >> 32) % (uint64_t)(number[2] != 0 ? number[2] : 128) == 0) n = 0, implied = 1 + (r >> 16) % 2047;
    site = (r >> 40) % (SIZED_SITE - 14);
    for (uint64_t i = 0; i < n; i++) {
      const uint64_t value = next_random(random);
      words[i] = 0x10000 + (value & 0xffffffffff8);
      if (value >> 60 == 0) stores |= UINT64_C(1) << i;
    }
  } else if (form == ML_TRACE_SIZED) {
    n = 2 * (1 + (r >> 24) % 7);
    site = SIZED_SITE;
    for (uint64_t i = 0; i < n; i += 2) {
      const uint64_t value = next_random(random);
      words[i] = 0x10000 + (value & 0xffffff);
      words[i + 1] = value >> 62 == 0 ? 0 : value >> 62 == 1 ? value >> 20 & 0xffffffff : 1 + (value >> 30) % 100;
      if (value >> 58 & 1) stores |= UINT64_C(1) << i / 2;
    }
  } else {
    n = 1 + (r >> 24) % 31;
    site = LANES_SITE;
    stores = r >> 60 & 1;
    for (uint64_t i = 0; i < n; i++) words[i] = 0x10000 + (next_random(random) & 0xffffffff);
  }
  return TRACE_HEADER(site, n, implied, form, stores);
}

static void note_segment(uint64_t header, const uint64_t *words) {
  const uint64_t n = header >> ML_TRACE_WORDS_SHIFT & 31, form = header >> ML_TRACE_FORM_SHIFT & 3;
  const uint64_t site = header & UINT32_MAX, stores = header >> ML_TRACE_STORES_SHIFT;
  if (form == ML_TRACE_SIZED)
    for (uint64_t i = 0; i < n / 2; i++)
      note(site + i, words[2 * i], words[2 * i + 1], words[2 * i + 1] == 0 ? 3 : stores >> i & 1 ? 2 : 1);
  else
    for (uint64_t i = 0; i < n; i++)
      note(form == ML_TRACE_LANES ? site : site + i, words[i], 0,
           stores >> (form == ML_TRACE_LANES ? 0 : i) & 1 ? 2 : 1);
  for (uint64_t i = header >> ML_TRACE_IMPLIED_SHIFT & ML_TRACE_IMPLIED_MAX; i > 0; i--) note(0, 0, 0, 0);
}

static uint64_t first_site(void) { return *(volatile uint64_t *)&work_traced.first_site; }

static void run_segments(long segments, uint64_t seed) {
  uint64_t random = seed * UINT64_C(0x9e3779b97f4a7c15) + 1, words[32];
  for (long i = 0; i < segments; i++) {
    const uint64_t header = draw_segment(&random, words);
    note_segment(header, words);
    trace_segment(header + first_site(), words);
  }
}

/* A loop that holds `left` in a register. */
static void run_kept(long segments, uint64_t seed) {
  uint64_t random = seed * UINT64_C(0x9e3779b97f4a7c15) + 1, words[32], left = __memlens_trace.left;
  for (long i = 0; i < segments; i++) {
    const uint64_t header = draw_segment(&random, words);
    note_segment(header, words);
    left = trace_step(left, header + first_site(), words);
  }
  __memlens_trace.left = left;
}

/* One access a segment: exact totals without a log. */
static void run_simple(long n) {
  static uint64_t data[512];
  for (long i = 0; i < n; i++) {
    const uint64_t word = (uint64_t)(uintptr_t)&data[i % 512];
    trace_segment(TRACE_HEADER(i % 8, 1, 0, ML_TRACE_WORDS, 0) + first_site(), &word);
  }
}

/* A loop of two sites with a rhythm: 100 times the one, 100 times the other. */
static void run_rhythm(long n) {
  for (long i = 0; i < n; i++) {
    const uint64_t word = 0x100000 + 8 * (uint64_t)(i % 4096);
    trace_segment(TRACE_HEADER(i / 100 % 2, 1, 0, ML_TRACE_WORDS, 0) + first_site(), &word);
  }
}

static void *in_thread(void *argument) {
  run_segments(number[1], (uint64_t)(uintptr_t)argument);
  save_log();
  return NULL;
}

/* ---- cases ------------------------------------------------------------------------------------------------------------------ */
static void random_segments(void) { run_segments(number[0], (uint64_t)number[1]); }
static void kept(void) { run_kept(number[0], (uint64_t)number[1]); }
static void simple(void) { run_simple(number[0]); }
static void rhythm(void) { run_rhythm(number[0]); }

static void threads(void) {
  pthread_t made[256];
  for (long i = 0; i < number[0]; i++)
    if (pthread_create(&made[i], NULL, in_thread, (void *)(uintptr_t)(i + 1)) != 0) abort();
  for (long i = 0; i < number[0]; i++) pthread_join(made[i], NULL);
}

static void forks(void) {
  run_segments(number[0], 1);
  const pid_t child = fork();
  if (child == 0) {
    log_of_thread.count = 0;
    run_segments(number[1], 2);
    save_log();
    exit(0);
  }
  int status;
  waitpid(child, &status, 0);
  if (status != 0) abort();
  run_segments(number[0], 3);
}

/* In and out of regions; what is executed inside is logged, as it alone is counted then. */
static void regions(void) {
  uint64_t random = 7;
  for (long i = 0; i < number[0]; i++) {
    const char *saved = log_path;
    ENTER(outer);
    ENTER(inner);
    run_segments((long)(next_random(&random) % 20), random);
    LEAVE(inner);
    LEAVE(outer);
    log_path = NULL;
    run_segments((long)(next_random(&random) % 20), random);
    log_path = saved;
  }
}

static volatile sig_atomic_t handled;
static void on_signal(int signal_number) {
  (void)signal_number;
  const uint64_t word = 0xabcd0;
  for (int i = 0; i < 50; i++) trace_segment(TRACE_HEADER(39, 1, 0, ML_TRACE_WORDS, 0) + first_site(), &word);
  handled++;
}
static void on_signal_exit(int signal_number) {
  on_signal(signal_number);
  if (handled == 20) exit(3);
}

static void with_signals(void (*handler)(int)) {
  const char *saved = log_path;
  log_path = NULL;
  struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
  sigaction(SIGALRM, &action, NULL);
  const struct itimerval often = {{0, 100}, {0, 100}}, never = {{0, 0}, {0, 0}};
  setitimer(ITIMER_REAL, &often, NULL);
  for (long i = 0; i < number[0]; i++) {
    run_simple(200000);
    if (number[1] != 0) run_kept(20000, 5);
  }
  setitimer(ITIMER_REAL, &never, NULL);
  printf("%d\n", (int)handled);
  log_path = saved;
}
static void signals(void) { with_signals(on_signal); }
static void exit_in_handler(void) { with_signals(on_signal_exit); }

static void killed(void) {
  run_simple(number[0]);
  kill(getpid(), SIGKILL);
}

/* Loads a library number[0] times, and runs its traced function. */
static void reload(void) {
  for (long i = 0; i < number[0]; i++) {
    void *library = dlopen(getenv("TRACE_LIBRARY"), RTLD_NOW);
    if (library == NULL) abort();
    void (*run)(long);
    *(void **)&run = dlsym(library, "trace_library_run");
    run(number[1]);
    dlclose(library);
    run_simple(10);
  }
}

static void errors(void) {
  errno = 77;
  run_simple(number[0]);
  if (errno != 77) abort();
}

int main(int count, char **arguments) {
  static const struct {
    const char *name;
    void (*run)(void);
  } cases[] = {{"random", random_segments}, {"kept", kept},       {"simple", simple},
               {"rhythm", rhythm},          {"threads", threads}, {"forks", forks},
               {"regions", regions},        {"signals", signals}, {"exit_in_handler", exit_in_handler},
               {"killed", killed},          {"reload", reload},   {"errors", errors}};
  log_path = getenv("TRACE_LOG");
  for (int i = 2; i < count && i < 6; i++) number[i - 2] = atol(arguments[i]);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    if (count > 1 && strcmp(arguments[1], cases[i].name) == 0) {
      cases[i].run();
      save_log();
      return 0;
    }
  return 2;
}
