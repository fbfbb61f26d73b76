// Touches pages, gives them back with MADV_DONTNEED, and touches the same addresses again.
//
// Options: --pages N, --hold-ms N, --time.
//
// Known answer. N first at `here` in touch_pages and N again at `here again` in touch_pages_again: 2 N events, N
// pages.
#include "workload.h"

OWN_FRAME static void touch_pages(volatile unsigned char *base, size_t n_pages) {
    for (size_t p = 0; p < n_pages; p++) base[p * page_bytes()] = 1;  // touch: here
}

OWN_FRAME static void touch_pages_again(volatile unsigned char *base, size_t n_pages) {
    for (size_t p = 0; p < n_pages; p++) base[p * page_bytes() + 1] = 2;  // touch: here again
}

int main(int argc, char **argv) {
    long n_pages = 256;
    const struct option_spec options[] = {number_option("--pages", &n_pages, "pages of the mapping")};
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(n_pages >= 1, "--pages must be at least 1");
    size_t bytes = (size_t)n_pages * page_bytes();
    unsigned char *base = map_fresh(bytes);
    touch_pages(base, (size_t)n_pages);
    if (madvise(base, bytes, MADV_DONTNEED)) fail("madvise: %s", strerror(errno));
    require(resident_pages(base, bytes) == 0, "MADV_DONTNEED must have freed every page");
    touch_pages_again(base, (size_t)n_pages);
    require(sum_first_bytes(base, (size_t)n_pages) == 0, "the first writes must be gone");
    require(sum_first_bytes(base + 1, (size_t)n_pages) == 2 * (uint64_t)n_pages, "a page lost its write");
    printf("case_dontneed pages=%ld\n", n_pages);
    return end_run(&run);
}
