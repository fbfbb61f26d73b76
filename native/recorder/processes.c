/* The processes of the session: numbers that are not reused, parents, /proc facts.
 * All functions here run with the session locked. */
#include "internal.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static size_t pid_slot(const struct ml_session *session, pid_t pid) {
  size_t at = ((uint32_t)pid * 2654435761u) & session->by_pid_mask;
  while (session->by_pid[at] != 0 && session->processes[session->by_pid[at] - 1]->info.pid != pid)
    at = (at + 1) & session->by_pid_mask;
  return at;
}

struct ml_process *ml_process_new(struct ml_session *session, pid_t pid, uint32_t parent, uint64_t time_ns) {
  if (session->process_count == session->process_capacity) {
    const size_t capacity = session->process_capacity ? 2 * session->process_capacity : 64;
    struct ml_process **grown = realloc(session->processes, capacity * sizeof *grown);
    if (grown == NULL) return NULL;
    session->processes = grown;
    session->process_capacity = capacity;
  }
  if (session->by_pid == NULL || 2 * (session->process_count + 1) > session->by_pid_mask) {
    const size_t slots = session->by_pid ? 2 * (session->by_pid_mask + 1) : 256;
    uint32_t *grown = calloc(slots, sizeof *grown);
    if (grown == NULL) return NULL;
    free(session->by_pid);
    session->by_pid = grown;
    session->by_pid_mask = slots - 1;
    for (size_t i = 0; i < session->process_count; i++) /* in order: the newest of a pid wins */
      grown[pid_slot(session, session->processes[i]->info.pid)] = (uint32_t)i + 1;
  }
  struct ml_process *process = calloc(1, sizeof *process);
  if (process == NULL) return NULL;
  process->info = (struct ml_process_info){.process = (uint32_t)session->process_count + 1,
                                           .parent = parent,
                                           .pid = pid,
                                           .alive = 1};
  process->begin_ns = time_ns;
  process->statm_fd = process->stat_fd = -1;
  session->processes[session->process_count++] = process;
  session->by_pid[pid_slot(session, pid)] = (uint32_t)session->process_count;
  return process;
}

struct ml_process *ml_process_of(struct ml_session *session, pid_t pid, uint64_t time_ns) {
  if (session->by_pid != NULL) {
    const uint32_t index = session->by_pid[pid_slot(session, pid)];
    if (index != 0) {
      struct ml_process *process = session->processes[index - 1];
      /* Threads that outlive their leader end within moments; a record much later
       * means that the pid is in use again and its fork record is still to come. */
      if (process->exit_ns == 0 || time_ns < process->exit_ns + UINT64_C(1000000000)) return process;
    }
  }
  return ml_process_new(session, pid, 0, time_ns);
}

void ml_process_event_add(struct ml_session *session, struct ml_process *process, uint64_t time_ns, unsigned operation,
                          uint32_t tid, struct ml_process *parent, uint32_t parent_tid, uint32_t name, int status,
                          unsigned flags) {
  const struct ml_process_event record = {
      .time_ns = time_ns,
      .pid = (uint32_t)process->info.pid,
      .thread = tid,
      .parent_process = parent != NULL ? parent->info.process : 0,
      .parent_thread = parent_tid,
      .name = name,
      .status = status,
      .operation = (uint16_t)operation,
      .flags = (uint16_t)flags,
  };
  ml_buffer_append(session, process, ML_SLOT_PROCESS_EVENT, &record, sizeof record, time_ns);
}

/* Mapping records of what a running process has mapped already. */
void ml_process_note_maps(struct ml_session *session, struct ml_process *process) {
  if (session->options.emulated) return; /* these are the emulator's own; its plugin tells the guest's */
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/maps", (int)process->info.pid);
  FILE *file = fopen(path, "re");
  if (file == NULL) return;
  char *line = NULL;
  size_t capacity = 0;
  const uint64_t now = ml_monotonic_ns();
  while (getline(&line, &capacity, file) > 0) {
    unsigned long long begin, end, offset, inode;
    unsigned major, minor;
    char permissions[8];
    int name_at = 0;
    if (sscanf(line, "%llx-%llx %7s %llx %x:%x %llu %n", &begin, &end, permissions, &offset, &major, &minor, &inode,
               &name_at) < 7)
      continue;
    size_t name_bytes = name_at > 0 ? strcspn(line + name_at, "\n") : 0;
    const char *name = name_bytes > 0 ? line + name_at : "//anon";
    if (name_bytes == 0) name_bytes = strlen(name);
    const struct ml_mapping record = {
        .time_ns = now,
        .address = begin,
        .bytes = end - begin,
        .file_offset = inode != 0 ? offset : 0,
        .inode = inode,
        .device_major = major,
        .device_minor = minor,
        .path = ml_string_locked(session, name, name_bytes),
        .thread = (uint32_t)process->info.pid,
        .protection = (uint8_t)((permissions[0] == 'r') | (permissions[1] == 'w') << 1 | (permissions[2] == 'x') << 2),
        .shared = permissions[3] == 's',
        .operation = ML_ENUM_mapping_operation_FOUND,
    };
    ml_buffer_append(session, process, ML_SLOT_MAPPING, &record, sizeof record, now);
  }
  free(line);
  fclose(file);
}

static void poll_children_of(struct ml_session *session, struct ml_process *parent, uint64_t now_ns) {
  char path[96];
  snprintf(path, sizeof path, "/proc/%d/task", (int)parent->info.pid);
  DIR *tasks = opendir(path);
  if (tasks == NULL) {
    parent->info.alive = 0;
    parent->exit_ns = now_ns;
    ml_process_event_add(session, parent, now_ns, ML_ENUM_process_operation_EXIT, (uint32_t)parent->info.pid, NULL, 0,
                         0, -1, ML_ENUM_process_flags_POLLED);
    return;
  }
  for (struct dirent *task; (task = readdir(tasks)) != NULL;) {
    const int tid = atoi(task->d_name);
    if (tid <= 0) continue;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)parent->info.pid, tid);
    FILE *file = fopen(path, "re");
    if (file == NULL) continue;
    int pid;
    while (fscanf(file, "%d", &pid) == 1) {
      const uint32_t index = session->by_pid[pid_slot(session, pid)];
      if (index != 0 && session->processes[index - 1]->info.alive) continue;
      struct ml_process *child = ml_process_new(session, pid, parent->info.process, now_ns);
      if (child == NULL) continue;
      child->announced = true;
      char name[64] = "";
      char comm[64];
      snprintf(comm, sizeof comm, "/proc/%d/comm", pid);
      const int fd = open(comm, O_RDONLY | O_CLOEXEC);
      ssize_t length = fd >= 0 ? read(fd, name, sizeof name - 1) : 0;
      if (fd >= 0) close(fd);
      if (length > 0 && name[length - 1] == '\n') length--;
      ml_process_event_add(session, child, now_ns, ML_ENUM_process_operation_FORK, (uint32_t)pid, parent, (uint32_t)tid,
                           0, -1, ML_ENUM_process_flags_POLLED);
      if (length > 0)
        ml_process_event_add(session, child, now_ns, ML_ENUM_process_operation_NAME, (uint32_t)pid, NULL, 0,
                             ml_string_locked(session, name, (size_t)length), -1, ML_ENUM_process_flags_POLLED);
      ml_process_note_maps(session, child);
    }
    fclose(file);
  }
  closedir(tasks);
}

/* Without perf records the tree is found by looking: processes that live shorter
 * than the interval are missed, and the quality says so. */
void ml_processes_poll_children(struct ml_session *session, uint64_t now_ns) {
  for (size_t i = 0; i < session->process_count; i++) /* grows while we walk: grandchildren too */
    if (session->processes[i]->info.alive) poll_children_of(session, session->processes[i], now_ns);
}
