/* Measuring what this machine's memory can do at most (memlens calibrate): pinned threads, memory of a chosen size on a chosen node,
 * kernels that only move bytes. */
#ifndef MEMLENS_PEAKS_H
#define MEMLENS_PEAKS_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ml_peak_kernels {
  const char *name;
  unsigned width_bytes;
  uint64_t (*read)(const void *from, uint64_t bytes, uint64_t rounds);
  void (*write)(void *to, uint64_t bytes, uint64_t rounds, uint64_t value);
  void (*copy)(void *to, const void *from, uint64_t bytes, uint64_t rounds);       /* bytes read, as many written */
  void (*stream_write)(void *to, uint64_t bytes, uint64_t rounds, uint64_t value); /* NULL where there is none */
  double (*double_results)(uint64_t rounds); /* 20 results a lane and round: a product and a sum are two */
  double (*single_results)(uint64_t rounds);
};
/* NULL: this processor cannot run it, or there are no more. */
const struct ml_peak_kernels *ml_peak_kernels(unsigned number);
void ml_peak_link(void *memory, uint64_t bytes, uint64_t line_bytes, uint64_t seed);
void *ml_peak_chase(void *from, uint64_t steps); /* steps: a multiple of 8 */
/* 0: each kernel does what it should; else the number of the first that does not, -1: no such kernels. */
int ml_peak_kernels_check(unsigned number, void *memory, uint64_t bytes);

/* clang-format off */
#define ML_PEAKS(X) \
  X(READ, "read") X(WRITE, "write") X(COPY, "copy") X(STREAM_WRITE, "stream_write") X(LATENCY, "latency") \
  X(DOUBLE, "double") X(SINGLE, "single")
/* clang-format on */
#define ML_PEAK_VALUE(KIND, name) ML_PEAK_##KIND,
enum ml_peak_kind { ML_PEAKS(ML_PEAK_VALUE) ML_PEAK_KINDS };
#undef ML_PEAK_VALUE

struct ml_peak_request {
  const int *cpus; /* one pinned thread on each */
  size_t threads;
  uint64_t bytes;   /* of each thread: a multiple of 8192, or 0 if nothing needs memory */
  int node;         /* that the memory is bound to; -1: where the threads are */
  int huge_pages;   /* 1: ask for them, 0: forbid them */
  uint64_t kinds;   /* a bit for each enum ml_peak_kind */
  uint64_t time_ns; /* for all of it; each kind is measured for at least ML_PEAK_WINDOWS_LEAST windows */
  unsigned kernels; /* number of the kernels */
  uint64_t line_bytes;
};
#define ML_PEAK_WINDOWS_LEAST 8

struct ml_peak_figure {       /* of windows of time */
  double best, median, worst; /* bytes or results a second, or ns of one load; all 0: not measured */
  uint32_t windows;           /* that fit into the time, one after the other */
};
struct ml_peak_result {
  struct ml_peak_figure figures[ML_PEAK_KINDS];
  uint64_t huge_bytes; /* of the first thread's memory that huge pages back; UINT64_MAX: not known */
  uint64_t taken_ns;
};
/* 0 or a negative errno; `step` says what failed. Latency is that of the first thread, the others wait. */
int ml_peak_measure(const struct ml_peak_request *request, struct ml_peak_result *result, const char **step);

#ifdef __cplusplus
}
#endif
#endif
