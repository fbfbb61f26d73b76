// Replaces itself with exec K times, in one process, then touches pages.
//
// Options: --hops K, --pages N, --hold-ms N, --time (of the last image).
//
// Known answer. One process, K + 1 images of the same program. N pages touched first at the line marked below, by the
// last image only; one line on stdout. Pages of earlier images are gone.
#include "workload.h"

OWN_FRAME static void touch_pages(volatile unsigned char *base, size_t n_pages) {
    for (size_t p = 0; p < n_pages; p++) base[p * page_bytes()] = 1;  // touch: here
}

int main(int argc, char **argv) {
    long n_hops = 3, n_hops_done = 0, n_pages = 256;
    const struct option_spec options[] = {
        number_option("--hops", &n_hops, "times to exec"),
        number_option("--pages", &n_pages, "pages the last image touches"),
        number_option("--hops-done", &n_hops_done, "set by the program itself"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(n_pages >= 1, "--pages must be at least 1");
    if (n_hops_done < n_hops) {
        // The same arguments, with the count of hops done as the last two.
        char next[24];
        snprintf(next, sizeof next, "%ld", n_hops_done + 1);
        char **arguments = calloc((size_t)argc + 3, sizeof *arguments);
        require(arguments != NULL, "out of memory");
        for (int a = 0; a < argc; a++) arguments[a] = argv[a];
        int n_arguments = argc;
        if (n_hops_done > 0) n_arguments -= 2;  // the count of the hop before
        arguments[n_arguments] = (char *)"--hops-done";
        arguments[n_arguments + 1] = next;
        char path[4096];  // by name: exec of /proc/self/exe itself would name the process "exe"
        ssize_t n_path_bytes = readlink("/proc/self/exe", path, sizeof path - 1);
        if (n_path_bytes < 0) fail("/proc/self/exe: %s", strerror(errno));
        path[n_path_bytes] = 0;
        execv(path, arguments);
        fail("exec: %s", strerror(errno));
    }
    unsigned char *base = map_fresh((size_t)n_pages * page_bytes());
    touch_pages(base, (size_t)n_pages);
    require(sum_first_bytes(base, (size_t)n_pages) == (uint64_t)n_pages, "a page lost its write");
    printf("exec_chain pages=%ld images=%ld\n", n_pages, n_hops_done + 1);
    return end_run(&run);
}
