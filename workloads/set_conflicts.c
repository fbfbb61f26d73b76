// Sums a matrix by columns. Bad: rows are 4096 bytes apart, so that a column lies in one set of a cache whose ways are a page large.
// Good twin: --padded has rows 4160 bytes apart.
//
// Options: --rows N, --columns N (at most 512), --passes N, --padded, --time, --hold-ms N.
//
// Known answer. `sum_columns` loads rows × columns × passes numbers of 8 bytes, one row apart. A column of up to as many rows as the first
// cache has lines fits into it; bad: its lines share one set, so with more rows than ways every load misses; padded: one in 8.
#include "workload.h"

enum { PITCH = 4096, MOST_COLUMNS = PITCH / sizeof(uint64_t) };

OWN_FRAME static uint64_t sum_columns(const uint64_t *matrix, size_t rows, size_t columns, size_t pitch) {
    uint64_t sum = 0;
    for (size_t column = 0; column < columns; column++)
        for (size_t row = 0; row < rows; row++) sum += matrix[row * pitch + column];
    return sum;
}

int main(int argc, char **argv) {
    long rows = 64, columns = MOST_COLUMNS, passes = 20;
    bool padded = false;
    const struct option_spec options[] = {
        number_option("--rows", &rows, "rows"),
        number_option("--columns", &columns, "columns, at most 512"),
        number_option("--passes", &passes, "sums"),
        flag_option("--padded", &padded, "rows one line further apart"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(rows >= 1 && columns >= 1 && columns <= MOST_COLUMNS, "--rows must be at least 1, --columns from 1 to 512");
    const size_t pitch = (PITCH + (padded ? 64 : 0)) / sizeof(uint64_t);
    uint64_t *matrix = map_fresh((size_t)rows * pitch * sizeof *matrix);
    for (size_t row = 0; row < (size_t)rows; row++)
        for (size_t column = 0; column < (size_t)columns; column++) matrix[row * pitch + column] = row + column;
    uint64_t sum = 0;
    for (long pass = 0; pass < passes; pass++) {
        sum += sum_columns(matrix, (size_t)rows, (size_t)columns, pitch);
        __asm__ volatile("" : : : "memory");  // each pass for itself
    }
    const uint64_t expected =
        (uint64_t)passes * (uint64_t)rows * (uint64_t)columns * (uint64_t)(rows + columns - 2) / 2;
    require(sum == expected, "the sum must be that of all numbers");
    printf("set_conflicts rows=%ld columns=%ld passes=%ld padded=%d sum=%llu\n", rows, columns, passes, padded,
           (unsigned long long)sum);
    return end_run(&run);
}
