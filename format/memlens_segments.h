/* The writer of a window's segment stream; FORMAT.md, "The segment stream of `window` records", is the contract.
 *
 * For the hot path of traced programs, as memlens_stream.h is for the emulator: it allocates nothing, calls nothing, and writes only to its
 * state and to the caller's buffers. One state belongs to one thread; it lies at a multiple of 64 bytes.
 *
 *   struct ml_segments *segments;                       // zeros are a fresh state
 *   struct ml_segments_at at = {.names = names, .words = words};
 *   ml_segments_begin(segments);                        // at the start of every record
 *   ml_segments_add(segments, &at, key, site, words, n, form);
 *
 * Names and words go to separate buffers of the caller; a record is the names followed by the words (ml_segments_join).
 *
 * Performance. Addresses are hard to predict, so the writer avoids branches: it compares four words with their expected values at once and
 * packs those that differ by their mask. A difference has four bytes (seldom eight): finding the exact number of bytes costs more than
 * leaving it to the compressor, which runs in another process. The expected step is the last one. A block of four places is a
 * cache line that is read and written whole. A segment is identified by its caller's key, so a shape that was checked once is
 * not checked again. */
#ifndef MEMLENS_SEGMENTS_H
#define MEMLENS_SEGMENTS_H

#include <stdint.h>
#include <string.h>

#include "memlens_stream.h"

#if defined(__x86_64__)
#include <immintrin.h>
/* of a function that calls ml_segments_add_known_vectors */
#define ML_SEGMENTS_VECTORS __attribute__((target("avx2,popcnt")))
#endif

#define ML_SEGMENTS_ENTRIES 1024
#define ML_SEGMENTS_BLOCKS 1024
#define ML_SEGMENTS_WORDS 31 /* most of a segment */
#define ML_SEGMENTS_NOTED 256
#define ML_SEGMENTS_NAME_BYTES 24  /* of room for one segment's name: 10 + 1 + 8, and what is overwritten behind it */
#define ML_SEGMENTS_WORD_BYTES 272 /* and for its words: 31 * 8, and what is overwritten behind them */
#define ML_SEGMENTS_FRONT_BYTES 8  /* in front of the names, for their number of bytes */
#define ML_SEGMENTS_MOST_RECORDED (1u << 15)   /* accesses of one record: the reader takes one whole */
#define ML_SEGMENTS_MOST_NAME_BYTES (1u << 20) /* of one record, zeros included */
#define ML_SEGMENTS_WIDE 16u                   /* in the code of a group: its differences have eight bytes */
#define ML_SEGMENTS_BEYOND 3 /* words behind those of a segment that ml_segments_add_known_vectors may read */

struct ml_segments_block {
  uint64_t last[4], step[4];
} __attribute__((aligned(64)));

struct ml_segments_entry {
  uint64_t key; /* what its caller knows the last segment by; 0: not to be known again */
  uint16_t block;
  uint8_t shape; /* words + form * 32 of the last segment */
};

struct ml_segments {
  struct ml_segments_block block[ML_SEGMENTS_BLOCKS];
  struct ml_segments_entry entry[ML_SEGMENTS_ENTRIES];
  uint32_t next_block;
  uint32_t n_noted;                  /* ML_SEGMENTS_NOTED + 1: more than could be noted */
  uint16_t noted[ML_SEGMENTS_NOTED]; /* entries that were told a shape */
};

struct ml_segments_at {
  unsigned char *names, *words; /* where the next ones go */
  uint64_t previous;            /* first site of the segment before; 0 at the start of a record */
};

/* State of a new record. The state must have been zeros once (static or fresh memory). */
static inline void ml_segments_begin(struct ml_segments *segments) {
  if (segments->n_noted > ML_SEGMENTS_NOTED) memset(segments->entry, 0, sizeof segments->entry);
  else
    for (uint32_t i = 0; i < segments->n_noted; i++)
      segments->entry[segments->noted[i]] = (struct ml_segments_entry){0, 0, 0};
  segments->n_noted = 0;
  segments->next_block = 0;
}

/* The entry of the segment that has this site and this key, or NULL: it has to be added with ml_segments_add. */
static inline const struct ml_segments_entry *ml_segments_known(const struct ml_segments *segments, uint64_t site,
                                                                uint64_t key) {
  const struct ml_segments_entry *entry = &segments->entry[site % ML_SEGMENTS_ENTRIES];
  return __builtin_expect(entry->key == key, 1) ? entry : NULL;
}

/* Up to four words: their code behind the name, and what they differ by. */
static inline void ml_segments_group(struct ml_segments_block *block, struct ml_segments_at *at, const uint64_t *words,
                                     unsigned count) {
  uint64_t moved[4], far = 0;
  unsigned misses = 0;
  for (unsigned i = 0; i < count; i++) {
    moved[i] = words[i] - block->last[i];
    const uint64_t differs = moved[i] != block->step[i];
    block->last[i] = words[i];
    block->step[i] = moved[i];
    misses |= (unsigned)differs << i;
    far |= (moved[i] + UINT64_C(0x80000000)) >> 32 & (0 - differs);
  }
  const unsigned bytes = far != 0 ? 8 : 4;
  *at->names++ = (unsigned char)(misses | (far != 0 ? ML_SEGMENTS_WIDE : 0));
  for (unsigned i = 0; i < count; i++) {
    /* little endian, as all of the format; the next one is written over what is too much */
    memcpy(at->words, &moved[i], 8);
    at->words += bytes & (0 - (misses >> i & 1));
  }
}

static inline __attribute__((always_inline)) void ml_segments_name(struct ml_segments_at *at, uint64_t site,
                                                                   unsigned told) {
  const uint64_t named = ml_stream_zigzag(site - at->previous) << 1 | told;
  at->previous = site;
  if (__builtin_expect(named < 128, 1)) *at->names++ = (unsigned char)named;
  else at->names = ml_stream_varint(at->names, named);
}

/* Appends a segment that is known. */
static inline __attribute__((always_inline)) void ml_segments_add_known(struct ml_segments *segments,
                                                                        const struct ml_segments_entry *entry,
                                                                        struct ml_segments_at *at, uint64_t site,
                                                                        const uint64_t *words, unsigned count) {
  struct ml_segments_block *block = &segments->block[entry->block];
  ml_segments_name(at, site, 0);
  for (unsigned i = 0; i < count; i += 4) ml_segments_group(block++, at, words + i, count - i < 4 ? count - i : 4);
}

#if defined(__x86_64__)
static const int64_t ml_segments_masks[8] __attribute__((aligned(64))) = {-1, -1, -1, -1, 0, 0, 0, 0};
/* Bytes of the words of a mask, side by side. */
/* clang-format off */
#define ML_SEGMENTS_PACK(a, b, c, d) {4 * a, 4 * a + 1, 4 * a + 2, 4 * a + 3, 4 * b, 4 * b + 1, 4 * b + 2, 4 * b + 3, \
                                      4 * c, 4 * c + 1, 4 * c + 2, 4 * c + 3, 4 * d, 4 * d + 1, 4 * d + 2, 4 * d + 3}
static const unsigned char ml_segments_packs[16][16] __attribute__((aligned(64))) = {
    ML_SEGMENTS_PACK(0, 0, 0, 0), ML_SEGMENTS_PACK(0, 0, 0, 0), ML_SEGMENTS_PACK(1, 0, 0, 0), ML_SEGMENTS_PACK(0, 1, 0, 0),
    ML_SEGMENTS_PACK(2, 0, 0, 0), ML_SEGMENTS_PACK(0, 2, 0, 0), ML_SEGMENTS_PACK(1, 2, 0, 0), ML_SEGMENTS_PACK(0, 1, 2, 0),
    ML_SEGMENTS_PACK(3, 0, 0, 0), ML_SEGMENTS_PACK(0, 3, 0, 0), ML_SEGMENTS_PACK(1, 3, 0, 0), ML_SEGMENTS_PACK(0, 1, 3, 0),
    ML_SEGMENTS_PACK(2, 3, 0, 0), ML_SEGMENTS_PACK(0, 2, 3, 0), ML_SEGMENTS_PACK(1, 2, 3, 0), ML_SEGMENTS_PACK(0, 1, 2, 3)};
/* clang-format on */

ML_SEGMENTS_VECTORS static inline __attribute__((always_inline)) void ml_segments_group_vectors(
    struct ml_segments_block *block, struct ml_segments_at *at, const uint64_t *words, unsigned count) {
  const __m256i word = _mm256_loadu_si256((const __m256i *)words),
                last = _mm256_load_si256((const __m256i *)block->last);
  const __m256i belongs = _mm256_loadu_si256((const __m256i *)(ml_segments_masks + 4 - count));
  const __m256i moved = _mm256_sub_epi64(word, last);
  const __m256i as_expected = _mm256_cmpeq_epi64(moved, _mm256_load_si256((const __m256i *)block->step));
  const __m256i differs = _mm256_andnot_si256(as_expected, belongs);
  _mm256_store_si256((__m256i *)block->last, word); /* lanes of no word too: nobody looks at them */
  _mm256_store_si256((__m256i *)block->step, moved);
  const unsigned misses = (unsigned)_mm256_movemask_pd(_mm256_castsi256_pd(differs));
  const __m256i high = _mm256_srli_epi64(_mm256_add_epi64(moved, _mm256_set1_epi64x(INT64_C(0x80000000))), 32);
  if (__builtin_expect(!_mm256_testz_si256(high, differs), 0)) {
    uint64_t kept[4];
    _mm256_storeu_si256((__m256i *)kept, moved);
    *at->names++ = (unsigned char)(misses | ML_SEGMENTS_WIDE);
    for (unsigned i = 0; i < 4; i++) {
      memcpy(at->words, &kept[i], 8);
      at->words += 8 & (0 - (misses >> i & 1));
    }
    return;
  }
  *at->names++ = (unsigned char)misses;
  const __m128i low = _mm_castps_si128(_mm_shuffle_ps(_mm_castsi128_ps(_mm256_castsi256_si128(moved)),
                                                      _mm_castsi128_ps(_mm256_extracti128_si256(moved, 1)), 0x88));
  _mm_storeu_si128((__m128i *)at->words,
                   _mm_shuffle_epi8(low, _mm_load_si128((const __m128i *)ml_segments_packs[misses])));
  at->words += 4 * (unsigned)__builtin_popcount(misses);
}

/* The same. The words are followed by ML_SEGMENTS_BEYOND others that may be read. */
ML_SEGMENTS_VECTORS static inline __attribute__((always_inline)) void ml_segments_add_known_vectors(
    struct ml_segments *segments, const struct ml_segments_entry *entry, struct ml_segments_at *at, uint64_t site,
    const uint64_t *words, unsigned count) {
  struct ml_segments_block *block = &segments->block[entry->block];
  ml_segments_name(at, site, 0);
  ml_segments_group_vectors(block, at, words, count < 4 ? count : 4);
  for (unsigned i = 4; i < count; i += 4)
    ml_segments_group_vectors(++block, at, words + i, count - i < 4 ? count - i : 4);
}
#endif

/* The entry has a new shape, and blocks of its own. */
static inline void ml_segments_tell(struct ml_segments *segments, uint32_t number, unsigned shape, unsigned groups) {
  if (groups > ML_SEGMENTS_BLOCKS - segments->next_block) { /* all shapes are forgotten */
    segments->n_noted = ML_SEGMENTS_NOTED + 1;
    ml_segments_begin(segments);
  }
  struct ml_segments_entry *entry = &segments->entry[number];
  entry->shape = (uint8_t)shape;
  entry->block = (uint16_t)segments->next_block;
  memset(&segments->block[entry->block], 0, groups * sizeof segments->block[0]);
  segments->next_block += groups;
  if (segments->n_noted < ML_SEGMENTS_NOTED) segments->noted[segments->n_noted] = (uint16_t)number;
  if (segments->n_noted <= ML_SEGMENTS_NOTED) segments->n_noted++;
}

/* Appends a segment of `count` words, 1 to 31, whose first site is `site`. From then on it is known by its key, which is not 0; to a caller
 * who does not want that it is 0. */
static inline void ml_segments_add(struct ml_segments *segments, struct ml_segments_at *at, uint64_t key, uint64_t site,
                                   const uint64_t *words, unsigned count, unsigned form) {
  const uint32_t number = (uint32_t)(site % ML_SEGMENTS_ENTRIES);
  struct ml_segments_entry *entry = &segments->entry[number];
  const unsigned shape = count | form << 5, told = entry->shape != shape;
  ml_segments_name(at, site, told);
  if (told) {
    *at->names++ = (unsigned char)shape;
    ml_segments_tell(segments, number, shape, (count + 3) / 4);
  }
  entry->key = key;
  struct ml_segments_block *block = &segments->block[entry->block];
  for (unsigned i = 0; i < count; i += 4) ml_segments_group(block++, at, words + i, count - i < 4 ? count - i : 4);
}

/* Loops over arrays have names of nothing but zeros: they are told by their number. Writes parts of literal bytes and zeros to `into`, which has
 * room for `bytes`; returns their length, which is less, or 0 if there are no zeros to speak of. */
static inline size_t ml_segments_pack_names(const unsigned char *names, size_t bytes, unsigned char *into) {
  unsigned char *out = into;
  size_t at = 0, told = 0;
  while (at + 16 <= bytes) {
    uint64_t first, second;
    memcpy(&first, names + at, 8);
    memcpy(&second, names + at + 8, 8);
    if ((first | second) != 0) {
      at += second != 0 ? 16 : 8;
      continue;
    }
    size_t begin = at, end = at + 16;
    while (begin > told && names[begin - 1] == 0) begin--;
    for (; end + 8 <= bytes; end += 8) {
      memcpy(&first, names + end, 8);
      if (first != 0) break;
    }
    while (end < bytes && names[end] == 0) end++;
    out = ml_stream_varint(out, begin - told); /* it may write 8 bytes, and 16 or more are saved */
    memcpy(out, names + told, begin - told);
    out = ml_stream_varint(out + (begin - told), end - begin);
    at = told = end;
  }
  if (told != 0 && told < bytes) {
    unsigned char length[10];
    const size_t length_bytes = (size_t)(ml_stream_varint(length, bytes - told) - length);
    memcpy(out, length, length_bytes);
    memcpy(out + length_bytes, names + told, bytes - told);
    out += length_bytes + (bytes - told);
    *out++ = 0; /* no zeros behind it */
  }
  return (size_t)(out - into);
}

/* Names and words become one stream, in front of the words; there is room for the names and ML_SEGMENTS_FRONT_BYTES. Returns its first byte. */
static inline unsigned char *ml_segments_join(const unsigned char *names, size_t name_bytes, unsigned char *words) {
  unsigned char front[10], *const room = words - name_bytes - ML_SEGMENTS_FRONT_BYTES;
  const size_t packed_bytes = ml_segments_pack_names(names, name_bytes, room);
  if (packed_bytes != 0) {
    names = room;
    name_bytes = packed_bytes;
  }
  const size_t front_bytes = (size_t)(ml_stream_varint(front, name_bytes << 1 | (packed_bytes != 0)) - front);
  unsigned char *const first = words - name_bytes - front_bytes;
  memmove(words - name_bytes, names, name_bytes);
  memcpy(first, front, front_bytes);
  return first;
}

#endif
