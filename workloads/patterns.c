// Patterns of addresses with a known class, one function each, as MemGaze's microbenchmarks have them: even steps of one,
// two and eight elements, irregular ones, and mixes of both: by condition, and one after the other.
//
// Options: --elements N (a power of two), --repeats N, --time, --hold-ms N.
//
// Known answer. Accesses of each function: N/step loads for the even ones and 2 N for the irregular one (an index and an element),
// a store a call. Classes: the even steps are strided with 8, 16 and 64 bytes; the element of the irregular one is irregular through an
// index that was loaded, the index itself strided; `chase` is irregular and leads itself; `scalars` are constants.
#include "workload.h"

static uint64_t *values, *indices;
static size_t n_elements;
static volatile uint64_t scalar;
struct link {
    struct link *next;
    uint64_t value;
};
static struct link *links;
static volatile uint64_t sink;

OWN_FRAME static void str1(void) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n_elements; i++) sum += values[i];
    sink = sum;
}
OWN_FRAME static void str2(void) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n_elements; i += 2) sum += values[i];
    sink = sum;
}
OWN_FRAME static void str8(void) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n_elements; i += 8) sum += values[i];
    sink = sum;
}
OWN_FRAME static void irr(void) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n_elements; i++) sum += values[indices[i]];
    sink = sum;
}
// By condition: an even step or an irregular element, half of each.
OWN_FRAME static void str1_or_irr(void) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n_elements; i++) {
        uint64_t index = indices[i];
        if (index & 1) sum += values[index];
        else sum -= values[i] * 3;
    }
    sink = sum;
}
// One after the other in each iteration.
OWN_FRAME static void str8_and_irr(void) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n_elements; i += 8) {
        sum += values[i];
        sum ^= values[indices[i]];
    }
    sink = sum;
}
OWN_FRAME static void hashed(void) {
    uint64_t sum = 0, key = 1;
    for (size_t i = 0; i < n_elements; i++) {
        key = key * 6364136223846793005u + 1442695040888963407u;
        sum += values[key >> 33 & (n_elements - 1)];
    }
    sink = sum;
}
OWN_FRAME static void chase(void) {
    uint64_t sum = 0;
    for (const struct link *at = links; at; at = at->next) sum += at->value;
    sink = sum;
}
OWN_FRAME static void scalars(void) {
    for (size_t i = 0; i < n_elements; i++) scalar = scalar + 1;
}

int main(int argc, char **argv) {
    long elements = 1 << 16, repeats = 4;
    const struct option_spec options[] = {
        number_option("--elements", &elements, "elements, a power of two"),
        number_option("--repeats", &repeats, "calls of each function"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(elements >= 64 && (elements & (elements - 1)) == 0, "--elements must be a power of two from 64 up");
    n_elements = (size_t)elements;
    values = map_fresh(n_elements * sizeof *values);
    indices = map_fresh(n_elements * sizeof *indices);
    links = map_fresh(n_elements * sizeof *links);
    for (size_t i = 0; i < n_elements; i++) {
        values[i] = i * 7;
        indices[i] = i * 40503 % n_elements;  // odd: each element once
        links[indices[i]].value = i;
    }
    for (size_t i = 0; i + 1 < n_elements; i++) links[indices[i]].next = &links[indices[i + 1]];
    uint64_t sum = 0;
    void (*const all[])(void) = {str1, str2, str8, irr, str1_or_irr, str8_and_irr, hashed, chase, scalars};
    for (long r = 0; r < repeats; r++)
        for (size_t i = 0; i < COUNT_OF(all); i++) {
            all[i]();
            sum = sum * 31 + sink;
        }
    printf("patterns elements=%ld repeats=%ld checksum=%016llx\n", elements, repeats, (unsigned long long)sum);
    return end_run(&run);
}
