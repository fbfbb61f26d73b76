/* Records of perf under an attribute of any content, as they lie in a ring or in a file. Oracles: whatever the attribute says is there, what
 * a record points to lies in it; the identity behind a record leaves the record's own bytes; a register that is found is one of the mask. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memlens_perf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { ATTR_BYTES = 136, HEADER_BYTES = 8 };

static uint64_t sum;

static void require(bool holds, const char *what) {
  if (holds) return;
  fprintf(stderr, "property failed: %s\n", what);
  abort();
}

/* Behind `body` lies the end of an allocation: AddressSanitizer sees what reads on. */
static void lies_in(const unsigned char *body, size_t bytes, const unsigned char *at, uint64_t count, uint64_t each) {
  if (at == NULL || count == 0) return;
  require(at >= body && count <= bytes / each && each * count <= (uint64_t)(body + bytes - at),
          "an array lies in its record");
  for (uint64_t i = 0; i < count; i++) sum += each == 8 ? mp_u64(at, i) : at[i * each];
}

static void use_registers(uint64_t mask, const unsigned char *registers, uint32_t count) {
  uint64_t value, found = 0;
  if (registers == NULL) return;
  for (uint64_t bit = 0; bit < 64; bit++)
    if (mp_register(mask, registers, UINT64_C(1) << bit, &value)) {
      require((mask >> bit & 1) != 0, "a register that was sampled");
      found++;
      sum += value;
    }
  require(found == count, "every register of the mask");
}

static void use_sample(const struct mp_attr *attr, const unsigned char *body, size_t bytes) {
  struct mp_sample sample;
  if (!mp_sample_read(attr, body, bytes, &sample)) return;
  require((sample.has & ~MP_SAMPLE_KNOWN) == 0, "known fields only");
  lies_in(body, bytes, sample.callchain, sample.callchain_count, 8);
  lies_in(body, bytes, sample.raw, sample.raw_bytes, 1);
  lies_in(body, bytes, sample.branches, sample.branch_count, 24);
  lies_in(body, bytes, sample.user_registers, sample.user_register_count, 8);
  lies_in(body, bytes, sample.intr_registers, sample.intr_register_count, 8);
  lies_in(body, bytes, sample.user_stack, sample.user_stack_bytes, 1);
  lies_in(body, bytes, sample.aux, sample.aux_bytes, 1);
  use_registers(attr->sample_regs_user, sample.user_registers, sample.user_register_count);
  use_registers(attr->sample_regs_intr, sample.intr_registers, sample.intr_register_count);
}

static void use_other(const struct mp_attr *attr, const struct mp_header *header, const unsigned char *body,
                      size_t bytes) {
  struct mp_identity who;
  size_t own = bytes;
  const bool known = mp_identity_read(attr, body, bytes, &who, &own);
  require(own <= bytes, "a record's own bytes are not more than all");
  if (!known) require(who.pid == MP_NOBODY && who.tid == MP_NOBODY, "a record that is too short is nobody's");
  struct mp_mapping mapping;
  struct mp_task task;
  struct mp_comm comm;
  struct mp_lost lost;
  struct mp_aux aux;
  if (mp_mapping_read(header, body, own, &mapping)) {
    lies_in(body, own, (const unsigned char *)mapping.path, mapping.path_bytes, 1);
    lies_in(body, own, mapping.build_id, mapping.build_id_bytes, 1);
  }
  if (mp_comm_read(body, own, &comm)) lies_in(body, own, (const unsigned char *)comm.name, comm.name_bytes, 1);
  if (mp_task_read(body, own, &task)) sum += task.time_ns;
  if (mp_lost_read(header, body, own, &lost)) sum += lost.lost;
  if (mp_aux_read(body, own, &aux)) sum += aux.bytes;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct mp_attr attr;
  const size_t attr_bytes = size < ATTR_BYTES ? size : ATTR_BYTES;
  if (!mp_attr_read(&attr, data, attr_bytes)) {
    require(attr_bytes < MP_ATTR_SIZE_VER0, "an attribute of the first version is one");
    return 0;
  }
  for (size_t at = attr_bytes; size - at >= HEADER_BYTES;) {
    struct mp_header header;
    memcpy(&header, data + at, sizeof header);
    const size_t left = size - at - HEADER_BYTES,
                 wanted = header.size < HEADER_BYTES ? 0 : (size_t)header.size - HEADER_BYTES;
    const size_t bytes = wanted < left ? wanted : left;
    unsigned char *body = malloc(bytes + 1); /* of its own: what reads on is seen */
    require(body != NULL, "memory");
    unsigned char *begin = body + 1; /* nothing is aligned */
    memcpy(begin, data + at + HEADER_BYTES, bytes);
    if (header.type == MP_RECORD_SAMPLE) use_sample(&attr, begin, bytes);
    else use_other(&attr, &header, begin, bytes);
    free(body);
    at += HEADER_BYTES + bytes;
  }
  return 0;
}
