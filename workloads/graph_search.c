// Breadth-first search over a directed graph in CSR form, with the vertices scattered at random in memory.
//
// The graph is a relabelled de Bruijn graph: before relabelling, vertex v of n = 2^k has the eight successors
// 8 v + j mod n. From vertex 0 it reaches v after ceil(bits(v) / 3) steps, which verifies the search in closed form.
//
// Options: --mib N (the edge array, a power of two), --iterations N (searches), --time, --hold-ms N.
//
// Known answer. n = N MiB / 32 vertices. Three arrays are touched first, by the main thread, at three lines:
// `here` in build_graph writes 8 n edges of 4 bytes (32 n / P pages), `here level` in search writes n levels of
// 4 bytes, `here queue` n queue entries of 4 bytes, in enqueue, which is inlined into search (4 n / P pages each, the
// first search only).
#include "workload.h"

static long mib = 64, iterations = 9;
enum { DEGREE = 8 };
// Not a repeated byte: compilers would turn the loop that stores it into a memset of the C library.
static const uint32_t NOT_REACHED = UINT32_C(1) << 31;

// A bijection of [0, 2^k): odd multiplications and xor-shifts both are.
static uint32_t relabel(uint32_t v, unsigned k) {
    uint32_t mask = (uint32_t)((UINT64_C(1) << k) - 1);
    v = v * UINT32_C(0x9e3779b1) & mask;
    v ^= v >> (k + 1) / 2;
    v = v * UINT32_C(0x85ebca6b) & mask;
    v ^= v >> (k + 1) / 2;
    return v;
}

// All vertices have DEGREE edges, so the row offsets of the CSR form are DEGREE * v and need no array.
OWN_FRAME static void build_graph(uint32_t *edges, unsigned k) {
    KEEP_FRAME();
    uint64_t n = UINT64_C(1) << k;
    for (uint64_t v = 0; v < n; v++) {
        uint32_t *row = edges + (uint64_t)relabel((uint32_t)v, k) * DEGREE;
        for (unsigned j = 0; j < DEGREE; j++) {
            uint32_t successor = relabel((uint32_t)((v * DEGREE + j) & (n - 1)), k);
            row[j] = successor;  // touch: here
        }
    }
}

static inline void enqueue(volatile uint32_t *queue, uint64_t *tail, uint32_t v) {
    queue[(*tail)++] = v;  // touch: here queue
}

OWN_FRAME static uint64_t search(const uint32_t *edges, uint32_t *levels, uint32_t *queue, uint64_t n, uint32_t root) {
    KEEP_FRAME();
    for (uint64_t v = 0; v < n; v++) levels[v] = NOT_REACHED;  // touch: here level
    uint64_t head = 0, tail = 0;
    levels[root] = 0;
    enqueue(queue, &tail, root);
    while (head < tail) {
        uint32_t v = queue[head++];
        for (unsigned j = 0; j < DEGREE; j++) {
            uint32_t w = edges[(uint64_t)v * DEGREE + j];
            if (levels[w] != NOT_REACHED) continue;
            levels[w] = levels[v] + 1;
            enqueue(queue, &tail, w);
        }
    }
    return tail;
}

static unsigned bits(uint32_t v) { return v ? 32 - (unsigned)__builtin_clz(v) : 0; }

int main(int argc, char **argv) {
    const struct option_spec options[] = {
        number_option("--mib", &mib, "MiB of the edge array, a power of two"),
        number_option("--iterations", &iterations, "searches"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(mib >= 1 && mib <= 65536 && (mib & (mib - 1)) == 0, "--mib must be a power of two up to 65536");
    uint64_t n = (uint64_t)mib * MIB / (DEGREE * sizeof(uint32_t));
    unsigned k = (unsigned)__builtin_ctzll(n);
    uint32_t *edges = map_fresh(n * DEGREE * sizeof *edges);
    uint32_t *levels = map_fresh(n * sizeof *levels), *queue = map_fresh(n * sizeof *queue);
    build_graph(edges, k);

    for (long i = 0; i < iterations; i++) {
        uint64_t n_reached = search(edges, levels, queue, n, relabel(0, k));
        if (n_reached != n) fail("reached %llu of %llu vertices", (unsigned long long)n_reached, (unsigned long long)n);
        for (uint64_t v = 0; v < n; v++)
            if (levels[relabel((uint32_t)v, k)] != (bits((uint32_t)v) + 2) / 3)
                fail("wrong level of vertex %llu", (unsigned long long)v);
    }
    printf("graph_search pages=%zu vertices=%llu depth=%u searches=%ld\n",
           pages_in(n * DEGREE * sizeof *edges) + 2 * pages_in(n * sizeof *levels), (unsigned long long)n, (k + 2) / 3,
           iterations);
    return end_run(&run);
}
