/* Start and end of counting in a process image, and the lock. */
#include "count.h"

#include <errno.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SYNC_NS UINT64_C(250000000) /* a process that is killed leaves a pair of clocks at most about this old */

struct ml_process ml_process;
static uint32_t syncing;
static uint32_t lock_word; /* 0 free, 1 held, 2 held and waited for */
uint64_t ml_sync_ticks = UINT64_MAX;

uint64_t ml_lock(void) {
  uint64_t all = ~UINT64_C(0), before = 0;
  const int saved = errno;
  syscall(SYS_rt_sigprocmask, 0 /* SIG_BLOCK */, &all, &before, sizeof all);
  uint32_t expected = 0;
  if (!__atomic_compare_exchange_n(&lock_word, &expected, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
    while (__atomic_exchange_n(&lock_word, 2, __ATOMIC_ACQUIRE) != 0)
      syscall(SYS_futex, &lock_word, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
  errno = saved;
  return before;
}

void ml_unlock(uint64_t signals) {
  const int saved = errno;
  if (__atomic_exchange_n(&lock_word, 0, __ATOMIC_RELEASE) == 2)
    syscall(SYS_futex, &lock_word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
  syscall(SYS_rt_sigprocmask, 2 /* SIG_SETMASK */, &signals, NULL, sizeof signals);
  errno = saved;
}

/* Another thread of the parent may have been at it. */
void ml_lock_forked(void) { lock_word = syncing = 0; }

/* A new entry for this process image; the lock is held, or there is one thread. */
bool ml_process_enter(void) {
  struct ml_count_process *before = ml_process.shared;
  const uint64_t now = ml_now_ns();
  ml_process.born_ns = now > ml_process.born_ns ? now : ml_process.born_ns + 1;
  ml_process.pid = (uint32_t)getpid();
  ml_process.shared = NULL;
  uint64_t offset;
  struct ml_count_process *shared = ml_arena_room(sizeof *shared, &offset);
  struct ml_count_entry *entry = shared != NULL ? ml_arena_claim() : NULL;
  if (entry == NULL) return false;
  shared->parent_pid = (uint64_t)getppid();
  shared->clock = ml_clock_kind;
  shared->read_cost_ticks = ml_clock_read_cost;
  shared->counters_used = ML_COUNT_MAX_OF_FUNCTION;
  if (before != NULL) {
    shared->ticks_per_second = before->ticks_per_second;
    shared->switch_cost_ticks = before->switch_cost_ticks;
    shared->counters_used = ml_counters_used;
    shared->functions_refused = before->functions_refused;
  }
  ml_clock_pair(&shared->start_ticks, &shared->start_ns);
  shared->last_ticks = shared->start_ticks;
  shared->last_ns = shared->start_ns;
  entry->offset = offset;
  entry->bytes = 4096;
  ml_arena_publish(entry, ML_COUNT_PROCESS);
  ml_process.shared = shared;
  return true;
}

void ml_process_sync(struct ml_thread *self, uint64_t ticks) {
  struct ml_count_process *shared = ml_process.shared;
  if (shared == NULL) return;
  if (self != NULL && ticks != 0) {
    if (ticks - self->synced_ticks < ml_sync_ticks) return;
    self->synced_ticks = ticks;
  }
  /* One writer at a time: of two, one may be put to sleep between its halves of the pair. */
  if (__atomic_exchange_n(&syncing, 1, __ATOMIC_ACQUIRE) != 0) return;
  uint64_t now_ticks = 0, now_ns = 0;
  ml_clock_pair(&now_ticks, &now_ns);
  const uint64_t ns = now_ns - shared->start_ns;
  if (ns < 10000) {
    __atomic_store_n(&syncing, 0, __ATOMIC_RELEASE);
    return;
  }
  const uint64_t rate = (uint64_t)((unsigned __int128)(now_ticks - shared->start_ticks) * 1000000000u / ns);
  shared->last_ticks = now_ticks;
  shared->last_ns = now_ns;
  /* The longer the pairs are apart the better: a child that just began keeps its parent's. */
  if (ns > 20000000 || shared->ticks_per_second == 0) shared->ticks_per_second = rate;
  ml_sync_ticks = (uint64_t)((unsigned __int128)rate * SYNC_NS / 1000000000u);
  __atomic_store_n(&syncing, 0, __ATOMIC_RELEASE);
}

/* Its own name, not to be replaced, against the one that the loader chose. */
extern __typeof__(__memlens_count_register) ml_own_register __attribute__((visibility("hidden")));
bool ml_process_active(void) {
  void (*volatile chosen)(struct ml_count_function *, struct ml_count_function *, const void *) =
      __memlens_count_register;
  return chosen == ml_own_register && ml_base_is_own();
}

void ml_process_start(void) {
  static uint32_t begun;
  if (__atomic_load_n(&begun, __ATOMIC_ACQUIRE) == 2) return;
  const int saved = errno;
  ml_find_other_hooks(); /* takes the loader's lock: before ours */
  const uint64_t signals = ml_lock();
  if (begun == 0) {
    if (ml_arena_open() && ml_nodes_start()) {
      ml_clock_start();
      if (!ml_process_enter()) ml_arena_header = NULL;
    } else ml_arena_header = NULL;
    ml_threads_start();
    begun = 1;
  }
  const bool first = begun == 1;
  __atomic_store_n(&begun, 2, __ATOMIC_RELEASE);
  ml_unlock(signals);
  if (first) {
    if (ml_process.shared != NULL) {
      ml_fork_start();
      ml_process_sync(NULL, 0);
    }
    ml_trace_start();
    ml_thread_adopt(0);
  }
  errno = saved;
}

/* The end of the process, or of the library that carries this copy. */
__attribute__((destructor(101))) static void stop(void) {
  const int saved = errno;
  struct ml_thread *self = ml_tls.self;
  if (ml_process.shared != NULL && self != NULL) {
    ml_trace_thread_end(self);
    ml_settle_open(self);
  }
  ml_process_sync(NULL, 0);
  ml_threads_stop();
  errno = saved;
}
