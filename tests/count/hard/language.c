// One function for each thing of the language or of clang that a compiler pass can get wrong. Prints what each computes.
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif
#define NOINLINE __attribute__((noinline))
static volatile long sink;
static long data[256];
static unsigned char bytes[256];

// ---- control flow ----
NOINLINE static long interpreter(const unsigned char *code, long n) {  // computed goto
  static const void *const labels[] = {&&add, &&sub, &&load, &&store, &&loop, &&done};
  long acc = 0, left = n;
  const unsigned char *at = code;
#define NEXT goto *labels[*at++]
  NEXT;
add: acc += data[at[0]]; at++; NEXT;
sub: acc -= data[at[0] & 15]; at++; NEXT;
load: acc ^= bytes[at[0]]; at++; NEXT;
store: data[200] = acc; NEXT;
loop: if (--left > 0) at = code; NEXT;
done: return acc;
}

NOINLINE static long switches(long n) {
  long s = 0;
  for (long i = 0; i < n; i++) {
    switch (i % 11) {
      case 0: s += data[i & 255]; break;
      case 1: case 2: s ^= data[1]; // falls
      case 3: data[3] += s; break;
      case 4: if (s & 1) continue; data[4]++; break;
      case 5: goto out;
      case 7: s += bytes[i & 255];
      default: data[5] ^= i;
    }
    if (i % 3 == 0) s += data[7];
    continue;
  out:
    data[8] += i;
    if (i > 900) break;
  }
  return s;
}

NOINLINE static long irreducible(long n) {
  long s = 0;
  if (n & 1) goto middle;
top:
  s += data[n & 255];
middle:
  data[n & 15] ^= s;
  if (--n > 0) { if (s & 2) goto top; goto middle; }
  return s;
}

NOINLINE static int asm_goto(int x) {
#if defined(__x86_64__)
  __asm__ goto("testl %0, %0\n\tjz %l1" : : "r"(x) : "cc" : zero);
  data[1] += 1;
  return 1;
zero:
  data[2] += 1;
  return 0;
#else
  data[x != 0 ? 1 : 2] += 1;
  return x != 0;
#endif
}

NOINLINE static long inline_asm(long n) {
  long s = 0;
  for (long i = 0; i < n; i++) {
    long v = data[i & 255];
    __asm__ volatile("" : "+r"(v) : : "memory");
    s += v;
  }
  return s;
}

// ---- frames ----
NOINLINE static unsigned long vla(int n) {
  unsigned long s = 0;
  for (int round = 1; round < n; round++) {
    long room[round];
    for (int i = 0; i < round; i++) room[i] = i * round;
    memset(room, round, sizeof *room);
    for (int i = 0; i < round; i++) s += (unsigned long)room[(i * 7) % round];
  }
  char *more = __builtin_alloca((size_t)n * 3);
  memcpy(more, bytes, (size_t)n);
  return s + (unsigned char)more[n - 1];
}

NOINLINE static long variadic(int n, ...) {
  va_list list, again;
  va_start(list, n);
  va_copy(again, list);
  long s = 0;
  for (int i = 0; i < n; i++) s += i % 2 ? (long)va_arg(list, double) : va_arg(list, long);
  for (int i = 0; i < n; i += 2) { s ^= va_arg(again, long); (void)va_arg(again, double); }
  va_end(list);
  va_end(again);
  return s;
}

struct big { long v[9]; };
struct small { int a; short b; char c; };
struct mixed { double d; float f; };
NOINLINE static struct big by_value(struct big b, struct small s, struct mixed m) {
  for (int i = 0; i < 9; i++) b.v[i] += s.a + s.b + s.c + (long)(m.d + m.f);
  return b;
}

struct fields { unsigned a : 3, b : 13, c : 1; signed d : 15; uint64_t e : 41, f : 7; } __attribute__((packed));
static struct fields field_array[32];
NOINLINE static long bit_fields(int n) {
  long s = 0;
  for (int i = 0; i < n; i++) {
    struct fields *f = &field_array[i & 31];
    f->a += i; f->b ^= i * 5; f->c = !f->c; f->d = -i; f->e += f->b; f->f |= i;
    s += f->a + f->b + f->c + f->d + (long)f->e + f->f;
  }
  return s;
}

// ---- calls ----
#if __has_attribute(musttail) && !defined(__powerpc64__)
#define TAIL __attribute__((musttail)) return
#else
#define TAIL return
#endif
NOINLINE static long tail_b(long n, long s);
NOINLINE static long tail_a(long n, long s) {
  s += data[n & 255];
  if (n <= 0) return s;
  TAIL tail_b(n - 1, s);
}
NOINLINE static long tail_b(long n, long s) {
  data[n & 7] ^= s;
  if (n % 5 == 4) TAIL tail_a(n - 2, s + 1);
  TAIL tail_a(n - 1, s);
}

struct tree { struct tree *left, *right; long value; };
static struct tree nodes[127];
// clang finds that it only reads memory; counting it does not.
NOINLINE static long walk(const struct tree *t) {
  if (!t) return 0;
  long here = t->value;
  long left = walk(t->left);
  here += t->value & 3;
  return here + left + walk(t->right);
}
__attribute__((pure)) NOINLINE static long pure_sum(const long *v, long n) {
  if (n == 0) return 0;
  if (n == 1) return v[0];
  return pure_sum(v, n / 2) + pure_sum(v + n / 2, n - n / 2) + v[0];
}

__attribute__((weak)) NOINLINE long overridden(long n);
__attribute__((weak)) NOINLINE long overridden(long n) { return data[n & 255] + 1; }
__attribute__((weak, noinline)) long kept(long n) { return data[n & 255] + data[1]; }

NOINLINE static long recursion(long depth) {
  volatile long room[4];
  room[depth & 3] = depth;
  if (depth == 0) return room[0];
  return recursion(depth - 1) + room[depth & 3] + data[depth & 255];
}

// ---- types ----
NOINLINE static uint64_t wide(int n) {
  static unsigned __int128 v[16];
  unsigned __int128 s = 1;
  for (int i = 0; i < n; i++) { v[i & 15] = s * (unsigned)(i + 3); s += v[(i * 3) & 15]; }
  return (uint64_t)(s >> 64) ^ (uint64_t)s;
}
NOINLINE static long long_doubles(int n) {
  static long double v[16];
  long double s = 1;
  for (int i = 0; i < n; i++) { v[i & 15] = s + i; s = v[(i * 3) & 15] / 2; }
  return (long)s;
}
NOINLINE static long complexes(int n) {
  static _Complex double v[16];
  _Complex double s = 1;
  for (int i = 0; i < n; i++) { v[i & 15] = s + i; s = v[(i * 3) & 15] / 2; }
  return (long)__real__ s;
}

struct pair { long a, b; } __attribute__((aligned(16)));
NOINLINE static long atomics(int n) {
  static _Atomic long l; static _Atomic int i; static _Atomic short h; static _Atomic char c; static _Atomic _Bool b;
  static _Atomic double d; static atomic_flag flag;
  static long plain;
  long s = 0;
  for (int k = 0; k < n; k++) {
    s += atomic_fetch_add(&l, k); s += atomic_fetch_sub_explicit(&i, k, memory_order_relaxed);
    s += atomic_fetch_and(&h, (short)~k); s += atomic_fetch_or(&c, (char)(k & 1)); s += atomic_fetch_xor(&i, 5);
    s += atomic_exchange(&b, k & 1);
    long want = k; s += atomic_compare_exchange_strong(&l, &want, k + 1);
    int other = 0; while (!atomic_compare_exchange_weak(&i, &other, other + 1)) {}
    d += 1.5;
    s += __atomic_fetch_nand(&plain, k, __ATOMIC_SEQ_CST);
    s += __atomic_load_n(&plain, __ATOMIC_ACQUIRE);
    __atomic_store_n(&plain, k, __ATOMIC_RELEASE);
    if (!atomic_flag_test_and_set(&flag)) atomic_flag_clear(&flag);
    atomic_thread_fence(memory_order_seq_cst);
    s += __sync_fetch_and_add(&plain, 2);
  }
  return s + (long)d + (long)l + plain;
}

typedef float vec __attribute__((vector_size(16)));
typedef int vec_int __attribute__((vector_size(64)));
NOINLINE static long vectors(int n) {
  static vec v[8]; static vec_int w[8];
  vec s = {1, 2, 3, 4}; vec_int t = {0};
  for (int i = 0; i < n; i++) { v[i & 7] += s; s = v[(i * 3) & 7]; w[i & 7] ^= t; t += i; s[1] = 0; }
  __builtin_nontemporal_store(s, &v[0]);
  return (long)s[0] + t[3] + w[1][2];
}
#ifdef __x86_64__
__attribute__((target("avx512f,avx512bw,avx512vl"))) NOINLINE static long masked(int *p, int n) {  // compiled, run where it can
  __m512i s = _mm512_setzero_si512();
  for (int i = 0; i < n; i += 16) {
    __mmask16 m = (__mmask16)(n - i >= 16 ? 0xffff : (1 << (n - i)) - 1);
    __m512i v = _mm512_maskz_loadu_epi32(m, p + i);
    s = _mm512_add_epi32(s, v);
    _mm512_mask_storeu_epi32(p + i, m, s);
    _mm512_mask_compressstoreu_epi32(p, m, v);
    s = _mm512_mask_expandloadu_epi32(s, m, p);
    s = _mm512_mask_i32gather_epi32(s, m, _mm512_and_epi32(v, _mm512_set1_epi32(15)), p, 4);
  }
  return _mm512_reduce_add_epi32(s);
}
__attribute__((target("avx2"))) NOINLINE static long gathered(const int *p, int n) {
  __m256i s = _mm256_setzero_si256();
  for (int i = 0; i + 8 <= n; i += 8) {
    __m256i v = _mm256_maskload_epi32(p + i, _mm256_set1_epi32(-(i & 8)));
    s = _mm256_add_epi32(s, _mm256_i32gather_epi32(p, _mm256_and_si256(v, _mm256_set1_epi32(15)), 4));
  }
  int out[8];
  _mm256_storeu_si256((__m256i *)out, s);
  return out[0] + out[7];
}
NOINLINE static long sse(const unsigned char *p, int n) {
  __m128i s = _mm_setzero_si128();
  for (int i = 0; i + 16 <= n; i += 16) s = _mm_add_epi64(s, _mm_sad_epu8(_mm_loadu_si128((const __m128i *)(p + i)), s));
  _mm_prefetch((const char *)p, _MM_HINT_T0);
  return _mm_cvtsi128_si64(s);
}
#endif

// ---- jumps out of it ----
static jmp_buf outer_place, inner_place;
NOINLINE static void jumper(long k) {
  data[9] += k;
  if (k % 3 == 0) longjmp(outer_place, 1);
  if (k % 3 == 1) longjmp(inner_place, 2);
  data[10] += k;
}
NOINLINE static long jumps(long n) {
  volatile long s = 0;
  for (volatile long i = 0; i < n; i++) {
    if (setjmp(outer_place) == 0) {
#pragma memlens begin(outer)
      s += data[i & 255];
      if (setjmp(inner_place) == 0) {
#pragma memlens begin(inner)
        s += data[1];
        jumper(i);
        s += data[2];
#pragma memlens end
      } else s += data[3];
      s += data[4];
#pragma memlens end(outer)
    } else s += data[5];
  }
  return s;
}

NOINLINE static unsigned long copies(long n) {
  static char from[4096], to[4096];
  unsigned long s = 0;
  for (long i = 0; i < n; i++) {
    memcpy(to, from, (size_t)(i & 1023)); memmove(to + 1, to, (size_t)(i & 511)); memset(from, (int)i, (size_t)(i & 255));
    memcpy(to + 2000, from, 64); __builtin_memset(to, 0, 100);
    struct big b; memcpy(&b, from, sizeof b); s += (unsigned long)b.v[i % 9];
    s += memcmp(from, to, (size_t)(i & 127)) > 0;
    s += strlen(from + 4095);
  }
  return s;
}

int main(void) {
  for (int i = 0; i < 256; i++) { data[i] = i * 37 % 101; bytes[i] = (unsigned char)(i * 11); }
  for (int i = 0; i < 127; i++)
    nodes[i] = (struct tree){2 * i + 1 < 127 ? &nodes[2 * i + 1] : NULL, 2 * i + 2 < 127 ? &nodes[2 * i + 2] : NULL, i};
  const unsigned char code[] = {0, 3, 2, 9, 3, 1, 200, 4, 5};
  printf("interpreter %ld\n", interpreter(code, 100));
  printf("switches %ld\n", switches(1000));
  printf("irreducible %ld %ld\n", irreducible(100), irreducible(33));
  printf("asm %d %d %ld\n", asm_goto(1), asm_goto(0), inline_asm(100));
  printf("vla %lu\n", vla(40));
  printf("variadic %ld\n", variadic(6, 1L, 2.0, 3L, 4.0, 5L, 6.0));
  struct big b = {{1, 2, 3, 4, 5, 6, 7, 8, 9}};
  b = by_value(b, (struct small){1, 2, 3}, (struct mixed){4, 5});
  printf("by_value %ld %ld\n", b.v[0], b.v[8]);
  printf("bit_fields %ld\n", bit_fields(100));
  printf("tail %ld\n", tail_a(1000, 0));
  printf("walk %ld %ld\n", walk(nodes), pure_sum(data, 100));
  printf("weak %ld %ld\n", overridden(5), kept(6));
  printf("recursion %ld\n", recursion(1000));
  printf("wide %lu %ld %ld\n", (unsigned long)wide(100), long_doubles(50), complexes(50));
  printf("atomics %ld\n", atomics(20));
  printf("vectors %ld\n", vectors(21));
#ifdef __x86_64__
  static int numbers[40];
  for (int i = 0; i < 40; i++) numbers[i] = i;
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) sink = masked(numbers, 37);
  for (int i = 0; i < 40; i++) numbers[i] = i;
  if (__builtin_cpu_supports("avx2")) sink = gathered(numbers, 40);
  printf("sse %ld\n", sse(bytes, 250));
#endif
  printf("jumps %ld\n", jumps(30));
  printf("copies %lu\n", copies(300));
  return 0;
}
