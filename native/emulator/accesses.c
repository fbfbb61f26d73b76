/* The hot path: what happens at an access. */
#include "emulator.h"

#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void ml_accesses_after_fork(void) { pthread_mutex_init(&lock, NULL); }

static struct access_kind *kind_at(struct insn *insn, unsigned index) {
  return index < 2 ? &insn->kinds[index] : &insn->more[index - 2];
}

static struct access_kind *kind_find(struct insn *insn, uint32_t info) {
  const unsigned count = __atomic_load_n(&insn->kind_count, __ATOMIC_ACQUIRE);
  for (unsigned i = 0; i < count; i++)
    if (kind_at(insn, i)->info == info || kind_at(insn, i)->other_info == info) return kind_at(insn, i);
  return NULL;
}

/* A kind that the instruction has not shown yet gets a slot. `info` also tells of alignment: several of them may be
 * one kind. */
static struct access_kind *kind_new(struct insn *insn, uint32_t info, bool store, uint16_t width) {
  static struct access_kind nowhere; /* memory is exhausted */
  if (insn->operand_bytes != 0) width = insn->operand_bytes;
  pthread_mutex_lock(&lock);
  struct access_kind *found = kind_find(insn, info);
  const unsigned count = insn->kind_count;
  for (unsigned i = 0; i < count && found == NULL; i++)
    if (kind_at(insn, i)->store == store && (insn->operand_bytes != 0 || kind_at(insn, i)->width == width)) {
      found = kind_at(insn, i);
      found->other_info = info;
    }
  if (found == NULL && count >= 2 && insn->more == NULL) insn->more = calloc(MAX_KINDS - 2, sizeof *insn->more);
  if (found == NULL && count < (insn->more != NULL ? MAX_KINDS : 2)) {
    found = kind_at(insn, count);
    found->store = store;
    found->width = width;
    found->place = ml_slot_new(insn->pc, insn->generation, width, 0, store | ml_slot_whole(insn), insn->flags);
    found->info = info;
    __atomic_store_n(&insn->kind_count, (uint8_t)(count + 1), __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&lock);
  return found != NULL ? found : &nowhere;
}

static struct access_kind *kind_slow(struct insn *insn, uint32_t info) {
  struct access_kind *found = kind_find(insn, info);
  if (found != NULL) return found;
  return kind_new(insn, info, qemu_plugin_mem_is_store(info), (uint16_t)(1u << qemu_plugin_mem_size_shift(info)));
}

static inline struct access_kind *kind_of(struct insn *insn, uint32_t info) {
  if (ML_LIKELY(insn->kinds[0].info == info)) return &insn->kinds[0];
  if (ML_LIKELY(insn->kinds[1].info == info)) return &insn->kinds[1];
  return kind_slow(insn, info);
}

static inline unsigned is_stack(const struct vcpu *vcpu, uint64_t address) {
  return address - vcpu->stack_low < vcpu->stack_bytes;
}

/* A new access, not a further part of the one before. */
static inline void begin_access(struct vcpu *vcpu, const struct insn *insn, const struct access_kind *kind,
                                uint64_t address) {
  if (ML_UNLIKELY(vcpu->executed >= vcpu->next_event)) ml_window_event(vcpu, insn->pc);
  vcpu->executed++;
  if (ML_UNLIKELY(vcpu->recording)) ml_window_add(vcpu, insn->pc, address, kind->width, kind->store);
}

/* Instructions that make one part an execution, once that is known. */
void ml_on_single_access(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *data) {
  struct insn *insn = data;
  struct vcpu *vcpu = ml_vcpus[cpu];
  struct access_kind *kind = kind_of(insn, info);
  if (ML_UNLIKELY(vcpu->resync)) ml_window_resync(vcpu);
  ml_counter(vcpu->base, kind->place)->parts[is_stack(vcpu, address)]++;
  if (ML_UNLIKELY(ml_settings.pages)) ml_page_access(vcpu, insn->pc, address, kind->store);
  begin_access(vcpu, insn, kind, address);
}

/* The same when only counts are wanted. */
void ml_on_counted_access(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *data) {
  const struct vcpu *vcpu = ml_vcpus[cpu];
  ml_counter(vcpu->base, kind_of(data, info)->place)->parts[is_stack(vcpu, address)]++;
}

/* The same for instructions that do one kind of access: as good as inline. */
void ml_on_run_access(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *run) {
  (void)info, (void)address;
  ++*(uint64_t *)((unsigned char *)ml_runs[cpu] + (uintptr_t)run);
}

/* The same while there is one thread and no region. */
void ml_on_only_access(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *data) {
  struct insn *insn = data;
  struct vcpu *vcpu = ml_plugin.only;
  struct access_kind *kind = kind_of(insn, info);
  if (ML_UNLIKELY(kind->direct == NULL || vcpu == NULL || vcpu->resync || ml_plugin.region_changes != 0)) {
    ml_on_single_access(cpu, info, address, data);
    return;
  }
  kind->direct->parts[is_stack(vcpu, address)]++;
  begin_access(vcpu, insn, kind, address);
}

/* Pages alone: the instruction counts inline. */
void ml_on_page_access(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *data) {
  const struct insn *insn = data;
  ml_page_access(ml_vcpus[cpu], insn->pc, address,
                 info == insn->kinds[0].info ? insn->kinds[0].store : qemu_plugin_mem_is_store(info));
}

/* The same while there is one thread. */
void ml_on_page_load(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *insn) {
  (void)cpu, (void)info;
  const uint64_t page = ML_FLAT_PAGE(address);
  if (ML_UNLIKELY(ml_page_count(&ml_flat_pages[0][page])))
    ml_page_first(ml_flat_vcpu, ((const struct insn *)insn)->pc, page << 12);
}

void ml_on_page_store(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *insn) {
  (void)cpu, (void)info;
  const uint64_t page = ML_FLAT_PAGE(address);
  if (ML_UNLIKELY(ml_page_count(&ml_flat_pages[1][page])))
    ml_page_first(ml_flat_vcpu, ((const struct insn *)insn)->pc, page << 12);
}

/* The parts of one execution have all come: what does it say about the instruction? */
static void end_run(struct vcpu *vcpu) {
  struct access_kind *kind = vcpu->last_kind;
  if (kind == NULL || kind->irregular) return;
  if (!vcpu->run_regular || (kind->parts != 0 && kind->parts != vcpu->run_parts) || vcpu->run_parts > UINT16_MAX) {
    kind->irregular = true;
    vcpu->last_insn->multipart = true;
    return;
  }
  kind->parts = (uint16_t)vcpu->run_parts;
  if (vcpu->run_parts > 1) vcpu->last_insn->multipart = true;
  if (ml_plugin.only != NULL) kind->runs++;
  else __atomic_fetch_add(&kind->runs, 1, __ATOMIC_RELAXED);
}

/* Before all code is translated again, while no thread is in the middle of a block: the last execution of each one is over. Else
 * an atomic operation that ran last had one load more than stores, and would not be taken for known. What calls taught counts
 * for no other translation. */
void ml_executions_settle(void) {
  for (unsigned i = 0; i < MAX_VCPUS && i <= ml_plugin.highest_vcpu; i++) {
    struct vcpu *vcpu = ml_vcpus[i];
    if (vcpu == NULL) continue;
    end_run(vcpu);
    vcpu->last_insn = NULL;
    vcpu->last_kind = NULL;
    vcpu->learning_calls = 0;
  }
}

/* The main thread's stack is where its first store goes: every start-up code calls something. */
static void find_stack(struct vcpu *vcpu, uint64_t address) {
  uint64_t begin, end;
  vcpu->stack_tried = true;
  if (ml_mapping_at(address, &begin, &end)) {
    vcpu->stack_low = begin;
    vcpu->stack_bytes = vcpu->stack_whole = end - begin;
    vcpu->born_ns = ml_now_ns(); /* after the event of its program */
    ml_write_stack(vcpu);
  }
}

static void take_part(struct vcpu *vcpu, struct insn *insn, struct access_kind *kind, uint64_t address) {
  struct ml_slot_counter *counter = ml_counter(vcpu->base, kind->place);
  const unsigned stack = is_stack(vcpu, address);
  counter->parts[stack]++;
  if (ML_UNLIKELY(ml_settings.pages)) ml_page_access(vcpu, insn->pc, address, kind->store);
  const bool same_execution =
      vcpu->last_insn == insn && vcpu->last_serial == vcpu->serial && !insn->alone && !insn->separate;
  if (same_execution && insn->operand_bytes != 0 && (vcpu->run_directions & 1u << kind->store) != 0) {
    /* The width is known: whatever else the emulator accesses belongs to the same access. */
    counter->merged[stack]++;
    vcpu->run_parts++;
    if (vcpu->last_kind != kind) vcpu->run_regular = false, kind->irregular = true; /* directions take turns */
    return;
  }
  if (same_execution && insn->operand_bytes == 0 && vcpu->last_kind->store == kind->store) {
    vcpu->run_parts++;
    if (vcpu->last_kind != kind) { /* an x87 value is 8 bytes and 2 */
      vcpu->run_regular = false;
      kind->irregular = true;
    }
    if (address == vcpu->last_end) {
      counter->merged[stack]++;
      vcpu->last_end += kind->width;
      if (vcpu->recording) ml_window_extend(vcpu, kind->width);
      return;
    }
    vcpu->run_regular = false;
  } else {
    end_run(vcpu);
    vcpu->run_directions = (uint8_t)((same_execution ? vcpu->run_directions : 0) | 1u << kind->store);
    vcpu->last_insn = insn;
    vcpu->last_kind = kind;
    vcpu->last_serial = vcpu->serial;
    vcpu->run_parts = 1;
    vcpu->run_regular = true;
    /* Another translation of it would be faster, or better: worth one when this happens often. */
    if (!ml_plugin.near && (insn->alone || (ml_kind_is_learned(kind) && ml_would_improve(insn))) &&
        ++vcpu->learning_calls >= ml_plugin.learning_limit) {
      vcpu->learning_calls = 0;
      ml_ask_reset();
    }
  }
  vcpu->last_end = address + kind->width;
  begin_access(vcpu, insn, kind, address);
}

/* Repeated movs, stos, lods. Processors move many elements at once, and so they are counted: one access for each 64 bytes of an
 * execution, and one for the rest. Not by aligned lines: counts must not depend on where a stack happens to begin. The emulator
 * runs the instruction's block anew for each element. */
static void string_slow(struct vcpu *vcpu, struct insn *insn, uint32_t info, uint64_t address) {
  const struct access_kind *kind = kind_of(insn, info);
  struct string_access *access = &vcpu->string[kind->store];
  if (ML_UNLIKELY(vcpu->resync)) ml_window_resync(vcpu);
  if (vcpu->string_insn != insn) {
    vcpu->string_insn = insn;
    vcpu->string[!kind->store].left = 0;
    if (vcpu->recording) ml_window_begin_string(vcpu);
  }
  *access = (struct string_access){.info = info,
                                   .left = ML_STRING_BYTES - kind->width,
                                   .width = kind->width,
                                   .stack = is_stack(vcpu, address),
                                   .counter = ml_counter(vcpu->base, kind->place),
                                   .page = address >> 12};
  access->counter->parts[access->stack]++;
  if (ML_UNLIKELY(ml_settings.pages)) ml_page_access(vcpu, insn->pc, address, kind->store);
  if (ML_UNLIKELY(vcpu->executed >= vcpu->next_event)) ml_window_event(vcpu, insn->pc);
  vcpu->executed++;
  if (ML_UNLIKELY(vcpu->recording)) ml_window_add_string(vcpu, insn->pc, address, kind->width, kind->store);
}

void ml_on_string_access(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *data) {
  struct insn *insn = data;
  struct vcpu *vcpu = ml_vcpus[cpu];
  struct string_access *access = &vcpu->string[vcpu->string[0].left != 0 && vcpu->string[0].info == info ? 0 : 1];
  if (ML_UNLIKELY(vcpu->string_insn != insn || access->left == 0 || access->info != info)) {
    string_slow(vcpu, insn, info, address);
    return;
  }
  access->left -= access->width;
  access->counter->parts[access->stack]++;
  access->counter->merged[access->stack]++;
  if (ML_UNLIKELY(ml_settings.pages) && access->page != address >> 12) {
    access->page = address >> 12;
    ml_page_access(vcpu, insn->pc, address, access == &vcpu->string[1]);
  }
  if (ML_UNLIKELY(vcpu->recording))
    ml_window_extend_string(vcpu, insn->pc, address, access->width, access == &vcpu->string[1]);
}

void ml_on_string_end(unsigned cpu, void *unused) {
  (void)unused;
  ml_vcpus[cpu]->string_insn = NULL;
}

/* Instructions that are not known yet, or make several parts. */
void ml_on_access(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *data) {
  struct insn *insn = data;
  struct vcpu *vcpu = ml_vcpus[cpu];
  struct access_kind *kind = kind_of(insn, info);
  if (ML_UNLIKELY(vcpu->resync)) ml_window_resync(vcpu);
  if (ML_UNLIKELY(!vcpu->stack_tried) && kind->store) find_stack(vcpu, address);
  take_part(vcpu, insn, kind, address);
}

/* Indirect jumps of x86-64. qemu up to 8.2 leaves their callbacks in force until another instruction has some: the frame of a
 * signal handler, which the emulator writes for the kernel, would go there. What one execution accesses is known, and nothing
 * more is counted. */
void ml_on_jump_begin(unsigned cpu, void *insn) { ml_vcpus[cpu]->jump_left = ((const struct insn *)insn)->jump; }

void ml_on_jump_page(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *insn) {
  struct vcpu *vcpu = ml_vcpus[cpu];
  const bool store = qemu_plugin_mem_is_store(info);
  const uint8_t direction = store ? 2 : 1;
  if ((vcpu->jump_left & direction) == 0) return;
  vcpu->jump_left &= (uint8_t)~direction;
  ml_page_access(vcpu, ((const struct insn *)insn)->pc, address, store);
}

void ml_on_jump_access(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *data) {
  struct vcpu *vcpu = ml_vcpus[cpu];
  const uint8_t direction = qemu_plugin_mem_is_store(info) ? 2 : 1;
  if ((vcpu->jump_left & direction) == 0) return;
  vcpu->jump_left &= (uint8_t)~direction;
  ml_on_single_access(cpu, info, address, data);
  if ((ml_counts_inline() || ml_only_counts()) && !ml_plugin.near &&
      ++vcpu->learning_calls >= ml_plugin.learning_limit) {
    vcpu->learning_calls = 0;
    ml_ask_reset();
  }
}

/* Atomics. What they do is a matter of the instruction set, not of how the emulator does it: qemu 7.2 shows only the
 * store of an atomic operation once there are several threads, and a store-conditional as a compare-and-exchange. */
void ml_on_atomic_access(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *data) {
  struct insn *insn = data;
  struct vcpu *vcpu = ml_vcpus[cpu];
  const bool store = qemu_plugin_mem_is_store(info);
  if (ML_UNLIKELY(vcpu->resync)) ml_window_resync(vcpu);
  if (insn->conditional && !store) return;
  if (insn->modifies && !store) {
    vcpu->loaded_insn = insn;
    vcpu->loaded_serial = vcpu->serial;
  } else if (insn->modifies && (vcpu->loaded_insn != insn || vcpu->loaded_serial != vcpu->serial)) {
    const uint16_t width = (uint16_t)(1u << qemu_plugin_mem_size_shift(info));
    const uint32_t made_up = UINT32_C(0x80000000) | width;
    struct access_kind *load = kind_find(insn, made_up);
    take_part(vcpu, insn, load != NULL ? load : kind_new(insn, made_up, false, width), address);
  }
  take_part(vcpu, insn, kind_slow(insn, info), address);
  if (store && !insn->multipart) vcpu->loaded_insn = NULL;
}

/* The same once it is known and there are no windows: a store stands for both, unless its load was shown. */
void ml_on_quick_atomic(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *data) {
  struct insn *insn = data;
  struct vcpu *vcpu = ml_vcpus[cpu];
  if (ML_LIKELY(info == insn->kinds[1].info && vcpu->loaded_insn != insn)) {
    const unsigned stack = is_stack(vcpu, address);
    ml_counter(vcpu->base, insn->kinds[0].place)->parts[stack]++;
    ml_counter(vcpu->base, insn->kinds[1].place)->parts[stack]++;
    if (ML_UNLIKELY(ml_settings.pages)) {
      ml_page_access(vcpu, insn->pc, address, false);
      ml_page_access(vcpu, insn->pc, address, true);
    }
    return;
  }
  /* Executions of its block are not told apart: one begins with a load, or with a store whose load is not shown. */
  if (!qemu_plugin_mem_is_store(info) || vcpu->loaded_insn != insn) vcpu->serial++;
  ml_on_atomic_access(cpu, info, address, data);
}

void ml_on_block(unsigned cpu, void *data) {
  struct block_info *block = data;
  if (ML_UNLIKELY(!ml_plugin.knows_code)) ml_wait_code_at(__builtin_return_address(0));
  ml_vcpus[cpu]->serial++;
  block->first->runs++;
  if (ml_plugin.only != NULL) block->executions++;
  else __atomic_fetch_add(&block->executions, 1, __ATOMIC_RELAXED);
}

/* A block is executed that counts whole: the hottest call of all under several threads, five instructions long. */
void ml_on_run(unsigned cpu, void *run) { ++*(uint64_t *)((unsigned char *)ml_runs[cpu] + (uintptr_t)run); }

/* The same for blocks that came too late for a place among the runs. */
void ml_on_run_of_slot(unsigned cpu, void *data) {
  const struct block_count *block = data;
  ml_counter(ml_vcpus[cpu]->base, block->place)->parts[0]++;
}

void ml_on_own_access(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *unused) {
  (void)cpu, (void)info, (void)address, (void)unused;
}

void ml_on_unseen(unsigned cpu, void *data) {
  const struct insn *insn = data;
  ml_counter(ml_vcpus[cpu]->base, insn->unseen_place)->parts[0]++;
}

/* Moving what was counted inline takes some microseconds: regions that change more often than that is worth have
 * their accesses counted by calls. */
#define CHANGES_TO_JUDGE 200
#define LEAST_NS_OF_REGION 300000

void ml_switch_region(struct vcpu *vcpu, uint32_t region) {
  if (vcpu->base != NULL && !ml_plugin.regions) {
    ml_inline_move(vcpu, region);
    if (__atomic_add_fetch(&ml_plugin.region_changes, 1, __ATOMIC_RELAXED) % CHANGES_TO_JUDGE == 0 &&
        (ml_now_ns() - ml_plugin.born_ns) / ml_plugin.region_changes < LEAST_NS_OF_REGION) {
      ml_plugin.regions = true;
      ml_ask_reset();
    }
  }
  if (vcpu->bases[region] == NULL) vcpu->bases[region] = ml_base_new(vcpu->thread, region);
  vcpu->base = vcpu->bases[region];
  if (vcpu->index < MAX_VCPUS) ml_runs[vcpu->index] = vcpu->base->runs;
  vcpu->region = region;
  vcpu->string_insn = NULL; /* its counters are another region's */
}
