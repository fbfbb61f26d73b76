/* Counting inside a program that `memlens cc` built. Shared by the files of native/runtime/compiled/ only.
 *
 *   module.c    one copy in each module: tells the runtime about the module
 *   modules.c   gives modules their counters           arena.c   the recorder's memory file
 *   nodes.c     names, paths of regions, places        clock.c   the cycle counter
 *   threads.c   what a thread has, start and end       fork.c    a child becomes a process of its own
 *   regions.c   enter, leave, unwound                  sampling.c which executions are counted
 *   spans.h     time with a thread in a region
 *   delegate.c  when another copy is in charge
 *   openmp.c    work that OpenMP hands to threads      annotations.c the hooks of memlens.h
 *   process.c   start and end                          region_events.c perf events, replaceable
 *   trace.c     room for recorded accesses             trace_windows.c which are recorded, and their records
 *   dynamic.c, threads_static*.c                       how thread creation is seen, by kind of link
 *
 * Rules: never print, exit or allocate with malloc; errno is kept; what a region switch does in the usual case takes no lock
 * and makes no system call. All signals are blocked while the lock is held, so a handler never meets it held by
 * its own thread. */
#ifndef MEMLENS_COUNT_RUNTIME_H
#define MEMLENS_COUNT_RUNTIME_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "memlens_count.h"
#include "memlens_format.h"
#include "private_names.h"

#define ML_LIKELY(condition) __builtin_expect(!!(condition), 1)
#define ML_UNLIKELY(condition) __builtin_expect(!!(condition), 0)
#define ML_EXPORT __attribute__((visibility("default")))

#define ML_NODES_MAX 16384u
#define ML_NAMES_MAX 16384u
#define ML_NAME_BYTES_MAX 4000u
#define ML_DEPTH_MAX 64u
#define ML_SWITCH_CACHE 64u
#define ML_FORWARDED_MAX 1000u /* executions of a place that the other recorder hears of */
#define ML_NO_FRAME UINTPTR_MAX

/* ---- the contract's symbols ---------------------------------------------------------------------------- */
ML_EXPORT extern __thread uint64_t *__memlens_count_base __attribute__((tls_model("initial-exec")));
ML_EXPORT extern __thread uint64_t *__memlens_count_dump __attribute__((tls_model("initial-exec")));
ML_EXPORT int __memlens_count_enter(struct ml_count_region *region);
ML_EXPORT int __memlens_count_enter_sampled(struct ml_count_region *region);
ML_EXPORT void __memlens_count_leave(struct ml_count_region *region);
ML_EXPORT void __memlens_count_unwound(void);
ML_EXPORT uint64_t __memlens_count_mark(void);
ML_EXPORT void __memlens_count_returned(uint64_t mark, int keep);
ML_EXPORT void __memlens_count_begin(const char *name);
__attribute__((visibility("hidden"))) uint64_t __memlens_count_compared(const void *a, const void *b, uint64_t bytes,
                                                                        int result, uint64_t unit,
                                                                        const uint32_t *steps);
ML_EXPORT void __memlens_count_end(const char *name);
ML_EXPORT void __memlens_count_register(struct ml_count_function *first, struct ml_count_function *end,
                                        const void *inside);
ML_EXPORT void __memlens_count_unregister(struct ml_count_function *first);
/* pthread_create and thrd_create with the function that really does it. `pool`: the new thread takes work from many. */
ML_EXPORT int __memlens_count_pthread_create(int (*real)(void *, const void *, void *(*)(void *), void *), void *thread,
                                             const void *attributes, void *(*start)(void *), void *argument, int pool);
ML_EXPORT int __memlens_count_thrd_create(int (*real)(void *, int (*)(void *), void *), void *thread,
                                          int (*start)(void *), void *argument);

/* ---- clock.c ------------------------------------------------------------------------------------------- */
extern uint32_t ml_clock_kind;      /* ML_ENUM_count_clock_* */
extern uint64_t ml_clock_read_cost; /* ticks */
uint64_t ml_now_ns(void);
void ml_clock_start(void);                                 /* chooses and measures */
uint64_t ml_low_quartile(uint64_t *ticks, unsigned count); /* sorts them */
void ml_clock_pair(uint64_t *ticks, uint64_t *ns);         /* both clocks at one moment */

static inline uint64_t ml_ticks(void) {
#if defined(__x86_64__)
  if (ML_LIKELY(ml_clock_kind == ML_ENUM_count_clock_TSC)) {
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high)::"memory");
    return (uint64_t)high << 32 | low;
  }
#elif defined(__aarch64__)
  uint64_t ticks;
  __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks)::"memory");
  return ticks;
#elif defined(__riscv)
  uint64_t ticks;
  __asm__ volatile("rdtime %0" : "=r"(ticks)::"memory");
  return ticks;
#elif defined(__powerpc64__)
  uint64_t ticks;
  __asm__ volatile("mfspr %0, 268" : "=r"(ticks)::"memory");
  return ticks;
#endif
  return ml_now_ns();
}

/* ---- standalone.c: without a recorder ---------------------------------------------------------------------- */
#define ML_STANDALONE_ENTRIES 16384u
bool ml_standalone_make(char *path, uint64_t path_bytes, uint64_t token[2]); /* where MEMLENS_OUTPUT says */
bool ml_standalone_allocate(int fd, uint64_t offset, uint64_t bytes);        /* false: no room on the disk */

/* ---- arena.c ------------------------------------------------------------------------------------------- */
/* NULL: nobody records. Every counted process of the tree can write to it, also one that has dropped its privileges since: only
 * what is shared by nature (`next_byte`, `entries`, `refused`) is used here. */
extern struct ml_count_header *ml_arena_header;
extern struct ml_count_header ml_arena_settings; /* a copy of the rest, made once */
bool ml_arena_open(void);
/* Page-aligned room in the file, mapped and zero; NULL when there is none. With the lock held. */
void *ml_arena_room(uint64_t bytes, uint64_t *file_offset);
struct ml_count_entry *ml_arena_claim(void);
void ml_arena_publish(struct ml_count_entry *entry, enum ml_count_kind kind);
void ml_arena_forget_room(void); /* a fork's child: what was claimed is its parent's */
/* Maps a part of the file at an address that is already ours. */
bool ml_arena_map_over(void *address, uint64_t bytes, uint64_t file_offset);
/* Maps a part of the file that the recorder wrote, where there is room; NULL: it cannot. */
const void *ml_arena_map(uint64_t bytes, uint64_t file_offset);
void *ml_map_private(uint64_t bytes);

/* ---- nodes.c ------------------------------------------------------------------------------------------- */
struct ml_slot { /* of a thread and a node */
  struct ml_count_place *place;
  struct ml_count_entry *entry;
  unsigned char *groups; /* NULL: not needed yet; ml_no_groups: no room */
};
extern unsigned char ml_no_groups[1];
enum ml_pairing { ML_PAIRING_UNKNOWN = 0, ML_PAIRING_ONE_FRAME = 1, ML_PAIRING_ANY = 2 };
extern struct ml_count_place ml_no_place; /* takes what has no place; nobody reads it */
extern uint8_t *ml_pairing;               /* of each name, enum ml_pairing */
struct ml_thread;
bool ml_nodes_start(void);
uint32_t ml_name_of(const char *name); /* 0: no room */
const char *ml_name_text(uint32_t name);
uint32_t ml_node_below(uint32_t node, uint32_t name, bool *is_open); /* UINT32_MAX: no room */
uint32_t ml_node_count(void);
uint32_t ml_node_parent(uint32_t node);
const char *ml_node_name(uint32_t node);                            /* of node 0: "" */
struct ml_slot *ml_place_of(struct ml_thread *self, uint32_t node); /* its place may be ml_no_place */
struct ml_slot *ml_place_of_locked(struct ml_thread *self, uint32_t node);
struct ml_slot *ml_ended_place_locked(uint32_t node);                               /* of threads that have ended */
struct ml_count_span *ml_node_span(uint32_t node);                                  /* NULL: not published */
uint64_t *ml_group_counters(struct ml_thread *self, uint32_t node, uint32_t group); /* NULL: no room */
/* its pages, where they are few: a page fault in a region would count as the region's time */
void ml_populate(void *memory, uint64_t bytes);
void ml_populate_counters(uint64_t *counters);
void ml_nodes_forked(void);

/* ---- regions.c ------------------------------------------------------------------------------------------- */
enum ml_open_flags {
  ML_OPEN_ROOT = 1,       /* the bottom: where the thread started */
  ML_OPEN_HANDED = 2,     /* work of a region that this thread did not begin */
  ML_OPEN_UNTOUCHED = 4,  /* not counted: the base is a dump */
  ML_OPEN_SILENT = 8,     /* open already, or without a node: no statistics of its own */
  ML_OPEN_FORWARDED = 16, /* the other recorder heard its begin */
  ML_OPEN_ANY_FRAME = 32, /* begun by memlens.h: its end may be in another function */
  ML_OPEN_ADOPTED = 64,   /* has outlived the frame that began it */
  ML_OPEN_IDLE = 128,     /* of handed work: done, and the thread waits; its time is settled */
  /* it, or one around it, was open already: the path of its node says no longer what is open */
  ML_OPEN_REENTERED = 256,
};
struct ml_open {
  uint64_t *base;
  struct ml_count_place *place;
  uint64_t begin_ticks, nested_ticks;
  uintptr_t frame; /* stack pointer of the caller at its begin */
  const void *site;
  uint32_t node, name;
  uint32_t flags;
  uint32_t group;                       /* of its sampled execution, 0 = counted in any case */
  uint64_t serial;                      /* of the thread's begins */
  struct ml_count_span *span;           /* NULL: in none */
  uint64_t overhead_ticks;              /* the thread's, when it began */
  uint64_t events[ML_COUNT_EVENTS + 2]; /* region_events.c's, at the begin */
};
struct ml_switch {     /* (node, name) → where entering leads */
  uint32_t node, name; /* name 0: empty */
  uint32_t below;
  uint32_t flags; /* of ml_open */
  struct ml_count_place *place;
  uint64_t *base;
  struct ml_count_span *span;
};
struct ml_thread {
  struct ml_open *top;
  uintptr_t busy; /* frame of the switch that is under way, 0 = none */
  uint64_t *dump; /* of ml_counter_words words, NULL = not needed yet */
  uint64_t random;
  uint64_t begins; /* so far, silent ones too */
  uint64_t synced_ticks;
  uint64_t overhead_ticks;         /* what switches of regions have cost so far */
  uintptr_t stack_low, stack_high; /* both 0: not known */
  uint32_t tid, order, too_deep;
  uint32_t events_open; /* a bit for each */
  uint32_t place_flags; /* enum ml_count_entry_flags */
  uint32_t end_rounds;
  struct ml_thread *next_free;
  struct ml_trace *trace; /* trace.c's, NULL = not needed yet */
  void *(*start)(void *);
  int (*start_c11)(void *);
  void *argument;
  uint64_t event_state[16]; /* region_events.c's */
  struct ml_switch cache[ML_SWITCH_CACHE];
  struct ml_open stack[ML_DEPTH_MAX + 1];
  struct ml_slot slots[ML_NODES_MAX];
};
/* Work that another thread's region handed over. */
void ml_hand_begin(struct ml_thread *self, uint32_t node, bool untouched, uint32_t group);
void ml_spans_enter(uint32_t node, uint64_t now); /* of a node and those around it */
void ml_spans_leave(uint32_t node, uint64_t now);
void ml_hand_idle(struct ml_thread *self);
void ml_hand_end(struct ml_thread *self);
extern bool ml_is_sampling;                  /* some executions may be left uncounted */
void ml_settle_open(struct ml_thread *self); /* adds the ticks so far of what is open */
void ml_regions_forked(struct ml_thread *self);
void ml_measure_switch(struct ml_thread *idle);
void ml_begin_named(const char *name, uintptr_t frame, const void *site);
void ml_end_named(const char *name, uintptr_t frame);

/* ---- threads.c ------------------------------------------------------------------------------------------- */
struct ml_tls {
  struct ml_thread *self;
  uint32_t adopting, creating, ended;
};
extern __thread struct ml_tls ml_tls __attribute__((tls_model("initial-exec")));
extern uint64_t ml_counter_words; /* of an array of counters: what a base points to, dumps included */
void ml_threads_start(void);
struct ml_thread *ml_thread_adopt(uintptr_t frame); /* gives the calling thread what it needs; NULL: cannot */
uint64_t *ml_thread_dump(struct ml_thread *self);
void ml_threads_forked(struct ml_thread *self);
void ml_threads_stop(void);
void ml_map_strays(void); /* counts of threads that nobody told us of */
enum ml_pool {
  ML_POOL_NONE = 0,    /* the thread works for the region that its creator is in */
  ML_POOL_UNKNOWN = 1, /* it takes work from many */
  ML_POOL_TOLD = 2,    /* and we hear from which */
};
bool ml_base_is_own(void); /* false: the loader bound the base to another copy's */
/* dynamic.c, absent in a static program: whether pthread_create of this module is the one that the process uses; a symbol of
 * the process. */
__attribute__((weak)) bool ml_creation_is_seen(void);
__attribute__((weak)) void *ml_find_in_process(const char *name);

/* ---- process.c ------------------------------------------------------------------------------------------- */
struct ml_process {
  struct ml_count_process *shared; /* NULL: nobody records */
  uint64_t born_ns;
  uint32_t pid;
  uint32_t generation; /* of forks */
};
extern struct ml_process ml_process;
extern uint64_t ml_sync_ticks; /* how old the last pair of clocks may become */
bool ml_process_active(void);  /* false: another copy of the runtime serves this module */
void ml_process_start(void);   /* once; any constructor may be the first */
bool ml_process_enter(void);   /* a new entry for this process image */
void ml_process_sync(struct ml_thread *self, uint64_t ticks); /* renews the last pair of clocks */
uint64_t ml_lock(void);                                       /* returns the signal mask for ml_unlock */
void ml_unlock(uint64_t signals);
void ml_lock_forked(void);

/* ---- delegate.c ------------------------------------------------------------------------------------------- */
enum ml_delegated {
  ML_DELEGATE_ENTER,
  ML_DELEGATE_ENTER_SAMPLED,
  ML_DELEGATE_LEAVE,
  ML_DELEGATE_UNWOUND,
  ML_DELEGATE_MARK,
  ML_DELEGATE_RETURNED,
  ML_DELEGATE_BEGIN,
  ML_DELEGATE_END,
  ML_DELEGATE_REGISTER,
  ML_DELEGATE_UNREGISTER,
  ML_DELEGATE_TRACE_ROOM,
  ML_DELEGATED
};
extern uint32_t ml_delegate_state; /* 0 not asked yet, 1 for ourselves, 2 for another */
void *ml_delegate_asked(enum ml_delegated what);
/* The function of another copy to call instead, NULL: none. */
static inline void *ml_delegate(enum ml_delegated what) {
  return ML_LIKELY(__atomic_load_n(&ml_delegate_state, __ATOMIC_ACQUIRE) == 1) ? NULL : ml_delegate_asked(what);
}

/* ---- openmp.c --------------------------------------------------------------------------------------------- */
void *ml_openmp_tool(void); /* what ompt_start_tool returns, NULL: not interested */
bool ml_openmp_tells(void);

/* ---- trace.c ---------------------------------------------------------------------------------------------- */
extern uint32_t ml_trace_selects; /* not 0: tracing depends on the region */
void ml_trace_start(void);
/* A module's sites have got their numbers; the lock is held. */
void ml_trace_module(const uint8_t *build_id, uint32_t build_id_bytes, uint64_t first_site, uint64_t sites);
void ml_trace_thread_begin(struct ml_thread *self);
void ml_trace_thread_end(struct ml_thread *self); /* in the thread, or when the process ends */
void ml_trace_forked(struct ml_thread *self);
void ml_trace_switched(struct ml_thread *self); /* it is in another region */

/* ---- region_events.c: as region_events.h says, the program's own or ours ------------------------------------- */
unsigned ml_events_open(uint64_t *state, const struct ml_count_header *asked, int *error);
void ml_events_begin(uint64_t *state, uint64_t *begun);
void ml_events_end(uint64_t *state, const uint64_t *begun, uint64_t *spent);
void ml_events_close(uint64_t *state);

/* ---- fork.c, modules.c, sampling.c, annotations.c ------------------------------------------------------------- */
void ml_fork_start(void);
extern uint64_t ml_counters_used; /* words of arrays that were given out: of the process image, also in its page */
void ml_modules_forked(void);
uint64_t ml_sites_end(void); /* one behind the last site that has a number */
enum ml_choice { ML_SKIP = 0, ML_COUNT = 1, ML_COUNT_BY_CHANCE = 2 };
enum ml_choice ml_sampled(struct ml_thread *self, const struct ml_count_place *place);
uint32_t ml_draw_group(struct ml_thread *self); /* 0: there are none */
struct memlens_hooks;
extern const struct memlens_hooks *ml_other_hooks; /* of the library that records allocations, or NULL */
void ml_find_other_hooks(void);

static inline void ml_add(uint64_t *counter, uint64_t amount) { __atomic_fetch_add(counter, amount, __ATOMIC_RELAXED); }

#endif
