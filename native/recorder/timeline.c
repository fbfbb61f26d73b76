/* RSS, faults and CPU time of every process from /proc, at the timeline's rate. */
#include "internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KEPT_DESCRIPTORS 256 /* processes whose /proc files stay open between ticks */

static ssize_t read_proc(pid_t pid, const char *name, int *kept_fd, bool keep, char *into, size_t capacity) {
  int fd = *kept_fd;
  if (fd < 0) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
  }
  const ssize_t length = pread(fd, into, capacity - 1, 0);
  if (keep && length > 0) {
    *kept_fd = fd;
  } else {
    close(fd);
    *kept_fd = -1;
  }
  if (length > 0) into[length] = '\0';
  return length;
}

static void add(struct ml_session *session, struct ml_process *process, uint64_t now_ns, uint32_t interval_us,
                unsigned metric, int64_t value, uint64_t cost_ns) {
  const struct ml_timeline record = {.time_ns = now_ns,
                                     .value = value,
                                     .metric = (uint16_t)metric,
                                     .node = -1,
                                     .interval_us = interval_us,
                                     .cost_us = (uint32_t)(cost_ns / 1000)};
  ml_buffer_append(session, process, ML_SLOT_TIMELINE, &record, sizeof record, now_ns);
}

static void tick_process(struct ml_session *session, struct ml_process *process, bool keep) {
  char text[1024];
  static long page_bytes, ticks_per_second;
  if (page_bytes == 0) {
    page_bytes = sysconf(_SC_PAGESIZE);
    ticks_per_second = sysconf(_SC_CLK_TCK);
  }
  const uint64_t begin = ml_monotonic_ns();
  unsigned long long virtual_pages, resident_pages, shared_pages;
  if (read_proc(process->info.pid, "statm", &process->statm_fd, keep, text, sizeof text) <= 0 ||
      sscanf(text, "%llu %llu %llu", &virtual_pages, &resident_pages, &shared_pages) != 3)
    return;
  if (virtual_pages == 0) return; /* a zombie: its memory is gone */
  if (read_proc(process->info.pid, "stat", &process->stat_fd, keep, text, sizeof text) <= 0) return;
  const char *at = strrchr(text, ')'); /* the name may hold anything */
  char state;
  unsigned long long minor, major, user, system;
  long threads;
  if (at == NULL || sscanf(at + 1, " %c %*d %*d %*d %*d %*d %*u %llu %*u %llu %*u %llu %llu %*d %*d %*d %*d %ld",
                           &state, &minor, &major, &user, &system, &threads) != 6)
    return;
  const uint64_t now = ml_monotonic_ns();
  const uint64_t cost = now - begin;
  const uint32_t interval_us = process->last_tick_ns ? (uint32_t)((now - process->last_tick_ns) / 1000) : 0;
  process->last_tick_ns = now;
  process->info.kernel_faults = minor + major;
  const int64_t ns_per_tick = 1000000000 / ticks_per_second;
  add(session, process, now, interval_us, ML_ENUM_metric_RSS_BYTES, (int64_t)resident_pages * page_bytes, cost);
  add(session, process, now, interval_us, ML_ENUM_metric_SHARED_BYTES, (int64_t)shared_pages * page_bytes, 0);
  add(session, process, now, interval_us, ML_ENUM_metric_VIRTUAL_BYTES, (int64_t)virtual_pages * page_bytes, 0);
  add(session, process, now, interval_us, ML_ENUM_metric_MINOR_FAULTS, (int64_t)minor, 0);
  add(session, process, now, interval_us, ML_ENUM_metric_MAJOR_FAULTS, (int64_t)major, 0);
  add(session, process, now, interval_us, ML_ENUM_metric_USER_CPU_NS, (int64_t)user * ns_per_tick, 0);
  add(session, process, now, interval_us, ML_ENUM_metric_SYSTEM_CPU_NS, (int64_t)system * ns_per_tick, 0);
  add(session, process, now, interval_us, ML_ENUM_metric_THREADS, threads, 0);
}

void ml_timeline_tick(struct ml_session *session, uint64_t now_ns) {
  if (!session->options.faults) ml_processes_poll_children(session, now_ns);
  for (size_t i = 0; i < session->process_count; i++) {
    struct ml_process *process = session->processes[i];
    if (process->info.alive) {
      tick_process(session, process, i < KEPT_DESCRIPTORS);
    } else if (process->statm_fd >= 0 || process->stat_fd >= 0) {
      if (process->statm_fd >= 0) close(process->statm_fd);
      if (process->stat_fd >= 0) close(process->stat_fd);
      process->statm_fd = process->stat_fd = -1;
    }
  }
  session->counts.timeline_ticks++;
}
