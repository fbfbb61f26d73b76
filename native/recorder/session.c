/* A session's life: create, attach, drain thread, stop. */
#include "internal.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define DRAIN_INTERVAL_NS UINT64_C(50000000)
#define ADAPT_INTERVAL_NS UINT64_C(100000000)
#define DUMPS_PER_SECOND 1000  /* the same at 2 to 3 us for a copy of the stack */
#define STACKS_PER_SECOND 2000 /* budget: about 0.2 % of a core at 1 us a stack */

uint64_t ml_monotonic_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

struct ml_session *ml_session_new(const struct ml_session_options *options) {
  struct ml_session *session = calloc(1, sizeof *session);
  if (session == NULL) return NULL;
  session->options = *options;
  session->stack_level = ml_first_stack_level(session);
  if (session->options.queue_bytes == 0) session->options.queue_bytes = UINT64_C(256) << 20;
  session->ready_last = &session->ready_first;
  session->strings = ml_intern_new();
  session->stacks = ml_intern_new();
  session->waiting = calloc(ML_WAITING_SLOTS, sizeof *session->waiting);
  session->pass = 2;
  session->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  pthread_mutex_init(&session->lock, NULL);
  session->ask_nodes = access("/sys/devices/system/node/node1", F_OK) == 0;
  if (session->strings == NULL || session->stacks == NULL || session->waiting == NULL || session->wake_fd < 0) {
    ml_session_free(session);
    return NULL;
  }
  return session;
}

void ml_session_free(struct ml_session *session) {
  if (session == NULL) return;
  ml_session_stop(session);
  ml_close_events(session);
  ml_batches_free(session->ready_first);
  for (size_t i = 0; i < session->process_count; i++) {
    struct ml_process *process = session->processes[i];
    for (int slot = 0; slot < ML_SLOT_COUNT; slot++) ml_batch_data_free(process->buffers[slot].data);
    if (process->statm_fd >= 0) close(process->statm_fd);
    if (process->stat_fd >= 0) close(process->stat_fd);
    free(process);
  }
  free(session->processes);
  free(session->by_pid);
  free(session->pending);
  free(session->questions);
  free(session->waiting);
  free(session->string_buffer.data);
  free(session->stack_buffer.data);
  free(session->loss_buffer.data);
  free(session->level_buffer.data);
  ml_intern_free(session->strings);
  ml_intern_free(session->stacks);
  if (session->wake_fd >= 0) close(session->wake_fd);
  pthread_mutex_destroy(&session->lock);
  free(session);
}

const char *ml_session_failed_step(const struct ml_session *session) { return session->failed_step; }

void ml_session_get_facts(struct ml_session *session, struct ml_session_facts *facts) { *facts = session->facts; }

void ml_session_get_counts(struct ml_session *session, struct ml_session_counts *counts) {
  pthread_mutex_lock(&session->lock);
  *counts = session->counts;
  counts->processes = session->process_count;
  pthread_mutex_unlock(&session->lock);
}

static size_t list_threads(pid_t pid, pid_t **tids) {
  char path[64];
  size_t count = 0;
  *tids = NULL;
  snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
  DIR *tasks = opendir(path);
  if (tasks == NULL) return 0;
  for (struct dirent *task; (task = readdir(tasks)) != NULL;) {
    const int tid = atoi(task->d_name);
    if (tid <= 0) continue;
    pid_t *grown = realloc(*tids, (count + 1) * sizeof **tids);
    if (grown == NULL) break;
    *tids = grown;
    (*tids)[count++] = tid;
  }
  closedir(tasks);
  return count;
}

int ml_session_attach(struct ml_session *session, pid_t pid, int enable_on_exec) {
  pid_t *tids = NULL;
  const size_t tid_count = list_threads(pid, &tids);
  if (tid_count == 0) {
    free(tids);
    snprintf(session->failed_step, sizeof session->failed_step, "reading /proc/%d/task", (int)pid);
    return -ESRCH;
  }
  int status = 0;
  if (session->options.faults) {
    status = ml_open_events(session, pid, tids, tid_count, enable_on_exec);
    if (status != 0) {
      const int error = status;
      ml_close_events(session);
      free(tids);
      return error;
    }
  }
  pthread_mutex_lock(&session->lock);
  const uint64_t now = ml_monotonic_ns();
  struct ml_process *process = ml_process_new(session, pid, 0, now);
  if (process == NULL) {
    status = -ENOMEM;
  } else {
    process->announced = true;
    for (size_t t = 0; t < tid_count; t++)
      ml_process_event_add(session, process, now,
                           tids[t] == pid
                               ? (enable_on_exec ? ML_ENUM_process_operation_FORK : ML_ENUM_process_operation_ATTACH)
                               : ML_ENUM_process_operation_SEEN,
                           (uint32_t)tids[t], NULL, 0, 0, -1, ML_ENUM_process_flags_ROOT);
    if (!enable_on_exec) ml_process_note_maps(session, process);
  }
  pthread_mutex_unlock(&session->lock);
  if (!enable_on_exec)
    for (size_t i = 0; i < session->event_count; i++)
      if (ml_is_enabled_first(session, session->events[i].role)) ioctl(session->events[i].fd, PERF_EVENT_IOC_ENABLE, 0);
  free(tids);
  return status;
}

/* Keeps the stacks a second within the budget. */
static void adapt_stacks(struct ml_session *session, uint64_t now_ns) {
  if (session->options.stack_mode == ML_STACKS_NONE || now_ns - session->adapt_ns < ADAPT_INTERVAL_NS) return;
  const uint64_t elapsed = now_ns - session->adapt_ns;
  /* Records of sampled faults stand for so many each. */
  const uint64_t faults =
      session->counts.faults - session->counts.stack_faults + session->counts.sampled_faults * (ML_SPARSE_PERIOD - 1);
  const double per_second = (double)(faults - session->adapt_faults) * 1e9 / (double)elapsed;
  session->adapt_ns = now_ns;
  session->adapt_faults = faults;
  double budget = session->options.stack_mode == ML_STACKS_DWARF ? DUMPS_PER_SECOND : STACKS_PER_SECOND;
  if (session->budget.share > 0 && session->budget.credit_ns < 0) budget /= 4;
  unsigned level = ml_first_stack_level(session);
  while (level + 1 < ML_STACK_LEVELS && per_second / (double)(1u << ml_stack_shift[level]) > budget) level++;
  ml_set_stack_level(session, level);
}

static void *drain_thread(void *argument) {
  struct ml_session *session = argument;
  struct pollfd *polled = calloc(session->ring_count + 1, sizeof *polled);
  if (polled == NULL) return NULL;
  for (size_t r = 0; r < session->ring_count; r++)
    polled[r] = (struct pollfd){.fd = session->rings[r].fd, .events = POLLIN};
  polled[session->ring_count] = (struct pollfd){.fd = session->wake_fd, .events = POLLIN};
  const uint64_t interval = session->options.timeline_hz > 0 ? (uint64_t)(1e9 / session->options.timeline_hz) : 0;
  /* The first interval is read ten times as often: short programs live in it. */
  unsigned early_ticks = interval >= 50000000 ? 10 : 0;
  uint64_t next_tick = ml_monotonic_ns(), next_drain = next_tick + DRAIN_INTERVAL_NS;
  session->adapt_ns = next_tick;
  ml_budget_begin(session, next_tick);
  while (!atomic_load(&session->stop)) {
    uint64_t now = ml_monotonic_ns();
    uint64_t until = next_drain;
    if (interval != 0 && next_tick < until) until = next_tick;
    if (until > now) {
      const struct timespec timeout = {.tv_sec = (time_t)((until - now) / 1000000000u),
                                       .tv_nsec = (long)((until - now) % 1000000000u)};
      ppoll(polled, session->ring_count + 1, &timeout, NULL);
    }
    for (size_t r = 0; r < session->ring_count; r++) /* all tasks of this CPU ended: POLLHUP for ever */
      if (polled[r].revents & POLLHUP) polled[r].fd = -1;
    now = ml_monotonic_ns();
    ml_drain_all(session);
    next_drain = now + DRAIN_INTERVAL_NS;
    if (interval != 0 && now >= next_tick) {
      pthread_mutex_lock(&session->lock);
      ml_timeline_tick(session, now);
      if (now > next_tick + interval) session->counts.timeline_late_ticks++;
      pthread_mutex_unlock(&session->lock);
      if (early_ticks > 0) early_ticks--;
      const uint64_t step = early_ticks > 0 ? interval / 10 : interval;
      while (next_tick <= now) next_tick += step;
    }
    ml_budget_keep(session, now);
    adapt_stacks(session, now);
  }
  struct timespec cpu;
  if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu) == 0) {
    pthread_mutex_lock(&session->lock);
    session->counts.drain_cpu_ns = (uint64_t)cpu.tv_sec * 1000000000u + (uint64_t)cpu.tv_nsec;
    pthread_mutex_unlock(&session->lock);
  }
  free(polled);
  return NULL;
}

int ml_session_start(struct ml_session *session) {
  /* Signals are the recorder's main thread's business. */
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  const int error = pthread_create(&session->thread, NULL, drain_thread, session);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  session->thread_runs = error == 0;
  if (error == 0 && session->channel != NULL) return ml_channel_start(session->channel, session);
  if (session->channel != NULL) ml_channel_stop(session->channel); /* nobody will read: the program must not wait */
  return -error;
}

int ml_session_stop(struct ml_session *session) {
  if (!session->thread_runs) return 0;
  for (size_t i = 0; i < session->event_count; i++) ioctl(session->events[i].fd, PERF_EVENT_IOC_DISABLE, 0);
  atomic_store(&session->stop, true);
  const uint64_t one = 1;
  if (write(session->wake_fd, &one, sizeof one) < 0) { /* the thread wakes by itself within 50 ms */
  }
  pthread_join(session->thread, NULL);
  session->thread_runs = false;
  ml_drain_all(session);
  ml_budget_end(session, ml_monotonic_ns());
  if (session->channel != NULL) ml_channel_stop(session->channel); /* after: perf tells which processes there are */
  ml_read_event_losses(session);
  return 0;
}

void ml_session_note_exit(struct ml_session *session, pid_t pid, int status) {
  pthread_mutex_lock(&session->lock);
  const uint64_t now = ml_monotonic_ns();
  for (size_t i = 0; i < session->process_count; i++) {
    struct ml_process *process = session->processes[i];
    if (process->info.pid != pid) continue;
    ml_process_event_add(session, process, now, ML_ENUM_process_operation_EXIT, (uint32_t)pid, NULL, 0, 0, status,
                         ML_ENUM_process_flags_ROOT);
    process->info.alive = 0;
    if (process->exit_ns == 0) process->exit_ns = now;
    break;
  }
  pthread_mutex_unlock(&session->lock);
}

size_t ml_session_processes(struct ml_session *session, struct ml_process_info *into, size_t capacity) {
  pthread_mutex_lock(&session->lock);
  size_t count = 0;
  for (size_t i = 0; i < session->process_count; i++) {
    if (!session->processes[i]->info.alive) continue;
    if (count < capacity) into[count] = session->processes[i]->info;
    count++;
  }
  pthread_mutex_unlock(&session->lock);
  return count;
}
