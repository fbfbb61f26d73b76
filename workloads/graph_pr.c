// PageRank by Gauss and Seidel: each vertex pulls from its neighbours, and what it writes is read in the same sweep.
//
// Options: those of graph.h; --iterations N sweeps. The number is fixed, because with several threads it depends on
// scheduling when a limit is reached. --converge: with one thread, until the ranks change by less than TOLERANCE in all.
//
// Known answer. The ranks that PageRank converges to; their last digits are a race with several threads, so the line
// has the vertex of the highest rank. --check compares with a serial version in double precision after 100 sweeps.
#include "graph.h"

static const float DAMPING = 0.85f;
static const double TOLERANCE = 1e-4;

struct ranks {
    const struct graph *graph;
    float *ranks, *shares;  // a share is the rank over the degree: what each neighbour gets
    double change;          // of a sweep, where it is asked for
};

OWN_FRAME static void pull(size_t begin, size_t end, long thread_index, void *shared) {
    (void)thread_index;
    struct ranks *r = shared;
    const struct graph *graph = r->graph;
    const float base = (1 - DAMPING) / (float)graph->n_vertices;
    for (size_t v = begin; v < end; v++) {
        float sum = 0;
        for (uint64_t e = graph->offsets[v]; e < graph->offsets[v + 1]; e++) {
            float share;
            __atomic_load(&r->shares[graph->edges[e]], &share, __ATOMIC_RELAXED);
            sum += share;
        }
        float rank = base + DAMPING * sum;
        uint64_t degree = degree_of(graph, (uint32_t)v);
        float share = degree ? rank / (float)degree : 0;
        r->ranks[v] = rank;
        __atomic_store(&r->shares[v], &share, __ATOMIC_RELAXED);
    }
}

// The same, and how much it changes: one thread.
OWN_FRAME static void pull_and_compare(struct ranks *r) {
    const struct graph *graph = r->graph;
    const float base = (1 - DAMPING) / (float)graph->n_vertices;
    double change = 0;
    for (size_t v = 0; v < graph->n_vertices; v++) {
        float sum = 0;
        for (uint64_t e = graph->offsets[v]; e < graph->offsets[v + 1]; e++) sum += r->shares[graph->edges[e]];
        float rank = base + DAMPING * sum;
        uint64_t degree = degree_of(graph, (uint32_t)v);
        double difference = (double)(rank - r->ranks[v]);
        change += difference < 0 ? -difference : difference;
        r->ranks[v] = rank;
        r->shares[v] = degree ? rank / (float)degree : 0;
    }
    r->change = change;
}

// Returns the number of sweeps.
OWN_FRAME static long kernel_pr(struct team *team, struct ranks *r, long n_sweeps, bool converge) {
    MEMLENS_SCOPE("pr");
    uint32_t n = r->graph->n_vertices;
    for (uint32_t v = 0; v < n; v++) {
        uint64_t degree = degree_of(r->graph, v);
        r->ranks[v] = 1 / (float)n;
        r->shares[v] = degree ? r->ranks[v] / (float)degree : 0;
    }
    for (long sweep = 0; sweep < n_sweeps; sweep++) {
        if (!converge) {
            parallel_for(team, n, CHUNK_VERTICES, pull, r);
            end_lap();
            continue;
        }
        pull_and_compare(r);
        if (r->change < TOLERANCE) return sweep + 1;
    }
    return n_sweeps;
}

static void oracle_pr(const struct graph *graph, double *ranks) {
    uint32_t n = graph->n_vertices;
    double *shares = calloc(n, sizeof *shares);
    require(shares != NULL, "out of memory");
    for (uint32_t v = 0; v < n; v++) ranks[v] = 1.0 / n;
    for (int sweep = 0; sweep < 100; sweep++) {
        for (uint32_t v = 0; v < n; v++) shares[v] = degree_of(graph, v) ? ranks[v] / (double)degree_of(graph, v) : 0;
        for (uint32_t v = 0; v < n; v++) {
            double sum = 0;
            for (uint64_t e = graph->offsets[v]; e < graph->offsets[v + 1]; e++) sum += shares[graph->edges[e]];
            ranks[v] = (1 - (double)DAMPING) / n + (double)DAMPING * sum;
        }
    }
    free(shares);
}

int main(int argc, char **argv) {
    struct graph_run g;
    begin_sweeping_run(&g, argc, argv, "pr", 40, true);
    uint32_t n = g.graph.n_vertices, top = 0;
    struct ranks r = {&g.graph, map_array(n, sizeof(float)), map_array(n, sizeof(float)), 0};
    begin_lap();
    double begin_s = now_s();
    const long n_sweeps = kernel_pr(&g.team, &r, g.iterations, g.converge);
    g.kernel_s = now_s() - begin_s;
    double sum = 0;
    for (uint32_t v = 0; v < n; v++) {
        sum += (double)r.ranks[v];
        if (r.ranks[v] > r.ranks[top]) top = v;
    }
    if (sum <= 0 || sum > 1.001) fail("the ranks add up to %g", sum);
    if (g.check) {
        double *expected = map_array(n, sizeof *expected), error = 0;
        oracle_pr(&g.graph, expected);
        for (uint32_t v = 0; v < n; v++) {
            double difference = (double)r.ranks[v] - expected[v];
            error += difference < 0 ? -difference : difference;
        }
        // A sweep shrinks the distance to the limit by the damping: what is left is at most 0.85 / 0.15 of the last change.
        if (g.iterations >= 20 && error > 1e-3) fail("the ranks differ by %g", error);
        if (g.iterations < 20) fail("--check needs at least 20 iterations");
    }
    printf("graph_pr vertices=%u edges=%llu sweeps=%ld top=%u\n", n, (unsigned long long)g.graph.n_edges, n_sweeps,
           top);
    return end_graph_run(&g);
}
