// Records of 64 bytes behind a header, as a file format has them.
// Bad: the header has 60 bytes, so the key at the start of each record crosses a cache line. Good twin: --aligned, a header of 64.
//
// Options: --records N, --passes N, --aligned, --time, --hold-ms N.
//
// Known answer. In `sum_keys` all of records x passes loads of 8 bytes cross a line of 64 bytes, or none.
#include "workload.h"

OWN_FRAME static uint64_t sum_keys(const unsigned char *records, long count, uint64_t sum) {
    for (long i = 0; i < count; i++) {
        uint64_t key;
        memcpy(&key, records + 64 * i, 8);  // touch: here
        sum = (sum << 1 | sum >> 63) ^ key;
    }
    return sum;
}

int main(int argc, char **argv) {
    long records = 1 << 14, passes = 60;
    bool aligned = false;
    const struct option_spec options[] = {
        number_option("--records", &records, "records"),
        number_option("--passes", &passes, "passes over them"),
        flag_option("--aligned", &aligned, "a header of 64 bytes (good)"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    unsigned char *file = aligned_alloc(64, 64 * ((size_t)records + 2));
    if (!file) fail("no memory");
    memset(file, 0, 64 * ((size_t)records + 2));
    unsigned char *first = file + (aligned ? 64 : 60);
    for (long i = 0; i < records; i++) memcpy(first + 64 * i, &(uint64_t){(uint64_t)i * 0x9E3779B97F4A7C15u}, 8);
    uint64_t sum = 0;
    for (long pass = 0; pass < passes; pass++) sum = sum_keys(first, records, sum);
    printf("split_lines records=%ld sum=%llu\n", records, (unsigned long long)sum);
    free(file);
    return end_run(&run);
}
