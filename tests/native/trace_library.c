/* A traced library for trace_program: `reload` loads it again and again. */
#include "trace_by_hand.h"

TRACED(own, 3);

__attribute__((visibility("default"))) void trace_library_run(long n) {
  for (long i = 0; i < n; i++) {
    const uint64_t words[2] = {0x700000 + 8 * (uint64_t)i, 0x800000 + 8 * (uint64_t)i};
    trace_segment(TRACE_HEADER(1, 2, 0, ML_TRACE_WORDS, 2) + *(volatile uint64_t *)&own_traced.first_site, words);
  }
}
