/* The NUMA nodes of pages that faulted or were accessed, asked from outside with move_pages(2). */
#include "internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BATCH_PAGES 1000         /* about 0.4 ms of kernel time a batch */
#define QUESTIONS_MAX (1u << 20) /* 24 MiB; beyond it pages are skipped and counted */

int ml_question_add(struct ml_session *session, uint32_t process, uint64_t address, uint64_t evidence_ns) {
  struct ml_page_question *grown = session->questions;
  if (session->question_count == session->question_capacity && session->question_count < QUESTIONS_MAX) {
    const size_t capacity = session->question_capacity ? 2 * session->question_capacity : 4096;
    grown = realloc(session->questions, capacity * sizeof *grown);
    if (grown != NULL) {
      session->questions = grown;
      session->question_capacity = capacity;
    }
  }
  if (grown == NULL || session->question_count >= QUESTIONS_MAX) {
    session->questions_skipped++;
    return 0;
  }
  /* The base page, not the start of a huge page: the program may have given that part back. */
  static unsigned base_shift;
  if (base_shift == 0) base_shift = (unsigned)__builtin_ctzl((unsigned long)sysconf(_SC_PAGESIZE));
  session->questions[session->question_count++] = (struct ml_page_question){
      .process = process,
      .page_shift = (uint8_t)base_shift,
      .address = address & ~((UINT64_C(1) << base_shift) - 1),
      .evidence_ns = evidence_ns,
  };
  return 1;
}

size_t ml_session_ask_nodes(struct ml_session *session, uint32_t process, const uint64_t *pages, size_t count,
                            uint64_t evidence_ns) {
  size_t added = 0;
  pthread_mutex_lock(&session->lock);
  if (process > 0 && process <= session->process_count)
    for (size_t i = 0; i < count; i++) added += (size_t)ml_question_add(session, process, pages[i], evidence_ns);
  pthread_mutex_unlock(&session->lock);
  return added;
}

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
