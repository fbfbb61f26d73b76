// Threads that share a triangle: row i has i elements.
//
// Options: --n N (rows), --threads N, --iterations N, --even (rows dealt out in turn), --time, --hold-ms N.
//
// Known answer: the region `triangle` reads I N (N - 1) / 2 numbers of 8 bytes. In equal blocks of rows, thread t of T
// has the share (2 t + 1) / T²: the last one 2 - 1 / T times the mean. Dealt out in turn all have the same but for N / T rows.
#include "workload.h"

#include "../native/include/memlens.h"

static long n_rows = 3000, n_threads = 4, iterations = 10;
static bool is_even;

struct triangle {
    const uint64_t *numbers;
    uint64_t sum;
};

OWN_FRAME static uint64_t sum_row(const uint64_t *numbers, long row) {
    uint64_t sum = 0;
    for (long i = 0; i < row; i++) sum += numbers[i] ^ (uint64_t)row;
    return sum;
}

static void work(long thread_index, void *shared) {
    struct triangle *triangle = shared;
    uint64_t sum = 0;
    const long first = is_even ? thread_index : thread_index * n_rows / n_threads;
    const long end = is_even ? n_rows : (thread_index + 1) * n_rows / n_threads;
    for (long k = 0; k < iterations; k++)
        for (long row = first; row < end; row += is_even ? n_threads : 1) sum += sum_row(triangle->numbers, row);
    __atomic_fetch_add(&triangle->sum, sum, __ATOMIC_RELAXED);
}

int main(int argc, char **argv) {
    const struct option_spec options[] = {
        number_option("--n", &n_rows, "rows"),
        number_option("--threads", &n_threads, "threads"),
        number_option("--iterations", &iterations, "times"),
        flag_option("--even", &is_even, "deal rows out in turn"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(n_rows >= 1 && n_threads >= 1 && iterations >= 1, "--n, --threads and --iterations must be at least 1");
    uint64_t *numbers = map_fresh((size_t)n_rows * 8);
    for (long i = 0; i < n_rows; i++) numbers[i] = mix64((uint64_t)i);
    struct triangle triangle = {.numbers = numbers};
    memlens_begin("triangle");
    run_on_threads(n_threads, work, &triangle);
    memlens_end("triangle");
    printf("uneven_threads n=%ld threads=%ld sum=%llx\n", n_rows, n_threads, (unsigned long long)triangle.sum);
    return end_run(&run);
}
