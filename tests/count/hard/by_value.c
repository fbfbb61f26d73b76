/* Structures passed by value: what the call copies, in every way that a call can be made. Each function that is judged begins with `pass_`; the
 * argument is the number of calls. */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define KEPT __attribute__((noinline))
#define STRUCTURE(name, words) \
  struct name {                \
    uint64_t v[words];         \
  }
STRUCTURE(three, 3);
STRUCTURE(nine, 9);
STRUCTURE(page, 512);
struct odd {
  char c[40];
};
struct two {
  uint64_t a, b;
};

static struct three threes[64];
static struct nine nines[64];
static struct page pages[8];
static struct odd odds[64];
volatile uint64_t sink;

KEPT uint64_t take_three(struct three s) { return s.v[0] + s.v[2]; }
KEPT uint64_t take_nine(struct nine s) { return s.v[0] + s.v[8]; }
KEPT uint64_t take_page(struct page s) { return s.v[0] + s.v[511]; }
KEPT uint64_t take_odd(struct odd s) { return (uint64_t)s.c[0] + (uint64_t)s.c[39]; }
KEPT uint64_t take_both(int a, struct three s, double b, struct nine t) { return s.v[0] + t.v[8] + (uint64_t)a + (uint64_t)b; }
KEPT uint64_t take_registers(struct two s) { return s.a + s.b; }
KEPT uint64_t take_any(int n, ...) {
  va_list list;
  va_start(list, n);
  struct nine s = va_arg(list, struct nine);
  va_end(list);
  return s.v[1] + s.v[7];
}
/* The same argument in the same place: a tail call that copies nothing (x86-64). */
KEPT uint64_t hand_on(struct nine s) { return take_nine(s); }
KEPT struct nine give_back(uint64_t x) {
  struct nine s;
  for (int i = 0; i < 9; i++) s.v[i] = x + (uint64_t)i;
  return s;
}
static inline __attribute__((always_inline)) uint64_t take_inlined(struct nine s) { return s.v[3]; }

KEPT void pass_three(int n) { for (int i = 0; i < n; i++) sink = take_three(threes[i & 63]); }
KEPT void pass_nine(int n) { for (int i = 0; i < n; i++) sink = take_nine(nines[i & 63]); }
KEPT void pass_page(int n) { for (int i = 0; i < n; i++) sink = take_page(pages[i & 7]); }
KEPT void pass_odd(int n) { for (int i = 0; i < n; i++) sink = take_odd(odds[i & 63]); }
KEPT void pass_both(int n) { for (int i = 0; i < n; i++) sink = take_both(i, threes[i & 63], 1.0, nines[i & 63]); }
KEPT void pass_any(int n) { for (int i = 0; i < n; i++) sink = take_any(1, nines[i & 63]); }
KEPT void pass_on(int n) { for (int i = 0; i < n; i++) sink = hand_on(nines[i & 63]); }
KEPT void pass_inlined(int n) { for (int i = 0; i < n; i++) sink = take_inlined(nines[i & 63]); }
KEPT void pass_registers(int n) { for (int i = 0; i < n; i++) sink = take_registers((struct two){threes[i & 63].v[0], 1}); }
KEPT void pass_pointer(int n, uint64_t (*to)(struct page)) { for (int i = 0; i < n; i++) sink = to(pages[i & 7]); }
KEPT void pass_back(int n) {
  for (int i = 0; i < n; i++) {
    struct nine s = give_back((uint64_t)i);
    sink = s.v[4];
  }
}

int main(int argc, char **argv) {
  const int n = argc > 1 ? atoi(argv[1]) : 100;
  for (int i = 0; i < 64; i++) threes[i].v[0] = nines[i].v[8] = (uint64_t)i;
  pass_three(n), pass_nine(n), pass_page(n), pass_odd(n), pass_both(n), pass_any(n), pass_on(n), pass_inlined(n), pass_registers(n);
  pass_pointer(n, take_page), pass_back(n);
  puts("done");
  return 0;
}
