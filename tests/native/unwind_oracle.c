/* Is our unwinder right, and does it never fault? Each case calls check() from a place that is hard for unwinders; check
 * compares ml_unwind with _Unwind_Backtrace. Then thousands of wrong stacks, which only have to be survived.
 *
 * Linked with native/runtime/unwind.c and nothing else of the runtime. */
#include "runtime.h"

#include "unwind_oracle.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>
#include <unwind.h>

__thread struct ml_thread ml_self;
struct ml_runtime ml_runtime;
volatile int zero;
static int differences, checks, asked;

/* Another way than the runtime's own to ask the same, which works under an emulator too. */
bool ml_readable(uint64_t address, size_t bytes) {
  static int ends[2] = {-1, -1};
  __atomic_fetch_add(&asked, 1, __ATOMIC_RELAXED);
  char into[4096];
  const int saved = errno;
  if (ends[0] < 0 && pipe(ends) != 0) abort();
  const ssize_t wrote = write(ends[1], (const void *)(uintptr_t)address, bytes);
  if (wrote > 0 && read(ends[0], into, (size_t)wrote) != wrote) abort();
  errno = saved;
  return wrote == (ssize_t)bytes;
}

struct oracle {
  uint64_t ips[1024];
  unsigned count;
};

static _Unwind_Reason_Code visit(struct _Unwind_Context *context, void *argument) {
  struct oracle *oracle = argument;
  int before = 0;
  const uint64_t ip = (uint64_t)_Unwind_GetIPInfo(context, &before);
  if (ip == 0 || oracle->count == 1024) return _URC_END_OF_STACK;
  oracle->ips[oracle->count++] = ip + (before != 0); /* an interrupted instruction, as a return address */
  return _URC_NO_REASON;
}

static char note[65536];
static size_t noted;

OWN_FRAME int check(const char *name) {
  uint64_t ips[ML_MAX_DEPTH];
  bool truncated;
  const unsigned count = ml_unwind(ips, ML_MAX_DEPTH, &truncated);
  struct oracle oracle = {.count = 0};
  _Unwind_Backtrace(visit, &oracle);
  __atomic_fetch_add(&checks, 1, __ATOMIC_RELAXED);
  const unsigned expected = oracle.count < ML_MAX_DEPTH ? oracle.count : ML_MAX_DEPTH;
  bool same = count == expected && truncated == (oracle.count > ML_MAX_DEPTH);
  for (unsigned i = 1; same && i < count; i++) same = ips[i] == oracle.ips[i];
  if (!same) {
    __atomic_fetch_add(&differences, 1, __ATOMIC_RELAXED);
    if (noted < sizeof note - 4096) {
      noted += (size_t)snprintf(note + noted, sizeof note - noted, "%s: %u frames (truncated %d), libgcc has %u\n",
                                name, count, truncated, oracle.count);
      for (unsigned i = 0; i < 12 && (i < count || i < oracle.count); i++)
        noted +=
            (size_t)snprintf(note + noted, sizeof note - noted, "  %lx %lx\n", i < count ? (unsigned long)ips[i] : 0ul,
                             i < oracle.count ? (unsigned long)oracle.ips[i] : 0ul);
    }
  }
  return (int)count;
}

/* Wherever on its pages a stack ends, and however large its frames are, the kernel is asked about it once. */
OWN_FRAME static unsigned asks_once(size_t bytes) {
  uint64_t ips[ML_MAX_DEPTH];
  bool truncated;
  unsigned count = 0;
  int before = 0;
  volatile char *memory = __builtin_alloca(bytes);
  memory[0] = 1;
  for (volatile int round = 0; round < 2; round++) {
    before = asked;
    count += ml_unwind(ips, ML_MAX_DEPTH, &truncated);
  }
  if (asked != before && ++differences < 5)
    printf("below %zu bytes the kernel is asked %d times at every stack\n", bytes, asked - before);
  return count + (unsigned)(memory[0] * zero);
}

/* ---- frames of every shape ------------------------------------------------------------------------ */
OWN_FRAME static int recurse(int depth) {
  volatile int local = depth;
  return depth == 0 ? check("recursion") : recurse(depth - 1) + local * zero;
}

static int odd(int depth);
OWN_FRAME static int even(int depth) { return depth == 0 ? check("tail calls") : odd(depth - 1); }
OWN_FRAME static int odd(int depth) { return even(depth - 1); }

OWN_FRAME static int with_alloca(int bytes) {
  volatile char *memory = __builtin_alloca((size_t)bytes);
  memory[0] = memory[bytes - 1] = 1;
  return check("alloca") + memory[0] * zero;
}

OWN_FRAME static int with_vla(int count) {
  volatile double values[count];
  values[0] = values[count - 1] = 1.5;
  return with_alloca(count) + (int)values[0] * zero;
}

OWN_FRAME static int realigned(int count) {
  volatile char wide[256] __attribute__((aligned(128)));
  volatile char more[count];
  wide[0] = more[0] = 1;
  return with_vla(count) + wide[0] * zero + more[0] * zero;
}

OWN_FRAME static int realigned_no_vla(int count) {
  volatile char wide[256] __attribute__((aligned(64)));
  wide[0] = (char)count;
  return realigned(count) + wide[0] * zero;
}

#if defined(__x86_64__)
OWN_FRAME __attribute__((force_align_arg_pointer)) static int forced(int count) {
  return realigned_no_vla(count) + check("force_align_arg_pointer") * zero;
}
#else
OWN_FRAME static int forced(int count) { return realigned_no_vla(count); }
#endif

OWN_FRAME static int many_registers(int a, int b, int c, int d, int e, int f, int g, int h) {
  const int first = forced(a + 10);
  const int second = check("saved registers");
  return first + second + (a ^ b ^ c ^ d ^ e ^ f ^ g ^ h) * zero;
}

static int by_value(const void *a, const void *b) {
  static int once;
  if (once++ < 5) check("qsort");
  return *(const int *)a - *(const int *)b;
}

OWN_FRAME static void through_libc(void) {
  int values[64];
  for (int i = 0; i < 64; i++) values[i] = (i * 37) % 64;
  qsort(values, 64, sizeof *values, by_value);
  void *found = bsearch(&values[3], values, 64, sizeof *values, by_value);
  if (found == NULL) abort();
}

static jmp_buf back;
OWN_FRAME __attribute__((noreturn)) static void never_returns(void) {
  check("noreturn");
  longjmp(back, 1);
}
OWN_FRAME static void calls_noreturn(void) { /* the call is the last instruction of the function */
  if (setjmp(back) == 0) never_returns();
}

/* ---- signals ------------------------------------------------------------------------------------------ */
static volatile sig_atomic_t ticks;
static void handler(int number) {
  check(number == SIGUSR1 ? "handler of raise" : number == SIGUSR2 ? "alternate stack" : "timer");
  ticks = ticks + 1;
}

OWN_FRAME static unsigned long leaf(unsigned long x) { return x * 2654435761u + 12345; }
OWN_FRAME static unsigned long busy(unsigned long x, int depth) {
  volatile char local[64];
  local[depth & 63] = (char)x;
  if (depth > 0) return busy(leaf(x), depth - 1) + (unsigned long)local[0];
  return leaf(x) + (unsigned long)strlen("some text of some length") + (unsigned long)local[1];
}

OWN_FRAME static void in_signals(void) {
  struct sigaction action = {.sa_handler = handler};
  sigaction(SIGUSR1, &action, NULL);
  raise(SIGUSR1);
  static char alternate[1 << 18];
  const stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};
  sigaltstack(&stack, NULL);
  action.sa_flags = SA_ONSTACK;
  sigaction(SIGUSR2, &action, NULL);
  raise(SIGUSR2);
  action.sa_flags = SA_RESTART;
  sigaction(SIGPROF, &action, NULL);
  const struct itimerval timer = {{0, 1000}, {0, 1000}}, none = {{0, 0}, {0, 0}};
  ticks = 0;
  setitimer(ITIMER_PROF, &timer, NULL);
  unsigned long x = 1;
  while (ticks < 200) x = busy(x, (int)(x % 17));
  setitimer(ITIMER_PROF, &none, NULL);
  zero = x == 42 ? 0 : zero;
}

/* ---- other stacks ---------------------------------------------------------------------------------------- */
static ucontext_t main_context, coroutine_context;
static void coroutine(void) {
  for (int i = 0; i < 5; i++) {
    check("coroutine");
    recurse(5);
    swapcontext(&coroutine_context, &main_context);
  }
}

OWN_FRAME static void in_coroutines(void) {
  for (int round = 0; round < 3; round++) { /* unmapped in between: what was readable is not */
    const size_t bytes = 1 << 18;
    void *stack = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    getcontext(&coroutine_context);
    coroutine_context.uc_stack.ss_sp = stack;
    coroutine_context.uc_stack.ss_size = bytes;
    coroutine_context.uc_link = &main_context;
    makecontext(&coroutine_context, coroutine, 0);
    for (int i = 0; i < 5; i++) swapcontext(&main_context, &coroutine_context);
    munmap(stack, bytes);
    check("after a coroutine");
  }
}

static void *in_thread(void *unused) {
  check("thread");
  recurse(20);
  return unused;
}

/* ---- wrong stacks ------------------------------------------------------------------------------------------- */
#if defined(__x86_64__)
static unsigned last_depth;
static uint64_t last_ips[ML_MAX_DEPTH];
static void only_unwind(void) {
  bool truncated;
  last_depth = ml_unwind(last_ips, ML_MAX_DEPTH, &truncated);
}

typedef void code(void);

/* push rbp; mov rbp, VALUE (or rsp); mov rax, FUNCTION; call rax; pop rbp; ret: code without tables */
static size_t emit(unsigned char *at, bool keep_frame, uint64_t frame, void (*function)(void)) {
  unsigned char *begin = at;
  *at++ = 0x55;
  if (keep_frame) {
    memcpy(at, "\x48\x89\xe5", 3);
    at += 3;
  } else {
    memcpy(at, "\x48\xbd", 2);
    memcpy(at + 2, &frame, 8);
    at += 10;
  }
  memcpy(at, "\x48\xb8", 2);
  memcpy(at + 2, &function, 8);
  at += 10;
  memcpy(at, "\xff\xd0\x5d\xc3", 4);
  return (size_t)(at + 4 - begin);
}

static uint64_t state = 88172645463325252u;
static uint64_t next_random(void) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

static uint64_t wrong_address(const uint64_t *fake, size_t words) {
  switch (next_random() % 8) {
    case 0: return next_random();
    case 1: return next_random() >> 17;
    case 2: return (uint64_t)(uintptr_t)__builtin_frame_address(0) + (next_random() % 65536) - 8192;
    case 3: return (uint64_t)(uintptr_t)&qsort + next_random() % 2000000 - 1000000; /* the C library and its holes */
    case 4: return (uint64_t)(uintptr_t)&check + next_random() % 100000 - 50000;
    case 5: return (uint64_t)(uintptr_t)(fake + next_random() % words);
    case 6: return ((uint64_t)(uintptr_t)__builtin_frame_address(0) + next_random() % 4096) & ~7ull;
    default: return (uint64_t)(uintptr_t)&_Unwind_Backtrace + next_random() % 200000 - 100000;
  }
}

static int wrong_stacks(long count) {
  unsigned char *text = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (text == MAP_FAILED) return 0;
  code *run;
  memcpy(&run, &text, sizeof run);
  emit(text, true, 0, only_unwind);
  run();
  /* only_unwind, the generated code, then this function: walked by the frame pointer. */
  const bool walked = last_depth >= 3 && last_ips[1] == (uint64_t)(uintptr_t)text + 16;
  static uint64_t fake[4096];
  for (long i = 0; i < count; i++) {
    for (size_t word = 0; word < 4096 && i % 64 == 0; word++) fake[word] = wrong_address(fake, 4096);
    emit(text, false, wrong_address(fake, 4096), only_unwind);
    run();
    fake[next_random() % 4096] = wrong_address(fake, 4096);
  }
  return walked ? 0 : 1;
}
#else
static int wrong_stacks(long count) { return count < 0; }
#endif

int main(int argc, char **argv) {
  ml_unwind_start();
  ml_runtime.text_begin = ml_runtime.text_end = 0; /* here nothing is left out as our own */
  for (size_t bytes = 16; bytes < 40000; bytes += 80) asks_once(bytes);
  const int depth = recurse(10);
  if (depth < 12) printf("recursion of 10 has only %d frames\n", depth), differences++;
  recurse(50);
  if (recurse(200) != ML_MAX_DEPTH) printf("a deep stack is not cut at %d\n", ML_MAX_DEPTH), differences++;
  even(20);
  many_registers(1, 2, 3, 4, 5, 6, 7, 8);
  through_libc();
  calls_noreturn();
  in_signals();
  in_coroutines();
  pthread_t thread;
  if (pthread_create(&thread, NULL, in_thread, NULL) == 0) pthread_join(thread, NULL);
  if (cpp_cases != NULL) cpp_cases();
  const int not_walked = wrong_stacks(argc > 1 ? atol(argv[1]) : 20000);
  fputs(note, stdout);
  printf("checks=%d differences=%d jit_not_walked=%d\n", checks, differences, not_walked);
  return differences != 0 || not_walked != 0;
}
