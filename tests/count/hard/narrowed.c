/* Loads and stores of which instruction selection keeps a part. Each function `part_*` is judged by the emulator. */
#include <stdint.h>
#include <stdio.h>

#define KEPT __attribute__((noinline))
struct flags {
  uint32_t word, shift;
  uint64_t wide;
  uint16_t half;
};
static struct flags all[64];
static uint64_t out[64];
volatile uint64_t sink;

#define PART(name, code) \
  KEPT uint64_t part_##name(struct flags *restrict f, uint64_t *restrict o, int i) { code; return o[i & 63]; }
PART(trunc32, *(uint32_t *)o = (uint32_t)f->wide)
PART(trunc16, *(uint16_t *)o = (uint16_t)f->wide)
PART(trunc8, *(uint8_t *)o = (uint8_t)f->word)
PART(mask8, o[0] = f->wide & 0xff)
PART(mask16, o[0] = f->word & 0xffff)
PART(mask32, o[0] = f->wide & 0xffffffff)
PART(upper32, o[0] = f->wide >> 32)
PART(upper8, o[0] = f->word >> 24)
PART(upper16, o[0] = f->word >> 16)
PART(middle8, *(uint8_t *)o = (uint8_t)(f->wide >> 16))
PART(middle16, o[0] = (f->wide >> 16) & 0xffff)
PART(twice, o[0] = (f->wide & 0xff) + (f->wide >> 8))
PART(shift_left, o[0] = (uint64_t)i << f->shift)
PART(shift_right, o[0] = (uint32_t)i >> f->shift)
PART(shift_memory, o[0] = f->wide << f->shift)
PART(set_bit, f->word |= 4)
PART(set_high_bit, f->wide |= (uint64_t)1 << 40)
PART(clear_bits, f->word &= ~0x300u)
PART(flip_half, f->wide ^= 0xffff0000u)
PART(set_spread, f->word |= 0x10001)
PART(set_two_bytes, f->word |= 0x180)
PART(add, f->word += 4)

int main(void) {
  for (int i = 0; i < 50; i++) {
    struct flags *f = &all[i & 63];
#define CALL(name) sink = part_##name(f, out, i);
    f->wide = (uint64_t)i * 0x123456789abcdef, f->word = (uint32_t)i * 77777, f->shift = (uint32_t)i & 7;
    CALL(trunc32) CALL(trunc16) CALL(trunc8) CALL(mask8) CALL(mask16) CALL(mask32) CALL(upper32) CALL(upper8) CALL(upper16)
    CALL(middle8) CALL(middle16) CALL(twice) CALL(shift_left) CALL(shift_right) CALL(shift_memory)
    CALL(set_bit) CALL(set_high_bit) CALL(clear_bits) CALL(flip_half) CALL(set_spread) CALL(set_two_bytes) CALL(add)
  }
  puts("done");
  return 0;
}
