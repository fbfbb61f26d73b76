/* perf events at the ends of regions, for each thread. They can be replaced: a program that defines all four functions of
 * region_events.h (C linkage) has its own called instead: other events, an accelerator's registers.
 *
 *   open    once a thread, in that thread. `asked` is the recorder's header: events, event_type[], event_config[]. Returns a bit
 *           for each event that will be told (0: begin and end are not called), and in *error the errno of the first that
 *           will not.
 *   begin   at a region's begin, before its time starts: six words to keep.
 *   end     at its end, after its time stopped: those six words again, and six to fill: what happened to each of the four
 *           events in between, scaled to the whole time when the event was not counted all the time, then nanoseconds enabled
 *           and nanoseconds counting. Enabled for some time and counting for none: this execution has no values.
 *   close   once a thread, at its end, or in a child after fork.
 *
 * `state` is the thread's own, 16 words, zero at first. No function may print, exit, allocate or take a lock that the program
 * takes; a region's begin or end may come from a signal handler, but never while another call of the same thread is under way.
 *
 * Here the events of a thread are one group: counted at the same time, read with one system call, or with none where the
 * kernel lets the program read its counters (x86-64). But for the clocks among the software events: read as members of
 * another's group they stand still (seen on Linux 6.18), so each is read for itself. Software events also count in the kernel where that is allowed,
 * hardware events only in the program. */
#include "region_events.h"
#include "count.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The program's own, if it has them. Weak: a module that was linked beside a library with such functions must also start without it
 * (nothing that other modules have may be missed), so those of this file have names of their own. */
extern __typeof__(memlens_region_events_open) memlens_region_events_open __attribute__((weak));
extern __typeof__(memlens_region_events_begin) memlens_region_events_begin __attribute__((weak));
extern __typeof__(memlens_region_events_end) memlens_region_events_end __attribute__((weak));
extern __typeof__(memlens_region_events_close) memlens_region_events_close __attribute__((weak));

static bool replaced(void) {
  return &memlens_region_events_open != NULL && &memlens_region_events_begin != NULL &&
         &memlens_region_events_end != NULL && &memlens_region_events_close != NULL;
}

#define HIGH_DESCRIPTOR 512 /* the lower ones, or the lower half of all, stay the program's */

struct state {
  int fds[ML_COUNT_EVENTS];                            /* of the events that were opened, in order */
  uint8_t numbers[ML_COUNT_EVENTS];                    /* their numbers in the header */
  uint8_t opened, alone;                               /* how many; a bit for each that is not in the group */
  uint8_t leads;                                       /* which leads the group, ML_COUNT_EVENTS = there is none */
  struct perf_event_mmap_page *pages[ML_COUNT_EVENTS]; /* NULL: no reading without a call */
};
_Static_assert(sizeof(struct state) <= MEMLENS_EVENT_STATE_WORDS * sizeof(uint64_t), "fits a thread's words");

static int open_event(uint32_t type, uint64_t config, int leader) {
  struct perf_event_attr attributes;
  memset(&attributes, 0, sizeof attributes);
  attributes.size = sizeof attributes;
  attributes.type = type;
  attributes.config = config;
  attributes.exclude_hv = 1;
  attributes.exclude_kernel = type != PERF_TYPE_SOFTWARE;
  attributes.read_format = PERF_FORMAT_GROUP | PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
  long fd = syscall(SYS_perf_event_open, &attributes, 0, -1, leader, PERF_FLAG_FD_CLOEXEC);
  if (fd < 0 && (errno == EACCES || errno == EPERM) && !attributes.exclude_kernel) {
    attributes.exclude_kernel = 1;
    fd = syscall(SYS_perf_event_open, &attributes, 0, -1, leader, PERF_FLAG_FD_CLOEXEC);
  }
  if (fd < 0) return -1;
  struct rlimit limit = {0, 0};
  getrlimit(RLIMIT_NOFILE, &limit);
  const long first = limit.rlim_cur / 2 < HIGH_DESCRIPTOR ? (long)(limit.rlim_cur / 2) : HIGH_DESCRIPTOR;
  const long high = syscall(SYS_fcntl, (int)fd, F_DUPFD_CLOEXEC, first);
  const int error = errno;
  syscall(SYS_close, (int)fd);
  errno = error;
  return (int)high;
}

unsigned ml_events_open(uint64_t *words, const struct ml_count_header *asked, int *error) {
  if (replaced()) return memlens_region_events_open(words, asked, error);
  struct state *state = (struct state *)words;
  unsigned mask = 0;
  memset(state, 0, sizeof *state);
  state->leads = ML_COUNT_EVENTS;
  for (unsigned i = 0; i < asked->events && i < ML_COUNT_EVENTS; i++) {
    const bool is_clock =
        asked->event_type[i] == PERF_TYPE_SOFTWARE &&
        (asked->event_config[i] == PERF_COUNT_SW_CPU_CLOCK || asked->event_config[i] == PERF_COUNT_SW_TASK_CLOCK);
    const int leader = !is_clock && state->leads < ML_COUNT_EVENTS ? state->fds[state->leads] : -1;
    const int fd = open_event(asked->event_type[i], asked->event_config[i], leader);
    if (fd < 0) {
      if (*error == 0) *error = errno;
      continue;
    }
    state->numbers[state->opened] = (uint8_t)i;
    state->fds[state->opened] = fd;
    if (is_clock) state->alone |= (uint8_t)(1u << state->opened);
    else if (state->leads == ML_COUNT_EVENTS) state->leads = state->opened;
#if defined(__x86_64__)
    const long page = syscall(SYS_mmap, NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    state->pages[state->opened] = page == -1 ? NULL : (struct perf_event_mmap_page *)page;
#endif
    state->opened++;
    mask |= 1u << i;
  }
  return mask;
}

/* ---- reading without a system call: as <linux/perf_event.h> tells --------------------------------------------- */
#if defined(__x86_64__)
static bool read_page(const struct perf_event_mmap_page *page, uint64_t *value, uint64_t *enabled, uint64_t *running) {
  uint32_t sequence;
  if (page == NULL) return false;
  do {
    sequence = __atomic_load_n(&page->lock, __ATOMIC_ACQUIRE);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    const uint32_t index = page->index;
    if (!page->cap_user_rdpmc || !page->cap_user_time || index == 0) return false;
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    const uint64_t cycles = (uint64_t)high << 32 | low;
    const uint64_t whole = cycles >> page->time_shift, part = cycles & ((UINT64_C(1) << page->time_shift) - 1);
    const uint64_t since = page->time_offset + whole * page->time_mult + ((part * page->time_mult) >> page->time_shift);
    *enabled = page->time_enabled + since;
    *running = page->time_running + since;
    __asm__ volatile("rdpmc" : "=a"(low), "=d"(high) : "c"(index - 1));
    const unsigned unused = 64u - page->pmc_width; /* the counter is narrower and signed */
    const int64_t raw = (int64_t)((uint64_t)high << 32 | low) << unused >> unused;
    *value = (uint64_t)page->offset + (uint64_t)raw;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
  } while (__atomic_load_n(&page->lock, __ATOMIC_ACQUIRE) != sequence);
  return true;
}
#endif

/* One event's group, which may be itself: number, enabled, running, values. */
static bool read_group(const struct state *state, unsigned which, uint64_t *group, uint64_t count) {
  const long got = syscall(SYS_read, state->fds[which], group, (3 + ML_COUNT_EVENTS) * sizeof *group);
  return got >= (long)((3 + count) * sizeof *group) && group[0] == count;
}

/* Values by number of the event, then both times. */
static bool read_all(const struct state *state, uint64_t *values) {
  uint64_t group[3 + ML_COUNT_EVENTS] = {0};
  memset(values, 0, (ML_COUNT_EVENTS + 2) * sizeof *values);
#if defined(__x86_64__)
  unsigned fast = 0;
  while (fast < state->opened && read_page(state->pages[fast], &values[state->numbers[fast]], &values[ML_COUNT_EVENTS],
                                           &values[ML_COUNT_EVENTS + 1]))
    fast++;
  if (fast == state->opened) return true;
#endif
  const int saved = errno;
  bool complete = true;
  for (unsigned i = 0; i < state->opened && complete; i++) {
    if ((state->alone >> i & 1) == 0) continue;
    complete = read_group(state, i, group, 1);
    values[state->numbers[i]] = group[3];
  }
  if (complete && state->leads < ML_COUNT_EVENTS) {
    complete = read_group(state, state->leads, group, state->opened - (unsigned)__builtin_popcount(state->alone));
    for (unsigned i = 0, member = 0; i < state->opened; i++)
      if ((state->alone >> i & 1) == 0) values[state->numbers[i]] = group[3 + member++];
  }
  errno = saved;
  values[ML_COUNT_EVENTS] = complete ? group[1] : 0; /* 0 of an event that was opened: not read */
  values[ML_COUNT_EVENTS + 1] = group[2];
  return complete;
}

void ml_events_begin(uint64_t *words, uint64_t *begun) {
  if (replaced()) memlens_region_events_begin(words, begun);
  else read_all((struct state *)words, begun);
}

void ml_events_end(uint64_t *words, const uint64_t *begun, uint64_t *spent) {
  if (replaced()) {
    memlens_region_events_end(words, begun, spent);
    return;
  }
  uint64_t now[ML_COUNT_EVENTS + 2];
  if (!read_all((struct state *)words, now) || begun[ML_COUNT_EVENTS] == 0) {
    spent[ML_COUNT_EVENTS] = 1; /* enabled and never running: not read */
    return;
  }
  const uint64_t enabled = now[ML_COUNT_EVENTS] - begun[ML_COUNT_EVENTS];
  const uint64_t running = now[ML_COUNT_EVENTS + 1] - begun[ML_COUNT_EVENTS + 1];
  for (int i = 0; i < ML_COUNT_EVENTS; i++) {
    spent[i] = now[i] - begun[i];
    if (running < enabled) spent[i] = running != 0 ? (uint64_t)((unsigned __int128)spent[i] * enabled / running) : 0;
  }
  spent[ML_COUNT_EVENTS] = enabled;
  spent[ML_COUNT_EVENTS + 1] = running;
}

void ml_events_close(uint64_t *words) {
  if (replaced()) {
    memlens_region_events_close(words);
    return;
  }
  struct state *state = (struct state *)words;
  const int saved = errno;
  for (uint32_t i = 0; i < state->opened; i++) {
    if (state->pages[i] != NULL) syscall(SYS_munmap, state->pages[i], 4096);
    syscall(SYS_close, state->fds[i]);
  }
  memset(state, 0, sizeof *state);
  errno = saved;
}
