// Pages on NUMA nodes that are known beforehand: by first touch of pinned threads, or by policy against first touch.
// Needs nodes 0 to 3 with CPUs and node 4 without (tools/numa-guest -n 4 -x 1); elsewhere it prints `skipped:`, exits 77.
//
// Options: --mode policies|serial|parallel, --mib N, --work-ms N, --time, --hold-ms N.
//
// Known answer, each line marked below in base pages (MADV_NOHUGEPAGE) but for `huge`; S = 2 MiB / P.
// policies: `own`: worker-i, pinned to node i, S on node i. By the main thread on node 0: `bound` S on node 2 (mbind),
// `memory_only` S on node 4 (mbind), `thread_policy` S on node 2 (set_mempolicy), `interleaved` S / 4 on each of nodes
// 0 to 3. By the main thread on node 3: `huge` 2 huge pages of 2 MiB on node 3.
// serial: N MiB on node 0 by the main thread (line `array`), then worker-i works on its quarter for --work-ms on node i.
// parallel: worker-i first-touches its quarter itself, on node i.
#include "workload.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>

enum { N_NODES = 4, MEMORY_ONLY_NODE = 4, BOUND_NODE = 2, HUGE_NODE = 3 };
static const size_t share_bytes = 2 * MIB;
static long mib = 24, work_ms = 1500;

// One function for each marked line, so that its pages are told apart by function too.
#define TOUCH_FUNCTION(name) OWN_FRAME static void name(volatile unsigned char *base, size_t bytes, size_t step_bytes)

TOUCH_FUNCTION(touch_own) {
    KEEP_FRAME();
    for (size_t at = 0; at < bytes; at += step_bytes) base[at] = 1;  // touch: here own
}
TOUCH_FUNCTION(touch_bound) {
    KEEP_FRAME();
    for (size_t at = 0; at < bytes; at += step_bytes) base[at] = 1;  // touch: here bound
}
TOUCH_FUNCTION(touch_memory_only) {
    KEEP_FRAME();
    for (size_t at = 0; at < bytes; at += step_bytes) base[at] = 1;  // touch: here memory_only
}
TOUCH_FUNCTION(touch_under_thread_policy) {
    KEEP_FRAME();
    for (size_t at = 0; at < bytes; at += step_bytes) base[at] = 1;  // touch: here thread_policy
}
TOUCH_FUNCTION(touch_interleaved) {
    KEEP_FRAME();
    for (size_t at = 0; at < bytes; at += step_bytes) base[at] = 1;  // touch: here interleaved
}
TOUCH_FUNCTION(touch_huge) {
    KEEP_FRAME();
    for (size_t at = 0; at < bytes; at += step_bytes) base[at] = 1;  // touch: here huge
}
TOUCH_FUNCTION(touch_array) {
    KEEP_FRAME();
    for (size_t at = 0; at < bytes; at += step_bytes) base[at] = 1;  // touch: here array
}

// The first CPU of a node, or -1.
static int first_cpu_of(long node) {
    char path[64];
    snprintf(path, sizeof path, "/sys/devices/system/node/node%ld/cpulist", node);
    FILE *list = fopen(path, "r");
    int cpu = -1;
    if (!list) return -1;
    if (fscanf(list, "%d", &cpu) != 1) cpu = -1;
    fclose(list);
    return cpu;
}

static void pin_to_node(long node) {
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(first_cpu_of(node), &cpus);
    if (sched_setaffinity(0, sizeof cpus, &cpus)) fail("cannot run on node %ld: %s", node, strerror(errno));
}

static void set_policy(void *base, size_t bytes, int policy, unsigned long nodes) {
    long failed = base ? syscall(SYS_mbind, base, bytes, policy, &nodes, 65UL, 0UL)
                       : syscall(SYS_set_mempolicy, policy, nodes ? &nodes : NULL, nodes ? 65UL : 0UL);
    if (failed) fail("memory policy %d: %s", policy, strerror(errno));
}

// The kernel's own answer, so that a wrong policy here is not taken for a wrong report.
static void require_pages_on(void *base, size_t bytes, size_t n_expected, int node) {
    size_t n_pages = pages_in(bytes), n_found = 0;
    for (size_t p = 0; p < n_pages; p++) {
        void *page = (unsigned char *)base + p * page_bytes();
        int is_on = -1;
        if (syscall(SYS_move_pages, 0, 1UL, &page, NULL, &is_on, 0)) fail("move_pages: %s", strerror(errno));
        n_found += is_on == node;
    }
    if (n_found != n_expected) fail("%zu of %zu pages are on node %d, not %zu", n_found, n_pages, node, n_expected);
}

static void touch_own_share(long thread_index, void *shared) {
    unsigned char *base = (unsigned char *)shared + (size_t)thread_index * share_bytes;
    pin_to_node(thread_index);
    touch_own(base, share_bytes, page_bytes());
    require_pages_on(base, share_bytes, pages_in(share_bytes), (int)thread_index);
}

static void place_by_policies(void) {
    const unsigned long all_nodes = (1UL << N_NODES) - 1;
    const size_t n_pages = pages_in(share_bytes);
    run_on_threads(N_NODES, touch_own_share, map_fresh(N_NODES * share_bytes));

    unsigned char *base = map_fresh(share_bytes);
    set_policy(base, share_bytes, MPOL_BIND, 1UL << BOUND_NODE);
    touch_bound(base, share_bytes, page_bytes());
    require_pages_on(base, share_bytes, n_pages, BOUND_NODE);

    base = map_fresh(share_bytes);
    set_policy(base, share_bytes, MPOL_BIND, 1UL << MEMORY_ONLY_NODE);
    touch_memory_only(base, share_bytes, page_bytes());
    require_pages_on(base, share_bytes, n_pages, MEMORY_ONLY_NODE);

    base = map_fresh(share_bytes);
    set_policy(NULL, 0, MPOL_BIND, 1UL << BOUND_NODE);
    touch_under_thread_policy(base, share_bytes, page_bytes());
    set_policy(NULL, 0, MPOL_DEFAULT, 0);
    require_pages_on(base, share_bytes, n_pages, BOUND_NODE);

    base = map_fresh(share_bytes);
    set_policy(base, share_bytes, MPOL_INTERLEAVE, all_nodes);
    touch_interleaved(base, share_bytes, page_bytes());
    for (int node = 0; node < N_NODES; node++) require_pages_on(base, share_bytes, n_pages / N_NODES, node);

    base = reserve_aligned(2 * share_bytes, 2 * MIB);
    if (mprotect(base, 2 * share_bytes, PROT_READ | PROT_WRITE)) fail("mprotect: %s", strerror(errno));
    if (madvise(base, 2 * share_bytes, MADV_HUGEPAGE)) skip("this kernel has no transparent huge pages");
    pin_to_node(HUGE_NODE);
    touch_huge(base, 2 * share_bytes, 2 * MIB);
    require_pages_on(base, 2 * share_bytes, 2 * n_pages, HUGE_NODE);
}

struct array {
    unsigned char *base;
    size_t quarter_bytes;
    bool touch_in_worker;
};

static void work_on_quarter(long thread_index, void *shared) {
    const struct array *array = shared;
    unsigned char *quarter = array->base + (size_t)thread_index * array->quarter_bytes;
    pin_to_node(thread_index);
    if (array->touch_in_worker) touch_array(quarter, array->quarter_bytes, page_bytes());
    const double end_s = now_s() + (double)work_ms * 1e-3;
    while (now_s() < end_s)
        for (size_t at = 0; at < array->quarter_bytes; at += 64) quarter[at] |= 1;
    int node = array->touch_in_worker ? (int)thread_index : 0;
    require_pages_on(quarter, array->quarter_bytes, pages_in(array->quarter_bytes), node);
}

int main(int argc, char **argv) {
    const char *mode = "policies";
    const struct option_spec options[] = {
        text_option("--mode", &mode, "policies, or an array touched first: serial (bad), parallel (good)"),
        number_option("--mib", &mib, "MiB of the array"),
        number_option("--work-ms", &work_ms, "how long each worker works on its quarter of the array"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    bool policies = !strcmp(mode, "policies"), serial = !strcmp(mode, "serial");
    require(policies || serial || !strcmp(mode, "parallel"), "--mode is policies, serial or parallel");
    require(mib >= 1, "--mib must be at least 1");
    for (long node = 0; node < N_NODES; node++)
        if (first_cpu_of(node) < 0) skip("this needs four NUMA nodes with CPUs");
    if (access("/sys/devices/system/node/node4", F_OK) || first_cpu_of(MEMORY_ONLY_NODE) >= 0)
        skip("this needs node 4 without CPUs");
    pin_to_node(0);
    if (policies) {
        place_by_policies();
    } else {
        struct array array = {map_fresh((size_t)mib * MIB), (size_t)mib * MIB / N_NODES, !serial};
        if (serial) touch_array(array.base, (size_t)mib * MIB, page_bytes());
        run_on_threads(N_NODES, work_on_quarter, &array);
    }
    printf("numa_placement mode=%s\n", mode);
    return end_run(&run);
}
