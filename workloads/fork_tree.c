// A tree of processes: each one forks W children down to depth D, touches its own K pages and exits with a status
// that its parent checks.
//
// Options: --width W, --depth D, --pages K, --hold-ms N (the root), --time.
//
// Known answer. 1 + W + W^2 + ... + W^D processes, the root included (--width 199 --depth 1: 200; 14 and 2: 211).
// Each touches K fresh pages first at the line marked below in touch_own_pages. Child i of a parent exits with status
// 1 + i mod 7; the root exits 0. A process starts all its children before it waits for one: they may all live at
// once.
#include "workload.h"

#include <sys/wait.h>

static long width = 3, depth = 2, n_pages = 16;

OWN_FRAME static void touch_own_pages(volatile unsigned char *base, size_t n) {
    for (size_t p = 0; p < n; p++) base[p * page_bytes()] = 1;  // touch: here
}

// Runs this process's part of the tree; false when a descendant misbehaved. Each process reports itself with a byte
// in the pipe, which the root counts: unlike a shared counter this adds no page faults.
static bool grow_tree(long level, int report_fd) {
    bool is_good = true;
    pid_t children[4096];
    for (long i = 0; level < depth && i < width; i++) {
        children[i] = fork();
        if (children[i] < 0) fail("fork: %s", strerror(errno));
        if (children[i] == 0) _exit(grow_tree(level + 1, report_fd) ? (int)(1 + i % 7) : 99);
    }
    unsigned char *base = map_fresh((size_t)n_pages * page_bytes());
    touch_own_pages(base, (size_t)n_pages);
    is_good = is_good && sum_first_bytes(base, (size_t)n_pages) == (uint64_t)n_pages && write(report_fd, "p", 1) == 1;
    for (long i = 0; level < depth && i < width; i++) {
        int status;
        is_good = waitpid(children[i], &status, 0) == children[i] && WIFEXITED(status) &&
                  WEXITSTATUS(status) == 1 + i % 7 && is_good;
    }
    return is_good;
}

int main(int argc, char **argv) {
    const struct option_spec options[] = {
        number_option("--width", &width, "children of a process"),
        number_option("--depth", &depth, "generations below the root"),
        number_option("--pages", &n_pages, "pages each process touches"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(n_pages >= 1 && width >= 1 && width <= 4096, "--pages from 1, --width from 1 to 4096");
    long n_processes = 1, of_level = 1;
    for (long level = 0; level < depth; level++) {
        of_level *= width;
        n_processes += of_level;
        require(n_processes <= 60000, "more than 60000 processes");  // the pipe holds 65536 bytes
    }
    int report[2];
    if (pipe(report)) fail("pipe: %s", strerror(errno));
    require(grow_tree(0, report[1]), "a child failed");
    close(report[1]);
    long n_reported = 0;
    char byte;
    while (read(report[0], &byte, 1) == 1) n_reported++;
    if (n_reported != n_processes) fail("%ld of %ld processes reported", n_reported, n_processes);
    printf("fork_tree processes=%ld pages=%ld pages_in_all=%ld\n", n_processes, n_pages, n_processes * n_pages);
    return end_run(&run);
}
