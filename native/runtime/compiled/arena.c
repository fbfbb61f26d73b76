/* The recorder's memory file, or one of our own (standalone.c): finding it, and taking room in it. What the room means is not known here.
 *
 * Room is claimed and mapped in steps that grow, so that a process with thousands of places has few mappings and one
 * that has few takes little of the file's range. No descriptor is kept: programs close those that they do not know. */
#include "count.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define DIRECTORY_BYTES ((uint64_t)ML_COUNT_ENTRIES * sizeof(struct ml_count_entry))
#define FIRST_STEP (UINT64_C(1) << 20)
#define LAST_STEP (UINT64_C(256) << 20)
#define ROOM_UNIT UINT64_C(4096)
#define MAP_UNIT UINT64_C(65536) /* the largest page size of a machine that we know */

struct ml_count_header *ml_arena_header, ml_arena_settings;
static struct {
  uint64_t token[2];
  char path[400];
  bool is_own; /* a file that this process, or the one that it was forked from, made itself (standalone.c) */
  struct ml_count_entry *directory; /* NULL: mapped in parts, the last one is `part` */
  unsigned char *part;
  uint64_t part_offset;
  unsigned char *step; /* what of the last step is left */
  uint64_t step_offset, step_left, next_step;
} arena;

/* The system calls themselves: the library's mmap may be hooked by another recorder. */
static void *map_memory(void *at, uint64_t bytes, int flags, int fd, uint64_t offset) {
  const long result = syscall(SYS_mmap, at, bytes, PROT_READ | PROT_WRITE, flags, fd, offset);
  return result == -1 ? NULL : (void *)result;
}

void *ml_map_private(uint64_t bytes) {
  void *memory = map_memory(NULL, bytes, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == NULL) return NULL;
  syscall(SYS_madvise, memory, bytes, MADV_DONTDUMP);
  syscall(SYS_madvise, memory, bytes, MADV_NOHUGEPAGE);
  return memory;
}

/* Of what has a price no more is taken than is asked for: address space, or blocks of a disk. */
static bool is_thrifty(void) {
  if (arena.is_own) return true;
  struct rlimit limit;
  return getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY;
}

/* ---- mapping parts of the file -------------------------------------------------------------------------- */
struct request {
  void *at; /* NULL: anywhere */
  uint64_t offset, bytes;
  bool is_fresh; /* nobody has used this part of the file */
  void *memory;
};

static void map_part(struct request *request, int fd) {
  struct stat status;
  /* Whole pages of the largest size: writing to one writes all of it. What follows belongs to nobody else. */
  const uint64_t whole = (request->bytes + MAP_UNIT - 1) / MAP_UNIT * MAP_UNIT;
  if (arena.is_own && request->is_fresh && !ml_standalone_allocate(fd, request->offset, whole)) return;
  if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) return;
  if (request->offset + request->bytes > (uint64_t)status.st_size) return; /* touching it would raise SIGBUS */
  request->memory =
      map_memory(request->at, request->bytes, MAP_SHARED | (request->at != NULL ? MAP_FIXED : 0), fd, request->offset);
}

#if defined(__x86_64__) || defined(__aarch64__)
/* Runs in a child that shares our memory but has a descriptor table of its own. */
static int map_in_child(void *argument) {
  struct request *request = argument;
  syscall(SYS_close, 0);
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, arena.path, O_RDWR | O_CLOEXEC, 0);
  if (fd >= 0) map_part(request, fd);
  syscall(SYS_exit, 0);
  return 0;
}
#endif

static void *map_file(void *at, uint64_t offset, uint64_t bytes, bool is_fresh) {
  struct request request = {.at = at, .offset = offset, .bytes = bytes, .is_fresh = is_fresh};
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, arena.path, O_RDWR | O_CLOEXEC | O_NOCTTY, 0);
  if (fd >= 0) {
    map_part(&request, fd);
    syscall(SYS_close, fd);
  }
#if defined(__x86_64__) || defined(__aarch64__)
  /* No descriptor is left (RLIMIT_NOFILE): a short-lived child can free one of its own. It has no exit signal, so the
   * program's handlers and waits do not see it. */
  else if (errno == EMFILE) {
    static unsigned char stack[16384] __attribute__((aligned(16)));
    const pid_t child = clone(map_in_child, stack + sizeof stack, CLONE_VM | CLONE_VFORK, &request);
    if (child > 0)
      while (waitpid(child, NULL, __WCLONE) < 0 && errno == EINTR) {
      }
  }
#endif
  if (request.memory != NULL) syscall(SYS_madvise, request.memory, bytes, MADV_DONTDUMP);
  return request.memory;
}

bool ml_arena_map_over(void *address, uint64_t bytes, uint64_t file_offset) {
  return map_file(address, file_offset, bytes, false) != NULL;
}

const void *ml_arena_map(uint64_t bytes, uint64_t file_offset) { return map_file(NULL, file_offset, bytes, false); }

/* ---- opening ----------------------------------------------------------------------------------------------- */
static bool parse_hex(const char **at, uint64_t *value) {
  *value = 0;
  int digits = 0;
  for (; **at != ':'; (*at)++, digits++) {
    const char c = **at;
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0 || digits >= 16) return false;
    *value = *value << 4 | (uint64_t)digit;
  }
  (*at)++;
  return digits > 0;
}

static bool read_variable(void) {
  const char *text = getenv(ML_COUNT_VARIABLE);
  if (text == NULL || getauxval(AT_SECURE)) return false;
  if (!parse_hex(&text, &arena.token[0]) || !parse_hex(&text, &arena.token[1])) return false;
  const size_t length = strlen(text);
  if (length == 0 || length >= sizeof arena.path) return false;
  memcpy(arena.path, text, length + 1);
  return true;
}

bool ml_arena_open(void) {
  if (!read_variable()) {
    /* A recorder that cannot be reached is no reason to write files where nobody expects them. */
    if (getenv(ML_COUNT_VARIABLE) != NULL || !ml_standalone_make(arena.path, sizeof arena.path, arena.token))
      return false;
    arena.is_own = true;
  }
  struct ml_count_header *header = map_file(NULL, 0, ML_COUNT_DIRECTORY_BYTE, false);
  if (header == NULL) return false;
  struct ml_count_header *copy = &ml_arena_settings;
  for (size_t i = 0; i < sizeof *copy / sizeof(uint64_t); i++)
    ((uint64_t *)copy)[i] = __atomic_load_n((const uint64_t *)header + i, __ATOMIC_RELAXED);
  if (copy->magic != ML_COUNT_MAGIC || copy->version != ML_COUNT_VERSION || copy->token[0] != arena.token[0] ||
      copy->token[1] != arena.token[1] || copy->counters_max <= ML_COUNT_MAX_OF_FUNCTION ||
      copy->counters_max > copy->file_bytes / sizeof(uint64_t) || copy->sample_groups > ML_COUNT_GROUPS_MAX ||
      copy->events > ML_COUNT_EVENTS) {
    syscall(SYS_munmap, header, ML_COUNT_DIRECTORY_BYTE);
    return false;
  }
  if (!is_thrifty()) {
    unsigned char *whole = map_file(NULL, 0, ML_COUNT_DIRECTORY_BYTE + DIRECTORY_BYTES, false);
    if (whole != NULL) arena.directory = (void *)(whole + ML_COUNT_DIRECTORY_BYTE);
  }
  arena.next_step = FIRST_STEP;
  ml_arena_header = header;
  return true;
}

/* ---- room ---------------------------------------------------------------------------------------------------- */
static bool claim_range(uint64_t bytes, uint64_t *offset) {
  uint64_t next = __atomic_load_n(&ml_arena_header->next_byte, __ATOMIC_RELAXED), begin;
  do {
    begin = (next + MAP_UNIT - 1) / MAP_UNIT * MAP_UNIT;
    if (begin < next || bytes > ml_arena_settings.file_bytes || begin > ml_arena_settings.file_bytes - bytes)
      return false;
  } while (!__atomic_compare_exchange_n(&ml_arena_header->next_byte, &next, begin + bytes, true, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED));
  *offset = begin;
  return true;
}

static bool take_step(uint64_t bytes) {
  uint64_t offset;
  if (!claim_range(bytes, &offset)) return false;
  unsigned char *memory = map_file(NULL, offset, bytes, true);
  if (memory == NULL) return false; /* the range stays unused: it has no memory behind it */
  arena.step = memory;
  arena.step_offset = offset;
  arena.step_left = bytes;
  return true;
}

void *ml_arena_room(uint64_t bytes, uint64_t *file_offset) {
  bytes = (bytes + ROOM_UNIT - 1) / ROOM_UNIT * ROOM_UNIT;
  if (arena.step_left < bytes) {
    /* Whole pieces of what is asked for, as it will be asked for again, and a rest for the small ones. */
    const uint64_t pieces = arena.next_step / bytes;
    const uint64_t wanted = (pieces > 1 ? pieces : 1) * bytes + MAP_UNIT;
    const bool limited = is_thrifty();
    if ((limited || !take_step(wanted)) && !take_step(bytes)) {
      ml_add(&ml_arena_header->refused, 1);
      return NULL;
    }
    if (!limited && arena.next_step < LAST_STEP) arena.next_step *= 2;
    if (!limited && arena.next_step < bytes && bytes < LAST_STEP) arena.next_step = 2 * bytes;
  }
  void *memory = arena.step;
  *file_offset = arena.step_offset;
  arena.step += bytes;
  arena.step_offset += bytes;
  arena.step_left -= bytes;
  return memory;
}

struct ml_count_entry *ml_arena_claim(void) {
  uint64_t number = __atomic_load_n(&ml_arena_header->entries, __ATOMIC_RELAXED);
  const uint64_t most = arena.is_own ? ML_STANDALONE_ENTRIES : ML_COUNT_ENTRIES;
  if (number < most) number = __atomic_fetch_add(&ml_arena_header->entries, 1, __ATOMIC_RELAXED);
  struct ml_count_entry *entry = NULL;
  if (number < most) {
    if (arena.directory != NULL) {
      entry = &arena.directory[number];
    } else {
      const uint64_t at = ML_COUNT_DIRECTORY_BYTE + number * sizeof *entry, begin = at / MAP_UNIT * MAP_UNIT;
      if (arena.part == NULL || arena.part_offset != begin) {
        arena.part = map_file(NULL, begin, MAP_UNIT, false); /* the one before stays: its entries are in use */
        arena.part_offset = begin;
      }
      if (arena.part != NULL) entry = (void *)(arena.part + (at - begin));
    }
  }
  if (entry == NULL) ml_add(&ml_arena_header->refused, 1);
  else {
    entry->pid = ml_process.pid;
    entry->born_ns = ml_process.born_ns;
  }
  return entry;
}

void ml_arena_publish(struct ml_count_entry *entry, enum ml_count_kind kind) {
  __atomic_store_n(&entry->kind, (uint32_t)kind, __ATOMIC_RELEASE);
}

void ml_arena_forget_room(void) {
  arena.step_left = 0;
  arena.next_step = FIRST_STEP;
}
