/* The writer of a window's delta stream; FORMAT.md, "The delta stream of `window` records", is the contract.
 *
 * For hot paths: inside the emulator's plugin, inside instrumented programs. It allocates nothing, calls nothing,
 * and writes only to the stream state and to the caller's buffer. One state belongs to one thread.
 *
 *   static _Thread_local struct ml_stream stream;   // zeros are a fresh state
 *   ml_stream_begin(&stream);                       // at the start of every window
 *   if (end - at < ML_STREAM_MAX_ACCESS) ...        // the caller keeps the room
 *   at = ml_stream_add_pc(&stream, at, pc, address, bytes, ML_ENUM_access_operation_LOAD);
 *
 * How it is fast. Three cases, the most common first: all varints of an access have one byte (one store of 4 bytes); all
 * have at most two (no branch on which); any length (7-bit groups are spread over 8 bytes at once, no loop below 2^56).
 * Up to 8 bytes behind the returned end may be overwritten, which is why the room asked for is more than an access needs.
 *
 * How the start of a window is cheap. Only entries of last[] that were written are cleared again: an entry that still
 * holds 0 is noted when it is written, the first ML_STREAM_NOTED of them; beyond, clearing all 8 KiB is as fast. */
#ifndef MEMLENS_STREAM_H
#define MEMLENS_STREAM_H

#include <stdint.h>
#include <string.h>

#define ML_STREAM_ENTRIES 1024
#define ML_STREAM_NOTED 256
#define ML_STREAM_MAX_ACCESS 32 /* bytes of room for one access: 10 + 10 + 5, and what is overwritten behind it */

struct ml_stream {
  uint64_t previous; /* code of the access before */
  uint32_t n_noted;  /* ML_STREAM_NOTED + 1: more than could be noted */
  uint32_t reserved;
  uint64_t last[ML_STREAM_ENTRIES]; /* address of the last access of each entry */
  uint16_t noted[ML_STREAM_NOTED];  /* entries of last[] that may not be 0 */
};

/* State of a new window. The state must have been zeros once (static or calloc memory). */
static inline void ml_stream_begin(struct ml_stream *stream) {
  stream->previous = 0;
  if (stream->n_noted > ML_STREAM_NOTED) memset(stream->last, 0, sizeof stream->last);
  else
    for (uint32_t i = 0; i < stream->n_noted; i++) stream->last[stream->noted[i]] = 0;
  stream->n_noted = 0;
}

static inline uint64_t ml_stream_zigzag(uint64_t difference) { return (difference << 1) ^ (0 - (difference >> 63)); }

static inline uint64_t ml_stream_unzigzag(uint64_t value) { return (value >> 1) ^ (0 - (value & 1)); }

/* A varint of any length; writes 8 or 10 bytes, returns its end. */
static inline unsigned char *ml_stream_varint(unsigned char *at, uint64_t value) {
  if (__builtin_expect(value >> 56 != 0, 0)) {
    while (value >= 128) {
      *at++ = (unsigned char)(value | 128);
      value >>= 7;
    }
    *at++ = (unsigned char)value;
    return at;
  }
  uint64_t groups = (value & UINT64_C(0x000000000fffffff)) | ((value & UINT64_C(0x00fffffff0000000)) << 4);
  groups = (groups & UINT64_C(0x00003fff00003fff)) | ((groups & UINT64_C(0x0fffc0000fffc000)) << 2);
  groups = (groups & UINT64_C(0x007f007f007f007f)) | ((groups & UINT64_C(0x3f803f803f803f80)) << 1);
  unsigned last_byte = (63u - (unsigned)__builtin_clzll(groups | 1)) >> 3;
  groups |= UINT64_C(0x8080808080808080) & ((UINT64_C(1) << (8 * last_byte)) - 1);
  memcpy(at, &groups, 8);
  return at + last_byte + 1;
}

/* A varint below 2^14, without a branch; writes 2 bytes. */
static inline unsigned char *ml_stream_varint_short(unsigned char *at, uint64_t value) {
  unsigned two = value >= 128;
  uint16_t pair = (uint16_t)((value & 127) | (two << 7) | (value >> 7 << 8));
  memcpy(at, &pair, 2);
  return at + 1 + two;
}

/* What is not common: long differences, and entries written for the first time in a window. */
__attribute__((noinline, unused)) static unsigned char *ml_stream_add_long(struct ml_stream *stream, unsigned char *at,
                                                                           uint64_t code, uint64_t address,
                                                                           uint64_t third) {
  uint64_t entry = code % ML_STREAM_ENTRIES, before = stream->last[entry];
  if (before == 0 && stream->n_noted <= ML_STREAM_NOTED) {
    if (stream->n_noted < ML_STREAM_NOTED) stream->noted[stream->n_noted] = (uint16_t)entry;
    stream->n_noted++;
  }
  uint64_t first = ml_stream_zigzag(code - stream->previous), second = ml_stream_zigzag(address - before);
  stream->previous = code;
  stream->last[entry] = address;
  at = first < UINT64_C(1) << 14 ? ml_stream_varint_short(at, first) : ml_stream_varint(at, first);
  at = ml_stream_varint(at, second);
  if (third == 0) return at;
  return third < UINT64_C(1) << 14 ? ml_stream_varint_short(at, third) : ml_stream_varint(at, third);
}

/* Appends an access by the instruction at `pc`: encoding pc_delta. `operation`: 1 load, 2 store, 3 atomic. */
static inline unsigned char *ml_stream_add_pc(struct ml_stream *stream, unsigned char *at, uint64_t pc,
                                              uint64_t address, uint32_t bytes, unsigned operation) {
  uint64_t *last = &stream->last[pc % ML_STREAM_ENTRIES];
  uint64_t before = *last, third = (uint64_t)bytes * 4 + operation;
  uint64_t first = ml_stream_zigzag(pc - stream->previous), second = ml_stream_zigzag(address - before);
  uint64_t all = first | second | third;
  if (__builtin_expect((all >= UINT64_C(1) << 14) | (before == 0), 0))
    return ml_stream_add_long(stream, at, pc, address, third);
  stream->previous = pc;
  *last = address;
  if (__builtin_expect(all < 128, 1)) {
    uint32_t word = (uint32_t)(first | second << 8 | third << 16);
    memcpy(at, &word, 4);
    return at + 3;
  }
  /* One store: each varint as two bytes, moved together by their lengths. */
  unsigned first_two = first >= 128, second_two = second >= 128, third_two = third >= 128;
  uint64_t word = (third & 127) | (uint64_t)third_two << 7 | third >> 7 << 8;
  word = word << (8 + 8 * second_two) | (second & 127) | (uint64_t)second_two << 7 | second >> 7 << 8;
  word = word << (8 + 8 * first_two) | (first & 127) | (uint64_t)first_two << 7 | first >> 7 << 8;
  memcpy(at, &word, 8);
  return at + 3 + first_two + second_two + third_two;
}

/* Appends an access of a numbered site: encoding site_delta; width and kind are in the table of sites. */
static inline unsigned char *ml_stream_add_site(struct ml_stream *stream, unsigned char *at, uint64_t site,
                                                uint64_t address) {
  const uint64_t code = site * 2;
  uint64_t *last = &stream->last[code % ML_STREAM_ENTRIES];
  uint64_t before = *last;
  uint64_t first = ml_stream_zigzag(code - stream->previous), second = ml_stream_zigzag(address - before);
  if (__builtin_expect(((first | second) >= UINT64_C(1) << 14) | (before == 0), 0))
    return ml_stream_add_long(stream, at, code, address, 0);
  stream->previous = code;
  *last = address;
  at = ml_stream_varint_short(at, first);
  return ml_stream_varint_short(at, second);
}

/* The same for a site whose width is known only at run time; `bytes` is not 0. */
static inline unsigned char *ml_stream_add_site_sized(struct ml_stream *stream, unsigned char *at, uint64_t site,
                                                      uint64_t address, uint32_t bytes) {
  return ml_stream_add_long(stream, at, site * 2 + 1, address, bytes);
}

#endif
