/* Windows after windows from one state: each must have the bytes that a fresh state gives. */
#include <stdio.h>
#include <stdlib.h>

#include "memlens_stream.h"

static uint64_t seed = 88172645463325252u;
static uint64_t random_number(void) {
  seed ^= seed << 13;
  seed ^= seed >> 7;
  seed ^= seed << 17;
  return seed;
}

int main(void) {
  static struct ml_stream kept;
  unsigned char *one = malloc(4000 * ML_STREAM_MAX_ACCESS), *two = malloc(4000 * ML_STREAM_MAX_ACCESS);
  if (!one || !two) return 2;
  for (int window = 0; window < 400; window++) {
    static const unsigned counts[] = {0, 1, 100, 255, 256, 257, 258, 1024, 4000};
    unsigned count = counts[random_number() % 9];
    uint64_t spread = random_number() % 3 ? 2048 : 64;
    struct ml_stream *fresh = calloc(1, sizeof *fresh);
    if (!fresh) return 2;
    ml_stream_begin(&kept);
    ml_stream_begin(fresh);
    unsigned char *at = one, *other = two;
    for (unsigned i = 0; i < count; i++) {
      uint64_t pc = 0x400000 + random_number() % spread;
      uint64_t address = random_number() % 5 == 0 ? random_number() % 3 : random_number() >> (random_number() % 64);
      unsigned bytes = 1u << random_number() % 7, operation = 1 + random_number() % 3;
      at = ml_stream_add_pc(&kept, at, pc, address, bytes, operation);
      other = ml_stream_add_pc(fresh, other, pc, address, bytes, operation);
    }
    if (at - one != other - two || memcmp(one, two, (size_t)(at - one)) != 0) {
      printf("window %d of %u accesses differs\n", window, count);
      return 1;
    }
    free(fresh);
  }
  return 0;
}
