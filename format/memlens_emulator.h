/* What the emulator's plugin (native/emulator) shares with the library inside the guest (native/runtime)
 * and with the recorder. Not part of a capture: all sides come from one build.
 *
 * 1. Guest calls. The library inside the guest makes a system call with a number that no kernel has. The
 *    plugin sees it and answers through the guest's memory; the emulator itself answers ENOSYS, as a kernel
 *    would. The first argument is an enum ml_guest_call, addresses are the guest's.
 *
 * 2. The arena: one sparse memory file of the recorder in which every emulated process keeps its counters.
 *    They outlive the process, however it ends. A process takes a block by adding to `next_byte`; a block
 *    begins with its header and is found by walking from the first one. */
#ifndef MEMLENS_EMULATOR_H
#define MEMLENS_EMULATOR_H

#include <stdint.h>

#include "memlens_lists.h"

#define ML_GUEST_CALL_NUMBER 27756 /* 0x6d6c */
#define ML_GUEST_CALL_VERSION 1

enum ml_guest_call {
  ML_GUEST_HELLO = 1,  /* (struct ml_guest_hello *) */
  ML_GUEST_REGION = 2, /* (enum ml_region_operation BEGIN or END, const char *name, length) */
  ML_GUEST_POLICY = 3, /* (struct ml_guest_policy *) */
};

/* The library says that it is there. The guard page is the one that a fork's child must find zeroed
 * (MADV_WIPEONFORK; qemu before 8.1 ignores it): the plugin zeroes it in the child before guest code runs. */
struct ml_guest_hello {
  uint32_t version; /* in: ML_GUEST_CALL_VERSION */
  uint32_t answer;  /* out: ML_GUEST_CALL_VERSION when a plugin is there */
  uint64_t guard_address, guard_bytes;
};

/* A memory-policy system call that the emulator does not have: the plugin makes it. Pointers among the
 * arguments are the guest's. */
enum ml_guest_policy_call {
  ML_POLICY_MBIND = 1,
  ML_POLICY_SET_MEMPOLICY = 2,
  ML_POLICY_GET_MEMPOLICY = 3,
  ML_POLICY_MOVE_PAGES = 4,
  ML_POLICY_MIGRATE_PAGES = 5,
};
struct ml_guest_policy {
  uint64_t call; /* enum ml_guest_policy_call */
  uint64_t arguments[6];
  int64_t result; /* out: as the kernel gave it, negative errno */
  uint64_t done;  /* out: 1 */
};

/* The variable that tells programs under the emulator how to start others under it, and the plugin what to
 * do: fields separated by the byte 0x1f. Fields up to the one that is exactly "--" are the words of the
 * command that runs a program under the emulator (the emulator, -plugin, …; the program's path and its arguments
 * follow them), then come NAME=VALUE settings of the plugin. */
#define ML_EMULATOR_VARIABLE "MEMLENS_EMULATOR"

/* ---- arena -------------------------------------------------------------------------------------------- */
#define ML_ARENA_MAGIC UINT64_C(0x414e4552414c454d) /* "MELARENA" in memory order */
#define ML_ARENA_VERSION 1
#define ML_ARENA_FIRST_BYTE 4096

/* Structs of the arena, from emulator_arena.def. */
#define ML_STRUCTS "emulator_arena.def"
#include "memlens_structs.h"

enum ml_arena_kind {
  ML_ARENA_SLOTS = 1,
  ML_ARENA_COUNTERS = 2,
  ML_ARENA_REGIONS = 3,
  ML_ARENA_MEMBERS = 4,
  ML_ARENA_RUNS = 5
};

#define ML_BLOCK_BYTES 8192
#define ML_SLOTS_OF_BLOCK 254 /* slots and counters are 32 bytes */

/* Executions of blocks of code that call to count them: 64-bit numbers, one for each such block. */
#define ML_RUNS_BYTES 131072
#define ML_RUNS ((ML_RUNS_BYTES - 64) / 8)

/* A slot is one (instruction, direction, width): what one counter counts. */
#define ML_SLOT_WHOLE 256 /* in `store`: `width` is that of an access, not of its parts */
#endif
