/* From kernel ring records (decoded by native/perf) to memlens records. Runs with the session locked. */
#include "internal.h"
#include "memlens_perf.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint8_t shift_of(uint64_t page_bytes) { return page_bytes == 0 ? 0 : (uint8_t)__builtin_ctzll(page_bytes); }

static struct ml_pending *pending_of(struct ml_session *session, uint32_t tid) {
  if (2 * session->pending_used >= session->pending_mask) {
    const size_t slots = session->pending_mask ? 2 * (session->pending_mask + 1) : 1024;
    struct ml_pending *grown = calloc(slots, sizeof *grown);
    if (grown == NULL) return NULL;
    for (size_t i = 0; session->pending_mask && i <= session->pending_mask; i++) {
      if (session->pending[i].tid == 0) continue;
      size_t at = (session->pending[i].tid * 2654435761u) & (slots - 1);
      while (grown[at].tid != 0) at = (at + 1) & (slots - 1);
      grown[at] = session->pending[i];
    }
    free(session->pending);
    session->pending = grown;
    session->pending_mask = slots - 1;
  }
  size_t at = (tid * 2654435761u) & session->pending_mask;
  while (session->pending[at].tid != 0 && session->pending[at].tid != tid) at = (at + 1) & session->pending_mask;
  if (session->pending[at].tid == 0) {
    session->pending[at].tid = tid;
    session->pending_used++;
  }
  return &session->pending[at];
}

static void ask_node_later(struct ml_session *session, const struct ml_process *process, const struct ml_fault *fault) {
  if (session->ask_nodes) ml_question_add(session, process->info.process, fault->address, fault->time_ns);
}

static size_t waiting_slot(uint32_t tid, uint64_t address) {
  return (size_t)(((address >> 3) * UINT64_C(0x9E3779B97F4A7C15) + tid * UINT64_C(0xC2B2AE3D27D4EB4F)) >> 50);
}
_Static_assert(ML_WAITING_SLOTS == 1 << 14, "waiting_slot keeps 14 bits");

static void take_waiting_stack(struct ml_session *session, struct ml_fault *fault) {
  const size_t slot = waiting_slot(fault->thread, fault->address);
  for (size_t probe = 0; probe < ML_WAITING_PROBES; probe++) {
    struct ml_waiting_stack *waiting = &session->waiting[(slot + probe) % ML_WAITING_SLOTS];
    if (waiting->stack == 0 || waiting->address != fault->address || waiting->tid != fault->thread ||
        waiting->pass + 1 < session->pass)
      continue;
    fault->stack = waiting->stack;
    fault->stack_weight_shift = waiting->weight_shift;
    waiting->stack = 0;
    session->counts.stacks++;
    session->counts.stacks_unmatched--;
    return;
  }
}

static void keep_waiting_stack(struct ml_session *session, uint32_t tid, uint64_t address, uint32_t stack,
                               uint8_t weight_shift) {
  session->counts.stacks_unmatched++; /* until its fault is seen */
  const size_t slot = waiting_slot(tid, address);
  for (size_t probe = 0; probe < ML_WAITING_PROBES; probe++) {
    struct ml_waiting_stack *waiting = &session->waiting[(slot + probe) % ML_WAITING_SLOTS];
    if (waiting->stack != 0 && waiting->pass + 1 >= session->pass) continue;
    *waiting = (struct ml_waiting_stack){.address = address,
                                         .tid = tid,
                                         .stack = stack,
                                         .pass = session->pass,
                                         .weight_shift = weight_shift};
    return;
  }
}

_Static_assert(sizeof(struct ml_fault) == sizeof(struct ml_sampled_fault) &&
                   offsetof(struct ml_fault, reserved) == offsetof(struct ml_sampled_fault, period),
               "a sampled fault is a fault with its period in the reserved byte");

/* `period`: one fault in so many was recorded, 0 = recorded for its stack alone; the fault's is -1: each was. */
#define EVERY_FAULT (-1)
static void take_fault(struct ml_session *session, struct ml_process *process, struct ml_pending *pending,
                       struct ml_fault *fault, int period) {
  if (pending->has_before && pending->address == fault->address) {
    fault->before_shift = pending->before_shift;
  } else {
    fault->before_shift = ML_NOT_OBSERVED;
    if (session->options.fault_before && session->budget.level == ML_ENUM_fault_level_kind_BOTH &&
        period == EVERY_FAULT)
      session->counts.unpaired++;
  }
  pending->has_before = false;
  if (session->options.stack_mode != ML_STACKS_NONE && fault->stack == 0) take_waiting_stack(session, fault);
  const enum ml_slot slot = period == EVERY_FAULT ? ML_SLOT_FAULT : ML_SLOT_SAMPLED_FAULT;
  if (period != EVERY_FAULT) fault->reserved = (uint8_t)period;
  if (period == 0) session->counts.stack_faults++;
  else if (period > 1) session->counts.sampled_faults++;
  struct ml_buffer *buffer = &process->buffers[slot];
  ml_buffer_append(session, process, slot, fault, sizeof *fault, fault->time_ns);
  pending->last_process = process;
  pending->last_is_sampled = period != EVERY_FAULT;
  pending->last_ns = fault->time_ns;
  pending->last_generation = session->take_generation;
  pending->last_offset = buffer->bytes >= sizeof *fault ? buffer->bytes - sizeof *fault : 0;
  pending->last_address = fault->address;
  session->counts.faults++;
  process->info.fault_events += period == EVERY_FAULT ? 1 : (uint64_t)period; /* for those that it stands for */
  ask_node_later(session, process, fault);
}

/* The thread's last record, while it lies in its buffer. */
static struct ml_fault *last_fault(struct ml_session *session, struct ml_pending *pending, uint64_t address) {
  if (pending->last_process == NULL || pending->last_address != address ||
      pending->last_generation != session->take_generation)
    return NULL;
  struct ml_buffer *buffer =
      &pending->last_process->buffers[pending->last_is_sampled ? ML_SLOT_SAMPLED_FAULT : ML_SLOT_FAULT];
  if (pending->last_offset + sizeof(struct ml_fault) > buffer->bytes) return NULL;
  struct ml_fault *fault = (struct ml_fault *)(void *)(buffer->data + pending->last_offset);
  return fault->address == address && fault->thread == pending->tid ? fault : NULL;
}

/* While levels change, one fault may raise the plain and the sparse event. Both samples have the same moment. */
static bool is_second_sample(struct ml_session *session, struct ml_pending *pending, uint64_t time_ns,
                             uint64_t address) {
  if (pending->last_process == NULL || pending->last_ns != time_ns || pending->last_address != address) return false;
  struct ml_fault *fault = last_fault(session, pending, address);
  if (fault != NULL && pending->last_is_sampled && fault->reserved > 1) {
    fault->reserved = 1;
    session->counts.sampled_faults--;
  }
  return true;
}

/* A stack sample of the same fault may come before or after the plain one. */
static void take_stack(struct ml_session *session, struct ml_pending *pending, uint64_t address, uint32_t stack,
                       uint8_t weight_shift) {
  struct ml_fault *fault = last_fault(session, pending, address);
  if (fault != NULL && fault->stack == 0) {
    fault->stack = stack;
    fault->stack_weight_shift = weight_shift;
    session->counts.stacks++;
    return;
  }
  keep_waiting_stack(session, pending->tid, address, stack, weight_shift);
}

static uint32_t intern_stack(struct ml_session *session, const struct ml_process *process, const uint64_t *ips,
                             uint64_t count) {
  uint64_t key[1 + 256];
  size_t depth = 0;
  bool truncated = false;
  for (uint64_t i = 0; i < count; i++) {
    if (ips[i] >= PERF_CONTEXT_MAX) continue; /* context markers, not addresses */
    if (depth == 256) {
      truncated = true;
      break;
    }
    key[1 + depth++] = ips[i];
  }
  if (depth == 0) return 0;
  key[0] = process->info.process;
  int is_new = 0;
  const uint32_t id = ml_intern_bytes(session->stacks, key, (1 + depth) * sizeof *key, &is_new);
  if (is_new) {
    const size_t tail = depth * sizeof *key;
    struct ml_stack *record = ml_buffer_reserve(session, &session->stack_buffer, sizeof *record + tail, 0);
    if (record == NULL) return 0;
    *record = (struct ml_stack){.id = id,
                                .tail_bytes = (uint32_t)tail,
                                .unwinder = ML_ENUM_unwinder_FP,
                                .truncated = truncated,
                                .process = process->info.process};
    memcpy(record + 1, key + 1, tail);
  }
  return id;
}

static uint32_t dump_stack(struct ml_session *session, struct ml_process *process, const struct mp_sample *sample) {
  if (sample->user_abi == 0 || sample->user_stack == NULL) return 0; /* a kernel thread or an exiting task */
  const uint64_t mask = ml_unwind_registers();
  const size_t registers = sample->user_register_count;
  const size_t used = (size_t)sample->user_stack_bytes;
  const size_t tail = 8 * registers + used;
  unsigned char *record_bytes = malloc(sizeof(struct ml_stack_dump) + tail + 8);
  if (record_bytes == NULL) return 0;
  uint64_t stack_pointer = 0;
#if defined(__x86_64__)
  (void)mp_register(mask, sample->user_registers, UINT64_C(1) << 7, &stack_pointer);
  const uint16_t machine = 62;
#elif defined(__aarch64__)
  (void)mp_register(mask, sample->user_registers, UINT64_C(1) << 31, &stack_pointer);
  const uint16_t machine = 183;
#else
  const uint16_t machine = 0;
#endif
  /* Dumps share the number space of interned stacks, from the far end. */
  const uint32_t id = UINT32_MAX - session->next_dump_id++;
  *(struct ml_stack_dump *)(void *)record_bytes = (struct ml_stack_dump){.time_ns = sample->time_ns,
                                                                         .register_mask = mask,
                                                                         .stack_pointer = stack_pointer,
                                                                         .id = id,
                                                                         .tail_bytes = (uint32_t)tail,
                                                                         .register_count = (uint32_t)registers,
                                                                         .thread = sample->tid,
                                                                         .machine = machine,
                                                                         .abi = (uint16_t)sample->user_abi};
  unsigned char *body = record_bytes + sizeof(struct ml_stack_dump);
  memcpy(body, sample->user_registers, 8 * registers);
  memcpy(body + 8 * registers, sample->user_stack, used);
  const size_t padding = (8 - tail % 8) % 8;
  memset(body + tail, 0, padding);
  ml_buffer_append(session, process, ML_SLOT_STACK_DUMP, record_bytes, sizeof(struct ml_stack_dump) + tail + padding,
                   sample->time_ns);
  free(record_bytes);
  return id;
}

/* The role of the event that a sample is of; -1: no event of ours. */
static int role_of_sample(struct ml_session *session, const struct ml_ring *ring, const unsigned char *body,
                          size_t bytes) {
  if (bytes < 8) return -1;
  const int role = ml_role_of(session, mp_u64(body, 0)); /* PERF_SAMPLE_IDENTIFIER comes first */
  if (role < 0) {
    session->counts.unknown_records++;
    return -1;
  }
  /* The id may be that of another event of the same fault (see perf_events.c). */
  if (ring->stacks) return ML_ROLE_STACK_0 + (int)session->stack_level;
  return role >= ML_ROLE_STACK_0 ? ML_ROLE_MINOR : role;
}

static uint32_t stack_of_sample(struct ml_session *session, struct ml_process *process,
                                const struct mp_sample *sample) {
  if (session->options.stack_mode == ML_STACKS_DWARF) return dump_stack(session, process, sample);
  return intern_stack(session, process, (const uint64_t *)(const void *)sample->callchain, sample->callchain_count);
}

static void take_sample(struct ml_session *session, struct ml_ring *ring, const struct mp_header *header,
                        const unsigned char *body, size_t bytes) {
  const int role = role_of_sample(session, ring, body, bytes);
  struct mp_sample sample;
  if (role < 0 || !mp_sample_read(&session->decoded[role], body, bytes, &sample)) return;
  ring->last_ns = sample.time_ns;
  if (sample.pid == 0 || sample.pid == MP_NOBODY) return; /* a task that is already gone */
  struct ml_pending *pending = pending_of(session, sample.tid);
  struct ml_process *process = ml_process_of(session, (pid_t)sample.pid, sample.time_ns);
  if (pending == NULL || process == NULL) return;

  const bool has_stack = role >= ML_ROLE_STACK_0;
  const uint8_t weight_shift = has_stack ? (uint8_t)ml_stack_shift[role - ML_ROLE_STACK_0] : 0;
  uint32_t stack = 0;
  if (has_stack) {
    stack = stack_of_sample(session, process, &sample);
    if (stack == 0) return;
    if (session->budget.level != ML_ENUM_fault_level_kind_SAMPLED) {
      take_stack(session, pending, sample.address, stack, weight_shift);
      return;
    }
  }
  const bool in_kernel = (header->misc & MP_MISC_CPUMODE) == MP_MISC_KERNEL;
  uint64_t ip = sample.ip, user_ip = 0;
  if (in_kernel &&
      mp_register(session->decoded[role].sample_regs_user, sample.user_registers, ml_user_ip_register(), &user_ip) &&
      user_ip != 0)
    ip = user_ip;
  const uint8_t page_shift = session->facts.page_size_known ? shift_of(sample.data_page_bytes) : ML_NOT_OBSERVED;
  if (role == ML_ROLE_BEFORE) {
    pending->has_before = true;
    pending->address = sample.address;
    pending->before_shift = shift_of(sample.data_page_bytes);
    return;
  }
  if (!has_stack && is_second_sample(session, pending, sample.time_ns, sample.address)) return;
  struct ml_fault fault = {
      .time_ns = sample.time_ns,
      .address = sample.address,
      .ip = ip,
      .thread = sample.tid,
      .cpu = (uint16_t)ring->cpu,
      .flags = (uint16_t)((role == ML_ROLE_MAJOR ? ML_ENUM_fault_flags_MAJOR : 0) |
                          (in_kernel ? ML_ENUM_fault_flags_KERNEL_MODE : 0)),
      .after_shift = page_shift,
  };
  if (has_stack) { /* faults are sampled: its own may not be */
    struct ml_pending nothing = {.tid = sample.tid};
    fault.stack = stack;
    fault.stack_weight_shift = weight_shift;
    session->counts.stacks++;
    take_fault(session, process, &nothing, &fault, 0);
    return;
  }
  take_fault(session, process, pending, &fault, role == ML_ROLE_SPARSE ? ML_SPARSE_PERIOD : EVERY_FAULT);
}

static void take_mapping(struct ml_session *session, const struct mp_header *header, const struct mp_mapping *map,
                         uint64_t time_ns) {
  if ((int32_t)map->pid <= 0) return;
  struct ml_process *process = ml_process_of(session, (pid_t)map->pid, time_ns);
  if (process == NULL) return;
  if (header->misc & MP_MISC_MMAP_DATA) process->info.mappings_changed++;
  struct ml_mapping record = {
      .time_ns = time_ns,
      .address = map->address,
      .bytes = map->bytes,
      .file_offset = map->inode != 0 ? map->file_offset : 0,
      .inode = map->inode,
      .device_major = map->device_major,
      .device_minor = map->device_minor,
      .path = ml_string_locked(session, map->path, map->path_bytes),
      .thread = map->tid,
      .protection = (uint8_t)(map->protection & 7),
      .shared = (map->flags & 1) != 0, /* MAP_SHARED */
      .operation = ML_ENUM_mapping_operation_MAP,
      .map_flags = map->flags,
  };
  ml_buffer_append(session, process, ML_SLOT_MAPPING, &record, sizeof record, record.time_ns);
}

static void take_fork(struct ml_session *session, const struct mp_task *task) {
  if (task->pid == task->parent_pid) {
    struct ml_process *process = ml_process_of(session, (pid_t)task->pid, task->time_ns);
    if (process != NULL)
      ml_process_event_add(session, process, task->time_ns, ML_ENUM_process_operation_THREAD, task->tid, process,
                           task->parent_tid, 0, -1, 0);
    return;
  }
  struct ml_process *parent = ml_process_of(session, (pid_t)task->parent_pid, task->time_ns);
  struct ml_process *child = ml_process_of(session, (pid_t)task->pid, task->time_ns);
  if (child == NULL || parent == NULL) return;
  if (child->announced) { /* the pid was used before in this capture */
    child = ml_process_new(session, (pid_t)task->pid, parent->info.process, task->time_ns);
    if (child == NULL) return;
  }
  child->info.parent = parent->info.process;
  child->begin_ns = task->time_ns;
  child->announced = true;
  ml_process_event_add(session, child, task->time_ns, ML_ENUM_process_operation_FORK, task->tid, parent,
                       task->parent_tid, 0, -1, 0);
}

static void take_exit(struct ml_session *session, const struct mp_task *task) {
  struct ml_process *process = ml_process_of(session, (pid_t)task->pid, task->time_ns);
  if (process == NULL) return;
  struct ml_pending *pending = pending_of(session, task->tid);
  if (pending != NULL) {
    pending->has_before = false;
    pending->last_process = NULL;
  }
  /* The record of the last thread's exit is the process's: the kernel gives both
   * pids of a thread, and the leader may exit before its threads, so the exit of a
   * process is its leader's unless a later thread exit moves it. */
  const bool leader = task->pid == task->tid;
  ml_process_event_add(session, process, task->time_ns,
                       leader ? ML_ENUM_process_operation_EXIT : ML_ENUM_process_operation_THREAD_EXIT, task->tid, NULL,
                       0, 0, -1, 0);
  if (leader) {
    process->info.alive = 0;
    process->exit_ns = task->time_ns;
  }
}

static void take_comm(struct ml_session *session, const struct mp_header *header, const struct mp_comm *comm,
                      uint64_t time_ns) {
  struct ml_process *process = ml_process_of(session, (pid_t)comm->pid, time_ns);
  if (process == NULL) return;
  const bool exec = (header->misc & MP_MISC_COMM_EXEC) != 0;
  if (exec) process->info.execs++;
  const uint32_t text = ml_string_locked(session, comm->name, comm->name_bytes);
  ml_process_event_add(session, process, time_ns,
                       exec ? ML_ENUM_process_operation_EXEC : ML_ENUM_process_operation_NAME, comm->tid, NULL, 0, text,
                       -1, 0);
}

static void take_record(struct ml_session *session, struct ml_ring *ring, const struct mp_header *header) {
  const unsigned char *body = (const unsigned char *)(header + 1);
  const size_t bytes = header->size - sizeof *header;
  if (header->type == MP_RECORD_SAMPLE) {
    take_sample(session, ring, header, body, bytes);
    return;
  }
  /* All events have one layout behind such records; those of the major faults' event are the ones that carry them. */
  struct mp_identity who;
  size_t own;
  if (!mp_identity_read(&session->decoded[ML_ROLE_MAJOR], body, bytes, &who, &own)) return;
  union {
    struct mp_mapping mapping;
    struct mp_task task;
    struct mp_comm comm;
    struct mp_lost lost;
  } record;
  switch (header->type) {
    case MP_RECORD_MMAP2:
      if (mp_mapping_read(header, body, own, &record.mapping))
        take_mapping(session, header, &record.mapping, who.time_ns);
      break;
    case MP_RECORD_FORK:
      if (mp_task_read(body, own, &record.task)) take_fork(session, &record.task);
      break;
    case MP_RECORD_EXIT:
      if (mp_task_read(body, own, &record.task)) take_exit(session, &record.task);
      break;
    case MP_RECORD_COMM:
      if (mp_comm_read(body, own, &record.comm)) take_comm(session, header, &record.comm, who.time_ns);
      break;
    case MP_RECORD_LOST:
      if (!mp_lost_read(header, body, own, &record.lost)) break;
      session->counts.ring_lost += record.lost.lost;
      ring->lost += record.lost.lost;
      ml_loss_add(session, ring->last_ns, who.time_ns, record.lost.lost, 0, ML_ENUM_loss_cause_RING_FULL, ring->cpu);
      break;
    case MP_RECORD_THROTTLE: session->counts.throttled++; break;
    case MP_RECORD_UNTHROTTLE: break;
    default: session->counts.unknown_records++; break;
  }
  if (who.time_ns > ring->last_ns) ring->last_ns = who.time_ns;
}

static void drain_ring(struct ml_session *session, struct ml_ring *ring) {
  if (ring->meta == NULL) return;
  const uint64_t mask = ring->data_bytes - 1;
  const uint64_t head = __atomic_load_n(&ring->meta->data_head, __ATOMIC_ACQUIRE);
  uint64_t tail = ring->meta->data_tail; /* only we write it */
  uint64_t published = tail;
  while (tail < head) {
    const struct mp_header *header = (const void *)(ring->data + (tail & mask));
    const size_t bytes = header->size; /* records are 8-aligned: the header never wraps */
    /* Cannot happen; do not spin on it, nor read beyond what was written. */
    if (bytes < sizeof *header || bytes % 8 != 0 || bytes > head - tail) {
      tail = head;
      break;
    }
    if ((tail & mask) + bytes > ring->data_bytes) {
      const size_t first = (size_t)(ring->data_bytes - (tail & mask));
      memcpy(ring->unwrapped, header, first);
      memcpy(ring->unwrapped + first, ring->data, bytes - first);
      header = (const void *)ring->unwrapped;
    }
    take_record(session, ring, header);
    tail += bytes;
    if (tail - published >= ring->data_bytes / 8) { /* give room back early in a storm */
      __atomic_store_n(&ring->meta->data_tail, tail, __ATOMIC_RELEASE);
      published = tail;
    }
  }
  __atomic_store_n(&ring->meta->data_tail, tail, __ATOMIC_RELEASE);
}

void ml_drain_all(struct ml_session *session) {
  pthread_mutex_lock(&session->lock);
  session->pass++;
  for (int stacks = 1; stacks >= 0; stacks--)
    for (size_t r = 0; r < session->ring_count; r++)
      if (session->rings[r].stacks == (stacks == 1)) drain_ring(session, &session->rings[r]);
  pthread_mutex_unlock(&session->lock);
}
