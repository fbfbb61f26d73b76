/* Attaching to the recorder's channel, and writing records into it. */
#include "runtime.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

__thread struct ml_thread ml_self = {.magic = ML_THREAD_MAGIC};
struct ml_runtime ml_runtime;

#define STUCK_WAIT_NS UINT64_C(10000000)
/* of the channel, at once: hundreds of slots when small objects are sampled */
#define MAPPED_BYTES (UINT64_C(128) << 20)
#define MAX_WAIT_MS 60000
#define SLOT_WAIT_MS 200 /* a child waits this long for a slot before it runs unrecorded */

uint64_t ml_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The system calls themselves: the library's own mmap and friends are hooked. */
static void *map_memory(size_t bytes, int protection, int flags, int fd, uint64_t offset) {
  const long result = syscall(SYS_mmap, NULL, bytes, protection, flags, fd, offset);
  return result == -1 ? NULL : (void *)result;
}

void *ml_map_private(size_t bytes, bool wipe_on_fork) {
  void *memory = map_memory(bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == NULL) return NULL;
  syscall(SYS_madvise, memory, bytes, MADV_DONTDUMP);
  syscall(SYS_madvise, memory, bytes, MADV_NOHUGEPAGE);
  if (wipe_on_fork && syscall(SYS_madvise, memory, bytes, MADV_WIPEONFORK) != 0) {
    syscall(SYS_munmap, memory, bytes);
    return NULL; /* Linux before 4.14: without it a forked child would write into its parent's rings */
  }
  ml_remember_own(memory, bytes);
  return memory;
}

/* Readable memory, asked from the kernel without a descriptor and without waking or waiting: FUTEX_CMP_REQUEUE for nobody
 * reads the word (EFAULT), then compares it (EAGAIN). Of all calls that could say it this is the one that filters of system
 * calls allow: locks need it. A kernel that does not answer so is asked by rt_sigprocmask with an invalid `how`, which copies
 * the set first (EFAULT), then refuses (EINVAL). */
enum answer { READABLE, UNREADABLE, REFUSED };

static enum answer ask_futex(uint64_t at) {
  const long result = syscall(SYS_futex, (const void *)(uintptr_t)at, FUTEX_CMP_REQUEUE_PRIVATE, 0L, 0L,
                              (const void *)(uintptr_t)at, ~0L);
  return result >= 0 || errno == EAGAIN ? READABLE : errno == EFAULT ? UNREADABLE : REFUSED;
}

static enum answer ask_sigprocmask(uint64_t at) {
  const long result = syscall(SYS_rt_sigprocmask, -1, (const void *)(uintptr_t)(at & ~UINT64_C(7)), NULL, (size_t)8);
  return result == 0 || errno == EINVAL ? READABLE : errno == EFAULT ? UNREADABLE : REFUSED;
}

static void choose_probe(void) {
  static uint32_t word = 1;
  ml_runtime.probes_by_futex =
      ask_futex((uint64_t)(uintptr_t)&word) == READABLE && ask_futex(UINT64_MAX - 4095) == UNREADABLE;
}

bool ml_readable(uint64_t address, size_t bytes) {
  const uint64_t last = (address + bytes - 1) & ~UINT64_C(3);
  const int saved = errno;
  enum answer answer = READABLE;
  for (uint64_t at = address & ~UINT64_C(3);;) {
    answer = ml_runtime.probes_by_futex ? ask_futex(at) : ask_sigprocmask(at);
    if (answer != READABLE || at >= (last & ~UINT64_C(4095))) break; /* what lies on one page is alike */
    at = (at & ~UINT64_C(4095)) + 4096;
  }
  if (ML_UNLIKELY(answer == REFUSED)) ml_enter_sandbox(); /* a filter that nobody told us of */
  errno = saved;
  return answer == READABLE;
}

static uint64_t pid_namespace(void) {
  struct stat status;
  return stat("/proc/self/ns/pid", &status) == 0 ? (uint64_t)status.st_ino : 0;
}

/* ---- mapping the channel ------------------------------------------------------------------ */
struct mapping_request {
  const char *path;
  uint64_t token[2];
  uint64_t slot_offset; /* 0: header, and everything if that is allowed */
  uint64_t slot_bytes;
  void *header, *slot;
  uint64_t mapped_bytes; /* from the header on */
  struct ml_geometry geometry;
};

/* True when an address-space limit could make room that we take missing elsewhere. */
static bool address_space_is_limited(void) {
  struct rlimit limit;
  return getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY;
}

static void map_file(struct mapping_request *request, int fd) {
  struct stat status;
  if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size < ML_CHANNEL_HEADER_BYTES) return;
  if (request->slot_offset != 0) {
    request->slot = map_memory(request->slot_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, request->slot_offset);
    return;
  }
  struct ml_channel_header *header = map_memory(ML_CHANNEL_HEADER_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (header == NULL) return;
  const bool ours = header->magic == ML_CHANNEL_MAGIC && header->version == ML_CHANNEL_VERSION &&
                    header->token[0] == request->token[0] && header->token[1] == request->token[1] &&
                    ml_geometry_copy(header, (uint64_t)status.st_size, &request->geometry);
  request->mapped_bytes = ML_CHANNEL_HEADER_BYTES;
  if (ours && !address_space_is_limited()) {
    const uint64_t bytes = request->geometry.file_bytes < MAPPED_BYTES ? request->geometry.file_bytes : MAPPED_BYTES;
    void *many = map_memory(bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (many != NULL) {
      syscall(SYS_madvise, many, bytes, MADV_DONTDUMP);
      syscall(SYS_munmap, header, ML_CHANNEL_HEADER_BYTES);
      request->header = many;
      request->mapped_bytes = bytes;
      return;
    }
  }
  if (ours) request->header = header;
  else syscall(SYS_munmap, header, ML_CHANNEL_HEADER_BYTES);
}

#if defined(__x86_64__) || defined(__aarch64__)
/* Runs in a child that shares our memory but has a descriptor table of its own. */
static int map_in_child(void *argument) {
  struct mapping_request *request = argument;
  syscall(SYS_close, 0);
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, request->path, O_RDWR | O_CLOEXEC, 0);
  if (fd >= 0) map_file(request, fd);
  syscall(SYS_exit, 0);
  return 0;
}
#endif

static void map_channel(struct mapping_request *request) {
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, request->path, O_RDWR | O_CLOEXEC | O_NOCTTY, 0);
  if (fd >= 0) {
    map_file(request, fd);
    syscall(SYS_close, fd);
    return;
  }
#if defined(__x86_64__) || defined(__aarch64__)
  /* No descriptor is left (RLIMIT_NOFILE). A short-lived child with our memory and its own table can
   * free one; it has no exit signal, so the program's handlers and waits do not see it. */
  if (errno != EMFILE) return;
  static unsigned char stack[65536] __attribute__((aligned(16)));
  const pid_t child = clone(map_in_child, stack + sizeof stack, CLONE_VM | CLONE_VFORK, request);
  if (child > 0)
    while (waitpid(child, NULL, __WCLONE) < 0 && errno == EINTR) {
    }
#endif
}

static bool parse_hex(const char **at, uint64_t *value, char end) {
  *value = 0;
  int digits = 0;
  for (; **at != end; (*at)++, digits++) {
    const char c = **at;
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0 || digits >= 16) return false;
    *value = *value << 4 | (uint64_t)digit;
  }
  (*at)++;
  return digits > 0;
}

static bool read_variable(void) {
  const char *text = getenv(ML_CHANNEL_VARIABLE);
  if (text == NULL || getauxval(AT_SECURE)) return false;
  if (!parse_hex(&text, &ml_runtime.token[0], ':') || !parse_hex(&text, &ml_runtime.token[1], ':')) return false;
  const size_t length = strlen(text);
  if (length == 0 || length >= sizeof ml_runtime.path) return false;
  memcpy(ml_runtime.path, text, length + 1);
  return true;
}

/* ---- slots ----------------------------------------------------------------------------------- */
static struct ml_channel_slot *slot_at(uint32_t index, bool *mapped_alone) {
  const uint64_t stride = ml_runtime.geometry.slot_stride, offset = ML_CHANNEL_HEADER_BYTES + index * stride;
  if (offset + stride <= ml_runtime.mapped_bytes) return (void *)((unsigned char *)ml_runtime.header + offset);
  struct mapping_request request = {.path = ml_runtime.path, .slot_offset = offset, .slot_bytes = stride};
  map_channel(&request);
  *mapped_alone = true;
  return request.slot;
}

static void wake_recorder(void) {
  struct ml_channel_header *header = ml_runtime.header;
  if (header == NULL || atomic_exchange_explicit(&header->wake, 1, memory_order_acq_rel) != 0) return;
  syscall(SYS_futex, &header->wake, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* By a futex that nobody wakes: filters of system calls that kill a program allow futexes, which locks need, and seldom sleeps.
 * False: a filter refuses even that. */
static bool sleep_ns(uint64_t ns) {
  const struct timespec pause = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
  uint32_t word = 0;
  if (syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &pause, NULL, 0) == 0 || errno == ETIMEDOUT || errno == EINTR)
    return true;
  ml_enter_sandbox();
  return false;
}

static bool take_slot(struct ml_channel_slot *slot, bool mapped_alone) {
  uint32_t expected = ML_CLAIM_FREE;
  if (!atomic_compare_exchange_strong(&slot->state, &expected, ML_CLAIM_TAKEN)) return false;
  const uint64_t namespace = pid_namespace();
  slot->pid = ml_runtime.slot_pid = (uint32_t)getpid();
  slot->pid_namespace = namespace;
  ml_runtime.recorder_is_near = namespace == ml_runtime.recorder_pid_namespace;
  atomic_store(&slot->flags, (!ml_runtime.recorder_is_near ? (uint32_t)ML_ENUM_runtime_flags_OTHER_PID_NAMESPACE : 0u) |
                                 (ml_runtime.other_malloc ? (uint32_t)ML_ENUM_runtime_flags_OTHER_MALLOC : 0u));
  ml_runtime.slot = slot;
  ml_runtime.slot_mapped_alone = mapped_alone;
  ml_runtime.rings = (unsigned char *)slot + ML_CHANNEL_SLOT_HEADER_BYTES;
  ml_runtime.ring_bytes = ml_runtime.geometry.ring_bytes;
  ml_runtime.ring_count = ml_runtime.geometry.ring_count;
  /* Last: the recorder takes a slot as valid once it has a time. */
  __atomic_store_n(&slot->claimed_ns, ml_now_ns(), __ATOMIC_RELEASE);
  wake_recorder(); /* it looks at what is mapped, and a short program may have ended when it comes by itself */
  return true;
}

static bool claim_slot(void) {
  struct ml_channel_header *header = ml_runtime.header;
  /* The parent's slot, if this is a fork's child. */
  if (ml_runtime.slot_mapped_alone) syscall(SYS_munmap, ml_runtime.slot, ml_runtime.geometry.slot_stride);
  ml_runtime.slot = NULL;
  ml_runtime.slot_mapped_alone = false;
  for (int waited_ms = 0; waited_ms <= SLOT_WAIT_MS; waited_ms++) {
    if (atomic_load(&header->closed)) return false;
    for (uint32_t word = 0; word < ML_CHANNEL_MAX_SLOTS / 64; word++) {
      uint64_t free_bits = atomic_load_explicit(&header->free_slots[word], memory_order_acquire);
      for (; free_bits != 0; free_bits &= free_bits - 1) {
        const uint64_t bit = free_bits & -free_bits;
        if ((atomic_fetch_and(&header->free_slots[word], ~bit) & bit) == 0) continue; /* another was faster */
        const uint32_t index = word * 64 + (uint32_t)__builtin_ctzll(bit);
        if (index >= ml_runtime.geometry.slot_max) continue;
        bool mapped_alone = false;
        struct ml_channel_slot *slot = slot_at(index, &mapped_alone);
        if (slot == NULL) { /* no descriptor, or the path leads elsewhere now (chroot, setns) */
          atomic_fetch_or(&header->free_slots[word], bit);
          atomic_fetch_add(&header->refused, 1);
          return false;
        }
        if (take_slot(slot, mapped_alone)) return true;
        if (mapped_alone) syscall(SYS_munmap, slot, ml_runtime.geometry.slot_stride);
      }
    }
    wake_recorder();
    if (!sleep_ns(1000000)) break;
  }
  atomic_fetch_add(&header->refused, 1);
  return false;
}

static bool attach_channel(void) {
  if (ml_runtime.header == NULL) {
    if (!read_variable()) return false;
    struct mapping_request request = {.path = ml_runtime.path, .token = {ml_runtime.token[0], ml_runtime.token[1]}};
    map_channel(&request);
    if (request.header == NULL) return false;
    const struct ml_channel_header *seen = ml_runtime.header = request.header;
    ml_runtime.mapped_bytes = request.mapped_bytes;
    ml_runtime.geometry = request.geometry;
    ml_runtime.recorder_pid = __atomic_load_n(&seen->recorder_pid, __ATOMIC_RELAXED);
    ml_runtime.recorder_pid_namespace = __atomic_load_n(&seen->recorder_pid_namespace, __ATOMIC_RELAXED);
    ml_runtime.sample_bytes = __atomic_load_n(&seen->sample_bytes, __ATOMIC_RELAXED);
    ml_runtime.large_bytes = __atomic_load_n(&seen->large_bytes, __ATOMIC_RELAXED);
    ml_runtime.flags = __atomic_load_n(&seen->flags, __ATOMIC_RELAXED);
    ml_runtime.budget_ppm = __atomic_load_n(&seen->budget_ppm, __ATOMIC_RELAXED);
    ml_runtime.wait_ms = __atomic_load_n(&seen->wait_ms, __ATOMIC_RELAXED);
    if (ml_runtime.wait_ms > MAX_WAIT_MS) ml_runtime.wait_ms = MAX_WAIT_MS;
  }
  struct ml_channel_header *header = ml_runtime.header;
  return !atomic_load(&header->closed) && claim_slot();
}

/* ---- attaching ------------------------------------------------------------------------------- */
static bool attach(void) {
  /* Without variables the C library is not initialised yet: ask again. (Or the program cleared them: a
   * fork's child then has all it needs from its parent.) */
  if (environ == NULL && ml_runtime.header == NULL && !ml_runtime.standalone) return false;
  ml_guest_start();
  uint32_t expected = ML_DETACHED;
  if (!atomic_compare_exchange_strong(&ml_runtime.guard->attachment, &expected, ML_ATTACHING))
    return expected == ML_ATTACHED;
  if (ml_runtime.sandboxed) {
    ml_stop_recording();
    return false;
  }
  const int saved = errno;
  if (ml_runtime.generation != 0 && (ml_emulated || ml_runtime.guard_unsure)) ml_stacks_clear();
  const bool standalone_child = ml_runtime.standalone; /* a fork of a process that writes for itself */
  bool attached = !standalone_child && attach_channel();
  if (!attached) attached = ml_standalone_attach();
  ml_runtime.generation++;
  atomic_store(&ml_runtime.next_ring, 0);
  ml_runtime.stuck_until_ns = 0;
  atomic_store_explicit(&ml_runtime.guard->attachment, attached ? ML_ATTACHED : ML_OFF, memory_order_release);
  if (attached) {
    ml_thread_refresh();
    if (ml_runtime.standalone) ml_standalone_begun();
    ml_write_own_memory();
  }
  errno = saved;
  return attached;
}

bool ml_attached(void) {
  if (ML_UNLIKELY(ml_runtime.guard == NULL)) ml_runtime_start();
  if (ml_runtime.guard == NULL) return false;
  if (ML_UNLIKELY(ml_runtime.guard_unsure) && ml_runtime.pid != (uint32_t)getpid()) {
    ml_runtime.pid = (uint32_t)getpid();
    atomic_store(&ml_runtime.guard->attachment, ML_DETACHED);
  }
  const uint32_t attachment = atomic_load_explicit(&ml_runtime.guard->attachment, memory_order_acquire);
  if (ML_LIKELY(attachment == ML_ATTACHED)) {
    if (ML_UNLIKELY(!ml_runtime.standalone && atomic_load_explicit(&ml_runtime.header->closed, memory_order_relaxed))) {
      /* Nobody reads any more: back to full speed, for good. */
      ml_stop_recording();
      return false;
    }
    if (ML_UNLIKELY(ml_self.generation != ml_runtime.generation)) ml_thread_refresh();
    return true;
  }
  if (attachment != ML_DETACHED) return false;
  return attach();
}

void ml_stop_recording(void) {
  if (ml_runtime.guard != NULL) atomic_store(&ml_runtime.guard->attachment, ML_OFF);
}

void ml_enter_sandbox(void) {
  ml_runtime.sandboxed = true;
  ml_stop_recording();
}

void ml_thread_refresh(void) {
  ml_self.generation = ml_runtime.generation;
  ml_self.tid = (uint32_t)syscall(SYS_gettid);
  ml_self.ring = atomic_fetch_add(&ml_runtime.next_ring, 1) % (ml_runtime.ring_count ? ml_runtime.ring_count : 1);
  ml_self.region_depth = 0;
  ml_self.begun_ns = ml_now_ns();
  ml_self.spent_ns = 0;
  ml_self.thinned = false;
  if (ml_self.random == 0)
    ml_self.random = (ml_now_ns() * UINT64_C(0x9E3779B97F4A7C15) ^ ((uint64_t)ml_self.tid << 32)) | 1;
  struct ml_ticket ticket = ml_reserve(ML_KIND_THREAD_MEMORY, sizeof(struct ml_thread_memory));
  if (ticket.record != NULL) {
    struct ml_thread_memory *record = ticket.record;
    record->time_ns = ml_now_ns();
    record->thread_pointer = ml_thread_pointer();
    record->stack_address = (uint64_t)(uintptr_t)__builtin_frame_address(0);
    record->thread = ml_self.tid;
    ml_commit(ticket);
  }
}

void ml_note_missed(void) {
  if (ml_recording() && ml_runtime.slot != NULL)
    atomic_fetch_add_explicit(&ml_runtime.slot->nested, 1, memory_order_relaxed);
}

/* ---- rings --------------------------------------------------------------------------------------- */
/* The recorder was killed: it is gone, or nobody has waited for it yet. */
static bool recorder_is_gone(void) {
  if (!ml_runtime.recorder_is_near) return false;
  const pid_t pid = (pid_t)ml_runtime.recorder_pid;
  if (kill(pid, 0) != 0) return errno == ESRCH;
  char path[32] = "/proc/", digits[12], text[256];
  size_t length = 6, count = 0;
  for (uint32_t left = (uint32_t)pid; left != 0; left /= 10) digits[count++] = (char)('0' + left % 10);
  while (count > 0) path[length++] = digits[--count];
  memcpy(path + length, "/stat", 6);
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return false;
  const long got = syscall(SYS_read, fd, text, sizeof text - 1);
  syscall(SYS_close, fd);
  if (got <= 0) return false;
  text[got] = 0;
  const char *name_end = strrchr(text, ')');
  return name_end != NULL && (name_end[2] == 'Z' || name_end[2] == 'X');
}

/* A ring is full: waits for the reader, for one record not longer than `wait_ms` in all (`*first_ns`: since when). False: give
 * up this record. */
static bool wait_for_room(struct ml_channel_ring *ring, uint64_t seen_tail, uint64_t *first_ns) {
  if (ml_runtime.standalone) {
    ml_standalone_room(ml_self.ring);
    return atomic_load(&ring->tail) != seen_tail;
  }
  const uint64_t begin = *first_ns != 0 ? *first_ns : ml_now_ns();
  *first_ns = begin;
  if (begin < ml_runtime.stuck_until_ns) return false;
  atomic_fetch_add_explicit(&ml_runtime.slot->waits, 1, memory_order_relaxed);
  const int saved = errno;
  bool room = false;
  uint64_t next_look = 20000000;
  for (;;) {
    if (atomic_load(&ml_runtime.header->closed)) break;
    wake_recorder();
    if (!sleep_ns(200000)) break;
    if (atomic_load_explicit(&ring->tail, memory_order_acquire) != seen_tail) {
      room = true;
      break;
    }
    const uint64_t waited = ml_now_ns() - begin;
    if (waited > next_look) {
      next_look = waited + 20000000;
      if (recorder_is_gone()) {
        atomic_store(&ml_runtime.header->closed, 1);
        break;
      }
    }
    /* The reader hangs. Do not slow the program down again and again: from the second time on it gets
     * a moment each second to show that it is back. */
    if (waited > (ml_runtime.stuck_until_ns != 0 ? STUCK_WAIT_NS : (uint64_t)ml_runtime.wait_ms * 1000000u)) {
      ml_runtime.stuck_until_ns = ml_now_ns() + UINT64_C(1000000000);
      break;
    }
  }
  if (room) ml_runtime.stuck_until_ns = 0;
  atomic_fetch_add_explicit(&ml_runtime.slot->waited_ns, ml_now_ns() - begin, memory_order_relaxed);
  errno = saved;
  return room;
}

struct ml_ticket ml_reserve(unsigned kind, size_t bytes) { return ml_reserve_or_not(kind, bytes, !ml_self.hurried); }

struct ml_ticket ml_reserve_or_not(unsigned kind, size_t bytes, bool wait) {
  struct ml_channel_slot *slot = ml_runtime.slot;
  const uint32_t number = ml_self.ring;
  struct ml_channel_ring *ring = &slot->rings[number];
  const uint64_t capacity = ml_runtime.ring_bytes, need = ml_ring_need(bytes);
  unsigned char *data = ml_runtime.rings + (uint64_t)number * capacity;
  uint64_t first_ns = 0;
  while (ML_LIKELY(need <= ML_RING_MAX_RECORD)) {
    uint64_t seen_tail = 0;
    bool half_full = false;
    struct ml_ring_record *header = ml_ring_take(ring, data, capacity, need, &seen_tail, &half_full);
    if (ML_LIKELY(header != NULL)) {
      if (ML_UNLIKELY(half_full)) wake_recorder();
      header->kind = (uint16_t)kind;
      return (struct ml_ticket){.header = header, .record = header + 1, .bytes = need};
    }
    if (!wait) wake_recorder();
    if (!wait || !wait_for_room(ring, seen_tail, &first_ns)) break;
  }
  atomic_fetch_add_explicit(&slot->dropped, 1, memory_order_relaxed);
  return (struct ml_ticket){0};
}

void ml_commit(struct ml_ticket ticket) { ml_ring_commit(ticket.header, ticket.bytes); }

/* ---- start ------------------------------------------------------------------------------------------ */
void ml_runtime_start(void) {
  static _Atomic uint32_t started;
  if (atomic_exchange(&started, 1) != 0) return;
  const int saved = errno;
  choose_probe();
  struct ml_fork_guard *guard = ml_map_private(4096, true);
  const uint64_t program_break = (uint64_t)(uintptr_t)sbrk(0);
  if (program_break != UINT64_MAX) ml_runtime.break_start = program_break;
  ml_unwind_start();
  ml_stacks_start();
  ml_runtime.guard = guard;
  errno = saved;
}
