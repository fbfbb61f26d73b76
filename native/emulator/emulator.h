/* The qemu plugin. Shared by the files of native/emulator/ only.
 *
 * It runs inside the emulator's process, on the threads that run the guest. It opens no descriptor for longer
 * than a moment (the guest has the same table), prints nothing, and never ends the process. */
#ifndef MEMLENS_EMULATOR_PLUGIN_H
#define MEMLENS_EMULATOR_PLUGIN_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "memlens_channel.h"
#include "memlens_emulator.h"
#include "memlens_format.h"
#include "memlens_stream.h"
#include "qemu_api.h"

#pragma GCC visibility push(hidden) /* declarations too: no detour through a table on the hot path */

#define ML_LIKELY(condition) __builtin_expect(!!(condition), 1)
#define ML_UNLIKELY(condition) __builtin_expect(!!(condition), 0)

/* ---- settings ------------------------------------------------------------------------------------------- */
struct settings {
  bool windows;     /* record addresses */
  bool full;        /* all of them */
  bool pages;       /* count accesses by page */
  bool stacks;      /* keep call stacks */
  bool split_stack; /* tell stack and other memory apart at every access: no inline counting */
  /* the same, but only the frame of the running function is stack (where a call stores its return address) */
  bool frames;
  bool wait; /* a full ring stops the guest; else windows are dropped and counted */
  uint64_t window, period, seed;
  char functions[4096]; /* path of a list of functions that are regions: VADDR NAME lines after @PATH lines */
  uint32_t machine;     /* ELF e_machine of the guest */
};
extern struct settings ml_settings;

/* ---- counters (arena.c, counters.c) ------------------------------------------------------------------------ */
#define MAX_BLOCKS 4096 /* of slots in a process: a million slots */
#define MAX_REGIONS 1024

/* The counters of one thread in one region, by block of slots. */
struct base {
  uint32_t thread, region;
  bool has_runs;
  uint64_t *runs;                             /* executions of blocks, never NULL */
  struct ml_slot_counter *blocks[MAX_BLOCKS]; /* of the first counter in a block; NULL: none yet */
};

struct vcpu;
void ml_arena_set(const char *path, const uint64_t token[2]);
bool ml_arena_open(void);
/* Maps part of a file of the recorder, at `where` if that is given; `beginning` is where its first page is mapped. */
void *ml_map_file(const char *path, void *beginning, void *where, size_t bytes, uint64_t offset);
void ml_arena_after_fork(void);
struct ml_arena_block *ml_arena_block_new(enum ml_arena_kind kind, uint32_t thread, uint32_t region, uint32_t first);

/* Where a slot's counter lies in a base. */
struct slot_place {
  uint32_t block, offset; /* offset in bytes from the first counter */
};
struct slot_place ml_slot_new(uint64_t pc, uint32_t generation, unsigned width, unsigned parts, unsigned store,
                              unsigned flags);
uint32_t ml_run_new(struct slot_place block);
void ml_member_new(struct slot_place block, struct slot_place slot, unsigned parts);
struct ml_slot_counter *ml_counter_slow(struct base *base, struct slot_place place);
static inline struct ml_slot_counter *ml_counter(struct base *base, struct slot_place place) {
  struct ml_slot_counter *first = base->blocks[place.block];
  if (ML_UNLIKELY(first == NULL)) return ml_counter_slow(base, place);
  return (struct ml_slot_counter *)((unsigned char *)first + place.offset);
}
struct base *ml_base_new(uint32_t thread, uint32_t region);
void ml_base_set_thread(struct base *base, uint32_t thread);
void ml_base_drop(struct base *base);
void ml_region_strings_forget(void);
/* Gives what was counted inline to the thread's present region, before another begins. */
void ml_inline_move(struct vcpu *vcpu, uint32_t next_region);
#if ML_PLUGIN_API == 1
uint64_t *ml_inline_counter(struct slot_place place);
void ml_inline_set_thread(uint32_t thread);
#else
qemu_plugin_u64 ml_score(struct slot_place place);
void ml_scores_clear(unsigned index);
#endif
uint64_t ml_accesses_of(struct vcpu *vcpu);
uint64_t ml_accesses_seen(struct vcpu *vcpu);              /* the same at any moment, by any thread: changes nothing */
uint32_t ml_region_number(const char *name, size_t bytes); /* from 1; 0: no room */
uint32_t ml_region_string(uint32_t region);                /* its string id */

/* ---- instructions (translate.c) --------------------------------------------------------------------------------- */
/* What an instruction was seen to do in one direction and width. */
struct access_kind {
  uint32_t info, other_info; /* qemu's, as they came; tell direction, width and alignment */
  uint16_t width;
  bool store, irregular;          /* irregular: not every execution makes the same number of parts, all contiguous */
  uint16_t parts;                 /* of an execution; 0: not known yet */
  uint32_t runs;                  /* executions that showed it */
  uint32_t settled_runs;          /* as of ml_blocks_settle(), to be compared with executions */
  struct ml_slot_counter *direct; /* the counter of the only thread there is, when it is known */
  struct slot_place place;        /* counts parts and merges */
  struct slot_place inline_place; /* counts parts, of which `parts` are one access */
  struct slot_place member_place; /* what executions of whole blocks make of it */
  bool has_inline, has_member;
};
#define MAX_KINDS 12 /* two directions, widths of 1 to 32 */
#define MAX_CODE 16
struct insn {
  uint64_t pc;
  uint32_t generation;
  uint16_t flags, bytes;
  unsigned char code[MAX_CODE];
  uint8_t kind_count;
  bool multipart;             /* the end of an execution must be told */
  bool separate;              /* each part is an access: cmps, scas */
  bool string;                /* repeated movs, stos, lods: 64 bytes are one access */
  uint8_t jump;               /* x86-64, jumps indirectly: each execution makes 1 a load, 2 a store, 3 one of each */
  uint16_t operand_bytes;     /* of each access, from the encoding; 0: what the emulator accesses */
  bool modifies, conditional; /* atomic: a load and a store; a store that may not happen */
  /* under several threads the emulator may leave the block here, run it alone, and go on in another block */
  bool leaves;
  bool varies;                /* how many parts an execution makes is in a register: it is never taken for known */
  bool judged;                /* whether its executions are all the same was known when it was translated */
  bool alone;                 /* in a block whose executions are not told apart: its accesses are never merged */
  uint32_t runs;              /* of the block that begins with it */
  uint64_t executions;        /* while its blocks were told apart: what they counted, as of ml_blocks_settle() */
  struct block_count *blocks; /* whose first member it is */
  const char *unseen_name;    /* makes accesses that the emulator does not show */
  struct slot_place unseen_place;
  struct access_kind kinds[2]; /* nearly always enough */
  struct access_kind *more;    /* MAX_KINDS - 2 */
  struct insn *next;           /* of the same hash */
};
static inline unsigned ml_slot_whole(const struct insn *insn) { return insn->operand_bytes != 0 ? ML_SLOT_WHOLE : 0; }
/* A block as translated: its instructions that may make accesses. */
struct block_info {
  struct block_info *next; /* translated before it */
  uint64_t executions;     /* not yet given to its instructions */
  struct insn *first;
  unsigned count;
  struct insn *insns[];
};
/* A block, or a part of one, that counts its executions instead of these instructions' accesses. */
struct block_count {
  struct block_count *next; /* that begins with the same instruction */
  struct slot_place place;
  uint32_t run; /* where calls count it; UINT32_MAX: in its slot */
  bool run_asked;
  unsigned count;
  struct insn *insns[];
};
#define ML_STRING_BYTES 64 /* of an access that a repeated string instruction makes */
bool ml_kind_is_learned(const struct access_kind *kind);
bool ml_would_improve(const struct insn *insn);
void ml_translate(qemu_plugin_id_t id, struct qemu_plugin_tb *tb);
/* While no other thread runs. `gone`: nor will what was translated so far. */
void ml_blocks_settle(bool gone);

/* ---- threads --------------------------------------------------------------------------------------------------- */
struct frame {
  uint64_t return_pc;
  uint64_t stack; /* where the call stored it; 0: not known */
};
struct arrival { /* the last return to an address, and the depth after it */
  uint64_t pc;
  uint32_t depth;
};
struct interruption { /* what a signal handler interrupted */
  uint32_t depth, mark_count;
};
struct region_mark {
  uint32_t depth;            /* of the call stack when it was entered; UINT32_MAX: by annotation */
  uint32_t region, previous; /* and the one before it */
};
#define MAX_FRAMES 65536
#define MAX_MARKS 4096
#define MAX_INTERRUPTIONS 64
#define ARRIVAL_BITS 12
#define STREAM_BYTES 24576
#define ML_LEAF_BITS 18 /* of a page's number: a leaf is a GiB of addresses */
#define ML_LEAF_CACHE 8

struct vcpu {
  struct base *base;   /* counters in use */
  uint64_t executed;   /* accesses so far; while code counts inline: when that began */
  uint64_t next_event; /* value of `executed` at which a window begins or ends */
  uint64_t next_begin; /* of a window */
  uint64_t serial;     /* of block executions where it matters */
  struct insn *last_insn;
  struct access_kind *last_kind;
  const struct insn *loaded_insn; /* last atomic operation whose load was shown */
  uint64_t loaded_serial;
  uint64_t last_serial, last_end;
  uint64_t learning_calls, published_ns;
  const struct insn *string_insn; /* that is being repeated */
  struct string_access {          /* its present load and store */
    uint32_t info, left;          /* qemu's; bytes that it may still take */
    unsigned width, stack;
    struct ml_slot_counter *counter;
    uint64_t page;
  } string[2];
  uint8_t jump_left; /* accesses that the indirect jump being executed has not made yet: 1 a load, 2 a store */
  uint32_t run_parts;
  uint8_t run_directions; /* 1: has loaded, 2: has stored */
  bool run_regular, recording, resync, stack_tried, came_by_jump;
  uint64_t stack_low, stack_bytes; /* what is called stack now */
  uint64_t stack_whole;            /* bytes */
  uint64_t born_ns;
  /* the access that further parts may still extend */
  struct pending {
    uint64_t pc, address;
    uint32_t bytes, operation; /* bytes 0: none */
  } pending[2];                /* the second is in use while a repeated movs loads and stores */
  /* windows */
  uint64_t window_first, period_number, begin_ns, random, dropped;
  uint32_t recorded, window_stack, region_at_window, thread;
  int cpu_at_window;
  unsigned char *stream_at;
  struct ml_stream stream;
  unsigned char stream_bytes[STREAM_BYTES + 64];
  /* calls */
  struct frame *frames;
  uint32_t depth, lost_frames;
  uint32_t region, mark_count, interruption_count;
  struct region_mark marks[MAX_MARKS];
  struct interruption interruptions[MAX_INTERRUPTIONS];
  struct arrival arrivals[1 << ARRIVAL_BITS];
  struct base *bases[MAX_REGIONS];
  /* pages */
  uint64_t leaf_number[ML_LEAF_CACHE];
  uint64_t *leaf_counts[ML_LEAF_CACHE][2];
  struct page_leaf *leaves;
  bool flat; /* its counts are ml_flat_pages */
  unsigned index;
  bool live, ended; /* ended: all that it counted is published */
};
#define MAX_VCPUS 131072 /* qemu numbers them by threads alive; a kernel has at most 32768 by default */
extern struct vcpu *ml_vcpus[MAX_VCPUS];
extern uint64_t *ml_runs[MAX_VCPUS];     /* those of each one's counters in use */
void ml_vcpu_publish(struct vcpu *vcpu); /* before the thread or the program goes */
struct vcpu *ml_current_vcpu(void);
uint32_t ml_thread_id(struct vcpu *vcpu);

#define LEAST_LEARNING 50000
#define LEARNING_OF_BLOCK 800

extern struct plugin {
  qemu_plugin_id_t id;
  int api;           /* what this qemu has */
  struct vcpu *only; /* the thread that counts inline; NULL: several have run */
  bool regions;      /* regions change so often that no code counts inline */
  uint64_t region_changes;
  bool reset_asked;
  bool handles_faults; /* the program has a handler for faults: blocks may be left in the middle and go on */
  bool sparse;         /* windows are so far apart that code counts inline between them */
  bool near;           /* a window is near or being recorded: every access calls */
  bool knows_code;     /* where translated code lies */
  uint64_t late;       /* windows that began after their place */
  /* Accesses of a thread in code that would be faster if it were translated again, before that is done: about as
   * many as cost as much as it does. Code that has to be translated again makes it more. */
  uint64_t learning_limit;
  uint64_t pages_dropped;
  char emulator[1024], arena_path[128];
  uint64_t translations, flushes, modified, threads, recorded, dropped, waited_ns, born_ns;
  unsigned highest_vcpu;
  uint64_t guest_base;
  bool guest_base_known;
  pthread_mutex_t lock;
} ml_plugin;
void ml_several_threads(void); /* from now on */
bool ml_counts_inline(void);   /* may translated code count by itself now? */
bool ml_only_counts(void);     /* no addresses are asked for */
bool ml_no_windows(void);      /* at most pages */
void ml_ask_reset(void);
uint64_t ml_now_ns(void);

/* ---- accesses (accesses.c) ------------------------------------------------------------------------------------- */
void ml_on_access(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *insn);
void ml_on_single_access(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *insn);
void ml_on_counted_access(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *insn);
void ml_on_run_access(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *run);
void ml_on_only_access(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *insn);
void ml_on_own_access(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *unused);
void ml_on_atomic_access(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *insn);
void ml_on_string_access(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *insn);
void ml_on_string_end(unsigned cpu, void *unused);
void ml_on_jump_begin(unsigned cpu, void *insn);
void ml_on_jump_page(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *insn);
void ml_on_jump_access(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *insn);
void ml_on_quick_atomic(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *insn);
void ml_on_page_load(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *insn);
void ml_on_page_store(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *insn);
void ml_on_page_access(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *insn);
void ml_on_block(unsigned cpu, void *block);
void ml_on_run(unsigned cpu, void *run);
void ml_on_run_of_slot(unsigned cpu, void *block_count);
void ml_on_unseen(unsigned cpu, void *insn);
void ml_executions_settle(void);
void ml_accesses_after_fork(void);
void ml_switch_region(struct vcpu *vcpu, uint32_t region);

/* ---- windows (windows.c) ------------------------------------------------------------------------------------------ */
void ml_windows_start(struct vcpu *vcpu);
void ml_windows_several(struct vcpu *vcpu); /* a second thread begins: no more inline counting between windows */
void ml_windows_without_signal(struct vcpu *vcpu);
bool ml_window_far(struct vcpu *vcpu);
void ml_window_near(struct vcpu *vcpu);
void ml_window_resync(struct vcpu *vcpu);
void ml_window_event(struct vcpu *vcpu, uint64_t pc);
void ml_window_add(struct vcpu *vcpu, uint64_t pc, uint64_t address, uint32_t bytes, bool store);
void ml_window_extend(struct vcpu *vcpu, uint32_t bytes);
void ml_window_begin_string(struct vcpu *vcpu);
void ml_window_add_string(struct vcpu *vcpu, uint64_t pc, uint64_t address, uint32_t bytes, bool store);
void ml_window_extend_string(struct vcpu *vcpu, uint64_t pc, uint64_t address, uint32_t bytes, bool store);
void ml_window_finish(struct vcpu *vcpu); /* writes what there is */

/* ---- waiting for windows (waiting.c) ---------------------------------------------------------------------------------- */
bool ml_wait_for(uint64_t begin);
void ml_wait_end(void);
void ml_wait_was_late(uint64_t late);
void ml_wait_code_at(const void *pc);
void ml_wait_call_begins(void);
void ml_wait_call_ends(struct vcpu *vcpu);
bool ml_wait_loses(uint64_t guest_signal);
bool ml_wait_is_blocked(void);
void ml_wait_after_fork(void);

/* ---- calls (calls.c) ------------------------------------------------------------------------------------------------ */
void ml_on_call(unsigned cpu, void *return_pc);
void ml_on_call_store(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *return_pc);
void ml_on_handler(unsigned cpu, void *unused);
void ml_handler_returned(struct vcpu *vcpu);
void ml_on_jump(unsigned cpu, void *unused);
void ml_on_landing(unsigned cpu, void *pc);
void ml_on_function(unsigned cpu, void *region);
uint32_t ml_stack_id(struct vcpu *vcpu, uint64_t pc);
void ml_region_enter(struct vcpu *vcpu, uint32_t region, uint32_t depth);
void ml_region_leave(struct vcpu *vcpu, uint32_t region);
void ml_stacks_after_fork(void);

/* ---- pages (pages.c) ---------------------------------------------------------------------------------------------- */
/* Counts run downwards from zero, so that the borrow of a subtraction tells the first access. */
static inline bool ml_page_count(uint64_t *count) {
#if defined(__x86_64__) && defined(__GCC_ASM_FLAG_OUTPUTS__)
  bool borrow; /* compilers make four instructions of it */
  __asm__("subq $1, %0" : "+m"(*count), "=@ccc"(borrow));
  return borrow;
#else
  return __builtin_sub_overflow(*count, UINT64_C(1), count);
#endif
}
void ml_page_first(struct vcpu *vcpu, uint64_t pc, uint64_t address); /* its first access of a kind was counted */
void ml_page_slow(struct vcpu *vcpu, uint64_t pc, uint64_t address, bool store);
static inline void ml_page_access(struct vcpu *vcpu, uint64_t pc, uint64_t address, bool store) {
  const uint64_t number = address >> (12 + ML_LEAF_BITS);
  if (ML_UNLIKELY(vcpu->leaf_number[number % ML_LEAF_CACHE] != number)) {
    ml_page_slow(vcpu, pc, address, store);
    return;
  }
  uint64_t *counts = vcpu->leaf_counts[number % ML_LEAF_CACHE][store];
  if (ML_UNLIKELY(ml_page_count(&counts[address >> 12 & ((UINT64_C(1) << ML_LEAF_BITS) - 1)])))
    ml_page_first(vcpu, pc, address);
}
/* The counts of the first thread, loads and stores, by page number: no search at all. NULL: there was no room for them. */
#define ML_ADDRESS_BITS 47 /* of a process of the host, so of its guest */
#define ML_FLAT_PAGES (UINT64_C(1) << (ML_ADDRESS_BITS - 12))
extern uint64_t *ml_flat_pages[2];
extern struct vcpu *ml_flat_vcpu;                                                                  /* whose they are */
#define ML_FLAT_PAGE(address) ((address) << (64 - ML_ADDRESS_BITS) >> (64 - ML_ADDRESS_BITS + 12)) /* without tags */
void ml_pages_start(struct vcpu *first);
void ml_pages_unmapped(uint64_t address, uint64_t bytes);
void ml_pages_write(struct vcpu *vcpu);
void ml_pages_drop(struct vcpu *vcpu);
void ml_pages_after_fork(void);

/* ---- guest code and memory (isa.c, guest.c) ---------------------------------------------------------------------------- */
/* The memory operand of an instruction, from its encoding. */
enum operand_shape {
  OPERAND_PARTS, /* the instruction accesses what the emulator shows: elements, or registers of a list */
  /* one execution makes one access of `bytes` in each of its directions, however the emulator makes it */
  OPERAND_WHOLE,
  OPERAND_ALL_LANES, /* a masked load, of which the emulator loads all lanes */
  OPERAND_NONE,
  OPERAND_UNKNOWN,
};
struct operand {
  enum operand_shape shape;
  uint16_t bytes;
};
struct operand ml_x86_operand(const unsigned char *bytes, size_t size);
enum insn_role { ROLE_NONE, ROLE_CALL, ROLE_RETURN, ROLE_JUMP, ROLE_UNSEEN };
struct insn_facts {
  enum insn_role role;
  const char *unseen;                 /* its name */
  bool atomic, modifies, conditional; /* see struct insn */
  bool leaves, varies;                /* likewise */
  bool separate, string;              /* likewise */
  uint8_t jump;                       /* likewise */
  struct operand operand;
};
struct insn_facts ml_decode(const unsigned char *bytes, size_t size);
struct code_place {
  bool anonymous;
  bool own; /* our library inside the guest: not the program's accesses */
};
struct code_place ml_code_place(uint64_t pc); /* also reports the module to the recorder */
void ml_code_unmapped(uint64_t address, uint64_t bytes);
bool ml_mapping_at(uint64_t guest_address, uint64_t *begin, uint64_t *end);
void ml_write_stack(const struct vcpu *vcpu);
void *ml_host(uint64_t guest_address);
char *ml_program_path(void);              /* of the guest, to be freed */
uint32_t ml_function_region(uint64_t pc); /* 0: none starts here */
void ml_guest_after_fork(void);

/* ---- system calls (syscalls.c) ---------------------------------------------------------------------------------------- */
void ml_on_syscall(qemu_plugin_id_t id, unsigned cpu, int64_t number, uint64_t a1, uint64_t a2, uint64_t a3,
                   uint64_t a4, uint64_t a5, uint64_t a6, uint64_t a7, uint64_t a8);
void ml_on_syscall_return(qemu_plugin_id_t id, unsigned cpu, int64_t number, int64_t result);
uint64_t ml_new_thread_stack(void); /* of the thread that this one is making */
void ml_wipe_guard(void);
bool ml_is_handler(uint64_t pc); /* of a signal */

/* ---- the recorder's channel (channel.c) ---------------------------------------------------------------------------------- */
bool ml_channel_open(const char *value, uint64_t token[2]);
void ml_channel_after_fork(void);
/* Writes one record: `head`, then `tail`. False: no room, or no recorder. */
bool ml_write(unsigned kind, const void *head, size_t head_bytes, const void *tail, size_t tail_bytes, bool wait);
uint32_t ml_string(const char *text, size_t bytes);
void ml_write_status(void);
/* Of the guest's life: `parent` is a pid, `name` a path or NULL. */
void ml_write_process_event(unsigned operation, uint32_t thread, uint32_t parent, const char *name);

#pragma GCC visibility pop

#endif
