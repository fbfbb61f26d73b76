/* Keeps what recording faults costs within a share of the program's time.
 *
 * Levels, from the dearest: both events of each fault, one event, one fault in ML_SPARSE_PERIOD. A credit grows with the
 * program's time and shrinks with each record; while it lasts, every fault is recorded. When it is used up, the dearest level
 * that the present rate of faults allows for good takes over, within some milliseconds: the rings wake the drain thread
 * early in a storm. A dearer level comes back when the rate has been low for a while. What was in force when is in the capture
 * (fault_level), with the kernel's own count of faults for the sampled stretches: estimates are scaled to it.
 *
 * The level follows from past rates alone, so each fault has the same chance of being recorded while a level is in force. */
#include "internal.h"

#include <string.h>
#include <time.h>

#define LOOK_NS 5000000.0
#define INITIAL_CREDIT_NS 10e6 /* starting a program costs thousands of faults; of a second, this is 1 % */
#define MAXIMUM_CREDIT_NS 200e6
#define MINIMUM_CREDIT_NS (-50e6)
#define DWELL_NS UINT64_C(250000000) /* at least, before a dearer level comes back */
#define RATE_DECAY_NS 300e6
#define HEADROOM 0.7       /* a dearer level must fit into this part of the share */
#define MAXIMUM_CLOCKS 256 /* processes whose CPU time is read */
#define DUMP_NS 2500.0
#define CALLCHAIN_NS 1000.0
static const double assumed_cost_ns[ML_FAULT_LEVELS] = {1300, 800, 160}; /* measured on a virtual machine of 2025 */

enum {
  BOTH = ML_ENUM_fault_level_kind_BOTH,
  SINGLE = ML_ENUM_fault_level_kind_SINGLE,
  SAMPLED = ML_ENUM_fault_level_kind_SAMPLED
};

static bool is_kept(const struct ml_session *session) { return session->budget.share > 0 && session->event_count > 0; }

static unsigned dearest(const struct ml_session *session) {
  return session->options.fault_before && session->facts.page_size_known ? BOTH : SINGLE;
}

/* CPU time that the processes have taken since the last look. Locked. */
static double program_time(struct ml_session *session) {
  double total = 0;
  size_t read = 0;
  for (size_t i = session->process_count; i-- > 0 && read < MAXIMUM_CLOCKS;) {
    struct ml_process *process = session->processes[i];
    struct timespec time;
    if (!process->info.alive) continue;
    read++;
    /* The kernel's number of a process's CPU clock, as clock_getcpuclockid makes it, without its check of the process. */
    const clockid_t clock = (clockid_t)((~(uint32_t)process->info.pid << 3) | 2);
    if (clock_gettime(clock, &time) != 0) continue;
    const uint64_t now = (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
    if (process->cpu_ns != 0 && now > process->cpu_ns) total += (double)(now - process->cpu_ns);
    process->cpu_ns = now;
  }
  return total;
}

static double own_time(void) {
  struct timespec time;
  return clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0 ? (double)time.tv_sec * 1e9 + (double)time.tv_nsec : 0;
}

static void close_level(struct ml_session *session, uint64_t now_ns) {
  struct ml_budget *budget = &session->budget;
  const uint64_t counted =
      budget->level == SAMPLED ? ml_count_role(session, ML_ROLE_SPARSE) - budget->level_counted : 0;
  pthread_mutex_lock(&session->lock);
  struct ml_fault_level *record = ml_buffer_reserve(session, &session->level_buffer, sizeof *record, now_ns);
  if (record != NULL)
    *record = (struct ml_fault_level){
        .begin_ns = budget->level_ns,
        .end_ns = now_ns,
        .counted = counted,
        .recorded = (budget->level == SAMPLED
                         ? session->counts.sampled_faults
                         : session->counts.faults - session->counts.sampled_faults - session->counts.stack_faults) -
                    budget->level_faults,
        .cost_ns = (uint64_t)budget->level_cost_ns,
        .level = (uint16_t)budget->level,
        .period = budget->level == SAMPLED ? ML_SPARSE_PERIOD : 1};
  pthread_mutex_unlock(&session->lock);
}

static void open_level(struct ml_session *session, unsigned level, uint64_t now_ns) {
  struct ml_budget *budget = &session->budget;
  budget->level = level;
  budget->level_ns = now_ns;
  budget->level_cost_ns = 0;
  budget->level_faults = level == SAMPLED
                             ? session->counts.sampled_faults
                             : session->counts.faults - session->counts.sampled_faults - session->counts.stack_faults;
}

/* The new events are enabled before the old ones are disabled: faults in between raise both, and drain.c takes the pair
 * as one fault that is no sample. The rings are drained before a level ends, so that its records count for it. */
static void change_level(struct ml_session *session, unsigned level) {
  struct ml_budget *budget = &session->budget;
  if (level == SAMPLED) {
    budget->level_counted = ml_count_role(session, ML_ROLE_SPARSE);
    ml_enable_role(session, ML_ROLE_SPARSE, true);
  } else {
    ml_enable_role(session, ML_ROLE_MINOR, true);
  }
  if (level == BOTH) ml_enable_role(session, ML_ROLE_BEFORE, true);
  else if (budget->level == BOTH) ml_enable_role(session, ML_ROLE_BEFORE, false);
  if (level == SAMPLED) ml_enable_role(session, ML_ROLE_MINOR, false);
  else if (budget->level == SAMPLED) ml_enable_role(session, ML_ROLE_SPARSE, false);
  ml_drain_all(session);
  const uint64_t now = ml_monotonic_ns();
  close_level(session, now);
  open_level(session, level, now);
  pthread_mutex_lock(&session->lock);
  session->counts.level_changes++;
  pthread_mutex_unlock(&session->lock);
}

void ml_budget_begin(struct ml_session *session, uint64_t now_ns) {
  struct ml_budget *budget = &session->budget;
  if (session->event_count == 0) return;
  budget->share = session->options.budget_share;
  budget->is_measured = ml_fault_cost(session, budget->cost_ns);
  if (!budget->is_measured) memcpy(budget->cost_ns, assumed_cost_ns, sizeof assumed_cost_ns);
  /* In a short loop the cheapest level seems cheaper than it is in a program: at least its usual part of the dearest. */
  const double least_ns = budget->cost_ns[BOTH] * assumed_cost_ns[SAMPLED] / assumed_cost_ns[BOTH];
  if (budget->cost_ns[SAMPLED] < least_ns) budget->cost_ns[SAMPLED] = least_ns;
  pthread_mutex_lock(&session->lock);
  for (unsigned level = 0; level < ML_FAULT_LEVELS; level++)
    session->counts.fault_cost_ns[level] = budget->is_measured ? budget->cost_ns[level] : 0;
  program_time(session);
  pthread_mutex_unlock(&session->lock);
  budget->credit_ns = INITIAL_CREDIT_NS;
  budget->looked_ns = now_ns;
  budget->own_ns = own_time();
  open_level(session, dearest(session), now_ns);
}

static unsigned affordable(const struct ml_session *session, double ns_per_s) {
  const struct ml_budget *budget = &session->budget;
  unsigned level = dearest(session);
  while (level < SAMPLED && budget->rate * budget->cost_ns[level] > ns_per_s) level++;
  return level;
}

void ml_budget_keep(struct ml_session *session, uint64_t now_ns) {
  struct ml_budget *budget = &session->budget;
  const double elapsed = (double)(now_ns - budget->looked_ns);
  if (!is_kept(session) || elapsed < LOOK_NS) return;
  pthread_mutex_lock(&session->lock);
  const double program = program_time(session);
  const uint64_t sampled = session->counts.sampled_faults;
  const uint64_t plain = session->counts.faults - sampled - session->counts.stack_faults;
  const uint64_t stacks = session->counts.stacks + session->counts.stacks_unmatched;
  pthread_mutex_unlock(&session->lock);
  const double new_plain = (double)(int64_t)(plain - budget->plain);
  const double new_sampled = (double)(int64_t)(sampled - budget->sampled) * ML_SPARSE_PERIOD;
  const double new_stacks = stacks > budget->stacks ? (double)(stacks - budget->stacks) : 0;
  const unsigned plain_level = budget->level == SAMPLED ? SINGLE : budget->level;
  double spent = new_plain * budget->cost_ns[plain_level] + new_sampled * budget->cost_ns[SAMPLED] +
                 new_stacks * (session->options.stack_mode == ML_STACKS_DWARF ? DUMP_NS : CALLCHAIN_NS);
  budget->level_cost_ns += spent;
  /* A program that keeps all CPUs busy pays for this thread too. */
  const double own = own_time();
  if (program > 0.9 * elapsed * session->facts.cpus) spent += own - budget->own_ns;
  budget->credit_ns += budget->share * (program > elapsed ? program : elapsed) - spent;
  if (budget->credit_ns > MAXIMUM_CREDIT_NS) budget->credit_ns = MAXIMUM_CREDIT_NS;
  if (budget->credit_ns < MINIMUM_CREDIT_NS) budget->credit_ns = MINIMUM_CREDIT_NS;
  /* What a second of the program's time allows, by wall time. */
  const double allowed = budget->share * 1e9 * (program > elapsed ? program / elapsed : 1);
  const double rate = (new_plain + new_sampled) * 1e9 / elapsed;
  if (rate > budget->rate) budget->rate = (budget->rate + rate) / 2;
  else budget->rate += (rate - budget->rate) * (elapsed < RATE_DECAY_NS ? elapsed / RATE_DECAY_NS : 1);
  budget->looked_ns = now_ns;
  budget->own_ns = own;
  budget->plain = plain;
  budget->sampled = sampled;
  budget->stacks = stacks;
  unsigned level = budget->level;
  if (budget->credit_ns <= 0) {
    const unsigned fits = affordable(session, allowed);
    level = fits > level ? fits : level + (level < SAMPLED && spent > 0);
  } else if (now_ns - budget->level_ns >= DWELL_NS && budget->credit_ns >= INITIAL_CREDIT_NS / 2) {
    const unsigned fits = affordable(session, HEADROOM * allowed);
    if (fits < level) level = fits;
  }
  if (level != budget->level) change_level(session, level);
}

void ml_budget_end(struct ml_session *session, uint64_t now_ns) {
  if (is_kept(session) && session->budget.level_ns != 0) close_level(session, now_ns);
}
