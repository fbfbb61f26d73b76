/* What each thread has: a block of private memory, its places, its dump. Blocks are used again; a thread beyond the number that
 * may keep counters of their own leaves them to the thread-0 places when it ends, and its block takes the emptied arrays along. */
#include "count.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define STACK_UNLIMITED (UINT64_C(1) << 30)
#define LAST_ROUND 4 /* PTHREAD_DESTRUCTOR_ITERATIONS of every C library here: destructors of others may still count */

/* Where a thread counts before anybody has met it. Page-aligned: the arena can be mapped over it (ml_map_strays). */
static uint64_t first_dump[ML_COUNT_WORDS_MAX] __attribute__((aligned(65536)));
ML_EXPORT __thread uint64_t *__memlens_count_base __attribute__((tls_model("initial-exec"))) = first_dump;
extern __thread uint64_t *ml_own_base
    __attribute__((alias("__memlens_count_base"), visibility("hidden"), tls_model("initial-exec")));
bool ml_base_is_own(void) {
  uint64_t **volatile chosen = &__memlens_count_base;
  return chosen == &ml_own_base;
}
ML_EXPORT __thread uint64_t *__memlens_count_dump __attribute__((tls_model("initial-exec")));
__thread struct ml_tls ml_tls __attribute__((tls_model("initial-exec")));
uint64_t ml_counter_words = ML_COUNT_MAX_OF_FUNCTION;

static struct ml_thread *free_blocks;
static pthread_key_t key;
static bool has_key;
static uint64_t thread_stack_bytes;

/* ---- blocks ---------------------------------------------------------------------------------------------------- */
static struct ml_thread *take_block(void) {
  const int saved = errno;
  const uint64_t signals = ml_lock();
  struct ml_thread *block = free_blocks;
  if (block != NULL) free_blocks = block->next_free;
  ml_unlock(signals);
  if (block == NULL) block = ml_map_private(sizeof *block);
  errno = saved;
  return block;
}

static void give_block(struct ml_thread *block) {
  const uint64_t signals = ml_lock();
  block->next_free = free_blocks;
  free_blocks = block;
  ml_unlock(signals);
}

uint64_t *ml_thread_dump(struct ml_thread *self) {
  if (self->dump == NULL) {
    const int saved = errno;
    self->dump = ml_map_private(ml_counter_words * sizeof(uint64_t));
    if (self->dump == NULL) self->dump = first_dump;
    else if (ml_process.shared != NULL) ml_populate_counters(self->dump);
    errno = saved;
  }
  __memlens_count_dump = self->dump != first_dump ? self->dump : NULL; /* strays may count in the first one */
  return self->dump;
}

/* ---- stacks ----------------------------------------------------------------------------------------------------- */
static void own_stack(struct ml_thread *self, uintptr_t high, uint64_t bytes) {
  self->stack_high = high;
  self->stack_low = high > bytes ? high - bytes : 0;
}

static void main_stack(struct ml_thread *self) {
  struct rlimit limit;
  uint64_t bytes = STACK_UNLIMITED;
  if (getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur < bytes) bytes = limit.rlim_cur;
  const uintptr_t high = getauxval(AT_RANDOM); /* the kernel put it above the first frame */
  if (high != 0) own_stack(self, high, bytes);
}

/* The mapping around an address of the stack: for threads that somebody else started. */
static void mapped_stack(struct ml_thread *self, uintptr_t inside) {
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return;
  char text[2048];
  uint64_t bounds[2] = {0, 0};
  unsigned field = 0; /* 0 begin, 1 end, 2 the rest of the line */
  for (long got; (got = syscall(SYS_read, fd, text, sizeof text)) > 0;) {
    for (long i = 0; i < got; i++) {
      const char c = text[i];
      if (c == '\n') {
        field = 0;
        bounds[0] = bounds[1] = 0;
      } else if (field < 2 && (c == '-' || c == ' ')) {
        field++;
        if (field == 2 && inside - bounds[0] < bounds[1] - bounds[0]) {
          self->stack_low = bounds[0];
          self->stack_high = bounds[1];
        }
      } else if (field < 2) {
        bounds[field] = bounds[field] << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
      }
    }
  }
  syscall(SYS_close, fd);
}

/* ---- begin ------------------------------------------------------------------------------------------------------- */
/* In the thread itself. The creator has filled in the bottom's node and flags, and place_flags. */
static void begin(struct ml_thread *self) {
  struct ml_count_process *shared = ml_process.shared;
  struct ml_open *root = self->stack;
  ml_tls.adopting = 1; /* a signal handler that comes now does not switch */
  if (shared != NULL) ml_populate(self, offsetof(struct ml_thread, slots) + 4096);
  self->tid = (uint32_t)syscall(SYS_gettid);
  self->too_deep = self->end_rounds = 0;
  ml_trace_thread_begin(self);
  if (shared != NULL) {
    self->order = (uint32_t)__atomic_fetch_add(&shared->threads_started, 1, __ATOMIC_RELAXED);
    self->random = (ml_arena_settings.seed << 20) + ((uint64_t)ml_process.generation << 44) + self->order;
    for (uint32_t node = 0, n = ml_node_count(); node < n; node++) /* arrays that an ended thread left */
      if (self->slots[node].entry != NULL) {
        self->slots[node].entry->thread = self->tid;
        __atomic_store_n(&self->slots[node].entry->flags, self->place_flags, __ATOMIC_RELEASE);
      }
    int error = 0;
    self->events_open = ml_events_open(self->event_state, &ml_arena_settings, &error);
    if (self->order == 0) {
      shared->events_mask = self->events_open;
      shared->events_open = (uint64_t)__builtin_popcount(self->events_open);
      shared->event_error = (uint64_t)error;
    }
    root->place = ml_place_of(self, root->node)->place;
    root->frame = ML_NO_FRAME;
    root->begin_ticks = self->synced_ticks = ml_ticks();
    root->nested_ticks = 0;
    root->name = 0;
    if (root->node != 0) {
      root->place->joined++;
      root->place->joined_open_ticks = root->begin_ticks;
      ml_spans_enter(root->node, root->begin_ticks);
    }
  } else {
    root->place = &ml_no_place;
  }
  const bool counts = root->place != &ml_no_place && (root->flags & ML_OPEN_UNTOUCHED) == 0;
  uint64_t *of_group = counts && root->group != 0 ? ml_group_counters(self, root->node, root->group) : NULL;
  if (of_group == NULL) root->group = 0;
  root->base = of_group != NULL ? of_group
               : counts         ? (uint64_t *)((unsigned char *)root->place + ML_COUNT_PLACE_COUNTERS)
                                : ml_thread_dump(self);
  self->top = root;
  self->busy = shared != NULL ? 0 : UINTPTR_MAX; /* nobody counts: switches look no further */
  if (has_key) pthread_setspecific(key, self);
  __memlens_count_base = root->base;
  ml_tls.self = self;
  ml_tls.adopting = 0;
}

struct ml_thread *ml_thread_adopt(uintptr_t frame) {
  if (ml_tls.self != NULL || ml_tls.adopting || ml_tls.ended) return ml_tls.self;
  ml_tls.adopting = 1;
  const int saved = errno;
  struct ml_thread *self = take_block();
  if (self != NULL) {
    const bool is_main = getpid() == (pid_t)syscall(SYS_gettid);
    self->stack[0] = (struct ml_open){.flags = ML_OPEN_ROOT};
    self->place_flags = is_main ? 0 : ML_COUNT_UNATTRIBUTED;
    self->stack_low = self->stack_high = 0;
    if (is_main) main_stack(self);
    else if (ml_process.shared != NULL) mapped_stack(self, frame != 0 ? frame : (uintptr_t)&frame);
    begin(self);
  }
  errno = saved;
  ml_tls.adopting = 0;
  return self;
}

/* ---- end ---------------------------------------------------------------------------------------------------------- */
static void add_place(struct ml_count_place *sum, const struct ml_count_place *place) {
  const uint64_t ended = sum->counted + sum->untouched, more = place->counted + place->untouched;
  if (more != 0 && (ended == 0 || place->least_ticks < sum->least_ticks)) sum->least_ticks = place->least_ticks;
  if (place->most_ticks > sum->most_ticks) sum->most_ticks = place->most_ticks;
  if (place->first_ticks != 0 && (sum->first_ticks == 0 || place->first_ticks < sum->first_ticks))
    sum->first_ticks = place->first_ticks;
  if (place->last_ticks > sum->last_ticks) sum->last_ticks = place->last_ticks;
  sum->entered += place->entered;
  sum->counted += place->counted;
  sum->untouched += place->untouched;
  sum->counted_ticks += place->counted_ticks;
  sum->untouched_ticks += place->untouched_ticks;
  sum->counted_self_ticks += place->counted_self_ticks;
  sum->untouched_self_ticks += place->untouched_self_ticks;
  sum->abandoned += place->abandoned;
  sum->recursions += place->recursions;
  sum->joined += place->joined;
  sum->joined_ticks += place->joined_ticks;
  sum->unspanned_ticks += place->unspanned_ticks;
  sum->overhead_ticks += place->overhead_ticks;
  sum->switch_ticks += place->switch_ticks;
  for (int i = 0; i < 64; i++) {
    sum->counted_of_duration[i] += place->counted_of_duration[i];
    sum->untouched_of_duration[i] += place->untouched_of_duration[i];
    sum->untouched_ticks_of_duration[i] += place->untouched_ticks_of_duration[i];
  }
  for (int i = 0; i < ML_COUNT_EVENTS; i++) {
    sum->counted_events[i] += place->counted_events[i];
    sum->untouched_events[i] += place->untouched_events[i];
  }
  sum->event_enabled_ns += place->event_enabled_ns;
  sum->event_running_ns += place->event_running_ns;
  /* An event that one of them could not read has no sum. */
  if (more != 0) sum->events_read = ended != 0 ? sum->events_read & place->events_read : place->events_read;
  sum->event_unseen_ns += place->event_unseen_ns;
}

/* Adds an array of counters to another and empties it. Pages that nobody touched are not looked at: that would make them. */
static void add_counters(uint64_t *sums, uint64_t *counters, uint64_t used) {
  const uint64_t page = 4096 / sizeof(uint64_t), step = 256 * page;
  unsigned char resident[256];
  for (uint64_t at = ML_COUNT_MAX_OF_FUNCTION; at < used; at += step) {
    const uint64_t words = used - at < step ? used - at : step;
    /* On machines of larger pages the call fails, and everything is looked at. */
    if (syscall(SYS_mincore, counters + at, words * sizeof(uint64_t), resident) != 0)
      memset(resident, 1, sizeof resident);
    for (uint64_t i = 0; i < words; i++) {
      if ((resident[i / page] & 1) == 0) {
        i += page - 1;
        continue;
      }
      if (counters[at + i] == 0) continue;
      sums[at + i] += counters[at + i];
      counters[at + i] = 0;
    }
  }
}

static void leave_places(struct ml_thread *self) {
  struct ml_count_process *shared = ml_process.shared;
  const bool merges = self->order >= ml_arena_settings.threads_max;
  const uint64_t used = __atomic_load_n(&ml_counters_used, __ATOMIC_ACQUIRE);
  const uint64_t signals = ml_lock();
  for (uint32_t node = 0, n = ml_node_count(); node < n; node++) {
    struct ml_slot *slot = &self->slots[node];
    if (slot->entry == NULL) {
      slot->place = NULL; /* the next thread may have more luck */
      slot->groups = NULL;
      continue;
    }
    struct ml_slot *sum = merges ? ml_ended_place_locked(node) : NULL;
    if (sum != NULL && sum->place != &ml_no_place) {
      add_place(sum->place, slot->place);
      add_counters((uint64_t *)sum->place + ML_COUNT_PLACE_COUNTERS / sizeof(uint64_t),
                   (uint64_t *)slot->place + ML_COUNT_PLACE_COUNTERS / sizeof(uint64_t), used);
      memset(slot->place, 0, sizeof *slot->place);
      __atomic_fetch_or(&slot->entry->flags, ML_COUNT_ENDED, __ATOMIC_RELEASE);
      slot->groups = NULL;
    } else {
      __atomic_fetch_or(&slot->entry->flags, ML_COUNT_ENDED, __ATOMIC_RELEASE);
      *slot = (struct ml_slot){0};
    }
  }
  if (merges) shared->threads_merged++;
  memset(self->cache, 0, sizeof self->cache);
  ml_unlock(signals);
}

static void end(struct ml_thread *self) {
  const int saved = errno;
  if (ml_process.shared != NULL) {
    ml_trace_thread_end(self);
    ml_settle_open(self);
  }
  __memlens_count_base = first_dump;
  ml_tls.self = NULL;
  ml_tls.ended = 1;
  __atomic_signal_fence(__ATOMIC_SEQ_CST);
  if (self->events_open != 0) ml_events_close(self->event_state);
  self->events_open = 0;
  if (ml_process.shared != NULL) {
    leave_places(self);
    ml_process_sync(NULL, 0);
  }
  give_block(self);
  errno = saved;
}

/* Destructors of other keys may count, and run in rounds: ours waits for the last. */
static void at_thread_end(void *value) {
  struct ml_thread *self = value;
  if (self != ml_tls.self) return;
  if (++self->end_rounds < LAST_ROUND) pthread_setspecific(key, self);
  else end(self);
}

/* ---- creation ------------------------------------------------------------------------------------------------------ */
static void *run(void *block) {
  struct ml_thread *self = block;
  void *(*const start)(void *) = self->start;
  void *const argument = self->argument;
  own_stack(self, (uintptr_t)__builtin_dwarf_cfa(), self->stack_high);
  begin(self);
  void *result = start(argument);
  if (!has_key && ml_tls.self != NULL) end(ml_tls.self);
  return result;
}

static int run_c11(void *block) {
  struct ml_thread *self = block;
  int (*const start)(void *) = self->start_c11;
  void *const argument = self->argument;
  own_stack(self, (uintptr_t)__builtin_dwarf_cfa(), self->stack_high);
  begin(self);
  const int result = start(argument);
  if (!has_key && ml_tls.self != NULL) end(ml_tls.self);
  return result;
}

static struct ml_thread *block_for_new(void *argument, uint64_t stack_bytes, int pool) {
  ml_process_start();
  struct ml_thread *block = take_block();
  if (block == NULL) return NULL;
  const struct ml_thread *self = ml_tls.self;
  block->stack[0] = (struct ml_open){.flags = ML_OPEN_ROOT};
  if (pool == 0 && self != NULL && self->top != NULL) {
    block->stack[0].node = self->top->node;
    block->stack[0].flags |= self->top->flags & ML_OPEN_UNTOUCHED;
    block->stack[0].group = self->top->group;
  }
  block->place_flags = pool == ML_POOL_UNKNOWN ? ML_COUNT_UNATTRIBUTED : 0;
  block->argument = argument;
  block->stack_high = stack_bytes; /* until the thread knows where */
  return block;
}

ML_EXPORT int __memlens_count_pthread_create(int (*real)(void *, const void *, void *(*)(void *), void *), void *thread,
                                             const void *attributes, void *(*start)(void *), void *argument, int pool) {
  size_t stack_bytes = 0;
  /* A creation inside a creation is the same one: of a library whose own wrapper called ours. */
  struct ml_thread *block = NULL;
  if (!ml_tls.creating) {
    if (attributes == NULL || pthread_attr_getstacksize(attributes, &stack_bytes) != 0)
      stack_bytes = thread_stack_bytes;
    block = block_for_new(argument, stack_bytes, pool);
  }
  if (block == NULL) return real(thread, attributes, start, argument);
  block->start = start;
  ml_tls.creating = 1;
  const int result = real(thread, attributes, run, block);
  ml_tls.creating = 0;
  if (result != 0) give_block(block);
  return result;
}

ML_EXPORT int __memlens_count_thrd_create(int (*real)(void *, int (*)(void *), void *), void *thread,
                                          int (*start)(void *), void *argument) {
  struct ml_thread *block = ml_tls.creating ? NULL : block_for_new(argument, thread_stack_bytes, 0);
  if (block == NULL) return real(thread, start, argument);
  block->start_c11 = start;
  ml_tls.creating = 1;
  const int result = real(thread, run_c11, block);
  ml_tls.creating = 0;
  if (result != 0) give_block(block);
  return result;
}

/* ---- start, fork, stop ---------------------------------------------------------------------------------------------- */
void ml_threads_start(void) {
  struct rlimit limit;
  thread_stack_bytes = UINT64_C(2) << 20;
  if (getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) thread_stack_bytes = limit.rlim_cur;
  has_key = pthread_key_create(&key, at_thread_end) == 0;
  if (ml_process.shared == NULL) return;
  ml_is_sampling = ml_arena_settings.sampling != ML_SAMPLE_ALL;
  ml_counter_words =
      ml_arena_settings.counters_max < ML_COUNT_WORDS_MAX ? ml_arena_settings.counters_max : ML_COUNT_WORDS_MAX;
  ml_map_strays();
  struct ml_thread *idle = ml_map_private(sizeof *idle);
  if (idle != NULL) {
    ml_measure_switch(idle);
    idle->next_free = free_blocks;
    free_blocks = idle;
  }
}

/* Threads that start without our hooks, as those of a program that loaded a counted library later, count into first_dump.
 * With the arena mapped over it their counts are kept; several such threads add to the same words and lose a few. */
void ml_map_strays(void) {
  if (&ml_creation_is_seen == NULL || ml_creation_is_seen()) return;
  if (getauxval(AT_PAGESZ) != 4096) return;
  uint64_t offset;
  const uint64_t bytes = ML_COUNT_PLACE_COUNTERS + ml_arena_settings.counters_max * sizeof(uint64_t);
  struct ml_count_place *place = ml_arena_room(bytes, &offset);
  struct ml_count_entry *entry = place != NULL ? ml_arena_claim() : NULL;
  if (entry == NULL) return;
  const uint64_t mapped = ml_counter_words * sizeof(uint64_t) / 4096 * 4096;
  if (!ml_arena_map_over(first_dump, mapped, offset + ML_COUNT_PLACE_COUNTERS)) return;
  entry->offset = offset;
  entry->bytes = bytes;
  entry->flags = ML_COUNT_UNATTRIBUTED;
  ml_arena_publish(entry, ML_COUNT_PLACE);
}

void ml_threads_forked(struct ml_thread *self) {
  const uint32_t nodes = ml_node_count();
  for (struct ml_thread *block = free_blocks; block != NULL; block = block->next_free)
    memset(block->slots, 0, nodes * sizeof *block->slots);
  if (ml_process.shared != NULL) ml_map_strays();
  if (self == NULL) return;
  self->tid = (uint32_t)syscall(SYS_gettid);
  memset(self->slots, 0, nodes * sizeof *self->slots);
  if (self->events_open != 0) ml_events_close(self->event_state);
  self->events_open = 0;
  ml_trace_forked(self);
  if (ml_process.shared == NULL) {
    self->busy = UINTPTR_MAX;
    __memlens_count_base = ml_thread_dump(self);
    return;
  }
  ml_process.shared->threads_started = 1;
  self->order = 0;
  int error = 0;
  self->events_open = ml_events_open(self->event_state, &ml_arena_settings, &error);
  ml_regions_forked(self);
  __memlens_count_base = self->top->base;
}

void ml_threads_stop(void) {
  if (has_key) pthread_key_delete(key); /* the code of its destructor may go away */
  has_key = false;
}
