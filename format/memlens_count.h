/* Compile-time counting: what the compiler plugin (native/pass), the library inside a counted program
 * (native/runtime/count), the recorder and the reader agree on.
 *
 * 1. What compiled code does. One 64-bit add for each counter, at
 *
 *        __memlens_count_base + ml_count_function.offset_bytes + 8 * (number of the counter in its function)
 *
 *    The base is thread-local. It points at the counters of the region that the thread is in; entering and
 *    leaving a region replaces it. The offset is 0 until the runtime has given the module a place among all
 *    counters of the process, so code that runs before that, or without a recorder, counts into the first
 *    ML_COUNT_MAX_OF_FUNCTION words of a dump. Compiled code reads the base and the offset at a function's entry
 *    and again after every call that it does not know.
 *
 * 2. What a binary carries: for each counted function an ml_count_function in section `memlens_functions` (data) and
 *    a table in section `memlens_tables` (read-only), which tells what its counters mean. Both are in the group of
 *    the function, so the linker keeps or drops them together. The counters of a module are numbered by
 *    adding up `counters` in the order of the section: the file and the loaded module agree.
 *
 * 3. The arena: a sparse memory file of the recorder in which every counted process keeps its counters, so
 *    that they outlive it, however it ends, and can be read while it runs. */
#ifndef MEMLENS_COUNT_H
#define MEMLENS_COUNT_H

#include <stdint.h>

/* ---- compiled code and runtime --------------------------------------------------------------------------- */
/* Changes when anything below or a symbol's meaning does. Objects name the symbol of their version: a program
 * whose objects or runtime differ does not link, and the linker prints this name. */
#define ML_COUNT_ABI 1
#define ML_COUNT_ABI_SYMBOL memlens_count_abi_1__all_objects_must_be_built_by_one_memlens_version

#define ML_COUNT_MAX_OF_FUNCTION 32768 /* counters; a function that needs more is not counted, and told */

struct ml_count_function {
  uint64_t offset_bytes; /* of its first counter behind the base; 0 until registered */
  int64_t table;         /* address of its table minus address of this member */
  uint32_t counters;
  uint32_t table_bytes;
};

/* A region that is marked at compile time: one variable for each name and translation unit. */
struct ml_count_region {
  const char *name;
  uint64_t number; /* of the runtime: 0 = not asked for yet */
};

/* Symbols, all of default visibility so that one definition serves the whole process:
 *   extern __thread uint64_t *__memlens_count_base;             initial-exec
 *   int __memlens_count_enter(struct ml_count_region *);       1: count this execution, 0: run the untouched copy
 *   void __memlens_count_leave(struct ml_count_region *);
 *   void __memlens_count_unwound(void);   after a landing pad or a second return of setjmp: closes the regions of
 *                                         frames that are gone
 * Both enter and leave change the base of the calling thread. Code that was built for sampling by versions calls enter
 * and branches; an execution that is not counted leaves the base where the skipped counters of callees go. */

/* ---- tables (section memlens_tables): bytes; numbers are unsigned LEB128 unless marked s = signed LEB128 -----------
 *   version            ML_COUNT_TABLE_VERSION
 *   flags              enum ml_count_table_flags
 *   strings            n, then n × { bytes, that many characters }; string 0 is ""
 *   function           string: linkage name
 *   file, line         string, number: where it is defined, 0 = not known
 *   counters           n, then n × { enum ml_counter_kind }: n is that of ml_count_function
 *   groups             n, then n × { number of terms, that many × { counter, s scale } }
 *                      a group is a set of code that always runs equally often: Σ counter × scale times
 *   scopes             n, then n × { string: linkage name, string: file, line, scope of the caller + 1 (0 = the
 *                      function itself), line of the call, column of the call }: inlined functions
 *   blocks             n, then n × { group, loop depth, line of its first instruction, and only with ML_TABLE_MIX the
 *                      numbers of: integer, floating-point, vector operations, branches, calls, prefetches,
 *                      floating-point results (each lane one) }
 *   sites              n, then n × { enum ml_site_kind, enum ml_site_flags, block, group, bytes, counter of its bytes + 1,
 *                      scope + 1 (0 = not inlined), string: file, line, column, string: callee }
 * A site's executions are those of its group. `bytes` is what one execution moves; of a site whose size is known only at
 * run time it is 0, and the counter named sums the bytes. A block without anything countable has group 0, which
 * has no terms, when the mix was not asked for. */
#define ML_COUNT_TABLE_VERSION 1
enum ml_count_table_flags {
  ML_TABLE_MIX = 1,   /* blocks have operation counts, and every block a group */
  ML_TABLE_NAIVE = 2, /* one counter for each site: the build that judges the others */
};
enum ml_counter_kind {
  ML_COUNTER_BLOCK = 0,   /* one add where the code runs */
  ML_COUNTER_ENTRY = 1,   /* a loop's trip count, added before the loop */
  ML_COUNTER_EXIT = 2,    /* a loop's trip count, taken from a variable when the loop is left */
  ML_COUNTER_BYTES = 3,   /* sizes */
  ML_COUNTER_KEPT = 4,    /* kept in a register inside a loop */
};
enum ml_site_kind {
  ML_SITE_LOAD = 0,
  ML_SITE_STORE = 1,
  ML_SITE_ATOMIC = 2, /* reads and writes its bytes */
  ML_SITE_COPY = 3,   /* reads its bytes and writes as many */
  ML_SITE_FILL = 4,   /* writes its bytes */
  ML_SITE_READ = 5,   /* a library function that reads its bytes (memcmp, …) */
  ML_SITE_CALL = 6,   /* of a function that is not in this translation unit: `callee`; no bytes */
  ML_SITE_PREFETCH = 7,
};
enum ml_site_flags {
  ML_SITE_STACK_READ = 1,    /* what it reads is in the frame of this function: found by following the address to an alloca */
  ML_SITE_STACK_WRITTEN = 2, /* the same for what it writes */
  ML_SITE_VECTOR = 4,
  ML_SITE_MASKED = 8,        /* `bytes` is the most that it can move, the counter of bytes sums what it did */
  ML_SITE_VOLATILE = 16,
  ML_SITE_NONTEMPORAL = 32,
  ML_SITE_ATOMIC_ORDER = 64, /* an atomic load or store */
  ML_SITE_FLOAT = 128,       /* the value is floating-point */
  ML_SITE_GATHER = 256,      /* one address for each lane */
};

/* ---- arena ---------------------------------------------------------------------------------------------------- */
#define ML_COUNT_VARIABLE "MEMLENS_COUNT" /* TOKEN0:TOKEN1:PATH, the tokens in hexadecimal */
#define ML_COUNT_MAGIC UINT64_C(0x544e554f434c454d) /* "MELCOUNT" in memory order */
#define ML_COUNT_VERSION 1
#define ML_COUNT_FIRST_BYTE 4096

/* See native/runtime/count for who writes what. */
struct ml_count_header {
  uint64_t magic;
  uint64_t version;
  uint64_t token[2];
  uint64_t file_bytes;
  uint64_t next_byte; /* atomic; where the next block begins, a multiple of 4096 */
  uint64_t refused;   /* atomic: blocks that found no room */
  uint64_t counters_max; /* words of an array of counters */
};

#ifdef __cplusplus
static_assert(sizeof(ml_count_function) == 24 && sizeof(ml_count_region) == 16);
#else
_Static_assert(sizeof(struct ml_count_function) == 24 && sizeof(struct ml_count_region) == 16, "compiled code");
#endif

#endif
