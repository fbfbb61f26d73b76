/* Opening perf events: which, with what fallbacks, and their rings.
 *
 * A fault raises up to three software events. `page-faults` comes before the
 * kernel serves it, so PERF_SAMPLE_DATA_PAGE_SIZE gives what was mapped there
 * before (nothing: a new page; something: a permission fault). `minor-faults` and
 * `major-faults` come after it and give what is mapped now (2 MiB for a huge
 * page). Only the pair separates a first touch from an upgrade and from a page that
 * was returned and touched again.
 *
 * `sparse` replaces both while faults come too fast for the budget (budget.c).
 *
 * Stacks come from extra minor-fault events with a period, of which one level is
 * enabled at a time: enabling reaches inherited events of running threads, while
 * changing a period does not. They have a ring of their own: when two software
 * events of one kind fire for the same fault, Linux (6.2 to at least 6.18) writes
 * the first one's id into both samples, so the id cannot separate them. */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef PERF_FORMAT_LOST
#define PERF_FORMAT_LOST (1U << 4)
#endif
#ifndef PERF_SAMPLE_DATA_PAGE_SIZE
#define PERF_SAMPLE_DATA_PAGE_SIZE (1U << 22)
#endif

int ml_perf_event_open(struct perf_event_attr *attr, pid_t pid, int cpu, int group, unsigned long flags) {
  return (int)syscall(SYS_perf_event_open, attr, pid, cpu, group, flags | PERF_FLAG_FD_CLOEXEC);
}

/* Bit of the program counter in the perf register numbering of each ISA. */
uint64_t ml_user_ip_register(void) {
#if defined(__x86_64__)
  return UINT64_C(1) << 8;
#elif defined(__aarch64__)
  return UINT64_C(1) << 32;
#elif defined(__riscv)
  return UINT64_C(1) << 0;
#elif defined(__powerpc64__)
  return UINT64_C(1) << 32;
#else
  return 0;
#endif
}

/* Registers a DWARF unwinder needs. */
uint64_t ml_unwind_registers(void) {
#if defined(__x86_64__)
  return UINT64_C(0xff01ff); /* ax bx cx dx si di bp sp ip, r8..r15 */
#elif defined(__aarch64__)
  return (UINT64_C(1) << 33) - 1; /* x0..x29, lr, sp, pc */
#else
  return 0;
#endif
}

void ml_describe_role(const struct ml_session *session, int role, struct perf_event_attr *attr) {
  memset(attr, 0, sizeof *attr);
  attr->size = sizeof *attr;
  attr->type = PERF_TYPE_SOFTWARE;
  attr->sample_period = 1;
  attr->exclude_kernel = !session->facts.include_kernel;
  attr->exclude_hv = 1;
  attr->exclude_callchain_kernel = 1;
  attr->inherit = 1;
  attr->sample_id_all = 1;
  attr->use_clockid = 1;
  attr->clockid = CLOCK_MONOTONIC;
  attr->disabled = 1;
  attr->watermark = 1;
  attr->read_format = session->facts.lost_readable ? PERF_FORMAT_LOST : 0;
  const uint64_t page_size = session->facts.page_size_known ? PERF_SAMPLE_DATA_PAGE_SIZE : 0;
  const uint64_t where = PERF_SAMPLE_IDENTIFIER | PERF_SAMPLE_TID | PERF_SAMPLE_TIME | PERF_SAMPLE_ADDR;
  switch (role) {
    case ML_ROLE_BEFORE:
      attr->config = PERF_COUNT_SW_PAGE_FAULTS;
      attr->sample_type = where | page_size;
      break;
    case ML_ROLE_SPARSE:
    case ML_ROLE_MINOR:
      attr->config = PERF_COUNT_SW_PAGE_FAULTS_MIN;
      attr->sample_type = where | PERF_SAMPLE_IP | page_size;
      if (role == ML_ROLE_SPARSE) attr->sample_period = ML_SPARSE_PERIOD;
      break;
    case ML_ROLE_MAJOR:
      attr->config = PERF_COUNT_SW_PAGE_FAULTS_MAJ;
      attr->sample_type = where | PERF_SAMPLE_IP | page_size;
      attr->mmap = attr->mmap2 = attr->mmap_data = 1;
      attr->comm = attr->comm_exec = attr->task = 1;
      break;
    default:
      attr->config = PERF_COUNT_SW_PAGE_FAULTS_MIN;
      attr->sample_period = UINT64_C(1) << ml_stack_shift[role - ML_ROLE_STACK_0];
      attr->sample_type = where | PERF_SAMPLE_IP | page_size;
      if (session->options.stack_mode == ML_STACKS_DWARF) {
        attr->sample_type |= PERF_SAMPLE_REGS_USER | PERF_SAMPLE_STACK_USER;
        attr->sample_regs_user = ml_unwind_registers();
        attr->sample_stack_user = session->options.stack_dump_bytes;
      } else {
        attr->sample_type |= PERF_SAMPLE_CALLCHAIN;
        break;
      }
      return;
  }
  if (session->facts.include_kernel && role != ML_ROLE_BEFORE) {
    /* A fault inside read() has a kernel IP; the user's is what a reader can act on. */
    attr->sample_type |= PERF_SAMPLE_REGS_USER;
    attr->sample_regs_user = ml_user_ip_register();
  }
}

void ml_decode_roles(struct ml_session *session) {
  for (int role = 0; role < ML_ROLE_COUNT; role++) {
    struct perf_event_attr attr;
    ml_describe_role(session, role, &attr);
    (void)mp_attr_read(&session->decoded[role], &attr, sizeof attr); /* never shorter than the first version */
  }
}

/* Finds out what this kernel and these privileges allow, on a throw-away event. */
static int settle_fallbacks(struct ml_session *session) {
  struct perf_event_attr attr;
  session->facts.include_kernel = session->options.include_kernel && ml_user_ip_register() != 0;
  session->facts.page_size_known = 1;
  session->facts.lost_readable = 1;
  for (;;) {
    ml_describe_role(session, ML_ROLE_MINOR, &attr);
    int fd = ml_perf_event_open(&attr, 0, -1, -1, 0);
    if (fd >= 0) {
      close(fd);
      return 0;
    }
    const int error = errno;
    if ((error == EACCES || error == EPERM) && session->facts.include_kernel) session->facts.include_kernel = 0;
    else if ((error == EINVAL || error == E2BIG) && session->facts.lost_readable) session->facts.lost_readable = 0;
    else if ((error == EINVAL || error == E2BIG) && session->facts.page_size_known) session->facts.page_size_known = 0;
    else {
      snprintf(session->failed_step, sizeof session->failed_step, "perf_event_open(page faults)");
      return -error;
    }
  }
}

static int online_cpus(uint32_t **cpus, size_t *count) {
  *cpus = NULL;
  *count = 0;
  FILE *file = fopen("/sys/devices/system/cpu/online", "re");
  char line[4096];
  if (file == NULL || fgets(line, sizeof line, file) == NULL) {
    if (file != NULL) fclose(file);
    return -ENOENT;
  }
  fclose(file);
  for (char *at = line; *at >= '0' && *at <= '9';) {
    unsigned long first = strtoul(at, &at, 10), last = first;
    if (*at == '-') last = strtoul(at + 1, &at, 10);
    for (unsigned long cpu = first; cpu <= last && cpu < 65536; cpu++) {
      uint32_t *grown = realloc(*cpus, (*count + 1) * sizeof **cpus);
      if (grown == NULL) return -ENOMEM;
      *cpus = grown;
      (*cpus)[(*count)++] = (uint32_t)cpu;
    }
    if (*at == ',') at++;
  }
  return *count > 0 ? 0 : -ENOENT;
}

/* One descriptor a CPU, task and role: the soft limit of 1,024 is soon reached.
 * The child was forked before, so its own limit stays as the user set it. */
static void raise_descriptor_limit(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
}

static int add_event(struct ml_session *session, int fd, int role, size_t ring) {
  if (session->event_count == session->event_capacity) {
    const size_t capacity = session->event_capacity ? 2 * session->event_capacity : 64;
    struct ml_event *grown = realloc(session->events, capacity * sizeof *grown);
    if (grown == NULL) return -ENOMEM;
    session->events = grown;
    session->event_capacity = capacity;
  }
  struct ml_event *event = &session->events[session->event_count];
  event->fd = fd;
  event->role = (uint8_t)role;
  event->ring = (uint32_t)ring;
  if (ioctl(fd, PERF_EVENT_IOC_ID, &event->id) != 0) return -errno;
  session->event_count++;
  return 0;
}

/* Opens one CPU's events: all but the stack ones, or the stack ones. */
static int open_on_cpu(struct ml_session *session, uint32_t cpu, pid_t pid, const pid_t *tids, size_t tid_count,
                       int enable_on_exec, bool stacks) {
  struct ml_ring *ring = &session->rings[session->ring_count];
  ring->cpu = cpu;
  ring->stacks = stacks;
  ring->fd = -1;
  static const int plain_roles[] = {ML_ROLE_MAJOR, ML_ROLE_MINOR, ML_ROLE_BEFORE, ML_ROLE_SPARSE};
  enum { PLAIN_ROLES = sizeof plain_roles / sizeof *plain_roles };
  static const int stack_roles[] = {ML_ROLE_STACK_0, ML_ROLE_STACK_1, ML_ROLE_STACK_2, ML_ROLE_STACK_3};
  for (size_t t = 0; t < tid_count; t++) {
    for (int step = 0; step < (stacks ? (int)ML_STACK_LEVELS : (int)PLAIN_ROLES); step++) {
      const int role = stacks ? stack_roles[step] : plain_roles[step];
      if (stacks && step < (int)ml_first_stack_level(session)) continue;
      if (role == ML_ROLE_BEFORE && !(session->options.fault_before && session->facts.page_size_known)) continue;
      if (role == ML_ROLE_SPARSE && session->options.budget_share <= 0) continue;
      struct perf_event_attr attr;
      ml_describe_role(session, role, &attr);
      attr.enable_on_exec = enable_on_exec && ml_is_enabled_first(session, role);
      attr.wakeup_watermark = 64 << 10; /* the drain thread also looks every 50 ms */
      const int fd = ml_perf_event_open(&attr, tids[t], (int)cpu, -1, 0);
      if (fd < 0) {
        if ((errno == ESRCH && tid_count > 1) || errno == ENODEV) break; /* the thread or CPU went away */
        const int error = errno;
        snprintf(session->failed_step, sizeof session->failed_step, "perf_event_open for process %d on CPU %u",
                 (int)pid, cpu);
        return -error;
      }
      const int status = add_event(session, fd, role, session->ring_count);
      if (status != 0) {
        close(fd);
        return status;
      }
      if (ring->fd < 0) ring->fd = fd;
    }
  }
  if (ring->fd >= 0) session->ring_count++;
  return 0;
}

int ml_open_events(struct ml_session *session, pid_t pid, const pid_t *tids, size_t tid_count, int enable_on_exec) {
  int status = settle_fallbacks(session);
  if (status != 0) return status;
  ml_decode_roles(session);
  if (session->plain_fault_ns == 0) session->plain_fault_ns = ml_plain_fault_ns();
  uint32_t *cpus = NULL;
  size_t cpu_count = 0;
  status = online_cpus(&cpus, &cpu_count);
  if (status != 0) {
    free(cpus);
    snprintf(session->failed_step, sizeof session->failed_step, "reading /sys/devices/system/cpu/online");
    return status;
  }
  raise_descriptor_limit();
  session->rings = calloc(2 * cpu_count, sizeof *session->rings);
  if (session->rings == NULL) status = -ENOMEM;
  for (size_t c = 0; status == 0 && c < cpu_count; c++) {
    status = open_on_cpu(session, cpus[c], pid, tids, tid_count, enable_on_exec, false);
    if (status == 0 && session->options.stack_mode != ML_STACKS_NONE)
      status = open_on_cpu(session, cpus[c], pid, tids, tid_count, enable_on_exec, true);
  }
  free(cpus);
  if (status == 0 && session->ring_count == 0) status = -ESRCH;
  if (status != 0) return status;
  session->facts.cpus = (uint32_t)cpu_count;
  session->facts.events = (uint32_t)session->event_count;

  size_t slots = 64;
  while (slots < 4 * session->event_count) slots *= 2;
  session->by_id = calloc(slots, sizeof *session->by_id);
  if (session->by_id == NULL) return -ENOMEM;
  session->by_id_mask = slots - 1;
  for (size_t i = 0; i < session->event_count; i++) {
    size_t at = session->events[i].id & session->by_id_mask;
    while (session->by_id[at].id != 0) at = (at + 1) & session->by_id_mask;
    session->by_id[at] = session->events[i];
  }
  return ml_map_rings(session);
}

int ml_role_of(const struct ml_session *session, uint64_t id) {
  if (session->by_id == NULL) return -1;
  for (size_t at = id & session->by_id_mask; session->by_id[at].id != 0; at = (at + 1) & session->by_id_mask)
    if (session->by_id[at].id == id) return session->by_id[at].role;
  return -1;
}

static int map_ring(struct ml_ring *ring, uint64_t data_bytes) {
  const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
  void *base = mmap(NULL, page + data_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd, 0);
  if (base == MAP_FAILED) return -errno;
  ring->meta = base;
  ring->data = (unsigned char *)base + page;
  ring->data_bytes = data_bytes;
  if (ring->unwrapped == NULL) ring->unwrapped = malloc(65536 + 8);
  return ring->unwrapped != NULL ? 0 : -ENOMEM;
}

static void unmap_rings(struct ml_session *session) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  for (size_t r = 0; r < session->ring_count; r++) {
    if (session->rings[r].meta != NULL) munmap(session->rings[r].meta, page + session->rings[r].data_bytes);
    session->rings[r].meta = NULL;
  }
}

/* Maps all rings with one size: as large as is useful, or else as large as the limit on locked
 * memory allows for all of them (512 KiB a CPU for a user without privilege and with no limit of
 * their own). Stack rings get a quarter, except with dumps of whole stacks. */
int ml_map_rings(struct ml_session *session) {
  const uint64_t smallest = 4 * (uint64_t)sysconf(_SC_PAGESIZE);
  uint64_t want = session->options.ring_bytes;
  if (want == 0) {
    want = UINT64_C(4) << 20;
    while (want > 256 << 10 && want * session->ring_count > 64 << 20) want /= 2;
  }
  while (want & (want - 1)) want &= want - 1; /* a power of two */
  for (;; want /= 2) {
    int status = 0;
    for (size_t r = 0; status == 0 && r < session->ring_count; r++) {
      struct ml_ring *ring = &session->rings[r];
      uint64_t bytes = ring->stacks && session->options.stack_mode != ML_STACKS_DWARF ? want / 4 : want;
      status = map_ring(ring, bytes < smallest ? smallest : bytes);
      if (status != 0)
        snprintf(session->failed_step, sizeof session->failed_step, "mapping the perf ring of CPU %u (%llu bytes)",
                 ring->cpu, (unsigned long long)bytes);
    }
    if (status == 0) break;
    unmap_rings(session);
    if ((status != -EPERM && status != -ENOMEM) || want <= smallest) return status;
  }
  session->facts.ring_bytes = want;
  for (size_t i = 0; i < session->event_count; i++) {
    const struct ml_ring *ring = &session->rings[session->events[i].ring];
    if (session->events[i].fd == ring->fd) continue;
    if (ioctl(session->events[i].fd, PERF_EVENT_IOC_SET_OUTPUT, ring->fd) != 0) {
      const int error = errno;
      snprintf(session->failed_step, sizeof session->failed_step, "PERF_EVENT_IOC_SET_OUTPUT on CPU %u", ring->cpu);
      return -error;
    }
  }
  return 0;
}

/* Reaches the inherited events of running threads and processes too. */
void ml_enable_role(struct ml_session *session, int role, bool on) {
  for (size_t i = 0; i < session->event_count; i++)
    if (session->events[i].role == role)
      ioctl(session->events[i].fd, on ? PERF_EVENT_IOC_ENABLE : PERF_EVENT_IOC_DISABLE, 0);
}

uint64_t ml_count_role(struct ml_session *session, int role) {
  uint64_t total = 0;
  for (size_t i = 0; i < session->event_count; i++) {
    uint64_t value_and_lost[2];
    const size_t wanted = session->facts.lost_readable ? 16 : 8;
    if (session->events[i].role == role && read(session->events[i].fd, value_and_lost, wanted) == (ssize_t)wanted)
      total += value_and_lost[0];
  }
  return total;
}

/* Samples do not say which level they are of: the rings are drained in between. */
void ml_set_stack_level(struct ml_session *session, unsigned level) {
  if (level == session->stack_level || session->options.stack_mode == ML_STACKS_NONE) return;
  ml_enable_role(session, ML_ROLE_STACK_0 + (int)session->stack_level, false);
  ml_drain_all(session);
  session->stack_level = level; /* only the drain thread looks at it */
  ml_enable_role(session, ML_ROLE_STACK_0 + (int)level, true);
}

/* The kernel tells of lost records with the next record that finds room. What was lost after the last one that did is only
 * in the events' own counts: a ring that stays full until the program ends loses most of its records so. */
void ml_read_event_losses(struct ml_session *session) {
  if (!session->facts.lost_readable) return;
  session->counts.event_lost = 0;
  const uint64_t now = ml_monotonic_ns();
  for (size_t r = 0; r < session->ring_count; r++) {
    struct ml_ring *ring = &session->rings[r];
    uint64_t lost = 0;
    for (size_t i = 0; i < session->event_count; i++) {
      uint64_t value_and_lost[2];
      if (session->events[i].ring == r &&
          read(session->events[i].fd, value_and_lost, sizeof value_and_lost) == (ssize_t)sizeof value_and_lost)
        lost += value_and_lost[1];
    }
    session->counts.event_lost += lost;
    if (lost <= ring->lost) continue;
    pthread_mutex_lock(&session->lock);
    session->counts.ring_lost += lost - ring->lost;
    ml_loss_add(session, ring->last_ns, now, lost - ring->lost, 0, ML_ENUM_loss_cause_RING_FULL, ring->cpu);
    pthread_mutex_unlock(&session->lock);
    ring->lost = lost;
  }
}

void ml_close_events(struct ml_session *session) {
  unmap_rings(session);
  for (size_t r = 0; r < session->ring_count; r++) free(session->rings[r].unwrapped);
  for (size_t i = 0; i < session->event_count; i++) close(session->events[i].fd);
  free(session->rings);
  free(session->events);
  free(session->by_id);
  session->rings = NULL;
  session->events = NULL;
  session->by_id = NULL;
  session->ring_count = session->event_count = 0;
}
