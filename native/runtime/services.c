/* What other parts of the process ask this library for (format/memlens_trace.h): the runtime of traced programs writes its windows
 * through it, so that they lie in the rings beside allocations, regions and stacks. */
#include "runtime.h"

#include <errno.h>
#include <string.h>

#include "memlens_trace.h"

static bool begin(void) {
  if (!ml_own_thread() || ml_self.inside != 0) return false;
  ml_self.inside++;
  if (ml_attached()) return true;
  ml_self.inside--;
  return false;
}

static int write_record(unsigned kind, const void *record, size_t record_bytes, const void *tail, size_t tail_bytes,
                        int wait) {
  const int saved = errno;
  if (!begin()) {
    errno = saved;
    return 0;
  }
  const size_t padded = (tail_bytes + 7) & ~(size_t)7;
  struct ml_ticket ticket = ml_reserve_or_not(kind, record_bytes + padded, wait != 0);
  if (ticket.record != NULL) {
    memcpy(ticket.record, record, record_bytes);
    if (tail_bytes != 0) memcpy((unsigned char *)ticket.record + record_bytes, tail, tail_bytes);
    ml_commit(ticket);
  }
  ml_self.inside--;
  errno = saved;
  return ticket.record != NULL;
}

static uint32_t string(const char *text, size_t bytes) {
  const int saved = errno;
  uint32_t id = 0;
  if (begin()) {
    ml_self.hurried = true;
    id = ml_string(text, bytes);
    ml_self.hurried = false;
    ml_self.inside--;
  }
  errno = saved;
  return id;
}

static uint32_t stack(const void *caller) {
  const int saved = errno;
  uint32_t id = 0;
  if (begin()) {
    ml_self.hurried = true;
    id = ml_stack_from((uint64_t)(uintptr_t)caller);
    ml_self.hurried = false;
    ml_self.inside--;
  }
  errno = saved;
  return id;
}

static int is_recording(void) {
  const int saved = errno;
  const bool inside = ml_own_thread() && ml_self.inside != 0, recording = inside || begin();
  if (!inside && recording) ml_self.inside--;
  errno = saved;
  return recording;
}

ML_EXPORT extern const struct ml_services memlens_services;
const struct ml_services memlens_services = {.version = ML_SERVICES_VERSION,
                                             .bytes = sizeof(struct ml_services),
                                             .write = write_record,
                                             .string = string,
                                             .stack = stack,
                                             .is_recording = is_recording};
