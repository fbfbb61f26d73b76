/* The hot path: what happens at an access. */
#include "emulator.h"

#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void ml_accesses_after_fork(void) { pthread_mutex_init(&lock, NULL); }

/* The kind of this access among those that the instruction has shown; a new one gets a slot. */
static struct access_kind *kind_slow(struct insn *insn, uint32_t info) {
  for (unsigned i = 0; i < insn->kind_count; i++) {
    struct access_kind *kind = i < 2 ? &insn->kinds[i] : &insn->more[i - 2];
    if (kind->info == info) return kind;
  }
  pthread_mutex_lock(&lock);
  struct access_kind *found = NULL;
  const bool store = qemu_plugin_mem_is_store(info);
  const uint16_t width = (uint16_t)(1u << qemu_plugin_mem_size_shift(info));
  const unsigned count = insn->kind_count;
  for (unsigned i = 0; i < count && found == NULL; i++) {
    struct access_kind *kind = i < 2 ? &insn->kinds[i] : &insn->more[i - 2];
    if (kind->info == info) found = kind;
  }
  if (found == NULL && count >= 2 && insn->more == NULL) insn->more = calloc(MAX_KINDS - 2, sizeof *insn->more);
  if (found == NULL && count < (insn->more != NULL ? MAX_KINDS : 2)) {
    found = count < 2 ? &insn->kinds[count] : &insn->more[count - 2];
    found->store = store;
    found->width = width;
    found->place = ml_slot_new(insn->pc, insn->generation, width, 0, store, insn->flags);
    found->info = info;
    __atomic_store_n(&insn->kind_count, (uint8_t)(count + 1), __ATOMIC_RELEASE);
  } else if (found == NULL) { /* cannot be told apart further: a kind of the same direction and width, or the last */
    insn->overflow = true;
    found = &insn->kinds[1];
    for (unsigned i = 0; i < count; i++) {
      struct access_kind *kind = i < 2 ? &insn->kinds[i] : &insn->more[i - 2];
      if (kind->store == store && kind->width == width) found = kind;
    }
  }
  pthread_mutex_unlock(&lock);
  return found;
}

static inline struct access_kind *kind_of(struct insn *insn, uint32_t info) {
  if (ML_LIKELY(insn->kinds[0].info == info)) return &insn->kinds[0];
  if (ML_LIKELY(insn->kinds[1].info == info)) return &insn->kinds[1];
  return kind_slow(insn, info);
}

/* A new access, not a further part of the one before. */
static inline void begin_access(struct vcpu *vcpu, const struct insn *insn, const struct access_kind *kind,
                                uint64_t address) {
  if (ML_UNLIKELY(vcpu->executed >= vcpu->next_event)) ml_window_event(vcpu, insn->pc);
  vcpu->executed++;
  if (ML_UNLIKELY(vcpu->recording)) ml_window_add(vcpu, insn->pc, address, kind->width, kind->store);
}

void ml_on_single_access(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *data) {
  struct insn *insn = data;
  struct vcpu *vcpu = ml_vcpus[cpu];
  struct access_kind *kind = kind_of(insn, info);
  struct ml_slot_counter *counter = ml_counter(vcpu->base, kind->place);
  counter->parts++;
  counter->stack_parts += address - vcpu->stack_low < vcpu->stack_bytes;
  if (ML_UNLIKELY(ml_settings.pages)) ml_page_access(vcpu, insn->pc, address, kind->store);
  begin_access(vcpu, insn, kind, address);
}

/* The parts of one execution have all come: what does it say about the instruction? */
static void end_run(struct vcpu *vcpu) {
  struct access_kind *kind = vcpu->last_kind;
  if (kind == NULL || kind->irregular) return;
  if (!vcpu->run_contiguous || (kind->parts != 0 && kind->parts != vcpu->run_parts)) {
    kind->irregular = true;
    vcpu->last_insn->multipart = true;
    return;
  }
  kind->parts = (uint16_t)(vcpu->run_parts > UINT16_MAX ? UINT16_MAX : vcpu->run_parts);
  if (vcpu->run_parts > 1) vcpu->last_insn->multipart = true;
  if (kind->runs < UINT16_MAX) kind->runs++;
}

/* The main thread's stack is where its first store goes: every start-up code calls something. */
static void find_stack(struct vcpu *vcpu, uint64_t address) {
  uint64_t begin, end;
  vcpu->stack_tried = true;
  if (ml_mapping_at(address, &begin, &end)) {
    vcpu->stack_low = begin;
    vcpu->stack_bytes = end - begin;
  }
}

void ml_on_access(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *data) {
  struct insn *insn = data;
  struct vcpu *vcpu = ml_vcpus[cpu];
  struct access_kind *kind = kind_of(insn, info);
  if (ML_UNLIKELY(!vcpu->stack_tried) && kind->store) find_stack(vcpu, address);
  struct ml_slot_counter *counter = ml_counter(vcpu->base, kind->place);
  const bool stack = address - vcpu->stack_low < vcpu->stack_bytes;
  counter->parts++;
  counter->stack_parts += stack;
  if (ML_UNLIKELY(ml_settings.pages)) ml_page_access(vcpu, insn->pc, address, kind->store);
  if (vcpu->last_insn == insn && vcpu->last_kind == kind && vcpu->last_serial == vcpu->serial) {
    vcpu->run_parts++;
    if (address == vcpu->last_end) {
      counter->merged++;
      counter->stack_merged += stack;
      vcpu->last_end += kind->width;
      if (vcpu->recording) ml_window_extend(vcpu, kind->width);
      return;
    }
    vcpu->run_contiguous = false;
  } else {
    end_run(vcpu);
    vcpu->last_insn = insn;
    vcpu->last_kind = kind;
    vcpu->last_serial = vcpu->serial;
    vcpu->run_parts = 1;
    vcpu->run_contiguous = true;
    /* Another translation of it would be faster: worth one when this happens often. */
    if (ml_kind_is_learned(kind) && ++vcpu->learning_calls >= ml_plugin.learning_limit) {
      vcpu->learning_calls = 0;
      ml_ask_reset();
    }
  }
  vcpu->last_end = address + kind->width;
  begin_access(vcpu, insn, kind, address);
}

void ml_on_block(unsigned cpu, void *unused) {
  (void)unused;
  ml_vcpus[cpu]->serial++;
}

void ml_on_unseen(unsigned cpu, void *data) {
  const struct insn *insn = data;
  ml_counter(ml_vcpus[cpu]->base, insn->unseen_place)->parts++;
}

void ml_switch_region(struct vcpu *vcpu, uint32_t region) {
  if (vcpu->bases[region] == NULL) vcpu->bases[region] = ml_base_new(vcpu->thread, region);
  vcpu->base = vcpu->bases[region];
  vcpu->region = region;
}
