// Looks for a byte that is not there, with a function of the C library or with its own loop.
//
// Options: --n N (bytes), --iterations N, --own, --time, --hold-ms N.
//
// Known answer: I searches read N bytes each, in the library, where no compiled-in counter sees them, or in find_own.
#include "workload.h"

static long n_bytes = 1 << 20, iterations = 2000;
static bool is_own;

OWN_FRAME static size_t find_own(const char *text, char wanted) {
    size_t at = 0;
    while (text[at] != wanted && text[at] != '\0') at++;
    return at;
}

int main(int argc, char **argv) {
    const struct option_spec options[] = {
        number_option("--n", &n_bytes, "bytes"),
        number_option("--iterations", &iterations, "searches"),
        flag_option("--own", &is_own, "with a loop of its own"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(n_bytes >= 2 && iterations >= 1, "--n must be at least 2, --iterations at least 1");
    char *text = map_fresh((size_t)n_bytes);
    memset(text, 'x', (size_t)n_bytes - 1);
    size_t found = 0;
    const char wanted[] = {'\n', (char)(n_bytes & 1 ? '\r' : '\t'), '\0'};
    for (long k = 0; k < iterations; k++) found += is_own ? find_own(text, '\n') : strcspn(text, wanted);
    require(found == (size_t)(iterations * (n_bytes - 1)), "a search ended elsewhere");
    printf("unseen_library n=%ld searches=%ld\n", n_bytes, iterations);
    return end_run(&run);
}
