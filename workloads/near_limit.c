// Grows to N MiB in 16 equal steps and holds there: run it under a memory limit a little above N MiB.
//
// Options: --mib N, --grow-ms N (spread over the steps), --hold-ms N (at full size, default 0), --time.
//
// Known answer. A = N MiB / P pages touched first by the main thread at the line marked below in grow; resident
// memory is a staircase of 16 steps, then flat at A pages plus the C library's own for --hold-ms.
#include "workload.h"

enum { N_STEPS = 16 };

OWN_FRAME static void grow(volatile unsigned char *base, size_t begin_page, size_t end_page) {
    for (size_t p = begin_page; p < end_page; p++) base[p * page_bytes()] = 1;  // touch: here
}

int main(int argc, char **argv) {
    long mib = 256, grow_ms = 160;
    const struct option_spec options[] = {
        number_option("--mib", &mib, "MiB at the end"),
        number_option("--grow-ms", &grow_ms, "time the growth is spread over"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(mib >= 1, "--mib must be at least 1");
    size_t n_pages = pages_in((size_t)mib * MIB);
    unsigned char *base = map_fresh((size_t)mib * MIB);
    for (long step = 0; step < N_STEPS; step++) {
        grow(base, part_begin(n_pages, step, N_STEPS), part_begin(n_pages, step + 1, N_STEPS));
        sleep_ms(grow_ms / N_STEPS);
    }
    require(sum_first_bytes(base, n_pages) == n_pages, "a page lost its write");
    printf("near_limit pages=%zu\n", n_pages);
    return end_run(&run);
}
