/* One measurement of memlens calibrate: threads, their memory, windows of time.
 *
 * Threads run the same kernel piece after piece and note the time after each. Afterwards windows of half a millisecond are laid over
 * all of them: the work of all threads within one, by its length, is one figure. Work within a piece is taken to be even. So threads that
 * did not overlap cannot add up to more than there is, and on a busy machine a window in which nothing else ran is found
 * among many. The best window is the peak; the median says how far a usual one was from it. */
#include "internal.h"

#include "peaks.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WINDOW_NS UINT64_C(500000)
#define PIECE_NS UINT64_C(40000) /* readings of the clock are small beside it, and it is small beside a window */
#define QUARTERS 4
#define STAMPS_MOST 131072           /* some seconds' worth */
#define LATE_NS UINT64_C(5000000000) /* so long is waited for threads that have not run */
#define MOMENTS_MOST (UINT64_C(1) << 20)
#define FIRST_PART_BYTES (UINT64_C(1) << 20)
#define WARM_LINES (UINT64_C(1) << 20)
#define HUGE_BYTES (UINT64_C(2) << 20)
#define MPOL_BIND 2

struct shared {
  const struct ml_peak_request *request;
  const struct ml_peak_kernels *kernels;
  struct ml_peak_result *result;
  uint32_t arrived, generation; /* the barrier */
  uint32_t stop;                /* this kind has been measured long enough */
  uint64_t amount, window_ns;
  int error;
  const char *step;
};

struct worker {
  struct shared *shared;
  pthread_t thread;
  size_t number;
  unsigned char *memory;
  uint64_t offset; /* where the next part begins */
  uint64_t *stamps;
  size_t stamp_count;
  void *chased; /* where the last piece ended: each piece goes on from there, through the whole cycle */
  struct worker *all;
  uint64_t sink; /* what kernels return goes somewhere */
};

/* Spins: a thread that slept would begin late. Where threads outnumber processors it gives way. */
static void barrier(struct shared *shared) {
  const uint32_t generation = __atomic_load_n(&shared->generation, __ATOMIC_ACQUIRE);
  if (__atomic_add_fetch(&shared->arrived, 1, __ATOMIC_ACQ_REL) == shared->request->threads) {
    __atomic_store_n(&shared->arrived, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&shared->generation, generation + 1, __ATOMIC_RELEASE);
    return;
  }
  for (unsigned spins = 0; __atomic_load_n(&shared->generation, __ATOMIC_ACQUIRE) == generation; spins++)
    if (spins > 2000) sched_yield();
}

static void fail(struct shared *shared, int error, const char *step) {
  int none = 0;
  if (__atomic_compare_exchange_n(&shared->error, &none, error, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
    shared->step = step;
}

/* ---- memory ------------------------------------------------------------------------------------------------------- */
static void prepare(struct worker *worker) {
  struct shared *shared = worker->shared;
  const struct ml_peak_request *request = shared->request;
  cpu_set_t *set = CPU_ALLOC((size_t)request->cpus[worker->number] + 1);
  const size_t set_bytes = CPU_ALLOC_SIZE((size_t)request->cpus[worker->number] + 1);
  if (set == NULL) return fail(shared, ENOMEM, "pinning a thread");
  CPU_ZERO_S(set_bytes, set);
  CPU_SET_S((size_t)request->cpus[worker->number], set_bytes, set);
  if (sched_setaffinity(0, set_bytes, set) != 0) fail(shared, errno, "pinning a thread");
  CPU_FREE(set);
  worker->stamps = malloc(STAMPS_MOST * sizeof *worker->stamps);
  if (worker->stamps == NULL) return fail(shared, ENOMEM, "getting memory");
  memset(worker->stamps, 0, STAMPS_MOST * sizeof *worker->stamps); /* no page fault later */
  if (request->bytes == 0 || shared->error != 0) return;
  unsigned char *memory = mmap(NULL, request->bytes + HUGE_BYTES, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return fail(shared, errno, "getting memory");
  worker->memory = memory;
  unsigned char *const aligned = (void *)(((uintptr_t)memory + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES);
  madvise(aligned, request->bytes, request->huge_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  if (request->node >= 0) {
    unsigned long mask[64] = {0};
    if ((size_t)request->node >= 8 * sizeof mask - 1) return fail(shared, EINVAL, "binding memory to a node");
    mask[(size_t)request->node / (8 * sizeof mask[0])] |= 1UL << ((size_t)request->node % (8 * sizeof mask[0]));
    if (syscall(SYS_mbind, aligned, request->bytes, MPOL_BIND, mask, 8 * sizeof mask, 0) != 0)
      return fail(shared, errno, "binding memory to a node");
  }
  shared->kernels->write(aligned, request->bytes, 1, 1); /* first touch, by the thread that will use it */
}

static unsigned char *memory_of(const struct worker *worker) {
  return (void *)(((uintptr_t)worker->memory + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES);
}

/* AnonHugePages of the mapping at an address. */
static uint64_t huge_bytes_at(const void *address) {
  FILE *file = fopen("/proc/self/smaps", "re");
  if (file == NULL) return UINT64_MAX;
  char line[512];
  uint64_t found = UINT64_MAX;
  for (int inside = 0; fgets(line, sizeof line, file) != NULL;) {
    char *rest;
    const uint64_t begin = strtoull(line, &rest, 16);
    if (*rest == '-') {
      const uint64_t end = strtoull(rest + 1, NULL, 16);
      inside = begin <= (uintptr_t)address && (uintptr_t)address < end;
    } else if (inside && strncmp(line, "AnonHugePages:", 14) == 0) {
      found = strtoull(line + 14, NULL, 10) << 10;
      break;
    }
  }
  fclose(file);
  return found;
}

/* ---- pieces of work ---------------------------------------------------------------------------------------------------
 * Memory that takes longer than a piece should is swept in parts, each piece the next one. */
static int in_memory(enum ml_peak_kind kind) { return kind <= ML_PEAK_STREAM_WRITE; }

/* What a sweep covers of a thread's memory; a copy goes from one half to the other. */
static uint64_t extent_of(const struct shared *shared, enum ml_peak_kind kind) {
  return kind == ML_PEAK_COPY ? shared->request->bytes / 2 : shared->request->bytes;
}

/* `amount`: bytes where memory is swept, else rounds. */
static void run(struct worker *worker, enum ml_peak_kind kind, uint64_t amount) {
  const struct ml_peak_kernels *kernels = worker->shared->kernels;
  if (!in_memory(kind)) {
    if (kind == ML_PEAK_DOUBLE) worker->sink += (uint64_t)kernels->double_results(amount);
    else if (kind == ML_PEAK_SINGLE) worker->sink += (uint64_t)kernels->single_results(amount);
    else worker->chased = ml_peak_chase(worker->chased, amount * 8);
    return;
  }
  const uint64_t extent = extent_of(worker->shared, kind);
  const uint64_t bytes = amount < extent ? amount : extent, rounds = amount < extent ? 1 : amount / extent;
  if (worker->offset + bytes > extent) worker->offset = 0;
  unsigned char *at = memory_of(worker) + worker->offset;
  worker->offset += bytes;
  switch (kind) {
    case ML_PEAK_READ: worker->sink += kernels->read(at, bytes, rounds); break;
    case ML_PEAK_WRITE: kernels->write(at, bytes, rounds, rounds); break;
    case ML_PEAK_COPY: kernels->copy(at + extent, at, bytes, rounds); break;
    default: kernels->stream_write(at, bytes, rounds, rounds); break;
  }
}

/* What `amount` is in bytes, results or loads, of one thread. */
static double work_of(const struct shared *shared, enum ml_peak_kind kind, uint64_t amount) {
  switch (kind) {
    case ML_PEAK_DOUBLE: return 20.0 * shared->kernels->width_bytes / 8 * (double)amount;
    case ML_PEAK_SINGLE: return 20.0 * shared->kernels->width_bytes / 4 * (double)amount;
    case ML_PEAK_LATENCY: return 8.0 * (double)amount;
    default: return (kind == ML_PEAK_COPY ? 2.0 : 1.0) * (double)amount; /* read and written */
  }
}

static uint64_t first_amount(const struct shared *shared, enum ml_peak_kind kind) {
  if (!in_memory(kind)) return 64;
  const uint64_t extent = extent_of(shared, kind);
  return extent < FIRST_PART_BYTES ? extent : FIRST_PART_BYTES;
}

/* A larger one that takes long enough: whole sweeps, or a part of one that is a multiple of a page. */
static uint64_t grown_amount(const struct shared *shared, enum ml_peak_kind kind, uint64_t amount, uint64_t ns) {
  const uint64_t factor = PIECE_NS / ns + 1, wanted = amount * (factor < 2 ? 2 : factor > 64 ? 64 : factor);
  if (!in_memory(kind)) return wanted;
  const uint64_t extent = extent_of(shared, kind);
  return wanted >= extent ? wanted / extent * extent : wanted / 4096 * 4096;
}

/* ---- windows ---------------------------------------------------------------------------------------------------------- */
/* Pieces that a thread had done at a moment; `at` remembers where the last question led. */
static double pieces_at(const struct worker *worker, size_t *at, uint64_t moment) {
  while (*at + 1 < worker->stamp_count && worker->stamps[*at + 1] <= moment) (*at)++;
  if (*at + 1 >= worker->stamp_count) return (double)*at;
  const uint64_t begin = worker->stamps[*at], end = worker->stamps[*at + 1];
  return (double)*at + (end > begin && moment > begin ? (double)(moment - begin) / (double)(end - begin) : 0.0);
}

static int by_value(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Sums of all threads at moments a quarter of a window apart, then the differences over whole windows. */
static void evaluate(struct worker *first, enum ml_peak_kind kind) {
  struct shared *shared = first->shared;
  const size_t workers = kind == ML_PEAK_LATENCY ? 1 : shared->request->threads;
  uint64_t begin = 0, end = UINT64_MAX;
  for (size_t i = 0; i < workers; i++) {
    const struct worker *worker = &first->all[i];
    if (worker->stamps[0] > begin) begin = worker->stamps[0];
    if (worker->stamps[worker->stamp_count - 1] < end) end = worker->stamps[worker->stamp_count - 1];
  }
  const uint64_t step = shared->window_ns / QUARTERS;
  if (end <= begin || (end - begin) / step < QUARTERS) return;
  size_t moments = (end - begin) / step + 1;
  if (moments > MOMENTS_MOST) moments = MOMENTS_MOST;
  double *sums = calloc(moments, sizeof *sums);
  if (sums == NULL) return;
  for (size_t i = 0; i < workers; i++)
    for (size_t moment = 0, at = 0; moment < moments; moment++)
      sums[moment] += pieces_at(&first->all[i], &at, begin + moment * step);
  const double work = work_of(shared, kind, shared->amount);
  const size_t windows = moments - QUARTERS;
  for (size_t i = 0; i < windows; i++)
    sums[i] = (sums[i + QUARTERS] - sums[i]) * work / (double)(step * QUARTERS) * 1e9;
  qsort(sums, windows, sizeof *sums, by_value);
  struct ml_peak_figure *figure = &shared->result->figures[kind];
  *figure = (struct ml_peak_figure){.best = sums[windows - 1],
                                    .median = sums[windows / 2],
                                    .worst = sums[0],
                                    .windows = (uint32_t)((end - begin) / shared->window_ns)};
  free(sums);
  if (kind != ML_PEAK_LATENCY) return;
  /* A window in which hardly a load ended is one that was taken from us. */
  figure->best = 1e9 / figure->best;
  figure->median = figure->median > 0 ? 1e9 / figure->median : 0;
  figure->worst = figure->worst > 0 ? 1e9 / figure->worst : 0;
}

static void begin_kind(struct worker *worker, enum ml_peak_kind kind) {
  struct shared *shared = worker->shared;
  if (kind == ML_PEAK_LATENCY) {
    const uint64_t bytes = shared->request->bytes, line_bytes = shared->request->line_bytes, lines = bytes / line_bytes;
    worker->chased = memory_of(worker);
    ml_peak_link(worker->chased, bytes, line_bytes, 7);
    /* Once round, so that a cache holds what it can. Larger memory has just been through the caches, in no order. */
    if (lines <= WARM_LINES) worker->chased = ml_peak_chase(worker->chased, lines / 8 * 8);
  }
  shared->amount = first_amount(shared, kind);
  shared->stop = 0;
}

/* How much makes a piece: the first thread tries, alone. */
static void choose_amount(struct worker *worker, enum ml_peak_kind kind) {
  struct shared *shared = worker->shared;
  for (;;) {
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < 3; i++) {
      const uint64_t begin = ml_monotonic_ns();
      run(worker, kind, shared->amount);
      const uint64_t ns = ml_monotonic_ns() - begin;
      if (ns < least) least = ns > 0 ? ns : 1;
    }
    if (least >= PIECE_NS / 2) {
      shared->window_ns = least * 10 > WINDOW_NS ? least * 10 : WINDOW_NS;
      return;
    }
    shared->amount = grown_amount(shared, kind, shared->amount, least);
  }
}

/* On a busy machine a thread may not have run at all yet: without some windows of all of them there is no figure. */
static int all_have_run(const struct worker *first, enum ml_peak_kind kind) {
  const size_t workers = kind == ML_PEAK_LATENCY ? 1 : first->shared->request->threads;
  uint64_t begin = 0, end = UINT64_MAX;
  for (size_t i = 0; i < workers; i++) {
    const struct worker *worker = &first->all[i];
    const size_t count = __atomic_load_n(&worker->stamp_count, __ATOMIC_ACQUIRE);
    if (count < 2) return 0;
    if (worker->stamps[0] > begin) begin = worker->stamps[0];
    if (worker->stamps[count - 1] < end) end = worker->stamps[count - 1];
  }
  return end > begin && end - begin >= 4 * first->shared->window_ns;
}

static void measure(struct worker *worker, enum ml_peak_kind kind, uint64_t time_ns) {
  struct shared *shared = worker->shared;
  const int first = worker->number == 0, working = first || kind != ML_PEAK_LATENCY;
  if (first) begin_kind(worker, kind);
  worker->offset = 0;
  if (working && in_memory(kind)) run(worker, kind, extent_of(shared, kind)); /* warms up */
  barrier(shared);
  if (first) choose_amount(worker, kind);
  barrier(shared);
  const uint64_t begin = worker->stamps[0] = ml_monotonic_ns(), enough_ns = ML_PEAK_WINDOWS_LEAST * shared->window_ns;
  __atomic_store_n(&worker->stamp_count, 1, __ATOMIC_RELEASE);
  while (working && !__atomic_load_n(&shared->stop, __ATOMIC_RELAXED)) {
    run(worker, kind, shared->amount);
    const uint64_t now = worker->stamps[worker->stamp_count] = ml_monotonic_ns(), spent = now - begin;
    __atomic_store_n(&worker->stamp_count, worker->stamp_count + 1, __ATOMIC_RELEASE);
    const int enough =
        first && spent >= time_ns && spent >= enough_ns && (all_have_run(worker, kind) || spent >= time_ns + LATE_NS);
    /* No room for more stamps: the first thread ends it, another one waits for that. */
    while (worker->stamp_count == STAMPS_MOST && !first && !__atomic_load_n(&shared->stop, __ATOMIC_RELAXED))
      sched_yield();
    if (enough || (first && worker->stamp_count == STAMPS_MOST)) __atomic_store_n(&shared->stop, 1, __ATOMIC_RELAXED);
  }
  barrier(shared);
  if (first) evaluate(worker, kind);
  barrier(shared);
}

static void *work(void *argument) {
  struct worker *worker = argument;
  struct shared *shared = worker->shared;
  const uint64_t begin = ml_monotonic_ns();
  prepare(worker);
  barrier(shared);
  if (shared->error != 0) return NULL;
  if (worker->number == 0 && worker->memory != NULL) shared->result->huge_bytes = huge_bytes_at(memory_of(worker));
  uint64_t kinds = shared->request->kinds;
  if (shared->kernels->stream_write == NULL) kinds &= ~(UINT64_C(1) << ML_PEAK_STREAM_WRITE);
  unsigned left = (unsigned)__builtin_popcountll(kinds);
  for (int kind = 0; kind < ML_PEAK_KINDS; kind++) {
    if (!(kinds >> kind & 1)) continue;
    const uint64_t spent = ml_monotonic_ns() - begin;
    const uint64_t rest = spent < shared->request->time_ns ? shared->request->time_ns - spent : 0;
    measure(worker, (enum ml_peak_kind)kind, rest / left--);
  }
  return NULL;
}

int ml_peak_measure(const struct ml_peak_request *request, struct ml_peak_result *result, const char **step) {
  memset(result, 0, sizeof *result);
  result->huge_bytes = UINT64_MAX;
  struct shared *shared = calloc(1, sizeof *shared);
  struct worker *workers = calloc(request->threads, sizeof *workers);
  *step = "getting memory";
  int error = shared == NULL || workers == NULL || request->threads == 0 ? ENOMEM : 0;
  const uint64_t begin = ml_monotonic_ns();
  if (error == 0) {
    shared->request = request;
    shared->result = result;
    shared->kernels = ml_peak_kernels(request->kernels);
    if (shared->kernels == NULL) error = EINVAL;
  }
  size_t started = 0;
  for (; error == 0 && started < request->threads; started++) {
    struct worker *worker = &workers[started];
    worker->shared = shared;
    worker->number = started;
    worker->all = workers;
    error = pthread_create(&worker->thread, NULL, work, worker);
    if (error != 0) break;
  }
  if (error != 0 && started > 0) {
    /* Those that began wait for all: the missing ones count as arrived, and the others see that it failed. */
    fail(shared, error, "starting threads");
    if (__atomic_add_fetch(&shared->arrived, (uint32_t)(request->threads - started), __ATOMIC_ACQ_REL) ==
        request->threads)
      __atomic_store_n(&shared->generation, 1, __ATOMIC_RELEASE);
  }
  for (size_t i = 0; i < started; i++) {
    pthread_join(workers[i].thread, NULL);
    free(workers[i].stamps);
    if (workers[i].memory != NULL) munmap(workers[i].memory, request->bytes + HUGE_BYTES);
  }
  if (shared != NULL && shared->error != 0) {
    error = shared->error;
    *step = shared->step;
  }
  result->taken_ns = ml_monotonic_ns() - begin;
  free(workers);
  free(shared);
  return -error;
}
