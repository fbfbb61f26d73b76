/* How far a comparison of the C library went. Compiled code asks after each memcmp of a size that the back end does not expand; the library
 * itself is not counted. Pure: it serves its own module, recorded or not. */
#include "count.h"

#include <string.h>

static uint64_t first_difference(const unsigned char *a, const unsigned char *b, uint64_t bytes) {
  uint64_t at = 0;
  for (uint64_t x, y; bytes - at >= sizeof x; at += sizeof x) {
    memcpy(&x, a + at, sizeof x);
    memcpy(&y, b + at, sizeof y);
    if (x != y) break;
  }
  while (at < bytes && a[at] == b[at]) at++;
  return at;
}

/* Only bytes that the program's own comparison was allowed to read are read again. Another thread may have changed them: then all count. */
uint64_t __memlens_count_compared(const void *a, const void *b, uint64_t bytes, int result, uint64_t unit,
                                  const uint32_t *steps) {
  const uint64_t at = result != 0 ? first_difference(a, b, bytes) : bytes;
  if (steps != NULL) {
    while (at >= steps[0]) steps += 2;
    return steps[1];
  }
  return at < bytes ? (at / unit + 1) * unit : bytes;
}
