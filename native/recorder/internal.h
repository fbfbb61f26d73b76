/* Shared by the files of native/recorder/ only. */
#ifndef MEMLENS_SAMPLING_INTERNAL_H
#define MEMLENS_SAMPLING_INTERNAL_H

#define _GNU_SOURCE 1
#include <linux/perf_event.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "memlens_format.h"
#include "memlens_perf.h"
#include "memlens_session.h"

/* What a perf event of ours is for; its id in a sample tells. */
enum ml_role {
  ML_ROLE_BEFORE, /* page-faults: raised before the fault is served */
  ML_ROLE_MINOR,  /* minor-faults: raised after */
  ML_ROLE_MAJOR,  /* major-faults; always enabled, so it carries mmap, comm, fork, exit too */
  /* minor-faults, one in ML_SPARSE_PERIOD; enabled instead of before and minor when those cost too much */
  ML_ROLE_SPARSE,
  ML_ROLE_STACK_0, /* minor-faults with a stack, one in 2^ml_stack_shift[level] */
  ML_ROLE_STACK_1,
  ML_ROLE_STACK_2,
  ML_ROLE_STACK_3,
  ML_ROLE_COUNT
};
#define ML_STACK_LEVELS 4
/* A prime: programs touch memory in strides of powers of two, and alternate between two or three things. */
#define ML_SPARSE_PERIOD 31
#define ML_FAULT_LEVELS 3 /* enum ml_fault_level_kind */
static const unsigned ml_stack_shift[ML_STACK_LEVELS] = {3, 6, 9, 12};

struct ml_event {
  int fd;
  uint64_t id;
  uint8_t role;
  uint32_t ring; /* index of the ring it writes to */
};

struct ml_ring {
  uint32_t cpu;
  bool stacks; /* holds the stack events of its CPU, and only them */
  int fd;      /* the event whose mmap this is */
  struct perf_event_mmap_page *meta;
  unsigned char *data;
  uint64_t data_bytes;
  unsigned char *unwrapped; /* a record that wraps around is copied here */
  uint64_t last_ns;         /* time of the last record, to place losses */
  uint64_t lost;            /* records that PERF_RECORD_LOST told of */
};

/* Growing record buffer of one kind. */
struct ml_buffer {
  unsigned char *data;
  size_t bytes, capacity;
  size_t before; /* bytes of the last batch: the next one will be about as large */
  bool is_block; /* data is of blocks.c: it does not grow */
  uint32_t count;
  uint64_t dropped, begin_ns, end_ns;
};

/* Kinds that are buffered for each process; the rest is for the whole session. */
/* clang-format off */
#define ML_SLOTS(X) \
  X(PROCESS_EVENT) X(MAPPING) X(FAULT) X(SAMPLED_FAULT) X(STACK_DUMP) X(TIMELINE) X(PLACEMENT) X(ALLOCATION) \
  X(REGION_EVENT) X(TAG_EVENT) X(PINNING) X(THREAD_MEMORY) X(TLS_MODULE) X(RUNTIME_STATUS) X(WINDOW) \
  X(PAGE_COUNT) X(UNSEEN) X(EMULATOR_STATUS)
/* clang-format on */
#define ML_SLOT_VALUE(KIND) ML_SLOT_##KIND,
enum ml_slot { ML_SLOTS(ML_SLOT_VALUE) ML_SLOT_COUNT };
#undef ML_SLOT_VALUE

struct ml_process {
  struct ml_process_info info;
  uint64_t begin_ns, exit_ns;
  bool announced; /* its fork or attach record was made */
  int statm_fd, stat_fd;
  uint64_t last_tick_ns, cpu_ns;
  struct ml_buffer buffers[ML_SLOT_COUNT];
};

/* A thread's fault in flight: "before" seen, "after" not yet. */
struct ml_pending {
  uint32_t tid;
  uint8_t before_shift;
  bool has_before;
  uint64_t address;
  /* the last fault record made for this thread, for a stack that comes after it */
  struct ml_process *last_process;
  uint64_t last_generation;
  size_t last_offset;
  uint64_t last_address, last_ns;
  bool last_is_sampled; /* it is a sampled_fault record */
};

/* A stack whose fault has not been seen yet: stacks come through a ring of their
 * own, which is drained first. One that finds no fault within two passes is
 * dropped and counted. */
struct ml_waiting_stack {
  uint64_t address;
  uint32_t tid, stack;
  uint64_t pass;
  uint8_t weight_shift;
};
#define ML_WAITING_SLOTS 16384
#define ML_WAITING_PROBES 8

struct ml_intern; /* bytes → id, see intern.c */
struct ml_intern *ml_intern_new(void);
void ml_intern_free(struct ml_intern *table);
/* Returns the id; *is_new = 1 the first time. 0 = out of memory. */
uint32_t ml_intern_bytes(struct ml_intern *table, const void *bytes, size_t length, int *is_new);

struct ml_page_question {
  uint32_t process;
  uint8_t page_shift;
  uint64_t address, evidence_ns;
};

/* Keeps the cost of recording within a share of the program's time: see budget.c. Only the drain thread looks at it. */
struct ml_budget {
  double share;                    /* 0: none */
  double cost_ns[ML_FAULT_LEVELS]; /* of a fault */
  bool is_measured;                /* cost_ns are this machine's */
  unsigned level;                  /* enum ml_fault_level_kind */
  double credit_ns;
  double rate;        /* faults a second of wall time */
  uint64_t looked_ns; /* the last look; what was counted then: */
  double own_ns;
  uint64_t plain, sampled, stacks;
  uint64_t level_ns; /* since when */
  uint64_t level_faults, level_counted;
  double level_cost_ns;
};

struct ml_session;
/* The page of an address is to be asked about; false: no room, and counted. The lock is held. */
int ml_question_add(struct ml_session *session, uint32_t process, uint64_t address, uint64_t evidence_ns);

struct ml_session {
  struct ml_session_options options;
  struct ml_session_facts facts;
  struct ml_session_counts counts;
  char failed_step[160];

  struct ml_event *events;
  size_t event_count, event_capacity;
  struct ml_event *by_id; /* open addressing on id, power of two */
  size_t by_id_mask;
  struct ml_ring *rings;
  size_t ring_count;
  struct mp_attr decoded[ML_ROLE_COUNT]; /* the attribute of each role's events, for decoding their records */
  unsigned stack_level;
  uint64_t adapt_ns, adapt_faults;
  struct ml_budget budget;
  double plain_fault_ns;

  pthread_t thread;
  bool thread_runs;
  atomic_bool stop;
  int wake_fd;

  pthread_mutex_t lock; /* guards everything below */
  struct ml_process **processes;
  size_t process_count, process_capacity;
  uint32_t *by_pid; /* open addressing: index + 1 into processes, newest of a pid */
  size_t by_pid_mask, by_pid_used;
  struct ml_pending *pending; /* open addressing on tid */
  size_t pending_mask, pending_used;
  struct ml_intern *strings, *stacks;
  uint32_t next_dump_id, next_string_id;
  struct ml_waiting_stack *waiting; /* ML_WAITING_SLOTS */
  uint64_t pass;
  struct ml_buffer string_buffer, stack_buffer, loss_buffer, level_buffer;
  struct ml_batch *ready_first, **ready_last;
  size_t queued_bytes;
  uint64_t flushed_bytes;   /* of all batches so far */
  uint64_t take_generation; /* +1 when buffers are taken: offsets into them are stale */
  struct ml_page_question *questions;
  size_t question_count, question_capacity;
  uint64_t questions_skipped;
  bool ask_nodes;
  struct ml_channel *channel; /* NULL: none; not owned */
};

/* perf_events.c */
int ml_open_events(struct ml_session *session, pid_t pid, const pid_t *tids, size_t tid_count, int enable_on_exec);
int ml_map_rings(struct ml_session *session);
void ml_close_events(struct ml_session *session);
void ml_set_stack_level(struct ml_session *session, unsigned level);
void ml_enable_role(struct ml_session *session, int role, bool on);
/* What the kernel counted on all events of a role; 0 where that cannot be read. */
uint64_t ml_count_role(struct ml_session *session, int role);
/* The attributes of a role's events, for events of the calling thread. */
void ml_describe_role(const struct ml_session *session, int role, struct perf_event_attr *attr);
/* Keeps what decoding needs of them, once it is known what the kernel and these privileges allow. */
void ml_decode_roles(struct ml_session *session);
/* Where sampling begins. Linux (seen on 6.18) gives the plain sample of a fault the size of the sample with a stack that
 * fires for the same fault: one dump of 8 KiB in 8 faults would fill the rings of the faults themselves. */
static inline unsigned ml_first_stack_level(const struct ml_session *session) {
  return session->options.stack_mode == ML_STACKS_DWARF ? 1 : 0;
}
static inline bool ml_is_enabled_first(const struct ml_session *session, int role) {
  return role != ML_ROLE_SPARSE && role <= ML_ROLE_STACK_0 + (int)ml_first_stack_level(session);
}
void ml_read_event_losses(struct ml_session *session);
int ml_role_of(const struct ml_session *session, uint64_t id);
uint64_t ml_user_ip_register(void);
uint64_t ml_unwind_registers(void);
int ml_perf_event_open(struct perf_event_attr *attr, pid_t pid, int cpu, int group, unsigned long flags);

/* budget.c */
void ml_budget_begin(struct ml_session *session, uint64_t now_ns);
void ml_budget_keep(struct ml_session *session, uint64_t now_ns);
void ml_budget_end(struct ml_session *session, uint64_t now_ns);

/* fault_cost.c */
/* What a recorded fault costs at each level, measured with faults of the calling thread; false: it could not be measured. */
/* Nanoseconds of a page fault of this thread, before any event of faults is open; 0: no memory. */
double ml_plain_fault_ns(void);
bool ml_fault_cost(const struct ml_session *session, double cost_ns[ML_FAULT_LEVELS]);

/* drain.c */
void ml_drain_all(struct ml_session *session); /* takes the lock */

/* processes.c */
struct ml_process *ml_process_of(struct ml_session *session, pid_t pid, uint64_t time_ns);
struct ml_process *ml_process_new(struct ml_session *session, pid_t pid, uint32_t parent, uint64_t time_ns);
void ml_process_event_add(struct ml_session *session, struct ml_process *process, uint64_t time_ns, unsigned operation,
                          uint32_t tid, struct ml_process *parent, uint32_t parent_tid, uint32_t name, int status,
                          unsigned flags);
void ml_process_note_maps(struct ml_session *session, struct ml_process *process);
void ml_processes_poll_children(struct ml_session *session, uint64_t now_ns);

/* batches.c */
void *ml_buffer_reserve(struct ml_session *session, struct ml_buffer *buffer, size_t bytes, uint64_t time_ns);
void ml_buffer_append(struct ml_session *session, struct ml_process *process, enum ml_slot slot, const void *record,
                      size_t bytes, uint64_t time_ns);
uint32_t ml_string_locked(struct ml_session *session, const char *text, size_t bytes);
void ml_string_write(struct ml_session *session, uint32_t id, const char *text, size_t bytes);
void ml_loss_add(struct ml_session *session, uint64_t begin_ns, uint64_t end_ns, uint64_t count, unsigned kind,
                 unsigned cause, uint32_t cpu);

/* blocks.c */
#define ML_BLOCK_BYTES ((size_t)1 << 20)
void ml_blocks_want(void); /* somebody will record windows; each call has its ml_blocks_unwant */
void ml_blocks_unwant(void);
unsigned char *ml_block_take(void); /* NULL: none is ready. Given back by ml_batch_data_free. */

/* channel.c */
int ml_channel_start(struct ml_channel *channel, struct ml_session *session);
void ml_channel_stop(struct ml_channel *channel);

/* timeline.c */
void ml_timeline_tick(struct ml_session *session, uint64_t now_ns);

#endif
