// Who touches first owns the page. An array is touched first, then worker threads work on their own parts of it.
// Bad: --mode serial, the main thread touches all of it (on a NUMA machine every page lands on its node).
// Good twin: --mode parallel, each worker touches the part it will work on.
//
// Options: --mode serial|parallel, --mib N, --threads N, --iterations N, --time, --hold-ms N.
//
// Known answer. A = N MiB / P pages, in base pages (MADV_NOHUGEPAGE), touched first at the line marked below.
// serial: the main thread A, each worker 0. parallel: the main thread 0, worker-i (i+1) A / T - i A / T
// (divisions rounded down). The workers' later accesses fault nothing.
#include "workload.h"

static long mib = 128, n_threads = 2, iterations = 200;

struct array {
    uint64_t *words;
    size_t n_pages;
    bool touch_in_worker;
};

OWN_FRAME static void touch_words(uint64_t *words, size_t begin, size_t end) {
    KEEP_FRAME();
    for (size_t i = begin; i < end; i++) words[i] = i;  // touch: here
}

OWN_FRAME static void add_to_words(uint64_t *words, size_t begin, size_t end) {
    KEEP_FRAME();
    for (size_t i = begin; i < end; i++) words[i] += 3;
}

static void work(long thread_index, void *shared) {
    const struct array *array = shared;
    size_t words_per_page = page_bytes() / sizeof(uint64_t);
    size_t begin = part_begin(array->n_pages, thread_index, n_threads) * words_per_page;
    size_t end = part_begin(array->n_pages, thread_index + 1, n_threads) * words_per_page;
    if (array->touch_in_worker) touch_words(array->words, begin, end);
    for (long k = 0; k < iterations; k++) add_to_words(array->words, begin, end);
}

int main(int argc, char **argv) {
    const char *mode = "serial";
    const struct option_spec options[] = {
        text_option("--mode", &mode, "serial (bad) or parallel (good)"),
        number_option("--mib", &mib, "MiB of the array"),
        number_option("--threads", &n_threads, "worker threads"),
        number_option("--iterations", &iterations, "passes over the array"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    bool serial = !strcmp(mode, "serial");
    require(serial || !strcmp(mode, "parallel"), "--mode is serial or parallel");
    require(mib >= 1 && n_threads >= 1, "--mib and --threads must be at least 1");
    size_t bytes = (size_t)mib * MIB, n_words = bytes / sizeof(uint64_t);
    struct array array = {map_fresh(bytes), pages_in(bytes), !serial};
    if (serial) touch_words(array.words, 0, n_words);
    run_on_threads(n_threads, work, &array);
    for (size_t i = 0; i < n_words; i++)
        if (array.words[i] != i + 3 * (uint64_t)iterations) fail("word %zu is wrong", i);
    printf("first_touch pages=%zu mode=%s threads=%ld\n", array.n_pages, mode, n_threads);
    return end_run(&run);
}
