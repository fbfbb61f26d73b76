/* memlens.h in a counted program: constant and other names, begins in functions that return, and an object (this file, built
 * without __MEMLENS_COUNT__) of another compiler. */
#include <stdio.h>

#include "memlens.h"

#ifdef __MEMLENS_COUNT__
#include "count_by_hand.h"
COUNTED(work, 2);
void work(long n);
void other_object(const char *name);
void work(long n) { ADD(work, 0, (uint64_t)n); }

static int evaluated;
static const char *made(int i) {
  static char text[16];
  evaluated++;
  snprintf(text, sizeof text, "made%d", i);
  return text;
}
__attribute__((noinline)) static void begins(void) { memlens_begin("helped"); }
__attribute__((noinline)) static void ends(void) { memlens_end("helped"); }
__attribute__((noinline)) static void forgets(int which) {
  memlens_begin("forgotten");
  work(1);
  if (which) return;
  memlens_end("forgotten");
}

int main(void) {
  const char *variable = "variable";
  memlens_begin("constant");
  work(2);
  memlens_end("constant");
  for (int i = 0; i < 3; i++) {
    memlens_begin(made(i));
    work(3);
    memlens_end(made(i));
  }
  if (evaluated != 6) return 3;
  memlens_begin(variable);
  work(4);
  memlens_end(variable);
  {
    MEMLENS_SCOPE("scope");
    work(5);
    {
      MEMLENS_SCOPE(variable);
      work(6);
    }
  }
  begins();
  memlens_begin("inner");
  work(7);
  memlens_end("inner");
  work(8);
  ends();
  forgets(0); /* now known: its end comes from the frame of its begin */
  forgets(1);
  memlens_begin("after");
  work(9);
  memlens_end("after");
  other_object("other");
  for (int i = 0; i < 2000; i++) {
    memlens_begin("hot");
    memlens_end("hot");
  }
  memlens_phase("late");
  puts("done");
  return memlens_is_recording();
}
#else
void work(long n);
void other_object(const char *name);
void other_object(const char *name) {
  memlens_begin(name);
  work(10);
  memlens_end(name);
}
#endif
