// Many threads, each touching pages of its own in one shared mapping.
//
// Options: --threads N, --pages K (a thread), --iterations N (passes after the first), --hold-ms N, --time.
//
// Known answer. T K pages touched first at the line marked below in touch_own_pages: K by each of worker-0 ...
// worker-(T-1), none by the main thread. Thread i has the pages [i K, (i+1) K) of the mapping. Later passes fault
// nothing.
#include "workload.h"

static long n_threads = 64, pages_per_thread = 256, iterations = 1;

OWN_FRAME static void touch_own_pages(volatile unsigned char *base, size_t n_pages, unsigned char value) {
    for (size_t p = 0; p < n_pages; p++) base[p * page_bytes()] = value;  // touch: here
}

static void work(long thread_index, void *shared) {
    unsigned char *base = (unsigned char *)shared + (size_t)(thread_index * pages_per_thread) * page_bytes();
    for (long pass = 0; pass < 1 + iterations; pass++)
        touch_own_pages(base, (size_t)pages_per_thread, (unsigned char)(1 + thread_index % 200));
}

int main(int argc, char **argv) {
    const struct option_spec options[] = {
        number_option("--threads", &n_threads, "worker threads"),
        number_option("--pages", &pages_per_thread, "pages of one thread"),
        number_option("--iterations", &iterations, "passes after the first"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(n_threads >= 1 && pages_per_thread >= 1, "--threads and --pages must be at least 1");
    size_t n_pages = (size_t)(n_threads * pages_per_thread);
    unsigned char *base = map_fresh(n_pages * page_bytes());
    run_on_threads(n_threads, work, base);
    for (size_t p = 0; p < n_pages; p++)
        if (base[p * page_bytes()] != 1 + p / (size_t)pages_per_thread % 200) fail("page %zu is not its thread's", p);
    printf("many_threads pages=%zu threads=%ld\n", n_pages, n_threads);
    return end_run(&run);
}
