// A sum over a list whose items lie in no order: each address is known only when the item before has been read.
//
// Options: --n N (items), --iterations N, --in-order (the same numbers from an array), --time, --hold-ms N.
//
// Known answer: the region `sum` runs I times and each time reads N items of 16 bytes (link and number), with --in-order
// N numbers of 8 bytes. Both sums are I N (N - 1) / 2. All of it fits into a last-level cache of 8 MiB or more.
#include "workload.h"

#include "../native/include/memlens.h"

static long n_items = 1 << 17, iterations = 100;
static bool is_in_order;

struct item {
    const struct item *next;
    uint64_t number;
};

OWN_FRAME static uint64_t sum_of_list(const struct item *first) {
    uint64_t sum = 0;
    for (const struct item *item = first; item != NULL; item = item->next) sum += item->number;
    return sum;
}

OWN_FRAME static uint64_t sum_of_array(const uint64_t *numbers, long n) {
    uint64_t sum = 0;
    for (long i = 0; i < n; i++) sum += numbers[i];
    return sum;
}

int main(int argc, char **argv) {
    const struct option_spec options[] = {
        number_option("--n", &n_items, "items"),
        number_option("--iterations", &iterations, "sums"),
        flag_option("--in-order", &is_in_order, "take the numbers from an array"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(n_items >= 1 && iterations >= 1, "--n and --iterations must be at least 1");
    struct item *items = map_fresh((size_t)n_items * sizeof *items);
    uint64_t *numbers = map_fresh((size_t)n_items * sizeof *numbers);
    // The order of the list: a shuffle of the places.
    for (long i = 0; i < n_items; i++) numbers[i] = (uint64_t)i;
    for (long i = n_items - 1; i > 0; i--) {
        const long j = (long)(mix64((uint64_t)i) % (uint64_t)(i + 1));
        const uint64_t kept = numbers[i];
        numbers[i] = numbers[j];
        numbers[j] = kept;
    }
    for (long i = 0; i < n_items; i++) {
        struct item *item = &items[numbers[i]];
        item->number = (uint64_t)i;
        item->next = i + 1 < n_items ? &items[numbers[i + 1]] : NULL;
    }
    uint64_t sum = 0;
    const struct item *first = &items[numbers[0]];
    for (long k = 0; k < iterations; k++) {
        memlens_begin("sum");
        sum += is_in_order ? sum_of_array(numbers, n_items) : sum_of_list(first);
        memlens_end("sum");
    }
    printf("linked_sum n=%ld sums=%ld sum=%llu\n", n_items, iterations, (unsigned long long)sum);
    return end_run(&run);
}
