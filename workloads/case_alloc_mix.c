// A fixed number of objects of many sizes, to judge a sample of them.
//
// Options: --objects N, --threads T, --hold-ms N, --time.
//
// Known answer. Each of T workers allocates N objects and releases each at once: object i has mix64(i) mod 16 + 16 bytes
// if i mod 8 is below 6, mix64(i) mod 4096 + 64 if it is 6, else mix64(i) mod 61440 + 4096; every 10,000th has 65,536
// bytes (+ i / 10,000 mod 3) instead: it is large. Printed are all objects, their bytes, and the large ones.
#include "workload.h"

static long n_objects = 400000;
static unsigned long large_count;

static size_t bytes_of(long i) {
    const uint64_t random = mix64((uint64_t)i);
    if (i % 10000 == 0) return 65536 + (size_t)(i / 10000 % 3);
    if (i % 8 < 6) return random % 16 + 16;
    if (i % 8 == 6) return random % 4096 + 64;
    return random % 61440 + 4096;
}

OWN_FRAME static void allocate_all(long thread_index, void *shared) {
    (void)thread_index;
    (void)shared;
    for (long i = 0; i < n_objects; i++) {
        volatile char *p = malloc(bytes_of(i));
        require(p != NULL, "out of memory");
        p[0] = 1;
        free((void *)p);
    }
}

int main(int argc, char **argv) {
    long n_threads = 1;
    const struct option_spec options[] = {number_option("--objects", &n_objects, "objects of each worker"),
                                          number_option("--threads", &n_threads, "workers")};
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    run_on_threads(n_threads, allocate_all, NULL);
    unsigned long bytes = 0;
    for (long i = 0; i < n_objects; i++) {
        bytes += bytes_of(i);
        large_count += bytes_of(i) >= 65536;
    }
    printf("case_alloc_mix objects=%ld bytes=%lu large=%lu\n", n_threads * n_objects, (unsigned long)n_threads * bytes,
           (unsigned long)n_threads * large_count);
    return end_run(&run);
}
