// Connected components by Afforest: a few edges of each vertex first, then all others except in the largest component.
//
// Options: those of graph.h; --iterations N runs.
//
// Known answer. A parent is always smaller than its child, so each component ends with its smallest vertex as label,
// for each number of threads. --check compares with a serial search.
#include "graph.h"

enum { FIRST_EDGES = 2, N_SAMPLES = 1024 };

struct components {
    const struct graph *graph;
    uint32_t *parents;
    uint64_t edge_index;  // of the round under way
    uint32_t largest;     // component that most samples were in
};

// Hooks the root of the larger label under the smaller one.
static inline void link_vertices(uint32_t *parents, uint32_t u, uint32_t v) {
    uint32_t p = peek(&parents[u]), q = peek(&parents[v]);
    while (p != q) {
        uint32_t high = p > q ? p : q, low = p > q ? q : p;
        uint32_t parent = peek(&parents[high]);
        if (parent == low || (parent == high && replace(&parents[high], high, low))) return;
        p = peek(&parents[peek(&parents[high])]);
        q = peek(&parents[low]);
    }
}

OWN_FRAME static void link_one_edge(size_t begin, size_t end, long thread_index, void *shared) {
    (void)thread_index;
    struct components *c = shared;
    for (size_t v = begin; v < end; v++) {
        uint64_t e = c->graph->offsets[v] + c->edge_index;
        if (e < c->graph->offsets[v + 1]) link_vertices(c->parents, (uint32_t)v, c->graph->edges[e]);
    }
}

OWN_FRAME static void link_other_edges(size_t begin, size_t end, long thread_index, void *shared) {
    (void)thread_index;
    struct components *c = shared;
    for (size_t v = begin; v < end; v++) {
        if (peek(&c->parents[v]) == c->largest) continue;  // its edges to the outside are seen from the other end
        for (uint64_t e = c->graph->offsets[v] + FIRST_EDGES; e < c->graph->offsets[v + 1]; e++)
            link_vertices(c->parents, (uint32_t)v, c->graph->edges[e]);
    }
}

OWN_FRAME static void compress(size_t begin, size_t end, long thread_index, void *shared) {
    (void)thread_index;
    struct components *c = shared;
    for (size_t v = begin; v < end; v++) {
        uint32_t parent = peek(&c->parents[v]), above;
        while (parent != (above = peek(&c->parents[parent]))) parent = above;
        poke(&c->parents[v], parent);
    }
}

static int compare_labels(const void *a, const void *b) {
    uint32_t p = *(const uint32_t *)a, q = *(const uint32_t *)b;
    return (p > q) - (p < q);
}

static uint32_t most_frequent_label(const struct components *c) {
    uint32_t samples[N_SAMPLES];
    for (uint64_t i = 0; i < N_SAMPLES; i++) samples[i] = c->parents[mix64(i) % c->graph->n_vertices];
    qsort(samples, N_SAMPLES, sizeof *samples, compare_labels);
    uint32_t best = samples[0];
    size_t n_best = 0, n_equal = 0;
    for (size_t i = 0; i < N_SAMPLES; i++) {
        n_equal = i > 0 && samples[i] == samples[i - 1] ? n_equal + 1 : 1;
        if (n_equal <= n_best) continue;
        n_best = n_equal;
        best = samples[i];
    }
    return best;
}

OWN_FRAME static void kernel_cc(struct team *team, struct components *c) {
    MEMLENS_SCOPE("cc");
    uint32_t n = c->graph->n_vertices;
    for (uint32_t v = 0; v < n; v++) c->parents[v] = v;
    for (c->edge_index = 0; c->edge_index < FIRST_EDGES; c->edge_index++) {
        parallel_for(team, n, CHUNK_VERTICES, link_one_edge, c);
        parallel_for(team, n, CHUNK_VERTICES, compress, c);
    }
    c->largest = most_frequent_label(c);
    parallel_for(team, n, CHUNK_VERTICES, link_other_edges, c);
    parallel_for(team, n, CHUNK_VERTICES, compress, c);
}

int main(int argc, char **argv) {
    struct graph_run g;
    begin_graph_run(&g, argc, argv, "cc", 60);
    uint32_t n = g.graph.n_vertices;
    struct components c = {.graph = &g.graph, .parents = map_array(n, sizeof *c.parents)};
    for (long i = 0; i < g.iterations; i++) {
        begin_lap();
        double begin_s = now_s();
        kernel_cc(&g.team, &c);
        g.kernel_s += now_s() - begin_s;
        end_lap();
    }
    if (g.check) {
        uint32_t *expected = map_array(n, sizeof *expected);
        serial_components(&g.graph, expected);
        for (uint32_t v = 0; v < n; v++)
            if (c.parents[v] != expected[v]) fail("vertex %u has label %u, not %u", v, c.parents[v], expected[v]);
    }
    uint64_t checksum = 0;
    uint32_t n_components = 0;
    for (uint32_t v = 0; v < n; v++) {
        n_components += c.parents[v] == v;
        checksum = add_to_checksum(checksum, c.parents[v]);
    }
    printf("graph_cc vertices=%u edges=%llu runs=%ld components=%u checksum=%016llx\n", n,
           (unsigned long long)g.graph.n_edges, g.iterations, n_components, (unsigned long long)checksum);
    return end_graph_run(&g);
}
