/* Translation: what each instruction gets.
 *
 * Code is first translated with a call for every access, which shows what each instruction does: how many parts
 * an execution has, how wide they are. Once enough was seen, all code is thrown away and translated again:
 * instructions that always do the same count by themselves, inline, and the others go on with calls. */
#include "emulator.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TABLE_BITS 16
#define ENOUGH_RUNS 2

static struct insn *table[1u << TABLE_BITS];

static struct insn **bucket(uint64_t pc) { return &table[pc * UINT64_C(0x9E3779B97F4A7C15) >> (64 - TABLE_BITS)]; }

static void set_facts(struct insn *insn, const struct insn_facts *facts) {
  const enum operand_shape shape = facts->operand.shape;
  insn->flags &= (uint16_t)~(ML_ENUM_code_flags_ATOMIC | ML_ENUM_code_flags_EMULATOR_WIDTH);
  insn->flags |= (uint16_t)((facts->atomic ? ML_ENUM_code_flags_ATOMIC : 0) |
                            (shape != OPERAND_WHOLE && shape != OPERAND_PARTS ? ML_ENUM_code_flags_EMULATOR_WIDTH : 0));
  insn->modifies = facts->modifies;
  insn->conditional = facts->conditional;
  insn->separate = facts->separate;
  insn->string = facts->string;
  insn->varies = facts->varies || facts->string;
  insn->operand_bytes = shape == OPERAND_WHOLE ? facts->operand.bytes : 0;
  insn->leaves = facts->atomic || facts->leaves;
  insn->jump = facts->jump;
}

/* The instruction at `pc`; code that changed gets a new entry, and what the old one counted stays its own. */
static struct insn *insn_at(uint64_t pc, const unsigned char *bytes, size_t size, bool anonymous,
                            const struct insn_facts *facts) {
  struct insn *newest = NULL;
  for (struct insn *insn = *bucket(pc); insn != NULL; insn = insn->next) {
    if (insn->pc != pc) continue;
    /* One that crosses a page may be seen cut off first. */
    const size_t common = size < insn->bytes ? size : insn->bytes;
    if (memcmp(insn->code, bytes, common) == 0) {
      if (size > insn->bytes) {
        memcpy(insn->code, bytes, size);
        insn->bytes = (uint16_t)size;
        set_facts(insn, facts);
      }
      return insn;
    }
    if (newest == NULL || insn->generation > newest->generation) newest = insn;
  }
  struct insn *insn = calloc(1, sizeof *insn);
  if (insn == NULL) return NULL;
  insn->pc = pc;
  memcpy(insn->code, bytes, size);
  insn->bytes = (uint16_t)size;
  insn->generation = newest != NULL ? newest->generation + 1 : 0;
  insn->flags = (uint16_t)((anonymous ? ML_ENUM_code_flags_ANONYMOUS : 0) | (newest ? ML_ENUM_code_flags_MODIFIED : 0));
  set_facts(insn, facts);
  if (newest != NULL) ml_plugin.modified++;
  insn->next = *bucket(pc);
  *bucket(pc) = insn;
  return insn;
}

bool ml_kind_is_learned(const struct access_kind *kind) { return !kind->irregular && kind->runs >= ENOUGH_RUNS; }

static bool all_learned(const struct insn *insn) {
  for (unsigned i = 0; i < insn->kind_count; i++)
    if (!ml_kind_is_learned(&insn->kinds[i])) return false;
  return insn->kind_count != 0;
}

/* The last execution of each thread may not have been looked at yet. */
static uint64_t unsettled_runs(void) { return ml_plugin.only != NULL ? 0 : (uint64_t)ml_plugin.highest_vcpu + 1; }

/* An atomic operation that always did as many loads as stores, of the same width. */
static bool always_both(const struct insn *insn) {
  const struct access_kind *a = &insn->kinds[0], *b = &insn->kinds[1];
  const uint64_t unsettled = unsettled_runs();
  return insn->kind_count == 2 && a->store != b->store && a->width == b->width && a->parts == b->parts &&
         a->runs + unsettled >= b->runs && b->runs + unsettled >= a->runs &&
         a->runs >= 2 * ENOUGH_RUNS * (1 + unsettled);
}

/* An atomic operation may be shown once, as a load and a store in one, or as one after the other: under several threads,
 * and from when the program maps shared memory, as our library in it does. A call for its page would see one access. */
#if ML_PLUGIN_API == 1
/* One thread only: an inline addition has one address and is not atomic. Directions cannot be told apart: qemu 7.2
 * runs what was asked for loads on stores, and not on loads (op_rw of its plugin-gen.c). So an instruction that
 * does both counts them together. */
static bool can_count_inline(const struct insn *insn) {
  if ((insn->flags & ML_ENUM_code_flags_ATOMIC) != 0 && (!insn->modifies || ml_settings.pages)) return false;
  return (insn->kind_count == 1 && !insn->modifies) || always_both(insn);
}

static bool is_known_atomic(const struct insn *insn) { return ml_plugin.only != NULL && always_both(insn); }
#else
static bool can_count_inline(const struct insn *insn) {
  if ((insn->flags & ML_ENUM_code_flags_ATOMIC) == 0) return true;
  return insn->modifies && always_both(insn) && !ml_settings.pages;
}

static bool is_known_atomic(const struct insn *insn) { return always_both(insn); }
#endif

/* An instruction whose every execution is known: one width in each direction, always the same parts. */
static bool is_learned(const struct insn *insn) {
  if (insn->kind_count > 2 || insn->conditional || insn->varies || !all_learned(insn)) return false;
  if (insn->modifies && !is_known_atomic(insn)) return false;
  return insn->kind_count == 1 || insn->kinds[0].store != insn->kinds[1].store;
}

/* An atomic operation of one part each way, which is counted at its store: under several threads that is all that is shown. */
static bool is_quick_atomic(const struct insn *insn) {
  return insn->modifies && !insn->conditional && ml_no_windows() && all_learned(insn) && always_both(insn) &&
         insn->kinds[1].store && insn->kinds[1].parts == 1;
}

/* Would it be translated to something faster now? */
bool ml_would_improve(const struct insn *insn) {
  if (!is_learned(insn)) return is_quick_atomic(insn);
  return !insn->multipart || (ml_counts_inline() ? can_count_inline(insn) : ml_only_counts() && !insn->judged);
}

static void count_inline(struct qemu_plugin_insn *handle, struct insn *insn) {
  unsigned seen = 0;
  /* as many loads as stores: see always_both() */
  if (insn->modifies || (ML_PLUGIN_API == 1 && insn->kind_count == 2)) {
    struct access_kind *kind = &insn->kinds[0];
    if (!kind->has_inline) {
      kind->inline_place = ml_slot_new(insn->pc, insn->generation, kind->width, kind->parts,
                                       ML_SLOT_STORE_BOTH | ml_slot_whole(insn), insn->flags);
      kind->has_inline = true;
    }
#if ML_PLUGIN_API == 1
    /* Once either way: at the load, with qemu 7.2 at the store (see above), or at what is both. */
    qemu_plugin_register_vcpu_mem_inline(handle, QEMU_PLUGIN_MEM_R, QEMU_PLUGIN_INLINE_ADD_U64,
                                         ml_inline_counter(kind->inline_place), 2);
#else
    /* Shown once as a load and a store, or one after the other: there is one store either way. */
    qemu_plugin_register_vcpu_mem_inline_per_vcpu(handle, QEMU_PLUGIN_MEM_W, QEMU_PLUGIN_INLINE_ADD_U64,
                                                  ml_score(kind->inline_place), 2);
#endif
    return;
  }
  for (unsigned i = 0; i < insn->kind_count; i++) {
    struct access_kind *kind = &insn->kinds[i];
    if (!kind->has_inline) {
      kind->inline_place = ml_slot_new(insn->pc, insn->generation, kind->width, kind->parts,
                                       kind->store | ml_slot_whole(insn), insn->flags);
      kind->has_inline = true;
    }
#if ML_PLUGIN_API == 1
    seen = QEMU_PLUGIN_MEM_RW;
    qemu_plugin_register_vcpu_mem_inline(handle, QEMU_PLUGIN_MEM_RW, QEMU_PLUGIN_INLINE_ADD_U64,
                                         ml_inline_counter(kind->inline_place), 1);
#else
    const enum qemu_plugin_mem_rw direction = kind->store ? QEMU_PLUGIN_MEM_W : QEMU_PLUGIN_MEM_R;
    seen |= direction;
    qemu_plugin_register_vcpu_mem_inline_per_vcpu(handle, direction, QEMU_PLUGIN_INLINE_ADD_U64,
                                                  ml_score(kind->inline_place), 1);
#endif
  }
  if (seen != QEMU_PLUGIN_MEM_RW)
    qemu_plugin_register_vcpu_mem_cb(handle, ml_on_access, QEMU_PLUGIN_CB_NO_REGS,
                                     seen == QEMU_PLUGIN_MEM_R ? QEMU_PLUGIN_MEM_W : QEMU_PLUGIN_MEM_R, insn);
}

/* Addresses behind a call, where returns arrive; and behind a repeated string instruction. */
struct addresses {
  uint64_t *slots;
  size_t mask, count;
};
static struct addresses landings, string_ends;

static bool address_find(struct addresses *set, uint64_t pc, bool add) {
  if (set->slots == NULL || 2 * (set->count + 1) > set->mask) {
    const size_t mask = set->mask ? 2 * set->mask + 1 : 4095;
    uint64_t *grown = calloc(mask + 1, sizeof *grown);
    if (grown == NULL) return false;
    for (size_t i = 0; set->slots != NULL && i <= set->mask; i++) {
      if (set->slots[i] == 0) continue;
      size_t at = (set->slots[i] * UINT64_C(0x9E3779B97F4A7C15) >> 20) & mask;
      while (grown[at] != 0) at = (at + 1) & mask;
      grown[at] = set->slots[i];
    }
    free(set->slots);
    set->slots = grown;
    set->mask = mask;
  }
  size_t at = (pc * UINT64_C(0x9E3779B97F4A7C15) >> 20) & set->mask;
  while (set->slots[at] != 0 && set->slots[at] != pc) at = (at + 1) & set->mask;
  if (set->slots[at] == pc) return true;
  if (add) {
    set->slots[at] = pc;
    set->count++;
  }
  return add;
}

/* ---- blocks that count whole ------------------------------------------------------------------------------------
 * Where an instruction's accesses are known, the executions of its block are enough to count them. A block is only left
 * in the middle by a fault, which ends a program that has no handler for it, by code that changes itself, and by atomics
 * and the like under several threads (`leaves`): behind one, executions are counted anew. */
#define MAX_INSNS 512
#define ENOUGH_EXECUTIONS 8

static struct block_info *blocks; /* that are told apart */

void ml_blocks_settle(bool gone) {
  for (struct block_info *block = blocks, *next; block != NULL; block = next) {
    for (unsigned i = 0; i < block->count; i++) {
      struct insn *insn = block->insns[i];
      insn->executions += block->executions;
      for (unsigned k = 0; k < 2; k++) insn->kinds[k].settled_runs = insn->kinds[k].runs;
    }
    block->executions = 0;
    next = block->next;
    if (gone) free(block);
  }
  if (gone) blocks = NULL;
}

/* Exactly one run of each kind in every execution; the last one of each thread may not have been looked at yet. */
static bool always_the_same(struct insn *insn) {
  const uint64_t threads = ml_plugin.only != NULL ? 1 : (uint64_t)ml_plugin.highest_vcpu + 1;
  if (insn->executions < ENOUGH_EXECUTIONS * threads) return false;
  insn->judged = true;
  for (unsigned i = 0; i < insn->kind_count; i++) {
    const uint32_t runs = insn->kinds[i].settled_runs;
    if (runs >= UINT32_MAX / 2 || runs > insn->executions || runs + threads < insn->executions) return false;
  }
  return true;
}

static struct block_count *block_count_of(struct insn *const *insns, unsigned count) {
  struct insn *first = insns[0];
  for (struct block_count *known = first->blocks; known != NULL; known = known->next)
    if (known->count == count && memcmp(known->insns, insns, count * sizeof *insns) == 0) return known;
  struct block_count *block = malloc(sizeof *block + count * sizeof *insns);
  if (block == NULL) return NULL;
  block->count = count;
  block->run_asked = false;
  memcpy(block->insns, insns, count * sizeof *insns);
  unsigned accesses = 0;
  for (unsigned i = 0; i < count; i++) accesses += insns[i]->kind_count;
  block->place = ml_slot_new(first->pc, first->generation, 0, accesses, ML_SLOT_STORE_RUNS, first->flags);
  for (unsigned i = 0; i < count; i++)
    for (unsigned k = 0; k < insns[i]->kind_count; k++) {
      struct access_kind *kind = &insns[i]->kinds[k];
      if (!kind->has_member) {
        kind->member_place = ml_slot_new(insns[i]->pc, insns[i]->generation, kind->width, kind->parts,
                                         kind->store | ml_slot_whole(insns[i]), insns[i]->flags);
        kind->has_member = true;
      }
      ml_member_new(block->place, kind->member_place, kind->parts);
    }
  block->next = first->blocks;
  first->blocks = block;
  return block;
}

/* Has it a place where calls count it quickly? It gets one if there is one left. */
static bool has_run(struct block_count *block) {
  if (!block->run_asked) block->run = ml_run_new(block->place);
  block->run_asked = true;
  return block->run != UINT32_MAX;
}

/* An instruction of the block being translated. */
struct translated {
  struct qemu_plugin_insn *handle;
  struct insn *insn; /* NULL: our own library's */
  struct insn_facts facts;
  uint64_t next_pc;
  bool member; /* counted with the executions of its block */
};

static void look_up(struct translated *one, struct qemu_plugin_insn *handle) {
  const uint64_t pc = qemu_plugin_insn_vaddr(handle);
  const size_t whole = qemu_plugin_insn_size(handle), size = whole < MAX_CODE ? whole : MAX_CODE;
  const struct code_place place = ml_code_place(pc);
  *one = (struct translated){.handle = handle, .next_pc = pc + whole};
  if (place.own) return;
  const unsigned char *bytes = qemu_plugin_insn_haddr(handle);
  unsigned char copy[MAX_CODE] = {0};
  if (bytes != NULL) memcpy(copy, bytes, size);
  one->facts = ml_decode(copy, size);
  one->insn = insn_at(pc, copy, size, place.anonymous, &one->facts);
}

/* An indirect jump whose accesses have their slots. What each execution does is known from its encoding. */
static bool is_known_jump(struct insn *insn) {
  if (insn->jump == 0 || insn->kind_count != (insn->jump == 3 ? 2 : 1)) return false;
  for (unsigned i = 0; i < insn->kind_count; i++) insn->kinds[i].parts = 1;
  return true;
}

static bool is_member(const struct translated *one, bool inline_now) {
  struct insn *insn = one->insn;
  if (insn->jump != 0) return false; /* counts its own executions */
  if (insn->leaves || insn->separate || insn->string || one->facts.role == ROLE_UNSEEN) return false;
  if (insn->kind_count == 0 || !is_learned(insn) || (inline_now && !can_count_inline(insn))) return false;
  return always_the_same(insn);
}

static void count_executions(struct qemu_plugin_tb *tb, struct qemu_plugin_insn *handle, struct block_count *block,
                             bool inline_now) {
  if (!inline_now) {
    const bool among_runs = has_run(block);
    const qemu_plugin_vcpu_udata_cb_t callback = among_runs ? ml_on_run : ml_on_run_of_slot;
    void *data = among_runs ? (void *)(uintptr_t)block->run : block;
    if (handle == NULL) qemu_plugin_register_vcpu_tb_exec_cb(tb, callback, QEMU_PLUGIN_CB_NO_REGS, data);
    else qemu_plugin_register_vcpu_insn_exec_cb(handle, callback, QEMU_PLUGIN_CB_NO_REGS, data);
    return;
  }
#if ML_PLUGIN_API == 1
  uint64_t *counter = ml_inline_counter(block->place);
  if (handle == NULL) qemu_plugin_register_vcpu_tb_exec_inline(tb, QEMU_PLUGIN_INLINE_ADD_U64, counter, 1);
  else qemu_plugin_register_vcpu_insn_exec_inline(handle, QEMU_PLUGIN_INLINE_ADD_U64, counter, 1);
#else
  const qemu_plugin_u64 score = ml_score(block->place);
  if (handle == NULL) qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(tb, QEMU_PLUGIN_INLINE_ADD_U64, score, 1);
  else qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(handle, QEMU_PLUGIN_INLINE_ADD_U64, score, 1);
#endif
}

/* Finds the members of a block and has its executions counted for them: from its beginning, and from behind each one that may leave it. */
static void count_whole(struct qemu_plugin_tb *tb, struct translated *all, size_t count, bool inline_now) {
  if (ml_plugin.handles_faults) return;
  for (size_t i = 0; i < count; i++) {
    if (all[i].insn == NULL || (all[i].insn->flags & ML_ENUM_code_flags_ANONYMOUS) != 0) return;
    if (ml_settings.functions[0] != 0 && ml_function_region(all[i].insn->pc) != 0) return; /* a region begins in it */
  }
  for (size_t begin = 0, end; begin < count; begin = end) {
    struct insn *members[MAX_INSNS];
    unsigned member_count = 0, accesses = 0;
    size_t first = begin;
    for (end = begin; end < count; end++) {
      if (end > begin && all[end - 1].insn->leaves) break;
      if (!is_member(&all[end], inline_now)) continue;
      if (member_count == 0) first = end;
      members[member_count++] = all[end].insn;
      accesses += all[end].insn->kind_count;
    }
    if (accesses < (inline_now ? 2 : 1)) continue; /* an inline addition at the access is as good */
    struct block_count *block = block_count_of(members, member_count);
    if (block == NULL) continue;
    count_executions(tb, begin == 0 ? NULL : all[first].handle, block, inline_now);
    for (size_t i = begin, k = 0; i < end && k < member_count; i++)
      if (all[i].insn == members[k]) all[i].member = true, k++;
  }
}

/* Not one for each direction: see always_both(). */
static qemu_plugin_vcpu_mem_cb_t page_callback(const struct insn *insn) {
  if (insn->kind_count != 1 || ml_plugin.only == NULL || !ml_plugin.only->flat) return ml_on_page_access;
  return insn->kinds[0].store ? ml_on_page_store : ml_on_page_load;
}

static void follow_calls(const struct translated *one) {
  if (one->facts.role == ROLE_CALL) {
    address_find(&landings, one->next_pc, true);
    qemu_plugin_register_vcpu_insn_exec_cb(one->handle, ml_on_call, QEMU_PLUGIN_CB_NO_REGS,
                                           (void *)(uintptr_t)one->next_pc);
    if ((ml_settings.functions[0] != 0 || ml_settings.frames) && ml_settings.machine == EM_X86_64)
      qemu_plugin_register_vcpu_mem_cb(one->handle, ml_on_call_store, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_RW,
                                       (void *)(uintptr_t)one->next_pc);
  } else if (one->facts.role == ROLE_RETURN || one->facts.role == ROLE_JUMP) {
    qemu_plugin_register_vcpu_insn_exec_cb(one->handle, ml_on_jump, QEMU_PLUGIN_CB_NO_REGS, NULL);
  }
}

void ml_translate(qemu_plugin_id_t id, struct qemu_plugin_tb *tb) {
  (void)id;
  struct translated all[MAX_INSNS];
  const size_t n_insns = qemu_plugin_tb_n_insns(tb), count = n_insns < MAX_INSNS ? n_insns : MAX_INSNS;
  const bool inline_now = ml_counts_inline();
  const bool pages = inline_now && ml_settings.pages;
  const bool calls = ml_settings.stacks || ml_settings.frames || ml_settings.functions[0] != 0;
  ml_plugin.translations++;
  if (count == 0) return;
  if (!ml_plugin.guest_base_known) {
    const struct qemu_plugin_insn *first = qemu_plugin_tb_get_insn(tb, 0);
    ml_plugin.guest_base = (uint64_t)(uintptr_t)qemu_plugin_insn_haddr(first) - qemu_plugin_insn_vaddr(first);
    ml_plugin.guest_base_known = true;
    char *program = ml_program_path();
    ml_write_process_event(ML_ENUM_process_operation_EXEC, (uint32_t)getpid(), 0, program);
    free(program);
  }
  if (string_ends.count != 0 && address_find(&string_ends, qemu_plugin_tb_vaddr(tb), false))
    qemu_plugin_register_vcpu_tb_exec_cb(tb, ml_on_string_end, QEMU_PLUGIN_CB_NO_REGS, NULL);
  if (calls && address_find(&landings, qemu_plugin_tb_vaddr(tb), false))
    qemu_plugin_register_vcpu_tb_exec_cb(tb, ml_on_landing, QEMU_PLUGIN_CB_NO_REGS,
                                         (void *)(uintptr_t)qemu_plugin_tb_vaddr(tb));
  for (size_t i = 0; i < count; i++) look_up(&all[i], qemu_plugin_tb_get_insn(tb, i));
  struct insn *first = all[0].insn;
  if (first == NULL) {
    /* Our own library. Not nothing: qemu 7.2 leaves the callbacks of an instruction that jumps indirectly in force, and
     * accesses that emulator functions make for code without callbacks would go there. */
    for (size_t i = 0; i < count; i++)
      qemu_plugin_register_vcpu_mem_cb(all[i].handle, ml_on_own_access, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_RW,
                                       NULL);
    return;
  }
  const bool known_block = first->runs >= 2;
  if (first->runs > 0) ml_plugin.learning_limit += LEARNING_OF_BLOCK;
  /* Where code cannot count inline (several threads, regions that change often), a call for each execution is still
   * cheaper than one for each access. */
  const bool may_be_whole = n_insns <= MAX_INSNS && (inline_now || ml_only_counts());
  if (may_be_whole && known_block) count_whole(tb, all, count, inline_now);
  struct insn *told_apart[MAX_INSNS];
  unsigned told_apart_count = 0;
  bool needs_serial = false;
  for (size_t i = 0; i < count; i++) {
    struct insn *insn = all[i].insn;
    struct qemu_plugin_insn *handle = all[i].handle;
    const struct insn_facts *facts = &all[i].facts;
    if (insn == NULL) continue;
    if (facts->role == ROLE_UNSEEN && insn->unseen_name == NULL) {
      insn->unseen_name = facts->unseen;
      insn->unseen_place =
          ml_slot_new(insn->pc, insn->generation, 0, 1, ML_SLOT_STORE_UNSEEN, insn->flags | ML_ENUM_code_flags_UNSEEN);
    }
    if (facts->role == ROLE_UNSEEN)
      qemu_plugin_register_vcpu_insn_exec_cb(handle, ml_on_unseen, QEMU_PLUGIN_CB_NO_REGS, insn);
    if (calls) {
      const uint32_t region = ml_function_region(insn->pc);
      if (ml_is_handler(insn->pc))
        qemu_plugin_register_vcpu_insn_exec_cb(handle, ml_on_handler, QEMU_PLUGIN_CB_NO_REGS, NULL);
      if (region != 0)
        qemu_plugin_register_vcpu_insn_exec_cb(handle, ml_on_function, QEMU_PLUGIN_CB_NO_REGS,
                                               (void *)(uintptr_t)region);
    }
    const bool learned = is_learned(insn), counts_inline = learned && inline_now && can_count_inline(insn);
    if (all[i].member) {
      /* counted with its block */
      if (pages)
        qemu_plugin_register_vcpu_mem_cb(handle, page_callback(insn), QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_RW, insn);
    } else if (insn->jump != 0) {
      struct block_count *own =
          is_known_jump(insn) && (inline_now || ml_only_counts()) ? block_count_of(&insn, 1) : NULL;
      if (own != NULL) count_executions(tb, handle, own, inline_now);
      if (own == NULL || pages) {
        qemu_plugin_register_vcpu_insn_exec_cb(handle, ml_on_jump_begin, QEMU_PLUGIN_CB_NO_REGS, insn);
        qemu_plugin_register_vcpu_mem_cb(handle, own == NULL ? ml_on_jump_access : ml_on_jump_page,
                                         QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_RW, insn);
      }
    } else if (insn->string) {
      address_find(&string_ends, all[i].next_pc, true);
      qemu_plugin_register_vcpu_mem_cb(handle, ml_on_string_access, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_RW, insn);
    } else if (!counts_inline && is_quick_atomic(insn)) {
      qemu_plugin_register_vcpu_mem_cb(handle, ml_on_quick_atomic, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_RW, insn);
    } else if ((insn->modifies && !counts_inline) || insn->conditional) {
      qemu_plugin_register_vcpu_mem_cb(handle, ml_on_atomic_access, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_RW, insn);
      needs_serial = true;
    } else if (counts_inline) {
      count_inline(handle, insn);
      if (pages)
        qemu_plugin_register_vcpu_mem_cb(handle, page_callback(insn), QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_RW, insn);
    } else if (learned && !insn->multipart) {
      const bool only = ml_plugin.only != NULL && ml_plugin.region_changes == 0 && !ml_settings.pages;
      for (unsigned k = 0; only && k < insn->kind_count; k++)
        insn->kinds[k].direct = ml_counter(ml_plugin.only->base, insn->kinds[k].place);
      const bool one_kind = ml_only_counts() && insn->kind_count == 1 && !insn->leaves;
      struct block_count *block = one_kind ? block_count_of(&insn, 1) : NULL;
      qemu_plugin_vcpu_mem_cb_t callback = ml_only_counts() ? ml_on_counted_access
                                           : only           ? ml_on_only_access
                                                            : ml_on_single_access;
      void *data = insn;
      if (block != NULL && has_run(block)) {
        callback = ml_on_run_access;
        data = (void *)(uintptr_t)block->run;
      }
      qemu_plugin_register_vcpu_mem_cb(handle, callback, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_RW, data);
    } else {
      /* In a block that has run, an instruction without accesses has none, nearly always: it need not be told when
       * its executions end, and if it makes accesses after all they are not merged. */
      insn->alone = known_block && insn->kind_count == 0 && insn->operand_bytes == 0;
      needs_serial |= !insn->alone;
      if (!insn->alone) told_apart[told_apart_count++] = insn;
      qemu_plugin_register_vcpu_mem_cb(handle, ml_on_access, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_RW, insn);
    }
    if (calls) follow_calls(&all[i]);
  }
  struct block_info *block = needs_serial ? malloc(sizeof *block + told_apart_count * sizeof *told_apart) : NULL;
  if (block == NULL) return;
  block->next = blocks;
  block->executions = 0;
  block->first = first;
  block->count = told_apart_count;
  memcpy(block->insns, told_apart, told_apart_count * sizeof *told_apart);
  blocks = block;
  qemu_plugin_register_vcpu_tb_exec_cb(tb, ml_on_block, QEMU_PLUGIN_CB_NO_REGS, block);
}
