/* perf.data files of any content. Oracles: reading ends; records lie in the file, one behind the other; what a sample points to lies in
 * its record; what the file says of AUX data is bounded by the file. */
#define _GNU_SOURCE /* memfd_create */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memlens_perf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds, const char *what) {
  if (holds) return;
  fprintf(stderr, "property failed: %s\n", what);
  abort();
}

static uint64_t sum;

static void touch(const unsigned char *at, uint64_t bytes, const struct mp_file_record *record) {
  if (at == NULL || bytes == 0) return;
  require(at >= record->body && bytes <= (uint64_t)(record->body + record->body_bytes - at),
          "an array lies in its record");
  sum += at[0] + at[bytes - 1];
}

static void use(const struct mp_file_record *record) {
  struct mp_sample sample;
  struct mp_identity who;
  size_t own = record->body_bytes;
  if (record->event == NULL) return;
  if (record->header.type == MP_RECORD_SAMPLE) {
    if (!mp_sample_read(&record->event->attr, record->body, record->body_bytes, &sample)) return;
    touch(sample.callchain, 8 * sample.callchain_count, record);
    touch(sample.raw, sample.raw_bytes, record);
    touch(sample.branches, 24 * sample.branch_count, record);
    touch(sample.user_registers, 8 * (uint64_t)sample.user_register_count, record);
    touch(sample.intr_registers, 8 * (uint64_t)sample.intr_register_count, record);
    touch(sample.user_stack, sample.user_stack_bytes, record);
    touch(sample.aux, sample.aux_bytes, record);
    return;
  }
  if (!mp_identity_read(&record->event->attr, record->body, record->body_bytes, &who, &own)) return;
  require(own <= record->body_bytes, "a record's own bytes are not more than all");
  union {
    struct mp_mapping mapping;
    struct mp_task task;
    struct mp_comm comm;
    struct mp_lost lost;
    struct mp_aux aux;
  } as;
  if (mp_mapping_read(&record->header, record->body, own, &as.mapping)) {
    touch((const unsigned char *)as.mapping.path, as.mapping.path_bytes, record);
    touch(as.mapping.build_id, as.mapping.build_id_bytes, record);
  }
  if (mp_comm_read(record->body, own, &as.comm)) touch((const unsigned char *)as.comm.name, as.comm.name_bytes, record);
  if (mp_task_read(record->body, own, &as.task)) sum += as.task.time_ns;
  if (mp_lost_read(&record->header, record->body, own, &as.lost)) sum += as.lost.lost;
  if (mp_aux_read(record->body, own, &as.aux)) sum += as.aux.flags;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static int fd = -1;
  if (fd < 0) fd = memfd_create("perf.data", 0);
  require(fd >= 0 && ftruncate(fd, 0) == 0, "a file");
  require(pwrite(fd, data, size, 0) == (ssize_t)size, "its content");
  struct mp_file file;
  enum mp_file_error error = mp_file_open(&file, fd);
  uint64_t before = 0, ids = 0;
  size_t records = 0;
  struct mp_file_record record;
  while (error == MP_FILE_FINE && mp_file_next(&file, &record, &error) == 1) {
    require(record.after > before && record.after <= size, "records lie in the file, one behind the other");
    require(record.following_bytes <= size - record.after, "AUX data lies in the file");
    unsigned char some[64];
    /* a place that the file claims */
    const uint64_t at = data[size - 1] % 2 != 0 ? record.after : record.identity.time_ns;
    const int64_t got = mp_file_bytes(&file, at, some, sizeof some);
    require(got <= (int64_t)sizeof some && (got <= 0 || (at < size && (uint64_t)got <= size - at)),
            "bytes of the file");
    for (int64_t i = 0; i < got; i++) require(some[i] == data[at + (uint64_t)i], "the file's own bytes");
    before = record.after;
    require(++records <= size / 8 + 1, "reading ends");
    use(&record);
  }
  for (size_t e = 0; e < file.event_count; e++) ids += file.events[e].id_count;
  require(8 * ids <= 2 * size, "as many ids as the file has");
  mp_file_close(&file);
  return 0;
}
