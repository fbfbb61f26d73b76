// MAP_POPULATE: mmap itself places the pages; the touches that follow fault nothing.
//
// Options: --pages N, --hold-ms N, --time.
//
// Known answer. N pages placed by the kernel, without any event (populating does not fault); 0 events at the line
// marked below.
#include "workload.h"

OWN_FRAME static void touch_populated(volatile unsigned char *base, size_t n_pages) {
    for (size_t p = 0; p < n_pages; p++) base[p * page_bytes()] = 1;  // touch: here
}

int main(int argc, char **argv) {
    long n_pages = 256;
    const struct option_spec options[] = {number_option("--pages", &n_pages, "pages of the mapping")};
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(n_pages >= 1, "--pages must be at least 1");
    size_t bytes = (size_t)n_pages * page_bytes();
    unsigned char *base = map_or_fail(bytes, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1);
    require(resident_pages(base, bytes) == (size_t)n_pages, "mmap must have placed every page");
    touch_populated(base, (size_t)n_pages);
    require(sum_first_bytes(base, (size_t)n_pages) == (uint64_t)n_pages, "a page lost its write");
    printf("case_populate pages=%ld\n", n_pages);
    return end_run(&run);
}
