/* What our events add to a page fault, measured with the same events on faults of the calling thread.
 *
 * By the thread's CPU clock, the median of some rounds: the least would be that of warm caches, which a program does not have.
 * The fault without events is measured before the session opens its own: the kernel takes a slower path in every process as
 * soon as an event of the kind exists anywhere, enabled or not, and most of what sampled faults cost is that path. An event for
 * stacks is enabled beside the others, as in a recording, but takes none: their cost depends on the program's stacks.
 * A few milliseconds in all. */
#include "internal.h"

#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PAGES 128
#define ROUNDS 5
#define RING_PAGES 8 /* holds the records of one round */
#define MOST_ROLES 3

struct measured_event {
  int fd;
  void *ring;
};

static size_t page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }

static double thread_time(void) {
  struct timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static bool open_event(const struct ml_session *session, int role, struct measured_event *event) {
  struct perf_event_attr attr;
  ml_describe_role(session, role, &attr);
  attr.inherit = 0;
  attr.mmap = attr.mmap2 = attr.mmap_data = attr.comm = attr.comm_exec = attr.task = 0;
  attr.disabled = 0;
  attr.wakeup_watermark = UINT32_MAX;
  event->ring = MAP_FAILED;
  event->fd = ml_perf_event_open(&attr, 0, -1, -1, 0);
  if (event->fd < 0) return false;
  event->ring = mmap(NULL, (1 + RING_PAGES) * page_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, event->fd, 0);
  return event->ring != MAP_FAILED;
}

static void close_event(struct measured_event *event) {
  if (event->ring != MAP_FAILED) munmap(event->ring, (1 + RING_PAGES) * page_bytes());
  if (event->fd >= 0) close(event->fd);
}

static double median(double values[ROUNDS]) {
  for (int i = 1; i < ROUNDS; i++)
    for (int j = i; j > 0 && values[j - 1] > values[j]; j--) {
      const double larger = values[j - 1];
      values[j - 1] = values[j];
      values[j] = larger;
    }
  return values[ROUNDS / 2];
}

/* Nanoseconds a fault; 0: no memory. */
static double touch(struct measured_event *events, size_t count) {
  const size_t page = page_bytes();
  double rounds[ROUNDS];
  for (int round = 0; round < ROUNDS; round++) {
    unsigned char *pages = mmap(NULL, PAGES * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return 0;
    madvise(pages, PAGES * page, MADV_NOHUGEPAGE);
    const double begin = thread_time();
    for (size_t i = 0; i < PAGES; i++) *(volatile unsigned char *)(pages + i * page) = 1;
    rounds[round] = (thread_time() - begin) / PAGES;
    munmap(pages, PAGES * page);
    for (size_t i = 0; i < count; i++) {
      struct perf_event_mmap_page *meta = events[i].ring;
      __atomic_store_n(&meta->data_tail, __atomic_load_n(&meta->data_head, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
    }
  }
  return median(rounds);
}

static double with_roles(const struct ml_session *session, const int *roles, size_t count) {
  struct measured_event events[MOST_ROLES];
  size_t opened = 0;
  bool all = true;
  for (; all && opened < count; opened++) all = open_event(session, roles[opened], &events[opened]);
  const double result = all ? touch(events, count) : 0;
  while (opened-- > 0) close_event(&events[opened]);
  return result;
}

double ml_plain_fault_ns(void) { return touch(NULL, 0); }

bool ml_fault_cost(const struct ml_session *session, double cost_ns[ML_FAULT_LEVELS]) {
  /* The rarest stacks come last: without stacks they are left out. */
  static const int both[] = {ML_ROLE_MINOR, ML_ROLE_BEFORE, ML_ROLE_STACK_3},
                   single[] = {ML_ROLE_MINOR, ML_ROLE_STACK_3}, sparse[] = {ML_ROLE_SPARSE, ML_ROLE_STACK_3};
  const size_t stacks = session->options.stack_mode != ML_STACKS_NONE;
  const struct {
    const int *roles;
    size_t count;
  } levels[ML_FAULT_LEVELS] = {{both, 2 + stacks}, {single, 1 + stacks}, {sparse, 1 + stacks}};
  const double plain = session->plain_fault_ns;
  if (plain == 0) return false;
  for (unsigned level = 0; level < ML_FAULT_LEVELS; level++) {
    const double with = with_roles(session, levels[level].roles, levels[level].count);
    cost_ns[level] = with - plain;
    if (with == 0 || cost_ns[level] <= 0) return false;
  }
  return cost_ns[0] > cost_ns[1] && cost_ns[1] > cost_ns[2]; /* else the noise is larger than the cost */
}
