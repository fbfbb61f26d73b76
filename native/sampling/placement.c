/* The NUMA nodes of faulted pages, asked from outside with move_pages(2). */
#include "internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BATCH_PAGES 1000 /* about 0.4 ms of kernel time a batch */

size_t ml_session_resolve_nodes(struct ml_session *session, uint64_t budget_ns, uint64_t *skipped) {
  pthread_mutex_lock(&session->lock);
  struct ml_page_question *questions = session->questions;
  const size_t count = session->question_count;
  session->questions = NULL;
  session->question_count = session->question_capacity = 0;
  *skipped = session->questions_skipped;
  pthread_mutex_unlock(&session->lock);

  const uint64_t deadline = ml_monotonic_ns() + budget_ns;
  size_t asked = 0;
  while (asked < count && ml_monotonic_ns() < deadline) {
    void *pages[BATCH_PAGES];
    int nodes[BATCH_PAGES];
    const uint32_t process_number = questions[asked].process;
    size_t batch = 0;
    while (batch < BATCH_PAGES && asked + batch < count && questions[asked + batch].process == process_number) {
      pages[batch] = (void *)(uintptr_t)questions[asked + batch].address;
      nodes[batch] = -2;
      batch++;
    }
    pid_t pid = 0;
    pthread_mutex_lock(&session->lock);
    if (process_number <= session->process_count && session->processes[process_number - 1]->info.alive)
      pid = session->processes[process_number - 1]->info.pid;
    pthread_mutex_unlock(&session->lock);
    const long result = pid > 0 ? syscall(SYS_move_pages, pid, batch, pages, NULL, nodes, 0) : -1;
    const uint64_t now = ml_monotonic_ns();
    pthread_mutex_lock(&session->lock);
    struct ml_process *process = session->processes[process_number - 1];
    for (size_t i = 0; i < batch; i++) {
      const struct ml_page_question *question = &questions[asked + i];
      const struct ml_placement record = {
          .time_ns = now,
          .evidence_ns = question->evidence_ns,
          .address = question->address,
          .node = result < 0 ? -3 : nodes[i], /* -3 (ESRCH): the process is gone or not ours to ask */
          .page_shift = question->page_shift,
      };
      ml_buffer_append(session, process, ML_SLOT_PLACEMENT, &record, sizeof record, now);
    }
    pthread_mutex_unlock(&session->lock);
    asked += batch;
  }
  if (asked < count) { /* over the budget: put the rest back in front */
    pthread_mutex_lock(&session->lock);
    const size_t rest = count - asked, total = rest + session->question_count;
    struct ml_page_question *merged = malloc(total * sizeof *merged);
    if (merged != NULL) {
      memcpy(merged, questions + asked, rest * sizeof *merged);
      if (session->question_count > 0)
        memcpy(merged + rest, session->questions, session->question_count * sizeof *merged);
      free(session->questions);
      session->questions = merged;
      session->question_count = session->question_capacity = total;
    } else {
      session->questions_skipped += rest;
    }
    pthread_mutex_unlock(&session->lock);
  }
  free(questions);
  return asked;
}
