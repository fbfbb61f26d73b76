// PageRank by Jacobi, as a sparse matrix times a vector: all shares first, then every vertex adds up its neighbours'.
//
// Options: those of graph.h; --iterations N sweeps, a fixed number. --converge: with one thread, until the ranks change by
// less than TOLERANCE in all.
//
// Known answer. A vertex adds up in the order of its row and reads only what the sweep before wrote, so the ranks are
// the same for each number of threads. --check compares with a serial version in double precision, sweep for sweep.
#include "graph.h"

static const float DAMPING = 0.85f;
static const double TOLERANCE = 1e-4;

struct ranks {
    const struct graph *graph;
    float *ranks, *shares;  // a share is the rank over the degree: what each neighbour gets
    double change;          // of a sweep, where it is asked for
};

OWN_FRAME static void share_out(size_t begin, size_t end, long thread_index, void *shared) {
    (void)thread_index;
    struct ranks *r = shared;
    for (size_t v = begin; v < end; v++) {
        uint64_t degree = degree_of(r->graph, (uint32_t)v);
        r->shares[v] = degree ? r->ranks[v] / (float)degree : 0;
    }
}

OWN_FRAME static void multiply(size_t begin, size_t end, long thread_index, void *shared) {
    (void)thread_index;
    struct ranks *r = shared;
    const struct graph *graph = r->graph;
    const float base = (1 - DAMPING) / (float)graph->n_vertices;
    for (size_t v = begin; v < end; v++) {
        float sum = 0;
        for (uint64_t e = graph->offsets[v]; e < graph->offsets[v + 1]; e++) sum += r->shares[graph->edges[e]];
        r->ranks[v] = base + DAMPING * sum;
    }
}

// The same, and how much it changes: one thread.
OWN_FRAME static void multiply_and_compare(struct ranks *r) {
    const struct graph *graph = r->graph;
    const float base = (1 - DAMPING) / (float)graph->n_vertices;
    double change = 0;
    for (size_t v = 0; v < graph->n_vertices; v++) {
        float sum = 0;
        for (uint64_t e = graph->offsets[v]; e < graph->offsets[v + 1]; e++) sum += r->shares[graph->edges[e]];
        float rank = base + DAMPING * sum;
        double difference = (double)(rank - r->ranks[v]);
        change += difference < 0 ? -difference : difference;
        r->ranks[v] = rank;
    }
    r->change = change;
}

// Returns the number of sweeps.
OWN_FRAME static long kernel_pr_spmv(struct team *team, struct ranks *r, long n_sweeps, bool converge) {
    MEMLENS_SCOPE("pr_spmv");
    uint32_t n = r->graph->n_vertices;
    for (uint32_t v = 0; v < n; v++) r->ranks[v] = 1 / (float)n;
    for (long sweep = 0; sweep < n_sweeps; sweep++) {
        parallel_for(team, n, CHUNK_VERTICES, share_out, r);
        if (!converge) {
            parallel_for(team, n, CHUNK_VERTICES, multiply, r);
            end_lap();
            continue;
        }
        multiply_and_compare(r);
        if (r->change < TOLERANCE) return sweep + 1;
    }
    return n_sweeps;
}

static void oracle_pr_spmv(const struct graph *graph, double *ranks, long n_sweeps) {
    uint32_t n = graph->n_vertices;
    double *next = calloc(n, sizeof *next);
    require(next != NULL, "out of memory");
    for (uint32_t v = 0; v < n; v++) ranks[v] = 1.0 / n;
    for (long sweep = 0; sweep < n_sweeps; sweep++) {
        for (uint32_t v = 0; v < n; v++) next[v] = (1 - (double)DAMPING) / n;
        for (uint32_t u = 0; u < n; u++)  // pushes, where the kernel pulls
            for (uint64_t e = graph->offsets[u]; e < graph->offsets[u + 1]; e++)
                next[graph->edges[e]] += (double)DAMPING * ranks[u] / (double)degree_of(graph, u);
        for (uint32_t v = 0; v < n; v++) ranks[v] = next[v];
    }
    free(next);
}

int main(int argc, char **argv) {
    struct graph_run g;
    begin_sweeping_run(&g, argc, argv, "pr_spmv", 40, true);
    uint32_t n = g.graph.n_vertices, top = 0;
    struct ranks r = {&g.graph, map_array(n, sizeof(float)), map_array(n, sizeof(float)), 0};
    begin_lap();
    double begin_s = now_s();
    const long n_sweeps = kernel_pr_spmv(&g.team, &r, g.iterations, g.converge);
    g.kernel_s = now_s() - begin_s;
    double sum = 0;
    for (uint32_t v = 0; v < n; v++) {
        sum += (double)r.ranks[v];
        if (r.ranks[v] > r.ranks[top]) top = v;
    }
    if (sum <= 0 || sum > 1.001) fail("the ranks add up to %g", sum);
    if (g.check) {
        double *expected = map_array(n, sizeof *expected), error = 0;
        oracle_pr_spmv(&g.graph, expected, n_sweeps);
        for (uint32_t v = 0; v < n; v++) {
            double difference = (double)r.ranks[v] - expected[v];
            error += difference < 0 ? -difference : difference;
        }
        if (error > 1e-4) fail("the ranks differ by %g", error);
    }
    unsigned long long sum_of_10000 = (unsigned long long)(sum * 10000 + 0.5);  // an integer: see graph_bc.c
    printf("graph_pr_spmv vertices=%u edges=%llu sweeps=%ld top=%u sum=%llu.%04llu\n", n,
           (unsigned long long)g.graph.n_edges, n_sweeps, top, sum_of_10000 / 10000, sum_of_10000 % 10000);
    return end_graph_run(&g);
}
