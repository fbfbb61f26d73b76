// Reads every page of fresh memory, then writes every page. A read maps the shared zero page; the write replaces it.
//
// Options: --pages N, --hold-ms N, --time.
//
// Known answer. N first at `here` in read_pages, and N upgrade at `here upgrade` in write_pages: 2 N events, N pages.
// After the reads alone the process owns none of the N pages (its RSS has not grown).
#include "workload.h"

OWN_FRAME static uint64_t read_pages(const volatile unsigned char *base, size_t n_pages) {
    uint64_t sum = 0;
    for (size_t p = 0; p < n_pages; p++) sum += base[p * page_bytes()];  // touch: here
    return sum;
}

OWN_FRAME static void write_pages(volatile unsigned char *base, size_t n_pages) {
    for (size_t p = 0; p < n_pages; p++) base[p * page_bytes()] = 1;  // touch: here upgrade
}

int main(int argc, char **argv) {
    long n_pages = 256;
    const struct option_spec options[] = {number_option("--pages", &n_pages, "pages of the mapping")};
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(n_pages >= 1, "--pages must be at least 1");
    unsigned char *base = map_fresh((size_t)n_pages * page_bytes());
    require(read_pages(base, (size_t)n_pages) == 0, "fresh memory must be zero");
    write_pages(base, (size_t)n_pages);
    require(sum_first_bytes(base, (size_t)n_pages) == (uint64_t)n_pages, "a page lost its write");
    printf("case_read_then_write pages=%ld\n", n_pages);
    return end_run(&run);
}
