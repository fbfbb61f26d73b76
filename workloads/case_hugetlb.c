// Explicit huge pages (MAP_HUGETLB), one touch each.
//
// Options: --huge-pages N, --hold-ms N, --time.
//
// Known answer. N events at the line marked below, each placing one huge page of H bytes (Hugepagesize in
// /proc/meminfo): pages = N H / P. None of it is in RSS. Prints `skipped:` and exits 77 when fewer than N huge pages
// are reserved
// (/proc/sys/vm/nr_hugepages).
#include "workload.h"

OWN_FRAME static void touch_huge_pages(volatile unsigned char *base, size_t n_huge_pages, size_t huge_bytes) {
    KEEP_FRAME();
    for (size_t i = 0; i < n_huge_pages; i++) base[i * huge_bytes] = 1;  // touch: here
}

static size_t huge_page_bytes(void) {
    FILE *meminfo = fopen("/proc/meminfo", "r");
    if (!meminfo) return 0;
    char line[256];
    size_t kib = 0;
    while (fgets(line, sizeof line, meminfo))
        if (sscanf(line, "Hugepagesize: %zu kB", &kib) == 1) break;
    fclose(meminfo);
    return kib * 1024;
}

int main(int argc, char **argv) {
    long n_huge_pages = 4;
    const struct option_spec options[] = {number_option("--huge-pages", &n_huge_pages, "huge pages to touch")};
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(n_huge_pages >= 1, "--huge-pages must be at least 1");
    size_t huge_bytes = huge_page_bytes();
    if (huge_bytes == 0) skip("this kernel has no explicit huge pages");
    size_t bytes = (size_t)n_huge_pages * huge_bytes;
    void *mapping = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    if (mapping == MAP_FAILED) skip("too few huge pages are reserved (/proc/sys/vm/nr_hugepages)");
    unsigned char *base = mapping;
    touch_huge_pages(base, (size_t)n_huge_pages, huge_bytes);
    for (long i = 0; i < n_huge_pages; i++) require(base[(size_t)i * huge_bytes] == 1, "a page lost its write");
    printf("case_hugetlb huge_pages=%ld pages=%zu\n", n_huge_pages, pages_in(bytes));
    return end_run(&run);
}
