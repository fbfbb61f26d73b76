/* Call stacks and names as small numbers. A table slot is an id: whoever fills it first writes the
 * record. The tables are empty in a fork's child, which has an id space of its own. */
#include "runtime.h"

#include <string.h>

#include "memlens_checksum.h"

#define STACK_SLOTS (1u << 18) /* 2 MiB, touched as needed */
#define STRING_SLOTS (1u << 12)
#define PROBES 64

static _Atomic uint64_t *stack_table, *string_table;
static _Atomic uint32_t overflow_ids; /* for what the tables have no room for */
static _Atomic uint64_t unloads;      /* code was unloaded: the same addresses may mean other code */

void ml_stacks_start(void) {
  stack_table = ml_map_private(STACK_SLOTS * sizeof *stack_table, true);
  string_table = ml_map_private(STRING_SLOTS * sizeof *string_table, true);
}

void ml_stacks_forget(void) { atomic_fetch_add(&unloads, 1); }

/* The id of a hash; *is_new: this call filled the slot. */
static uint32_t id_of(_Atomic uint64_t *table, uint32_t slots, uint64_t hash, bool *is_new) {
  if (hash == 0) hash = 1;
  *is_new = false;
  if (table != NULL) {
    uint32_t at = (uint32_t)hash & (slots - 1);
    for (unsigned probe = 0; probe < PROBES; probe++, at = (at + 1) & (slots - 1)) {
      uint64_t seen = atomic_load_explicit(&table[at], memory_order_relaxed);
      if (seen == hash) return at + 1;
      if (seen != 0) continue;
      if (atomic_compare_exchange_strong_explicit(&table[at], &seen, hash, memory_order_relaxed, memory_order_relaxed)) {
        *is_new = true;
        return at + 1;
      }
      if (seen == hash) return at + 1;
    }
  }
  *is_new = true; /* written again each time: larger, not wrong */
  return slots + 1 + atomic_fetch_add(&overflow_ids, 1) % (UINT32_MAX / 2);
}

uint32_t ml_stack_here(void) {
  uint64_t ips[ML_MAX_DEPTH];
  bool truncated, is_new;
  const unsigned depth = ml_unwind(ips, ML_MAX_DEPTH, &truncated);
  if (depth == 0) return 0;
  uint64_t hash = atomic_load_explicit(&unloads, memory_order_relaxed) * UINT64_C(0xD6E8FEB86659FD93) + depth;
  for (unsigned i = 0; i < depth; i++) {
    hash = (hash ^ ips[i]) * UINT64_C(0x9E3779B97F4A7C15);
    hash ^= hash >> 29;
  }
  const uint32_t id = id_of(stack_table, STACK_SLOTS, hash, &is_new);
  if (!is_new) return id;
  atomic_fetch_add_explicit(&ml_runtime.slot->stacks, 1, memory_order_relaxed);
  struct ml_ticket ticket = ml_reserve(ML_KIND_STACK, sizeof(struct ml_stack) + depth * sizeof *ips);
  if (ticket.record == NULL) return 0;
  struct ml_stack *record = ticket.record;
  *record = (struct ml_stack){.id = id,
                              .tail_bytes = (uint32_t)(depth * sizeof *ips),
                              .unwinder = ML_ENUM_unwinder_DWARF,
                              .truncated = truncated};
  memcpy(record + 1, ips, depth * sizeof *ips);
  ml_commit(ticket);
  return id;
}

uint32_t ml_string(const char *text, size_t bytes) {
  bool is_new;
  if (bytes == 0) return 0;
  if (bytes > 1024) bytes = 1024;
  const uint32_t id = id_of(string_table, STRING_SLOTS, ml_checksum(text, bytes), &is_new);
  if (!is_new) return id;
  struct ml_ticket ticket = ml_reserve(ML_KIND_STRING, sizeof(struct ml_string) + ((bytes + 7) & ~(size_t)7));
  if (ticket.record == NULL) return 0;
  struct ml_string *record = ticket.record;
  record->id = id;
  record->tail_bytes = (uint32_t)bytes;
  memcpy(record + 1, text, bytes);
  ml_commit(ticket);
  return id;
}
