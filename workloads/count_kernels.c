// Kernels in assembly whose number of accesses is known to the last one: what exact counters are checked against.
//
// The kernels are in count_kernels_x86_64.S, _aarch64.S, _riscv64.S and _ppc64le.S, one function kernel_NAME each, with
// what a turn and a call access written beside them (count_kernels.h).
//
// Options: --n N (turns), --threads T (the main thread and T - 1 others, all at once), --alone (the main thread runs
// all kernels once more before the others start), --time, --hold-ms N.
//
// Known answer. Printed, as JSON: what each kernel's symbol accesses in one run; the threads with their kernel ids and
// the number of runs each made; the kernels that this processor cannot run. Each thread works on buffers of its own
// from mmap, so that "stack" is the kernels' own use of the stack.
#include "workload.h"

#include "count_kernels.h"

#include <sys/auxv.h>
#include <sys/syscall.h>

extern const struct count_kernel __start_count_kernel_table[], __stop_count_kernel_table[];

static long n_threads = 1, n_turns = 1000;
static bool run_alone_first;
static pthread_barrier_t all_ready;
static long *thread_ids;

#if defined(__x86_64__)
static const char *const ISA = "x86_64";
#elif defined(__aarch64__)
static const char *const ISA = "aarch64";
#elif defined(__riscv)
static const char *const ISA = "riscv64";
#else
static const char *const ISA = "ppc64le";
#endif

static bool has_feature(uint64_t feature) {
    switch (feature) {
        case NEEDS_NOTHING: return true;
#if defined(__x86_64__)
        case NEEDS_AVX: return __builtin_cpu_supports("avx");
        case NEEDS_AVX2: return __builtin_cpu_supports("avx2");
#elif defined(__aarch64__)
        case NEEDS_LSE: return getauxval(AT_HWCAP) >> 8 & 1;  // HWCAP_ATOMICS
#elif defined(__powerpc64__)
        case NEEDS_POWER9: return getauxval(AT_HWCAP2) >> 23 & 1;  // PPC_FEATURE2_ARCH_3_00
#endif
        default: return false;
    }
}

static void run_kernels(void) {
    // Eight bytes a turn for the string kernels, and some pages for those that cross from one to the next.
    size_t bytes = ((size_t)n_turns * 8 / 65536 + 2) * 65536;
    unsigned char *from = map_fresh(bytes), *to = map_fresh(bytes);
    for (const struct count_kernel *kernel = __start_count_kernel_table; kernel < __stop_count_kernel_table; kernel++)
        if (has_feature(kernel->needs)) kernel->run((uint64_t)n_turns, from, to);
    munmap(from, bytes);
    munmap(to, bytes);
}

static void *run_thread(void *argument) {
    long *thread_id = argument;
    *thread_id = syscall(SYS_gettid);
    pthread_barrier_wait(&all_ready);
    run_kernels();
    pthread_barrier_wait(&all_ready);  // all of them live to the end of the counting
    return NULL;
}

static uint64_t total(uint64_t of_turn, uint64_t of_call) { return of_turn * (uint64_t)n_turns + of_call; }

static void print_answer(void) {
    printf("{\"isa\": \"%s\", \"n\": %ld, \"threads\": [", ISA, n_turns);
    for (long i = 0; i < n_threads; i++)
        printf("%s{\"thread\": %ld, \"runs\": %d}", i ? ", " : "", thread_ids[i], i == 0 && run_alone_first ? 2 : 1);
    printf("], \"kernels\": [");
    const char *separator = "";
    for (const struct count_kernel *kernel = __start_count_kernel_table; kernel < __stop_count_kernel_table; kernel++) {
        const struct known_counts *turn = &kernel->of_turn, *call = &kernel->of_call;
        if (!has_feature(kernel->needs)) continue;
        printf("%s\n{\"name\": \"%s\"", separator, kernel->name);
        const struct {
            const char *name;
            uint64_t count;
        } columns[] = {
            {"loads", total(turn->loads, call->loads)},
            {"stores", total(turn->stores, call->stores)},
            {"load_bytes", total(turn->load_bytes, call->load_bytes)},
            {"store_bytes", total(turn->store_bytes, call->store_bytes)},
            {"stack_loads", total(turn->stack_loads, call->stack_loads)},
            {"stack_stores", total(turn->stack_stores, call->stack_stores)},
            {"stack_load_bytes", total(turn->stack_load_bytes, call->stack_load_bytes)},
            {"stack_store_bytes", total(turn->stack_store_bytes, call->stack_store_bytes)},
            {"unseen", total(turn->unseen, call->unseen)},
        };
        for (size_t i = 0; i < COUNT_OF(columns); i++)
            printf(", \"%s\": %llu", columns[i].name, (unsigned long long)columns[i].count);
        printf("}");
        separator = ",";
    }
    printf("], \"skipped\": [");
    separator = "";
    for (const struct count_kernel *kernel = __start_count_kernel_table; kernel < __stop_count_kernel_table; kernel++) {
        if (has_feature(kernel->needs)) continue;
        printf("%s\"%s\"", separator, kernel->name);
        separator = ", ";
    }
    printf("]}\n");
}

int main(int argc, char **argv) {
    const struct option_spec options[] = {
        number_option("--n", &n_turns, "turns of each kernel"),
        number_option("--threads", &n_threads, "threads that run all kernels, the main one included"),
        flag_option("--alone", &run_alone_first, "the main thread runs them once more before the others start"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(n_turns >= 1 && n_turns <= 100000000, "--n must be from 1 to 100000000");
    require(n_threads >= 1 && n_threads <= 1024, "--threads must be from 1 to 1024");
    thread_ids = calloc((size_t)n_threads, sizeof *thread_ids);
    pthread_t *threads = calloc((size_t)n_threads, sizeof *threads);
    require(thread_ids && threads, "out of memory");
    pthread_barrier_init(&all_ready, NULL, (unsigned)n_threads);
    if (run_alone_first) run_kernels();
    for (long i = 1; i < n_threads; i++) {
        int error = pthread_create(&threads[i], NULL, run_thread, &thread_ids[i]);
        if (error) fail("cannot start thread %ld: %s", i, strerror(error));
    }
    run_thread(&thread_ids[0]);
    for (long i = 1; i < n_threads; i++) pthread_join(threads[i], NULL);
    print_answer();
    return end_run(&run);
}
