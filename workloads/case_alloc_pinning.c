// CPUs and memory policies that a program sets for itself.
//
// Options: --hold-ms N, --time.
//
// Known answer. In this order: the process's CPUs set to CPU 0 (sched_setaffinity), the thread's to CPU 0
// (pthread_setaffinity_np), and again from a worker for itself. Prints the two thread ids on stderr.
#include "workload.h"

#include <sched.h>
#include <sys/syscall.h>

static void pin_myself(long thread_index, void *shared) {
    (void)thread_index;
    const cpu_set_t *set = shared;
    require(pthread_setaffinity_np(pthread_self(), sizeof *set, set) == 0, "pthread_setaffinity_np");
    fprintf(stderr, "worker=%ld\n", syscall(SYS_gettid));
}

int main(int argc, char **argv) {
    struct run run = begin_run(argc, argv, NULL, 0);
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0 || !CPU_ISSET(0, &set)) skip("CPU 0 is not allowed here");
    CPU_ZERO(&set);
    CPU_SET(0, &set);
    require(sched_setaffinity(0, sizeof set, &set) == 0, "sched_setaffinity");
    require(pthread_setaffinity_np(pthread_self(), sizeof set, &set) == 0, "pthread_setaffinity_np");
    fprintf(stderr, "main=%ld\n", syscall(SYS_gettid));
    run_on_threads(1, pin_myself, &set);
    printf("case_alloc_pinning\n");
    return end_run(&run);
}
