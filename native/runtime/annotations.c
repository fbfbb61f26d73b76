/* Regions, phases and tags: what memlens.h's hooks do when a recorder is there. */
#include "runtime.h"

#include <errno.h>
#include <string.h>

#define MEMLENS_RUNTIME_IMPLEMENTATION 1
#include "memlens.h"

static bool begin(void) {
  if (!ml_own_thread() || ml_self.inside != 0) return false;
  ml_self.inside++;
  if (ml_attached() && (ml_runtime.flags & ML_CHANNEL_ANNOTATIONS) != 0) return true;
  ml_self.inside--;
  return false;
}

static void region(const char *name, unsigned operation) {
  const int saved = errno;
  if (ML_UNLIKELY(ml_emulated) && operation != ML_ENUM_region_operation_PHASE) ml_guest_region(operation, name);
  if (!begin()) {
    errno = saved;
    return;
  }
  struct ml_thread *self = &ml_self;
  const unsigned kept = sizeof self->regions / sizeof *self->regions;
  const uint32_t id = ml_string(name, strlen(name));
  unsigned depth = self->region_depth;
  if (operation == ML_ENUM_region_operation_END && depth > 0) depth = --self->region_depth;
  const uint32_t parent = depth > 0 && depth <= kept ? self->regions[depth - 1] : 0;
  if (operation == ML_ENUM_region_operation_BEGIN) {
    if (depth < kept) self->regions[depth] = id;
    self->region_depth++;
  }
  if (operation == ML_ENUM_region_operation_PHASE) ml_write_rss(); /* the end of the one before */
  struct ml_ticket ticket = ml_reserve(ML_KIND_REGION_EVENT, sizeof(struct ml_region_event));
  if (ticket.record != NULL) {
    *(struct ml_region_event *)ticket.record = (struct ml_region_event){.time_ns = ml_now_ns(),
                                                                        .region = id,
                                                                        .thread = self->tid,
                                                                        .operation = (uint16_t)operation,
                                                                        .depth = (uint16_t)depth,
                                                                        .parent = parent,
                                                                        .executions = 1};
    ml_commit(ticket);
  }
  self->inside--;
  errno = saved;
}

static void region_begin(const char *name) { region(name, ML_ENUM_region_operation_BEGIN); }
static void region_end(const char *name) { region(name, ML_ENUM_region_operation_END); }
static void phase(const char *name) { region(name, ML_ENUM_region_operation_PHASE); }

static void write_tag(const char *name, const volatile void *address, size_t bytes, unsigned operation) {
  const int saved = errno;
  if (begin()) {
    const uint32_t id = name != NULL ? ml_string(name, strlen(name)) : 0;
    struct ml_ticket ticket = ml_reserve(ML_KIND_TAG_EVENT, sizeof(struct ml_tag_event));
    if (ticket.record != NULL) {
      *(struct ml_tag_event *)ticket.record = (struct ml_tag_event){.time_ns = ml_now_ns(),
                                                                    .address = (uint64_t)(uintptr_t)address,
                                                                    .bytes = bytes,
                                                                    .name = id,
                                                                    .thread = ml_self.tid,
                                                                    .operation = (uint16_t)operation};
      ml_commit(ticket);
    }
    ml_self.inside--;
  }
  errno = saved;
}

static void tag(const char *name, const volatile void *address, size_t bytes) {
  write_tag(name, address, bytes, ML_ENUM_tag_operation_TAG);
}
static void untag(const volatile void *address) { write_tag(NULL, address, 0, ML_ENUM_tag_operation_UNTAG); }

static int32_t is_recording(void) {
  const int saved = errno;
  const bool recording = begin();
  if (recording) ml_self.inside--;
  errno = saved;
  return recording;
}

ML_EXPORT struct memlens_hooks memlens_hooks = {.version = 1,
                                                .bytes = sizeof(struct memlens_hooks),
                                                .region_begin = region_begin,
                                                .region_end = region_end,
                                                .phase = phase,
                                                .tag = tag,
                                                .untag = untag,
                                                .is_recording = is_recording};
MEMLENS_DEFINE_RUNTIME(memlens_hooks);
