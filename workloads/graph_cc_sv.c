// Connected components by Shiloach and Vishkin: hook every edge, shorten every path, again and again.
//
// Options: those of graph.h; --iterations N runs, each of a fixed number of rounds. How many are needed depends on
// which thread hooks first; a fixed number that is always enough keeps the work the same. --converge: with one thread, until
// a round hooks nothing. The last run is verified.
//
// Known answer. A parent is always smaller than its child, so each component ends with its smallest vertex as label.
// --check compares with a serial search.
#include "graph.h"

enum { N_ROUNDS = 8 };  // the Kronecker and uniform graphs here are done after 3 to 5

struct components {
    const struct graph *graph;
    uint32_t *parents;
    uint32_t hooked;  // whether the round under way hooked anything
};

OWN_FRAME static void hook(size_t begin, size_t end, long thread_index, void *shared) {
    (void)thread_index;
    struct components *c = shared;
    const struct graph *graph = c->graph;
    bool hooked = false;
    for (size_t u = begin; u < end; u++) {
        for (uint64_t e = graph->offsets[u]; e < graph->offsets[u + 1]; e++) {
            uint32_t p = peek(&c->parents[u]), q = peek(&c->parents[graph->edges[e]]);
            if (p == q) continue;
            uint32_t high = p > q ? p : q, low = p > q ? q : p;
            // Two threads may hook the same root; the later one wins, the other edge is found again in the next round.
            if (peek(&c->parents[high]) == high) {
                poke(&c->parents[high], low);
                hooked = true;
            }
        }
    }
    if (hooked) poke(&c->hooked, true);
}

OWN_FRAME static void shorten(size_t begin, size_t end, long thread_index, void *shared) {
    (void)thread_index;
    struct components *c = shared;
    for (size_t v = begin; v < end; v++) {
        uint32_t parent = peek(&c->parents[v]), above;
        while (parent != (above = peek(&c->parents[parent]))) parent = above;
        poke(&c->parents[v], parent);
    }
}

OWN_FRAME static void kernel_cc_sv(struct team *team, struct components *c, bool converge) {
    MEMLENS_SCOPE("cc_sv");
    uint32_t n = c->graph->n_vertices;
    for (uint32_t v = 0; v < n; v++) c->parents[v] = v;
    for (int round = 0; round < N_ROUNDS; round++) {
        c->hooked = false;
        parallel_for(team, n, CHUNK_VERTICES, hook, c);
        if (converge && !c->hooked) break;  // all paths are short: the round before has seen to that
        parallel_for(team, n, CHUNK_VERTICES, shorten, c);
    }
}

int main(int argc, char **argv) {
    struct graph_run g;
    begin_sweeping_run(&g, argc, argv, "cc_sv", 8, true);
    const struct graph *graph = &g.graph;
    uint32_t n = graph->n_vertices;
    struct components c = {.graph = graph, .parents = map_array(n, sizeof *c.parents)};
    for (long i = 0; i < g.iterations; i++) {
        begin_lap();
        double begin_s = now_s();
        kernel_cc_sv(&g.team, &c, g.converge);
        g.kernel_s += now_s() - begin_s;
        end_lap();
    }
    uint64_t checksum = 0;
    uint32_t n_components = 0;
    for (uint32_t v = 0; v < n; v++) {
        for (uint64_t e = graph->offsets[v]; e < graph->offsets[v + 1]; e++)
            if (c.parents[graph->edges[e]] != c.parents[v]) fail("%d rounds were not enough for this graph", N_ROUNDS);
        n_components += c.parents[v] == v;
        checksum = add_to_checksum(checksum, c.parents[v]);
    }
    if (g.check) {
        uint32_t *expected = map_array(n, sizeof *expected);
        serial_components(graph, expected);
        for (uint32_t v = 0; v < n; v++)
            if (c.parents[v] != expected[v]) fail("vertex %u has label %u, not %u", v, c.parents[v], expected[v]);
    }
    printf("graph_cc_sv vertices=%u edges=%llu runs=%ld components=%u checksum=%016llx\n", n,
           (unsigned long long)graph->n_edges, g.iterations, n_components, (unsigned long long)checksum);
    return end_graph_run(&g);
}
