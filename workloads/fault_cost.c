// What one first touch costs: touches fresh base pages and nothing else, and writes nanoseconds a fault to a file.
//
// Options: --pages N, --iterations N (fresh mappings of N pages; the fastest counts), --output FILE, --time,
// --hold-ms N.
//
// Known answer. N * I first touches by the main thread at the line marked below in touch_fresh, no other work between
// them. FILE gets one line, `ns_per_fault=X`; mapping and unmapping are outside the time.
#include "workload.h"

static long n_pages = 65536, iterations = 8;

OWN_FRAME static void touch_fresh(volatile unsigned char *base, size_t n, size_t stride_bytes) {
    KEEP_FRAME();
    for (size_t p = 0; p < n; p++) base[p * stride_bytes] = 1;  // touch: here
}

int main(int argc, char **argv) {
    const char *output = "";
    const struct option_spec options[] = {
        number_option("--pages", &n_pages, "pages of one mapping"),
        number_option("--iterations", &iterations, "mappings"),
        text_option("--output", &output, "file for ns_per_fault=X"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(n_pages >= 1 && iterations >= 1, "--pages and --iterations must be at least 1");
    size_t bytes = (size_t)n_pages * page_bytes();
    double best_s = 0;
    for (long i = 0; i < iterations; i++) {
        unsigned char *base = map_fresh(bytes);
        double begin_s = now_s();
        touch_fresh(base, (size_t)n_pages, page_bytes());
        double elapsed_s = now_s() - begin_s;
        if (i == 0 || elapsed_s < best_s) best_s = elapsed_s;
        require(sum_first_bytes(base, (size_t)n_pages) == (uint64_t)n_pages, "a page lost its write");
        munmap(base, bytes);
    }
    if (*output) {
        FILE *file = fopen(output, "w");
        if (!file) fail("cannot write %s: %s", output, strerror(errno));
        fprintf(file, "ns_per_fault=%.1f\n", best_s * 1e9 / (double)n_pages);
        if (fclose(file)) fail("cannot write %s: %s", output, strerror(errno));
    }
    printf("fault_cost pages=%ld mappings=%ld\n", n_pages, iterations);
    return end_run(&run);
}
