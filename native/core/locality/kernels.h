// What the loops of this folder share: hashing, and compiling a loop for the processor that runs it.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

#if defined(__SSE2__) && !defined(MEMLENS_PORTABLE)
#include <emmintrin.h>
#endif

#include "objects/large_vector.h"

// A hot loop is one function that is always inlined, and is called by two: one for every x86-64, and one for those
// with AVX2 and POPCNT (2013 and later). The choice is made once for each call with thousands of accesses. A build with
// MEMLENS_PORTABLE has only the first, for tests.
#define MEMLENS_INLINE inline __attribute__((always_inline))
#define MEMLENS_APART __attribute__((noinline))
#define MEMLENS_INLINE_LAMBDA __attribute__((always_inline))
#if defined(__x86_64__) && !defined(MEMLENS_PORTABLE)
#define MEMLENS_HAS_FAST 1
#define MEMLENS_FAST __attribute__((target("avx2,popcnt,bmi,bmi2,lzcnt")))
#else
#define MEMLENS_HAS_FAST 0
#endif

namespace memlens::locality {

template <typename T>
using LargeVector = objects::LargeVector<T>;

#if MEMLENS_HAS_FAST
inline bool has_fast() {
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt") &&
                          __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
                          __builtin_cpu_supports("lzcnt");
  return has;
}
#endif

// Blocks that lie together get neighbouring places, four to a cache line of table entries: real traces walk through
// memory. The groups of four are scattered.
MEMLENS_INLINE uint64_t scatter(uint64_t block) {
  uint64_t x = block >> 2;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93u;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93u;
  x ^= x >> 32;
  return x << 2 | (block & 3);
}

// The same with nothing kept together, for entries that fill a cache line each.
MEMLENS_INLINE uint64_t scatter_all(uint64_t x) {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93u;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93u;
  return x ^ x >> 32;
}

// A bit for each of 8 or 16 aligned words that equals `wanted`. SSE2 is part of every x86-64.
template <unsigned kCount>
MEMLENS_INLINE uint32_t equal_lanes(const uint32_t* words, uint32_t wanted) {
  static_assert(kCount == 8 || kCount == 16);
#if defined(__SSE2__) && !defined(MEMLENS_PORTABLE)
  const __m128i four = _mm_set1_epi32(static_cast<int>(wanted));
  const __m128i* const at = reinterpret_cast<const __m128i*>(words);
  const __m128i low =
      _mm_packs_epi32(_mm_cmpeq_epi32(_mm_load_si128(at), four), _mm_cmpeq_epi32(_mm_load_si128(at + 1), four));
  if constexpr (kCount == 8) return static_cast<uint32_t>(_mm_movemask_epi8(_mm_packs_epi16(low, _mm_setzero_si128())));
  const __m128i high = _mm_packs_epi32(_mm_cmpeq_epi32(_mm_load_si128(at + (kCount == 16 ? 2 : 0)), four),
                                       _mm_cmpeq_epi32(_mm_load_si128(at + (kCount == 16 ? 3 : 0)), four));
  return static_cast<uint32_t>(_mm_movemask_epi8(_mm_packs_epi16(low, high)));
#else
  uint32_t found = 0;
  for (unsigned k = 0; k < kCount; ++k) found |= static_cast<uint32_t>(words[k] == wanted) << k;
  return found;
#endif
}

inline unsigned shift_of(uint64_t block_bytes) {
  if (!std::has_single_bit(block_bytes)) throw std::invalid_argument("a block's bytes must be a power of two");
  return static_cast<unsigned>(std::countr_zero(block_bytes));
}

// More memory is needed than the caller allows.
class MemoryLimit : public std::runtime_error {
 public:
  MemoryLimit(uint64_t needed, uint64_t allowed)
      : std::runtime_error("the analysis needs " + std::to_string(needed) + " bytes and may use " +
                           std::to_string(allowed)) {}
};

}  // namespace memlens::locality
