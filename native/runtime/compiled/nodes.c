/* Names, nodes and places. A node is a path of names; a place is what one thread keeps of one node.
 *
 * Both hash tables only grow, and a slot is written after what it points to: they are read without the lock. Names and nodes
 * of a process image outlive its forks; each image publishes the nodes that it uses. */
#include "count.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define TABLE_SLOTS (2u * ML_NODES_MAX) /* a power of two */
#define TEXT_BYTES (UINT64_C(4) << 20)

struct node {
  uint32_t parent, name;
  uint32_t published;         /* generation + 1 of the process image, 0 = never */
  struct ml_count_span *span; /* of the image that published it */
};
static struct tables {
  uint32_t name_slots[TABLE_SLOTS], node_slots[TABLE_SLOTS]; /* 0 = empty */
  const char *names[ML_NAMES_MAX];
  struct node nodes[ML_NODES_MAX];
  uint8_t pairing[ML_NAMES_MAX];
  struct ml_slot ended[ML_NODES_MAX];
  char text[TEXT_BYTES];
} *tables;
static uint32_t name_count = 1, node_count = 1; /* name 0 and node 0: outside any region */
static uint64_t text_used;

struct ml_count_place ml_no_place;
uint8_t *ml_pairing;

bool ml_nodes_start(void) {
  tables = ml_map_private(sizeof *tables);
  if (tables == NULL) return false;
  ml_pairing = tables->pairing;
  return true;
}

/* ---- names ------------------------------------------------------------------------------------------------- */
static uint32_t find_name(const char *name, size_t bytes, uint32_t *slot) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (size_t i = 0; i < bytes; i++) hash = (hash ^ (unsigned char)name[i]) * UINT64_C(0x100000001b3);
  for (uint32_t at = (uint32_t)(hash ^ hash >> 32);; at++) {
    *slot = at & (TABLE_SLOTS - 1);
    const uint32_t found = __atomic_load_n(&tables->name_slots[*slot], __ATOMIC_ACQUIRE);
    if (found == 0) return 0;
    const char *text = tables->names[found];
    if (strncmp(text, name, bytes) == 0 && text[bytes] == 0) return found;
  }
}

uint32_t ml_name_of(const char *name) {
  const size_t bytes = strnlen(name, ML_NAME_BYTES_MAX);
  uint32_t slot, found = find_name(name, bytes, &slot);
  if (ML_LIKELY(found != 0)) return found;
  const uint64_t signals = ml_lock();
  found = find_name(name, bytes, &slot);
  if (found == 0 && name_count < ML_NAMES_MAX && text_used + bytes + 1 <= TEXT_BYTES) {
    char *text = tables->text + text_used;
    memcpy(text, name, bytes); /* zero-terminated: the memory is fresh */
    text_used += bytes + 1;
    found = name_count++;
    tables->names[found] = text;
    __atomic_store_n(&tables->name_slots[slot], found, __ATOMIC_RELEASE);
  }
  ml_unlock(signals);
  return found;
}

const char *ml_name_text(uint32_t name) { return name != 0 ? tables->names[name] : ""; }

/* ---- nodes ------------------------------------------------------------------------------------------------- */
static uint32_t find_node(uint32_t parent, uint32_t name, uint32_t *slot) {
  const uint64_t hash = ((uint64_t)parent << 32 | name) * UINT64_C(0x9e3779b97f4a7c15);
  for (uint32_t at = (uint32_t)(hash >> 40);; at++) {
    *slot = at & (TABLE_SLOTS - 1);
    const uint32_t found = __atomic_load_n(&tables->node_slots[*slot], __ATOMIC_ACQUIRE);
    if (found == 0 || (tables->nodes[found].parent == parent && tables->nodes[found].name == name)) return found;
  }
}

uint32_t ml_node_count(void) { return __atomic_load_n(&node_count, __ATOMIC_ACQUIRE); }
uint32_t ml_node_parent(uint32_t node) { return tables->nodes[node].parent; }
const char *ml_node_name(uint32_t node) { return ml_name_text(tables->nodes[node].name); }

uint32_t ml_node_below(uint32_t node, uint32_t name, bool *is_open) {
  *is_open = true;
  for (uint32_t at = node; at != 0; at = tables->nodes[at].parent)
    if (tables->nodes[at].name == name) return at;
  *is_open = false;
  uint32_t slot, found = find_node(node, name, &slot);
  if (found != 0) return found;
  const uint64_t signals = ml_lock();
  found = find_node(node, name, &slot);
  if (found == 0 && node_count < ML_NODES_MAX) {
    found = node_count;
    tables->nodes[found] = (struct node){.parent = node, .name = name};
    __atomic_store_n(&node_count, found + 1, __ATOMIC_RELEASE);
    __atomic_store_n(&tables->node_slots[slot], found, __ATOMIC_RELEASE);
  }
  if (found == 0 && ml_process.shared != NULL) ml_add(&ml_process.shared->regions_refused, 1);
  ml_unlock(signals);
  return found != 0 ? found : UINT32_MAX;
}

/* A node's place means something only together with its name: both or none. */
static bool publish_node(uint32_t number) {
  struct node *node = &tables->nodes[number];
  if (number == 0 || node->published == ml_process.generation + 1) return true;
  if (!publish_node(node->parent)) return false;
  const char *text = tables->names[node->name];
  const size_t bytes = strlen(text) + 1;
  uint64_t offset;
  unsigned char *content = ml_arena_room(4096, &offset);
  struct ml_count_entry *entry = content != NULL ? ml_arena_claim() : NULL;
  if (entry == NULL) return false;
  memcpy(content, text, bytes);
  entry->offset = offset;
  entry->bytes = bytes;
  entry->node = number;
  entry->parent = node->parent;
  struct ml_count_span *span = (struct ml_count_span *)(content + ML_COUNT_SPAN_BYTE);
  span->is_kept = 1;
  ml_arena_publish(entry, ML_COUNT_NODE);
  __atomic_store_n(&node->span, span, __ATOMIC_RELEASE);
  node->published = ml_process.generation + 1;
  return true;
}

/* ---- places ------------------------------------------------------------------------------------------------- */
static void make_place(struct ml_slot *slot, uint32_t node, uint32_t tid, uint32_t flags) {
  const int saved = errno;
  slot->place = &ml_no_place;
  if (ml_process.shared != NULL && publish_node(node)) {
    const uint64_t bytes = ML_COUNT_PLACE_COUNTERS + ml_arena_settings.counters_max * sizeof(uint64_t);
    uint64_t offset;
    struct ml_count_place *place = ml_arena_room(bytes, &offset);
    struct ml_count_entry *entry = place != NULL ? ml_arena_claim() : NULL;
    if (entry != NULL) {
      entry->offset = offset;
      entry->bytes = bytes;
      entry->thread = tid;
      entry->node = node;
      entry->flags = flags;
      ml_populate(place, sizeof *place);
      if (tid != 0) ml_populate_counters((uint64_t *)((unsigned char *)place + ML_COUNT_PLACE_COUNTERS));
      ml_arena_publish(entry, ML_COUNT_PLACE);
      slot->entry = entry;
      slot->place = place;
    }
  } else if (ml_process.shared != NULL) {
    ml_add(&ml_process.shared->regions_refused, 1);
  }
  errno = saved;
}

struct ml_slot *ml_place_of_locked(struct ml_thread *self, uint32_t node) {
  struct ml_slot *slot = &self->slots[node];
  if (slot->place == NULL) make_place(slot, node, self->tid, self->place_flags);
  return slot;
}

struct ml_slot *ml_place_of(struct ml_thread *self, uint32_t node) {
  struct ml_slot *slot = &self->slots[node];
  if (ML_LIKELY(slot->place != NULL)) return slot;
  const uint64_t signals = ml_lock();
  ml_place_of_locked(self, node);
  ml_unlock(signals);
  return slot;
}

struct ml_slot *ml_ended_place_locked(uint32_t node) {
  struct ml_slot *slot = &tables->ended[node];
  if (slot->place == NULL) make_place(slot, node, 0, ML_COUNT_ENDED);
  return slot;
}

void ml_nodes_forked(void) {
  memset(tables->ended, 0, node_count * sizeof *tables->ended);
  for (uint32_t node = 0; node < node_count; node++) tables->nodes[node].span = NULL; /* the parent's */
}

struct ml_count_span *ml_node_span(uint32_t node) {
  return __atomic_load_n(&tables->nodes[node].span, __ATOMIC_ACQUIRE);
}

/* ---- memory that will be written in a region ---------------------------------------------------------------------- */
#define POPULATED_MOST (UINT64_C(128) * 4096) /* a program with very many counters uses few of them in one region */

void ml_populate(void *memory, uint64_t bytes) {
  const int saved = errno;
  const uintptr_t begin = (uintptr_t)memory / 4096 * 4096, end = ((uintptr_t)memory + bytes + 4095) / 4096 * 4096;
  if (end - begin <= POPULATED_MOST && syscall(SYS_madvise, begin, end - begin, MADV_POPULATE_WRITE) != 0)
    /* before Linux 5.14 */
    for (uintptr_t at = begin; at < end; at += 4096) __atomic_fetch_add((uint64_t *)at, 0, __ATOMIC_RELAXED);
  errno = saved;
}

void ml_populate_counters(uint64_t *counters) {
  uint64_t used = __atomic_load_n(&ml_counters_used, __ATOMIC_ACQUIRE);
  if (used > ml_counter_words) used = ml_counter_words;
  if (used > ML_COUNT_MAX_OF_FUNCTION)
    ml_populate(counters + ML_COUNT_MAX_OF_FUNCTION, (used - ML_COUNT_MAX_OF_FUNCTION) * sizeof *counters);
}

/* ---- groups of sampled executions ----------------------------------------------------------------------------------- */
unsigned char ml_no_groups[1];

static uint64_t group_bytes(void) {
  return (ML_COUNT_PLACE_COUNTERS + ml_arena_settings.counters_max * sizeof(uint64_t) + 4095) / 4096 * 4096;
}

static void make_groups(struct ml_slot *slot, struct ml_thread *self, uint32_t node) {
  const int saved = errno;
  const uint64_t bytes = group_bytes() * ml_arena_settings.sample_groups;
  uint64_t offset;
  /* Threads that are added up when they end have no groups. */
  const bool has_own =
      self->order < ml_arena_settings.threads_max && slot->place != NULL && slot->place != &ml_no_place;
  unsigned char *groups = has_own ? ml_arena_room(bytes, &offset) : NULL;
  struct ml_count_entry *entry = groups != NULL ? ml_arena_claim() : NULL;
  slot->groups = ml_no_groups;
  if (entry != NULL) {
    entry->offset = offset;
    entry->bytes = bytes;
    entry->thread = self->tid;
    entry->node = node;
    ml_arena_publish(entry, ML_COUNT_GROUPS);
    slot->groups = groups;
  }
  errno = saved;
}

uint64_t *ml_group_counters(struct ml_thread *self, uint32_t node, uint32_t group) {
  struct ml_slot *slot = &self->slots[node];
  if (ML_UNLIKELY(slot->groups == NULL)) {
    const uint64_t signals = ml_lock();
    if (slot->groups == NULL) make_groups(slot, self, node);
    ml_unlock(signals);
  }
  if (ML_UNLIKELY(slot->groups == ml_no_groups)) return NULL;
  struct ml_count_place *place = (struct ml_count_place *)(slot->groups + (group - 1) * group_bytes());
  uint64_t *counters = (uint64_t *)((unsigned char *)place + ML_COUNT_PLACE_COUNTERS);
  if (place->entered++ == 0) ml_populate_counters(counters);
  return counters;
}
