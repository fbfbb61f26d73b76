/* Finding the start of a window that is far away.
 *
 * While code counts inline, the plugin does not run in the guest's thread. A thread of the plugin sums the guest's counters, more often as
 * the window comes near, and shortly before it interrupts the guest's thread with a signal, because only that thread can request another
 * translation. The guest must not be affected:
 *
 * - The handler acts only where the signal found translated code: there the emulator holds no lock and is in no library function. Elsewhere the
 *   signal has no effect, and another follows.
 * - No signal reaches the thread in a system call, which would then fail with EINTR. The thread that makes a call sets in_call first and then
 *   reads flight (a signal on its way); the sender sets flight first and then reads in_call. One of the two therefore sees the other.
 * - The signal is the machine's last. A signal from elsewhere is passed on; a guest that uses it for itself gets it, and its
 *   accesses make callbacks from then on. */
#include "emulator.h"

#include <errno.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define SIGNAL 64         /* the last one of Linux; emulators map it to one of the guest's last */
#define FIRST_OF_GUEST 60 /* any of these may be it */
#define LEAST_LEAD 100000 /* accesses before a window at which calls begin */
/* accesses in a microsecond at most, as far as is known; phases of a program differ by tens */
#define FIRST_RATE 1000
#define BLOCKED_FOR 10000000 /* accesses after which a signal has not come because it is blocked */
#define SHORTEST_NS 20000
#define LONGEST_NS 20000000

static struct {
  bool waits;           /* for `begin`; ends when the window is near */
  uint64_t begin, lead; /* in accesses */
  pid_t process, thread;
  bool started, can_start;
  sem_t wake;
  uint64_t code_begin, code_end; /* translated code */
  struct sigaction before;
  bool handles, taken; /* the signal, by us; by the guest */
  bool in_call, asked; /* asked: the thread is to look when its system call has ended */
  bool blocked;        /* the guest lets no signal through */
  bool begins_anew;    /* in a child, whose fork has not ended */
  enum { NONE, SENDING, SENT } flight;
  uint64_t sent_at; /* accesses */
} watch;

static bool is_translated(uint64_t pc) { return pc - watch.code_begin < watch.code_end - watch.code_begin; }

/* Called by translated code, which is where it returns to. */
void ml_wait_code_at(const void *pc) {
  uint64_t begin, end;
  ml_plugin.knows_code = true;
  if (!ml_plugin.sparse || !ml_mapping_at((uint64_t)(uintptr_t)pc - ml_plugin.guest_base, &begin, &end)) return;
  watch.code_begin = begin + ml_plugin.guest_base;
  watch.code_end = end + ml_plugin.guest_base;
}

/* ---- the guest's thread ----------------------------------------------------------------------------------------- */
static uint64_t pc_of(const void *context) {
  const ucontext_t *at = context;
#if defined(__x86_64__)
  return (uint64_t)at->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
  return at->uc_mcontext.pc;
#else
  return (void)at, 0; /* nowhere: no window far away is met in time */
#endif
}

static bool land(void) { return __atomic_exchange_n(&watch.flight, NONE, __ATOMIC_SEQ_CST) != NONE; }

static void look(void) {
  struct vcpu *vcpu = ml_plugin.only;
  if (!__atomic_load_n(&watch.waits, __ATOMIC_ACQUIRE) || vcpu == NULL || ml_plugin.reset_asked) return;
  if (ml_accesses_seen(vcpu) + watch.lead < watch.begin) return;
  __atomic_store_n(&watch.waits, false, __ATOMIC_RELEASE);
  ml_window_near(vcpu);
}

static void pass_on(int number, siginfo_t *info, void *context) {
  if ((watch.before.sa_flags & SA_SIGINFO) != 0) watch.before.sa_sigaction(number, info, context);
  else if (watch.before.sa_handler == SIG_DFL) {
    sigaction(number, &watch.before, NULL);
    raise(number);
  } else if (watch.before.sa_handler != SIG_IGN) watch.before.sa_handler(number);
}

static void on_signal(int number, siginfo_t *info, void *context) {
  const int saved = errno;
  if (info->si_code != SI_TKILL || !land()) pass_on(number, info, context);
  else if (is_translated(pc_of(context))) look();
  errno = saved;
}

/* A signal on its way is taken off it. */
void ml_wait_call_begins(void) {
  __atomic_store_n(&watch.in_call, true, __ATOMIC_SEQ_CST);
  while (__atomic_load_n(&watch.flight, __ATOMIC_SEQ_CST) == SENDING) sched_yield();
  if (ML_LIKELY(__atomic_load_n(&watch.flight, __ATOMIC_SEQ_CST) == NONE)) return;
  const int saved = errno;
  const struct timespec now = {0};
  sigset_t only, mask;
  sigemptyset(&only);
  sigaddset(&only, SIGNAL);
  pthread_sigmask(SIG_BLOCK, &only, &mask);
  if (__atomic_load_n(&watch.flight, __ATOMIC_SEQ_CST) != NONE) { /* it has not come: it waits */
    sigtimedwait(&only, NULL, &now);
    land();
  }
  pthread_sigmask(SIG_SETMASK, &mask, NULL);
  errno = saved;
}

void ml_wait_call_ends(struct vcpu *vcpu) {
  if (ML_UNLIKELY(watch.begins_anew)) { /* a child's code counts inline as its parent's does */
    if (vcpu == ml_plugin.only && ml_plugin.sparse && !ml_window_far(vcpu)) ml_ask_reset();
    watch.begins_anew = false;
  }
  __atomic_store_n(&watch.in_call, false, __ATOMIC_SEQ_CST);
  if (ML_UNLIKELY(__atomic_exchange_n(&watch.asked, false, __ATOMIC_SEQ_CST))) look();
}

/* ---- our thread ---------------------------------------------------------------------------------------------------- */
static void sleep_ns(uint64_t ns) {
  const struct timespec time = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
  nanosleep(&time, NULL);
}

static void interrupt(uint64_t seen) {
  if (__atomic_load_n(&watch.flight, __ATOMIC_SEQ_CST) != NONE) return;
  watch.sent_at = seen;
  __atomic_store_n(&watch.flight, SENDING, __ATOMIC_SEQ_CST);
  const bool in_call = __atomic_load_n(&watch.in_call, __ATOMIC_SEQ_CST);
  if (in_call || syscall(SYS_tgkill, watch.process, watch.thread, SIGNAL) != 0) {
    if (in_call) __atomic_store_n(&watch.asked, true, __ATOMIC_SEQ_CST);
    land();
    return;
  }
  int sending = SENDING;
  __atomic_compare_exchange_n((int *)&watch.flight, &sending, SENT, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static void wait_for_one(void) {
  static uint64_t rate = FIRST_RATE;
  uint64_t last_ns = ml_now_ns(), pause_ns = SHORTEST_NS;
  uint64_t last = UINT64_MAX;
  while (__atomic_load_n(&watch.waits, __ATOMIC_ACQUIRE)) {
    struct vcpu *vcpu = ml_plugin.only;
    if (vcpu == NULL) return;
    const uint64_t seen = ml_accesses_seen(vcpu), now_ns = ml_now_ns();
    if (seen > last && now_ns > last_ns) {
      const uint64_t measured = (seen - last) * 1000 / (now_ns - last_ns) + 1;
      if (measured > rate) rate = measured;
    }
    last = seen, last_ns = now_ns;
    if (seen + watch.lead < watch.begin) {
      const uint64_t ns = (watch.begin - watch.lead - seen) * 1000 / rate;
      pause_ns = SHORTEST_NS;
      sleep_ns(ns < SHORTEST_NS ? SHORTEST_NS : ns < LONGEST_NS ? ns : LONGEST_NS);
      continue;
    }
    interrupt(seen);
    if (seen > watch.sent_at + BLOCKED_FOR && __atomic_load_n(&watch.flight, __ATOMIC_SEQ_CST) == SENT)
      watch.blocked = true;
    sleep_ns(pause_ns);
    /* its end will tell */
    if (pause_ns < LONGEST_NS / 2 && __atomic_load_n(&watch.in_call, __ATOMIC_SEQ_CST)) pause_ns *= 2;
  }
}

/* It runs for microseconds, and should when it wakes: a short slice comes first (Linux 6.12), whatever the priority. */
static void ask_for_short_slices(void) {
  struct {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
  } attributes = {.size = sizeof attributes};
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0 || attributes.policy != SCHED_OTHER) return;
  attributes.size = sizeof attributes;
  attributes.runtime = 100000;
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

static void *run(void *unused) {
  (void)unused;
  ask_for_short_slices();
  prctl(PR_SET_TIMERSLACK, 1000);
  prctl(PR_SET_NAME, "memlens");
  for (;;) {
    while (sem_wait(&watch.wake) != 0) {
    }
    if (!ml_plugin.sparse) return NULL;
    wait_for_one();
  }
}

static bool start(void) {
  if (watch.started) return true;
  sigset_t all, mask;
  pthread_attr_t attributes;
  pthread_t thread;
  sigfillset(&all);
  if (!watch.handles) {
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART, .sa_mask = all};
    if (sigaction(SIGNAL, &action, &watch.before) != 0) return false;
    watch.handles = true;
  }
  if (sem_init(&watch.wake, 0, 0) != 0 || pthread_attr_init(&attributes) != 0) return false;
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, 256 * 1024);
  pthread_sigmask(SIG_SETMASK, &all, &mask); /* a signal for the process is not ours */
  watch.started = pthread_create(&thread, &attributes, run, NULL) == 0;
  pthread_sigmask(SIG_SETMASK, &mask, NULL);
  pthread_attr_destroy(&attributes);
  return watch.started;
}

/* While the emulator forks, all are. */
static bool is_blocked(void) {
  sigset_t mask;
  return pthread_sigmask(SIG_SETMASK, NULL, &mask) != 0 || sigismember(&mask, SIGNAL) != 0;
}

/* By the guest's only thread. False: it cannot be told when the window is near. */
bool ml_wait_for(uint64_t begin) {
  const int saved = errno;
  watch.process = getpid();
  watch.thread = (pid_t)syscall(SYS_gettid);
  watch.begin = begin;
  if (watch.lead == 0) watch.lead = LEAST_LEAD;
  const bool started = watch.code_end != 0 && !watch.taken && (watch.begins_anew || !is_blocked()) && start();
  if (started) {
    __atomic_store_n(&watch.waits, true, __ATOMIC_RELEASE);
    sem_post(&watch.wake);
  }
  errno = saved;
  return started;
}

/* How many accesses a window came too late: on a busy machine our thread is not awake when it should be. */
void ml_wait_was_late(uint64_t late) {
  const uint64_t most = ml_settings.period / 8 > LEAST_LEAD ? ml_settings.period / 8 : LEAST_LEAD;
  watch.lead = late != 0 ? watch.lead + late : watch.lead - (watch.lead - LEAST_LEAD) / 16;
  if (watch.lead > most) watch.lead = most;
}

/* No more windows are waited for: several threads, or the guest wants the signal. */
void ml_wait_end(void) {
  __atomic_store_n(&watch.waits, false, __ATOMIC_RELEASE);
  if (watch.started) sem_post(&watch.wake);
}

/* The guest sets what a signal does. True: it may be ours, which we then use no more. */
bool ml_wait_loses(uint64_t guest_signal) {
  if (guest_signal >= FIRST_OF_GUEST) watch.taken = true;
  return guest_signal >= FIRST_OF_GUEST;
}
bool ml_wait_is_blocked(void) { return watch.blocked; }

/* In the child our thread is not. */
void ml_wait_after_fork(void) {
  watch.begins_anew |= watch.waits;
  watch.waits = watch.started = watch.asked = false;
  watch.flight = NONE;
  watch.in_call = true;
}
