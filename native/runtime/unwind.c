/* Call stacks of the calling thread from .eh_frame, with the rules of every address seen kept in a
 * table: a step costs some nanoseconds. Takes no lock, allocates nothing, opens nothing, and never
 * touches memory that the kernel has not called readable, so it is safe in signal handlers and with
 * wrong unwind tables.
 *
 * Why not libunwind: its static library is not position independent as packaged, and the shared one
 * opens a pipe in the program at the first stack (it writes to it to test memory), which shifts the
 * program's descriptor numbers and fails when it has none left.
 *
 * What a step needs is where the caller's frame begins (CFA), where the return address lies and
 * where the caller's frame pointer was saved. Functions whose CFA needs another register, or an
 * expression other than "load from frame pointer plus offset", end the stack (marked truncated).
 * Code without tables (just-in-time compiled) is walked by frame pointers. POWER keeps a chain of frames,
 * which is all that is used there; on machines without code here stacks are empty. */
#include "runtime.h"

#include <dlfcn.h>
#include <features.h>
#include <link.h>
#include <string.h>

/* ---- reading the stack ------------------------------------------------------------------------- */
/* between two frames, of a frame that reaches over pages: otherwise the kernel would be asked again at every stack */
#define GAP_BYTES 65536u
static bool extend_safe(uint64_t address) {
  const uint64_t page = address & ~UINT64_C(4095);
  if (!ml_readable(page, 4096)) return false;
  while (ml_self.safe_high < page && page - ml_self.safe_high <= GAP_BYTES && ml_readable(ml_self.safe_high, 4096))
    ml_self.safe_high += 4096;
  if (page == ml_self.safe_high) ml_self.safe_high = page + 4096;
  else if (page + 4096 == ml_self.safe_low) ml_self.safe_low = page;
  else {
    ml_self.safe_low = page;
    ml_self.safe_high = page + 4096;
  }
  return true;
}

static inline bool load(uint64_t address, uint64_t *value) {
  if ((address & 7) != 0) return false;
  if (ML_UNLIKELY(address < ml_self.safe_low || address >= ml_self.safe_high) && !extend_safe(address)) return false;
  *value = *(const volatile uint64_t *)(uintptr_t)address;
  return true;
}

#if defined(__x86_64__) || defined(__aarch64__) || defined(__riscv)
#if defined(__x86_64__)
enum { SP = 7, FP = 6, RA = 16 };
#define CODE_MASK UINT64_MAX
#elif defined(__riscv)
enum { SP = 2, FP = 8, RA = 1 };
#define CODE_MASK UINT64_MAX
#else
enum { SP = 31, FP = 29, RA = 30 };
#define CODE_MASK UINT64_C(0x0000ffffffffffff) /* without a pointer signature */
#endif

/* ---- the table: address → how to leave its function ---------------------------------------- */
enum kind {
  KIND_SP = 1,   /* CFA = stack pointer + offset */
  KIND_FP,       /* CFA = frame pointer + offset */
  KIND_DEREF_FP, /* CFA = *(frame pointer + offset) */
  KIND_SIGNAL,   /* the return from a signal handler: registers are in memory */
  KIND_END,      /* outermost frame */
  KIND_BLIND,    /* no table: try the frame pointer */
  KIND_STOP      /* a rule that is not understood */
};
/* kind 4 bits | CFA offset 28 | frame pointer: slot 15 + mode 1 | return address slot 16 */
#define SLOT_SAME 0x7fff
struct rule {
  unsigned kind;
  int64_t cfa_offset;
  int32_t fp_slot, ra_slot; /* offset / 8 from the CFA, SLOT_SAME: unchanged */
  bool fp_from_fp;          /* fp_slot counts from the frame pointer */
};

#define CACHE_BITS 13
static struct {
  _Atomic uint64_t key, value;
} cache[1u << CACHE_BITS];

static uint64_t pack(const struct rule *rule) {
  if (rule->cfa_offset < -(1 << 27) || rule->cfa_offset >= 1 << 27 || rule->fp_slot < -16384 ||
      rule->fp_slot > SLOT_SAME || rule->ra_slot < -32768 || rule->ra_slot > SLOT_SAME)
    return KIND_STOP;
  return (uint64_t)rule->kind | ((uint64_t)(rule->cfa_offset & 0xfffffff) << 4) |
         ((uint64_t)(rule->fp_slot & 0x7fff) << 32) | ((uint64_t)rule->fp_from_fp << 47) |
         ((uint64_t)(rule->ra_slot & 0xffff) << 48);
}

static struct rule unpack(uint64_t value) {
  struct rule rule = {.kind = value & 15,
                      .cfa_offset = (int64_t)(value << 32) >> 36,
                      .fp_from_fp = value >> 47 & 1,
                      .ra_slot = (int16_t)(value >> 48)};
  const uint32_t slot = value >> 32 & 0x7fff;
  rule.fp_slot = slot == SLOT_SAME ? SLOT_SAME : (int32_t)(slot << 17) >> 17;
  return rule;
}

/* ---- reading .eh_frame ------------------------------------------------------------------------ */
struct cursor {
  const unsigned char *at, *end;
};

static uint64_t take(struct cursor *cursor, unsigned bytes) {
  uint64_t value = 0;
  if ((size_t)(cursor->end - cursor->at) < bytes) {
    cursor->at = cursor->end;
    return 0;
  }
  memcpy(&value, cursor->at, bytes);
  cursor->at += bytes;
  return value;
}

static uint64_t take_uleb(struct cursor *cursor) {
  uint64_t value = 0;
  for (unsigned shift = 0; cursor->at < cursor->end; shift += 7) {
    const unsigned char byte = *cursor->at++;
    if (shift < 64) value |= (uint64_t)(byte & 0x7f) << shift;
    if ((byte & 0x80) == 0) break;
  }
  return value;
}

static int64_t take_sleb(struct cursor *cursor) {
  uint64_t value = 0;
  for (unsigned shift = 0; cursor->at < cursor->end;) {
    const unsigned char byte = *cursor->at++;
    if (shift < 64) value |= (uint64_t)(byte & 0x7f) << shift;
    shift += 7;
    if ((byte & 0x80) == 0) {
      if (shift < 64 && (byte & 0x40) != 0) value |= ~UINT64_C(0) << shift;
      break;
    }
  }
  return (int64_t)value;
}

static uint64_t take_encoded(struct cursor *cursor, unsigned encoding) {
  const uint64_t place = (uint64_t)(uintptr_t)cursor->at;
  uint64_t value;
  switch (encoding & 0x0f) {
    case 0x01: value = take_uleb(cursor); break;
    case 0x02: value = take(cursor, 2); break;
    case 0x03: value = take(cursor, 4); break;
    case 0x09: value = (uint64_t)take_sleb(cursor); break;
    case 0x0a: value = (uint64_t)(int16_t)take(cursor, 2); break;
    case 0x0b: value = (uint64_t)(int32_t)take(cursor, 4); break;
    default: value = take(cursor, 8); break;
  }
  return (encoding & 0x70) == 0x10 ? value + place : value;
}

struct registers_rule {
  uint8_t how; /* 0 same, 1 at CFA + offset, 2 undefined, 3 at FP + offset, 4 other */
  int64_t offset;
};
struct row {
  uint8_t cfa_how; /* 0 register, 1 load from FP + offset, 2 other */
  uint64_t cfa_register;
  int64_t cfa_offset;
  struct registers_rule fp, ra;
};

/* Only "frame pointer + offset", optionally loaded from. */
static bool simple_expression(struct cursor expression, int64_t *offset, bool *deref) {
  *deref = false;
  if (expression.at >= expression.end || *expression.at != 0x70 + FP) return false;
  expression.at++;
  *offset = take_sleb(&expression);
  if (expression.at == expression.end) return true;
  *deref = *expression.at == 0x06;
  return *deref && expression.at + 1 == expression.end;
}

static void set_rule(struct row *row, uint64_t number, uint8_t how, int64_t offset) {
  if (number == FP) row->fp = (struct registers_rule){how, offset};
  if (number == RA) row->ra = (struct registers_rule){how, offset};
}

static void execute(struct cursor code, struct row *row, const struct row *initial, uint64_t location, uint64_t target,
                    uint64_t code_factor, int64_t data_factor, unsigned encoding) {
  struct row kept[8];
  unsigned kept_count = 0;
  while (code.at < code.end && location <= target) {
    const unsigned char byte = *code.at++;
    const unsigned low = byte & 0x3f;
    uint64_t number;
    struct cursor expression;
    int64_t offset;
    bool deref;
    switch (byte & 0xc0) {
      case 0x40: location += low * code_factor; continue;
      case 0x80: set_rule(row, low, 1, (int64_t)take_uleb(&code) * data_factor); continue;
      case 0xc0:
        if (low == FP) row->fp = initial->fp;
        if (low == RA) row->ra = initial->ra;
        continue;
      default: break;
    }
    switch (byte) {
      case 0x00: break;
      case 0x01: location = take_encoded(&code, encoding); break;
      case 0x02: location += take(&code, 1) * code_factor; break;
      case 0x03: location += take(&code, 2) * code_factor; break;
      case 0x04: location += take(&code, 4) * code_factor; break;
      case 0x05:
        number = take_uleb(&code);
        set_rule(row, number, 1, (int64_t)take_uleb(&code) * data_factor);
        break;
      case 0x06:
        number = take_uleb(&code);
        if (number == FP) row->fp = initial->fp;
        if (number == RA) row->ra = initial->ra;
        break;
      case 0x07: set_rule(row, take_uleb(&code), 2, 0); break;
      case 0x08: set_rule(row, take_uleb(&code), 0, 0); break;
      case 0x09:
        number = take_uleb(&code);
        take_uleb(&code);
        set_rule(row, number, 4, 0);
        break;
      case 0x0a:
        if (kept_count < 8) kept[kept_count] = *row;
        kept_count++;
        break;
      case 0x0b:
        if (kept_count > 0 && --kept_count < 8) *row = kept[kept_count];
        break;
      case 0x0c:
        row->cfa_how = 0;
        row->cfa_register = take_uleb(&code);
        row->cfa_offset = (int64_t)take_uleb(&code);
        break;
      case 0x0d:
        row->cfa_how = 0;
        row->cfa_register = take_uleb(&code);
        break;
      case 0x0e: row->cfa_offset = (int64_t)take_uleb(&code); break;
      case 0x0f:
      case 0x10:
      case 0x16:
        number = byte == 0x0f ? 0 : take_uleb(&code);
        expression.at = NULL;
        {
          const uint64_t length = take_uleb(&code);
          if (length > (uint64_t)(code.end - code.at)) return;
          expression = (struct cursor){code.at, code.at + length};
          code.at += length;
        }
        if (byte == 0x0f) {
          row->cfa_how = 2;
          if (simple_expression(expression, &offset, &deref)) {
            row->cfa_how = deref ? 1 : 0;
            row->cfa_register = FP;
            row->cfa_offset = offset;
          }
        } else if (byte == 0x10 && simple_expression(expression, &offset, &deref) && !deref) {
          set_rule(row, number, 3, offset);
        } else {
          set_rule(row, number, 4, 0);
        }
        break;
      case 0x11:
        number = take_uleb(&code);
        set_rule(row, number, 1, take_sleb(&code) * data_factor);
        break;
      case 0x12:
        row->cfa_how = 0;
        row->cfa_register = take_uleb(&code);
        row->cfa_offset = take_sleb(&code) * data_factor;
        break;
      case 0x13: row->cfa_offset = take_sleb(&code) * data_factor; break;
      case 0x14:
        number = take_uleb(&code);
        take_uleb(&code);
        set_rule(row, number, 4, 0);
        break;
      case 0x15:
        number = take_uleb(&code);
        take_sleb(&code);
        set_rule(row, number, 4, 0);
        break;
      case 0x2d: break; /* AArch64: the return address changes its signature; it is masked anyway */
      case 0x2e: take_uleb(&code); break;
      case 0x2f:
        number = take_uleb(&code);
        set_rule(row, number, 1, -(int64_t)take_uleb(&code) * data_factor);
        break;
      default: row->cfa_how = 2; return;
    }
  }
}

struct found_object {
  const unsigned char *eh_frame_header;
  uint64_t begin, end;
};

struct search {
  uint64_t pc;
  struct found_object found;
};
static int look_at_object(struct dl_phdr_info *info, size_t bytes, void *argument) {
  (void)bytes;
  struct search *search = argument;
  bool inside = false;
  const unsigned char *header = NULL;
  uint64_t begin = UINT64_MAX, end = 0;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
    const uint64_t at = info->dlpi_addr + segment->p_vaddr;
    if (segment->p_type == PT_LOAD) {
      if (search->pc >= at && search->pc < at + segment->p_memsz) inside = true;
      if (at < begin) begin = at;
      if (at + segment->p_memsz > end) end = at + segment->p_memsz;
    }
    if (segment->p_type == PT_GNU_EH_FRAME) header = (const unsigned char *)(uintptr_t)at;
  }
  if (!inside) return 0;
  search->found = (struct found_object){header, begin, end};
  return 1;
}

/* glibc 2.35 has a look-up without a lock; others (and musl, whose programs load this library too)
 * have dl_iterate_phdr only. */
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 35)
extern __typeof__(_dl_find_object) _dl_find_object __attribute__((weak));
#endif

static bool find_object(uint64_t pc, struct found_object *found) {
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 35)
  if (_dl_find_object != NULL) {
    struct dl_find_object result;
    if (_dl_find_object((void *)(uintptr_t)pc, &result) != 0) return false;
    *found = (struct found_object){result.dlfo_eh_frame, (uint64_t)(uintptr_t)result.dlfo_map_start,
                                   (uint64_t)(uintptr_t)result.dlfo_map_end};
    return true;
  }
#endif
  struct search search = {.pc = pc};
  if (dl_iterate_phdr(look_at_object, &search) == 0) return false;
  *found = search.found;
  return true;
}

/* The FDE that holds pc, or the last one before it, from the sorted table in .eh_frame_hdr. */
static const unsigned char *find_fde(const struct found_object *object, uint64_t pc, uint64_t *begin) {
  const unsigned char *header = object->eh_frame_header;
  if (header == NULL || header[0] != 1 || header[3] != 0x3b) return NULL; /* every linker writes datarel sdata4 */
  struct cursor cursor = {header + 4, header + 64};
  take_encoded(&cursor, header[1]);
  const uint64_t count = take_encoded(&cursor, header[2]);
  const unsigned char *table = cursor.at;
  const uint64_t base = (uint64_t)(uintptr_t)header;
  uint64_t low = 0, high = count;
  while (low < high) { /* first entry that begins after pc */
    const uint64_t middle = (low + high) / 2;
    int32_t location;
    memcpy(&location, table + 8 * middle, 4);
    if (base + (uint64_t)(int64_t)location <= pc) low = middle + 1;
    else high = middle;
  }
  if (low == 0) return NULL;
  int32_t offset, location;
  memcpy(&location, table + 8 * (low - 1), 4);
  memcpy(&offset, table + 8 * (low - 1) + 4, 4);
  *begin = base + (uint64_t)(int64_t)location;
  return (const unsigned char *)(uintptr_t)(base + (uint64_t)(int64_t)offset);
}

static bool is_signal_return(uint64_t pc) {
#if defined(__x86_64__)
  static const unsigned char code[] = {0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05};
#elif defined(__riscv)
  static const unsigned char code[] = {0x93, 0x08, 0xb0, 0x08, 0x73, 0x00, 0x00, 0x00};
#else
  static const unsigned char code[] = {0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4};
#endif
  /* A wrong address may lie anywhere, also in a hole between an object's segments. */
  return ml_readable(pc, sizeof code) && memcmp((const void *)(uintptr_t)pc, code, sizeof code) == 0;
}

/* `pc` lies in the function; `exact` is the instruction that runs next. */
static struct rule read_rule(uint64_t pc, uint64_t exact) {
  struct rule rule = {.kind = KIND_BLIND, .fp_slot = SLOT_SAME, .ra_slot = SLOT_SAME};
  struct found_object object;
  if (is_signal_return(exact)) { /* in the C library, the vDSO, or a page of an emulator's own */
    rule.kind = KIND_SIGNAL;
    return rule;
  }
  if (!find_object(pc, &object)) return rule;
  uint64_t function_begin = 0;
  const unsigned char *fde = find_fde(&object, pc, &function_begin);
  if (fde == NULL) return rule;
  struct cursor entry = {fde, (const unsigned char *)(uintptr_t)object.end};
  uint64_t length = take(&entry, 4);
  if (length == 0xffffffff) length = take(&entry, 8);
  if (length > (uint64_t)(entry.end - entry.at)) return rule;
  entry.end = entry.at + length;
  const unsigned char *pointer_at = entry.at;
  const uint64_t back = take(&entry, 4);
  if (back == 0 || back > (uint64_t)((uintptr_t)pointer_at - object.begin)) return rule;
  struct cursor common = {pointer_at - back, (const unsigned char *)(uintptr_t)object.end};
  length = take(&common, 4);
  if (length == 0xffffffff) length = take(&common, 8);
  if (length > (uint64_t)(common.end - common.at)) return rule;
  common.end = common.at + length;
  take(&common, 4);
  const unsigned version = (unsigned)take(&common, 1);
  const char *augmentation = (const char *)common.at;
  while (common.at < common.end && *common.at != 0) common.at++;
  common.at++;
  const uint64_t code_factor = take_uleb(&common);
  const int64_t data_factor = take_sleb(&common);
  const uint64_t return_register = version == 1 ? take(&common, 1) : take_uleb(&common);
  rule.kind = KIND_STOP;
  if (return_register != RA) return rule;
  unsigned encoding = 0;
  bool has_length = augmentation[0] == 'z';
  if (has_length) {
    const uint64_t bytes = take_uleb(&common);
    struct cursor data = {common.at, common.at + bytes};
    if (bytes > (uint64_t)(common.end - common.at)) return rule;
    common.at += bytes;
    for (const char *letter = augmentation + 1; *letter != 0; letter++) {
      if (*letter == 'R') encoding = (unsigned)take(&data, 1);
      else if (*letter == 'L') take(&data, 1);
      else if (*letter == 'P') {
        const unsigned personality = (unsigned)take(&data, 1);
        take_encoded(&data, personality);
      }
    }
  }
  const uint64_t begin = take_encoded(&entry, encoding);
  const uint64_t range = take_encoded(&entry, encoding & 0x0f);
  if (pc < begin || pc >= begin + range) {
    /* A hole between functions that have tables. A return address behind it that is a function's first
     * instruction was put there by hand: the bottom of a coroutine's stack (makecontext). */
    rule.kind = find_fde(&object, exact, &function_begin) != NULL && function_begin == exact ? KIND_END : KIND_BLIND;
    return rule;
  }
  if (has_length) {
    const uint64_t bytes = take_uleb(&entry);
    if (bytes > (uint64_t)(entry.end - entry.at)) return rule;
    entry.at += bytes;
  }
  struct row row = {.cfa_how = 2};
  execute(common, &row, &row, 0, UINT64_MAX, code_factor, data_factor, encoding);
  const struct row initial = row;
  execute(entry, &row, &initial, begin, pc, code_factor, data_factor, encoding);

  if (row.ra.how == 2) {
    rule.kind = KIND_END;
    return rule;
  }
  if (row.cfa_how == 2 || row.ra.how > 1 || (row.cfa_how == 0 && row.cfa_register != SP && row.cfa_register != FP))
    return rule;
  rule.cfa_offset = row.cfa_offset;
  if (row.ra.how == 1) rule.ra_slot = (int32_t)(row.ra.offset / 8);
#if defined(__x86_64__)
  if (row.ra.how != 1) return rule;
#endif
  if (row.fp.how == 1 || row.fp.how == 3) {
    rule.fp_slot = (int32_t)(row.fp.offset / 8);
    rule.fp_from_fp = row.fp.how == 3;
  }
  rule.kind = row.cfa_how == 1 ? KIND_DEREF_FP : row.cfa_register == SP ? KIND_SP : KIND_FP;
  return rule;
}

static struct rule rule_at(uint64_t pc, uint64_t exact) {
  const size_t slot = (pc * UINT64_C(0x9E3779B97F4A7C15)) >> (64 - CACHE_BITS);
  const uint64_t value = atomic_load_explicit(&cache[slot].value, memory_order_relaxed);
  /* Key and value are written apart: only a pair that belongs together gives pc. */
  if (ML_LIKELY((atomic_load_explicit(&cache[slot].key, memory_order_relaxed) ^ value) == pc && value != 0))
    return unpack(value);
  const struct rule rule = read_rule(pc, exact);
  const uint64_t packed = pack(&rule);
  atomic_store_explicit(&cache[slot].value, packed, memory_order_relaxed);
  atomic_store_explicit(&cache[slot].key, pc ^ packed, memory_order_relaxed);
  return unpack(packed);
}

void ml_unwind_forget(void) {
  for (size_t i = 0; i < sizeof cache / sizeof *cache; i++)
    atomic_store_explicit(&cache[i].value, 0, memory_order_relaxed);
}

void ml_unwind_start(void) {
  struct found_object object;
  if (find_object((uint64_t)(uintptr_t)&ml_unwind_start, &object)) {
    ml_runtime.text_begin = object.begin;
    ml_runtime.text_end = object.end;
  }
}

/* Where a function that keeps a frame pointer has saved its caller's, and the return address behind it: the
 * frame pointer points to them, or (RISC-V) past them. */
#if defined(__riscv)
#define FRAME_RECORD (-16)
#else
#define FRAME_RECORD 0
#endif

/* ---- walking ------------------------------------------------------------------------------------ */
__attribute__((noinline)) unsigned ml_unwind(uint64_t *ips, unsigned capacity, bool *truncated) {
  uint64_t pc = (uint64_t)(uintptr_t)__builtin_return_address(0) & CODE_MASK;
  uint64_t sp = (uint64_t)(uintptr_t)__builtin_dwarf_cfa();
  uint64_t fp = *(uint64_t *)((unsigned char *)__builtin_frame_address(0) + FRAME_RECORD);
  uint64_t lr = 0;
  bool exact = false; /* pc is an instruction to run, not a return address */
  unsigned count = 0, steps = 0, blind = 0;
  *truncated = true;
  /* On another stack than last time (coroutines): the old one may be gone. What is surely there is the page that this frame ends in. */
  if (ML_UNLIKELY(sp - 8 < ml_self.safe_low || sp - 8 >= ml_self.safe_high)) {
    ml_self.safe_low = (sp - 8) & ~UINT64_C(4095);
    ml_self.safe_high = ml_self.safe_low + 4096;
  }
  while (pc != 0 && ++steps < ML_MAX_DEPTH + 32) {
    if (count > 0 || pc < ml_runtime.text_begin || pc >= ml_runtime.text_end) {
      if (count == capacity) return count;
      /* As perf writes stacks: the innermost is an address inside the instruction, the others are
       * return addresses, from which a reader takes 1. */
      ips[count] = count == 0 ? (exact ? pc : pc - 1) : (exact ? pc + 1 : pc);
      count++;
    }
    const struct rule rule = rule_at(exact ? pc : pc - 1, pc);
    uint64_t cfa = 0, next_pc = 0, next_fp = fp, next_sp;
    if (rule.kind == KIND_END) {
      *truncated = false;
      return count;
    }
    if (rule.kind == KIND_SIGNAL) {
      /* The kernel's ucontext_t lies at the stack pointer. */
#if defined(__x86_64__)
      if (!load(sp + 120, &next_fp) || !load(sp + 160, &next_sp) || !load(sp + 168, &next_pc)) return count;
#elif defined(__riscv)
      if (!load(sp + 304, &next_pc) || !load(sp + 312, &lr) || !load(sp + 320, &next_sp) || !load(sp + 368, &next_fp))
        return count;
#else
      if (!load(sp + 544, &next_fp) || !load(sp + 552, &lr) || !load(sp + 560, &next_sp) || !load(sp + 568, &next_pc))
        return count;
#endif
      sp = next_sp;
      fp = next_fp;
      pc = next_pc;
      exact = true;
      continue;
    }
    if (rule.kind == KIND_STOP) return count;
    if (rule.kind == KIND_BLIND) {
      const uint64_t record = fp + (uint64_t)(int64_t)FRAME_RECORD;
      if (++blind > 32 || fp < sp || !load(record, &next_fp) || !load(record + 8, &next_pc)) return count;
      next_sp = record + 16;
    } else {
      if (rule.kind == KIND_SP) cfa = sp + (uint64_t)rule.cfa_offset;
      else if (rule.kind == KIND_FP) cfa = fp + (uint64_t)rule.cfa_offset;
      else if (!load(fp + (uint64_t)rule.cfa_offset, &cfa)) return count;
      if (rule.ra_slot == SLOT_SAME) next_pc = lr;
      else if (!load(cfa + (uint64_t)(8 * (int64_t)rule.ra_slot), &next_pc)) return count;
      if (rule.fp_slot != SLOT_SAME &&
          !load((rule.fp_from_fp ? fp : cfa) + (uint64_t)(8 * (int64_t)rule.fp_slot), &next_fp))
        return count;
      if (cfa < sp || (cfa == sp && rule.ra_slot != SLOT_SAME)) return count; /* stacks grow down */
      next_sp = cfa;
    }
    next_pc &= CODE_MASK;
    if (next_pc == pc && next_sp == sp) return count;
    sp = next_sp;
    fp = next_fp;
    pc = next_pc;
    exact = false;
  }
  *truncated = pc != 0;
  return count;
}

#elif defined(__powerpc64__) /* every frame begins with the address of its caller's, which has the return address */
static int find_own_text(struct dl_phdr_info *info, size_t bytes, void *unused) {
  (void)bytes;
  (void)unused;
  const uint64_t here = (uint64_t)(uintptr_t)&ml_runtime; /* data: a function's address may be another module's stub */
  uint64_t begin = UINT64_MAX, end = 0;
  bool inside = false;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
    if (segment->p_type != PT_LOAD) continue;
    const uint64_t at = info->dlpi_addr + segment->p_vaddr;
    if (here >= at && here < at + segment->p_memsz) inside = true;
    if (at < begin) begin = at;
    if (at + segment->p_memsz > end) end = at + segment->p_memsz;
  }
  if (!inside) return 0;
  ml_runtime.text_begin = begin;
  ml_runtime.text_end = end;
  return 1;
}

void ml_unwind_start(void) { dl_iterate_phdr(find_own_text, NULL); }
void ml_unwind_forget(void) {}

/* A function that a signal interrupted before it made its frame is missing, and so is its caller. */
__attribute__((noinline)) unsigned ml_unwind(uint64_t *ips, unsigned capacity, bool *truncated) {
  uint64_t frame = (uint64_t)(uintptr_t)__builtin_frame_address(0), caller, pc;
  unsigned count = 0;
  *truncated = true;
  if (ML_UNLIKELY(frame < ml_self.safe_low || frame >= ml_self.safe_high)) ml_self.safe_low = ml_self.safe_high = 0;
  for (unsigned steps = 0; steps < ML_MAX_DEPTH + 32; steps++, frame = caller) {
    if (!load(frame, &caller) || (caller != 0 && caller <= frame)) return count;
    *truncated = caller != 0;
    if (caller == 0 || !load(caller + 16, &pc)) return count;
    if (pc == 0 || (count == 0 && pc >= ml_runtime.text_begin && pc < ml_runtime.text_end)) continue;
    *truncated = true;
    if (count == capacity) return count;
    ips[count] = count == 0 ? pc - 1 : pc; /* as above: the innermost lies inside the call */
    count++;
  }
  return count;
}

#else /* other machines: no stacks */
void ml_unwind_start(void) {}
void ml_unwind_forget(void) {}
unsigned ml_unwind(uint64_t *ips, unsigned capacity, bool *truncated) {
  (void)ips, (void)capacity;
  *truncated = true;
  return 0;
}
#endif
