// Allocations at odd moments: before main, in signal handlers, and while threads and the program end.
//
// Options: none but --hold-ms N and --time.
//
// Known answer. One object of each size below, of which the even ones are released at once by the same function:
// 10101 constructor of priority 101, 10102 constructor, 10103 static object's constructor, 10104 thread start, 10105
// thread_local object's destructor, 10106 key destructor, 10107 handler of raise(), 10108 handler of a timer signal in a
// loop that only computes (twenty times), 10109 handler on an alternate stack, 10110 atexit, 10111 static object's
// destructor, 10112 destructor function, 10113 cleanup of a cancelled thread.
#include "workload.h"

#include <csignal>
#include <sys/time.h>

OWN_FRAME static void allocate(size_t bytes) {
    void *p = malloc(bytes);
    require(p != nullptr, "out of memory");
    memset(p, 1, bytes);
    if (bytes % 2 == 0) free(p);
}

__attribute__((constructor(101))) static void early_constructor() { allocate(10101); }
__attribute__((constructor)) static void constructor() { allocate(10102); }
__attribute__((destructor)) static void destructor() { allocate(10112); }

struct Static {
    Static() { allocate(10103); }
    ~Static() { allocate(10111); }
};
static Static static_object;

struct PerThread {
    int value = 1;
    ~PerThread() { allocate(10105); }
};
static thread_local PerThread per_thread;

static pthread_key_t key;
static void key_destructor(void *) { allocate(10106); }

static void *short_life(void *argument) {
    allocate(10104);
    per_thread.value++;
    pthread_setspecific(key, argument);
    return nullptr;
}

static void cancel_cleanup(void *) { allocate(10113); }
static void *cancelled_body(void *) {
    pthread_cleanup_push(cancel_cleanup, nullptr);
    for (;;) sleep_ms(1000);
    pthread_cleanup_pop(0);
    return nullptr;
}

static void raised(int) { allocate(10107); }
static volatile sig_atomic_t ticks;
static void ticked(int) {
    if (ticks < 20) allocate(10108);
    ticks = ticks + 1;
}
static void on_alternate_stack(int) { allocate(10109); }
static void at_exit() { allocate(10110); }

int main(int argc, char **argv) {
    struct run run = begin_run(argc, argv, nullptr, 0);
    atexit(at_exit);
    pthread_key_create(&key, key_destructor);
    pthread_t thread;
    require(pthread_create(&thread, nullptr, short_life, &key) == 0, "pthread_create");
    pthread_join(thread, nullptr);
    require(pthread_create(&thread, nullptr, cancelled_body, nullptr) == 0, "pthread_create");
    pthread_cancel(thread);
    pthread_join(thread, nullptr);

    signal(SIGUSR1, raised);
    raise(SIGUSR1);
    static char alternate[1 << 16];
    stack_t stack = {};
    stack.ss_sp = alternate;
    stack.ss_size = sizeof alternate;
    sigaltstack(&stack, nullptr);
    struct sigaction action = {};
    action.sa_handler = on_alternate_stack;
    action.sa_flags = SA_ONSTACK;
    sigaction(SIGUSR2, &action, nullptr);
    raise(SIGUSR2);

    signal(SIGALRM, ticked);
    struct itimerval timer = {{0, 2000}, {0, 2000}};
    setitimer(ITIMER_REAL, &timer, nullptr);
    volatile uint64_t value = 1;
    while (ticks < 20) value = mix64(value);
    timer.it_value.tv_usec = timer.it_interval.tv_usec = 0;
    setitimer(ITIMER_REAL, &timer, nullptr);
    printf("case_alloc_moments ticks=20\n");
    return end_run(&run);
}
