/* Tracing, the side of compiled code: the thread variable, room for segments, and what starts, parks and ends a thread's trace.
 * trace.h describes the states, trace_windows.c how words become records. */
#include "trace.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#define FENCE() __atomic_signal_fence(__ATOMIC_SEQ_CST)
#define REGIONS_MAX 64
#define REGION_TEXT_BYTES 8192

ML_EXPORT __thread struct ml_trace_thread __memlens_trace __attribute__((tls_model("initial-exec")));
#define THREAD __memlens_trace

struct ml_trace_settings ml_trace_settings = {.stacks = true};
const struct ml_services *ml_trace_services; /* NULL: nothing is traced */
static uint32_t ready;                       /* 0 the process has not started yet, 1 it traces, 2 it does not */
uint32_t ml_trace_selects;
static char region_text[REGION_TEXT_BYTES];
static const char *regions[REGIONS_MAX];
static unsigned region_count;
static uint8_t node_selected[ML_NODES_MAX]; /* 0 not known yet, 1 no, 2 yes */

/* ---- settings ------------------------------------------------------------------------------------------------------ */
static bool parse_number(const char *text, size_t length, uint64_t *value) {
  *value = 0;
  for (size_t i = 0; i < length; i++) {
    if (text[i] < '0' || text[i] > '9' || *value > (UINT64_MAX - 9) / 10) return false;
    *value = *value * 10 + (uint64_t)(text[i] - '0');
  }
  return length > 0;
}

static bool parse_regions(const char *text, size_t length) {
  if (length == 0 || length >= sizeof region_text) return false;
  memcpy(region_text, text, length);
  regions[region_count++] = region_text;
  for (char *at = region_text; *at != 0; at++)
    if (*at == '\x1f') {
      *at = 0;
      if (region_count == REGIONS_MAX) return false;
      regions[region_count++] = at + 1;
    }
  return true;
}

static bool parse_one(const char *text, size_t length) {
  const char *equals = memchr(text, '=', length);
  if (equals == NULL) return false;
  const size_t name = (size_t)(equals - text), rest = length - name - 1;
  if (name == 7 && memcmp(text, "regions", 7) == 0) return parse_regions(equals + 1, rest);
  uint64_t value;
  if (!parse_number(equals + 1, rest, &value)) return false;
  if (name == 6 && memcmp(text, "window", 6) == 0) ml_trace_settings.window = value;
  else if (name == 6 && memcmp(text, "period", 6) == 0) ml_trace_settings.period = value;
  else if (name == 5 && memcmp(text, "loads", 5) == 0) ml_trace_settings.loads_only = value != 0;
  else if (name == 4 && memcmp(text, "seed", 4) == 0) ml_trace_settings.seed = value;
  else if (name == 4 && memcmp(text, "wait", 4) == 0) ml_trace_settings.wait = value != 0;
  else if (name == 6 && memcmp(text, "stacks", 6) == 0) ml_trace_settings.stacks = value != 0;
  else if (name == 9 && memcmp(text, "functions", 9) == 0) ml_trace_settings.selects_functions = value != 0;
  else return false;
  return true;
}

#define LEAST_PATIENCE 2048u

/* A region's name may hold anything but a comma. */
static bool parse_settings(const char *text) {
  while (*text != 0) {
    const size_t length = strcspn(text, ",");
    if (!parse_one(text, length)) return false;
    text += length + (text[length] == ',');
  }
  struct ml_trace_settings *settings = &ml_trace_settings;
  if (settings->window == 0 || settings->period < settings->window || settings->period > UINT64_C(1) << 40)
    return false;
  settings->full = settings->period == settings->window;
  if (settings->full) settings->window = UINT64_MAX;
  settings->patience = settings->full                          ? UINT64_MAX
                       : settings->period / 4 > LEAST_PATIENCE ? settings->period / 4
                                                               : LEAST_PATIENCE;
  ml_trace_selects = settings->selects_regions = region_count != 0;
  return true;
}

#if defined(__x86_64__)
static bool has_vectors(void) { /* AVX2 and popcnt, and a kernel that keeps such registers */
  unsigned a, b, c, d, low, high;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c >> 23 & 1) == 0 || (c >> 27 & 1) == 0) return false;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & 6) == 6 && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b >> 5 & 1) != 0;
}
#endif

static void stamp(void);

/* Takes the loader's lock: not while ours is held. */
void ml_trace_start(void) {
  const char *text = ml_process.shared != NULL ? getenv(ML_TRACE_VARIABLE) : NULL;
  uint64_t state = ML_TRACE_NOT_ASKED;
  if (text != NULL) {
    const struct ml_services *services = &ml_find_in_process != NULL ? ml_find_in_process("memlens_services") : NULL;
    if (services == NULL || services->version != ML_SERVICES_VERSION ||
        services->bytes < offsetof(struct ml_services, on_pinning))
      state = ML_TRACE_NO_LIBRARY;
    else if (!parse_settings(text)) state = ML_TRACE_BAD_SETTINGS;
    else {
#if defined(__x86_64__)
      ml_trace_settings.has_vectors = has_vectors();
#endif
      state = ML_TRACE_ON;
      ml_trace_services = services;
      if (services->bytes >= sizeof *services && services->on_pinning != NULL) services->on_pinning(stamp);
    }
    ml_process.shared->trace_state = state;
  }
  if (ml_trace_services == NULL) ml_trace_selects = 0;
  __atomic_store_n(&ready, state == ML_TRACE_ON ? 1 : 2, __ATOMIC_RELEASE);
}

/* ---- functions --------------------------------------------------------------------------------------------------------
 * The recorder has found out which sites of which files belong to the functions that are asked for. A bit for each site of the process. */
#define SELECTABLE_SITES (UINT64_C(1) << 26)
static uint8_t *selected;

bool ml_trace_is_asked_for(uint64_t site) {
  const uint8_t *bits = __atomic_load_n(&selected, __ATOMIC_ACQUIRE);
  return bits != NULL && site < SELECTABLE_SITES &&
         (__atomic_load_n(&bits[site / 8], __ATOMIC_RELAXED) >> site % 8 & 1) != 0;
}

static const unsigned char *find_selection(const uint8_t *build_id, uint32_t build_id_bytes, uint64_t sites) {
  static const unsigned char *all;
  const uint64_t bytes = ml_arena_settings.selection_bytes;
  if (all == NULL && bytes != 0) all = ml_arena_map(bytes, ml_arena_settings.selection_offset);
  if (all == NULL || build_id_bytes == 0) return NULL;
  for (uint64_t at = 0; at + sizeof(struct ml_trace_selection) <= bytes;) {
    struct ml_trace_selection head;
    memcpy(&head, all + at, sizeof head);
    const uint64_t bits = at + sizeof head;
    at = bits + ((uint64_t)head.sites + 63) / 64 * 8;
    if (at <= bytes && head.sites == sites && head.build_id_bytes == build_id_bytes &&
        memcmp(head.build_id, build_id, build_id_bytes) == 0)
      return all + bits;
  }
  return NULL;
}

void ml_trace_module(const uint8_t *build_id, uint32_t build_id_bytes, uint64_t first_site, uint64_t sites) {
  if (!ml_trace_settings.selects_functions || ml_arena_header == NULL) return;
  const unsigned char *bits = find_selection(build_id, build_id_bytes, sites);
  if (bits == NULL) return; /* the recorder has not seen this file: nothing of it is asked for */
  uint8_t *mine = selected != NULL ? selected : ml_map_private(SELECTABLE_SITES / 8);
  if (mine == NULL) return;
  for (uint64_t i = 0; i < sites && first_site + i < SELECTABLE_SITES; i++)
    if ((bits[i / 8] >> i % 8 & 1) != 0) mine[(first_site + i) / 8] |= (uint8_t)(1u << (first_site + i) % 8);
  __atomic_store_n(&selected, mine, __ATOMIC_RELEASE);
}

/* ---- regions --------------------------------------------------------------------------------------------------------- */
static bool is_selected(uint32_t node) {
  if (!ml_trace_settings.selects_regions) return true;
  if (node == 0) return false;
  uint8_t known = __atomic_load_n(&node_selected[node], __ATOMIC_RELAXED);
  if (known == 0) {
    known = is_selected(ml_node_parent(node)) ? 2 : 1;
    for (unsigned i = 0; i < region_count; i++)
      if (strcmp(ml_node_name(node), regions[i]) == 0) known = 2;
    __atomic_store_n(&node_selected[node], known, __ATOMIC_RELAXED);
  }
  return known == 2;
}

/* ---- working on a trace ------------------------------------------------------------------------------------------------- */
static void go_idle(void) {
  THREAD.limit = NULL;
  THREAD.left = ML_TRACE_IDLE;
}

static void begin_work(struct ml_trace *trace) {
  trace->busy = true;
  FENCE();
  go_idle();
  FENCE();
}

/* Accesses of a handler that came meanwhile were executed: they are counted, and not recorded. */
static void end_work(struct ml_trace *trace, uint64_t left) {
  FENCE();
  trace->busy = false; /* first: a handler that finds us busy gives up recording, as if for good */
  FENCE();
  const uint64_t before = __atomic_exchange_n(&THREAD.left, left, __ATOMIC_RELAXED);
  const uint64_t missed = ML_TRACE_IDLE - before;
  if (ML_UNLIKELY(missed != 0) && before <= ML_TRACE_IDLE && left != ML_TRACE_IDLE) {
    if (trace->open || trace->buffering) trace->executed += missed;
    else if (left >= missed) THREAD.left = left - missed;
    else {
      trace->start += missed - left; /* the window begins late */
      THREAD.left = 0;
      ml_add(&ml_process.shared->trace_late, 1);
    }
  }
}

/* Looks at what segments have written; the thread is then in a gap or in a window that is not buffering. */
static void settle(struct ml_trace *trace, uint64_t left) {
  if (trace->buffering) {
    trace->buffering = false;
    ml_trace_consume(trace, THREAD.cursor);
    if (ML_UNLIKELY(left != 0)) {
      /* A handler opened the window inside a loop that held `left` in a register: the loop has gone on without recording. */
      ml_trace_close(trace);
      ml_add(&ml_process.shared->trace_interrupted, 1);
    }
  } else if (!trace->open) {
    trace->executed = trace->start > left ? trace->start - left : 0;
    ml_trace_tell(trace);
  }
  /* a handler came between */
  if (ML_UNLIKELY(!trace->open && trace->start < trace->executed)) trace->start = trace->executed;
}

/* ---- threads ---------------------------------------------------------------------------------------------------------------- */
/* The thread that runs has this trace from now on. */
static struct ml_trace *trace_of(struct ml_thread *self) {
  struct ml_trace *trace = self->trace;
  if (trace == NULL) {
    trace = ml_map_private(sizeof *trace);
    if (trace == NULL) return NULL;
    trace->thread = self;
    self->trace = trace;
  }
  return trace;
}

/* The block of a thread that has ended may have been left in any state. */
void ml_trace_thread_begin(struct ml_thread *self) {
  struct ml_trace *trace = self->trace;
  if (trace == NULL) return;
  if (trace->buffering) memset(trace->words, 0, sizeof trace->words);
  trace->active = trace->busy = trace->buffering = false;
}

void ml_trace_thread_end(struct ml_thread *self) {
  struct ml_trace *trace = self->trace;
  if (trace == NULL || !trace->active || trace->busy) {
    go_idle();
    return;
  }
  const uint64_t left = trace->parked ? trace->parked_left : THREAD.left;
  begin_work(trace);
  settle(trace, left);
  ml_trace_finish(trace);
  end_work(trace, ML_TRACE_IDLE);
}

/* A fork's child: the open window is its parent's. */
void ml_trace_forked(struct ml_thread *self) {
  struct ml_trace *trace = self->trace;
  if (trace == NULL || !trace->active) return;
  trace->busy = false;
  memset(trace->words, 0, sizeof trace->words);
  trace->active = false;
  THREAD.limit = NULL;
  THREAD.left = ml_process.shared != NULL ? 0 : ML_TRACE_IDLE;
  if (ml_process.shared != NULL) ml_process.shared->trace_state = ML_TRACE_ON;
}

/* The thread is in another region than before. */
void ml_trace_switched(struct ml_thread *self) {
  struct ml_trace *trace = self->trace;
  if (trace == NULL || !trace->active || trace->busy) return;
  const bool inside = is_selected(self->top->node);
  if (inside != trace->parked) return;
  const int saved = errno;
  const uint64_t left = THREAD.left;
  begin_work(trace);
  if (inside) {
    trace->parked = false;
    end_work(trace, trace->parked_left);
  } else {
    settle(trace, left);
    ml_trace_cut(trace);
    trace->parked = true;
    trace->parked_left = trace->open ? 0 : trace->start - trace->executed;
    end_work(trace, ML_TRACE_IDLE);
  }
  errno = saved;
}

/* The thread has been moved to other CPUs, or places its pages elsewhere: the open record ends, and the window goes on in the next one. */
static void stamp(void) {
  const struct ml_thread *self = ml_tls.self;
  struct ml_trace *trace = self != NULL ? self->trace : NULL;
  if (trace == NULL || !trace->active || trace->busy || trace->parked || (!trace->open && !trace->buffering)) return;
  const int saved = errno;
  const uint64_t left = THREAD.left;
  begin_work(trace);
  settle(trace, left);
  ml_trace_cut(trace);
  if (!trace->open) trace->has_facts = false; /* read anew when the window opens */
  end_work(trace, trace->open ? 0 : trace->start - trace->executed);
  errno = saved;
}

/* ---- room -------------------------------------------------------------------------------------------------------------------- */
static uint64_t *make_room(struct ml_trace *trace) {
  if (trace->open && !trace->has_facts && trace->first == trace->executed && trace->recorded == 0)
    ml_trace_resume(trace);
  else if (!trace->open) ml_trace_facts_now(trace);
  uint64_t *words = trace->words + trace->base;
  const uint64_t most = ML_TRACE_RAW_WORDS - trace->base, wanted = ml_trace_words_wanted(trace);
  trace->buffering = true;
  THREAD.cursor = words;
  THREAD.limit = words + (wanted < most ? wanted : most);
  return words;
}

static uint64_t *room(struct ml_trace *trace, uint64_t left, uint64_t header) {
  const uint64_t accesses = ml_trace_executed(header);
  begin_work(trace);
  settle(trace, left);
  if (!trace->open && trace->start - trace->executed >= accesses) {
    end_work(trace, trace->start - trace->executed - accesses);
    return NULL;
  }
  if (ML_UNLIKELY(!ml_trace_services->is_recording())) {
    trace->active = false; /* for good */
    end_work(trace, ML_TRACE_IDLE);
    return NULL;
  }
  uint64_t *words = make_room(trace);
  end_work(trace, 0);
  return words;
}

/* The first access of a thread, or one of a thread that records nothing. */
static struct ml_trace *first_access(struct ml_thread **found) {
  const uint32_t state = __atomic_load_n(&ready, __ATOMIC_ACQUIRE);
  if (state == 0) return NULL; /* asked again at the next one */
  struct ml_thread *self = *found;
  if (state == 1 && self == NULL && !ml_tls.ended) {
    if (ml_tls.adopting) return NULL;
    self = *found = ml_thread_adopt(0);
  }
  struct ml_trace *trace = state == 1 && self != NULL && !ml_tls.ended ? trace_of(self) : NULL;
  if (trace == NULL) {
    go_idle();
    return NULL;
  }
  ml_trace_begin(trace);
  if (self->top != NULL && !is_selected(self->top->node)) {
    trace->parked = true;
    trace->parked_left = trace->start;
    go_idle();
    return NULL;
  }
  THREAD.left = trace->start;
  return trace;
}

uint64_t *ml_trace_room(uint64_t left, uint64_t header, const void *caller);
__attribute__((used)) uint64_t *ml_trace_room(uint64_t left, uint64_t header, const void *caller) {
  struct ml_thread *self = ml_tls.self;
  if (ML_UNLIKELY(self == NULL)) {
    uint64_t *(*other)(uint64_t, uint64_t) = ml_delegate(ML_DELEGATE_TRACE_ROOM);
    if (other != NULL) return other(left, header);
  }
  const int saved = errno;
  struct ml_trace *trace = self != NULL ? self->trace : NULL;
  uint64_t *words = NULL;
  if (ML_UNLIKELY(trace == NULL || !trace->active)) {
    trace = first_access(&self);
    left = THREAD.left;
  }
  if (ML_LIKELY(trace != NULL)) {
    if (ML_UNLIKELY(trace->busy || trace->parked)) THREAD.left = ML_TRACE_IDLE; /* it has run out: after a day */
    else {
      trace->caller = caller;
      trace->node = self->top != NULL ? self->top->node : 0;
      words = room(trace, left, header);
    }
  }
  errno = saved;
  return words;
}

/* ---- ptwrite --------------------------------------------------------------------------------------------------------------------- */
/* Code that was built for ptwrite asks this before it uses the instruction: 1 where the recorder wants it and the CPU has it. */
ML_EXPORT extern uint8_t __memlens_trace_ptwrite;
uint8_t __memlens_trace_ptwrite;

#if defined(__x86_64__)
__attribute__((constructor(101))) static void find_ptwrite(void) {
  const char *asked = getenv("MEMLENS_PTWRITE");
  unsigned a, b, c, d;
  if (asked == NULL || strcmp(asked, "1") != 0) return;
  if (__get_cpuid_count(0x14, 0, &a, &b, &c, &d) != 0 && (b >> 4 & 1) != 0) __memlens_trace_ptwrite = 1;
}
#endif

/* What compiled code calls keeps all registers but those of results and scratch: preserve_most, which not every C compiler has. */
#define TEXT(name) TEXT_OF(name)
#define TEXT_OF(name) #name
#if defined(__x86_64__)
__asm__(".pushsection .text\n"
        ".globl __memlens_trace_room\n"
        ".type __memlens_trace_room, @function\n"
        ".balign 16\n"
        "__memlens_trace_room:\n"
        ".cfi_startproc\n"
        "  endbr64\n"
        "  pushq %rbp\n"
        ".cfi_def_cfa_offset 16\n"
        ".cfi_offset %rbp, -16\n"
        "  movq %rsp, %rbp\n"
        ".cfi_def_cfa_register %rbp\n"
        "  pushq %rdi\n  pushq %rsi\n  pushq %rdx\n  pushq %rcx\n  pushq %r8\n  pushq %r9\n  pushq %r10\n"
        "  andq $-16, %rsp\n"
        "  cld\n"
        "  movq 8(%rbp), %rdx\n"
        "  call " TEXT(ml_trace_room) "\n"
        "  leaq -56(%rbp), %rsp\n"
        "  popq %r10\n  popq %r9\n  popq %r8\n  popq %rcx\n  popq %rdx\n  popq %rsi\n  popq %rdi\n"
        "  popq %rbp\n"
        ".cfi_def_cfa %rsp, 8\n"
        "  ret\n"
        ".cfi_endproc\n"
        ".size __memlens_trace_room, . - __memlens_trace_room\n"
        /* In each module, next to the code that calls it: to the one of the process. */
        ".globl __memlens_trace_room_near\n"
        ".hidden __memlens_trace_room_near\n"
        ".type __memlens_trace_room_near, @function\n"
        ".balign 16\n"
        "__memlens_trace_room_near:\n"
        ".cfi_startproc\n"
        "  jmpq *__memlens_trace_room@GOTPCREL(%rip)\n"
        ".cfi_endproc\n"
        ".size __memlens_trace_room_near, . - __memlens_trace_room_near\n"
        ".popsection\n");
#elif defined(__aarch64__)
__asm__(".pushsection .text\n"
        ".globl __memlens_trace_room\n"
        ".type __memlens_trace_room, %function\n"
        ".balign 16\n"
        "__memlens_trace_room:\n"
        ".cfi_startproc\n"
        "  hint #34\n" /* bti c */
        "  stp x29, x30, [sp, #-80]!\n"
        ".cfi_def_cfa_offset 80\n"
        ".cfi_offset 29, -80\n"
        ".cfi_offset 30, -72\n"
        "  mov x29, sp\n"
        "  stp x9, x10, [sp, #16]\n  stp x11, x12, [sp, #32]\n  stp x13, x14, [sp, #48]\n  str x15, [sp, #64]\n"
        "  mov x2, x30\n"
        "  bl " TEXT(ml_trace_room) "\n"
        "  ldp x9, x10, [sp, #16]\n  ldp x11, x12, [sp, #32]\n  ldp x13, x14, [sp, #48]\n  ldr x15, [sp, #64]\n"
        "  ldp x29, x30, [sp], #80\n"
        ".cfi_restore 30\n"
        ".cfi_restore 29\n"
        ".cfi_def_cfa_offset 0\n"
        "  ret\n"
        ".cfi_endproc\n"
        ".size __memlens_trace_room, . - __memlens_trace_room\n"
        ".globl __memlens_trace_room_near\n"
        ".hidden __memlens_trace_room_near\n"
        ".type __memlens_trace_room_near, %function\n"
        ".balign 16\n"
        "__memlens_trace_room_near:\n"
        ".cfi_startproc\n"
        "  adrp x16, :got:__memlens_trace_room\n"
        "  ldr x16, [x16, :got_lo12:__memlens_trace_room]\n"
        "  br x16\n"
        ".cfi_endproc\n"
        ".size __memlens_trace_room_near, . - __memlens_trace_room_near\n"
        ".popsection\n");
#else
ML_EXPORT uint64_t *__memlens_trace_room(uint64_t left, uint64_t header);
ML_EXPORT uint64_t *__memlens_trace_room(uint64_t left, uint64_t header) {
  return ml_trace_room(left, header, __builtin_return_address(0));
}
#endif
