/* Loops that move bytes and nothing else, written once and included for each vector width (peak_kernels.c).
 *
 * The including file defines ML_WIDTH (bytes of a vector), ML_NAME(name) and ML_TARGET (an attribute). Buffers are aligned to
 * 4096 and a multiple of 4096 long. The empty assembly keeps compilers from making calls of memset or memcpy out of the loops,
 * and from merging one round with the next. */
typedef uint64_t ML_NAME(words) __attribute__((vector_size(ML_WIDTH), may_alias));
typedef double ML_NAME(doubles) __attribute__((vector_size(ML_WIDTH)));
typedef float ML_NAME(floats) __attribute__((vector_size(ML_WIDTH)));

ML_TARGET static uint64_t ML_NAME(read)(const void *from, uint64_t bytes, uint64_t rounds) {
  ML_NAME(words) a = {0}, b = {0}, c = {0}, d = {0};
  for (uint64_t round = 0; round < rounds; round++) {
    const ML_NAME(words) *at = from, *const end = (const void *)((const char *)from + bytes);
    for (; at < end; at += 8) {
      a ^= at[0];
      b ^= at[1];
      c ^= at[2];
      d ^= at[3];
      a ^= at[4];
      b ^= at[5];
      c ^= at[6];
      d ^= at[7];
    }
    __asm__ volatile("" ::: "memory");
  }
  a ^= b ^ c ^ d;
  uint64_t sum = 0;
  for (unsigned i = 0; i < ML_WIDTH / 8; i++) sum ^= a[i];
  return sum;
}

ML_TARGET static void ML_NAME(write)(void *to, uint64_t bytes, uint64_t rounds, uint64_t value) {
  for (uint64_t round = 0; round < rounds; round++) {
    const ML_NAME(words) v = value - (ML_NAME(words)){0};
    ML_NAME(words) *at = to, *const end = (void *)((char *)to + bytes);
    for (; at < end; at += 8) {
      at[0] = v;
      at[1] = v;
      at[2] = v;
      at[3] = v;
      at[4] = v;
      at[5] = v;
      at[6] = v;
      at[7] = v;
      __asm__ volatile("" ::: "memory");
    }
  }
}

ML_TARGET static void ML_NAME(copy)(void *to, const void *from, uint64_t bytes, uint64_t rounds) {
  for (uint64_t round = 0; round < rounds; round++) {
    ML_NAME(words) *at = to, *const end = (void *)((char *)to + bytes);
    const ML_NAME(words) *source = from;
    for (; at < end; at += 4, source += 4) {
      const ML_NAME(words) a = source[0], b = source[1], c = source[2], d = source[3];
      at[0] = a;
      at[1] = b;
      at[2] = c;
      at[3] = d;
      __asm__ volatile("" ::: "memory");
    }
  }
}

/* Products and sums that wait for nothing but themselves, ten at a time: 20 results a lane and round. */
#define ML_ARITHMETIC(name, vector, scalar)                                                                    \
  ML_TARGET static double ML_NAME(name)(uint64_t rounds) {                                                     \
    vector x[10], m, s;                                                                                        \
    for (unsigned i = 0; i < sizeof m / sizeof m[0]; i++) m[i] = (scalar)0.999999, s[i] = (scalar)1e-6;        \
    for (unsigned i = 0; i < 10; i++) x[i] = m + (scalar)i * s;                                                \
    for (uint64_t round = 0; round < rounds; round++) {                                                        \
      x[0] = x[0] * m + s, x[1] = x[1] * m + s, x[2] = x[2] * m + s, x[3] = x[3] * m + s, x[4] = x[4] * m + s; \
      x[5] = x[5] * m + s, x[6] = x[6] * m + s, x[7] = x[7] * m + s, x[8] = x[8] * m + s, x[9] = x[9] * m + s; \
    }                                                                                                          \
    double sum = 0;                                                                                            \
    for (unsigned i = 0; i < 10; i++)                                                                          \
      for (unsigned lane = 0; lane < sizeof m / sizeof m[0]; lane++) sum += (double)x[i][lane];                \
    return sum;                                                                                                \
  }
ML_ARITHMETIC(double_results, ML_NAME(doubles), double)
ML_ARITHMETIC(single_results, ML_NAME(floats), float)
#undef ML_ARITHMETIC
#undef ML_WIDTH
#undef ML_NAME
#undef ML_TARGET
