/* Attributes, samples and other records of perf, as memlens_perf.h describes them. */
#include "memlens_perf.h"

#include <string.h>

/* ---- bytes ---------------------------------------------------------------- */
struct cursor {
  const unsigned char *at, *end;
};

static bool take(struct cursor *from, void *to, size_t bytes) {
  if ((size_t)(from->end - from->at) < bytes) return false;
  memcpy(to, from->at, bytes);
  from->at += bytes;
  return true;
}

static bool take_u64(struct cursor *from, uint64_t *value) { return take(from, value, sizeof *value); }

/* `count` elements of `size` bytes that stay where they are. */
static bool take_array(struct cursor *from, uint64_t count, size_t size, const unsigned char **array) {
  if (count > (uint64_t)(from->end - from->at) / size) return false;
  *array = from->at;
  from->at += count * size;
  return true;
}

uint64_t mp_u64(const unsigned char *at, uint64_t index) {
  uint64_t value;
  memcpy(&value, at + 8 * index, sizeof value);
  return value;
}

bool mp_register(uint64_t mask, const unsigned char *registers, uint64_t bit, uint64_t *value) {
  if (registers == NULL || (mask & bit) == 0) return false;
  *value = mp_u64(registers, (uint64_t)__builtin_popcountll(mask & (bit - 1)));
  return true;
}

/* ---- attributes ---------------------------------------------------------------- */
bool mp_attr_read(struct mp_attr *attr, const void *bytes, size_t size) {
  unsigned char whole[128] = {0}; /* later versions are longer; what decoding needs lies in these */
  uint64_t flags;
  memset(attr, 0, sizeof *attr);
  if (size < MP_ATTR_SIZE_VER0) return false;
  memcpy(whole, bytes, size < sizeof whole ? size : sizeof whole);
  memcpy(&attr->type, whole, 4);
  memcpy(&attr->config, whole + 8, 8);
  memcpy(&attr->sample_period, whole + 16, 8);
  memcpy(&attr->sample_type, whole + 24, 8);
  memcpy(&attr->read_format, whole + 32, 8);
  memcpy(&flags, whole + 40, 8);
  memcpy(&attr->config1, whole + 56, 8);
  memcpy(&attr->config2, whole + 64, 8);
  memcpy(&attr->branch_sample_type, whole + 72, 8);
  memcpy(&attr->sample_regs_user, whole + 80, 8);
  memcpy(&attr->sample_stack_user, whole + 88, 4);
  memcpy(&attr->sample_regs_intr, whole + 96, 8);
  attr->is_frequency = (flags >> 10) & 1;
  attr->sample_id_all = (flags >> 18) & 1;
  return true;
}

/* ---- samples ---------------------------------------------------------------- */
static bool skip_read(struct cursor *from, uint64_t format) {
  const uint64_t times = (uint64_t)__builtin_popcountll(format & (MP_READ_TIME_ENABLED | MP_READ_TIME_RUNNING));
  const uint64_t each = 1 + (uint64_t)__builtin_popcountll(format & (MP_READ_ID | MP_READ_LOST));
  const unsigned char *values;
  uint64_t count = 1;
  if (format & MP_READ_GROUP) {
    if (!take_u64(from, &count)) return false;
  }
  if (!take_array(from, times, 8, &values)) return false;
  return take_array(from, count, 8 * each, &values);
}

static bool take_branches(struct cursor *from, uint64_t kind, struct mp_sample *sample) {
  const unsigned char *counters;
  uint64_t hw_index;
  if (!take_u64(from, &sample->branch_count)) return false;
  if ((kind & MP_BRANCH_HW_INDEX) && !take_u64(from, &hw_index)) return false;
  if (!take_array(from, sample->branch_count, 24, &sample->branches)) return false;
  return !(kind & MP_BRANCH_COUNTERS) || take_array(from, sample->branch_count, 8, &counters);
}

static bool take_registers(struct cursor *from, uint64_t mask, uint64_t *abi, const unsigned char **registers,
                           uint32_t *count) {
  if (!take_u64(from, abi)) return false;
  if (*abi == 0) return true; /* a kernel thread, or a task that exits */
  *count = (uint32_t)__builtin_popcountll(mask);
  return take_array(from, *count, 8, registers);
}

static bool take_user_stack(struct cursor *from, struct mp_sample *sample) {
  uint64_t room, filled;
  if (!take_u64(from, &room)) return false;
  if (room == 0) return true; /* then the kernel does not write how much of it is filled either */
  if (!take_array(from, room, 1, &sample->user_stack) || !take_u64(from, &filled)) return false;
  sample->user_stack_bytes = filled < room ? filled : room;
  return true;
}

bool mp_sample_read(const struct mp_attr *attr, const unsigned char *body, size_t bytes, struct mp_sample *sample) {
  const uint64_t kind = attr->sample_type;
  struct cursor from = {body, body + bytes};
  memset(sample, 0, sizeof *sample);
  sample->pid = sample->tid = sample->cpu = MP_NOBODY;
  if (kind & ~MP_SAMPLE_KNOWN) return false;
  uint32_t pair[2];
  if ((kind & MP_SAMPLE_IDENTIFIER) && !take_u64(&from, &sample->identifier)) return false;
  if ((kind & MP_SAMPLE_IP) && !take_u64(&from, &sample->ip)) return false;
  if (kind & MP_SAMPLE_TID) {
    if (!take(&from, pair, sizeof pair)) return false;
    sample->pid = pair[0];
    sample->tid = pair[1];
  }
  if ((kind & MP_SAMPLE_TIME) && !take_u64(&from, &sample->time_ns)) return false;
  if ((kind & MP_SAMPLE_ADDR) && !take_u64(&from, &sample->address)) return false;
  if ((kind & MP_SAMPLE_ID) && !take_u64(&from, &sample->id)) return false;
  if ((kind & MP_SAMPLE_STREAM_ID) && !take_u64(&from, &sample->stream_id)) return false;
  if (kind & MP_SAMPLE_CPU) {
    if (!take(&from, pair, sizeof pair)) return false;
    sample->cpu = pair[0];
  }
  if ((kind & MP_SAMPLE_PERIOD) && !take_u64(&from, &sample->period)) return false;
  if ((kind & MP_SAMPLE_READ) && !skip_read(&from, attr->read_format)) return false;
  if (kind & MP_SAMPLE_CALLCHAIN) {
    if (!take_u64(&from, &sample->callchain_count)) return false;
    if (!take_array(&from, sample->callchain_count, 8, &sample->callchain)) return false;
  }
  if (kind & MP_SAMPLE_RAW) {
    if (!take(&from, &sample->raw_bytes, 4) || !take_array(&from, sample->raw_bytes, 1, &sample->raw)) return false;
  }
  if ((kind & MP_SAMPLE_BRANCH_STACK) && !take_branches(&from, attr->branch_sample_type, sample)) return false;
  if ((kind & MP_SAMPLE_REGS_USER) && !take_registers(&from, attr->sample_regs_user, &sample->user_abi,
                                                      &sample->user_registers, &sample->user_register_count))
    return false;
  if ((kind & MP_SAMPLE_STACK_USER) && !take_user_stack(&from, sample)) return false;
  if ((kind & (MP_SAMPLE_WEIGHT | MP_SAMPLE_WEIGHT_STRUCT)) && !take_u64(&from, &sample->weight)) return false;
  if ((kind & MP_SAMPLE_DATA_SRC) && !take_u64(&from, &sample->data_src)) return false;
  if ((kind & MP_SAMPLE_TRANSACTION) && !take_u64(&from, &sample->transaction)) return false;
  if ((kind & MP_SAMPLE_REGS_INTR) && !take_registers(&from, attr->sample_regs_intr, &sample->intr_abi,
                                                      &sample->intr_registers, &sample->intr_register_count))
    return false;
  if ((kind & MP_SAMPLE_PHYS_ADDR) && !take_u64(&from, &sample->phys_address)) return false;
  if ((kind & MP_SAMPLE_CGROUP) && !take_u64(&from, &sample->cgroup)) return false;
  if ((kind & MP_SAMPLE_DATA_PAGE_SIZE) && !take_u64(&from, &sample->data_page_bytes)) return false;
  if ((kind & MP_SAMPLE_CODE_PAGE_SIZE) && !take_u64(&from, &sample->code_page_bytes)) return false;
  if (kind & MP_SAMPLE_AUX) {
    if (!take_u64(&from, &sample->aux_bytes) || !take_array(&from, sample->aux_bytes, 1, &sample->aux)) return false;
  }
  sample->has = kind;
  return true;
}

/* ---- other records ---------------------------------------------------------------- */
bool mp_identity_read(const struct mp_attr *attr, const unsigned char *body, size_t bytes, struct mp_identity *identity,
                      size_t *own_bytes) {
  *identity = (struct mp_identity){.pid = MP_NOBODY, .tid = MP_NOBODY, .cpu = MP_NOBODY};
  *own_bytes = bytes;
  if (attr == NULL || !attr->sample_id_all) return true;
  const uint64_t kind = attr->sample_type;
  const size_t size =
      8 * (size_t)__builtin_popcountll(kind & (MP_SAMPLE_TID | MP_SAMPLE_TIME | MP_SAMPLE_ID | MP_SAMPLE_STREAM_ID |
                                               MP_SAMPLE_CPU | MP_SAMPLE_IDENTIFIER));
  if (size > bytes) return false;
  *own_bytes = bytes - size;
  struct cursor from = {body + bytes - size, body + bytes};
  uint32_t pair[2] = {MP_NOBODY, MP_NOBODY};
  uint64_t stream_id;
  if (kind & MP_SAMPLE_TID) {
    (void)take(&from, pair, sizeof pair);
    identity->pid = pair[0];
    identity->tid = pair[1];
  }
  if (kind & MP_SAMPLE_TIME) (void)take_u64(&from, &identity->time_ns);
  if (kind & MP_SAMPLE_ID) (void)take_u64(&from, &identity->id);
  if (kind & MP_SAMPLE_STREAM_ID) (void)take_u64(&from, &stream_id);
  if (kind & MP_SAMPLE_CPU) {
    (void)take(&from, pair, sizeof pair);
    identity->cpu = pair[0];
  }
  if (kind & MP_SAMPLE_IDENTIFIER) (void)take_u64(&from, &identity->id);
  return true;
}

bool mp_mapping_read(const struct mp_header *header, const unsigned char *body, size_t own_bytes,
                     struct mp_mapping *mapping) {
  struct cursor from = {body, body + own_bytes};
  memset(mapping, 0, sizeof *mapping);
  if (!take(&from, &mapping->pid, 4) || !take(&from, &mapping->tid, 4) || !take_u64(&from, &mapping->address) ||
      !take_u64(&from, &mapping->bytes) || !take_u64(&from, &mapping->file_offset))
    return false;
  if (header->type == MP_RECORD_MMAP2) {
    const unsigned char *place; /* device and inode, or a build-id */
    if (!take_array(&from, 24, 1, &place) || !take(&from, &mapping->protection, 4) || !take(&from, &mapping->flags, 4))
      return false;
    if (header->misc & MP_MISC_MMAP_BUILD_ID) {
      mapping->build_id_bytes = place[0] <= 20 ? place[0] : 20;
      mapping->build_id = place + 4;
    } else {
      memcpy(&mapping->device_major, place, 4);
      memcpy(&mapping->device_minor, place + 4, 4);
      memcpy(&mapping->inode, place + 8, 8);
      memcpy(&mapping->inode_generation, place + 16, 8);
    }
  }
  mapping->path = (const char *)from.at;
  mapping->path_bytes = strnlen(mapping->path, (size_t)(from.end - from.at));
  return true;
}

bool mp_task_read(const unsigned char *body, size_t own_bytes, struct mp_task *task) {
  struct cursor from = {body, body + own_bytes};
  return take(&from, &task->pid, 4) && take(&from, &task->parent_pid, 4) && take(&from, &task->tid, 4) &&
         take(&from, &task->parent_tid, 4) && take_u64(&from, &task->time_ns);
}

bool mp_comm_read(const unsigned char *body, size_t own_bytes, struct mp_comm *comm) {
  struct cursor from = {body, body + own_bytes};
  if (!take(&from, &comm->pid, 4) || !take(&from, &comm->tid, 4)) return false;
  comm->name = (const char *)from.at;
  comm->name_bytes = strnlen(comm->name, (size_t)(from.end - from.at));
  return true;
}

bool mp_lost_read(const struct mp_header *header, const unsigned char *body, size_t own_bytes, struct mp_lost *lost) {
  struct cursor from = {body, body + own_bytes};
  lost->id = 0;
  return (header->type != MP_RECORD_LOST || take_u64(&from, &lost->id)) && take_u64(&from, &lost->lost);
}

bool mp_aux_read(const unsigned char *body, size_t own_bytes, struct mp_aux *aux) {
  struct cursor from = {body, body + own_bytes};
  return take_u64(&from, &aux->offset) && take_u64(&from, &aux->bytes) && take_u64(&from, &aux->flags);
}
