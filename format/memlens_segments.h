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
 * How it is fast. The words of a segment are compared with what is expected of them without a branch; only those that differ
 * take time and bytes. Programs repeat themselves: most addresses are the last one plus the step before. */
#ifndef MEMLENS_SEGMENTS_H
#define MEMLENS_SEGMENTS_H

#include <stdint.h>
#include <string.h>

#include "memlens_stream.h"

#define ML_SEGMENTS_ENTRIES 1024
#define ML_SEGMENTS_WORDS 31 /* most of a segment */
#define ML_SEGMENTS_NOTED 256
#define ML_SEGMENTS_MAX_BYTES 352 /* of room for one segment: 10 + 1 + 5 + 31 * 10, and what is overwritten behind it */
#define ML_SEGMENTS_MOST_RECORDED (1u << 15) /* accesses of one record: the reader takes one whole */

struct ml_segments {
  uint64_t previous; /* first site of the segment before */
  uint32_t n_noted;  /* ML_SEGMENTS_NOTED + 1: more than could be noted */
  uint32_t reserved;
  uint16_t noted[ML_SEGMENTS_NOTED];    /* entry + words * 1024, of every shape that was told */
  uint8_t shape[ML_SEGMENTS_ENTRIES];   /* words + form * 32 of the last segment of each entry */
  uint32_t missed[ML_SEGMENTS_ENTRIES]; /* which words of it were not as expected */
  uint64_t last[ML_SEGMENTS_ENTRIES + ML_SEGMENTS_WORDS];
  uint64_t step[ML_SEGMENTS_ENTRIES + ML_SEGMENTS_WORDS];
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
    segments->missed[entry] = 0;
    memset(segments->last + entry, 0, words * sizeof segments->last[0]);
    memset(segments->step + entry, 0, words * sizeof segments->step[0]);
  }
  segments->previous = 0;
  segments->n_noted = 0;
}

static inline unsigned ml_segments_shape(unsigned words, unsigned form) { return words | form << 5; }

/* Whether the entry of the site expects a segment of this shape. */
static inline int ml_segments_expects(const struct ml_segments *segments, uint64_t site, unsigned shape) {
  return segments->shape[site % ML_SEGMENTS_ENTRIES] == shape;
}

/* The words behind what names the segment. NULL: a word that differs from what is expected is 0; nothing has changed. */
static inline unsigned char *ml_segments_words(struct ml_segments *segments, unsigned char *at, uint64_t site, const uint64_t *words,
                                               unsigned count, int zeros_too) {
  const unsigned entry = (unsigned)(site % ML_SEGMENTS_ENTRIES);
  uint64_t *const last = segments->last + entry, *const step = segments->step + entry;
  uint64_t moved[ML_SEGMENTS_WORDS];
  uint32_t missed = 0;
  for (unsigned i = 0; i < count; i++) {
    const uint64_t word = words[i], difference = word - last[i];
    last[i] = word;
    moved[i] = difference;
    missed |= (uint32_t)(difference != step[i]) << i;
  }
  if (__builtin_expect(missed < 128, 1)) *at++ = (unsigned char)missed;
  else at = ml_stream_varint(at, missed);
  const uint32_t before = segments->missed[entry];
  segments->missed[entry] = missed;
  for (uint32_t left = missed; left != 0; left &= left - 1) {
    const unsigned i = (unsigned)__builtin_ctz(left);
    if (__builtin_expect(words[i] == 0 && !zeros_too, 0)) {
      for (unsigned k = 0; k < count; k++) last[k] -= moved[k];
      segments->missed[entry] = before;
      return NULL;
    }
    at = ml_stream_varint(at, ml_stream_zigzag(moved[i]));
  }
  for (uint32_t twice = missed & before; twice != 0; twice &= twice - 1) {
    const unsigned i = (unsigned)__builtin_ctz(twice);
    step[i] = moved[i];
  }
  return at;
}

/* Appends a segment that its entry expects, the usual case. NULL: one of its words is 0; nothing has changed. */
static inline unsigned char *ml_segments_add_usual(struct ml_segments *segments, unsigned char *at, uint64_t site, const uint64_t *words,
                                                   unsigned count) {
  const uint64_t named = ml_stream_zigzag(site - segments->previous) << 1;
  if (__builtin_expect(named < 128, 1)) *at++ = (unsigned char)named;
  else at = ml_stream_varint(at, named);
  at = ml_segments_words(segments, at, site, words, count, 0);
  if (at != NULL) segments->previous = site;
  return at;
}

/* Appends a segment of `count` words, 1 to 31, whose first site is `site`. */
static inline unsigned char *ml_segments_add(struct ml_segments *segments, unsigned char *at, uint64_t site, const uint64_t *words,
                                             unsigned count, unsigned form) {
  const unsigned entry = (unsigned)(site % ML_SEGMENTS_ENTRIES), shape = ml_segments_shape(count, form);
  const unsigned told = segments->shape[entry] != shape;
  at = ml_stream_varint(at, ml_stream_zigzag(site - segments->previous) << 1 | told);
  segments->previous = site;
  if (told) {
    if (segments->n_noted < ML_SEGMENTS_NOTED) segments->noted[segments->n_noted] = (uint16_t)(entry + count * ML_SEGMENTS_ENTRIES);
    if (segments->n_noted <= ML_SEGMENTS_NOTED) segments->n_noted++;
    segments->shape[entry] = (uint8_t)shape;
    *at++ = (unsigned char)shape;
  }
  return ml_segments_words(segments, at, site, words, count, 1);
}

#endif
