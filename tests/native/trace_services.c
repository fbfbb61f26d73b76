/* The library that records, as tests need it: every record goes into the file TRACE_OUTPUT. With TRACE_ROOM=N there is room for
 * N records, then for none of the next N, and so on, unless a writer waits. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "memlens_format.h"
#include "memlens_trace.h"

static uint64_t windows;
static uint32_t strings;

static int put(unsigned kind, const void *record, size_t record_bytes, const void *tail, size_t tail_bytes) {
  static const char zeros[8];
  static __thread unsigned char all[1 << 17];
  const uint32_t head[2] = {kind, (uint32_t)(record_bytes + tail_bytes)};
  const size_t padding = (8 - (record_bytes + tail_bytes) % 8) % 8;
  unsigned char *at = all;
  memcpy(at, head, 8), at += 8;
  memcpy(at, record, record_bytes), at += record_bytes;
  if (tail_bytes != 0) memcpy(at, tail, tail_bytes), at += tail_bytes;
  memcpy(at, zeros, padding), at += padding;
  const int fd =
      (int)syscall(SYS_openat, AT_FDCWD, getenv("TRACE_OUTPUT"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0) return 0;
  const long wrote = syscall(SYS_write, fd, all, (size_t)(at - all));
  syscall(SYS_close, fd);
  return wrote == at - all;
}

static int write_record(unsigned kind, const void *record, size_t record_bytes, const void *tail, size_t tail_bytes,
                        int wait) {
  const char *room = getenv("TRACE_ROOM");
  if (room != NULL && !wait && __atomic_fetch_add(&windows, 1, __ATOMIC_RELAXED) / (uint64_t)atol(room) % 2 != 0)
    return 0;
  return put(kind, record, record_bytes, tail, tail_bytes);
}

static uint32_t string(const char *text, size_t bytes) {
  if (bytes == 0) return 0;
  const struct ml_string record = {.id = ((uint32_t)getpid() & 0xfff) << 20 |
                                         __atomic_add_fetch(&strings, 1, __ATOMIC_RELAXED),
                                   .tail_bytes = (uint32_t)bytes};
  return put(ML_KIND_STRING, &record, sizeof record, text, bytes) ? record.id : 0;
}

static uint32_t stack(const void *caller) { return caller != NULL; }
static int is_recording(void) { return 1; }

__attribute__((visibility("default"))) extern const struct ml_services memlens_services;
const struct ml_services memlens_services = {
    ML_SERVICES_VERSION, sizeof(struct ml_services), write_record, string, stack, is_recording};
