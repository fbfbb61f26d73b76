// Regions that an exception passes by, as compiled code marks them and as memlens.h does.
#include <cstdio>
#include <stdexcept>
#include <thread>

#include "count_by_hand.h"
#include "memlens.h"

COUNTED(work, 2);
REGION(a, "a");
REGION(b, "b");

__attribute__((noinline)) static void work(long n) {
  ADD(work, 0, 1);
  for (long i = 0; i < n; i++) ADD(work, 1, 1);
}

__attribute__((noinline)) static void throws(int depth) {
  ENTER(b);
  work(9);
  if (depth > 0) throws(depth - 1);
  MEMLENS_SCOPE("guarded");
  work(99);
  throw std::runtime_error("passes the end of b");
}

static void catches() {
  ENTER(a);
  try {
    throws(2);
  } catch (const std::exception &) {
    __memlens_count_unwound();  // what the plugin puts after a landing pad
    work(4);
  }
  LEAVE(a);
}

int main() {
  for (int i = 0; i < 5; i++) catches();
  std::thread(catches).join();
  work(1);
  std::puts("done");
}
