// Triangle counting: for each edge (u, v) with v < u, the common neighbours below v, by merging two sorted rows.
//
// Options: those of graph.h; --iterations N runs.
//
// Known answer. The number of triangles. --check counts them again with a mark for each neighbour.
#include "graph.h"

struct triangles {
    const struct graph *graph;
    uint64_t n_triangles;
};

OWN_FRAME static void intersect_rows(size_t begin, size_t end, long thread_index, void *shared) {
    (void)thread_index;
    struct triangles *t = shared;
    const struct graph *graph = t->graph;
    uint64_t n_triangles = 0;
    for (size_t u = begin; u < end; u++) {
        const uint32_t *row = graph->edges + graph->offsets[u], *row_end = graph->edges + graph->offsets[u + 1];
        for (const uint32_t *v = row; v < row_end && *v < u; v++) {
            const uint32_t *mine = row;
            const uint32_t *other = graph->edges + graph->offsets[*v];
            const uint32_t *other_end = graph->edges + graph->offsets[*v + 1];
            for (; other < other_end && *other < *v; other++) {
                while (*mine < *other) mine++;  // ends at v, which is above every `other`
                n_triangles += *mine == *other;
            }
        }
    }
    __atomic_fetch_add(&t->n_triangles, n_triangles, __ATOMIC_RELAXED);
}

OWN_FRAME static void kernel_tc(struct team *team, struct triangles *t) {
    MEMLENS_SCOPE("tc");
    t->n_triangles = 0;
    parallel_for(team, t->graph->n_vertices, 64, intersect_rows, t);
}

static uint64_t oracle_tc(const struct graph *graph) {
    uint8_t *is_neighbour = calloc(graph->n_vertices, 1);
    require(is_neighbour != NULL, "out of memory");
    uint64_t n_corners = 0;
    for (uint32_t u = 0; u < graph->n_vertices; u++) {
        for (uint64_t e = graph->offsets[u]; e < graph->offsets[u + 1]; e++) is_neighbour[graph->edges[e]] = 1;
        for (uint64_t e = graph->offsets[u]; e < graph->offsets[u + 1]; e++) {
            uint32_t v = graph->edges[e];
            for (uint64_t f = graph->offsets[v]; f < graph->offsets[v + 1]; f++)
                n_corners += is_neighbour[graph->edges[f]];
        }
        for (uint64_t e = graph->offsets[u]; e < graph->offsets[u + 1]; e++) is_neighbour[graph->edges[e]] = 0;
    }
    free(is_neighbour);
    return n_corners / 6;  // three corners, in two directions
}

int main(int argc, char **argv) {
    struct graph_run g;
    begin_graph_run(&g, argc, argv, "tc", 1);
    struct triangles t = {.graph = &g.graph};
    for (long i = 0; i < g.iterations; i++) {
        begin_lap();
        double begin_s = now_s();
        kernel_tc(&g.team, &t);
        g.kernel_s += now_s() - begin_s;
        end_lap();
    }
    if (g.check && t.n_triangles != oracle_tc(&g.graph)) fail("wrong number of triangles");
    printf("graph_tc vertices=%u edges=%llu runs=%ld triangles=%llu\n", g.graph.n_vertices,
           (unsigned long long)g.graph.n_edges, g.iterations, (unsigned long long)t.n_triangles);
    return end_graph_run(&g);
}
