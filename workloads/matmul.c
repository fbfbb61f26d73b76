// Blocked matrix product C = A B of square matrices of doubles.
//
// Options: --mib N (one matrix), --threads N, --iterations N, --time, --hold-ms N.
//
// Known answer. A matrix has side S = floor(sqrt(N MiB / 8)) rounded down to a multiple of 64. Three matrices of
// ceil(8 S^2 / P) pages are touched first, by the main thread, at the line marked below in fill_matrix.
// The entries are small integers, so sums are exact and C x = A (B x) must hold without rounding.
#include "workload.h"

enum { BLOCK = 64 };
static long mib = 8, n_threads = 2, iterations = 14;

struct product {
    double *a, *b, *c;
    size_t side;
};

OWN_FRAME static void fill_matrix(double *matrix, size_t side, unsigned seed) {
    KEEP_FRAME();
    for (size_t i = 0; i < side * side; i++) {
        double value = seed ? (double)(mix64(i + seed) % 8) : 0.0;
        ((volatile double *)matrix)[i] = value;  // touch: here
    }
}

OWN_FRAME static void multiply_block(double *restrict c, const double *restrict a, const double *restrict b,
                                     size_t side) {
    KEEP_FRAME();
    for (size_t i = 0; i < BLOCK; i++)
        for (size_t k = 0; k < BLOCK; k++) {
            double a_ik = a[i * side + k];
            for (size_t j = 0; j < BLOCK; j++) c[i * side + j] += a_ik * b[k * side + j];
        }
}

static void work(long thread_index, void *shared) {
    const struct product *p = shared;
    size_t n_blocks = p->side / BLOCK, side = p->side;
    size_t end = part_begin(n_blocks, thread_index + 1, n_threads);
    for (size_t i = part_begin(n_blocks, thread_index, n_threads); i < end; i++)
        for (size_t k = 0; k < n_blocks; k++)
            for (size_t j = 0; j < n_blocks; j++)
                multiply_block(p->c + (i * side + j) * BLOCK, p->a + (i * side + k) * BLOCK,
                               p->b + (k * side + j) * BLOCK, side);
}

static void multiply_vector(double *to, const double *matrix, const double *from, size_t side) {
    for (size_t i = 0; i < side; i++) {
        to[i] = 0;
        for (size_t j = 0; j < side; j++) to[i] += matrix[i * side + j] * from[j];
    }
}

int main(int argc, char **argv) {
    const struct option_spec options[] = {
        number_option("--mib", &mib, "MiB of one of the three matrices"),
        number_option("--threads", &n_threads, "worker threads"),
        number_option("--iterations", &iterations, "products added into C"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    size_t side = 0;
    while ((side + BLOCK) * (side + BLOCK) <= (size_t)mib * MIB / sizeof(double)) side += BLOCK;
    require(side > 0 && n_threads >= 1, "--mib and --threads must be at least 1");
    size_t bytes = side * side * sizeof(double);
    struct product p = {.a = map_fresh(bytes), .b = map_fresh(bytes), .c = map_fresh(bytes), .side = side};
    fill_matrix(p.a, side, 1);
    fill_matrix(p.b, side, 2);
    fill_matrix(p.c, side, 0);
    begin_lap();
    for (long i = 0; i < iterations; i++) {
        run_on_threads(n_threads, work, &p);
        end_lap();
    }

    double *vectors = calloc(4 * side, sizeof *vectors);
    require(vectors != NULL, "out of memory");
    double *x = vectors, *bx = x + side, *abx = bx + side, *cx = abx + side;
    for (size_t i = 0; i < side; i++) x[i] = (double)(mix64(i) % 4);
    multiply_vector(bx, p.b, x, side);
    multiply_vector(abx, p.a, bx, side);
    multiply_vector(cx, p.c, x, side);
    for (size_t i = 0; i < side; i++)
        if (cx[i] != abx[i] * (double)iterations) fail("row %zu of the product is wrong", i);
    printf("matmul pages=%zu side=%zu threads=%ld products=%ld cx0=%.0f\n", 3 * pages_in(bytes), side, n_threads,
           iterations, cx[0]);
    free(vectors);
    return end_run(&run);
}
