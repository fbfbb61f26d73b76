// Threads that allocate, and release what other threads allocated.
//
// Options: --threads T, --objects N, --log FILE (see alloc_log.h), --hold-ms N, --time.
//
// Known answer. Each of T workers allocates N objects of 1 to 512 bytes, then releases those of the worker after it:
// T N records of malloc, T N releases, each release by the thread before the one that allocated; nothing lives on.
#include "alloc_log.h"

static long n_objects = 10000;
static long n_threads = 8;
static void **objects;
static pthread_barrier_t all_allocated;

OWN_FRAME static void work(long thread_index, void *shared) {
    (void)shared;
    const uint64_t state = (uint64_t)thread_index << 32;
    void **own = objects + thread_index * n_objects;
    for (long i = 0; i < n_objects; i++) {
        size_t bytes = mix64(state + (uint64_t)i) % 512 + 1;
        own[i] = MALLOC(bytes);
    }
    pthread_barrier_wait(&all_allocated);
    void **others = objects + (thread_index + 1) % n_threads * n_objects;
    for (long i = 0; i < n_objects; i++) FREE(others[i]);
}

int main(int argc, char **argv) {
    const struct option_spec options[] = {number_option("--threads", &n_threads, "workers"),
                                          number_option("--objects", &n_objects, "objects of each worker"),
                                          text_option("--log", &log_path, "where the calls are logged")};
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(n_threads >= 1 && 2 * n_threads * n_objects < LOG_CAPACITY, "more calls than the log holds");
    log_frames = false;
    objects = map_fresh((size_t)(n_threads * n_objects) * sizeof *objects);
    pthread_barrier_init(&all_allocated, NULL, (unsigned)n_threads);
    run_on_threads(n_threads, work, NULL);
    log_write();
    printf("case_alloc_threads objects=%ld\n", n_threads * n_objects);
    return end_run(&run);
}
