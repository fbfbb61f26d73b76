// Betweenness centrality by Brandes' algorithm from a few sources: a search by levels that counts shortest paths, then
// the dependencies of each level from the deepest one back.
//
// Options: those of graph.h; --iterations N sources, whose scores are added up.
//
// Known answer. Path counts are whole numbers and each vertex adds up its own neighbours in their order, so the scores
// are the same for each number of threads. --check compares them with a serial version that pushes instead.
#include "graph.h"

struct centrality {
    const struct graph *graph;
    uint32_t *depths;
    uint64_t *n_paths;
    double *dependencies, *scores;
    uint32_t *order;     // vertices by level
    uint32_t depth;      // of the frontier under way
    size_t level_begin;  // of the level under way, in order
    struct vertex_queue next;
};

OWN_FRAME static void count_paths(size_t begin, size_t end, long thread_index, void *shared) {
    (void)thread_index;
    struct centrality *c = shared;
    const struct graph *graph = c->graph;
    uint32_t next_depth = c->depth + 1;
    struct queue_buffer buffer;
    buffer.n = 0;
    for (size_t i = begin; i < end; i++) {
        uint32_t v = c->order[c->level_begin + i];
        for (uint64_t e = graph->offsets[v]; e < graph->offsets[v + 1]; e++) {
            uint32_t w = graph->edges[e], depth = peek(&c->depths[w]);
            if (depth == NO_VERTEX) {
                if (replace(&c->depths[w], NO_VERTEX, next_depth)) add_to_queue(&buffer, &c->next, w);
                depth = next_depth;  // whoever reached it, it was in this level
            }
            if (depth == next_depth) __atomic_fetch_add(&c->n_paths[w], c->n_paths[v], __ATOMIC_RELAXED);
        }
    }
    flush_buffer(&buffer, &c->next);
}

OWN_FRAME static void add_dependencies(size_t begin, size_t end, long thread_index, void *shared) {
    (void)thread_index;
    struct centrality *c = shared;
    const struct graph *graph = c->graph;
    for (size_t i = begin; i < end; i++) {
        uint32_t v = c->order[c->level_begin + i];
        double sum = 0;
        for (uint64_t e = graph->offsets[v]; e < graph->offsets[v + 1]; e++) {
            uint32_t w = graph->edges[e];
            if (c->depths[w] == c->depth + 1) sum += (1 + c->dependencies[w]) / (double)c->n_paths[w];
        }
        c->dependencies[v] = sum * (double)c->n_paths[v];
        if (c->depth) c->scores[v] += c->dependencies[v];
    }
}

OWN_FRAME static void kernel_bc(struct team *team, struct centrality *c, uint32_t source) {
    MEMLENS_SCOPE("bc");
    uint32_t n = c->graph->n_vertices;
    for (uint32_t v = 0; v < n; v++) {
        c->depths[v] = NO_VERTEX;
        c->n_paths[v] = 0;
        c->dependencies[v] = 0;
    }
    // As many levels as a path has vertices: they are found again from the depths of `order`.
    c->depths[source] = 0;
    c->n_paths[source] = 1;
    c->order[0] = source;
    c->depth = 0;
    size_t n_reached = 1;
    for (size_t begin = 0; begin < n_reached; c->depth++) {
        c->level_begin = begin;
        c->next = (struct vertex_queue){c->order + n_reached, 0};
        parallel_for(team, n_reached - begin, 64, count_paths, c);
        begin = n_reached;
        n_reached += c->next.n_vertices;
    }
    for (size_t end = n_reached; end > 0; end = c->level_begin) {
        c->depth = c->depths[c->order[end - 1]];
        c->level_begin = end;
        while (c->level_begin > 0 && c->depths[c->order[c->level_begin - 1]] == c->depth) c->level_begin--;
        parallel_for(team, end - c->level_begin, 64, add_dependencies, c);
    }
}

// The same from the front: a queue in order, dependencies pushed to the predecessors in reverse order.
static void oracle_bc(const struct graph *graph, uint32_t source, double *scores) {
    uint32_t n = graph->n_vertices;
    uint32_t *depths = malloc(n * sizeof *depths), *order = malloc(n * sizeof *order);
    double *n_paths = calloc(n, sizeof *n_paths), *dependencies = calloc(n, sizeof *dependencies);
    require(depths && order && n_paths && dependencies, "out of memory");
    for (uint32_t v = 0; v < n; v++) depths[v] = NO_VERTEX;
    size_t tail = 0;
    order[tail++] = source;
    depths[source] = 0;
    n_paths[source] = 1;
    for (size_t head = 0; head < tail; head++) {
        uint32_t v = order[head];
        for (uint64_t e = graph->offsets[v]; e < graph->offsets[v + 1]; e++) {
            uint32_t w = graph->edges[e];
            if (depths[w] == NO_VERTEX) {
                depths[w] = depths[v] + 1;
                order[tail++] = w;
            }
            if (depths[w] == depths[v] + 1) n_paths[w] += n_paths[v];
        }
    }
    while (tail-- > 0) {
        uint32_t w = order[tail];
        for (uint64_t e = graph->offsets[w]; e < graph->offsets[w + 1]; e++) {
            uint32_t v = graph->edges[e];
            if (depths[v] + 1 == depths[w]) dependencies[v] += n_paths[v] / n_paths[w] * (1 + dependencies[w]);
        }
        if (w != source) scores[w] += dependencies[w];
    }
    free(dependencies);
    free(n_paths);
    free(order);
    free(depths);
}

int main(int argc, char **argv) {
    struct graph_run g;
    begin_graph_run(&g, argc, argv, "bc", 8);
    uint32_t n = g.graph.n_vertices;
    struct centrality c = {
        .graph = &g.graph,
        .depths = map_array(n, sizeof *c.depths),
        .n_paths = map_array(n, sizeof *c.n_paths),
        .dependencies = map_array(n, sizeof *c.dependencies),
        .scores = map_array(n, sizeof *c.scores),
        .order = map_array(n, sizeof *c.order),
    };
    double *expected = map_array(n, sizeof *expected);
    for (long i = 0; i < g.iterations; i++) {
        uint32_t source = source_of_run(&g, i);
        begin_lap();
        double begin_s = now_s();
        kernel_bc(&g.team, &c, source);
        g.kernel_s += now_s() - begin_s;
        end_lap();
        if (g.check) oracle_bc(&g.graph, source, expected);
    }
    double sum = 0, largest = 0;
    for (uint32_t v = 0; v < n; v++) {
        sum += c.scores[v];
        if (c.scores[v] > largest) largest = c.scores[v];
        if (g.check && (c.scores[v] - expected[v] > 1e-9 * (1 + expected[v]) ||
                        expected[v] - c.scores[v] > 1e-9 * (1 + expected[v])))
            fail("the score of vertex %u is %.12g, not %.12g", v, c.scores[v], expected[v]);
    }
    // Whole thousandths, as integers: instruction sets with fused multiply-add differ in the last digits, and C
    // libraries print floating-point numbers in long double, which some emulators round.
    unsigned long long largest_thousandths = (unsigned long long)(largest * 1000 + 0.5);
    unsigned long long sum_thousandths = (unsigned long long)(sum * 1000 + 0.5);
    printf("graph_bc vertices=%u edges=%llu sources=%ld largest=%llu.%03llu sum=%llu.%03llu\n", n,
           (unsigned long long)g.graph.n_edges, g.iterations, largest_thousandths / 1000, largest_thousandths % 1000,
           sum_thousandths / 1000, sum_thousandths % 1000);
    return end_graph_run(&g);
}
