/* Regions that a longjmp to a setjmp in their own frame leaves, and those that it must not close. `work(n)` writes 8 n bytes; what each region is to have
 * is in test_count_jumps.py. */
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>

#include "memlens.h"

#define KEPT __attribute__((noinline))
static jmp_buf back;
static sigjmp_buf signal_back;
static volatile uint64_t words[1024];

KEPT void work(int n) { for (int i = 0; i < n; i++) words[i] = (uint64_t)i; }
KEPT void fail(int depth) {
  words[0] = 1;
  if (depth == 0) longjmp(back, 1);
  fail(depth - 1);
}
static void handler(int number) { (void)number; siglongjmp(signal_back, 1); }

/* libpng's pattern: the region is begun behind the setjmp, and left by the jump. */
KEPT void decode(void) {
  if (setjmp(back)) return;
#pragma memlens begin(decode)
  work(10);
  fail(3);
#pragma memlens end
}
/* The function goes on after the jump. */
KEPT void goes_on(void) {
  if (setjmp(back) == 0) {
#pragma memlens begin(attempt)
    work(10);
    fail(3);
#pragma memlens end
  }
  work(100);
}
/* Begun before the setjmp: still open when it returns again. */
KEPT void around(void) {
#pragma memlens begin(around)
  if (setjmp(back) == 0) fail(3);
  work(20);
#pragma memlens end
}
KEPT void nested(void) {
#pragma memlens begin(outer)
  if (setjmp(back) == 0) {
#pragma memlens begin(inner)
#pragma memlens begin(innermost)
    work(5);
    fail(0);
#pragma memlens end
#pragma memlens end
  }
  work(30);
#pragma memlens end
}
KEPT void looping(void) {
  for (volatile int i = 0; i < 10; i++)
    if (setjmp(back) == 0) {
#pragma memlens begin(looping)
      work(3);
      fail(0);
#pragma memlens end
    } else {
      work(50);
    }
}
KEPT void by_signal(void) {
  if (sigsetjmp(signal_back, 1) == 0) {
#pragma memlens begin(by_signal)
    work(7);
    raise(SIGUSR1);
#pragma memlens end
  }
  work(100);
}
/* memlens.h: left by the jump, */
KEPT void by_header(void) {
  if (setjmp(back)) return;
  memlens_begin("by header");
  work(11);
  fail(2);
  memlens_end("by header");
}
/* and ended on both ways. */
KEPT void on_both_ways(void) {
  if (setjmp(back) == 0) {
    memlens_begin("both ways");
    work(12);
    fail(2);
  } else {
    work(13);
  }
  memlens_end("both ways");
}
/* A region by --memlens-functions: all of the function. */
KEPT void whole_function(void) {
  if (setjmp(back) == 0) fail(1);
  work(40);
}
KEPT void inner_function(void) {
  work(2);
  fail(1);
}
KEPT void calls_function(void) {
  if (setjmp(back) == 0) inner_function();
  work(60);
}

int main(void) {
  signal(SIGUSR1, handler);
  for (int i = 0; i < 4; i++) {
    decode(), work(1);
    goes_on(), work(1);
    around(), work(1);
    nested(), work(1);
    looping(), work(1);
    by_signal(), work(1);
    by_header(), work(1);
    on_both_ways(), work(1);
    whole_function(), work(1);
    calls_function(), work(1);
  }
#pragma memlens begin(last)
  work(1000);
#pragma memlens end
  puts("done");
  return 0;
}
