/* Memory for batches of windows: pre-faulted blocks that keep their pages when they are released.
 *
 * Window batches are buffered until a CPU is idle. While a program keeps all CPUs busy every batch would need new memory, and its faults
 * were the largest part of the recorder's cost. A thread that runs in idle time touches the blocks, from before the program
 * starts; where none is ready, batches use ordinary memory. One set of blocks for the whole process, and one bit for each. */
#include "internal.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

#define BLOCKS 64u
#define STEP_BYTES ((size_t)64 << 10)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the next three */
static unsigned users;
static bool has_thread, handles_forks;
static unsigned char *_Atomic memory; /* BLOCKS * ML_BLOCK_BYTES; once there it stays */
static _Atomic uint64_t ready;        /* blocks that have pages and are nobody's */
static _Atomic uint64_t bare;         /* that have none and are nobody's */
static atomic_bool wanted;            /* somebody records */
static unsigned char *inherited;      /* `memory` of the process that forked this one: it is not mapped here */

/* In small steps: not every kernel lets others run in the middle of one. */
static void populate(unsigned char *block) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  for (size_t step = 0; step < ML_BLOCK_BYTES; step += STEP_BYTES) {
    if (madvise(block + step, STEP_BYTES, MADV_POPULATE_WRITE) == 0) continue;
    for (size_t at = 0; at < STEP_BYTES; at += page) ((volatile unsigned char *)block)[step + at] = 0;
  }
}

/* Gives up the pages of blocks that are nobody's. */
static void empty(void) {
  for (uint64_t all = atomic_exchange(&ready, 0); all != 0; all &= all - 1) {
    madvise(memory + (size_t)__builtin_ctzll(all) * ML_BLOCK_BYTES, ML_BLOCK_BYTES, MADV_DONTNEED);
    atomic_fetch_or(&bare, all & -all);
  }
}

static void *populating(void *argument) {
  const struct sched_param none = {0};
  const bool idle = sched_setscheduler(0, SCHED_IDLE, &none) == 0; /* of this thread */
  for (bool goes_on = idle; goes_on;) {
    uint64_t left;
    while (atomic_load(&wanted) && (left = atomic_load(&bare)) != 0) {
      const uint64_t bit = left & -left;
      if ((atomic_fetch_and(&bare, ~bit) & bit) == 0) continue;
      populate(memory + (size_t)__builtin_ctzll(bit) * ML_BLOCK_BYTES);
      atomic_fetch_or(&ready, bit);
    }
    pthread_mutex_lock(&lock);
    if (!atomic_load(&wanted)) empty(); /* nobody was told of the last one */
    goes_on = has_thread = atomic_load(&wanted) && atomic_load(&bare) != 0;
    pthread_mutex_unlock(&lock);
  }
  if (!idle) {
    pthread_mutex_lock(&lock);
    has_thread = false;
    pthread_mutex_unlock(&lock);
  }
  return argument;
}

/* Blocks are not inherited by fork (MADV_DONTFORK): copying their page tables would delay the fork, and copy-on-write would fault on each page again.
 * A child of the recorder that records itself maps its own. */
static void before_fork(void) { pthread_mutex_lock(&lock); }
static void after_fork(void) { pthread_mutex_unlock(&lock); }
static void in_child(void) {
  if (memory != NULL) inherited = memory;
  memory = NULL;
  users = 0;
  has_thread = false;
  atomic_store(&ready, 0);
  atomic_store(&bare, 0);
  atomic_store(&wanted, false);
  pthread_mutex_unlock(&lock);
}

void ml_blocks_want(void) {
  pthread_mutex_lock(&lock);
  users++;
  if (!handles_forks) handles_forks = pthread_atfork(before_fork, after_fork, in_child) == 0;
  if (memory == NULL && handles_forks) {
    void *mapped =
        mmap(NULL, BLOCKS * ML_BLOCK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped != MAP_FAILED) {
      madvise(mapped, BLOCKS * ML_BLOCK_BYTES, MADV_DONTFORK);
      memory = mapped;
      atomic_store(&bare, UINT64_MAX);
    }
  }
  atomic_store(&wanted, true);
  if (!has_thread && atomic_load(&bare) != 0) {
    sigset_t all, old;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    has_thread = pthread_create(&thread, NULL, populating, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (has_thread) pthread_detach(thread);
  }
  pthread_mutex_unlock(&lock);
}

void ml_blocks_unwant(void) {
  pthread_mutex_lock(&lock);
  if (users > 0 && --users == 0) { /* a fork's child frees what it did not want itself */
    atomic_store(&wanted, false);
    empty();
  }
  pthread_mutex_unlock(&lock);
}

unsigned char *ml_block_take(void) {
  uint64_t left;
  while ((left = atomic_load(&ready)) != 0) {
    const uint64_t bit = left & -left;
    if ((atomic_fetch_and(&ready, ~bit) & bit) != 0) return memory + (size_t)__builtin_ctzll(bit) * ML_BLOCK_BYTES;
  }
  return NULL;
}

void ml_batch_data_free(void *data) {
  unsigned char *begin = memory;
  const uintptr_t offset = (uintptr_t)data - (uintptr_t)begin;
  if (inherited != NULL && (uintptr_t)data - (uintptr_t)inherited < BLOCKS * ML_BLOCK_BYTES && begin != inherited)
    return;
  if (begin == NULL || data == NULL || offset >= BLOCKS * ML_BLOCK_BYTES) {
    free(data);
    return;
  }
  atomic_fetch_or(&ready, UINT64_C(1) << offset / ML_BLOCK_BYTES);
  if (!atomic_load(&wanted)) empty();
}
