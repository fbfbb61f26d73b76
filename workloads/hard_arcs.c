// Hard for counting: a short, branchy region entered millions of times, as in a network simplex solver's pricing.
//
// Options: --arcs N, --iterations N (sweeps), --block N (arcs of one region execution), --time, --hold-ms N.
//
// Known answer. Each sweep enters region "price" ceil(arcs / block) times and looks at every arc once: two node
// potentials, a cost and a state are read for each. The line has the number of arcs that would be taken.
#include "workload.h"

#include "../native/include/memlens.h"

static long n_arcs = 200000, iterations = 40, block = 16;

struct arc {
    int32_t cost;
    uint32_t tail, head;
    int32_t state;  // -1 at its upper bound, 0 in the tree, 1 at its lower bound
};

struct network {
    struct arc *arcs;
    int64_t *potentials;
    uint64_t n_taken;
    int64_t best;
};

OWN_FRAME static void price(struct network *n, size_t begin, size_t end) {
    MEMLENS_SCOPE("price");
    for (size_t i = begin; i < end; i++) {
        struct arc *a = &n->arcs[i];
        if (a->state == 0) continue;
        int64_t reduced = a->cost - n->potentials[a->tail] + n->potentials[a->head];
        if ((a->state > 0 && reduced < 0) || (a->state < 0 && reduced > 0)) {
            n->n_taken++;
            int64_t size = reduced < 0 ? -reduced : reduced;
            if (size > n->best) {
                n->best = size;
                n->potentials[a->head] += 1;
            }
        }
    }
}

int main(int argc, char **argv) {
    const struct option_spec options[] = {
        number_option("--arcs", &n_arcs, "arcs of the network"),
        number_option("--iterations", &iterations, "sweeps over all arcs"),
        number_option("--block", &block, "arcs of one execution of the region"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(n_arcs >= 1 && block >= 1, "--arcs and --block must be at least 1");
    size_t n_nodes = (size_t)n_arcs / 8 + 2;
    struct network n = {.arcs = malloc((size_t)n_arcs * sizeof *n.arcs),
                        .potentials = malloc(n_nodes * sizeof *n.potentials)};
    require(n.arcs && n.potentials, "out of memory");
    for (size_t i = 0; i < n_nodes; i++) n.potentials[i] = (int64_t)(mix64(i) % 1000);
    for (size_t i = 0; i < (size_t)n_arcs; i++)
        n.arcs[i] = (struct arc){.cost = (int32_t)(mix64(i + 7) % 600) - 300,
                                 .tail = (uint32_t)(mix64(i + 11) % n_nodes),
                                 .head = (uint32_t)(mix64(i + 13) % n_nodes),
                                 .state = (int32_t)(mix64(i + 17) % 3) - 1};
    double begin_s = now_s();
    for (long k = 0; k < iterations; k++) {
        n.best = 0;
        for (size_t i = 0; i < (size_t)n_arcs; i += (size_t)block) {
            size_t end = i + (size_t)block;
            price(&n, i, end < (size_t)n_arcs ? end : (size_t)n_arcs);
        }
    }
    if (run.print_time) fprintf(stderr, "kernel_seconds=%.6f\n", now_s() - begin_s);
    printf("hard_arcs arcs=%ld executions=%ld taken=%lu\n", n_arcs, (n_arcs + block - 1) / block * iterations,
           (unsigned long)n.n_taken);
    free(n.arcs);
    free(n.potentials);
    return end_run(&run);
}
