/* The library inside the profiled process. Shared by the files of native/runtime/ only.
 *
 * Rules: never exit, never throw, never print, no thread of our own, no allocation, no lock; every
 * function that a hook can reach is async-signal-safe and keeps errno. */
#ifndef MEMLENS_RUNTIME_H
#define MEMLENS_RUNTIME_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "memlens_channel.h"
#include "memlens_format.h"
#include "memlens_ring.h"

#define ML_LIKELY(condition) __builtin_expect(!!(condition), 1)
#define ML_UNLIKELY(condition) __builtin_expect(!!(condition), 0)
#define ML_EXPORT __attribute__((visibility("default")))
#define ML_MAX_DEPTH 64

/* What a thread keeps. Plain memory in the static TLS block: valid from the thread's first
 * instruction to its last, destructors included. */
#define ML_THREAD_MAGIC UINT64_C(0x6d656d6c656e7354)
struct ml_thread {
  uint64_t magic;               /* ML_THREAD_MAGIC in thread-local memory that the loader or the C library made */
  int64_t countdown;            /* bytes until the next sample; below 0: look closer (a new thread starts at 0) */
  uint64_t generation;          /* of the attachment that the fields below belong to */
  uint64_t random;              /* state of the generator */
  int64_t gap;                  /* the distance that countdown began with */
  uint64_t passed_bytes;        /* small objects of this thread so far, up to the last sample */
  uint64_t rate;                /* the mean distance that `gap` was drawn with */
  int64_t large_countdown;      /* bytes of large objects until the next one that is recorded, while they are sampled */
  uint64_t large_rate;          /* the mean distance of these */
  uint64_t begun_ns, spent_ns;  /* what recording this thread's objects has cost since */
  uint64_t safe_low, safe_high; /* stack memory known to be readable */
  uint32_t tid;
  uint32_t ring;
  bool has_gap;       /* countdown was drawn */
  bool thinned;       /* recording costs too much: large objects are sampled too */
  bool resolving;     /* looking the real functions up */
  bool hurried;       /* asked not to wait for room in a ring */
  uint16_t inside;    /* > 0: in our own code, calls from here are not the program's */
  uint16_t operation; /* set by operator new for the malloc below it */
  uint8_t operation_flags;
  const void *deleting; /* set by a recorded operator delete for the free below it */
  uint16_t region_depth;
  uint32_t regions[32]; /* names of the open regions */
};
extern __thread struct ml_thread ml_self __attribute__((tls_model("initial-exec"), visibility("hidden")));

static inline uint64_t ml_thread_pointer(void) {
#if defined(__powerpc64__)
  uint64_t pointer; /* GCC has no built-in for it here */
  __asm__("mr %0, 13" : "=r"(pointer));
  return pointer;
#else
  return (uint64_t)(uintptr_t)__builtin_thread_pointer();
#endif
}

/* False: the thread pointer leads to memory that is no thread's of the C library. A clone with CLONE_SETTLS may run here with any
 * block that it likes (Chromium's sandbox does): thread-local variables of ours are then somebody's memory, or none at all.
 * Hooks that such a thread may call ask before they touch one. */
static inline bool ml_own_thread(void) {
#if defined(__x86_64__)
  uint64_t first;
  __asm__ volatile("movq %%fs:0, %0" : "=r"(first)); /* the C library's blocks begin with their own address */
  if (ML_UNLIKELY(first == 0)) return false;
#else
  if (ML_UNLIKELY(ml_thread_pointer() == 0)) return false;
#endif
  return ML_LIKELY(*(volatile uint64_t *)&ml_self.magic == ML_THREAD_MAGIC);
}

enum ml_attachment { ML_DETACHED = 0, ML_ATTACHING = 1, ML_ATTACHED = 2, ML_OFF = 3 };

/* On a page of its own that a fork's child finds zeroed (MADV_WIPEONFORK), however it was forked:
 * that is how a child learns that the rings are its parent's. */
struct ml_fork_guard {
  _Atomic uint32_t attachment; /* enum ml_attachment */
};

struct ml_runtime {
  struct ml_fork_guard *guard;
  /* NULL: no channel. Every process of the tree can write to it, also one that has dropped its privileges since: what is
   * needed of it again is copied, and checked, when it is mapped. */
  struct ml_channel_header *header;
  struct ml_geometry geometry;
  uint32_t recorder_pid, slot_pid;
  uint64_t recorder_pid_namespace;
  bool recorder_is_near; /* in our PID namespace */
  struct ml_channel_slot *slot;
  unsigned char *rings;
  uint64_t mapped_bytes; /* of the channel; a child needs neither a path nor a descriptor for a slot in it */
  bool slot_mapped_alone;
  bool standalone;
  bool other_malloc;    /* the program has a malloc of its own: ours is not called */
  bool sandboxed;       /* unexpected system calls may kill from here on, in forked children too */
  bool probes_by_futex; /* ml_readable asks this way */
  bool guard_unsure;    /* an emulator that ignores MADV_WIPEONFORK, and no plugin in it: `pid` tells a child */
  uint32_t pid;
  uint64_t generation;
  uint64_t ring_bytes;
  uint32_t ring_count;
  _Atomic uint32_t next_ring;
  uint64_t sample_bytes, large_bytes;
  uint32_t wait_ms, flags, budget_ppm;
  uint64_t token[2];
  char path[128];
  uint64_t text_begin, text_end;  /* our own code, left out of stacks */
  uint64_t stuck_until_ns;        /* the reader made no progress: do not wait before this */
  _Atomic uint64_t break_address; /* as last recorded */
  uint64_t break_start;           /* when the library started */
};
extern struct ml_runtime ml_runtime __attribute__((visibility("hidden")));

/* channel.c */
/* True when this process records; attaches first if need be. Call with ml_self.inside raised. */
bool ml_attached(void);
static inline bool ml_recording(void) {
  return ML_LIKELY(ml_runtime.guard != NULL &&
                   atomic_load_explicit(&ml_runtime.guard->attachment, memory_order_acquire) == ML_ATTACHED);
}
void ml_runtime_start(void); /* at load, or at the first call that comes before it */
struct ml_ticket {
  struct ml_ring_record *header;
  void *record;
  size_t bytes;
};
/* Room for one record of `bytes`, zeroed; record == NULL when there is none (counted). */
struct ml_ticket ml_reserve(unsigned kind, size_t bytes);
struct ml_ticket ml_reserve_or_not(unsigned kind, size_t bytes, bool wait); /* without waiting for room */
void ml_commit(struct ml_ticket ticket);
uint64_t ml_now_ns(void);
void ml_thread_refresh(void); /* after ml_attached: fields of ml_self for this attachment */
void ml_stop_recording(void); /* for the rest of this process, and for its children if it is `sandboxed` */
void ml_enter_sandbox(void);  /* unexpected system calls may kill from here on: none of ours any more */
void ml_note_missed(void);    /* a call that was left out because inside > 0 */
uint32_t ml_string(const char *text, size_t bytes);
void *ml_map_private(size_t bytes, bool wipe_on_fork); /* NULL on failure */
bool ml_readable(uint64_t address, size_t bytes);

/* guest.c: under the emulator (memlens_emulator.h) */
extern bool ml_emulated __attribute__((visibility("hidden"))); /* its plugin has answered; natively false, always */
void ml_guest_start(void);                                     /* once, as soon as there are variables */
void ml_guest_region(unsigned operation, const char *name);
/* A memory-policy call that the emulator does not have, made by the plugin. As a C library returns it. */
long ml_guest_policy(unsigned call, const uint64_t arguments[6]);

/* interpose_system.c: the next definition of a function, looked up once. */
void *ml_next(_Atomic(void *) *kept, const char *name);
#define ML_NEXT(name)                         \
  static _Atomic(void *) kept_##name;         \
  void *found = ml_next(&kept_##name, #name); \
  __typeof__(&name) function;                 \
  __builtin_memcpy(&function, &found, sizeof function)

/* interpose_exec.c */
void ml_exec_start(void);

/* interpose_malloc.c */
void ml_malloc_start(void); /* finds the real functions: later, a signal handler could interrupt that */

/* unwind.c */
void ml_unwind_start(void);
void ml_unwind_forget(void); /* code was unloaded */
/* Return addresses of the callers outside this library, innermost first. */
unsigned ml_unwind(uint64_t *ips, unsigned capacity, bool *truncated);

/* stacks.c */
void ml_stacks_start(void);
void ml_stacks_forget(void);
void ml_stacks_clear(void); /* in a fork's child, where the kernel has not done it */
uint32_t ml_stack_here(void);
uint32_t ml_stack_from(uint64_t caller); /* leaves out what is inside the function that returns there */

/* objects.c */
#define ML_NEVER (INT64_MAX / 2)
extern size_t ml_large __attribute__((visibility("hidden"))); /* objects from this size are always recorded */
/* The fast path of every allocation: false for most small objects. */
static inline bool ml_look_closer(size_t bytes) {
  return ML_UNLIKELY(bytes >= ml_large) || ML_UNLIKELY((ml_self.countdown -= (int64_t)bytes) < 0);
}
struct ml_birth {
  bool wanted;
  uint64_t weight_bytes;
};
/* After ml_look_closer said yes: is this object to be recorded? */
struct ml_birth ml_choose(size_t bytes);
struct ml_what {
  unsigned operation, flags;
  size_t alignment;
  uint64_t old_address;
  uint32_t protection;
  uint64_t map_flags;
};
void ml_record_birth(struct ml_birth birth, const void *address, size_t bytes, struct ml_what what);
/* Before the real release. Takes the object out of the set; true: it was recorded, and a record is due. */
bool ml_take_release(const void *address);
void ml_record_release(const void *address, size_t bytes, uint64_t time_ns, unsigned operation, unsigned flags);

/* sampled.c */
#define ML_FILTER_BITS 16
extern uint8_t *ml_filter __attribute__((visibility("hidden"))); /* never NULL */
void ml_sampled_start(void);
/* Small objects that a process records before it samples: short programs are exact. */
#define ML_EXACT_OBJECTS 5000
bool ml_in_exact_phase(void);
bool ml_take_exact(void);   /* true: this one is recorded as it is */
void ml_note_sampled(void); /* from here on small objects may be missing */
int64_t ml_next_gap(struct ml_thread *self);
/* A large object: is it to be recorded? `weight_bytes` is 0 where all of them are. */
bool ml_take_large(struct ml_thread *self, size_t bytes, uint64_t *weight_bytes);
/* A record was made from `begin_ns` on: keeps what that costs within the budget. */
void ml_spend(struct ml_thread *self, uint64_t begin_ns);
uint64_t ml_sample_weight(const struct ml_thread *self, uint64_t bytes);
void ml_sampled_add(const void *address);
bool ml_sampled_remove(const void *address);
static inline uint64_t ml_pointer_hash(const void *address) {
  return ((uint64_t)(uintptr_t)address >> 4) * UINT64_C(0x9E3779B97F4A7C15);
}
static inline bool ml_maybe_sampled(const void *address) {
  return ML_UNLIKELY(ml_filter[ml_pointer_hash(address) >> (64 - ML_FILTER_BITS)] != 0);
}

/* describe.c */
void ml_remember_own(const void *address, size_t bytes);
void ml_write_own_memory(void); /* our own memory, and where thread-local variables lie */
void ml_write_rss(void);        /* at the ends of phases */
void ml_write_maps(void);       /* mapping records of what is new in /proc/self/maps */

/* standalone.c */
bool ml_standalone_attach(void);
void ml_standalone_begun(void);         /* first records of the process */
void ml_standalone_room(uint32_t ring); /* called when a ring is full: writes it out */
void ml_standalone_end(void);

#endif
