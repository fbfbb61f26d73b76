// Shared anonymous memory, touched by the parent, then by a child it forks.
//
// Options: --pages N, --child-reads, --hold-ms N (in the parent, after the child), --time.
//
// Known answer. Parent: N events at `here` in touch_pages, which place N pages. Child: fork copies no page-table
// entries of shared mappings, so its N writes fault again at `here child` in touch_in_child and place nothing: N
// events.
// --child-reads: ceil(N / R) events at `here child_read`, R pages of fault-around (16 of 4096 bytes; the mapping is
// 2 MiB-aligned). N pages exist in all.
#include "workload.h"

#include <sys/wait.h>

OWN_FRAME static void touch_pages(volatile unsigned char *base, size_t n_pages) {
    for (size_t p = 0; p < n_pages; p++) base[p * page_bytes()] = 1;  // touch: here
}

OWN_FRAME static void touch_in_child(volatile unsigned char *base, size_t n_pages) {
    for (size_t p = 0; p < n_pages; p++) base[p * page_bytes()] = 2;  // touch: here child
}

OWN_FRAME static uint64_t read_in_child(const volatile unsigned char *base, size_t n_pages) {
    uint64_t sum = 0;
    for (size_t p = 0; p < n_pages; p++) sum += base[p * page_bytes()];  // touch: here child_read
    return sum;
}

int main(int argc, char **argv) {
    long n_pages = 256;
    bool child_reads = false;
    const struct option_spec options[] = {
        number_option("--pages", &n_pages, "pages of the mapping"),
        flag_option("--child-reads", &child_reads, "the child reads instead of writing"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(n_pages >= 1, "--pages must be at least 1");
    size_t bytes = (size_t)n_pages * page_bytes();
    unsigned char *base = reserve_aligned(bytes, 2 * MIB);
    if (mmap(base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
        fail("mmap: %s", strerror(errno));
    (void)madvise(base, bytes, MADV_NOHUGEPAGE);
    touch_pages(base, (size_t)n_pages);
    pid_t child = fork();
    if (child < 0) fail("fork: %s", strerror(errno));
    if (child == 0) {
        if (child_reads) _exit(read_in_child(base, (size_t)n_pages) == (uint64_t)n_pages ? 0 : 1);
        touch_in_child(base, (size_t)n_pages);
        _exit(0);
    }
    int status;
    require(waitpid(child, &status, 0) == child && status == 0, "the child saw wrong bytes");
    uint64_t expected = (uint64_t)n_pages * (child_reads ? 1 : 2);
    require(sum_first_bytes(base, (size_t)n_pages) == expected, "the child's writes must reach the parent");
    printf("case_shared_anon pages=%ld child_reads=%d\n", n_pages, child_reads);
    return end_run(&run);
}
