// Follows a random cycle through all 64-byte nodes of an array: every step is a dependent, unpredictable load.
//
// Options: --mib N, --iterations N (laps round the cycle), --time, --hold-ms N.
//
// Known answer. N MiB / P pages are touched first, by the main thread, at the line marked below in number_nodes
// (in address order). A lap is N MiB / 64 steps and ends where it began. A page is never touched first by the chase.
#include "workload.h"

struct node {
    uint64_t next;
    uint64_t unused[7];  // one node a cache line
};

static long mib = 64, iterations = 8;

OWN_FRAME static void number_nodes(struct node *nodes, size_t n_nodes) {
    KEEP_FRAME();
    for (size_t i = 0; i < n_nodes; i++) nodes[i].next = i;  // touch: here
}

// Sattolo's shuffle: the result is one single cycle through all nodes.
OWN_FRAME static void shuffle_into_one_cycle(struct node *nodes, size_t n_nodes) {
    for (size_t i = n_nodes - 1; i > 0; i--) {
        size_t j = mix64(i) % i;
        uint64_t next = nodes[i].next;
        nodes[i].next = nodes[j].next;
        nodes[j].next = next;
    }
}

OWN_FRAME static uint64_t chase(const struct node *nodes, size_t n_steps, uint64_t *sum) {
    KEEP_FRAME();
    uint64_t at = 0;
    for (size_t step = 0; step < n_steps; step++) {
        at = nodes[at].next;
        *sum += at;
    }
    return at;
}

int main(int argc, char **argv) {
    const struct option_spec options[] = {
        number_option("--mib", &mib, "MiB of nodes"),
        number_option("--iterations", &iterations, "laps round the cycle"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(mib >= 1, "--mib must be at least 1");
    size_t bytes = (size_t)mib * MIB, n_nodes = bytes / sizeof(struct node);
    struct node *nodes = map_fresh(bytes);
    number_nodes(nodes, n_nodes);
    shuffle_into_one_cycle(nodes, n_nodes);

    begin_lap();
    for (long lap = 0; lap < iterations; lap++) {
        uint64_t sum = 0;
        uint64_t end = chase(nodes, n_nodes, &sum);
        require(end == 0, "a lap must end where it began");
        require(sum == (uint64_t)n_nodes * (n_nodes - 1) / 2, "a lap must visit every node once");
        end_lap();
    }
    printf("pointer_chase pages=%zu nodes=%zu laps=%ld\n", pages_in(bytes), n_nodes, iterations);
    return end_run(&run);
}
