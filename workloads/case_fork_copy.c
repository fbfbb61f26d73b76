// Copy on write: the parent touches N pages, forks, and the child writes M of them.
//
// Options: --pages N, --child-pages M, --parent-writes, --hold-ms N (in the parent, after the child), --time.
//
// Known answer. Parent: N first at `here` in touch_pages. Child: M copy at `here child` in write_in_child; its reads
// of the other N - M pages fault nothing. --parent-writes: when the child has gone the parent writes the N pages at
// `here parent`: the N pages are still write-protected, N upgrade; none is copied, the parent is the sole owner.
#include "workload.h"

#include <sys/wait.h>

OWN_FRAME static void touch_pages(volatile unsigned char *base, size_t n_pages) {
    for (size_t p = 0; p < n_pages; p++) base[p * page_bytes()] = 1;  // touch: here
}

OWN_FRAME static void write_in_child(volatile unsigned char *base, size_t n_pages) {
    for (size_t p = 0; p < n_pages; p++) base[p * page_bytes()] = 2;  // touch: here child
}

OWN_FRAME static void write_in_parent(volatile unsigned char *base, size_t n_pages) {
    for (size_t p = 0; p < n_pages; p++) base[p * page_bytes()] = 3;  // touch: here parent
}

int main(int argc, char **argv) {
    long n_pages = 256, n_child_pages = 64;
    bool parent_writes = false;
    const struct option_spec options[] = {
        number_option("--pages", &n_pages, "pages the parent touches"),
        number_option("--child-pages", &n_child_pages, "pages the child writes"),
        flag_option("--parent-writes", &parent_writes, "the parent writes all pages after the child has gone"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(n_pages >= 1 && n_child_pages <= n_pages, "--child-pages cannot be more than --pages");
    unsigned char *base = map_fresh((size_t)n_pages * page_bytes());
    touch_pages(base, (size_t)n_pages);
    pid_t child = fork();
    if (child < 0) fail("fork: %s", strerror(errno));
    if (child == 0) {
        write_in_child(base, (size_t)n_child_pages);
        uint64_t sum = sum_first_bytes(base, (size_t)n_pages);
        _exit(sum == (uint64_t)(n_pages + n_child_pages) ? 0 : 1);
    }
    int status;
    require(waitpid(child, &status, 0) == child && status == 0, "the child saw wrong bytes");
    require(sum_first_bytes(base, (size_t)n_pages) == (uint64_t)n_pages, "the child's writes reached the parent");
    if (parent_writes) write_in_parent(base, (size_t)n_pages);
    printf("case_fork_copy pages=%ld child_pages=%ld parent_writes=%d\n", n_pages, n_child_pages, parent_writes);
    return end_run(&run);
}
