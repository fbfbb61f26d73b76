// Transparent huge pages: 2 MiB-aligned memory with MADV_HUGEPAGE, one touch every 2 MiB.
//
// Options: --huge-pages N, --hold-ms N, --time.
//
// Known answer. N events at the line marked below, each placing 2 MiB (512 pages of 4096 bytes): pages = N 2 MiB / P.
// Prints `skipped:` and exits 77 when the kernel did not grant all N (AnonHugePages in /proc/self/smaps).
#include "workload.h"

OWN_FRAME static void touch_huge_pages(volatile unsigned char *base, size_t n_huge_pages) {
    KEEP_FRAME();
    for (size_t i = 0; i < n_huge_pages; i++) base[i * 2 * MIB] = 1;  // touch: here
}

// AnonHugePages of the mapping that contains `address`.
static size_t granted_bytes(const void *address) {
    FILE *smaps = fopen("/proc/self/smaps", "r");
    if (!smaps) return 0;
    char line[512];
    bool inside = false;
    size_t kib = 0;
    while (fgets(line, sizeof line, smaps)) {
        unsigned long begin, end;
        if (sscanf(line, "%lx-%lx ", &begin, &end) == 2)
            inside = begin <= (uintptr_t)address && (uintptr_t)address < end;
        if (inside && sscanf(line, "AnonHugePages: %zu kB", &kib) == 1) break;
    }
    fclose(smaps);
    return kib * 1024;
}

int main(int argc, char **argv) {
    long n_huge_pages = 8;
    const struct option_spec options[] = {number_option("--huge-pages", &n_huge_pages, "touches, 2 MiB apart")};
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(n_huge_pages >= 1, "--huge-pages must be at least 1");
    size_t bytes = (size_t)n_huge_pages * 2 * MIB;
    unsigned char *base = reserve_aligned(bytes, 2 * MIB);
    if (mprotect(base, bytes, PROT_READ | PROT_WRITE)) fail("mprotect: %s", strerror(errno));
    if (madvise(base, bytes, MADV_HUGEPAGE)) skip("this kernel has no transparent huge pages");
    touch_huge_pages(base, (size_t)n_huge_pages);
    if (granted_bytes(base) < bytes) skip("transparent huge pages are not granted here");
    for (long i = 0; i < n_huge_pages; i++) require(base[(size_t)i * 2 * MIB] == 1, "a page lost its write");
    printf("case_thp huge_pages=%ld pages=%zu\n", n_huge_pages, pages_in(bytes));
    return end_run(&run);
}
