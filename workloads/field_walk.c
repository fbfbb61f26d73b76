// Walks an array of records for one field of each. Bad: whole records, one cache line each, of which 8 bytes are used.
// Good twin: --split keeps the field in an array of its own.
//
// Options: --records N (at most 65536), --passes N, --split, --time, --hold-ms N.
//
// Known answer. `sum_masses` loads records × passes numbers of 8 bytes, 64 bytes apart (8 of each line's 64 bytes, field `mass` at
// offset 24 of `struct body`), with --split 8 bytes apart. The sum is passes · N (N − 1) / 2.
#include "workload.h"

enum { MOST_RECORDS = 1 << 16 };
struct body {
    double position[3];
    uint64_t mass;
    double velocity[3];
    uint64_t id;
};
_Alignas(64) static struct body bodies[MOST_RECORDS];
_Alignas(64) static uint64_t masses[MOST_RECORDS];

OWN_FRAME static uint64_t sum_masses(const uint64_t *first, size_t n, size_t step) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += first[i * step];
        __asm__ volatile("" : "+r"(sum));  // one load at a time in both twins
    }
    return sum;
}

int main(int argc, char **argv) {
    long records = 1 << 14, passes = 40;
    bool split = false;
    const struct option_spec options[] = {
        number_option("--records", &records, "records"),
        number_option("--passes", &passes, "walks over all of them"),
        flag_option("--split", &split, "the field in an array of its own"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(records >= 1 && records <= MOST_RECORDS, "--records must be from 1 to 65536");
    for (long i = 0; i < records; i++) {
        if (split) masses[i] = (uint64_t)i;
        else bodies[i] = (struct body){.mass = (uint64_t)i, .id = (uint64_t)i};
    }
    uint64_t sum = 0;
    for (long pass = 0; pass < passes; pass++)
        sum += split ? sum_masses(masses, (size_t)records, 1)
                     : sum_masses(&bodies[0].mass, (size_t)records, sizeof *bodies / sizeof bodies->mass);
    require(sum == (uint64_t)passes * (uint64_t)records * (uint64_t)(records - 1) / 2,
            "the sum must be that of all records");
    printf("field_walk records=%ld passes=%ld split=%d sum=%llu\n", records, passes, split, (unsigned long long)sum);
    return end_run(&run);
}
