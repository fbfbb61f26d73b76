// Threads that each increment a counter of their own. Bad: the counters are neighbours in one cache line.
// Good twin: --padded keeps them 128 bytes apart (two lines: adjacent-line prefetch pairs them).
//
// Options: --threads N, --iterations N (millions of increments a thread), --increments N (more of them, one by one),
// --meetings N, --padded, --time, --hold-ms N.
//
// Short runs want --meetings: the threads wait for each other so often, evenly spread. Without, a busy machine may run
// threads of milliseconds one after the other, and then no line moves between them.
//
// Known answer. The counters take ceil(T * 8 / P) pages (bad) or ceil(T * 128 / P) (padded), touched first by the
// main thread at the line marked below in clear_counters. Every counter ends at the number of increments. 8 T / 64
// cache lines are written by more than one thread (bad), none (padded).
#include "workload.h"

#include <stdatomic.h>

static long n_threads = 2, iterations = 500, n_more = 0, n_meetings = 0;
static bool padded = false;
static pthread_barrier_t meeting;

static uint64_t increments(void) { return (uint64_t)iterations * 1000000 + (uint64_t)n_more; }

static size_t counter_stride(void) { return (padded ? 128 : sizeof(uint64_t)) / sizeof(uint64_t); }

OWN_FRAME static void clear_counters(_Atomic uint64_t *counters, size_t n_counters) {
    KEEP_FRAME();
    for (size_t i = 0; i < n_counters; i++)
        atomic_store_explicit(&counters[i], 0, memory_order_relaxed);  // touch: here
}

OWN_FRAME static void increment_counter(_Atomic uint64_t *counter, uint64_t n_increments) {
    KEEP_FRAME();
    // A load and a store, not a locked add: the cost shown is that of the moving line alone.
    for (uint64_t i = 0; i < n_increments; i++) {
        uint64_t value = atomic_load_explicit(counter, memory_order_relaxed);
        atomic_store_explicit(counter, value + 1, memory_order_relaxed);
    }
}

static void work(long thread_index, void *shared) {
    _Atomic uint64_t *counters = shared;
    _Atomic uint64_t *mine = &counters[(size_t)thread_index * counter_stride()];
    const size_t n_increments = increments();
    for (long part = 0; part <= n_meetings; part++) {
        if (part > 0) pthread_barrier_wait(&meeting);
        increment_counter(mine, part_begin(n_increments, part + 1, n_meetings + 1) -
                                    part_begin(n_increments, part, n_meetings + 1));
    }
}

int main(int argc, char **argv) {
    const struct option_spec options[] = {
        number_option("--threads", &n_threads, "worker threads"),
        number_option("--iterations", &iterations, "millions of increments a thread"),
        number_option("--increments", &n_more, "increments a thread besides"),
        number_option("--meetings", &n_meetings, "times that the threads wait for each other on the way"),
        flag_option("--padded", &padded, "one counter every 128 bytes"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(n_threads >= 1 && n_meetings >= 0, "--threads from 1, --meetings from 0");
    if (pthread_barrier_init(&meeting, NULL, (unsigned)n_threads)) fail("pthread_barrier_init");
    size_t n_counters = (size_t)n_threads * counter_stride(), bytes = n_counters * sizeof(uint64_t);
    _Atomic uint64_t *counters = map_fresh(bytes);
    clear_counters(counters, n_counters);
    run_on_threads(n_threads, work, (void *)counters);
    for (long i = 0; i < n_threads; i++)
        if (counters[(size_t)i * counter_stride()] != increments()) fail("counter %ld is wrong", i);
    printf("false_sharing pages=%zu threads=%ld padded=%d increments=%llu\n", pages_in(bytes), n_threads, padded,
           (unsigned long long)increments());
    return end_run(&run);
}
