/* Records to the recorder, through the same channel as the library inside the guest, in a slot of our own. */
#include "emulator.h"

#include "memlens_ring.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static struct {
  char path[128];
  uint64_t token[2];
  struct ml_channel_header *header;
  struct ml_geometry geometry;
  uint32_t recorder_pid;
  struct ml_channel_slot *slot;
  unsigned char *rings;
  bool off; /* no recorder, or it is gone */
  pthread_mutex_t claim_lock;
} channel = {.claim_lock = PTHREAD_MUTEX_INITIALIZER};

uint64_t ml_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

bool ml_channel_open(const char *value, uint64_t token[2]) {
  char *end;
  channel.token[0] = token[0] = strtoull(value, &end, 16);
  if (*end != ':') return false;
  channel.token[1] = token[1] = strtoull(end + 1, &end, 16);
  if (*end != ':' || strlen(end + 1) >= sizeof channel.path) return false;
  strcpy(channel.path, end + 1);
  const int fd = open(channel.path, O_RDWR | O_CLOEXEC | O_NOCTTY);
  if (fd < 0) return false;
  struct ml_channel_header *header = mmap(NULL, ML_CHANNEL_HEADER_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (header == MAP_FAILED) return false;
  /* The file is as large as its header says: the recorder has sealed it. */
  if (header->magic != ML_CHANNEL_MAGIC || header->version != ML_CHANNEL_VERSION || header->token[0] != token[0] ||
      header->token[1] != token[1] || !ml_geometry_copy(header, UINT64_MAX, &channel.geometry)) {
    munmap(header, ML_CHANNEL_HEADER_BYTES);
    return false;
  }
  channel.header = header;
  channel.recorder_pid = __atomic_load_n(&header->recorder_pid, __ATOMIC_RELAXED);
  return true;
}

static void wake_recorder(void) {
  if (__atomic_exchange_n((uint32_t *)&channel.header->wake, 1, __ATOMIC_ACQ_REL) == 0)
    syscall(SYS_futex, &channel.header->wake, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void pause_ns(long ns) {
  const struct timespec pause = {.tv_nsec = ns};
  syscall(SYS_nanosleep, &pause, NULL);
}

static struct ml_channel_slot *take_slot(uint32_t index) {
  struct ml_channel_header *header = channel.header;
  struct ml_channel_slot *slot = ml_map_file(channel.path, header, NULL, channel.geometry.slot_stride,
                                             ML_CHANNEL_HEADER_BYTES + index * channel.geometry.slot_stride);
  if (slot == MAP_FAILED) return NULL;
  uint32_t expected = ML_CLAIM_FREE;
  if (!atomic_compare_exchange_strong(&slot->state, &expected, ML_CLAIM_TAKEN)) {
    munmap(slot, channel.geometry.slot_stride);
    return NULL;
  }
  struct stat status;
  slot->pid = (uint32_t)getpid();
  slot->pid_namespace = stat("/proc/self/ns/pid", &status) == 0 ? (uint64_t)status.st_ino : 0;
  slot->writer = ML_CHANNEL_WRITER_EMULATOR;
  __atomic_store_n(&slot->claimed_ns, ml_now_ns(), __ATOMIC_RELEASE);
  return slot;
}

static bool claim(void) {
  if (channel.slot != NULL) return true;
  if (channel.off || channel.header == NULL) return false;
  pthread_mutex_lock(&channel.claim_lock);
  struct ml_channel_header *header = channel.header;
  for (int waited_ms = 0; channel.slot == NULL && waited_ms <= 1000 && !atomic_load(&header->closed); waited_ms++) {
    for (uint32_t word = 0; channel.slot == NULL && word < ML_CHANNEL_MAX_SLOTS / 64; word++) {
      uint64_t bits = atomic_load_explicit(&header->free_slots[word], memory_order_acquire);
      for (; channel.slot == NULL && bits != 0; bits &= bits - 1) {
        const uint64_t bit = bits & -bits;
        if ((atomic_fetch_and(&header->free_slots[word], ~bit) & bit) == 0) continue;
        const uint32_t index = word * 64 + (uint32_t)__builtin_ctzll(bit);
        if (index < channel.geometry.slot_max) channel.slot = take_slot(index);
        if (channel.slot == NULL) atomic_fetch_or(&header->free_slots[word], bit);
      }
    }
    if (channel.slot == NULL) {
      wake_recorder();
      pause_ns(1000000);
    }
  }
  if (channel.slot != NULL) channel.rings = (unsigned char *)channel.slot + ML_CHANNEL_SLOT_HEADER_BYTES;
  else {
    channel.off = true;
    atomic_fetch_add(&header->refused, 1);
  }
  pthread_mutex_unlock(&channel.claim_lock);
  return channel.slot != NULL;
}

/* The parent's slot is not ours. */
void ml_channel_after_fork(void) {
  if (channel.slot != NULL) munmap(channel.slot, channel.geometry.slot_stride);
  channel.slot = NULL;
  pthread_mutex_init(&channel.claim_lock, NULL);
}

static bool wait_for_room(struct ml_channel_ring *ring, uint64_t seen_tail) {
  const uint64_t begin = ml_now_ns();
  bool room = false;
  atomic_fetch_add_explicit(&channel.slot->waits, 1, memory_order_relaxed);
  while (!room && !atomic_load(&channel.header->closed)) {
    wake_recorder();
    pause_ns(200000);
    room = atomic_load_explicit(&ring->tail, memory_order_acquire) != seen_tail;
    if (!room && ml_now_ns() - begin > UINT64_C(10000000000)) channel.off = true;
    if (!room && (channel.off || kill((pid_t)channel.recorder_pid, 0) != 0)) {
      channel.off = channel.off || errno == ESRCH;
      if (channel.off) break;
    }
  }
  const uint64_t waited = ml_now_ns() - begin;
  __atomic_fetch_add(&ml_plugin.waited_ns, waited, __ATOMIC_RELAXED);
  atomic_fetch_add_explicit(&channel.slot->waited_ns, waited, memory_order_relaxed);
  return room;
}

bool ml_write(unsigned kind, const void *head_data, size_t head_bytes, const void *tail_data, size_t tail_bytes,
              bool wait) {
  if (channel.off || !claim() || atomic_load_explicit(&channel.header->closed, memory_order_relaxed)) return false;
  static __thread uint32_t ring_number = UINT32_MAX;
  static uint32_t next_ring;
  if (ring_number == UINT32_MAX) ring_number = __atomic_fetch_add(&next_ring, 1, __ATOMIC_RELAXED);
  const uint32_t number = ring_number % channel.geometry.ring_count;
  struct ml_channel_ring *ring = &channel.slot->rings[number];
  const uint64_t capacity = channel.geometry.ring_bytes;
  unsigned char *data = channel.rings + number * capacity;
  const uint64_t need = ml_ring_need(head_bytes + tail_bytes);
  while (need <= ML_RING_MAX_RECORD) {
    uint64_t seen_tail = 0;
    bool half_full = false;
    struct ml_ring_record *record = ml_ring_take(ring, data, capacity, need, &seen_tail, &half_full);
    if (record == NULL) {
      if (!wait || !wait_for_room(ring, seen_tail)) break;
      continue;
    }
    if (half_full) wake_recorder();
    record->kind = (uint16_t)kind;
    memcpy(record + 1, head_data, head_bytes);
    if (tail_bytes != 0) memcpy((unsigned char *)(record + 1) + head_bytes, tail_data, tail_bytes);
    ml_ring_commit(record, need);
    return true;
  }
  atomic_fetch_add_explicit(&channel.slot->dropped, 1, memory_order_relaxed);
  return false;
}

/* Ids are the process's own. */
uint32_t ml_string(const char *text, size_t bytes) {
  static uint32_t next_id;
  const struct ml_string string = {.id = __atomic_add_fetch(&next_id, 1, __ATOMIC_RELAXED),
                                   .tail_bytes = (uint32_t)(bytes < 4096 ? bytes : 4096)};
  return ml_write(ML_KIND_STRING, &string, sizeof string, text, string.tail_bytes, true) ? string.id : 0;
}

void ml_write_status(void) {
  const struct ml_emulator_status status = {.time_ns = ml_now_ns(),
                                            .recorded = ml_plugin.recorded,
                                            .dropped = ml_plugin.dropped,
                                            .translations = ml_plugin.translations,
                                            .flushes = ml_plugin.flushes,
                                            .waited_ns = ml_plugin.waited_ns,
                                            .modified = ml_plugin.modified,
                                            .threads = ml_plugin.threads,
                                            .pid = (uint32_t)getpid(),
                                            .plugin_api = (uint32_t)ml_plugin.api,
                                            .machine = ml_settings.machine,
                                            .late_windows = (uint32_t)ml_plugin.late};
  ml_write(ML_KIND_EMULATOR_STATUS, &status, sizeof status, NULL, 0, true);
}

void ml_write_process_event(unsigned operation, uint32_t thread, uint32_t parent, const char *name) {
  const struct ml_process_event event = {.time_ns = ml_now_ns(),
                                         .pid = (uint32_t)getpid(),
                                         .thread = thread,
                                         .parent_process = parent,
                                         .parent_thread = parent,
                                         .name = name != NULL ? ml_string(name, strlen(name)) : 0,
                                         .status = -1,
                                         .operation = (uint16_t)operation};
  ml_write(ML_KIND_PROCESS_EVENT, &event, sizeof event, NULL, 0, true);
}
