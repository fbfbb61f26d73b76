// A look-up through a table of 64 entries, twice for each value.
// Bad: the table is a local array that each call fills anew. Good twin: --static, it is filled once.
//
// Options: --values N, --static, --time, --hold-ms N.
//
// Known answer. Each call of `look_up_local` stores 64 entries of 4 bytes to its stack; `look_up_static` stores none.
#include "workload.h"

enum { ENTRIES = 64 };
static unsigned table[ENTRIES];

static inline void fill(unsigned *entries, unsigned key) {
    for (unsigned i = 0; i < ENTRIES; i++) entries[i] = i * 7 ^ key;
}

OWN_FRAME static unsigned look_up_local(unsigned value, unsigned key) {
    unsigned local[ENTRIES];
    fill(local, key);
    __asm__ volatile("" : : "r"(local) : "memory");  // all of it, not just what is looked up
    return local[value % ENTRIES] + local[value / ENTRIES % ENTRIES];
}

OWN_FRAME static unsigned look_up_static(unsigned value) {
    return table[value % ENTRIES] + table[value / ENTRIES % ENTRIES];
}

int main(int argc, char **argv) {
    long values = 100000;
    bool is_static = false;
    const struct option_spec options[] = {
        number_option("--values", &values, "values to look up"),
        flag_option("--static", &is_static, "a table that is filled once (good)"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    fill(table, 5);
    unsigned long sum = 0;
    for (long i = 0; i < values; i++) sum += is_static ? look_up_static((unsigned)i) : look_up_local((unsigned)i, 5);
    printf("stack_traffic values=%ld sum=%lu\n", values, sum);
    return end_run(&run);
}
