/* The recorder's side of the channel (format/memlens_channel.h): makes the memory file, keeps enough
 * free slots in it, empties the rings, and turns the processes' own ids into the capture's.
 *
 * The content of the memory file was written by other processes, which may overwrite it at any moment, also after they
 * have dropped their privileges: geometry and positions of readers are copies of our own, what a process writes is read once,
 * every length is checked, and an inconsistent ring is abandoned and counted. The file cannot be cut short (seals). */
#include "internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "memlens_channel.h"

#define IDLE_NS 20000000             /* rings are emptied at least this often */
#define CHECK_NS UINT64_C(200000000) /* and processes are looked after this often */
#define LOOK_NS UINT64_C(50000000)   /* one whose process is not found is looked for so often */
#define PUBLISH_STEP 8
#define WANTED_FREE 6
#define UNKNOWN_PID 0x40000000 /* above any pid; + the pid in its own namespace */

/* A process's own ids → the capture's. */
struct id_map {
  struct {
    uint32_t from, to;
  } *entries;
  size_t mask, count;
};

struct claim {
  uint64_t claimed_ns;  /* 0: not in use */
  uint64_t start_ticks; /* of the process, against pid reuse */
  uint64_t first_seen_ns, checked_ns, maps_ns, leaving_ns;
  pid_t pid; /* in our namespace; 0: not found yet */
  struct ml_process *process;
  bool damaged, new_stacks;
  uint32_t writer;                      /* enum ml_channel_writer, as it was when the slot was claimed */
  uint64_t tails[ML_CHANNEL_MAX_RINGS]; /* where we read on; the slot's own are for the writers */
  uint64_t records;
  struct id_map strings, stacks;
};

struct ml_channel {
  struct ml_channel_options options;
  struct ml_channel_header *header;
  uint64_t stride, file_bytes, pid_namespace; /* our own copies: the header can be written by any target */
  int fd;
  char value[96];
  struct claim *claims;
  uint32_t published;
  struct ml_session *session;
  pthread_t thread;
  bool thread_runs;
  atomic_bool stop;
  struct ml_channel_counts counts;
  pthread_mutex_t counts_lock;
};

static uint64_t own_pid_namespace(void) {
  struct stat status;
  return stat("/proc/self/ns/pid", &status) == 0 ? (uint64_t)status.st_ino : 0;
}

static struct ml_channel_slot *slot_at(const struct ml_channel *channel, uint32_t index) {
  return (void *)((unsigned char *)channel->header + ML_CHANNEL_HEADER_BYTES + index * channel->stride);
}

static void set_free(struct ml_channel *channel, uint32_t index) {
  atomic_fetch_or_explicit(&channel->header->free_slots[index / 64], UINT64_C(1) << index % 64, memory_order_release);
}

/* Puts memory behind more slots. A full system makes fewer slots, never a signal in a target. */
static void publish(struct ml_channel *channel, uint32_t count) {
  struct ml_channel_header *header = channel->header;
  while (count-- > 0 && channel->published < channel->options.slot_max) {
    const off_t offset = (off_t)(ML_CHANNEL_HEADER_BYTES + channel->published * channel->stride);
    if (fallocate(channel->fd, 0, offset, (off_t)channel->stride) != 0) return;
    set_free(channel, channel->published++);
    atomic_store_explicit(&header->slots_published, channel->published, memory_order_release);
  }
}

struct ml_channel *ml_channel_new(const struct ml_channel_options *options) {
  struct ml_channel *channel = calloc(1, sizeof *channel);
  if (channel == NULL) return NULL;
  channel->options = *options;
  struct ml_channel_options *chosen = &channel->options;
  const bool every = chosen->sample_bytes == 0 && chosen->alloc;
  if (chosen->ring_count == 0) {
    const long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    chosen->ring_count = cpus < 4 ? 4 : cpus > ML_CHANNEL_MAX_RINGS ? ML_CHANNEL_MAX_RINGS : (uint32_t)cpus;
  }
  if (chosen->ring_count > ML_CHANNEL_MAX_RINGS) chosen->ring_count = ML_CHANNEL_MAX_RINGS;
  if (chosen->ring_bytes == 0) chosen->ring_bytes = every ? UINT64_C(4) << 20 : UINT64_C(128) << 10;
  if (chosen->slot_max == 0) chosen->slot_max = every ? 128 : ML_CHANNEL_MAX_SLOTS;
  if (chosen->slot_max > ML_CHANNEL_MAX_SLOTS) chosen->slot_max = ML_CHANNEL_MAX_SLOTS;
  const uint64_t stride = ML_CHANNEL_SLOT_HEADER_BYTES + chosen->ring_count * chosen->ring_bytes;
  const uint64_t bytes = ML_CHANNEL_HEADER_BYTES + stride * chosen->slot_max;
  channel->fd = memfd_create("memlens", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  channel->claims = calloc(chosen->slot_max, sizeof *channel->claims);
  pthread_mutex_init(&channel->counts_lock, NULL);
  void *memory = MAP_FAILED;
  if (channel->fd >= 0 && channel->claims != NULL && ftruncate(channel->fd, (off_t)bytes) == 0 &&
      fcntl(channel->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0 &&
      fallocate(channel->fd, 0, 0, ML_CHANNEL_HEADER_BYTES) == 0)
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, channel->fd, 0);
  if (memory == MAP_FAILED) {
    const int error = errno;
    ml_channel_free(channel);
    errno = error;
    return NULL;
  }
  struct ml_channel_header *header = channel->header = memory;
  channel->stride = stride;
  channel->file_bytes = bytes;
  channel->pid_namespace = own_pid_namespace();
  header->magic = ML_CHANNEL_MAGIC;
  header->version = ML_CHANNEL_VERSION;
  header->recorder_pid = (uint32_t)getpid();
  header->recorder_pid_namespace = channel->pid_namespace;
  header->file_bytes = bytes;
  header->slot_stride = stride;
  header->ring_bytes = chosen->ring_bytes;
  header->slot_max = chosen->slot_max;
  header->ring_count = chosen->ring_count;
  header->sample_bytes = chosen->sample_bytes;
  header->large_bytes = chosen->large_bytes;
  header->flags = (chosen->alloc ? ML_CHANNEL_ALLOC : 0) | (chosen->annotations ? ML_CHANNEL_ANNOTATIONS : 0);
  header->wait_ms = chosen->wait_ms;
  header->budget_ppm = every ? 0 : chosen->budget_ppm;
  if (getrandom(header->token, sizeof header->token, 0) < 0) header->token[0] = ml_monotonic_ns();
  publish(channel, PUBLISH_STEP);
  if (chosen->windows) ml_blocks_want();
  snprintf(channel->value, sizeof channel->value, "%llx:%llx:/proc/%d/fd/%d", (unsigned long long)header->token[0],
           (unsigned long long)header->token[1], (int)getpid(), channel->fd);
  return channel;
}

static void forget_ids(struct id_map *map) {
  free(map->entries);
  memset(map, 0, sizeof *map);
}

void ml_channel_free(struct ml_channel *channel) {
  if (channel == NULL) return;
  ml_channel_stop(channel);
  if (channel->header != NULL) {
    atomic_store(&channel->header->closed, 1);
    munmap(channel->header, channel->file_bytes);
  }
  if (channel->fd >= 0) close(channel->fd);
  if (channel->options.windows && channel->header != NULL) ml_blocks_unwant();
  for (uint32_t i = 0; channel->claims != NULL && i < channel->options.slot_max; i++) {
    forget_ids(&channel->claims[i].strings);
    forget_ids(&channel->claims[i].stacks);
  }
  free(channel->claims);
  pthread_mutex_destroy(&channel->counts_lock);
  free(channel);
}

const char *ml_channel_value(const struct ml_channel *channel) { return channel->value; }

void ml_channel_get_counts(struct ml_channel *channel, struct ml_channel_counts *counts) {
  pthread_mutex_lock(&channel->counts_lock);
  *counts = channel->counts;
  counts->refused = atomic_load(&channel->header->refused);
  counts->left_out = atomic_load(&channel->header->left_out);
  pthread_mutex_unlock(&channel->counts_lock);
}

void ml_session_use_channel(struct ml_session *session, struct ml_channel *channel) { session->channel = channel; }

/* ---- ids ------------------------------------------------------------------------------------------ */
#define MAX_IDS (UINT32_C(1) << 22) /* of a process, of one kind: several times what its tables hold */
static uint32_t *id_entry(struct id_map *map, uint32_t from) {
  if (map->count >= MAX_IDS) return NULL;
  if (2 * (map->count + 1) > map->mask) {
    const size_t mask = map->mask != 0 ? 2 * map->mask + 1 : 255;
    void *grown = calloc(mask + 1, sizeof *map->entries);
    if (grown == NULL) return NULL;
    struct id_map larger = {.entries = grown, .mask = mask, .count = map->count};
    for (size_t i = 0; map->entries != NULL && i <= map->mask; i++) {
      if (map->entries[i].from == 0) continue;
      size_t at = (map->entries[i].from * 2654435761u) & mask;
      while (larger.entries[at].from != 0) at = (at + 1) & mask;
      larger.entries[at] = map->entries[i];
    }
    free(map->entries);
    *map = larger;
  }
  size_t at = (from * 2654435761u) & map->mask;
  while (map->entries[at].from != 0 && map->entries[at].from != from) at = (at + 1) & map->mask;
  if (map->entries[at].from == 0) {
    map->entries[at].from = from;
    map->count++;
  }
  return &map->entries[at].to;
}

/* A stack may be used before its record comes, through another ring: it gets its number then. */
static uint32_t stack_of(struct ml_session *session, struct claim *claim, uint32_t from) {
  if (from == 0) return 0;
  uint32_t *to = id_entry(&claim->stacks, from);
  if (to == NULL) return 0;
  if (*to == 0) *to = UINT32_MAX - session->next_dump_id++;
  return *to;
}

/* So may a string: it gets a number above those that are given by text. */
#define EARLY_STRINGS UINT32_C(0x40000000)
static uint32_t string_of(struct ml_session *session, struct claim *claim, uint32_t from) {
  if (from == 0) return 0;
  uint32_t *to = id_entry(&claim->strings, from);
  if (to == NULL) return 0;
  if (*to == 0) *to = EARLY_STRINGS + session->next_string_id++;
  return *to;
}

/* ---- records ---------------------------------------------------------------------------------------- */
/* False: the content makes no sense. */
static bool take_record(struct ml_channel *channel, struct claim *claim, unsigned kind, unsigned char *record,
                        size_t bytes) {
  struct ml_session *session = channel->session;
  struct ml_process *process = claim->process;
  uint64_t time_ns;
  memcpy(&time_ns, record, 8);
#define FIXED(type) \
  if (bytes != sizeof(struct type)) return false
  switch (kind) {
    case ML_KIND_ALLOCATION: {
      FIXED(ml_allocation);
      struct ml_allocation *allocation = (void *)record;
      allocation->stack = stack_of(session, claim, allocation->stack);
      ml_buffer_append(session, process, ML_SLOT_ALLOCATION, record, bytes, time_ns);
      return true;
    }
    case ML_KIND_STACK: {
      struct ml_stack *stack = (void *)record;
      if (bytes < sizeof *stack || stack->tail_bytes != bytes - sizeof *stack || stack->tail_bytes % 8 != 0)
        return false;
      stack->id = stack_of(session, claim, stack->id);
      stack->process = process->info.process;
      void *into = ml_buffer_reserve(session, &session->stack_buffer, bytes, 0);
      if (into != NULL) memcpy(into, record, bytes);
      claim->new_stacks = true;
      return true;
    }
    case ML_KIND_STRING: {
      const struct ml_string *string = (void *)record;
      if (bytes < sizeof *string || string->tail_bytes > bytes - sizeof *string) return false;
      uint32_t *to = id_entry(&claim->strings, string->id);
      const char *text = (const char *)(string + 1);
      if (to != NULL && *to != 0) ml_string_write(session, *to, text, string->tail_bytes); /* used before it came */
      else if (to != NULL) *to = ml_string_locked(session, text, string->tail_bytes);
      return true;
    }
    case ML_KIND_REGION_EVENT: {
      FIXED(ml_region_event);
      struct ml_region_event *event = (void *)record;
      event->region = string_of(session, claim, event->region);
      event->parent = string_of(session, claim, event->parent);
      ml_buffer_append(session, process, ML_SLOT_REGION_EVENT, record, bytes, time_ns);
      return true;
    }
    case ML_KIND_TIMELINE:
      FIXED(ml_timeline);
      ml_buffer_append(session, process, ML_SLOT_TIMELINE, record, bytes, time_ns);
      return true;
    case ML_KIND_TAG_EVENT: {
      FIXED(ml_tag_event);
      struct ml_tag_event *event = (void *)record;
      event->name = string_of(session, claim, event->name);
      ml_buffer_append(session, process, ML_SLOT_TAG_EVENT, record, bytes, time_ns);
      return true;
    }
    case ML_KIND_PINNING: {
      const struct ml_pinning *pinning = (void *)record;
      if (bytes < sizeof *pinning || ((pinning->tail_bytes + 7u) & ~7u) != bytes - sizeof *pinning) return false;
      ml_buffer_append(session, process, ML_SLOT_PINNING, record, bytes, time_ns);
      return true;
    }
    case ML_KIND_THREAD_MEMORY:
      FIXED(ml_thread_memory);
      ml_buffer_append(session, process, ML_SLOT_THREAD_MEMORY, record, bytes, time_ns);
      return true;
    case ML_KIND_TLS_MODULE: {
      FIXED(ml_tls_module);
      struct ml_tls_module *module = (void *)record;
      module->path = string_of(session, claim, module->path);
      ml_buffer_append(session, process, ML_SLOT_TLS_MODULE, record, bytes, time_ns);
      return true;
    }
    case ML_KIND_WINDOW: {
      struct ml_window *window = (void *)record;
      if (bytes < sizeof *window || ((window->tail_bytes + 7u) & ~7u) != bytes - sizeof *window) return false;
      window->region = string_of(session, claim, window->region);
      window->stack = stack_of(session, claim, window->stack);
      window->module = string_of(session, claim, window->module);
      ml_buffer_append(session, process, ML_SLOT_WINDOW, record, bytes, time_ns);
      return true;
    }
    case ML_KIND_PAGE_COUNT: {
      FIXED(ml_page_count);
      struct ml_page_count *count = (void *)record;
      count->stack = stack_of(session, claim, count->stack);
      ml_buffer_append(session, process, ML_SLOT_PAGE_COUNT, record, bytes, time_ns);
      return true;
    }
    case ML_KIND_MAPPING: {
      FIXED(ml_mapping);
      struct ml_mapping *mapping = (void *)record;
      mapping->path = string_of(session, claim, mapping->path);
      ml_buffer_append(session, process, ML_SLOT_MAPPING, record, bytes, time_ns);
      return true;
    }
    case ML_KIND_UNSEEN: {
      FIXED(ml_unseen);
      struct ml_unseen *unseen = (void *)record;
      unseen->name = string_of(session, claim, unseen->name);
      ml_buffer_append(session, process, ML_SLOT_UNSEEN, record, bytes, time_ns);
      return true;
    }
    case ML_KIND_PROCESS_EVENT: { /* of an emulated process; its parent is given by pid */
      FIXED(ml_process_event);
      if (claim->writer != ML_CHANNEL_WRITER_EMULATOR) return false;
      struct ml_process_event *event = (void *)record;
      const struct ml_process *parent =
          event->parent_process != 0 ? ml_process_of(session, (pid_t)event->parent_process, event->time_ns) : NULL;
      event->parent_process = parent != NULL ? parent->info.process : 0;
      event->name = string_of(session, claim, event->name);
      event->pid = (uint32_t)process->info.pid;
      ml_buffer_append(session, process, ML_SLOT_PROCESS_EVENT, record, bytes, time_ns);
      return true;
    }
    case ML_KIND_EMULATOR_STATUS:
      FIXED(ml_emulator_status);
      ml_buffer_append(session, process, ML_SLOT_EMULATOR_STATUS, record, bytes, time_ns);
      return true;
    default: return false;
  }
#undef FIXED
}

/* Everything before `until` was taken: zeroes it and lets writers have it. `begin` is where the last call ended. */
static void give_back(struct ml_channel_ring *ring, unsigned char *data, uint64_t capacity, uint64_t begin,
                      uint64_t until) {
  for (uint64_t at = begin; at < until;) {
    const uint64_t from = at & (capacity - 1);
    const uint64_t run = until - at < capacity - from ? until - at : capacity - from;
    memset(data + from, 0, run);
    at += run;
  }
  atomic_store_explicit(&ring->tail, until, memory_order_release);
}

/* What the head of a record says, read once. */
struct head {
  uint32_t length; /* 0: not committed */
  unsigned kind;
  bool reserved;
};

static struct head read_head(struct ml_ring_record *record) {
  const uint32_t commit = atomic_load_explicit(&record->commit, memory_order_acquire);
  return (struct head){.length = (commit & ML_RING_COMMITTED) != 0 ? commit & ~ML_RING_COMMITTED : 0,
                       .kind = __atomic_load_n(&record->kind, __ATOMIC_RELAXED),
                       .reserved = __atomic_load_n(&record->reserved, __ATOMIC_RELAXED) != 0};
}

/* Empties one ring. `dead`: nobody writes any more, so an unfinished record ends nothing. */
static void drain_ring(struct ml_channel *channel, struct claim *claim, struct ml_channel_slot *slot, uint32_t number,
                       bool dead) {
  struct ml_channel_ring *ring = &slot->rings[number];
  const uint64_t capacity = channel->options.ring_bytes;
  unsigned char *data = (unsigned char *)slot + ML_CHANNEL_SLOT_HEADER_BYTES + number * capacity;
  const uint64_t head = atomic_load_explicit(&ring->head, memory_order_acquire);
  uint64_t tail = claim->tails[number], given_back = tail;
  _Alignas(8) unsigned char copy[ML_RING_MAX_RECORD];
  if (head == tail) return;
  if (claim->damaged) { /* given up, but its threads must not wait for us */
    if (head % 8 != 0) return;
    claim->tails[number] = head;
    atomic_store_explicit(&ring->tail, head, memory_order_release);
    return;
  }
  if (head < tail || head - tail > capacity || head % 8 != 0) {
    claim->damaged = true;
    return;
  }
  while (tail < head) {
    const uint64_t offset = tail & (capacity - 1);
    struct ml_ring_record *record = (void *)(data + offset);
    const struct head found = read_head(record);
    if (found.length == 0) {
      if (!dead) break;
      /* Cut off while it was being written: look for the next record that makes sense. */
      for (tail += 8; tail < head; tail += 8) {
        const struct head next = read_head((void *)(data + (tail & (capacity - 1))));
        if (next.length >= 8 && next.length % 8 == 0 && next.length <= ML_RING_MAX_RECORD && next.kind < 64 &&
            !next.reserved)
          break;
      }
      channel->counts.holes++;
      continue;
    }
    const uint32_t length = found.length;
    if (length < sizeof *record || length % 8 != 0 || length > head - tail || offset + length > capacity ||
        (found.kind != 0 && length > ML_RING_MAX_RECORD)) {
      claim->damaged = true;
      break;
    }
    if (found.kind != 0) {
      const size_t bytes = length - sizeof *record;
      memcpy(copy, record + 1, bytes); /* the process could change it between check and use */
      if (bytes < 8 || !take_record(channel, claim, found.kind, copy, bytes)) {
        claim->damaged = true;
        break;
      }
      claim->records++;
      channel->counts.records++;
    }
    tail += length;
    if (tail - given_back >= capacity / 8) { /* a writer may be waiting */
      give_back(ring, data, capacity, given_back, tail);
      given_back = tail;
    }
  }
  give_back(ring, data, capacity, given_back, tail);
  claim->tails[number] = tail;
}

/* ---- processes --------------------------------------------------------------------------------------- */
/* False: gone, or a zombie. */
static bool process_lives(pid_t pid, uint64_t *start_ticks) {
  char path[64], text[1024];
  snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno != ENOENT && errno != ESRCH; /* no descriptor to look with: suppose that it lives */
  const ssize_t length = read(fd, text, sizeof text - 1);
  close(fd);
  if (length <= 0) return false;
  text[length] = 0;
  const char *at = strrchr(text, ')');
  char state;
  unsigned long long start;
  if (at == NULL || sscanf(at + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                           &state, &start) != 2)
    return false;
  const bool same = *start_ticks == 0 || *start_ticks == start;
  *start_ticks = start;
  return same && state != 'Z' && state != 'X';
}

/* Does our `pid` have the number `inner_pid` in that namespace? */
static bool is_in_namespace(pid_t pid, uint32_t inner_pid, uint64_t namespace) {
  char path[64], line[256];
  struct stat status;
  snprintf(path, sizeof path, "/proc/%d/ns/pid", (int)pid);
  if (stat(path, &status) != 0 || (uint64_t)status.st_ino != namespace) return false;
  snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
  FILE *file = fopen(path, "re");
  if (file == NULL) return false;
  bool found = false;
  while (!found && fgets(line, sizeof line, file) != NULL)
    if (strncmp(line, "NSpid:", 6) == 0) {
      const char *last = strrchr(line, '\t');
      found = last != NULL && (uint32_t)strtoul(last + 1, NULL, 10) == inner_pid;
    }
  fclose(file);
  return found;
}

/* The process that has this pid in its own namespace: one that we know, or any (without perf records a
 * child may write before it was found by polling). 0: none lives. */
static pid_t find_in_namespace(struct ml_session *session, uint32_t inner_pid, uint64_t namespace) {
  for (size_t i = session->process_count; i-- > 0;)
    if (session->processes[i]->info.alive && is_in_namespace(session->processes[i]->info.pid, inner_pid, namespace))
      return session->processes[i]->info.pid;
  pid_t found = 0;
  DIR *proc = opendir("/proc");
  if (proc == NULL) return 0;
  for (struct dirent *entry; found == 0 && (entry = readdir(proc)) != NULL;) {
    const pid_t pid = (pid_t)atoi(entry->d_name);
    if (pid > 0 && is_in_namespace(pid, inner_pid, namespace)) found = pid;
  }
  closedir(proc);
  return found;
}

/* Without perf records, or for a process that they name otherwise, nobody else says that it exists. */
static void announce(struct ml_session *session, struct ml_process *process, uint64_t time_ns) {
  if (process->announced || (session->options.faults && process->info.pid < UNKNOWN_PID)) return;
  process->announced = true;
  ml_process_event_add(session, process, time_ns, ML_ENUM_process_operation_ATTACH, (uint32_t)process->info.pid, NULL,
                       0, 0, -1, ML_ENUM_process_flags_POLLED);
}

static void write_status(struct ml_channel *channel, const struct claim *claim, struct ml_channel_slot *slot) {
  const struct ml_runtime_status status = {.time_ns = ml_monotonic_ns(),
                                           .sample_bytes = channel->options.sample_bytes,
                                           .large_bytes = channel->options.large_bytes,
                                           .records = claim->records,
                                           .dropped = atomic_load(&slot->dropped),
                                           .nested = atomic_load(&slot->nested),
                                           .untracked = atomic_load(&slot->untracked),
                                           .waits = atomic_load(&slot->waits),
                                           .waited_ns = atomic_load(&slot->waited_ns),
                                           .stacks = atomic_load(&slot->stacks),
                                           .pid = __atomic_load_n(&slot->pid, __ATOMIC_RELAXED),
                                           .flags = atomic_load(&slot->flags),
                                           .own_bytes = __atomic_load_n(&slot->own_bytes, __ATOMIC_RELAXED)};
  ml_buffer_append(channel->session, claim->process, ML_SLOT_RUNTIME_STATUS, &status, sizeof status, status.time_ns);
  channel->counts.dropped += status.dropped;
  channel->counts.nested += status.nested;
  channel->counts.untracked += status.untracked;
  if ((status.flags & ML_ENUM_runtime_flags_OTHER_MALLOC) != 0) channel->counts.other_malloc++;
  channel->counts.waits += status.waits;
  channel->counts.waited_ns += status.waited_ns;
  channel->counts.stacks += status.stacks;
  if (claim->damaged) channel->counts.damaged++;
}

/* The process is gone: take what is left, then give the slot to the next. */
static void end_claim(struct ml_channel *channel, struct claim *claim, struct ml_channel_slot *slot) {
  if (claim->process != NULL) {
    for (uint32_t ring = 0; ring < channel->options.ring_count; ring++) drain_ring(channel, claim, slot, ring, true);
    if (claim->writer == ML_CHANNEL_WRITER_LIBRARY) write_status(channel, claim, slot);
  }
  for (uint32_t ring = 0; ring < channel->options.ring_count; ring++) {
    const uint64_t capacity = channel->options.ring_bytes;
    if (claim->damaged || atomic_load(&slot->rings[ring].head) != claim->tails[ring])
      memset((unsigned char *)slot + ML_CHANNEL_SLOT_HEADER_BYTES + ring * capacity, 0, capacity);
  }
  forget_ids(&claim->strings);
  forget_ids(&claim->stacks);
  memset(claim, 0, sizeof *claim);
  memset((unsigned char *)slot + sizeof slot->state, 0, ML_CHANNEL_SLOT_HEADER_BYTES - sizeof slot->state);
  atomic_store_explicit(&slot->state, ML_CLAIM_FREE, memory_order_release);
  set_free(channel, (uint32_t)(claim - channel->claims));
}

/* Finds out whose the slot is. False: not known yet. */
static bool begin_claim(struct ml_channel *channel, struct claim *claim, struct ml_channel_slot *slot, uint64_t now_ns,
                        bool last) {
  struct ml_session *session = channel->session;
  if (claim->process != NULL) return true; /* whatever the slot says now: end_claim() lets the next one in */
  const uint64_t claimed_ns = __atomic_load_n(&slot->claimed_ns, __ATOMIC_ACQUIRE);
  if (claimed_ns == 0) return false; /* being claimed */
  if (claim->claimed_ns != claimed_ns) {
    forget_ids(&claim->strings); /* a process may write over its time, or its state, while it is known here */
    forget_ids(&claim->stacks);
    memset(claim, 0, sizeof *claim);
    claim->claimed_ns = claimed_ns;
    claim->first_seen_ns = now_ns;
  }
  const uint32_t pid = __atomic_load_n(&slot->pid, __ATOMIC_RELAXED);
  const uint64_t namespace = __atomic_load_n(&slot->pid_namespace, __ATOMIC_RELAXED);
  const uint32_t writer = __atomic_load_n(&slot->writer, __ATOMIC_RELAXED);
  claim->writer =
      writer == ML_CHANNEL_WRITER_EMULATOR && session->options.emulated ? writer : ML_CHANNEL_WRITER_LIBRARY;
  if (namespace == channel->pid_namespace || namespace == 0) {
    claim->pid = pid < UNKNOWN_PID ? (pid_t)pid : 0;
  } else {
    /* Looks through /proc: not at every turn, whatever many slots claim. */
    if (!last && claim->checked_ns != 0 && now_ns - claim->checked_ns < LOOK_NS) return false;
    claim->checked_ns = now_ns;
    claim->pid = find_in_namespace(session, pid, namespace);
    const bool over = last || atomic_load(&slot->state) == ML_CLAIM_LEAVING;
    if (claim->pid == 0 && !over && now_ns - claim->first_seen_ns < UINT64_C(1000000000)) return false;
  }
  if (claim->pid != 0) {
    process_lives(claim->pid, &claim->start_ticks);
    claim->process = ml_process_of(session, claim->pid, claimed_ns);
  } else {
    /* It ended before we could find it: what it wrote is kept, under a pid that no process of ours has. */
    claim->process = ml_process_new(session, (pid_t)(UNKNOWN_PID + pid % UNKNOWN_PID), 0, claimed_ns);
    if (claim->process != NULL) {
      claim->process->info.alive = 0;
      claim->process->exit_ns = now_ns;
    }
  }
  if (claim->process == NULL) return false;
  announce(session, claim->process, claimed_ns);
  if (!session->options.faults && !session->options.emulated) {
    claim->maps_ns = now_ns;
    ml_process_note_maps(session, claim->process);
  }
  channel->counts.processes++;
  /* After an exec the process has a new slot, and nobody can reach its old one. */
  for (uint32_t i = 0; i < channel->published; i++) {
    struct claim *other = &channel->claims[i];
    if (other != claim && other->process != NULL && other->pid != 0 && other->pid == claim->pid &&
        other->claimed_ns < claimed_ns && other->writer == claim->writer)
      end_claim(channel, other, slot_at(channel, i));
  }
  return true;
}

static void drain_channel(struct ml_channel *channel, bool last) {
  struct ml_session *session = channel->session;
  const uint64_t now = ml_monotonic_ns();
  uint32_t free_slots = 0;
  pthread_mutex_lock(&session->lock);
  pthread_mutex_lock(&channel->counts_lock);
  for (uint32_t i = 0; i < channel->published; i++) {
    struct ml_channel_slot *slot = slot_at(channel, i);
    struct claim *claim = &channel->claims[i];
    const uint32_t state = atomic_load_explicit(&slot->state, memory_order_acquire);
    if (state == ML_CLAIM_FREE) {
      if (claim->process != NULL) end_claim(channel, claim, slot); /* only we free slots: somebody wrote over it */
      /* A process may have been killed between clearing the bit and claiming the slot. */
      if (now - claim->checked_ns > UINT64_C(1000000000)) {
        if (claim->checked_ns != 0) set_free(channel, i);
        claim->checked_ns = now;
      }
      free_slots++;
      continue;
    }
    if (!begin_claim(channel, claim, slot, now, last)) {
      if (last && claim->claimed_ns != 0) end_claim(channel, claim, slot);
      continue;
    }
    /* A recorder that falls behind leaves records in the ring: the writer waits, nothing is lost. */
    if (last || session->queued_bytes < session->options.queue_bytes / 2)
      for (uint32_t ring = 0; ring < channel->options.ring_count; ring++) drain_ring(channel, claim, slot, ring, false);
    if (!session->options.faults && !session->options.emulated && claim->new_stacks &&
        now - claim->maps_ns > CHECK_NS) {
      claim->new_stacks = false;
      claim->maps_ns = now;
      ml_process_note_maps(session, claim->process);
    }
    if (state == ML_CLAIM_LEAVING || last || now - claim->checked_ns > CHECK_NS) {
      claim->checked_ns = now;
      /* One that was not found may live, out of our sight: its slot is free when it says so. */
      const bool gone = claim->pid != 0 ? !process_lives(claim->pid, &claim->start_ticks) : state == ML_CLAIM_LEAVING;
      if (last || gone) {
        end_claim(channel, claim, slot);
        free_slots++;
      } else if (state != ML_CLAIM_LEAVING) {
        claim->leaving_ns = 0;
      } else if (claim->leaving_ns == 0) {
        claim->leaving_ns = now;
      } else if (now - claim->leaving_ns > UINT64_C(1000000000)) {
        /* a child that shares its memory has ended, by exit */
        atomic_fetch_and(&slot->flags, ~(uint32_t)ML_ENUM_runtime_flags_ENDED_IN_ORDER);
        atomic_store(&slot->state, ML_CLAIM_TAKEN);
      }
    }
  }
  pthread_mutex_unlock(&channel->counts_lock);
  pthread_mutex_unlock(&session->lock);
  /* In proportion to what is in use: a program that forks hundreds at a time asks for many at once. */
  if (!last && free_slots < WANTED_FREE + channel->published / 16)
    publish(channel, PUBLISH_STEP + channel->published / 4);
}

static void *channel_thread(void *argument) {
  struct ml_channel *channel = argument;
  while (!atomic_load(&channel->stop)) {
    const struct timespec timeout = {.tv_nsec = IDLE_NS};
    if (atomic_load(&channel->header->wake) == 0)
      syscall(SYS_futex, &channel->header->wake, FUTEX_WAIT, 0, &timeout, NULL, 0);
    atomic_store(&channel->header->wake, 0);
    drain_channel(channel, false);
  }
  struct timespec cpu;
  if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu) == 0)
    channel->counts.cpu_ns = (uint64_t)cpu.tv_sec * 1000000000u + (uint64_t)cpu.tv_nsec;
  return NULL;
}

int ml_channel_start(struct ml_channel *channel, struct ml_session *session) {
  channel->session = session;
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  const int error = pthread_create(&channel->thread, NULL, channel_thread, channel);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  channel->thread_runs = error == 0;
  return -error;
}

void ml_channel_stop(struct ml_channel *channel) {
  if (!channel->thread_runs) {
    if (channel->header != NULL) atomic_store(&channel->header->closed, 1); /* it could not be started */
    return;
  }
  atomic_store(&channel->stop, true);
  atomic_store(&channel->header->wake, 1);
  syscall(SYS_futex, &channel->header->wake, FUTEX_WAKE, 1, NULL, NULL, 0);
  pthread_join(channel->thread, NULL);
  channel->thread_runs = false;
  atomic_store(&channel->header->closed, 1); /* processes that outlive the recording write no more */
  drain_channel(channel, true);
}
