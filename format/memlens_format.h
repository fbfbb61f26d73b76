/* The memlens capture format: record structs, chunk framing, versions.
 *
 * Shared by the pass, the runtimes, the emulator plugin, the samplers and the
 * reader; it includes nothing of memlens and needs C11 or C++20 only.
 * Layouts are explained in FORMAT.md. */
#ifndef MEMLENS_FORMAT_H
#define MEMLENS_FORMAT_H

#include <stddef.h>
#include <stdint.h>

#include "memlens_lists.h"

#ifdef __cplusplus
#define ML_STATIC_ASSERT static_assert
#else
#define ML_STATIC_ASSERT _Static_assert
#endif

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "memlens captures are little endian; this target is not supported"
#endif

/* Versions of the framing (file and chunk headers), named for what changed. */
enum ml_format_version {
  ML_FORMAT_FOUNDATION = 1, /* first version */
  ML_FORMAT_OLDEST_READABLE = ML_FORMAT_FOUNDATION,
  ML_FORMAT_CURRENT = ML_FORMAT_FOUNDATION,
};

#define ML_FILE_MAGIC UINT64_C(0x31534e454c4d454d) /* "MEMLENS1" in file order */
#define ML_CHUNK_MAGIC UINT32_C(0x4b4e4843)        /* "CHNK" in file order */
#define ML_MAX_CHUNK_BYTES (UINT32_C(1) << 26)     /* a larger length in a header is damage */

/* First 64 bytes of every record file. */
struct ml_file_header {
  uint64_t magic;
  uint32_t format_version;
  uint32_t header_bytes;
  uint64_t created_monotonic_ns;
  uint64_t created_unix_ns;
  uint32_t pid;    /* of the writer */
  uint32_t writer; /* enum ml_writer */
  uint64_t reserved[2];
  uint64_t checksum; /* XXH64 of the bytes before it */
};
ML_STATIC_ASSERT(sizeof(struct ml_file_header) == 64, "file header is 64 bytes");

enum ml_encoding { ML_ENCODING_PLAIN = 0, ML_ENCODING_ZSTD = 1 };

/* Before every payload. The payload is padded with zeros to 8 bytes; the padding
 * is counted in neither length nor checksum. */
struct ml_chunk_header {
  uint32_t magic;
  uint16_t header_bytes;
  uint16_t kind;           /* enum ml_kind; a reader skips kinds it does not know */
  uint16_t record_version; /* of that kind */
  uint16_t encoding;       /* enum ml_encoding */
  uint32_t stored_bytes;   /* payload as it lies in the file */
  uint32_t payload_bytes;  /* payload decoded */
  uint32_t record_count;
  uint32_t process;  /* process number in this capture, 0 = all */
  uint32_t thread;   /* kernel thread id, 0 = each record says */
  uint64_t sequence; /* from 0 in each file, +1 a chunk: a gap is a lost chunk */
  uint64_t dropped;  /* records of this kind and process lost since its previous chunk */
  uint64_t begin_ns; /* earliest and latest record, 0 0 if they have no time */
  uint64_t end_ns;
  uint64_t payload_checksum; /* XXH64 of the stored bytes */
  uint64_t header_checksum;  /* XXH64 of the header bytes before it */
};
ML_STATIC_ASSERT(sizeof(struct ml_chunk_header) == 80, "chunk header is 80 bytes");

/* Record structs. */
/* clang-format off */
#define ML_RECORD(name, KIND, number, version, bytes, table, text) struct ml_##name {
#define ML_FIELD(name, type, field, role, text) type field;
#define ML_END(name) };
/* clang-format on */
#include "records.def"
#undef ML_RECORD
#undef ML_FIELD
#undef ML_END

#define ML_RECORD(name, KIND, number, version, bytes, table, text)                      \
  ML_STATIC_ASSERT(sizeof(struct ml_##name) == (bytes), #name " has " #bytes " bytes"); \
  ML_STATIC_ASSERT((bytes) % 8 == 0, #name " is a multiple of 8 bytes");
#define ML_FIELD(name, type, field, role, text)
#define ML_END(name)
#include "records.def"
#undef ML_RECORD
#undef ML_FIELD
#undef ML_END

enum ml_kind {
  ML_KIND_NONE = 0,
#define ML_RECORD(name, KIND, number, version, bytes, table, text) ML_KIND_##KIND = number,
#define ML_FIELD(name, type, field, role, text)
#define ML_END(name)
#include "records.def"
#undef ML_RECORD
#undef ML_FIELD
#undef ML_END
};

enum ml_record_version {
#define ML_RECORD(name, KIND, number, version, bytes, table, text) ML_VERSION_##KIND = version,
#define ML_FIELD(name, type, field, role, text)
#define ML_END(name)
#include "records.def"
#undef ML_RECORD
#undef ML_FIELD
#undef ML_END
};

/* Values of enumerated fields: value names are listed once, here, and given to
 * Python by name. ML_ENUM(enum, VALUE, number, "name") */
/* clang-format off */
#define ML_ENUMS(ML_ENUM)                                        \
  ML_ENUM(unwinder, NONE, 0, "none")                             \
  ML_ENUM(unwinder, FP, 1, "fp")                                 \
  ML_ENUM(unwinder, DWARF, 2, "dwarf")                           \
  ML_ENUM(unwinder, SHADOW, 3, "shadow")                         \
  ML_ENUM(process_operation, FORK, 1, "fork")                    \
  ML_ENUM(process_operation, THREAD, 2, "thread")                \
  ML_ENUM(process_operation, EXEC, 3, "exec")                    \
  ML_ENUM(process_operation, NAME, 4, "name")                    \
  ML_ENUM(process_operation, EXIT, 5, "exit")                    \
  ML_ENUM(process_operation, THREAD_EXIT, 6, "thread_exit")      \
  ML_ENUM(process_operation, ATTACH, 7, "attach")                \
  ML_ENUM(process_operation, SEEN, 8, "seen")                    \
  ML_ENUM(process_flags, ROOT, 1, "root")                        \
  ML_ENUM(process_flags, POLLED, 2, "polled")                    \
  ML_ENUM(mapping_operation, MAP, 0, "map")                      \
  ML_ENUM(mapping_operation, UNMAP, 1, "unmap")                  \
  ML_ENUM(mapping_operation, REMAP, 2, "remap")                  \
  ML_ENUM(mapping_operation, FOUND, 3, "found")                  \
  ML_ENUM(clock, MONOTONIC, 0, "monotonic")                      \
  ML_ENUM(clock, REALTIME, 1, "realtime")                        \
  ML_ENUM(clock, TSC, 2, "tsc")                                  \
  ML_ENUM(clock, PERF, 3, "perf")                                \
  ML_ENUM(clock, BOOTTIME, 4, "boottime")                        \
  ML_ENUM(clock, GUEST, 5, "guest")                              \
  ML_ENUM(clock, MONOTONIC_RAW, 6, "monotonic_raw")              \
  ML_ENUM(fault_level_kind, BOTH, 0, "both")                     \
  ML_ENUM(fault_level_kind, SINGLE, 1, "single")                 \
  ML_ENUM(fault_level_kind, SAMPLED, 2, "sampled")               \
  ML_ENUM(loss_cause, RING_FULL, 1, "ring_full")                 \
  ML_ENUM(loss_cause, RECORDER_BEHIND, 2, "recorder_behind")     \
  ML_ENUM(loss_cause, DISK, 3, "disk")                           \
  ML_ENUM(loss_cause, THROTTLED, 4, "throttled")                 \
  ML_ENUM(fault_flags, MAJOR, 1, "major")                        \
  ML_ENUM(fault_flags, KERNEL_MODE, 2, "kernel_mode")            \
  ML_ENUM(residency_flags, HUGE, 1, "huge")                      \
  ML_ENUM(residency_flags, FILE_OR_SHARED, 2, "file_or_shared")  \
  ML_ENUM(residency_flags, ZERO_PAGE, 4, "zero_page")            \
  ML_ENUM(metric, RSS_BYTES, 1, "rss_bytes")                     \
  ML_ENUM(metric, SHARED_BYTES, 2, "shared_bytes")               \
  ML_ENUM(metric, SWAP_BYTES, 3, "swap_bytes")                   \
  ML_ENUM(metric, MINOR_FAULTS, 4, "minor_faults")               \
  ML_ENUM(metric, MAJOR_FAULTS, 5, "major_faults")               \
  ML_ENUM(metric, USER_CPU_NS, 6, "user_cpu_ns")                 \
  ML_ENUM(metric, SYSTEM_CPU_NS, 7, "system_cpu_ns")             \
  ML_ENUM(metric, THREADS, 8, "threads")                         \
  ML_ENUM(metric, PSS_BYTES, 9, "pss_bytes")                     \
  ML_ENUM(metric, ANON_HUGE_BYTES, 10, "anon_huge_bytes")        \
  ML_ENUM(metric, ANON_BYTES, 11, "anon_bytes")                  \
  ML_ENUM(metric, NODE_BYTES, 12, "node_bytes")                  \
  ML_ENUM(metric, CGROUP_BYTES, 13, "cgroup_bytes")              \
  ML_ENUM(metric, CGROUP_LIMIT_BYTES, 14, "cgroup_limit_bytes")  \
  ML_ENUM(metric, PEAK_RSS_BYTES, 15, "peak_rss_bytes")          \
  ML_ENUM(metric, VIRTUAL_BYTES, 16, "virtual_bytes")            \
  ML_ENUM(metric, READ_BYTES_PER_S, 17, "read_bytes_per_s")      \
  ML_ENUM(metric, WRITE_BYTES_PER_S, 18, "write_bytes_per_s")    \
  ML_ENUM(metric, PAGE_CACHE_BYTES, 19, "page_cache_bytes")      \
  ML_ENUM(metric, THREAD_CPU_NS, 20, "thread_cpu_ns")            \
  ML_ENUM(metric, HUGETLB_BYTES, 21, "hugetlb_bytes")            \
  ML_ENUM(allocation_operation, MALLOC, 1, "malloc")             \
  ML_ENUM(allocation_operation, CALLOC, 2, "calloc")             \
  ML_ENUM(allocation_operation, REALLOC, 3, "realloc")           \
  ML_ENUM(allocation_operation, FREE, 4, "free")                 \
  ML_ENUM(allocation_operation, ALIGNED, 5, "aligned")           \
  ML_ENUM(allocation_operation, NEW, 6, "new")                   \
  ML_ENUM(allocation_operation, DELETE, 7, "delete")             \
  ML_ENUM(allocation_operation, MMAP, 8, "mmap")                 \
  ML_ENUM(allocation_operation, MUNMAP, 9, "munmap")             \
  ML_ENUM(allocation_operation, MREMAP, 10, "mremap")            \
  ML_ENUM(allocation_operation, BRK, 11, "brk")                  \
  ML_ENUM(allocation_flags, IN_REALLOC, 1, "in_realloc")         \
  ML_ENUM(allocation_flags, ARRAY, 2, "array")                   \
  ML_ENUM(tag_operation, TAG, 0, "tag")                          \
  ML_ENUM(tag_operation, UNTAG, 1, "untag")                      \
  ML_ENUM(tag_operation, OWN, 2, "own")                          \
  ML_ENUM(runtime_flags, OTHER_MALLOC, 1, "other_malloc")        \
  ML_ENUM(runtime_flags, STANDALONE, 2, "standalone")            \
  ML_ENUM(runtime_flags, OTHER_PID_NAMESPACE, 4, "other_pid_namespace") \
  ML_ENUM(runtime_flags, ENDED_IN_ORDER, 8, "ended_in_order")    \
  ML_ENUM(runtime_flags, EXACT_FIRST, 16, "exact_first") /* its first small objects are all recorded */ \
  ML_ENUM(runtime_flags, SAMPLED, 32, "sampled") /* and later ones are not */ \
  ML_ENUM(runtime_flags, THINNED, 128, "thinned") /* large ones neither: they cost more than the budget */ \
  ML_ENUM(region_operation, BEGIN, 1, "begin")                   \
  ML_ENUM(region_operation, END, 2, "end")                       \
  ML_ENUM(region_operation, PHASE, 3, "phase")                   \
  ML_ENUM(pinning_operation, SCHED_SETAFFINITY, 1, "sched_setaffinity") \
  ML_ENUM(pinning_operation, SET_MEMPOLICY, 2, "set_mempolicy")  \
  ML_ENUM(pinning_operation, MBIND, 3, "mbind")                  \
  ML_ENUM(pinning_operation, MOVE_PAGES, 4, "move_pages")        \
  ML_ENUM(pinning_operation, MIGRATE_PAGES, 5, "migrate_pages")  \
  ML_ENUM(pinning_operation, FOUND, 6, "found")                  \
  ML_ENUM(stream_encoding, SITE_DELTA, 1, "site_delta")          \
  ML_ENUM(stream_encoding, PC_DELTA, 2, "pc_delta")              \
  ML_ENUM(stream_encoding, SITE_SEGMENTS, 5, "site_segments")    \
  ML_ENUM(access_operation, LOAD, 1, "load")                     \
  ML_ENUM(access_operation, STORE, 2, "store")                   \
  ML_ENUM(access_operation, ATOMIC, 3, "atomic")                 \
  ML_ENUM(access_operation, PREFETCH, 4, "prefetch")             \
  ML_ENUM(access_operation, FETCH, 5, "fetch")                   \
  ML_ENUM(access_flags, KERNEL_MODE, 1, "kernel_mode")           \
  ML_ENUM(access_flags, SOURCE_VALID, 2, "source_valid")         \
  ML_ENUM(code_flags, STACK_KNOWN, 1, "stack_known")             \
  ML_ENUM(code_flags, ANONYMOUS, 2, "anonymous")                 \
  ML_ENUM(code_flags, MODIFIED, 4, "modified")                   \
  ML_ENUM(code_flags, ATOMIC, 8, "atomic")                       \
  ML_ENUM(code_flags, UNSEEN, 16, "unseen")                      \
  ML_ENUM(code_flags, EMULATOR_WIDTH, 32, "emulator_width")      \
  ML_ENUM(unseen_cause, EXEC, 1, "exec")                         \
  ML_ENUM(unseen_cause, INSTRUCTION, 2, "instruction")           \
  ML_ENUM(unseen_cause, SYSTEM_CALL, 3, "system_call")           \
  ML_ENUM(place_flags, ENDED, 1, "ended")                        \
  ML_ENUM(place_flags, UNATTRIBUTED, 2, "unattributed")          \
  ML_ENUM(place_flags, EVENTS_TOLD, 8, "events_told")            \
  ML_ENUM(place_flags, EVENT_0_READ, 16, "event_0_read")         \
  ML_ENUM(place_flags, EVENT_1_READ, 32, "event_1_read")         \
  ML_ENUM(place_flags, EVENT_2_READ, 64, "event_2_read")         \
  ML_ENUM(place_flags, EVENT_3_READ, 128, "event_3_read")        \
  ML_ENUM(count_flags, ENDED_IN_ORDER, 1, "ended_in_order")      \
  ML_ENUM(count_clock, TSC, 1, "tsc")                            \
  ML_ENUM(count_clock, CNTVCT, 2, "cntvct")                      \
  ML_ENUM(count_clock, TIME, 3, "time")                          \
  ML_ENUM(count_clock, TIMEBASE, 4, "timebase")                  \
  ML_ENUM(count_clock, SYSTEM, 5, "system")                      \
  ML_ENUM(module_status, READ, 0, "read")                        \
  ML_ENUM(module_status, MISSING, 1, "missing")                  \
  ML_ENUM(module_status, REPLACED, 2, "replaced")                \
  ML_ENUM(module_status, NO_TABLES, 3, "no_tables")
/* clang-format on */

#define ML_ENUM_CONSTANT(family, VALUE, number, text) ML_ENUM_##family##_##VALUE = number,
enum ml_enum_values { ML_ENUMS(ML_ENUM_CONSTANT) ML_ENUM_END };
#undef ML_ENUM_CONSTANT

#define ML_NOT_OBSERVED 255 /* fault.before_shift and fault.after_shift */

#endif
