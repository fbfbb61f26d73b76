// Accesses of each class of the NUMAPROF paper, as often as the known answer says: by pinned and unpinned threads to pages that were
// placed by a pinned thread, by an unpinned one, by policy, as a huge page, or that are moved in the middle of the run.
// Needs nodes 0 to 3 with CPUs and node 4 without (tools/numa-guest -n 4 -x 1); elsewhere it prints `skipped:`, exits 77.
//
// Options: --hold-ms N (1500): how long nothing happens before pages are moved, and at the end.
//
// Known answer: `place` writes once to each of PAGES pages, `use` loads and stores ROUNDS times each of LINES lines: 2 * ROUNDS * LINES
// accesses. Main is pinned to node 0 first; worker-0 is pinned to node 0, worker-1 to node 1, worker-2 runs anywhere. They run one after the other,
// and each uses each array. Arrays, by the line that maps them: `bound` placed by main, `floating` by worker-2, `memory_only` by main under
// mbind to node 4, `interleaved` by main under mbind to all of nodes 0 to 3, `huge` one huge page by main, `moved` by main: between two uses by
// worker-0 the program moves it to node 1.
#include "workload.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>

enum { PAGES = 16, ROUNDS = 5, LINES = PAGES * 64, MEMORY_ONLY_NODE = 4, WORKERS = 3 };
// The library that records sees these calls by their names, which libnuma has too; without either they are made directly.
extern long mbind(void *, unsigned long, int, const unsigned long *, unsigned long, unsigned) __attribute__((weak));
extern long move_pages(int, unsigned long, void **, const int *, int *, int) __attribute__((weak));
static long hold_ms = 1500;
static unsigned char *bound, *floating, *memory_only, *interleaved, *huge, *moved;

OWN_FRAME static void place(volatile unsigned char *base) {
    for (size_t page = 0; page < PAGES; page++) base[page * 4096] = 1;
}

OWN_FRAME static void use(volatile unsigned char *base) {
    for (int round = 0; round < ROUNDS; round++)
        for (size_t line = 0; line < LINES; line++) base[line * 64]++;
}

static void pin_to_cpu(int cpu) {
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(cpu, &cpus);
    if (sched_setaffinity(0, sizeof cpus, &cpus)) fail("cannot run on CPU %d: %s", cpu, strerror(errno));
}

static void run_anywhere(void) {
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    for (int cpu = 0; cpu < 4; cpu++) CPU_SET(cpu, &cpus);
    if (sched_setaffinity(0, sizeof cpus, &cpus)) fail("cannot run on CPUs 0 to 3: %s", strerror(errno));
}

static void bind_to(void *base, size_t bytes, int policy, unsigned long nodes) {
    long failed =
        mbind ? mbind(base, bytes, policy, &nodes, 65, 0) : syscall(SYS_mbind, base, bytes, policy, &nodes, 65UL, 0UL);
    if (failed) fail("mbind: %s", strerror(errno));
}

static unsigned char *small_pages(unsigned char *base) {
    if (madvise(base, PAGES * 4096, MADV_NOHUGEPAGE)) fail("madvise: %s", strerror(errno));
    return base;
}

static void *worker(void *argument) {
    const long number = (long)(intptr_t)argument;
    if (number < 2) pin_to_cpu((int)number);
    else run_anywhere();
    if (number == 2) place(floating);
    use(bound);
    use(memory_only);
    use(interleaved);
    use(huge);
    if (number == 2) use(floating);
    if (number == 0) use(moved);
    return NULL;
}

static void *user_of_floating(void *argument) {
    (void)argument;
    pin_to_cpu(1);
    use(floating);
    return NULL;
}

static void *user_of_moved(void *argument) {
    (void)argument;
    pin_to_cpu(0);
    use(moved);
    return NULL;
}

static void run(void *(*start)(void *), long number) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, start, (void *)(intptr_t)number)) fail("cannot start a thread");
    pthread_join(thread, NULL);
}

static void hold(void) {
    struct timespec time = {hold_ms / 1000, hold_ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

#define MAPPED(bytes) mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)

int main(int argc, char **argv) {
    const struct option_spec options[] = {
        number_option("hold-ms", &hold_ms, "how long nothing happens before pages are moved, and at the end")};
    parse_options(argc, argv, options, sizeof options / sizeof *options);
    if (access("/sys/devices/system/node/node4", F_OK)) skip("needs five NUMA nodes: tools/numa-guest -n 4 -x 1");
    pin_to_cpu(0);
    bound = small_pages(MAPPED(PAGES * 4096));        // array: bound
    floating = small_pages(MAPPED(PAGES * 4096));     // array: floating
    memory_only = small_pages(MAPPED(PAGES * 4096));  // array: memory_only
    interleaved = small_pages(MAPPED(PAGES * 4096));  // array: interleaved
    moved = small_pages(MAPPED(PAGES * 4096));        // array: moved
    unsigned char *base = MAPPED(4 * MIB);            // array: huge
    huge = base + (-(uintptr_t)base & (2 * MIB - 1));
    if (madvise(huge, 2 * MIB, MADV_HUGEPAGE)) skip("this kernel has no transparent huge pages");
    bind_to(memory_only, PAGES * 4096, MPOL_BIND, 1UL << MEMORY_ONLY_NODE);
    bind_to(interleaved, PAGES * 4096, MPOL_INTERLEAVE, 15);
    place(bound);
    place(memory_only);
    place(interleaved);
    place(huge);
    place(moved);
    for (long number = 0; number < WORKERS; number++) run(worker, number);
    run(user_of_floating, 0);
    hold();
    void *pages[PAGES];
    int nodes[PAGES], status[PAGES];
    for (int page = 0; page < PAGES; page++) pages[page] = moved + (size_t)page * 4096, nodes[page] = 1;
    long failed = move_pages ? move_pages(0, PAGES, pages, nodes, status, 2)
                             : syscall(SYS_move_pages, 0, (unsigned long)PAGES, pages, nodes, status, 2);
    if (failed) fail("move_pages: %s", strerror(errno));
    run(user_of_moved, 0);
    hold();
    puts("done");
    return 0;
}
