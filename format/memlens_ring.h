/* Finding slots and writing into a ring of memlens_channel.h: one loop for the library inside a process and for the emulator's plugin.
 * What to do when a ring is full is theirs. C only: the reader (native/recorder) does not write. */
#ifndef MEMLENS_RING_H
#define MEMLENS_RING_H

#include <stdbool.h>
#include <stddef.h>

#include "memlens_channel.h"

/* Where slots and rings lie: a copy, because every process of the tree can write to the header, also one that has dropped its
 * privileges since. */
struct ml_geometry {
  uint64_t slot_stride, ring_bytes, file_bytes;
  uint32_t slot_max, ring_count;
};

/* False: not a channel of this build in a file of `file_bytes`, or one that somebody wrote over. */
static inline bool ml_geometry_copy(const struct ml_channel_header *header, uint64_t file_bytes,
                                    struct ml_geometry *geometry) {
  *geometry = (struct ml_geometry){.slot_stride = __atomic_load_n(&header->slot_stride, __ATOMIC_RELAXED),
                                   .ring_bytes = __atomic_load_n(&header->ring_bytes, __ATOMIC_RELAXED),
                                   .file_bytes = __atomic_load_n(&header->file_bytes, __ATOMIC_RELAXED),
                                   .slot_max = __atomic_load_n(&header->slot_max, __ATOMIC_RELAXED),
                                   .ring_count = __atomic_load_n(&header->ring_count, __ATOMIC_RELAXED)};
  return geometry->ring_count >= 1 && geometry->ring_count <= ML_CHANNEL_MAX_RINGS && geometry->ring_bytes >= 64 &&
         geometry->ring_bytes <= ML_CHANNEL_MAX_RING_BYTES &&
         (geometry->ring_bytes & (geometry->ring_bytes - 1)) == 0 &&
         geometry->slot_stride == ML_CHANNEL_SLOT_HEADER_BYTES + geometry->ring_count * geometry->ring_bytes &&
         geometry->slot_max >= 1 && geometry->slot_max <= ML_CHANNEL_MAX_SLOTS &&
         geometry->file_bytes == ML_CHANNEL_HEADER_BYTES + geometry->slot_max * geometry->slot_stride &&
         file_bytes >= geometry->file_bytes;
}

/* Bytes that a record takes in a ring: with its header, and so that the next one is aligned. */
static inline uint64_t ml_ring_need(size_t record_bytes) {
  return (sizeof(struct ml_ring_record) + record_bytes + 7) & ~UINT64_C(7);
}

/* Room for `need` bytes (at most ML_RING_MAX_RECORD), not committed yet. NULL: the ring is full, and the reader was at
 * `*seen_tail`. `*half_full`: this record made it so, the reader should come. Several threads may write, and a signal
 * handler that interrupts one. `need` is at most the capacity. */
static inline struct ml_ring_record *ml_ring_take(struct ml_channel_ring *ring, unsigned char *data, uint64_t capacity,
                                                  uint64_t need, uint64_t *seen_tail, bool *half_full) {
  uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
  for (unsigned strange = 0;;) {
    const uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_acquire);
    const uint64_t offset = head & (capacity - 1), used = head - tail;
    const uint64_t padding = offset + need > capacity ? capacity - offset : 0; /* a record never wraps */
    /* Every process of the tree can write to the ring: whatever it says, nothing is written outside of it, and nothing loops. */
    if (__builtin_expect(need + padding > capacity || used > capacity - need - padding || offset % 8 != 0, 0)) {
      if (used <= capacity || ++strange == 64) {
        *seen_tail = tail;
        return NULL;
      }
      head = atomic_load_explicit(&ring->head, memory_order_relaxed); /* ours was older than the reader's place */
      continue;
    }
    if (!atomic_compare_exchange_weak_explicit(&ring->head, &head, head + padding + need, memory_order_relaxed,
                                               memory_order_relaxed))
      continue;
    if (padding != 0) {
      struct ml_ring_record *filler = (struct ml_ring_record *)(void *)(data + offset);
      filler->kind = 0;
      atomic_store_explicit(&filler->commit, (uint32_t)padding | ML_RING_COMMITTED, memory_order_release);
    }
    *half_full = used < capacity / 2 && used + need >= capacity / 2;
    return (struct ml_ring_record *)(void *)(data + ((head + padding) & (capacity - 1)));
  }
}

/* The record is whole: the reader may take it. */
static inline void ml_ring_commit(struct ml_ring_record *record, uint64_t need) {
  atomic_store_explicit(&record->commit, (uint32_t)need | ML_RING_COMMITTED, memory_order_release);
}

#endif
