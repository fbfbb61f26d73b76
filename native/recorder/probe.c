/* What this machine allows: each question is asked by trying the thing itself. */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

static int try_event(uint32_t type, uint64_t config, int include_kernel, uint64_t sample_type, int *kept_fd) {
  struct perf_event_attr attr;
  memset(&attr, 0, sizeof attr);
  attr.size = sizeof attr;
  attr.type = type;
  attr.config = config;
  attr.sample_period = 1000000;
  attr.sample_type = sample_type;
  attr.exclude_kernel = !include_kernel;
  attr.exclude_hv = 1;
  attr.disabled = 1;
  const int fd = ml_perf_event_open(&attr, 0, -1, -1, 0);
  if (fd < 0) return errno;
  if (kept_fd != NULL) *kept_fd = fd;
  else close(fd);
  return 0;
}

static int seccomp_mode(void) {
  FILE *file = fopen("/proc/self/status", "re");
  char line[256];
  int mode = -1;
  while (file != NULL && fgets(line, sizeof line, file) != NULL)
    if (sscanf(line, "Seccomp: %d", &mode) == 1) break;
  if (file != NULL) fclose(file);
  return mode;
}

void ml_probe(struct ml_probe_result *result) {
  memset(result, 0, sizeof *result);
  int fd = -1;
  const uint64_t type = PERF_SAMPLE_IP | PERF_SAMPLE_TID | PERF_SAMPLE_TIME | PERF_SAMPLE_ADDR;
  result->fault_event_errno = try_event(PERF_TYPE_SOFTWARE, PERF_COUNT_SW_PAGE_FAULTS_MIN, 0, type, &fd);
  result->fault_kernel_errno = try_event(PERF_TYPE_SOFTWARE, PERF_COUNT_SW_PAGE_FAULTS_MIN, 1, type, NULL);
  result->page_size_errno =
      try_event(PERF_TYPE_SOFTWARE, PERF_COUNT_SW_PAGE_FAULTS_MIN, 0, type | (UINT64_C(1) << 22), NULL);
  result->hardware_event_errno = try_event(PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES, 0, PERF_SAMPLE_IP, NULL);
  if (fd >= 0) {
    const size_t bytes = (size_t)sysconf(_SC_PAGESIZE) + (512u << 10);
    void *ring = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    result->ring_errno = ring == MAP_FAILED ? errno : 0;
    if (ring != MAP_FAILED) munmap(ring, bytes);
    close(fd);
  } else {
    result->ring_errno = result->fault_event_errno;
  }
  struct ml_page_table *table = ml_page_table_new(getpid());
  struct ml_residency *records = NULL;
  const ssize_t looked = table != NULL ? ml_page_table_look(table, &records) : -ENOMEM;
  result->pagemap_errno = looked < 0 ? (int)-looked : 0;
  free(records);
  ml_page_table_free(table);
  void *page = &fd;
  int node = -1;
  result->move_pages_errno = syscall(SYS_move_pages, 0, 1UL, &page, NULL, &node, 0) == 0 ? 0 : errno;
  result->seccomp_mode = seccomp_mode();
}

static uint64_t read_clock(clockid_t clock) {
  struct timespec now;
  if (clock_gettime(clock, &now) != 0) return 0;
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t cycle_counter(void) {
#if defined(__x86_64__)
  return __rdtsc();
#elif defined(__aarch64__)
  uint64_t value;
  __asm__ volatile("mrs %0, cntvct_el0" : "=r"(value));
  return value;
#elif defined(__riscv)
  uint64_t value;
  __asm__ volatile("rdtime %0" : "=r"(value));
  return value;
#elif defined(__powerpc64__)
  return __builtin_ppc_get_timebase();
#else
  return 0;
#endif
}

/* perf's default clock is local_clock(): what a perf.data without -k has. It can
 * only be read through an event's record, so it is paired by sampling one. */
static int perf_clock_pair(struct ml_clock_reading *into) {
  struct perf_event_attr attr;
  memset(&attr, 0, sizeof attr);
  attr.size = sizeof attr;
  attr.type = PERF_TYPE_SOFTWARE;
  attr.config = PERF_COUNT_SW_PAGE_FAULTS_MIN;
  attr.sample_period = 1;
  attr.sample_type = PERF_SAMPLE_TIME;
  attr.exclude_kernel = attr.exclude_hv = 1;
  const int fd = ml_perf_event_open(&attr, 0, -1, -1, 0);
  if (fd < 0) return -errno;
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  struct perf_event_mmap_page *meta = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  volatile char *fresh = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  int status = -EIO;
  if (meta != MAP_FAILED && fresh != MAP_FAILED) {
    meta->data_tail = __atomic_load_n(&meta->data_head, __ATOMIC_ACQUIRE);
    const uint64_t before = ml_monotonic_ns();
    fresh[0] = 1;
    const uint64_t after = ml_monotonic_ns();
    const uint64_t head = __atomic_load_n(&meta->data_head, __ATOMIC_ACQUIRE);
    if (head >= 16) {
      uint64_t time_ns;
      memcpy(&time_ns, (char *)meta + page + ((head - 8) & (page - 1)), 8);
      *into = (struct ml_clock_reading){.monotonic_ns = before + (after - before) / 2,
                                        .ticks = time_ns,
                                        .uncertainty_ns = (after - before) / 2,
                                        .ticks_per_second = 1000000000u,
                                        .clock = ML_ENUM_clock_PERF};
      status = 0;
    }
  }
  if (fresh != MAP_FAILED) munmap((void *)(uintptr_t)fresh, page);
  if (meta != MAP_FAILED) munmap(meta, 2 * page);
  close(fd);
  return status;
}

size_t ml_clock_pairs(struct ml_clock_reading *into, size_t capacity) {
  static const struct {
    uint16_t clock;
    clockid_t id;
  } clocks[] = {{ML_ENUM_clock_REALTIME, CLOCK_REALTIME},
                {ML_ENUM_clock_BOOTTIME, CLOCK_BOOTTIME},
                {ML_ENUM_clock_MONOTONIC_RAW, CLOCK_MONOTONIC_RAW},
                {ML_ENUM_clock_TSC, 0}};
  size_t count = 0;
  unsigned cpu = 0;
  syscall(SYS_getcpu, &cpu, NULL, NULL);
  for (size_t i = 0; i < sizeof clocks / sizeof clocks[0] && count < capacity; i++) {
    struct ml_clock_reading best = {.uncertainty_ns = UINT64_MAX};
    for (int attempt = 0; attempt < 5; attempt++) { /* the tightest of five: an interrupt may fall between */
      const uint64_t before = ml_monotonic_ns();
      const uint64_t ticks = clocks[i].clock == ML_ENUM_clock_TSC ? cycle_counter() : read_clock(clocks[i].id);
      const uint64_t after = ml_monotonic_ns();
      if (ticks == 0 || (after - before) / 2 >= best.uncertainty_ns) continue;
      best = (struct ml_clock_reading){.monotonic_ns = before + (after - before) / 2,
                                       .ticks = ticks,
                                       .uncertainty_ns = (after - before) / 2,
                                       .ticks_per_second = clocks[i].clock == ML_ENUM_clock_TSC ? 0 : 1000000000u,
                                       .clock = clocks[i].clock,
                                       .cpu = (uint16_t)cpu};
    }
    if (best.uncertainty_ns != UINT64_MAX) into[count++] = best;
  }
  if (count < capacity && perf_clock_pair(&into[count]) == 0) count++;
  return count;
}
