/* XXH64 (the 64-bit xxHash by Yann Collet, as specified in its public
 * specification), header-only so that the runtime inside a target can use it
 * without a library. Tested against the reference package. */
#ifndef MEMLENS_CHECKSUM_H
#define MEMLENS_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define ML_XXH_P1 UINT64_C(0x9E3779B185EBCA87)
#define ML_XXH_P2 UINT64_C(0xC2B2AE3D27D4EB4F)
#define ML_XXH_P3 UINT64_C(0x165667B19E3779F9)
#define ML_XXH_P4 UINT64_C(0x85EBCA77C2B2AE63)
#define ML_XXH_P5 UINT64_C(0x27D4EB2F165667C5)

static inline uint64_t ml_rotate_left(uint64_t value, unsigned bits) {
  return (value << bits) | (value >> (64 - bits));
}

static inline uint64_t ml_xxh_round(uint64_t accumulator, uint64_t lane) {
  return ml_rotate_left(accumulator + lane * ML_XXH_P2, 31) * ML_XXH_P1;
}

static inline uint64_t ml_xxh_merge(uint64_t hash, uint64_t accumulator) {
  return (hash ^ ml_xxh_round(0, accumulator)) * ML_XXH_P1 + ML_XXH_P4;
}

static inline uint64_t ml_checksum(const void *input, size_t bytes) {
  const unsigned char *at = (const unsigned char *)input;
  const unsigned char *end = bytes ? at + bytes : at;
  uint64_t hash, lane;
  if (bytes >= 32) {
    uint64_t a = ML_XXH_P1 + ML_XXH_P2, b = ML_XXH_P2, c = 0, d = 0 - ML_XXH_P1;
    while ((size_t)(end - at) >= 32) {
      uint64_t lanes[4];
      memcpy(lanes, at, 32);
      a = ml_xxh_round(a, lanes[0]);
      b = ml_xxh_round(b, lanes[1]);
      c = ml_xxh_round(c, lanes[2]);
      d = ml_xxh_round(d, lanes[3]);
      at += 32;
    }
    hash = ml_rotate_left(a, 1) + ml_rotate_left(b, 7) + ml_rotate_left(c, 12) + ml_rotate_left(d, 18);
    hash = ml_xxh_merge(hash, a);
    hash = ml_xxh_merge(hash, b);
    hash = ml_xxh_merge(hash, c);
    hash = ml_xxh_merge(hash, d);
  } else {
    hash = ML_XXH_P5;
  }
  hash += bytes;
  while (end - at >= 8) {
    memcpy(&lane, at, 8);
    hash = ml_rotate_left(hash ^ ml_xxh_round(0, lane), 27) * ML_XXH_P1 + ML_XXH_P4;
    at += 8;
  }
  if (end - at >= 4) {
    uint32_t half;
    memcpy(&half, at, 4);
    hash = ml_rotate_left(hash ^ (half * ML_XXH_P1), 23) * ML_XXH_P2 + ML_XXH_P3;
    at += 4;
  }
  while (at < end) hash = ml_rotate_left(hash ^ (*at++ * ML_XXH_P5), 11) * ML_XXH_P1;
  hash = (hash ^ (hash >> 33)) * ML_XXH_P2;
  hash = (hash ^ (hash >> 29)) * ML_XXH_P3;
  return hash ^ (hash >> 32);
}

#endif
