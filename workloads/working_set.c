// Adds up an array again and again. Bad: pass after pass over all of it, a little more than a cache holds.
// Good twin: --blocked makes all passes over a block of 4 KiB before the next.
//
// Options: --kib N (the array), --passes N, --blocked, --time, --hold-ms N.
//
// Known answer. `add_up` loads N KiB / 8 numbers in each of the passes. In a fully associative LRU cache of less than N KiB each line misses
// in every pass, in a larger one only in the first: the reuse distance of a line is N KiB / 64 − 1 lines, with --blocked 63.
#include "workload.h"

enum { BLOCK_BYTES = 4096 };

OWN_FRAME static uint64_t add_up(const uint64_t *numbers, size_t n, long passes) {
    uint64_t sum = 0;
    for (long pass = 0; pass < passes; pass++)
        for (size_t i = 0; i < n; i++) {
            sum += numbers[i];
            __asm__ volatile("" : "+r"(sum));  // a pass is a pass: not one pass times their number
        }
    return sum;
}

int main(int argc, char **argv) {
    long kib = 40, passes = 200;
    bool blocked = false;
    const struct option_spec options[] = {
        number_option("--kib", &kib, "KiB of the array, a multiple of 4"),
        number_option("--passes", &passes, "passes over it"),
        flag_option("--blocked", &blocked, "all passes over a block before the next"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(kib >= 4 && kib % 4 == 0 && passes >= 1, "--kib must be a multiple of 4, --passes at least 1");
    const size_t bytes = (size_t)kib << 10, n = bytes / sizeof(uint64_t);
    uint64_t *numbers = map_fresh(bytes);
    for (size_t i = 0; i < n; i++) numbers[i] = i;
    uint64_t sum = 0;
    if (blocked)
        for (size_t i = 0; i < n; i += BLOCK_BYTES / sizeof(uint64_t))
            sum += add_up(numbers + i, BLOCK_BYTES / sizeof(uint64_t), passes);
    else sum = add_up(numbers, n, passes);
    require(sum == (uint64_t)passes * n * (n - 1) / 2, "the sum must be that of all passes");
    printf("working_set kib=%ld passes=%ld blocked=%d sum=%llu\n", kib, passes, blocked, (unsigned long long)sum);
    return end_run(&run);
}
