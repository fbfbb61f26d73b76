/* A fork's child counts for itself: the parent's counters are shared memory and must not be added to. (vfork's child
 * runs in its parent until exec, and counts there.) */
#include "count.h"

#include <errno.h>
#include <pthread.h>

static uint64_t signals_before;

static void before(void) { signals_before = ml_lock(); }
static void in_parent(void) { ml_unlock(signals_before); }

static void in_child(void) {
  const int saved = errno;
  ml_lock_forked();
  ml_process.generation++;
  ml_arena_forget_room();
  const bool entered = ml_process_enter();
  if (entered) ml_modules_forked();
  ml_nodes_forked();
  ml_threads_forked(ml_tls.self);
  const uint64_t mask = signals_before;
  ml_unlock(mask);
  errno = saved;
}

void ml_fork_start(void) { pthread_atfork(before, in_parent, in_child); }
