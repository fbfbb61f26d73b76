// A dot product, which a compiler may not vectorise: the order of floating-point additions is part of its result.
//
// Options: --n N (elements), --iterations N, --lanes (sixteen sums of their own), --time, --hold-ms N.
//
// Known answer: each of I products reads 2 N numbers of 4 bytes, one at a time; with --lanes several at a time.
#include "workload.h"

static long n_items = 1 << 16, iterations = 400;
static bool is_laned;
#define LANES 16

OWN_FRAME static float dot_in_order(const float *a, const float *b, long n) {
    float sum = 0;
    for (long i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

OWN_FRAME static float dot_in_lanes(const float *a, const float *b, long n) {
    float sums[LANES] = {0}, sum = 0;
    for (long i = 0; i + LANES <= n; i += LANES)
        for (long lane = 0; lane < LANES; lane++) sums[lane] += a[i + lane] * b[i + lane];
    for (long lane = 0; lane < LANES; lane++) sum += sums[lane];
    return sum;
}

int main(int argc, char **argv) {
    const struct option_spec options[] = {
        number_option("--n", &n_items, "elements"),
        number_option("--iterations", &iterations, "products"),
        flag_option("--lanes", &is_laned, "sixteen sums of their own"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(n_items >= LANES && iterations >= 1, "--n must be at least 16, --iterations at least 1");
    float *a = map_fresh((size_t)n_items * 4), *b = map_fresh((size_t)n_items * 4), sum = 0;
    for (long i = 0; i < n_items; i++) {
        a[i] = (float)(i % 7);
        b[i] = 1;
    }
    for (long k = 0; k < iterations; k++) {
        a[k % n_items] += 1;
        sum += is_laned ? dot_in_lanes(a, b, n_items) : dot_in_order(a, b, n_items);
    }
    printf("scalar_floats n=%ld products=%ld sum=%g\n", n_items, iterations, (double)sum);
    return end_run(&run);
}
