// mremap to twice the size at another address: touched pages move without a fault, the new half is fresh.
//
// Options: --pages N, --hold-ms N, --time.
//
// Known answer. N first at `here` in touch_pages, at the old addresses. Writing all 2 N pages at the new addresses
// then gives N first, the upper half only, at `here moved` in touch_moved. The N moved pages are present at new
// addresses at which no event was seen: they were not placed by the kernel there, they moved. 2 N pages, 2 N events.
#include "workload.h"

OWN_FRAME static void touch_pages(volatile unsigned char *base, size_t n_pages) {
    for (size_t p = 0; p < n_pages; p++) base[p * page_bytes()] = 1;  // touch: here
}

OWN_FRAME static void touch_moved(volatile unsigned char *base, size_t n_pages) {
    for (size_t p = 0; p < n_pages; p++) base[p * page_bytes()] = 3;  // touch: here moved
}

int main(int argc, char **argv) {
    long n_pages = 256;
    const struct option_spec options[] = {
        number_option("--pages", &n_pages, "pages before the move; twice as many after")};
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(n_pages >= 1, "--pages must be at least 1");
    size_t bytes = (size_t)n_pages * page_bytes();
    unsigned char *old_base = map_fresh(bytes);
    touch_pages(old_base, (size_t)n_pages);
    unsigned char *target = map_fresh(2 * bytes);  // MREMAP_FIXED replaces it: the move is certain
    unsigned char *base = mremap(old_base, bytes, 2 * bytes, MREMAP_MAYMOVE | MREMAP_FIXED, target);
    if (base == MAP_FAILED) fail("mremap: %s", strerror(errno));
    require(resident_pages(base, 2 * bytes) == (size_t)n_pages, "the touched pages must have moved, and no others");
    touch_moved(base, 2 * (size_t)n_pages);
    require(sum_first_bytes(base, 2 * (size_t)n_pages) == 6 * (uint64_t)n_pages, "a page lost its write");
    printf("case_mremap pages=%ld\n", 2 * n_pages);
    return end_run(&run);
}
