/* Blocks of counters in the recorder's memory file. A process takes extents and cuts blocks from them; a forked
 * child puts extents of its own at the same addresses, because translated code has these addresses in it. */
#include "emulator.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXTENT_BYTES (UINT64_C(1) << 20)
#define MAX_EXTENTS 65536
/* extents in one mapping: the more a process has, the more it takes, and its mappings stay few */
#define MOST_AT_ONCE 32

static struct {
  char path[128];
  uint64_t token[2];
  struct ml_arena_header *header;
  uint64_t file_bytes; /* a copy: what else the header holds, other processes of the guest can change */
  unsigned char **extents;
  /* extents in use, extents mapped, first byte not in use of the last one */
  uint32_t extent_count, ready_count, next_byte;
} arena;

void ml_arena_set(const char *path, const uint64_t token[2]) {
  strncpy(arena.path, path, sizeof arena.path - 1);
  memcpy(arena.token, token, sizeof arena.token);
}

bool ml_arena_open(void) {
  arena.extents = calloc(MAX_EXTENTS, sizeof *arena.extents);
  const int fd = open(arena.path, O_RDWR | O_CLOEXEC | O_NOCTTY);
  if (fd < 0 || arena.extents == NULL) return false;
  struct ml_arena_header *header = mmap(NULL, ML_ARENA_FIRST_BYTE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (header == MAP_FAILED) return false;
  if (header->magic != ML_ARENA_MAGIC || header->version != ML_ARENA_VERSION || header->token[0] != arena.token[0] ||
      header->token[1] != arena.token[1]) {
    munmap(header, ML_ARENA_FIRST_BYTE);
    return false;
  }
  arena.header = header;
  arena.file_bytes = __atomic_load_n(&header->file_bytes, __ATOMIC_RELAXED);
  return true;
}

/* The guest may have no descriptor left, or another root directory. Then the mapping of the file's beginning is
 * extended at another place (mremap from 0 bytes, which shared mappings allow), and what lies before is dropped. */
void *ml_map_file(const char *path, void *beginning, void *where, size_t bytes, uint64_t offset) {
  const int fixed = where != NULL ? MAP_FIXED : 0;
  const int fd = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY);
  if (fd >= 0) {
    void *memory = mmap(where, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | fixed, fd, (off_t)offset);
    close(fd);
    return memory;
  }
  unsigned char *whole = mremap(beginning, 0, offset + bytes, MREMAP_MAYMOVE);
  if (whole == MAP_FAILED) return MAP_FAILED;
  if (offset != 0) munmap(whole, offset);
  if (where == NULL) return whole + offset;
  void *memory = mremap(whole + offset, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, where);
  if (memory == MAP_FAILED) munmap(whole + offset, bytes);
  return memory;
}

/* Maps new extents, at `where` if that is given. Without room in the arena they are private memory: counting goes
 * on, the counts are lost, and that is counted. */
static unsigned char *extents_new(void *where, uint32_t count) {
  const int fixed = where != NULL ? MAP_FIXED : 0;
  const uint64_t bytes = count * EXTENT_BYTES;
  void *memory = MAP_FAILED;
  if (arena.header != NULL) {
    const uint64_t at = __atomic_fetch_add(&arena.header->next_byte, bytes, __ATOMIC_RELAXED);
    if (bytes <= arena.file_bytes && at <= arena.file_bytes - bytes)
      memory = ml_map_file(arena.path, arena.header, where, bytes, at);
  }
  if (memory == MAP_FAILED) {
    if (arena.header != NULL) __atomic_fetch_add(&arena.header->refused, count, __ATOMIC_RELAXED);
    memory = mmap(where, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);
  }
  return memory == MAP_FAILED ? NULL : memory;
}

static bool extent_begin(void) {
  if (arena.extent_count == arena.ready_count) {
    uint32_t count = arena.extent_count < 1 ? 1 : arena.extent_count < MOST_AT_ONCE ? arena.extent_count : MOST_AT_ONCE;
    if (arena.extent_count + count > MAX_EXTENTS) return false;
    unsigned char *first = extents_new(NULL, count);
    if (first == NULL) return false;
    while (count-- > 0) {
      arena.extents[arena.ready_count++] = first;
      first += EXTENT_BYTES;
    }
  }
  arena.extent_count++;
  arena.next_byte = 0;
  return true;
}

/* NULL only when memory is exhausted. Call with the plugin's lock held. */
struct ml_arena_block *ml_arena_block_new(enum ml_arena_kind kind, uint32_t thread, uint32_t region, uint32_t first) {
  const uint32_t bytes = kind == ML_ARENA_RUNS ? ML_RUNS_BYTES : ML_BLOCK_BYTES;
  if (arena.extents == NULL) return NULL;
  if ((arena.extent_count == 0 || arena.next_byte + bytes > EXTENT_BYTES) && !extent_begin()) return NULL;
  struct ml_arena_block *block = (void *)(arena.extents[arena.extent_count - 1] + arena.next_byte);
  arena.next_byte += bytes;
  block->bytes = bytes;
  block->pid = (uint32_t)getpid();
  block->thread = thread;
  block->born_ns = ml_plugin.born_ns;
  block->region = region;
  block->first = first;
  __atomic_store_n(&block->kind, kind, __ATOMIC_RELEASE);
  return block;
}

static size_t kept_bytes(const struct ml_arena_block *block) {
  return block->kind == ML_ARENA_COUNTERS || block->kind == ML_ARENA_RUNS ? sizeof *block : block->bytes;
}

/* In a child: the same blocks at the same addresses, tables as they were, counters at zero. */
void ml_arena_after_fork(void) {
  static unsigned char copy[EXTENT_BYTES];
  const uint32_t pid = (uint32_t)getpid();
  const uint64_t now = ml_now_ns();
  arena.ready_count = arena.extent_count; /* the others are the parent's */
  for (uint32_t i = 0; i < arena.extent_count; i++) {
    uint64_t end = 0; /* of the blocks */
    for (uint32_t bytes; end + sizeof(struct ml_arena_block) <= EXTENT_BYTES; end += bytes) {
      const struct ml_arena_block *block = (void *)(arena.extents[i] + end);
      bytes = block->bytes;
      if (bytes == 0) break;
      memcpy(copy + end, block, kept_bytes(block));
    }
    if (extents_new(arena.extents[i], 1) == NULL) continue;
    for (uint64_t at = 0; at < end;) {
      struct ml_arena_block *block = (void *)(copy + at);
      block->pid = pid;
      block->born_ns = ml_plugin.born_ns;
      if (block->kind == ML_ARENA_SLOTS)
        for (uint32_t k = 0; k < block->used; k++) ((struct ml_count_slot *)(block + 1))[k].first_ns = now;
      memcpy(arena.extents[i] + at, block, kept_bytes(block));
      at += block->bytes;
    }
  }
}
