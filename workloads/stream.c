// STREAM copy and triad: c = a, then a = b + 0.5 c, over three arrays of doubles.
//
// Options: --mib N (one array), --threads N, --iterations N, --time, --hold-ms N.
//
// Known answer. With P the page size and A = N MiB / P pages an array: 3 A pages are touched first, at the
// line marked below in fill_part; worker-i touches 3 ((i+1) A / T - i A / T) of them, the main thread none.
// No page is touched first anywhere else. The values follow a' = 2 + a / 2 from a = 1.
#include "workload.h"

static long mib = 64, n_threads = 2, iterations = 120;

struct arrays {
    double *a, *b, *c;
    size_t n_pages;
    pthread_barrier_t barrier;
};

OWN_FRAME static void fill_part(double *array, size_t begin, size_t end, double value) {
    KEEP_FRAME();
    for (size_t i = begin; i < end; i++) array[i] = value;  // touch: here
}

OWN_FRAME static void copy_part(double *restrict to, const double *restrict from, size_t begin, size_t end) {
    KEEP_FRAME();
    for (size_t i = begin; i < end; i++) to[i] = from[i];
}

OWN_FRAME static void triad_part(double *restrict a, const double *restrict b, const double *restrict c, size_t begin,
                                 size_t end) {
    KEEP_FRAME();
    for (size_t i = begin; i < end; i++) a[i] = b[i] + 0.5 * c[i];
}

static void work(long thread_index, void *shared) {
    struct arrays *arrays = shared;
    // Parts are whole pages, so that no page belongs to two threads.
    size_t doubles_per_page = page_bytes() / sizeof(double);
    size_t begin = part_begin(arrays->n_pages, thread_index, n_threads) * doubles_per_page;
    size_t end = part_begin(arrays->n_pages, thread_index + 1, n_threads) * doubles_per_page;
    fill_part(arrays->a, begin, end, 1.0);
    fill_part(arrays->b, begin, end, 2.0);
    fill_part(arrays->c, begin, end, 0.25);
    if (thread_index == 0) begin_lap();
    for (long k = 0; k < iterations; k++) {
        pthread_barrier_wait(&arrays->barrier);
        copy_part(arrays->c, arrays->a, begin, end);
        pthread_barrier_wait(&arrays->barrier);
        triad_part(arrays->a, arrays->b, arrays->c, begin, end);
        if (thread_index == 0) end_lap();
    }
}

int main(int argc, char **argv) {
    const struct option_spec options[] = {
        number_option("--mib", &mib, "MiB of one of the three arrays"),
        number_option("--threads", &n_threads, "worker threads"),
        number_option("--iterations", &iterations, "copy and triad passes"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(mib >= 1 && n_threads >= 1, "--mib and --threads must be at least 1");
    size_t bytes = (size_t)mib * MIB, n = bytes / sizeof(double);
    struct arrays arrays = {.a = map_fresh(bytes),
                            .b = map_fresh(bytes),
                            .c = map_fresh(bytes),
                            .n_pages = pages_in(bytes)};
    pthread_barrier_init(&arrays.barrier, NULL, (unsigned)n_threads);
    run_on_threads(n_threads, work, &arrays);

    double expected = 1.0;
    for (long k = 0; k < iterations; k++) expected = 2.0 + 0.5 * expected;
    for (size_t i = 0; i < n; i++)
        if (arrays.a[i] < expected - 1e-9 || arrays.a[i] > expected + 1e-9)
            fail("a[%zu] is %g, not %g", i, arrays.a[i], expected);
    printf("stream pages=%zu threads=%ld iterations=%ld a=%.6f\n", 3 * arrays.n_pages, n_threads, iterations,
           arrays.a[0]);
    return end_run(&run);
}
