/* Byte strings to small numbers, append-only. */
#include "internal.h"
#include "memlens_checksum.h"

#include <stdlib.h>
#include <string.h>

struct entry {
  uint64_t hash;
  uint32_t id;
  uint32_t length;
  unsigned char *bytes;
};

struct ml_intern {
  struct entry *slots;
  size_t mask;
  uint32_t count;
};

struct ml_intern *ml_intern_new(void) {
  struct ml_intern *table = calloc(1, sizeof *table);
  if (table == NULL) return NULL;
  table->mask = 1023;
  table->slots = calloc(table->mask + 1, sizeof *table->slots);
  if (table->slots == NULL) {
    free(table);
    return NULL;
  }
  return table;
}

void ml_intern_free(struct ml_intern *table) {
  if (table == NULL) return;
  for (size_t i = 0; i <= table->mask; i++) free(table->slots[i].bytes);
  free(table->slots);
  free(table);
}

static void grow(struct ml_intern *table) {
  const size_t mask = 2 * table->mask + 1;
  struct entry *slots = calloc(mask + 1, sizeof *slots);
  if (slots == NULL) return; /* the table gets slower, not wrong */
  for (size_t i = 0; i <= table->mask; i++) {
    if (table->slots[i].id == 0) continue;
    size_t at = table->slots[i].hash & mask;
    while (slots[at].id != 0) at = (at + 1) & mask;
    slots[at] = table->slots[i];
  }
  free(table->slots);
  table->slots = slots;
  table->mask = mask;
}

uint32_t ml_intern_bytes(struct ml_intern *table, const void *bytes, size_t length, int *is_new) {
  const uint64_t hash = ml_checksum(bytes, length);
  *is_new = 0;
  size_t at = hash & table->mask;
  for (; table->slots[at].id != 0; at = (at + 1) & table->mask) {
    const struct entry *entry = &table->slots[at];
    if (entry->hash == hash && entry->length == length && memcmp(entry->bytes, bytes, length) == 0) return entry->id;
  }
  if (table->count >= table->mask) return 0;
  unsigned char *copy = malloc(length ? length : 1);
  if (copy == NULL) return 0;
  memcpy(copy, bytes, length);
  table->slots[at] = (struct entry){.hash = hash, .id = ++table->count, .length = (uint32_t)length, .bytes = copy};
  const uint32_t id = table->count;
  *is_new = 1;
  if (2 * (size_t)table->count > table->mask) grow(table);
  return id;
}
