/* Loops whose lanes take part by a condition: vectorised with masks where the machine has them. What they move is the closed form of test_count_machine.py,
 * whatever the vectors' length is. The argument is n. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define KEPT __attribute__((noinline))
KEPT void store_third(uint32_t *restrict a, const uint32_t *restrict b, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (b[i] % 3 == 0) a[i] = b[i];
}
KEPT uint64_t load_third(const uint64_t *restrict a, const uint32_t *restrict b, size_t n) {
  uint64_t sum = 0;
  for (size_t i = 0; i < n; i++)
    if (b[i] % 3 == 0) sum += a[i];
  return sum;
}
KEPT uint64_t gather_half(const uint64_t *a, const uint32_t *b, size_t n) {
  uint64_t sum = 0;
  for (size_t i = 0; i < n; i++)
    if (b[i] & 1) sum += a[b[i] & 1023];
  return sum;
}
KEPT void scatter_third(uint64_t *restrict a, const uint32_t *restrict b, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (b[i] % 3 == 0) a[(b[i] * 7) & 1023] = i;
}
KEPT void store_bytes(uint8_t *restrict a, const uint8_t *restrict b, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (b[i] & 1) a[i] = b[i];
}
#if defined(__ARM_FEATURE_SVE)
#include <arm_sve.h>
KEPT void intrinsics(float *a, const float *b, size_t n) {
  for (size_t i = 0; i < n; i += svcntw()) {
    svbool_t lanes = svwhilelt_b32(i, n);
    svfloat32x2_t both = svld2_f32(lanes, b + 2 * i);
    svst1_f32(lanes, a + i, svadd_f32_z(lanes, svget2_f32(both, 0), svget2_f32(both, 1)));
  }
}
#elif defined(__riscv_v)
#include <riscv_vector.h>
KEPT void intrinsics(float *a, const float *b, size_t n) {
  for (size_t i = 0, vl; i < n; i += vl) {
    vl = __riscv_vsetvl_e32m2(n - i);
    vfloat32m2_t even = __riscv_vlse32_v_f32m2(b + 2 * i, 8, vl), odd = __riscv_vlse32_v_f32m2(b + 2 * i + 1, 8, vl);
    __riscv_vse32_v_f32m2(a + i, __riscv_vfadd_vv_f32m2(even, odd, vl), vl);
  }
}
#else
KEPT void intrinsics(float *a, const float *b, size_t n) {
  for (size_t i = 0; i < n; i++) a[i] = b[2 * i] + b[2 * i + 1];
}
#endif

int main(int argc, char **argv) {
  const size_t n = argc > 1 ? strtoul(argv[1], 0, 10) : 1000;
  uint32_t *b = malloc(4 * n), *a = malloc(4 * n);
  uint64_t *w = malloc(8 * (n + 1024));
  uint8_t *c = malloc(2 * n);
  float *f = malloc(12 * n);
  for (size_t i = 0; i < n; i++) b[i] = (uint32_t)i, w[i] = i, c[i] = (uint8_t)i, f[n + 2 * i] = f[n + 2 * i + 1] = 1;
  store_third(a, b, n);
  uint64_t sum = load_third(w, b, n) + gather_half(w, b, n);
  scatter_third(w, b, n);
  store_bytes(c + n, c, n);
  intrinsics(f, f + n, n);
  printf("%llu\n", (unsigned long long)sum);
  return 0;
}
