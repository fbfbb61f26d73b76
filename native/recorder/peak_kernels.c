/* The kernels of memlens calibrate: for each vector width of this processor a version, chosen at run time. */
#include "peaks.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#define ML_WIDTH 16
#define ML_NAME(name) base_##name
#define ML_TARGET
#include "peak_kernels.h"

#if defined(__x86_64__)
#define ML_WIDTH 32
#define ML_NAME(name) avx2_##name
#define ML_TARGET __attribute__((target("avx2,fma")))
#include "peak_kernels.h"

#define ML_WIDTH 64
#define ML_NAME(name) avx512_##name
#define ML_TARGET __attribute__((target("avx512f")))
#include "peak_kernels.h"

/* Past the caches: no line is read before it is written. */
static void stream_write(void *to, uint64_t bytes, uint64_t rounds, uint64_t value) {
  const __m128i v = _mm_set1_epi64x((long long)value);
  for (uint64_t round = 0; round < rounds; round++) {
    __m128i *at = to, *const end = (void *)((char *)to + bytes);
    for (; at < end; at += 4) {
      _mm_stream_si128(at, v);
      _mm_stream_si128(at + 1, v);
      _mm_stream_si128(at + 2, v);
      _mm_stream_si128(at + 3, v);
    }
    _mm_sfence();
  }
}
#define STREAM_WRITE stream_write
#else
#define STREAM_WRITE NULL
#endif

#define KERNELS(label, prefix, width)                                    \
  {label,         width,        prefix##_read,           prefix##_write, \
   prefix##_copy, STREAM_WRITE, prefix##_double_results, prefix##_single_results}

static const struct ml_peak_kernels all[] = {
    KERNELS("16 bytes", base, 16),
#if defined(__x86_64__)
    KERNELS("32 bytes (AVX2)", avx2, 32),
    KERNELS("64 bytes (AVX-512)", avx512, 64),
#endif
};

const struct ml_peak_kernels *ml_peak_kernels(unsigned number) {
#if defined(__x86_64__)
  __builtin_cpu_init(); /* it asks the system, too, whether it keeps these registers */
  if (number == 1 && !(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))) return NULL;
  if (number == 2 && !(__builtin_cpu_supports("avx512f") && ml_peak_kernels(1) != NULL)) return NULL;
#endif
  return number < sizeof all / sizeof all[0] ? &all[number] : NULL;
}

/* Sattolo's shuffle of the lines: one cycle through all of them. Each line holds the address of the next. */
void ml_peak_link(void *memory, uint64_t bytes, uint64_t line_bytes, uint64_t seed) {
  const uint64_t lines = bytes / line_bytes;
  char *const base = memory;
  for (uint64_t i = 0; i < lines; i++) *(void **)(base + i * line_bytes) = base + i * line_bytes;
  uint64_t state = seed | 1;
  for (uint64_t i = lines - 1; lines > 1 && i > 0; i--) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    const uint64_t j = (uint64_t)((unsigned __int128)state * i >> 64); /* below i: never itself */
    void **const a = (void **)(base + i * line_bytes), **const b = (void **)(base + j * line_bytes);
    void *const kept = *a;
    *a = *b;
    *b = kept;
  }
}

void *ml_peak_chase(void *from, uint64_t steps) {
  void *at = from;
  for (uint64_t i = 0; i < steps; i += 8) {
    at = *(void **)at, at = *(void **)at, at = *(void **)at, at = *(void **)at;
    at = *(void **)at, at = *(void **)at, at = *(void **)at, at = *(void **)at;
    __asm__ volatile("" : "+r"(at));
  }
  return at;
}

int ml_peak_kernels_check(unsigned number, void *memory, uint64_t bytes) {
  const struct ml_peak_kernels *kernels = ml_peak_kernels(number);
  if (kernels == NULL) return -1;
  uint64_t *const words = memory;
  const uint64_t count = bytes / 8, half = bytes / 2;
  uint64_t expected = 0;
  for (uint64_t i = 0; i < count; i++) {
    words[i] = i * UINT64_C(0x9e3779b97f4a7c15);
    expected ^= words[i];
  }
  if (kernels->read(memory, bytes, 1) != expected || kernels->read(memory, bytes, 2) != 0) return 1;
  kernels->copy((char *)memory + half, memory, half, 1);
  for (uint64_t i = 0; i < count / 2; i++)
    if (words[i] != i * UINT64_C(0x9e3779b97f4a7c15) || words[i + count / 2] != words[i]) return 2;
  kernels->write(memory, half, 1, 77);
  for (uint64_t i = 0; i < count; i++)
    if ((words[i] == 77) != (i < count / 2)) return 3;
  if (kernels->stream_write != NULL) {
    kernels->stream_write(memory, half, 1, 78);
    for (uint64_t i = 0; i < count; i++)
      if ((words[i] == 78) != (i < count / 2)) return 4;
  }
  /* x → x·m + s from ten starts: every lane of a start is alike, whatever the width. */
  const unsigned lanes = kernels->width_bytes / 8;
  double sum = 0;
  for (unsigned i = 0; i < 10; i++) {
    double x = 0.999999 + (double)i * 1e-6;
    for (int round = 0; round < 100; round++) x = x * 0.999999 + 1e-6;
    sum += x * lanes;
  }
  const double got = kernels->double_results(100);
  if (got < sum * (1 - 1e-12) || got > sum * (1 + 1e-12)) return 5;
  const double single = kernels->single_results(100);
  if (single < 2 * sum * (1 - 1e-4) || single > 2 * sum * (1 + 1e-4)) return 6;
  const uint64_t line_bytes = 64, lines = bytes / line_bytes;
  ml_peak_link(memory, bytes, line_bytes, 7);
  void *at = memory, *eighth = NULL;
  for (uint64_t i = 1; i <= lines; i++) {
    if (((at = *(void **)at) == memory) != (i == lines)) return 7; /* every line once, then back */
    if (i == 8) eighth = at;
  }
  return ml_peak_chase(memory, 8) == eighth ? 0 : 8;
}
