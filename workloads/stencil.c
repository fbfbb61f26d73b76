// 2-D five-point stencil (Jacobi): each sweep writes the mean of the four neighbours into the other grid.
//
// Options: --mib N (one grid), --threads N, --iterations N, --time, --hold-ms N.
//
// Known answer. A grid is S x S doubles, S = floor(sqrt(N MiB / 8)) rounded down to a multiple of P / 8, so a row is
// whole pages. 2 * 8 S^2 / P pages are touched first at the line marked below in fill_rows: worker-i those of the
// rows [i S / T, (i+1) S / T). u(x, y) = x + 2 y is its own mean of neighbours, so no sweep changes a value.
#include "workload.h"

static long mib = 64, n_threads = 2, iterations = 300;

struct grids {
    double *from, *to;
    size_t side;
    pthread_barrier_t barrier;
};

OWN_FRAME static void fill_rows(double *grid, size_t side, size_t begin_row, size_t end_row) {
    KEEP_FRAME();
    for (size_t y = begin_row; y < end_row; y++)
        for (size_t x = 0; x < side; x++) grid[y * side + x] = (double)(x + 2 * y);  // touch: here
}

OWN_FRAME static void sweep_rows(double *restrict to, const double *restrict from, size_t side, size_t begin_row,
                                 size_t end_row) {
    KEEP_FRAME();
    for (size_t y = begin_row; y < end_row; y++) {
        const double *row = from + y * side;
        for (size_t x = 1; x + 1 < side; x++)
            to[y * side + x] = 0.25 * (row[x - 1] + row[x + 1] + row[x - side] + row[x + side]);
    }
}

static void work(long thread_index, void *shared) {
    struct grids *grids = shared;
    size_t side = grids->side;
    size_t begin = part_begin(side, thread_index, n_threads), end = part_begin(side, thread_index + 1, n_threads);
    double *from = grids->from, *to = grids->to;
    fill_rows(from, side, begin, end);
    fill_rows(to, side, begin, end);
    if (begin == 0) begin = 1;  // the border is fixed
    if (end == side) end = side - 1;
    if (thread_index == 0) begin_lap();
    for (long k = 0; k < iterations; k++) {
        pthread_barrier_wait(&grids->barrier);
        sweep_rows(to, from, side, begin, end);
        double *other = from;
        from = to;
        to = other;
        if (thread_index == 0) end_lap();
    }
}

int main(int argc, char **argv) {
    const struct option_spec options[] = {
        number_option("--mib", &mib, "MiB of one of the two grids"),
        number_option("--threads", &n_threads, "worker threads"),
        number_option("--iterations", &iterations, "sweeps"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(n_threads >= 1, "--threads must be at least 1");
    size_t doubles_per_page = page_bytes() / sizeof(double), side = 0;
    while ((side + doubles_per_page) * (side + doubles_per_page) <= (size_t)mib * MIB / sizeof(double))
        side += doubles_per_page;
    if (side == 0) fail("--mib %ld is less than one grid of %zu x %zu", mib, doubles_per_page, doubles_per_page);
    size_t bytes = side * side * sizeof(double);
    struct grids grids = {.from = map_fresh(bytes), .to = map_fresh(bytes), .side = side};
    pthread_barrier_init(&grids.barrier, NULL, (unsigned)n_threads);
    run_on_threads(n_threads, work, &grids);

    for (size_t y = 0; y < side; y++)
        for (size_t x = 0; x < side; x++) {
            double expected = (double)(x + 2 * y);
            if (grids.from[y * side + x] != expected || grids.to[y * side + x] != expected)
                fail("wrong value at x=%zu y=%zu", x, y);
        }
    printf("stencil pages=%zu side=%zu threads=%ld sweeps=%ld\n", 2 * pages_in(bytes), side, n_threads, iterations);
    return end_run(&run);
}
