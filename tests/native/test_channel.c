/* The recorder's side of the channel against processes that write right, write rubbish, stop in the middle, or change fields
 * while they are read: nothing crashes or hangs, and what was written right is all there. The writer's side (memlens_ring.h) is
 * under the same attack: it writes inside its ring, and comes back. */
#define _GNU_SOURCE 1
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "memlens_channel.h"
#include "memlens_ring.h"
#include "memlens_session.h"

static int failed;
static void check(int holds, const char *what) {
  if (holds) return;
  failed++;
  printf("failed: %s\n", what);
}

static uint64_t state;
static uint64_t random_number(void) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

static struct ml_channel_header *map(const char *value) {
  const char *path = strrchr(value, ':') + 1;
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  struct stat status;
  if (fd < 0 || fstat(fd, &status) != 0) return NULL;
  void *memory = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  return memory == MAP_FAILED ? NULL : memory;
}

static struct ml_channel_slot *claim(struct ml_channel_header *header) {
  struct stat status;
  for (uint32_t i = 0; i < atomic_load(&header->slots_published); i++) {
    struct ml_channel_slot *slot =
        (void *)((unsigned char *)header + ML_CHANNEL_HEADER_BYTES + i * header->slot_stride);
    uint32_t expected = ML_CLAIM_FREE;
    if (!atomic_compare_exchange_strong(&slot->state, &expected, ML_CLAIM_TAKEN)) continue;
    slot->pid = (uint32_t)getpid();
    slot->pid_namespace = stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
    __atomic_store_n(&slot->claimed_ns, ml_monotonic_ns(), __ATOMIC_RELEASE);
    return slot;
  }
  return NULL;
}

static int put(struct ml_channel_header *header, struct ml_channel_slot *slot, uint32_t number, uint16_t kind,
               const void *record, uint32_t bytes, int commit) {
  struct ml_channel_ring *ring = &slot->rings[number];
  const uint64_t capacity = header->ring_bytes, need = 8 + ((bytes + 7) & ~UINT64_C(7));
  unsigned char *data = (unsigned char *)slot + ML_CHANNEL_SLOT_HEADER_BYTES + number * capacity;
  uint64_t head = atomic_load(&ring->head);
  const uint64_t offset = head & (capacity - 1), padding = offset + need > capacity ? capacity - offset : 0;
  if (head + padding + need - atomic_load(&ring->tail) > capacity) return 0;
  atomic_store(&ring->head, head + padding + need);
  if (padding) {
    struct ml_ring_record *filler = (void *)(data + offset);
    filler->kind = 0;
    atomic_store(&filler->commit, (uint32_t)padding | ML_RING_COMMITTED);
  }
  struct ml_ring_record *at = (void *)(data + ((head + padding) & (capacity - 1)));
  at->kind = kind;
  memcpy(at + 1, record, bytes);
  if (commit) atomic_store(&at->commit, (uint32_t)need | ML_RING_COMMITTED);
  return 1;
}

/* What one process does; returns how many allocations it has committed. */
static uint32_t write_something(struct ml_channel_header *header, int mode) {
  struct ml_channel_slot *slot = claim(header);
  if (slot == NULL) return 0;
  uint32_t written = 0;
  for (int i = 0; i < 3000; i++) {
    struct ml_allocation allocation = {.time_ns = ml_monotonic_ns(),
                                       .address = random_number() & ~15ull,
                                       .bytes = 1 + i,
                                       .stack = 1 + (uint32_t)(random_number() % 50),
                                       .operation = 1};
    const uint32_t ring = (uint32_t)(random_number() % header->ring_count);
    /* The last record of a ring stays open in mode 1: the process is "killed" while it writes. The first of them waits for
     * room, as long as a busy recorder needs: without one there is nothing to find. */
    const int commit = !(mode == 1 && i > 2990);
    int done = put(header, slot, ring, ML_KIND_ALLOCATION, &allocation, sizeof allocation, commit);
    for (int wait = 0; !done && mode == 1 && i == 2991 && wait < 100000; wait++) {
      usleep(200);
      done = put(header, slot, ring, ML_KIND_ALLOCATION, &allocation, sizeof allocation, commit);
    }
    if (done) written += (uint32_t)commit;
    else usleep(200);
    if (i % 37 == 0) {
      struct {
        struct ml_stack stack;
        uint64_t ips[3];
      } record = {{.id = 1 + (uint32_t)i / 37, .tail_bytes = 24}, {1, 2, 3}};
      put(header, slot, ring, ML_KIND_STACK, &record, sizeof record, 1);
    }
    if (mode == 2 && i == 1500) { /* rubbish over everything */
      unsigned char *data = (unsigned char *)slot + 64;
      for (size_t at = 0; at < header->slot_stride - 64; at += 8)
        if (random_number() % 4 == 0) {
          const uint64_t rubbish = random_number() % 3 == 0
                                       ? (random_number() & 0x3f) << 32 | 0x80000000u | (random_number() % 9000)
                                       : random_number();
          memcpy(data + at, &rubbish, 8);
        }
    }
  }
  return written;
}

/* ---- a process that has the memory and means harm ---------------------------------------------------------------------- */
static uint64_t hostile_value(uint64_t seen) {
  switch (random_number() % 8) {
    case 0: return 0;
    case 1: return UINT64_MAX - random_number() % 64;
    case 2: return seen + 1 + random_number() % 64;
    case 3: return seen - 1 - random_number() % 4096;
    case 4: return seen ^ UINT64_C(1) << random_number() % 64;
    case 5: return random_number() % 70000 | 0x80000000u;
    case 6: return (random_number() & 0x3f) << 32 | 0x80000000u | (random_number() % 40000 & ~7ull);
    default: return random_number();
  }
}

static void scribble(struct ml_channel_header *header, const struct ml_geometry *geometry) {
  for (;;) {
    const uint32_t published = atomic_load(&header->slots_published);
    uint64_t *at;
    const uint64_t index = random_number() % (published != 0 && published < geometry->slot_max ? published : 1);
    struct ml_channel_slot *slot =
        (void *)((unsigned char *)header + ML_CHANNEL_HEADER_BYTES + index * geometry->slot_stride);
    const unsigned what = (unsigned)(random_number() % 16);
    if (what == 0) at = &header->file_bytes + random_number() % 12; /* sizes, counts, `closed`, `wake` */
    else if (what == 1) at = (uint64_t *)&header->free_slots[random_number() % 2];
    else if (what < 5) at = (uint64_t *)slot + random_number() % 13; /* state, pid, times, writer */
    else if (what < 9)
      at = (uint64_t *)&slot->rings[random_number() % geometry->ring_count] + (random_number() & 1) * 8;
    else
      at = (uint64_t *)((unsigned char *)slot + ML_CHANNEL_SLOT_HEADER_BYTES) +
           random_number() % (geometry->ring_count * geometry->ring_bytes / 8);
    uint64_t value = hostile_value(__atomic_load_n(at, __ATOMIC_RELAXED));
    /* `closed`, beside it, would end it all */
    if (at == (uint64_t *)(void *)&header->slots_published) value &= 0xffffffff;
    __atomic_store_n(at, value, __ATOMIC_RELAXED);
    if (random_number() % 64 == 0) usleep(1);
  }
}

/* Writes as the library does, with a copy of the geometry. Returns false when it was led outside of its ring. */
static int write_under_attack(struct ml_channel_header *header, const struct ml_geometry *geometry) {
  struct ml_channel_slot *slot = NULL;
  for (int tries = 0; slot == NULL && tries < 1000; tries++) {
    slot = (void *)((unsigned char *)header + ML_CHANNEL_HEADER_BYTES + random_number() % 4 * geometry->slot_stride);
    uint32_t expected = ML_CLAIM_FREE;
    if (!atomic_compare_exchange_strong(&slot->state, &expected, ML_CLAIM_TAKEN)) slot = NULL;
  }
  if (slot == NULL) return 1;
  slot->pid = (uint32_t)getpid();
  __atomic_store_n(&slot->claimed_ns, ml_monotonic_ns(), __ATOMIC_RELEASE);
  for (int i = 0; i < 20000; i++) {
    const uint32_t number = (uint32_t)(random_number() % geometry->ring_count);
    const uint64_t bytes = random_number() % 8 == 0 ? random_number() % 30000 : sizeof(struct ml_allocation),
                   need = ml_ring_need(bytes);
    unsigned char *data = (unsigned char *)slot + ML_CHANNEL_SLOT_HEADER_BYTES + number * geometry->ring_bytes;
    uint64_t seen_tail = 0;
    bool half_full = false;
    struct ml_ring_record *record =
        ml_ring_take(&slot->rings[number], data, geometry->ring_bytes, need, &seen_tail, &half_full);
    if (record == NULL) continue;
    if ((unsigned char *)record < data || (unsigned char *)record + need > data + geometry->ring_bytes ||
        (uintptr_t)record % 8 != 0)
      return 0;
    record->kind = (uint16_t)(random_number() % 40);
    memset(record + 1, (int)random_number(), need - sizeof *record);
    ml_ring_commit(record, need);
  }
  return 1;
}

/* What nobody corrects again: the writer comes back without room. (Before, the first of these was an endless loop.) */
static void a_broken_ring(void) {
  static _Alignas(64) struct ml_channel_ring ring;
  static _Alignas(8) unsigned char data[8192];
  const struct {
    uint64_t head, tail;
  } broken[] = {{64, 4096}, {0, UINT64_MAX - 7}, {20, 0}, {1, 1}, {UINT64_MAX - 7, 0}, {1 << 20, 0}};
  for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
    uint64_t seen_tail = 0;
    bool half_full = false;
    atomic_store(&ring.head, broken[i].head);
    atomic_store(&ring.tail, broken[i].tail);
    struct ml_ring_record *record = ml_ring_take(&ring, data, sizeof data, 64, &seen_tail, &half_full);
    check(record == NULL || i == 1, "no room in a broken ring"); /* 8 bytes in use, around the end of numbers: right */
  }
  atomic_store(&ring.head, 0);
  atomic_store(&ring.tail, 0);
  uint64_t seen_tail = 0;
  bool half_full = false;
  check(ml_ring_take(&ring, data, sizeof data, 8200, &seen_tail, &half_full) == NULL, "no room for more than the ring");
}

static void under_attack(int round) {
  const struct ml_channel_options options = {.sample_bytes = 4096,
                                             .large_bytes = 65536,
                                             .ring_bytes = 1 << (13 + round % 5),
                                             .ring_count = 1 + (uint32_t)round % 4,
                                             .slot_max = 16,
                                             .wait_ms = 10,
                                             .alloc = 1};
  struct ml_channel *channel = ml_channel_new(&options);
  const struct ml_session_options session_options = {.timeline_hz = 0, .emulated = round % 2};
  struct ml_session *session = ml_session_new(&session_options);
  ml_session_use_channel(session, channel);
  check(ml_session_attach(session, getpid(), 0) == 0 && ml_session_start(session) == 0, "start under attack");
  const int fd = open(strrchr(ml_channel_value(channel), ':') + 1, O_RDWR | O_CLOEXEC);
  check(ftruncate(fd, 4096) != 0, "the file cannot be cut short");
  close(fd);
  pid_t writers[3], scribblers[2];
  for (int child = 0; child < 5; child++) {
    const pid_t pid = fork();
    if (pid == 0) {
      state += (uint64_t)child * 104729 + 1;
      struct ml_channel_header *header = map(ml_channel_value(channel));
      struct ml_geometry geometry;
      /* it was written over already: refused */
      if (header == NULL || !ml_geometry_copy(header, UINT64_MAX, &geometry)) _exit(0);
      if (child < 2) {
        usleep(2000); /* most of them copy what is right */
        scribble(header, &geometry);
      }
      _exit(write_under_attack(header, &geometry) ? 0 : 1);
    }
    if (child < 2) scribblers[child] = pid;
    else writers[child - 2] = pid;
  }
  for (int i = 0; i < 3; i++) {
    int status = -1;
    waitpid(writers[i], &status, 0);
    check(status == 0, "a writer stays inside its ring");
  }
  usleep(20000);
  ml_session_stop(session); /* while fields still change */
  for (int i = 0; i < 2; i++) {
    kill(scribblers[i], SIGKILL);
    waitpid(scribblers[i], NULL, 0);
  }
  ml_batches_free(ml_session_take(session));
  ml_session_free(session);
  ml_channel_free(channel);
}

int main(int count, char **arguments) {
  const int rounds = count > 1 ? atoi(arguments[1]) : 20;
  for (int round = 0; round < rounds; round++) {
    state = 88172645463325252u + (uint64_t)round * 7919;
    const int mode = round % 3; /* right, cut off, rubbish */
    const struct ml_channel_options options = {.sample_bytes = 4096,
                                               .large_bytes = 65536,
                                               .ring_bytes = 1 << (13 + round % 5),
                                               .ring_count = 1 + (uint32_t)round % 4,
                                               .slot_max = 16,
                                               .wait_ms = 10,
                                               .alloc = 1};
    struct ml_channel *channel = ml_channel_new(&options);
    check(channel != NULL, "channel");
    const struct ml_session_options session_options = {.timeline_hz = 0};
    struct ml_session *session = ml_session_new(&session_options);
    ml_session_use_channel(session, channel);
    check(ml_session_attach(session, getpid(), 0) == 0, "attach");
    check(ml_session_start(session) == 0, "start");
    int results[2];
    check(pipe(results) == 0, "pipe");
    for (int child = 0; child < 3; child++)
      if (fork() == 0) {
        state += (uint64_t)child * 104729;
        struct ml_channel_header *header = map(ml_channel_value(channel));
        const uint32_t written = header != NULL ? write_something(header, mode) : 0;
        if (write(results[1], &written, sizeof written) < 0) _exit(1);
        _exit(0);
      }
    uint64_t expected = 0, taken = 0, stacks = 0;
    for (int child = 0; child < 3; child++) {
      uint32_t written;
      if (read(results[0], &written, sizeof written) == sizeof written) expected += written;
    }
    while (wait(NULL) > 0) {
    }
    ml_session_stop(session);
    struct ml_batch *batches = ml_session_take(session);
    for (struct ml_batch *at = batches; at != NULL; at = at->next) {
      if (at->kind == ML_KIND_ALLOCATION) taken += at->record_count;
      if (at->kind == ML_KIND_STACK) stacks += at->record_count;
    }
    ml_batches_free(batches);
    struct ml_channel_counts counts;
    ml_channel_get_counts(channel, &counts);
    check(counts.processes == 3, "three processes");
    if (mode == 0) {
      check(taken == expected && counts.holes == 0 && counts.damaged == 0, "everything is taken");
      if (taken != expected)
        printf("round %d: %llu of %llu\n", round, (unsigned long long)taken, (unsigned long long)expected);
    } else if (mode == 1) {
      check(taken == expected && counts.holes > 0, "everything but the unfinished records is taken");
      if (taken != expected)
        printf("round %d: %llu of %llu\n", round, (unsigned long long)taken, (unsigned long long)expected);
    }
    close(results[0]);
    close(results[1]);
    ml_session_free(session);
    ml_channel_free(channel);
  }
  alarm(600); /* a hang is a failure */
  a_broken_ring();
  for (int round = 0; round < rounds; round++) {
    state = 1442695040888963407u + (uint64_t)round * 7919;
    under_attack(round);
  }
  if (!failed) printf("%d rounds\n", rounds);
  return failed != 0;
}
