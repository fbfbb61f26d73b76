/* A counted program's runtime as the contract describes it, in its simplest form: what tests of the recorder write into the
 * arena. Every process and thread claims its entries itself. */
#define _GNU_SOURCE 1
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "memlens_count.h"
#include "memlens_format.h"

static int arena_fd = -1;
static struct ml_count_header *arena;
static struct ml_count_entry *directory;
static struct ml_count_process *process;
static uint64_t born_ns;

static inline uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline void *claim(enum ml_count_kind kind, uint64_t bytes, uint32_t thread, uint32_t node, uint32_t parent,
                          uint32_t flags) {
  bytes = (bytes + 4095) & ~UINT64_C(4095);
  const uint64_t index = __atomic_fetch_add(&arena->entries, 1, __ATOMIC_RELAXED);
  const uint64_t offset = __atomic_fetch_add(&arena->next_byte, bytes, __ATOMIC_RELAXED);
  if (index >= ML_COUNT_ENTRIES || offset + bytes > arena->file_bytes) {
    __atomic_fetch_add(&arena->refused, 1, __ATOMIC_RELAXED);
    return NULL;
  }
  void *room = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, arena_fd, (off_t)offset);
  struct ml_count_entry *entry = &directory[index];
  entry->pid = (uint32_t)getpid();
  entry->born_ns = born_ns;
  entry->offset = offset;
  entry->bytes = bytes;
  entry->thread = thread;
  entry->node = node;
  entry->parent = parent;
  entry->flags = flags;
  __atomic_store_n(&entry->kind, kind, __ATOMIC_RELEASE);
  return room;
}

static int find_build_id(struct dl_phdr_info *info, size_t size, void *into) {
  (void)size;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    if (info->dlpi_phdr[i].p_type != PT_NOTE) continue;
    const char *at = (const char *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr),
               *end = at + info->dlpi_phdr[i].p_memsz;
    while (at + sizeof(ElfW(Nhdr)) < end) {
      const ElfW(Nhdr) *note = (const void *)at;
      const char *content = at + sizeof *note + ((note->n_namesz + 3) & ~3u);
      if (note->n_type == NT_GNU_BUILD_ID) {
        struct ml_count_module *module = into;
        module->build_id_bytes = note->n_descsz;
        memcpy(module->build_id, content, note->n_descsz);
      }
      at = content + ((note->n_descsz + 3) & ~3u);
    }
  }
  return 1; /* the first is the program */
}

static inline void new_image(void) {
  born_ns = now_ns();
  process = claim(ML_COUNT_PROCESS, sizeof *process, 0, 0, 0, 0);
  process->parent_pid = (uint64_t)getppid();
  process->ticks_per_second = 1000000000;
  process->clock = ML_ENUM_count_clock_SYSTEM;
  process->start_ticks = process->start_ns = born_ns;
}

extern struct ml_count_function __start_memlens_functions[], __stop_memlens_functions[];

/* Counters of the program itself, from word `first` on. */
static inline void add_module(uint64_t first) {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  struct ml_count_module *module = claim(ML_COUNT_MODULE, sizeof *module + sizeof path, 0, 0, 0, 0);
  module->first_counter = first;
  for (struct ml_count_function *f = __start_memlens_functions; f < __stop_memlens_functions; f++) {
    module->counters += f->counters;
    module->functions++;
  }
  dl_iterate_phdr(find_build_id, module);
  module->path_bytes = (uint32_t)length;
  memcpy(module + 1, path, (size_t)length);
  process->counters_used = first + module->counters;
}

static inline void add_node(uint32_t node, uint32_t parent, const char *name) {
  strcpy(claim(ML_COUNT_NODE, strlen(name) + 1, 0, node, parent, 0), name);
}

static inline struct ml_count_place *add_place(uint32_t thread, uint32_t node, uint32_t flags) {
  return claim(ML_COUNT_PLACE, ML_COUNT_PLACE_COUNTERS + 8 * arena->counters_max, thread, node, 0, flags);
}

static inline uint64_t *counters(struct ml_count_place *place) {
  return (uint64_t *)((char *)place + ML_COUNT_PLACE_COUNTERS);
}

static inline void open_arena(void) {
  const char *value = getenv(ML_COUNT_VARIABLE);
  if (value == NULL) exit(0); /* nobody records */
  unsigned long long first, second;
  int at = 0;
  if (sscanf(value, "%llx:%llx:%n", &first, &second, &at) != 2) exit(80);
  arena_fd = open(value + at, O_RDWR | O_CLOEXEC);
  if (arena_fd < 0) exit(81);
  arena = mmap(NULL, 4096 + ML_COUNT_ENTRIES * sizeof *directory, PROT_READ | PROT_WRITE, MAP_SHARED, arena_fd, 0);
  directory = (void *)((char *)arena + ML_COUNT_DIRECTORY_BYTE);
  if (arena->magic != ML_COUNT_MAGIC || arena->version != ML_COUNT_VERSION || arena->token[0] != first ||
      arena->token[1] != second)
    exit(82);
  new_image();
}
