/* The writer of a window's segment stream; FORMAT.md, "The segment stream of `window` records", is the contract.
 *
 * For the hot path of traced programs, as memlens_stream.h is for the emulator: it allocates nothing, calls nothing, and writes only to its
 * state and to the caller's buffer. One state belongs to one thread.
 *
 *   struct ml_segments *segments;                       // zeros are a fresh state
 *   ml_segments_begin(segments);                        // at the start of every record
 *   if (end - at < ML_SEGMENTS_MAX_BYTES) ...           // the caller keeps the room
 *   at = ml_segments_add(segments, at, site, words, n, form);
 *
 * Names and words go to places of their own, and a record is the one before the other (ml_segments_join):
 *
 *   struct ml_segments_at at = {.names = names, .words = words};
 *   ml_segments_add(segments, &at, site, words, n, form);
 *
 * How it is fast. What a word takes in bytes is not decided by a branch: programs are sampled because they are hard to predict.
 * All eight bytes of a difference are written, and the next one is written over those that it does not need. Nor does a word wait
 * for what was decided at the last execution: the step that is expected is simply the last one. One branch there is: loops over
 * arrays have nothing but segments that are as expected. */
#ifndef MEMLENS_SEGMENTS_H
#define MEMLENS_SEGMENTS_H

#include <stdint.h>
#include <string.h>

#include "memlens_stream.h"

#define ML_SEGMENTS_ENTRIES 1024
#define ML_SEGMENTS_WORDS 31 /* most of a segment */
#define ML_SEGMENTS_NOTED 256
#define ML_SEGMENTS_NAME_BYTES 40 /* of room for one segment's name: 10 + 1 + 16, and what is overwritten behind it */
#define ML_SEGMENTS_WORD_BYTES 256 /* and for its words: 31 * 8, and what is overwritten behind them */
#define ML_SEGMENTS_FRONT_BYTES 8 /* in front of the names, for their number of bytes */
#define ML_SEGMENTS_MOST_RECORDED (1u << 15) /* accesses of one record: the reader takes one whole */

struct ml_segments_place {
  uint64_t last, step;
};

struct ml_segments {
  uint32_t n_noted; /* ML_SEGMENTS_NOTED + 1: more than could be noted */
  uint32_t reserved;
  uint16_t noted[ML_SEGMENTS_NOTED];  /* entry + words * 1024, of every shape that was told */
  uint8_t shape[ML_SEGMENTS_ENTRIES]; /* words + form * 32 of the last segment of each entry */
  struct ml_segments_place place[ML_SEGMENTS_ENTRIES + ML_SEGMENTS_WORDS];
};

struct ml_segments_at {
  unsigned char *names, *words; /* where the next ones go */
  uint64_t previous;            /* first site of the segment before; 0 at the start of a record */
};

/* State of a new record. The state must have been zeros once (static or fresh memory). */
static inline void ml_segments_begin(struct ml_segments *segments) {
  if (segments->n_noted > ML_SEGMENTS_NOTED) {
    memset(segments, 0, sizeof *segments);
    return;
  }
  for (uint32_t i = 0; i < segments->n_noted; i++) {
    const uint32_t entry = segments->noted[i] % ML_SEGMENTS_ENTRIES, words = segments->noted[i] / ML_SEGMENTS_ENTRIES;
    segments->shape[entry] = 0;
    memset(segments->place + entry, 0, words * sizeof segments->place[0]);
  }
  segments->n_noted = 0;
}

static inline unsigned ml_segments_shape(unsigned words, unsigned form) { return words | form << 5; }

/* Whether the entry of the site expects a segment of this shape. */
static inline int ml_segments_expects(const struct ml_segments *segments, uint64_t site, unsigned shape) {
  return segments->shape[site % ML_SEGMENTS_ENTRIES] == shape;
}

/* Up to 16 words: their lengths behind the name, and what they differ by. */
static inline __attribute__((always_inline)) void ml_segments_words(struct ml_segments_place *place, struct ml_segments_at *at,
                                                                    const uint64_t *words, unsigned count) {
  unsigned char *out = at->words;
  uint64_t lengths = 0, differences = 0;
  for (unsigned i = 0; i < count; i++) differences |= (words[i] - place[i].last) ^ place[i].step;
  if (differences == 0) {
    for (unsigned i = 0; i < count; i++) place[i].last = words[i];
  } else {
    for (unsigned i = 0; i < count; i++) {
      const uint64_t word = words[i], moved = word - place[i].last, differs = moved != place[i].step;
      place[i].last = word;
      place[i].step = moved;
      const uint64_t coded = ml_stream_zigzag(moved);
      const uint64_t length = (71u - (unsigned)__builtin_clzll(coded | 1)) >> 3 & (0 - differs);
      memcpy(out, &coded, 8); /* little endian, as all of the format */
      out += length;
      lengths |= length << 4 * i;
    }
  }
  memcpy(at->names, &lengths, 8);
  at->names += (count + 1) / 2;
  at->words = out;
}

/* Appends a segment of 1 to 16 words that its entry expects, the usual case. */
static inline __attribute__((always_inline)) void ml_segments_add_usual(struct ml_segments *segments, struct ml_segments_at *at, uint64_t site,
                                                                        const uint64_t *words, unsigned count) {
  const uint64_t named = ml_stream_zigzag(site - at->previous) << 1;
  at->previous = site;
  if (__builtin_expect(named < 128, 1)) *at->names++ = (unsigned char)named;
  else at->names = ml_stream_varint(at->names, named);
  ml_segments_words(segments->place + site % ML_SEGMENTS_ENTRIES, at, words, count);
}

/* Appends a segment of `count` words, 1 to 31, whose first site is `site`. */
static inline void ml_segments_add(struct ml_segments *segments, struct ml_segments_at *at, uint64_t site, const uint64_t *words, unsigned count,
                                   unsigned form) {
  const unsigned entry = (unsigned)(site % ML_SEGMENTS_ENTRIES), shape = ml_segments_shape(count, form);
  const unsigned told = segments->shape[entry] != shape;
  at->names = ml_stream_varint(at->names, ml_stream_zigzag(site - at->previous) << 1 | told);
  at->previous = site;
  if (told) {
    if (segments->n_noted < ML_SEGMENTS_NOTED) segments->noted[segments->n_noted] = (uint16_t)(entry + count * ML_SEGMENTS_ENTRIES);
    if (segments->n_noted <= ML_SEGMENTS_NOTED) segments->n_noted++;
    segments->shape[entry] = (uint8_t)shape;
    *at->names++ = (unsigned char)shape;
  }
  ml_segments_words(segments->place + entry, at, words, count < 16 ? count : 16);
  if (count > 16) ml_segments_words(segments->place + entry + 16, at, words + 16, count - 16);
}

/* Names and words become one stream, in front of the words; there is room for the names and ML_SEGMENTS_FRONT_BYTES. Returns its first byte. */
static inline unsigned char *ml_segments_join(const unsigned char *names, size_t name_bytes, unsigned char *words) {
  unsigned char front[10];
  const size_t front_bytes = (size_t)(ml_stream_varint(front, name_bytes) - front);
  unsigned char *const first = words - name_bytes - front_bytes;
  memmove(words - name_bytes, names, name_bytes);
  memcpy(first, front, front_bytes);
  return first;
}

#endif
