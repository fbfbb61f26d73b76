/* Slots (what is counted) and bases (the counters of a thread in a region). */
#include "emulator.h"

#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct {
  struct ml_arena_block *blocks[MAX_BLOCKS];
  uint32_t count; /* slots */
#if ML_PLUGIN_API >= 2
  struct qemu_plugin_scoreboard *scores[MAX_BLOCKS];
#endif
} slots;

static struct {
  struct ml_arena_block *block;
  uint32_t count;
  uint32_t at[MAX_REGIONS], strings[MAX_REGIONS];
} regions;

static struct ml_count_slot *slot_entries(struct ml_arena_block *block) { return (void *)(block + 1); }

struct slot_place ml_slot_new(uint64_t pc, uint32_t generation, unsigned width, unsigned parts, unsigned store,
                              unsigned flags) {
  pthread_mutex_lock(&ml_plugin.lock);
  uint32_t number = slots.count;
  /* The last slot of all takes what has no room: its address is 0. */
  const bool full = number >= MAX_BLOCKS * ML_SLOTS_OF_BLOCK - 1;
  if (full) number = MAX_BLOCKS * ML_SLOTS_OF_BLOCK - 1;
  else slots.count++;
  const uint32_t index = number / ML_SLOTS_OF_BLOCK, within = number % ML_SLOTS_OF_BLOCK;
  if (slots.blocks[index] == NULL)
    slots.blocks[index] = ml_arena_block_new(ML_ARENA_SLOTS, 0, 0, index * ML_SLOTS_OF_BLOCK);
  struct ml_arena_block *block = slots.blocks[index];
  if (block != NULL) {
    struct ml_count_slot *slot = &slot_entries(block)[within];
    slot->pc = full ? 0 : pc;
    slot->first_ns = ml_now_ns();
    slot->generation = generation;
    slot->width = (uint16_t)width;
    slot->parts = (uint16_t)parts;
    slot->store = (uint16_t)store;
    slot->flags = (uint16_t)flags;
    slot->run = 0;
    __atomic_store_n(&block->used, within + 1, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&ml_plugin.lock);
  return (struct slot_place){.block = index, .offset = within * (uint32_t)sizeof(struct ml_slot_counter)};
}

static uint32_t number_of(struct slot_place place) {
  return place.block * ML_SLOTS_OF_BLOCK + place.offset / (uint32_t)sizeof(struct ml_slot_counter);
}

/* Gives a block's slot a place among the runs: its offset in bytes; UINT32_MAX: there is none left. */
uint32_t ml_run_new(struct slot_place place) {
  static uint32_t count;
  pthread_mutex_lock(&ml_plugin.lock);
  struct ml_arena_block *block = slots.blocks[place.block];
  const uint32_t number = block != NULL && count < ML_RUNS ? count++ : UINT32_MAX;
  if (number != UINT32_MAX) slot_entries(block)[place.offset / sizeof(struct ml_slot_counter)].run = number + 1;
  pthread_mutex_unlock(&ml_plugin.lock);
  return number != UINT32_MAX ? number * (uint32_t)sizeof(uint64_t) : UINT32_MAX;
}

/* Says that each execution of a block makes `parts` of a slot. */
void ml_member_new(struct slot_place block, struct slot_place slot, unsigned parts) {
  static struct ml_arena_block *last;
  pthread_mutex_lock(&ml_plugin.lock);
  const uint32_t room =
      last != NULL ? (last->bytes - (uint32_t)sizeof *last) / (uint32_t)sizeof(struct ml_block_member) : 0;
  if (last == NULL || last->used == room) last = ml_arena_block_new(ML_ARENA_MEMBERS, 0, 0, 0);
  if (last != NULL) {
    ((struct ml_block_member *)(last + 1))[last->used] =
        (struct ml_block_member){.block = number_of(block), .slot = number_of(slot), .parts = parts};
    __atomic_store_n(&last->used, last->used + 1, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&ml_plugin.lock);
}

struct ml_slot_counter *ml_counter_slow(struct base *base, struct slot_place place) {
  static struct ml_slot_counter nowhere[ML_SLOTS_OF_BLOCK];
  pthread_mutex_lock(&ml_plugin.lock);
  if (base->blocks[place.block] == NULL) {
    struct ml_arena_block *block =
        ml_arena_block_new(ML_ARENA_COUNTERS, base->thread, base->region, place.block * ML_SLOTS_OF_BLOCK);
    __atomic_store_n(&base->blocks[place.block], block != NULL ? (void *)(block + 1) : nowhere, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&ml_plugin.lock);
  return (struct ml_slot_counter *)((unsigned char *)base->blocks[place.block] + place.offset);
}

struct base *ml_base_new(uint32_t thread, uint32_t region) {
  static uint64_t nowhere[ML_RUNS];
  static struct base emergency = {.runs = nowhere};
  struct base *base = calloc(1, sizeof *base);
  if (base == NULL) return &emergency;
  base->thread = thread;
  base->region = region;
  pthread_mutex_lock(&ml_plugin.lock);
  struct ml_arena_block *runs = ml_arena_block_new(ML_ARENA_RUNS, thread, region, 0);
  pthread_mutex_unlock(&ml_plugin.lock);
  base->runs = runs != NULL ? (uint64_t *)(runs + 1) : nowhere;
  base->has_runs = runs != NULL;
  return base;
}

/* The thread's id is learned after its counters were made. */
void ml_base_set_thread(struct base *base, uint32_t thread) {
  pthread_mutex_lock(&ml_plugin.lock);
  base->thread = thread;
  for (uint32_t i = 0; i < MAX_BLOCKS && i * ML_SLOTS_OF_BLOCK <= slots.count; i++)
    if (base->blocks[i] != NULL) ((struct ml_arena_block *)base->blocks[i] - 1)->thread = thread;
  if (base->has_runs) ((struct ml_arena_block *)base->runs - 1)->thread = thread;
  pthread_mutex_unlock(&ml_plugin.lock);
}

/* In a child: bases of threads that are not here lose their blocks. */
void ml_base_drop(struct base *base) {
  for (uint32_t i = 0; i < MAX_BLOCKS && i * ML_SLOTS_OF_BLOCK <= slots.count; i++)
    if (base->blocks[i] != NULL) ((struct ml_arena_block *)base->blocks[i] - 1)->kind = 0;
  if (base->has_runs) ((struct ml_arena_block *)base->runs - 1)->kind = 0;
}

uint32_t ml_region_number(const char *name, size_t bytes) {
  pthread_mutex_lock(&ml_plugin.lock);
  if (regions.block == NULL) regions.block = ml_arena_block_new(ML_ARENA_REGIONS, 0, 0, 0);
  uint32_t number = 0;
  if (regions.block != NULL) {
    char *text = (void *)(regions.block + 1);
    for (uint32_t i = 1; i <= regions.count && number == 0; i++)
      if (strlen(text + regions.at[i]) == bytes && memcmp(text + regions.at[i], name, bytes) == 0) number = i;
    if (number == 0 && regions.count + 1 < MAX_REGIONS &&
        regions.block->used + bytes + 1 <= regions.block->bytes - sizeof *regions.block) {
      number = ++regions.count;
      regions.at[number] = regions.block->used;
      memcpy(text + regions.block->used, name, bytes);
      text[regions.block->used + bytes] = 0;
      __atomic_store_n(&regions.block->used, regions.block->used + (uint32_t)bytes + 1, __ATOMIC_RELEASE);
    }
  }
  pthread_mutex_unlock(&ml_plugin.lock);
  return number;
}

uint32_t ml_region_string(uint32_t region) {
  if (region == 0 || region > regions.count) return 0;
  if (regions.strings[region] == 0) {
    const char *text = (const char *)(regions.block + 1) + regions.at[region];
    regions.strings[region] = ml_string(text, strlen(text));
  }
  return regions.strings[region];
}

void ml_region_strings_forget(void) { memset(regions.strings, 0, sizeof regions.strings); }

/* ---- inline counters ------------------------------------------------------------------------------------------
 * Translated code adds to fixed places: with interface 1 to one base that is nobody's region, with interface 2 to
 * scoreboards. When the thread's region changes, what they hold is moved to the region that it belongs to. */
#if ML_PLUGIN_API == 1
static struct base inline_base;

uint64_t *ml_inline_counter(struct slot_place place) { return &ml_counter(&inline_base, place)->parts[0]; }

void ml_inline_set_thread(uint32_t thread) { ml_base_set_thread(&inline_base, thread); }

void ml_inline_move(struct vcpu *vcpu, uint32_t next_region) {
  if (vcpu != ml_plugin.only) return;
  for (uint32_t i = 0; i < MAX_BLOCKS && i * ML_SLOTS_OF_BLOCK <= slots.count; i++) {
    struct ml_slot_counter *counters = inline_base.blocks[i];
    if (counters == NULL) continue;
    for (uint32_t k = 0; k < ML_SLOTS_OF_BLOCK; k++) {
      if (counters[k].parts[0] == 0) continue;
      const struct slot_place place = {i, k * (uint32_t)sizeof(struct ml_slot_counter)};
      ml_counter(vcpu->base, place)->parts[0] += counters[k].parts[0];
      counters[k].parts[0] = 0;
    }
    ((struct ml_arena_block *)counters - 1)->region = next_region; /* whoever reads it after a crash */
  }
  inline_base.region = next_region; /* of blocks to come */
}
#else
#define SCORES 256 /* of a thread: translated code multiplies by their size, which must be a shift */
_Static_assert(SCORES >= ML_SLOTS_OF_BLOCK, "a block's slots have their scores");

qemu_plugin_u64 ml_score(struct slot_place place) {
  if (slots.scores[place.block] == NULL)
    slots.scores[place.block] = qemu_plugin_scoreboard_new(SCORES * sizeof(uint64_t));
  return (qemu_plugin_u64){slots.scores[place.block], place.offset / sizeof(struct ml_slot_counter) * sizeof(uint64_t)};
}

/* By the thread itself, or when it does not run. Scoreboards are the emulator's memory, which a crash takes along: this
 * is also done at system calls now and then. */
void ml_inline_move(struct vcpu *vcpu, uint32_t next_region) {
  (void)next_region;
  for (uint32_t i = 0; i < MAX_BLOCKS && i * ML_SLOTS_OF_BLOCK <= slots.count; i++) {
    if (slots.scores[i] == NULL) continue;
    uint64_t *values = qemu_plugin_scoreboard_find(slots.scores[i], vcpu->index);
    for (uint32_t k = 0; k < ML_SLOTS_OF_BLOCK; k++) {
      if (values[k] == 0) continue;
      ml_counter(vcpu->base, (struct slot_place){i, k * (uint32_t)sizeof(struct ml_slot_counter)})->parts[0] +=
          values[k];
      values[k] = 0;
    }
  }
}

void ml_scores_clear(unsigned index) {
  for (uint32_t i = 0; i < MAX_BLOCKS && i * ML_SLOTS_OF_BLOCK <= slots.count; i++)
    if (slots.scores[i] != NULL)
      memset(qemu_plugin_scoreboard_find(slots.scores[i], index), 0, ML_SLOTS_OF_BLOCK * sizeof(uint64_t));
}
#endif

static uint64_t accesses_of_slot(const struct ml_count_slot *slot, uint64_t parts, uint64_t merged) {
  if (slot->store == 2) return 0;                   /* not seen */
  if (slot->store == 4) return parts * slot->parts; /* a block */
  return slot->parts == 0 ? parts - merged : slot->parts == 1 ? parts : parts / slot->parts;
}

static uint64_t accesses_in(const struct base *base) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < MAX_BLOCKS && i * ML_SLOTS_OF_BLOCK <= slots.count; i++) {
    const struct ml_slot_counter *counters = base->blocks[i];
    if (slots.blocks[i] == NULL) continue;
    const struct ml_count_slot *entries = slot_entries(slots.blocks[i]);
    for (uint32_t k = 0; k < slots.blocks[i]->used; k++) {
      if (counters != NULL)
        sum += accesses_of_slot(&entries[k], counters[k].parts[0] + counters[k].parts[1],
                                counters[k].merged[0] + counters[k].merged[1]);
      if (base->has_runs && entries[k].run != 0) sum += base->runs[entries[k].run - 1] * entries[k].parts;
    }
  }
  return sum;
}

static uint64_t accesses_inline(const struct vcpu *vcpu) {
#if ML_PLUGIN_API == 1
  return vcpu == ml_plugin.only ? accesses_in(&inline_base) : 0;
#else
  uint64_t sum = 0;
  for (uint32_t i = 0; i < MAX_BLOCKS && i * ML_SLOTS_OF_BLOCK <= slots.count; i++) {
    if (slots.scores[i] == NULL || slots.blocks[i] == NULL) continue;
    const uint64_t *values = qemu_plugin_scoreboard_find(slots.scores[i], vcpu->index);
    for (uint32_t k = 0; k < slots.blocks[i]->used; k++)
      sum += accesses_of_slot(&slot_entries(slots.blocks[i])[k], values[k], 0);
  }
  return sum;
#endif
}

/* A slot of several parts may lie in both: an access whose parts are in two places counts too little by one. */
uint64_t ml_accesses_seen(struct vcpu *vcpu) {
  uint64_t sum = accesses_inline(vcpu);
  for (uint32_t region = 0; region <= regions.count; region++)
    if (vcpu->bases[region] != NULL) sum += accesses_in(vcpu->bases[region]);
  return sum;
}

/* Accesses that a thread has made, from its counters. */
uint64_t ml_accesses_of(struct vcpu *vcpu) {
#if ML_PLUGIN_API >= 2
  ml_inline_move(vcpu, vcpu->region);
#endif
  return ml_accesses_seen(vcpu);
}
