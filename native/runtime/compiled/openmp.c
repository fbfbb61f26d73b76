/* OpenMP, where its runtime has the tools interface (OMPT: LLVM's libomp and its derivatives): a parallel region's work and a task count for the region that the
 * thread was in that met the construct. Idle threads of the pool are outside. Declarations are our own few of
 * <omp-tools.h>, checked against LLVM 19's. */
#include "count.h"

#include <stdlib.h>

union data {
  uint64_t value;
  void *pointer;
};
typedef void (*callback)(void);
typedef callback (*lookup_function)(const char *);
typedef int (*set_callback_function)(int, callback);

enum { PARALLEL_BEGIN = 3, TASK_CREATE = 5, TASK_SCHEDULE = 6, IMPLICIT_TASK = 7, SYNC_REGION = 23 };
enum { SCOPE_BEGIN = 1, SCOPE_END = 2 };
enum { TASK_INITIAL = 1, TASK_EXPLICIT = 4 };
enum { TASK_COMPLETE = 1, TASK_CANCEL = 3, TASK_DETACH = 4 };
enum { BARRIER_IMPLICIT_PARALLEL = 9 };

/* In a construct's data: group << 48 | node << 2 | untouched << 1 | 1; 0 = made before we listened. */
static uint64_t here(void) {
  const struct ml_thread *self = ml_tls.self;
  if (self == NULL || self->top == NULL) return 1;
  return (uint64_t)self->top->group << 48 | (uint64_t)self->top->node << 2 |
         ((self->top->flags & ML_OPEN_UNTOUCHED) != 0 ? 2u : 0u) | 1u;
}

static struct ml_thread *thread(void) {
  if (ml_process.shared == NULL || ml_tls.ended) return NULL;
  struct ml_thread *self = ml_tls.self != NULL ? ml_tls.self : ml_thread_adopt(0);
  return self != NULL && self->busy == 0 ? self : NULL;
}

static void hand(uint64_t value) {
  struct ml_thread *self = thread();
  if (self == NULL) return;
  self->busy = 1;
  ml_hand_begin(self, (uint32_t)(value >> 2), (value & 2) != 0, (uint32_t)(value >> 48 & 0x7fff));
  self->busy = 0;
}

static void take_back(void) {
  struct ml_thread *self = thread();
  if (self == NULL) return;
  self->busy = 1;
  ml_hand_end(self);
  self->busy = 0;
}

static void parallel_begin(union data *task, const void *frame, union data *parallel, unsigned threads, int flags,
                           const void *code) {
  (void)task, (void)frame, (void)threads, (void)flags, (void)code;
  parallel->value = here();
}

/* Thread 0 of a team is the one that met the construct: it is where it was. */
static void implicit_task(int endpoint, union data *parallel, union data *task, unsigned threads, unsigned index,
                          int flags) {
  (void)threads;
  if ((flags & TASK_INITIAL) != 0 || index == 0) return;
  if (endpoint == SCOPE_BEGIN) {
    task->value = 0;
    if (parallel == NULL || parallel->value == 0) return;
    hand(parallel->value);
    task->value = UINT64_C(1) << 63; /* handed: to be taken back */
  } else if (endpoint == SCOPE_END && task != NULL && task->value >> 63 != 0) {
    task->value = 0;
    take_back();
  }
}

/* A worker ends its implicit task when the next one begins; until then it waits in the barrier. */
static void sync_region(int kind, int endpoint, union data *parallel, union data *task, const void *code) {
  (void)parallel, (void)code;
  if (kind != BARRIER_IMPLICIT_PARALLEL || endpoint != SCOPE_BEGIN || task == NULL || task->value >> 63 == 0) return;
  struct ml_thread *self = thread();
  if (self == NULL) return;
  self->busy = 1;
  ml_hand_idle(self);
  self->busy = 0;
}

static void task_create(union data *task, const void *frame, union data *created, int flags, int dependences,
                        const void *code) {
  (void)task, (void)frame, (void)dependences, (void)code;
  created->value = (flags & TASK_EXPLICIT) != 0 ? here() : 0;
}

static bool is_explicit(const union data *task) {
  return task != NULL && (task->value & 1) != 0 && task->value >> 63 == 0;
}

static void task_schedule(union data *before, int status, union data *next) {
  if ((status == TASK_COMPLETE || status == TASK_CANCEL || status == TASK_DETACH) && is_explicit(before)) {
    before->value = 0;
    take_back();
  }
  if (is_explicit(next) && status != TASK_COMPLETE && status != TASK_CANCEL) hand(next->value);
}

static bool listening;
bool ml_openmp_tells(void) { return listening; }

static int initialize(lookup_function lookup, int device, union data *tool) {
  (void)device, (void)tool;
  set_callback_function set = (set_callback_function)lookup("ompt_set_callback");
  if (set == NULL) return 0;
  listening = set(PARALLEL_BEGIN, (callback)parallel_begin) > 1 && set(IMPLICIT_TASK, (callback)implicit_task) > 1;
  if (!listening) return 0;
  set(SYNC_REGION, (callback)sync_region);
  set(TASK_CREATE, (callback)task_create);
  set(TASK_SCHEDULE, (callback)task_schedule);
  return 1;
}
static void finalize(union data *tool) { (void)tool; }

void *ml_openmp_tool(void) {
  static struct {
    int (*initialize)(lookup_function, int, union data *);
    void (*finalize)(union data *);
    union data tool;
  } result = {initialize, finalize, {0}};
  ml_process_start();
  if (ml_process.shared == NULL || getenv("OMP_TOOL_LIBRARIES") != NULL) return NULL;
  return &result;
}
