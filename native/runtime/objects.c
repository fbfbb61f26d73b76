/* Which allocations are recorded, and their records. Behind the hooks. */
#include "runtime.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

size_t ml_large = 0; /* before it is known: look closer at everything, also at objects of 0 bytes */

/* Back to the size checks of the fast path, after attaching. */
static void use_settings(void) {
  ml_large = ml_runtime.sample_bytes == 0 ? 0 : (size_t)ml_runtime.large_bytes;
  ml_sampled_start();
  if (ml_in_exact_phase())
    atomic_fetch_or_explicit(&ml_runtime.slot->flags, (uint32_t)ML_ENUM_runtime_flags_EXACT_FIRST,
                             memory_order_relaxed);
}

static bool ready(void) {
  static uint64_t settings_of; /* generation; written by one thread at a time, and the same again */
  if (!ml_attached() || (ml_runtime.flags & ML_CHANNEL_ALLOC) == 0) return false;
  if (ML_UNLIKELY(settings_of != ml_runtime.generation)) {
    use_settings();
    settings_of = ml_runtime.generation;
  }
  return true;
}

static bool is_off(void) {
  if (ml_runtime.guard == NULL) return false;
  const uint32_t attachment = atomic_load(&ml_runtime.guard->attachment);
  return attachment == ML_OFF || (attachment == ML_ATTACHED && (ml_runtime.flags & ML_CHANNEL_ALLOC) == 0);
}

struct ml_birth ml_choose(size_t bytes) {
  struct ml_birth birth = {0};
  if (ML_UNLIKELY(!ml_own_thread())) return birth;
  struct ml_thread *self = &ml_self;
  if (ML_UNLIKELY(self->inside != 0)) {
    if (!self->resolving) ml_note_missed();
    return birth;
  }
  const int saved = errno;
  self->inside++;
  if (ready()) {
    if (bytes >= ml_large) {
      birth.wanted = ml_take_large(self, bytes, &birth.weight_bytes);
    } else if (!self->has_gap && !self->thinned && ml_take_exact()) {
      birth.wanted = true;
      self->passed_bytes += bytes;
      self->countdown = 0; /* the next one comes here too */
    } else {
      if (!self->has_gap) {
        self->has_gap = true;
        ml_note_sampled();
        self->countdown = ml_next_gap(self) - (int64_t)bytes;
      }
      birth.wanted = self->countdown < 0;
      if (birth.wanted) {
        birth.weight_bytes = ml_sample_weight(self, bytes);
        self->passed_bytes += (uint64_t)(self->gap - self->countdown);
        self->countdown = ml_next_gap(self);
      }
    }
  } else if (is_off()) {
    ml_large = SIZE_MAX;
    self->countdown = ML_NEVER;
  } else {
    self->countdown = 0; /* too early to know */
  }
  self->inside--;
  errno = saved;
  return birth;
}

/* The heap's end moves without a call that could be hooked: look at it whenever a record is made. */
static void poll_break(uint64_t time_ns) {
  const uint64_t now = (uint64_t)(uintptr_t)sbrk(0);
  uint64_t before = atomic_load_explicit(&ml_runtime.break_address, memory_order_relaxed);
  if (ML_LIKELY(now == before) || now == UINT64_MAX ||
      !atomic_compare_exchange_strong(&ml_runtime.break_address, &before, now))
    return;
  static _Atomic uint64_t lowest; /* where the heap began, as far as we saw */
  uint64_t start = atomic_load(&lowest);
  if (start == 0) start = ml_runtime.break_start; /* before the program's first allocation */
  if (start == 0 || now < start) {
    atomic_store(&lowest, now);
    start = now;
  }
  struct ml_ticket ticket = ml_reserve(ML_KIND_ALLOCATION, sizeof(struct ml_allocation));
  if (ticket.record == NULL) return;
  *(struct ml_allocation *)ticket.record = (struct ml_allocation){.time_ns = time_ns,
                                                                  .address = start,
                                                                  .bytes = now - start,
                                                                  .old_address = before,
                                                                  .thread = ml_self.tid,
                                                                  .operation = ML_ENUM_allocation_operation_BRK};
  ml_commit(ticket);
}

void ml_record_birth(struct ml_birth birth, const void *address, size_t bytes, struct ml_what what) {
  struct ml_thread *self = &ml_self;
  const int saved = errno;
  self->inside++;
  if (ready()) {
    const uint64_t now = ml_now_ns();
    const uint32_t stack = ml_stack_here();
    struct ml_ticket ticket = ml_reserve(ML_KIND_ALLOCATION, sizeof(struct ml_allocation));
    if (ticket.record != NULL) {
      *(struct ml_allocation *)ticket.record = (struct ml_allocation){
          .time_ns = now,
          .address = (uint64_t)(uintptr_t)address,
          .bytes = bytes,
          .old_address = what.old_address,
          .weight_bytes = birth.weight_bytes,
          .stack = stack,
          .thread = self->tid,
          .operation = (uint16_t)what.operation,
          .alignment_shift = what.alignment > 1 ? (uint8_t)(63 - __builtin_clzll(what.alignment)) : 0,
          .flags = (uint8_t)what.flags,
          .protection = what.protection,
          .map_flags = what.map_flags};
      ml_commit(ticket);
      if (address != NULL && what.operation != ML_ENUM_allocation_operation_MMAP &&
          what.operation != ML_ENUM_allocation_operation_MREMAP)
        ml_sampled_add(address);
    }
    poll_break(now);
    ml_spend(self, now);
  }
  self->inside--;
  errno = saved;
}

bool ml_take_release(const void *address) {
  if (address == NULL) return false;
  if (ML_UNLIKELY(!ml_own_thread())) { /* no record: the object ends where the next one at its address begins */
    if (ml_runtime.sample_bytes != 0) ml_sampled_remove(address);
    return false;
  }
  if (ml_self.inside != 0) {
    if (ml_runtime.sample_bytes == 0 && !ml_self.resolving) ml_note_missed();
    return false;
  }
  return ml_sampled_remove(address);
}

void ml_record_release(const void *address, size_t bytes, uint64_t time_ns, unsigned operation, unsigned flags) {
  struct ml_thread *self = &ml_self;
  const int saved = errno;
  self->inside++;
  if (ready()) {
    struct ml_ticket ticket = ml_reserve(ML_KIND_ALLOCATION, sizeof(struct ml_allocation));
    if (ticket.record != NULL) {
      *(struct ml_allocation *)ticket.record = (struct ml_allocation){.time_ns = time_ns ? time_ns : ml_now_ns(),
                                                                      .address = (uint64_t)(uintptr_t)address,
                                                                      .bytes = bytes,
                                                                      .thread = self->tid,
                                                                      .operation = (uint16_t)operation,
                                                                      .flags = (uint8_t)flags};
      ml_commit(ticket);
    }
  }
  self->inside--;
  errno = saved;
}
