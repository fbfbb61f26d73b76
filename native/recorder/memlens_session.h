/* memlens sampling sessions: what a recorder outside the target can observe.
 *
 * A session owns perf events (one set a CPU and task, inherited by forks and new
 * threads), their ring buffers, a table of the processes seen, and one drain
 * thread that turns kernel records into memlens records (memlens_format.h) and
 * reads /proc at the set rate. The recorder takes finished batches from it and
 * writes them; it is never linked into the target.
 *
 * Threading: every function may be called from any thread, one call at a time,
 * while the drain thread runs. Nothing here prints or exits; failures are
 * negative errno values, and `ml_session_failed_step` names the step. */
#ifndef MEMLENS_SESSION_H
#define MEMLENS_SESSION_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "memlens_format.h"

#ifdef __cplusplus
extern "C" {
#endif

enum ml_stack_mode { ML_STACKS_NONE = 0, ML_STACKS_FP = 1, ML_STACKS_DWARF = 2 };

struct ml_session_options {
  int faults;                /* 1: page-fault events */
  int fault_before;          /* 1: also what was mapped before each fault (a second event) */
  int include_kernel;        /* 1: also faults inside system calls; needs privilege, falls back */
  int stack_mode;            /* enum ml_stack_mode */
  uint32_t stack_dump_bytes; /* DWARF: bytes of user stack a sample */
  uint64_t ring_bytes;       /* a CPU; 0 = as much as is useful and allowed */
  uint64_t queue_bytes;      /* records waiting for the recorder; more is dropped and counted */
  double timeline_hz;        /* 0 = no timeline */
  /* what recording faults may take of the program's time; 0 = every fault, whatever it costs */
  double budget_share;
  int emulated; /* 1: processes run under an emulator: their /proc/PID/maps are not the program's */
};

/* What was really obtained; travels in the capture's quality. */
struct ml_session_facts {
  uint32_t cpus;
  uint32_t events;     /* perf events opened */
  uint64_t ring_bytes; /* a CPU */
  int include_kernel;
  int page_size_known; /* the kernel gives PERF_SAMPLE_DATA_PAGE_SIZE */
  int lost_readable;   /* the kernel gives PERF_FORMAT_LOST */
};

struct ml_session_counts {
  uint64_t faults;           /* fault records made */
  uint64_t sampled_faults;   /* of these records of one fault in several */
  uint64_t stack_faults;     /* of these records for a stack alone */
  uint64_t stacks;           /* with a stack */
  uint64_t stacks_unmatched; /* stacks that were taken but met no fault record */
  uint64_t ring_lost;        /* PERF_RECORD_LOST: records that found the ring full */
  uint64_t event_lost;       /* PERF_FORMAT_LOST, read at the end (0 if not readable) */
  uint64_t queue_dropped;    /* records dropped because the recorder was behind */
  uint64_t unpaired;         /* faults whose "before" was not seen */
  uint64_t throttled;        /* PERF_RECORD_THROTTLE */
  uint64_t unknown_records;  /* kernel record types that were skipped */
  uint64_t timeline_ticks;
  uint64_t timeline_late_ticks; /* more than one interval late */
  uint64_t drain_cpu_ns;        /* CPU time of the drain thread */
  uint64_t processes;           /* seen so far */
  uint64_t level_changes;       /* how faults are recorded was changed so often */
  double fault_cost_ns[3];      /* of a recorded fault, by enum ml_fault_level_kind; 0 = not measured */
};

/* A batch of records of one kind and process, owned by the taker. */
struct ml_batch {
  struct ml_batch *next;
  unsigned char *data;
  size_t bytes;
  uint32_t record_count;
  uint32_t process;
  uint64_t dropped;
  uint64_t begin_ns, end_ns;
  uint16_t kind;
};

struct ml_process_info {
  uint32_t process; /* number in the capture, from 1 */
  uint32_t parent;
  pid_t pid;
  int alive;
  uint64_t mappings_changed; /* data mappings seen so far: a reason to look at the page table */
  uint64_t execs;            /* changes of the address space */
  uint64_t fault_events;     /* fault records made for it */
  uint64_t kernel_faults;    /* the kernel's own count at the last timeline reading, 0 = none yet */
};

struct ml_session;

struct ml_session *ml_session_new(const struct ml_session_options *options);
void ml_session_free(struct ml_session *session);
const char *ml_session_failed_step(const struct ml_session *session);
void ml_session_get_facts(struct ml_session *session, struct ml_session_facts *facts);
void ml_session_get_counts(struct ml_session *session, struct ml_session_counts *counts);

/* Opens the events on a child that waits before exec (`enable_on_exec` = 1), or on
 * every thread of a running process (0). Call before ml_session_start. */
int ml_session_attach(struct ml_session *session, pid_t pid, int enable_on_exec);
int ml_session_start(struct ml_session *session);
/* Disables the events, drains what is left and joins the drain thread. */
int ml_session_stop(struct ml_session *session);
/* Note the main program's end, with its wait status. */
void ml_session_note_exit(struct ml_session *session, pid_t pid, int status);

/* Takes everything that is ready, oldest first, strings and stacks before what
 * points to them. NULL = nothing. Free with ml_batches_free. */
struct ml_batch *ml_session_take(struct ml_session *session);
void ml_batch_data_free(void *data); /* of one whose `data` was taken out */
void ml_batches_free(struct ml_batch *batches);

/* Interns a string into the session's table (for records the recorder makes itself). */
uint32_t ml_session_string(struct ml_session *session, const char *text, size_t bytes);

/* Copies up to `capacity` processes that are alive; returns how many there are. */
size_t ml_session_processes(struct ml_session *session, struct ml_process_info *into, size_t capacity);

/* Pages that accesses were seen on: they are asked about with those that faulted. Returns how many found room in the queue. */
size_t ml_session_ask_nodes(struct ml_session *session, uint32_t process, const uint64_t *pages, size_t count,
                            uint64_t evidence_ns);

/* Asks the kernel for the NUMA nodes of pages that faulted since the last call,
 * for at most `budget_ns`; makes placement records. Returns the pages asked, and
 * in `skipped` the pages given up because the queue was over its bound. */
size_t ml_session_resolve_nodes(struct ml_session *session, uint64_t budget_ns, uint64_t *skipped);

/* ---- the library inside the processes ---------------------------------------- */
struct ml_channel_options {
  uint64_t sample_bytes; /* mean distance of sampled small objects; 0 = record every object */
  uint64_t large_bytes;  /* objects of this size and more are always recorded */
  uint64_t ring_bytes;   /* a power of two; 0 = what fits the sampling */
  uint32_t ring_count;   /* of a process, at most ML_CHANNEL_MAX_RINGS; 0 = one a CPU, within reason */
  uint32_t slot_max;     /* processes at one time */
  uint32_t wait_ms;      /* how long a thread waits for a recorder that does not come */
  uint32_t budget_ppm;   /* of a thread's time, what recording its objects may cost; 0 = whatever it costs */
  int alloc, annotations;
  int windows; /* many will come: memory for them is made ready in idle time */
};
struct ml_channel_counts {
  uint64_t processes; /* that attached */
  uint64_t refused;   /* that found no slot */
  uint64_t left_out;  /* programs that could not load the library, and were started without it */
  uint64_t records;   /* taken from the rings */
  uint64_t dropped;   /* that found no room, as the processes counted */
  uint64_t damaged;   /* rings given up because their content made no sense */
  uint64_t holes;     /* records that a process was writing when it was killed */
  uint64_t nested, untracked, waits, waited_ns, stacks;
  uint64_t other_malloc; /* processes whose malloc is their own, so that their heap was not seen */
  uint64_t cpu_ns;       /* of the thread that empties the rings */
};
struct ml_channel;
/* Makes the memory file. NULL with errno set on failure. */
struct ml_channel *ml_channel_new(const struct ml_channel_options *options);
void ml_channel_free(struct ml_channel *channel);
/* The value of the environment variable ML_CHANNEL_VARIABLE that leads processes here. */
const char *ml_channel_value(const struct ml_channel *channel);
void ml_channel_get_counts(struct ml_channel *channel, struct ml_channel_counts *counts);
/* The session empties it from now on; before ml_session_start. The channel must outlive the session's run. */
void ml_session_use_channel(struct ml_session *session, struct ml_channel *channel);

/* ---- a child that waits until it is watched -------------------------------- */
struct ml_child {
  pid_t pid;
  int go_fd;     /* write one byte: exec now; close without: exit */
  int failed_fd; /* readable after go: 0 bytes = exec worked, else int errno */
};
/* `environment`: NAME=VALUE strings that the program gets besides ours, ended by NULL; may be NULL. `launcher`: path of the
 * built launcher.c, without which the program's peak RSS is at least ours; may be NULL, and need not be executable. */
int ml_child_spawn(struct ml_child *child, char *const argv[], const char *working_directory, char *const environment[],
                   const char *launcher);
int ml_child_go(struct ml_child *child); /* 0, or the errno of execvp */
void ml_child_abandon(struct ml_child *child);

/* ---- pages resident without an event ---------------------------------------- */
struct ml_page_table; /* what the last look at one process's page table saw */
struct ml_page_table *ml_page_table_new(pid_t pid);
void ml_page_table_free(struct ml_page_table *table);
/* Looks at the private writable memory of the process; returns in `records`
 * (malloc'ed struct ml_residency array, free it) the runs that are resident
 * now and were not at the last look. Returns the count or a negative errno. */
ssize_t ml_page_table_look(struct ml_page_table *table, struct ml_residency **records);

/* ---- what this machine allows (memlens doctor) -------------------------------- */
struct ml_probe_result {
  int fault_event_errno;    /* software page-fault event on this process */
  int fault_kernel_errno;   /* the same with faults inside system calls */
  int hardware_event_errno; /* cycles */
  int page_size_errno;      /* PERF_SAMPLE_DATA_PAGE_SIZE */
  int ring_errno;           /* mapping a ring of the default size */
  int pagemap_errno;        /* /proc/self/pagemap */
  int pagemap_scan_errno;   /* PAGEMAP_SCAN ioctl */
  int move_pages_errno;
  int seccomp_mode; /* /proc/self/status Seccomp */
};
void ml_probe(struct ml_probe_result *result);

/* ---- clocks ------------------------------------------------------------------ */
struct ml_clock_reading {
  uint64_t monotonic_ns, ticks, uncertainty_ns, ticks_per_second;
  uint16_t clock, cpu;
};
/* Reads every clock that this machine has against CLOCK_MONOTONIC. */
size_t ml_clock_pairs(struct ml_clock_reading *into, size_t capacity);

uint64_t ml_monotonic_ns(void);

/* Picoseconds of one add to a counter in memory, the least of several measurements; takes about 2 ms. */
uint64_t ml_counter_add_ps(void);

#ifdef __cplusplus
}
#endif
#endif
