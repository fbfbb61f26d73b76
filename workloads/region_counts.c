// Regions whose accesses are known to the last byte: every access of a kernel is volatile, so that no compiler merges,
// widens or drops one.
//
// Options: --n N (elements), --threads N (the main thread is one of them), --iterations N, --time, --hold-ms N.
//
// Known answer, outside the stack, of each region in all threads together, with R = T I executions:
//
//   region   function        reads                      writes
//   copy     kernel_copy     R N of 8 bytes             R N of 8 bytes
//   sum      kernel_sum      R N of 4 bytes             none
//   fill     kernel_fill     none                       R N of 2 bytes
//   lookup   kernel_lookup   R N of 4, R N constants of 8   none          (the constants are in .rodata)
//   update   kernel_update   R N atomic ones of 8       R N atomic ones of 8
//   outer    kernel_outer    R N of 1 byte              none              (runs `inner` inside)
//   inner    kernel_sum      R N of 4 bytes             none
//
// With the functions as regions these are all accesses outside the stack. A region by annotation also has what its own
// annotations access, the same few words in each execution.
#include "workload.h"

#include "../native/include/memlens.h"

static long n_items = 1000, n_threads = 1, iterations = 1;

struct arrays {
    uint64_t *words, *copies;
    uint32_t *numbers;
    uint16_t *halves;
    unsigned char *bytes;
};

static const uint64_t table[256] = {[0] = 3, [1] = 1, [2] = 4, [3] = 1, [255] = 5};

OWN_FRAME static void kernel_copy(volatile uint64_t *to, const volatile uint64_t *from, size_t n) {
    for (size_t i = 0; i < n; i++) to[i] = from[i];
}

OWN_FRAME static uint64_t kernel_sum(const volatile uint32_t *numbers, size_t n) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) sum += numbers[i];
    return sum;
}

OWN_FRAME static void kernel_fill(volatile uint16_t *halves, size_t n) {
    for (size_t i = 0; i < n; i++) halves[i] = (uint16_t)i;
}

OWN_FRAME static uint64_t kernel_lookup(const volatile uint32_t *numbers, size_t n) {
    const volatile uint64_t *constants = table;
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) sum += constants[numbers[i] & 255];
    return sum;
}

OWN_FRAME static void kernel_update(uint64_t *words, size_t n) {
    for (size_t i = 0; i < n; i++) __atomic_fetch_add(&words[i], 1, __ATOMIC_RELAXED);
}

OWN_FRAME static uint64_t kernel_outer(const volatile unsigned char *bytes, size_t n) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) sum += bytes[i];
    return sum;
}

static void work(long thread_index, void *shared) {
    (void)thread_index;
    uint64_t *n_right = shared;
    const size_t n = (size_t)n_items;
    struct arrays arrays = {.words = map_fresh(n * 8),
                            .copies = map_fresh(n * 8),
                            .numbers = map_fresh(n * 4),
                            .halves = map_fresh(n * 2),
                            .bytes = map_fresh(n)};
    uint64_t numbers_sum = 0, table_sum = 0;
    for (size_t i = 0; i < n; i++) {
        arrays.words[i] = mix64(i);
        arrays.numbers[i] = (uint32_t)i;
        arrays.bytes[i] = 1;
        numbers_sum += (uint32_t)i;
        table_sum += table[i & 255];
    }
    bool is_right = true;
    for (long k = 0; k < iterations; k++) {
        memlens_begin("copy");
        kernel_copy(arrays.copies, arrays.words, n);
        memlens_end("copy");
        memlens_begin("sum");
        uint64_t sum = kernel_sum(arrays.numbers, n);
        memlens_end("sum");
        memlens_begin("fill");
        kernel_fill(arrays.halves, n);
        memlens_end("fill");
        memlens_begin("lookup");
        uint64_t found = kernel_lookup(arrays.numbers, n);
        memlens_end("lookup");
        memlens_begin("update");
        kernel_update(arrays.words, n);
        memlens_end("update");
        memlens_begin("outer");
        uint64_t ones = kernel_outer(arrays.bytes, n);
        memlens_begin("inner");
        sum += kernel_sum(arrays.numbers, n);
        memlens_end("inner");
        memlens_end("outer");
        is_right = is_right && sum == 2 * numbers_sum && found == table_sum && ones == n;
        is_right =
            is_right && arrays.copies[n - 1] == mix64(n - 1) + (uint64_t)k && arrays.halves[n - 1] == (uint16_t)(n - 1);
    }
    if (is_right) __atomic_fetch_add(n_right, 1, __ATOMIC_RELAXED);
}

int main(int argc, char **argv) {
    const struct option_spec options[] = {
        number_option("--n", &n_items, "elements of each array"),
        number_option("--threads", &n_threads, "threads, the main one included"),
        number_option("--iterations", &iterations, "executions of each region in each thread"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(n_items >= 1 && n_threads >= 1 && iterations >= 1, "--n, --threads and --iterations must be at least 1");
    uint64_t n_right = 0;
    if (n_threads > 1) run_on_threads(n_threads - 1, work, &n_right);
    work(n_threads - 1, &n_right);
    require(n_right == (uint64_t)n_threads, "a kernel computed something else");
    printf("region_counts n=%ld threads=%ld executions=%ld\n", n_items, n_threads, n_threads * iterations);
    return end_run(&run);
}
