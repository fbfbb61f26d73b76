/* A whole session under the sanitizers: spawn, attach, drain, take, free; and the failures. */
#define _GNU_SOURCE 1
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "memlens_session.h"

static int passed, failed;
static void check(int holds, const char *what) {
  if (holds) {
    passed++;
  } else {
    failed++;
    printf("failed: %s\n", what);
  }
}

static uint64_t record_program(struct ml_session_options options, char *const argv[], int *status) {
  struct ml_session *session = ml_session_new(&options);
  struct ml_child child;
  check(session != NULL, "session");
  check(ml_child_spawn(&child, argv, NULL, NULL, NULL) == 0, "spawn");
  check(ml_session_attach(session, child.pid, 1) == 0, ml_session_failed_step(session));
  check(ml_child_go(&child) == 0, "exec");
  check(ml_session_start(session) == 0, "start");
  uint64_t faults = 0;
  for (;;) {
    const pid_t ended = waitpid(child.pid, status, WNOHANG);
    struct ml_batch *batches = ml_session_take(session);
    for (struct ml_batch *at = batches; at != NULL; at = at->next)
      if (at->kind == ML_KIND_FAULT) faults += at->record_count;
    ml_batches_free(batches);
    uint64_t skipped;
    ml_session_resolve_nodes(session, 1000000, &skipped);
    if (ended == child.pid) break;
    usleep(2000);
  }
  ml_session_note_exit(session, child.pid, *status);
  ml_session_stop(session);
  struct ml_batch *batches = ml_session_take(session);
  int kinds = 0;
  for (struct ml_batch *at = batches; at != NULL; at = at->next) {
    if (at->kind == ML_KIND_FAULT) faults += at->record_count;
    kinds++;
  }
  ml_batches_free(batches);
  struct ml_session_counts counts;
  ml_session_get_counts(session, &counts);
  check(counts.faults == faults || counts.queue_dropped > 0, "every fault is taken");
  ml_session_free(session);
  return faults;
}

int main(void) {
  struct ml_probe_result probe;
  ml_probe(&probe);
  if (probe.fault_event_errno != 0) {
    printf("perf page-fault events are refused here (%s); see memlens doctor\n", strerror(probe.fault_event_errno));
    return 77;
  }
  int status = 0;
  char *plain[] = {"sh", "-c", "for i in 1 2 3 4 5; do /bin/true; done; exit 3", NULL};
  struct ml_session_options options = {.faults = 1,
                                       .fault_before = 1,
                                       .include_kernel = 1,
                                       .stack_mode = ML_STACKS_FP,
                                       .stack_dump_bytes = 8192,
                                       .timeline_hz = 1000};
  check(record_program(options, plain, &status) > 100, "faults of a shell");
  check(WEXITSTATUS(status) == 3, "exit status");
  options.stack_mode = ML_STACKS_DWARF;
  check(record_program(options, plain, &status) > 100, "faults with stack dumps");
  options.ring_bytes = 16384; /* so small that it must lose, and count it */
  options.stack_mode = ML_STACKS_NONE;
  check(record_program(options, plain, &status) > 0, "a tiny ring");
  options.queue_bytes = 4096;
  record_program(options, plain, &status);
  options = (struct ml_session_options){.faults = 0, .timeline_hz = 1000};
  check(record_program(options, plain, &status) == 0, "timeline alone");

  struct ml_child child;
  char *missing[] = {"/no/such/program", NULL};
  check(ml_child_spawn(&child, missing, NULL, NULL, NULL) == 0, "spawn of a missing program");
  check(ml_child_go(&child) == ENOENT, "its errno");
  check(ml_child_spawn(&child, plain, NULL, NULL, NULL) == 0, "spawn");
  ml_child_abandon(&child);

  struct ml_session *session = ml_session_new(&options);
  check(ml_session_attach(session, 0x3ffffff, 0) == -ESRCH, "attach to no process");
  ml_session_free(session);

  struct ml_page_table *table = ml_page_table_new(getpid());
  struct ml_residency *records = NULL;
  ssize_t first = ml_page_table_look(table, &records);
  free(records);
  check(first > 0, "first look");
  const size_t bytes = 64 * 4096;
  char *fresh = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  ssize_t second = ml_page_table_look(table, &records);
  uint64_t found = 0;
  for (ssize_t i = 0; i < second; i++)
    if (records[i].address < (uint64_t)(uintptr_t)fresh + bytes &&
        records[i].address + records[i].bytes > (uint64_t)(uintptr_t)fresh)
      found += records[i].bytes;
  check(found >= bytes, "populated pages are new at the second look");
  free(records);
  ml_page_table_free(table);
  munmap(fresh, bytes);

  struct ml_clock_reading clocks[8];
  const size_t pairs = ml_clock_pairs(clocks, 8);
  check(pairs >= 4, "clock pairs");
  for (size_t i = 0; i < pairs; i++) check(clocks[i].uncertainty_ns < 100000000, "clock uncertainty");
  printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
