/* Call stacks and names as small numbers. A table slot is an id: whoever fills it first writes the
 * record. The tables are empty in a fork's child, which has an id space of its own. */
#include "runtime.h"

#include <string.h>

#include "memlens_checksum.h"

/* Tables grow by segments, so that a program with few stacks touches few pages. */
#define SEGMENTS 3
#define PROBES 24
static const uint32_t stack_slots[SEGMENTS] = {1u << 11, 1u << 14, 1u << 18};
static const uint32_t string_slots[SEGMENTS] = {1u << 9, 1u << 12, 1u << 14};

struct table {
  const uint32_t *slots;
  _Atomic(_Atomic uint64_t *) segments[SEGMENTS];
};
static struct table stack_table = {.slots = stack_slots}, string_table = {.slots = string_slots};
static _Atomic uint32_t overflow_ids; /* for what the tables have no room for */
static _Atomic uint64_t unloads;      /* code was unloaded: the same addresses may mean other code */

void ml_stacks_start(void) {
  atomic_store(&stack_table.segments[0], ml_map_private(stack_slots[0] * sizeof(uint64_t), true));
  atomic_store(&string_table.segments[0], ml_map_private(string_slots[0] * sizeof(uint64_t), true));
}

void ml_stacks_clear(void) {
  struct table *tables[] = {&stack_table, &string_table};
  for (unsigned i = 0; i < 2; i++)
    for (unsigned number = 0; number < SEGMENTS; number++) {
      _Atomic uint64_t *segment = atomic_load(&tables[i]->segments[number]);
      if (segment != NULL) memset((void *)segment, 0, tables[i]->slots[number] * sizeof *segment);
    }
}

static _Atomic uint64_t *segment_of(struct table *table, unsigned number) {
  _Atomic uint64_t *segment = atomic_load(&table->segments[number]);
  if (ML_LIKELY(segment != NULL)) return segment;
  _Atomic uint64_t *made = ml_map_private(table->slots[number] * sizeof *made, true);
  if (made == NULL || atomic_compare_exchange_strong(&table->segments[number], &segment, made)) return made;
  return segment; /* another thread was faster; the mapping made here stays, untouched */
}

void ml_stacks_forget(void) { atomic_fetch_add(&unloads, 1); }

/* The id of a hash; *is_new: this call filled the slot, which is *filled (NULL: it has none). */
static uint32_t id_of(struct table *table, uint64_t hash, bool *is_new, _Atomic uint64_t **filled) {
  if (hash == 0) hash = 1;
  *is_new = false;
  *filled = NULL;
  uint32_t first_id = 1;
  for (unsigned number = 0; number < SEGMENTS; first_id += table->slots[number++]) {
    _Atomic uint64_t *segment = segment_of(table, number);
    if (segment == NULL) continue;
    const uint32_t mask = table->slots[number] - 1;
    uint32_t at = (uint32_t)(hash >> 20) & mask;
    for (unsigned probe = 0; probe < PROBES; probe++, at = (at + 1) & mask) {
      uint64_t seen = atomic_load_explicit(&segment[at], memory_order_relaxed);
      if (seen == hash) return first_id + at;
      if (seen != 0) continue;
      if (atomic_compare_exchange_strong_explicit(&segment[at], &seen, hash, memory_order_relaxed,
                                                  memory_order_relaxed)) {
        *is_new = true;
        *filled = &segment[at];
        return first_id + at;
      }
      if (seen == hash) return first_id + at;
    }
  }
  *is_new = true; /* written again each time: larger, not wrong */
  return first_id + atomic_fetch_add(&overflow_ids, 1) % (UINT32_MAX / 2);
}

/* The record found no room: the next who has the same tries again. */
static uint32_t forget(_Atomic uint64_t *filled) {
  if (filled != NULL) atomic_store_explicit(filled, 0, memory_order_relaxed);
  return 0;
}

uint32_t ml_stack_here(void) { return ml_stack_from(0); }

__attribute__((noinline)) uint32_t ml_stack_from(uint64_t caller) {
  uint64_t found[ML_MAX_DEPTH], *ips = found;
  bool truncated, is_new;
  _Atomic uint64_t *filled;
  unsigned depth = ml_unwind(found, ML_MAX_DEPTH, &truncated);
  for (unsigned i = 1; i < depth && caller != 0; i++)
    if (found[i] == caller) {
      ips = found + i;
      *ips -= 1; /* inside the call, as that of the innermost always is */
      depth -= i;
      break;
    }
  if (depth == 0) return 0;
  uint64_t hash = atomic_load_explicit(&unloads, memory_order_relaxed) * UINT64_C(0xD6E8FEB86659FD93) + depth;
  for (unsigned i = 0; i < depth; i++) {
    hash = (hash ^ ips[i]) * UINT64_C(0x9E3779B97F4A7C15);
    hash ^= hash >> 29;
  }
  const uint32_t id = id_of(&stack_table, hash, &is_new, &filled);
  if (!is_new) return id;
  atomic_fetch_add_explicit(&ml_runtime.slot->stacks, 1, memory_order_relaxed);
  struct ml_ticket ticket = ml_reserve(ML_KIND_STACK, sizeof(struct ml_stack) + depth * sizeof *ips);
  if (ticket.record == NULL) return forget(filled);
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
  _Atomic uint64_t *filled;
  if (bytes == 0) return 0;
  if (bytes > 1024) bytes = 1024;
  const uint32_t id = id_of(&string_table, ml_checksum(text, bytes), &is_new, &filled);
  if (!is_new) return id;
  struct ml_ticket ticket = ml_reserve(ML_KIND_STRING, sizeof(struct ml_string) + ((bytes + 7) & ~(size_t)7));
  if (ticket.record == NULL) return forget(filled);
  struct ml_string *record = ticket.record;
  record->id = id;
  record->tail_bytes = (uint32_t)bytes;
  memcpy(record + 1, text, bytes);
  ml_commit(ticket);
  return id;
}
