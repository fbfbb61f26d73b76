/* From kernel ring records to memlens records. Runs with the session locked. */
#include "internal.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint8_t shift_of(uint64_t page_bytes) {
  return page_bytes == 0 ? 0 : (uint8_t)__builtin_ctzll(page_bytes);
}

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
    *waiting = (struct ml_waiting_stack){
        .address = address, .tid = tid, .stack = stack, .pass = session->pass, .weight_shift = weight_shift};
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
    if (session->options.fault_before && session->budget.level == ML_ENUM_fault_level_kind_BOTH && period == EVERY_FAULT)
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
static bool is_second_sample(struct ml_session *session, struct ml_pending *pending, uint64_t time_ns, uint64_t address) {
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

static uint32_t dump_stack(struct ml_session *session, struct ml_process *process, uint32_t tid, uint64_t time_ns,
                           const unsigned char *at, const unsigned char *end) {
  uint64_t abi, stack_bytes, used;
  if (end - at < 8) return 0;
  memcpy(&abi, at, 8);
  at += 8;
  if (abi == 0) return 0; /* no user registers: a kernel thread or an exiting task */
  const uint64_t mask = ml_unwind_registers();
  const size_t registers = (size_t)__builtin_popcountll(mask);
  if ((size_t)(end - at) < 8 * registers + 8) return 0;
  const unsigned char *values = at;
  at += 8 * registers;
  memcpy(&stack_bytes, at, 8);
  at += 8;
  if (stack_bytes == 0 || (uint64_t)(end - at) < stack_bytes + 8) return 0;
  memcpy(&used, at + stack_bytes, 8);
  if (used > stack_bytes) used = stack_bytes;
  const size_t tail = 8 * registers + (size_t)used;
  unsigned char *record_bytes = malloc(sizeof(struct ml_stack_dump) + tail + 8);
  if (record_bytes == NULL) return 0;
  uint64_t stack_pointer = 0;
#if defined(__x86_64__)
  memcpy(&stack_pointer, values + 8 * 7, 8);
  const uint16_t machine = 62;
#elif defined(__aarch64__)
  memcpy(&stack_pointer, values + 8 * 31, 8);
  const uint16_t machine = 183;
#else
  const uint16_t machine = 0;
#endif
  /* Dumps share the number space of interned stacks, from the far end. */
  const uint32_t id = UINT32_MAX - session->next_dump_id++;
  *(struct ml_stack_dump *)(void *)record_bytes = (struct ml_stack_dump){.time_ns = time_ns,
                                                                         .register_mask = mask,
                                                                         .stack_pointer = stack_pointer,
                                                                         .id = id,
                                                                         .tail_bytes = (uint32_t)tail,
                                                                         .register_count = (uint32_t)registers,
                                                                         .thread = tid,
                                                                         .machine = machine,
                                                                         .abi = (uint16_t)abi};
  unsigned char *body = record_bytes + sizeof(struct ml_stack_dump);
  memcpy(body, values, 8 * registers);
  memcpy(body + 8 * registers, at, (size_t)used);
  const size_t padding = (8 - tail % 8) % 8;
  memset(body + tail, 0, padding);
  ml_buffer_append(session, process, ML_SLOT_STACK_DUMP, record_bytes, sizeof(struct ml_stack_dump) + tail + padding,
                   time_ns);
  free(record_bytes);
  return id;
}

/* Where the copy of a stack ends in a sample; NULL: it is cut. */
static const unsigned char *after_dump(const unsigned char *at, const unsigned char *end, uint64_t *user_ip) {
  const uint64_t mask = ml_unwind_registers();
  const size_t registers = (size_t)__builtin_popcountll(mask);
  uint64_t abi, stack_bytes;
  if (end - at < 8) return NULL;
  memcpy(&abi, at, 8);
  at += 8;
  if (abi != 0) {
    if ((size_t)(end - at) < 8 * registers) return NULL;
    memcpy(user_ip, at + 8 * __builtin_popcountll(mask & (ml_user_ip_register() - 1)), 8);
    at += 8 * registers;
  }
  if (end - at < 8) return NULL;
  memcpy(&stack_bytes, at, 8);
  at += 8;
  if (stack_bytes == 0) return at;
  return (uint64_t)(end - at) >= stack_bytes + 8 && stack_bytes < UINT32_MAX ? at + stack_bytes + 8 : NULL;
}

static void take_sample(struct ml_session *session, struct ml_ring *ring, const struct perf_event_header *header,
                        const unsigned char *at, const unsigned char *end) {
  uint64_t id, ip = 0, time_ns, address, page_bytes = 0;
  uint32_t pid_tid[2];
  if (end - at < 8) return;
  memcpy(&id, at, 8);
  at += 8;
  int role = ml_role_of(session, id);
  if (role < 0) {
    session->counts.unknown_records++;
    return;
  }
  /* The id may be that of another event of the same fault (see perf_events.c). */
  if (ring->stacks) role = ML_ROLE_STACK_0 + (int)session->stack_level;
  else if (role >= ML_ROLE_STACK_0) role = ML_ROLE_MINOR;
  const bool has_ip = role != ML_ROLE_BEFORE;
  if (end - at < (has_ip ? 32 : 24)) return;
  if (has_ip) {
    memcpy(&ip, at, 8);
    at += 8;
  }
  memcpy(pid_tid, at, 8);
  memcpy(&time_ns, at + 8, 8);
  memcpy(&address, at + 16, 8);
  at += 24;
  ring->last_ns = time_ns;
  const uint32_t tid = pid_tid[1];
  if (pid_tid[0] == 0 || pid_tid[0] == UINT32_MAX) return; /* a task that is already gone */
  struct ml_pending *pending = pending_of(session, tid);
  struct ml_process *process = ml_process_of(session, (pid_t)pid_tid[0], time_ns);
  if (pending == NULL || process == NULL) return;

  const bool in_kernel = (header->misc & PERF_RECORD_MISC_CPUMODE_MASK) == PERF_RECORD_MISC_KERNEL;
  uint32_t stack = 0;
  uint64_t user_ip = 0;
  if (role >= ML_ROLE_STACK_0) {
    if (session->options.stack_mode == ML_STACKS_DWARF) {
      stack = dump_stack(session, process, tid, time_ns, at, end);
      at = after_dump(at, end, &user_ip);
      if (at == NULL) return;
    } else {
      uint64_t count = 0;
      if (end - at < 8) return;
      memcpy(&count, at, 8);
      at += 8;
      if (count > (uint64_t)(end - at) / 8) return;
      stack = intern_stack(session, process, (const uint64_t *)(const void *)at, count);
      at += 8 * count;
    }
    if (stack == 0) return;
    const uint8_t weight_shift = (uint8_t)ml_stack_shift[role - ML_ROLE_STACK_0];
    if (session->budget.level != ML_ENUM_fault_level_kind_SAMPLED) {
      take_stack(session, pending, address, stack, weight_shift);
      return;
    }
  }
  uint16_t flags = role == ML_ROLE_MAJOR ? ML_ENUM_fault_flags_MAJOR : 0;
  const bool has_dump = role >= ML_ROLE_STACK_0 && session->options.stack_mode == ML_STACKS_DWARF;
  if (has_ip && !has_dump && session->facts.include_kernel) { /* REGS_USER: abi, then the user ip */
    uint64_t abi = 0;
    if (end - at < 8) return;
    memcpy(&abi, at, 8);
    at += 8;
    if (abi != 0 && end - at >= 8) {
      memcpy(&user_ip, at, 8);
      at += 8;
    }
  }
  if (in_kernel) flags |= ML_ENUM_fault_flags_KERNEL_MODE;
  if (in_kernel && user_ip != 0) ip = user_ip;
  if (session->facts.page_size_known && end - at >= 8) memcpy(&page_bytes, at, 8);

  if (role == ML_ROLE_BEFORE) {
    pending->has_before = true;
    pending->address = address;
    pending->before_shift = shift_of(page_bytes);
    return;
  }
  if (role < ML_ROLE_STACK_0 && is_second_sample(session, pending, time_ns, address)) return;
  struct ml_fault fault = {
      .time_ns = time_ns,
      .address = address,
      .ip = ip,
      .thread = tid,
      .cpu = (uint16_t)ring->cpu,
      .flags = flags,
      .after_shift = session->facts.page_size_known ? shift_of(page_bytes) : ML_NOT_OBSERVED,
  };
  if (role >= ML_ROLE_STACK_0) { /* faults are sampled: its own may not be */
    struct ml_pending nothing = {.tid = tid};
    fault.stack = stack;
    fault.stack_weight_shift = (uint8_t)ml_stack_shift[role - ML_ROLE_STACK_0];
    session->counts.stacks++;
    take_fault(session, process, &nothing, &fault, 0);
    return;
  }
  take_fault(session, process, pending, &fault, role == ML_ROLE_SPARSE ? ML_SPARSE_PERIOD : EVERY_FAULT);
}

/* Every other record ends with {pid, tid} time identifier (sample_id_all). */
struct trailer {
  uint32_t pid, tid;
  uint64_t time_ns, id;
};

static void take_mmap2(struct ml_session *session, const struct perf_event_header *header, const unsigned char *at,
                       const unsigned char *end, const struct trailer *trailer) {
  struct {
    uint32_t pid, tid;
    uint64_t address, bytes, file_offset;
    uint32_t major, minor;
    uint64_t inode, generation;
    uint32_t protection, flags;
  } map;
  if ((size_t)(end - at) < sizeof map) return;
  memcpy(&map, at, sizeof map);
  const char *name = (const char *)at + sizeof map;
  const size_t name_bytes = strnlen(name, (size_t)((const char *)end - name));
  if ((int32_t)map.pid <= 0) return;
  struct ml_process *process = ml_process_of(session, (pid_t)map.pid, trailer->time_ns);
  if (process == NULL) return;
  if (header->misc & PERF_RECORD_MISC_MMAP_DATA) process->info.mappings_changed++;
  struct ml_mapping record = {
      .time_ns = trailer->time_ns,
      .address = map.address,
      .bytes = map.bytes,
      .file_offset = map.inode != 0 ? map.file_offset : 0,
      .inode = map.inode,
      .device_major = map.major,
      .device_minor = map.minor,
      .path = ml_string_locked(session, name, name_bytes),
      .thread = map.tid,
      .protection = (uint8_t)(map.protection & 7),
      .shared = (map.flags & 1) != 0, /* MAP_SHARED */
      .operation = ML_ENUM_mapping_operation_MAP,
      .map_flags = map.flags,
  };
  ml_buffer_append(session, process, ML_SLOT_MAPPING, &record, sizeof record, record.time_ns);
}

static void take_task(struct ml_session *session, bool is_fork, const unsigned char *at, const unsigned char *end) {
  struct {
    uint32_t pid, ppid, tid, ptid;
    uint64_t time_ns;
  } task;
  if ((size_t)(end - at) < sizeof task) return;
  memcpy(&task, at, sizeof task);
  if (is_fork) {
    if (task.pid == task.ppid) {
      struct ml_process *process = ml_process_of(session, (pid_t)task.pid, task.time_ns);
      if (process != NULL)
        ml_process_event_add(session, process, task.time_ns, ML_ENUM_process_operation_THREAD, task.tid, process,
                             task.ptid, 0, -1, 0);
      return;
    }
    struct ml_process *parent = ml_process_of(session, (pid_t)task.ppid, task.time_ns);
    struct ml_process *child = ml_process_of(session, (pid_t)task.pid, task.time_ns);
    if (child == NULL || parent == NULL) return;
    if (child->announced) { /* the pid was used before in this capture */
      child = ml_process_new(session, (pid_t)task.pid, parent->info.process, task.time_ns);
      if (child == NULL) return;
    }
    child->info.parent = parent->info.process;
    child->begin_ns = task.time_ns;
    child->announced = true;
    ml_process_event_add(session, child, task.time_ns, ML_ENUM_process_operation_FORK, task.tid, parent, task.ptid, 0,
                         -1, 0);
    return;
  }
  struct ml_process *process = ml_process_of(session, (pid_t)task.pid, task.time_ns);
  if (process == NULL) return;
  struct ml_pending *pending = pending_of(session, task.tid);
  if (pending != NULL) {
    pending->has_before = false;
    pending->last_process = NULL;
  }
  /* The record of the last thread's exit is the process's: the kernel gives both
   * pids of a thread, and the leader may exit before its threads, so the exit of a
   * process is its leader's unless a later thread exit moves it. */
  const bool leader = task.pid == task.tid;
  ml_process_event_add(session, process, task.time_ns,
                       leader ? ML_ENUM_process_operation_EXIT : ML_ENUM_process_operation_THREAD_EXIT, task.tid, NULL,
                       0, 0, -1, 0);
  if (leader) {
    process->info.alive = 0;
    process->exit_ns = task.time_ns;
  }
}

static void take_comm(struct ml_session *session, const struct perf_event_header *header, const unsigned char *at,
                      const unsigned char *end, const struct trailer *trailer) {
  uint32_t pid_tid[2];
  if (end - at < 8) return;
  memcpy(pid_tid, at, 8);
  const char *name = (const char *)at + 8;
  struct ml_process *process = ml_process_of(session, (pid_t)pid_tid[0], trailer->time_ns);
  if (process == NULL) return;
  const bool exec = (header->misc & PERF_RECORD_MISC_COMM_EXEC) != 0;
  if (exec) process->info.execs++;
  const uint32_t text = ml_string_locked(session, name, strnlen(name, (size_t)((const char *)end - name)));
  ml_process_event_add(session, process, trailer->time_ns,
                       exec ? ML_ENUM_process_operation_EXEC : ML_ENUM_process_operation_NAME, pid_tid[1], NULL, 0,
                       text, -1, 0);
}

static void take_record(struct ml_session *session, struct ml_ring *ring, const struct perf_event_header *header) {
  const unsigned char *at = (const unsigned char *)(header + 1);
  const unsigned char *end = (const unsigned char *)header + header->size;
  if (header->type == PERF_RECORD_SAMPLE) {
    take_sample(session, ring, header, at, end);
    return;
  }
  struct trailer trailer;
  if ((size_t)(end - at) < sizeof trailer) return;
  memcpy(&trailer, end - sizeof trailer, sizeof trailer);
  end -= sizeof trailer;
  switch (header->type) {
    case PERF_RECORD_MMAP2: take_mmap2(session, header, at, end, &trailer); break;
    case PERF_RECORD_FORK: take_task(session, true, at, end); break;
    case PERF_RECORD_EXIT: take_task(session, false, at, end); break;
    case PERF_RECORD_COMM: take_comm(session, header, at, end, &trailer); break;
    case PERF_RECORD_LOST: {
      uint64_t id_lost[2];
      if (end - at < 16) break;
      memcpy(id_lost, at, 16);
      session->counts.ring_lost += id_lost[1];
      ml_loss_add(session, ring->last_ns, trailer.time_ns, id_lost[1], 0, ML_ENUM_loss_cause_RING_FULL, ring->cpu);
      break;
    }
    case PERF_RECORD_THROTTLE: session->counts.throttled++; break;
    case PERF_RECORD_UNTHROTTLE: break;
    default: session->counts.unknown_records++; break;
  }
  if (trailer.time_ns > ring->last_ns) ring->last_ns = trailer.time_ns;
}

static void drain_ring(struct ml_session *session, struct ml_ring *ring) {
  if (ring->meta == NULL) return;
  const uint64_t mask = ring->data_bytes - 1;
  const uint64_t head = __atomic_load_n(&ring->meta->data_head, __ATOMIC_ACQUIRE);
  uint64_t tail = ring->meta->data_tail; /* only we write it */
  uint64_t published = tail;
  while (tail < head) {
    const struct perf_event_header *header = (const void *)(ring->data + (tail & mask));
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
