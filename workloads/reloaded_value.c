// Scales an array by a factor. Bad: the factor is behind a pointer, and the stores might change it, so it is loaded for each number.
// Good twin: --local copies it before the loop.
//
// Options: --n N, --passes N, --local, --time, --hold-ms N.
//
// Known answer. Each of the passes loads and stores N numbers of 8 bytes; `scale_by_pointer` loads the factor N times a pass, always at
// one address, `scale_by_value` never.
#include "workload.h"

OWN_FRAME static void scale_by_pointer(uint64_t *to, const uint64_t *from, const uint64_t *factor, size_t n) {
    for (size_t i = 0; i < n; i++) {
        to[i] = from[i] * *factor;
        __asm__ volatile("" : : : "memory");  // no second version of the loop for arrays that do not overlap
    }
}
OWN_FRAME static void scale_by_value(uint64_t *to, const uint64_t *from, uint64_t factor, size_t n) {
    for (size_t i = 0; i < n; i++) {
        to[i] = from[i] * factor;
        __asm__ volatile("" : : : "memory");
    }
}

int main(int argc, char **argv) {
    long n = 1 << 14, passes = 40;
    bool local = false;
    const struct option_spec options[] = {
        number_option("--n", &n, "numbers"),
        number_option("--passes", &passes, "passes over them"),
        flag_option("--local", &local, "copy the factor before the loop"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(n >= 1, "--n must be at least 1");
    const size_t bytes = (size_t)n * sizeof(uint64_t);
    uint64_t *from = map_fresh(bytes), *to = map_fresh(bytes), *factor = map_fresh(sizeof *factor), sum = 0;
    *factor = 3;
    for (size_t i = 0; i < (size_t)n; i++) from[i] = i;
    for (long pass = 0; pass < passes; pass++) {
        if (local) scale_by_value(to, from, *factor, (size_t)n);
        else scale_by_pointer(to, from, factor, (size_t)n);
        sum += to[n - 1];
    }
    require(sum == (uint64_t)passes * 3 * (uint64_t)(n - 1), "the last number must be scaled");
    printf("reloaded_value n=%ld passes=%ld local=%d sum=%llu\n", n, passes, local, (unsigned long long)sum);
    return end_run(&run);
}
