/* Comparisons, copies and fills of the C library, calls through pointers and inline assembly. Functions `inline_*` are judged by the emulator: the back end expands
 * what they call. Functions `library_*` have the closed forms of test_count_machine.py. The second argument says where the buffers differ. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#define KEPT __attribute__((noinline))
static char a[4096] __attribute__((aligned(64))), b[4096] __attribute__((aligned(64)));
volatile int sink;
volatile size_t size = 1000;

#define EQUAL(n) KEPT int inline_equal_##n(const char *x, const char *y) { return memcmp(x, y, n) == 0; }
#define ORDER(n) KEPT int inline_order_##n(const char *x, const char *y) { return memcmp(x, y, n); }
#define EACH(M) M(1) M(2) M(3) M(4) M(5) M(6) M(7) M(8) M(9) M(11) M(12) M(13) M(15) M(16)
EACH(EQUAL) EACH(ORDER)
EQUAL(24) EQUAL(31) EQUAL(32)

KEPT int library_order(const char *x, const char *y) { return memcmp(x, y, 640); }
KEPT int library_equal(const char *x, const char *y, size_t n) { return memcmp(x, y, n) == 0; }
KEPT int library_wide(const wchar_t *x, const wchar_t *y, size_t n) { return wmemcmp(x, y, n); }
KEPT void library_wide_copy(wchar_t *x, const wchar_t *y, size_t n) { wmemcpy(x, y, n); }
KEPT void library_wide_fill(wchar_t *x, size_t n) { wmemset(x, 1, n); }
KEPT int library_string(const char *x, const char *y) { return strcmp(x, y); }
KEPT void far_calls(void *(*copy)(void *, const void *, size_t), void (*own)(void), int n) {
  for (int i = 0; i < n; i++) copy(a + 2048, b + 2048, 64), own(), own();
}
KEPT void own(void) { sink = 1; }
KEPT void assembly(long *p) {
#if defined(__x86_64__)
  __asm__ volatile("incq %0" : "+m"(*p));
  __asm__ volatile("incq (%0)" : : "r"(p) : "memory");
  __asm__ volatile("" : : : "memory");       /* not listed: no code */
  __asm__ volatile("nop");                   /* not listed: no memory */
#else
  (void)p;
#endif
}

int main(int argc, char **argv) {
  const long at = argc > 1 ? atol(argv[1]) : -1;
  if (at >= 0) b[at] = 1;
#define CALL_EQUAL(n) sink = inline_equal_##n(a, b);
#define CALL_ORDER(n) sink = inline_order_##n(a, b) != 0;
  EACH(CALL_EQUAL) EACH(CALL_ORDER)
  CALL_EQUAL(24) CALL_EQUAL(31) CALL_EQUAL(32)
  sink = library_order(a, b) != 0;
  sink = library_equal(a, b, size);
  sink = library_wide((wchar_t *)a, (wchar_t *)b, size / 4) != 0;
  library_wide_copy((wchar_t *)(a + 2048), (wchar_t *)(b + 2048), size / 4);
  library_wide_fill((wchar_t *)(a + 2048), size / 8);
  sink = library_string(a, b) != 0;
  void *(*volatile copy)(void *, const void *, size_t) = memcpy;
  void (*volatile mine)(void) = own;
  far_calls(copy, mine, 10);
  long word = at;
  assembly(&word);
  printf("%ld\n", word);
  return 0;
}
