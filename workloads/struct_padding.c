// A large static array of structs with holes between the fields.
// Bad: char, double, char, int, short: 32 bytes of which 16 are used. Good twin: --packed, the same fields by decreasing size, 16 bytes.
//
// Options: --passes N, --packed, --time, --hold-ms N.
//
// Known answer. 262,144 elements: 8 MiB of `loose` with 16 bytes of padding in each of 32, or 4 MiB of `tight` with none.
#include "workload.h"

enum { ELEMENTS = 1 << 18 };
static struct loose {
    char kind;
    double mass;
    char state;
    int cell;
    short flags;
} loose[ELEMENTS];
static struct tight {
    double mass;
    int cell;
    short flags;
    char kind, state;
} tight[ELEMENTS];
_Static_assert(sizeof(struct loose) == 32 && sizeof(struct tight) == 16, "the known answer is for these sizes");

OWN_FRAME static double sum_loose(void) {
    double sum = 0;
    for (long i = 0; i < ELEMENTS; i++) sum += loose[i].mass += loose[i].kind + 1;  // touch: here
    return sum;
}

OWN_FRAME static double sum_tight(void) {
    double sum = 0;
    for (long i = 0; i < ELEMENTS; i++) sum += tight[i].mass += tight[i].kind + 1;
    return sum;
}

int main(int argc, char **argv) {
    long passes = 20;
    bool packed = false;
    const struct option_spec options[] = {
        number_option("--passes", &passes, "passes over the array"),
        flag_option("--packed", &packed, "fields by decreasing size (good)"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    double sum = 0;
    for (long pass = 0; pass < passes; pass++) sum += packed ? sum_tight() : sum_loose();
    printf("struct_padding elements=%d sum=%.0f\n", ELEMENTS, sum);
    return end_run(&run);
}
