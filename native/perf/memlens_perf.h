/* Decoding of perf's records: attributes, samples and the other records, from live rings and from perf.data files.
 *
 *   bytes + attribute ──► struct mp_sample, mp_mapping, mp_task, ...   (perf_records.c)
 *   perf.data         ──► attributes and records, one after the other  (perf_file.c)
 *
 * Everything is driven by the event's attribute: nothing here knows which events memlens opens. The layouts are those of
 * the kernel's include/uapi/linux/perf_event.h; the constants are repeated because the header of the building machine may be older
 * than a recording. Input is never trusted: each function gets the number of bytes and returns false where they do not
 * suffice. Pointers in results point into the input. Nothing is allocated, except the tables of an open file.
 *
 * This room must not know captures, sessions or Python. It depends on the C library alone. */
#ifndef MEMLENS_PERF_H
#define MEMLENS_PERF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- attributes ---------------------------------------------------------------- */
enum mp_sample_bits {
  MP_SAMPLE_IP = 1 << 0,
  MP_SAMPLE_TID = 1 << 1,
  MP_SAMPLE_TIME = 1 << 2,
  MP_SAMPLE_ADDR = 1 << 3,
  MP_SAMPLE_READ = 1 << 4,
  MP_SAMPLE_CALLCHAIN = 1 << 5,
  MP_SAMPLE_ID = 1 << 6,
  MP_SAMPLE_CPU = 1 << 7,
  MP_SAMPLE_PERIOD = 1 << 8,
  MP_SAMPLE_STREAM_ID = 1 << 9,
  MP_SAMPLE_RAW = 1 << 10,
  MP_SAMPLE_BRANCH_STACK = 1 << 11,
  MP_SAMPLE_REGS_USER = 1 << 12,
  MP_SAMPLE_STACK_USER = 1 << 13,
  MP_SAMPLE_WEIGHT = 1 << 14,
  MP_SAMPLE_DATA_SRC = 1 << 15,
  MP_SAMPLE_IDENTIFIER = 1 << 16,
  MP_SAMPLE_TRANSACTION = 1 << 17,
  MP_SAMPLE_REGS_INTR = 1 << 18,
  MP_SAMPLE_PHYS_ADDR = 1 << 19,
  MP_SAMPLE_AUX = 1 << 20,
  MP_SAMPLE_CGROUP = 1 << 21,
  MP_SAMPLE_DATA_PAGE_SIZE = 1 << 22,
  MP_SAMPLE_CODE_PAGE_SIZE = 1 << 23,
  MP_SAMPLE_WEIGHT_STRUCT = 1 << 24,
};
#define MP_SAMPLE_KNOWN ((UINT64_C(1) << 25) - 1)

enum mp_read_bits {
  MP_READ_TIME_ENABLED = 1 << 0,
  MP_READ_TIME_RUNNING = 1 << 1,
  MP_READ_ID = 1 << 2,
  MP_READ_GROUP = 1 << 3,
  MP_READ_LOST = 1 << 4,
};

enum { MP_BRANCH_HW_INDEX = 1 << 17, MP_BRANCH_COUNTERS = 1 << 19 };

/* What decoding needs of a struct perf_event_attr. */
struct mp_attr {
  uint32_t type;
  uint64_t config;
  uint64_t config1;
  uint64_t config2;
  uint64_t sample_period; /* a frequency where is_frequency */
  uint64_t sample_type;
  uint64_t read_format;
  uint64_t branch_sample_type;
  uint64_t sample_regs_user;
  uint64_t sample_regs_intr;
  uint32_t sample_stack_user;
  bool sample_id_all;
  bool is_frequency;
};

enum { MP_ATTR_SIZE_VER0 = 64 };

/* `size` bytes of a perf_event_attr of any version; fields that it lacks are 0. False: fewer than 64 bytes. */
bool mp_attr_read(struct mp_attr *attr, const void *bytes, size_t size);

/* ---- samples ---------------------------------------------------------------- */
struct mp_sample {
  uint64_t has; /* bits of enum mp_sample_bits that were decoded */
  uint64_t identifier, ip, time_ns, address, id, stream_id, period, weight, data_src, transaction, phys_address, cgroup,
      data_page_bytes, code_page_bytes;
  uint32_t pid, tid, cpu;
  const unsigned char *callchain; /* uint64_t each, not aligned */
  uint64_t callchain_count;
  const unsigned char *raw;
  uint32_t raw_bytes;
  const unsigned char *branches; /* entries of 24 bytes: from, to, flags */
  uint64_t branch_count;
  uint64_t user_abi, intr_abi;         /* 0: no registers */
  const unsigned char *user_registers; /* one uint64_t for each bit of sample_regs_user */
  const unsigned char *intr_registers;
  uint32_t user_register_count, intr_register_count;
  const unsigned char *user_stack;
  uint64_t user_stack_bytes; /* of which the kernel filled as many as it says */
  const unsigned char *aux;
  uint64_t aux_bytes;
};

/* The body of a PERF_RECORD_SAMPLE: what follows its header. False: it is cut, or has fields that are not known. */
bool mp_sample_read(const struct mp_attr *attr, const unsigned char *body, size_t bytes, struct mp_sample *sample);

/* A value of an array in a sample. */
uint64_t mp_u64(const unsigned char *at, uint64_t index);
/* A register by its number in perf's numbering; false: it was not sampled. */
bool mp_register(uint64_t mask, const unsigned char *registers, uint64_t bit, uint64_t *value);

/* ---- other records ---------------------------------------------------------------- */
enum mp_record_types {
  MP_RECORD_MMAP = 1,
  MP_RECORD_LOST = 2,
  MP_RECORD_COMM = 3,
  MP_RECORD_EXIT = 4,
  MP_RECORD_THROTTLE = 5,
  MP_RECORD_UNTHROTTLE = 6,
  MP_RECORD_FORK = 7,
  MP_RECORD_READ = 8,
  MP_RECORD_SAMPLE = 9,
  MP_RECORD_MMAP2 = 10,
  MP_RECORD_AUX = 11,
  MP_RECORD_ITRACE_START = 12,
  MP_RECORD_LOST_SAMPLES = 13,
  MP_RECORD_SWITCH = 14,
  MP_RECORD_SWITCH_CPU_WIDE = 15,
  MP_RECORD_USER = 64, /* from here on those of the tool perf */
  MP_RECORD_HEADER_ATTR = 64,
  MP_RECORD_AUXTRACE_INFO = 70,
  MP_RECORD_AUXTRACE = 71,
  MP_RECORD_COMPRESSED = 81,
  MP_RECORD_COMPRESSED2 = 83,
};
enum mp_misc_bits {
  MP_MISC_CPUMODE = 7,
  MP_MISC_KERNEL = 1,
  MP_MISC_MMAP_DATA = 1 << 13,
  MP_MISC_COMM_EXEC = 1 << 13,
  MP_MISC_SWITCH_OUT = 1 << 13,
  MP_MISC_MMAP_BUILD_ID = 1 << 14,
};

struct mp_header {
  uint32_t type;
  uint16_t misc;
  uint16_t size; /* with the header */
};

/* Who and when: behind every record that is no sample (sample_id_all). What the event does not say is MP_NOBODY or 0. */
#define MP_NOBODY UINT32_MAX
struct mp_identity {
  uint32_t pid, tid, cpu;
  uint64_t time_ns, id;
};

/* `own_bytes`: those before it, of the record itself. False: the record is too short; nobody then. */
bool mp_identity_read(const struct mp_attr *attr, const unsigned char *body, size_t bytes, struct mp_identity *identity,
                      size_t *own_bytes);

struct mp_mapping {
  uint32_t pid, tid;
  uint64_t address, bytes, file_offset;
  uint32_t device_major, device_minor; /* 0 where the record has a build-id instead */
  uint64_t inode, inode_generation;
  uint32_t protection, flags; /* of mmap; 0 in PERF_RECORD_MMAP */
  const unsigned char *build_id;
  uint8_t build_id_bytes; /* 0: none */
  const char *path;
  size_t path_bytes;
};
/* PERF_RECORD_MMAP and PERF_RECORD_MMAP2. */
bool mp_mapping_read(const struct mp_header *header, const unsigned char *body, size_t own_bytes,
                     struct mp_mapping *mapping);

struct mp_task {
  uint32_t pid, parent_pid, tid, parent_tid;
  uint64_t time_ns;
};
/* PERF_RECORD_FORK and PERF_RECORD_EXIT. */
bool mp_task_read(const unsigned char *body, size_t own_bytes, struct mp_task *task);

struct mp_comm {
  uint32_t pid, tid;
  const char *name;
  size_t name_bytes;
};
bool mp_comm_read(const unsigned char *body, size_t own_bytes, struct mp_comm *comm);

struct mp_lost {
  uint64_t id, lost;
};
/* PERF_RECORD_LOST and PERF_RECORD_LOST_SAMPLES (whose id is 0). */
bool mp_lost_read(const struct mp_header *header, const unsigned char *body, size_t own_bytes, struct mp_lost *lost);

struct mp_aux {
  uint64_t offset, bytes, flags;
};
enum mp_aux_bits { MP_AUX_TRUNCATED = 1, MP_AUX_OVERWRITE = 2, MP_AUX_PARTIAL = 4, MP_AUX_COLLISION = 8 };
bool mp_aux_read(const unsigned char *body, size_t own_bytes, struct mp_aux *aux);

/* ---- perf.data ---------------------------------------------------------------- */
/* One event of a file, with the ids that its records carry. */
struct mp_event {
  struct mp_attr attr;
  uint64_t *ids;
  size_t id_count;
};

enum mp_file_error {
  MP_FILE_FINE,
  MP_FILE_READ,       /* errno has the reason */
  MP_FILE_MAGIC,      /* no perf.data, or of the other byte order */
  MP_FILE_SHORT,      /* the header or the table of events is cut */
  MP_FILE_UNFINISHED, /* no records: perf record did not end in order */
  MP_FILE_EVENTS,     /* the table of events is damaged */
  MP_FILE_RECORD,     /* a record with an impossible size; the rest cannot be read */
  MP_FILE_COMPRESSED, /* records of perf record -z */
  MP_FILE_MEMORY,
};

struct mp_file {
  int fd; /* not owned */
  uint64_t file_bytes, begin, end, next;
  bool is_stream; /* perf record -o -: records alone */
  struct mp_event *events;
  size_t event_count, event_capacity;
  bool all_identified;    /* each event has MP_SAMPLE_IDENTIFIER */
  uint64_t truncated_at;  /* where the file ends inside a record; UINT64_MAX: nowhere */
  uint64_t error_at;      /* the byte that `error` is about */
  unsigned char head[16]; /* of the file, for messages */
  size_t head_bytes;
  unsigned char *buffer;
  uint64_t buffer_at;
  size_t buffer_bytes, buffer_capacity;
  uint64_t ids_left;
};

struct mp_file_record {
  struct mp_header header;
  const unsigned char *body; /* until the next call */
  size_t body_bytes;
  uint64_t after;               /* the place behind the record; that of the data of an AUXTRACE record */
  uint64_t following_bytes;     /* of that data, as many as the file has */
  const struct mp_event *event; /* whose attribute decodes it; NULL: none */
  struct mp_identity identity;  /* of records that are no sample */
};

/* Reads header and events. `file` is to be closed whatever is returned. */
enum mp_file_error mp_file_open(struct mp_file *file, int fd);
/* 1: a record; 0: the end; -1: `*error` says why not. */
int mp_file_next(struct mp_file *file, struct mp_file_record *record, enum mp_file_error *error);
/* Bytes of the file, for the data of AUXTRACE records; how many were read, or -1. */
int64_t mp_file_bytes(struct mp_file *file, uint64_t at, void *to, size_t bytes);
void mp_file_close(struct mp_file *file);

#ifdef __cplusplus
}
#endif
#endif
