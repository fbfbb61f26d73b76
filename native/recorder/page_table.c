/* Which private pages of a process are resident, from /proc/PID/pagemap: finds
 * pages that the kernel placed without raising an event (MAP_POPULATE, mlock,
 * O_DIRECT, and read() for an unprivileged recorder). PAGEMAP_SCAN where the
 * kernel has it (6.7), reading the file otherwise. */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

struct run {
  uint64_t address, bytes;
  uint32_t flags;
};

struct run_list {
  struct run *runs;
  size_t count, capacity;
};

struct ml_page_table {
  pid_t pid;
  int pagemap_fd;
  bool no_scan;
  uint64_t last_ns;
  struct run_list seen;
};

/* From linux/fs.h of 6.7, declared here because older headers lack it. */
struct scan_region {
  uint64_t start, end, categories;
};
struct scan_arg {
  uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
  uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
#define SCAN_IOCTL _IOWR('f', 16, struct scan_arg)
#define SCAN_FILE (1u << 2)
#define SCAN_PRESENT (1u << 3)
#define SCAN_PFNZERO (1u << 5)
#define SCAN_HUGE (1u << 6)

struct ml_page_table *ml_page_table_new(pid_t pid) {
  struct ml_page_table *table = calloc(1, sizeof *table);
  if (table == NULL) return NULL;
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/pagemap", (int)pid);
  table->pid = pid;
  table->pagemap_fd = open(path, O_RDONLY | O_CLOEXEC);
  return table;
}

void ml_page_table_free(struct ml_page_table *table) {
  if (table == NULL) return;
  if (table->pagemap_fd >= 0) close(table->pagemap_fd);
  free(table->seen.runs);
  free(table);
}

static int add_run(struct run_list *list, uint64_t address, uint64_t bytes, uint32_t flags) {
  struct run *last = list->count > 0 ? &list->runs[list->count - 1] : NULL;
  if (last != NULL && last->address + last->bytes == address && last->flags == flags) {
    last->bytes += bytes;
    return 0;
  }
  if (list->count == list->capacity) {
    const size_t capacity = list->capacity ? 2 * list->capacity : 256;
    struct run *grown = realloc(list->runs, capacity * sizeof *grown);
    if (grown == NULL) return -ENOMEM;
    list->runs = grown;
    list->capacity = capacity;
  }
  list->runs[list->count++] = (struct run){address, bytes, flags};
  return 0;
}

static int scan_with_ioctl(struct ml_page_table *table, uint64_t begin, uint64_t end, struct run_list *list) {
  struct scan_region regions[512];
  while (begin < end) {
    struct scan_arg arg = {
        .size = sizeof arg,
        .start = begin,
        .end = end,
        .vec = (uint64_t)(uintptr_t)regions,
        .vec_len = 512,
        .category_mask = SCAN_PRESENT,
        .return_mask = SCAN_PRESENT | SCAN_FILE | SCAN_PFNZERO | SCAN_HUGE,
    };
    const int found = ioctl(table->pagemap_fd, SCAN_IOCTL, &arg);
    if (found < 0) return -errno;
    for (int i = 0; i < found; i++) {
      const uint64_t is = regions[i].categories;
      const uint32_t flags = (is & SCAN_FILE ? ML_ENUM_residency_flags_FILE_OR_SHARED : 0) |
                             (is & SCAN_PFNZERO ? ML_ENUM_residency_flags_ZERO_PAGE : 0) |
                             (is & SCAN_HUGE ? ML_ENUM_residency_flags_HUGE : 0);
      if (add_run(list, regions[i].start, regions[i].end - regions[i].start, flags) != 0) return -ENOMEM;
    }
    if (arg.walk_end <= begin) break;
    begin = arg.walk_end;
  }
  return 0;
}

static int scan_with_read(struct ml_page_table *table, uint64_t begin, uint64_t end, struct run_list *list) {
  const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
  uint64_t entries[4096];
  while (begin < end) {
    size_t want = (size_t)((end - begin) / page);
    if (want > 4096) want = 4096;
    const ssize_t got = pread(table->pagemap_fd, entries, want * 8, (off_t)(begin / page * 8));
    if (got <= 0) return got < 0 ? -errno : 0;
    for (size_t i = 0; i < (size_t)got / 8; i++) {
      if (!(entries[i] >> 63)) continue;
      const uint32_t flags = (entries[i] >> 61) & 1 ? ML_ENUM_residency_flags_FILE_OR_SHARED : 0;
      if (add_run(list, begin + i * page, page, flags) != 0) return -ENOMEM;
    }
    begin += (uint64_t)got / 8 * page;
  }
  return 0;
}

/* Private writable mappings: heap, anonymous memory, stacks, written file pages. */
static int scan_process(struct ml_page_table *table, struct run_list *list) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/maps", (int)table->pid);
  FILE *file = fopen(path, "re");
  if (file == NULL) return -errno;
  char *line = NULL;
  size_t capacity = 0;
  int status = 0;
  while (status == 0 && getline(&line, &capacity, file) > 0) {
    unsigned long long begin, end;
    char permissions[8];
    if (sscanf(line, "%llx-%llx %7s", &begin, &end, permissions) != 3) continue;
    if (permissions[1] != 'w' || permissions[3] != 'p') continue;
    if (!table->no_scan) {
      status = scan_with_ioctl(table, begin, end, list);
      if (status == -ENOTTY || status == -EINVAL) {
        table->no_scan = true;
        status = 0;
      }
    }
    if (table->no_scan) status = scan_with_read(table, begin, end, list);
  }
  free(line);
  fclose(file);
  return status;
}

ssize_t ml_page_table_look(struct ml_page_table *table, struct ml_residency **records) {
  *records = NULL;
  if (table->pagemap_fd < 0) return -EACCES;
  struct run_list now = {0};
  const uint64_t scan_begin_ns = ml_monotonic_ns();
  int status = scan_process(table, &now);
  const uint64_t time_ns = ml_monotonic_ns(); /* after: what was seen was placed before this */
  if (status != 0) {
    free(now.runs);
    return status;
  }
  /* new = now minus seen; both are sorted by address. */
  size_t count = 0, allocated = 0, s = 0;
  for (size_t n = 0; n < now.count; n++) {
    uint64_t at = now.runs[n].address;
    const uint64_t end = at + now.runs[n].bytes;
    while (at < end) {
      while (s < table->seen.count && table->seen.runs[s].address + table->seen.runs[s].bytes <= at) s++;
      uint64_t stop = end;
      if (s < table->seen.count && table->seen.runs[s].address <= at) {
        at = table->seen.runs[s].address + table->seen.runs[s].bytes;
        continue;
      }
      if (s < table->seen.count && table->seen.runs[s].address < stop) stop = table->seen.runs[s].address;
      if (count == allocated) {
        allocated = allocated ? 2 * allocated : 64;
        struct ml_residency *grown = realloc(*records, allocated * sizeof *grown);
        if (grown == NULL) {
          free(*records);
          *records = NULL;
          free(now.runs);
          return -ENOMEM;
        }
        *records = grown;
      }
      (*records)[count++] = (struct ml_residency){.begin_ns = table->last_ns,
                                                  .end_ns = time_ns,
                                                  .address = at,
                                                  .bytes = stop - at,
                                                  .flags = now.runs[n].flags,
                                                  .scan_us = (uint32_t)((time_ns - scan_begin_ns) / 1000) + 1};
      at = stop;
    }
  }
  free(table->seen.runs);
  table->seen = now;
  table->last_ns = time_ns;
  return (ssize_t)count;
}
