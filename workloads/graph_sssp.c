// Shortest paths from a source by delta-stepping: vertices in buckets of distances, the nearest bucket first.
//
// Options: those of graph.h; --iterations N sources. Edges weigh 1 to 255.
//
// Known answer. Distances are unique; how often a vertex is looked at is a race. --check compares with Dijkstra's
// algorithm on a binary heap.
#include "graph.h"

enum { DELTA = 16, MAXIMUM_WEIGHT = 255, N_BUCKETS = 2 + MAXIMUM_WEIGHT / DELTA };
static const uint32_t FAR = UINT32_MAX;

// Distances in one bucket differ by less than DELTA, and an edge adds at most MAXIMUM_WEIGHT: bucket b % N_BUCKETS is
// enough room. Each thread fills buckets of its own; the next frontier is all threads' buckets of one number.
struct bucket {
    uint32_t *vertices;
    size_t n, n_room;
};

struct paths {
    const struct graph *graph;
    const uint8_t *weights;  // of each stored edge
    uint32_t *distances;
    struct bucket (*buckets)[N_BUCKETS];  // a row for each thread
    uint32_t *frontier;
    size_t n_frontier, n_frontier_room;
    uint64_t bucket_number;
};

static uint8_t *draw_weights(const struct graph *graph, uint64_t seed) {
    uint8_t *weights = map_array(graph->n_edges, 1);
    for (uint32_t u = 0; u < graph->n_vertices; u++) {
        for (uint64_t e = graph->offsets[u]; e < graph->offsets[u + 1]; e++) {
            uint64_t v = graph->edges[e], low = u < v ? u : v, high = u < v ? v : u;
            weights[e] = (uint8_t)(1 + mix64(seed ^ low << 32 ^ high) % MAXIMUM_WEIGHT);
        }
    }
    return weights;
}

static void add_to_bucket(struct bucket *bucket, uint32_t v) {
    if (bucket->n == bucket->n_room) {
        bucket->n_room = bucket->n_room ? 2 * bucket->n_room : 256;
        bucket->vertices = realloc(bucket->vertices, bucket->n_room * sizeof *bucket->vertices);
        require(bucket->vertices != NULL, "out of memory");
    }
    bucket->vertices[bucket->n++] = v;
}

OWN_FRAME static void relax(size_t begin, size_t end, long thread_index, void *shared) {
    struct paths *p = shared;
    const struct graph *graph = p->graph;
    struct bucket *own = p->buckets[thread_index];
    for (size_t i = begin; i < end; i++) {
        uint32_t u = p->frontier[i], distance = peek(&p->distances[u]);
        if (distance / DELTA < p->bucket_number) continue;  // settled by an earlier bucket
        for (uint64_t e = graph->offsets[u]; e < graph->offsets[u + 1]; e++) {
            uint32_t v = graph->edges[e], shorter = distance + p->weights[e];
            uint32_t known = peek(&p->distances[v]);
            while (shorter < known) {
                if (replace(&p->distances[v], known, shorter)) {
                    add_to_bucket(&own[shorter / DELTA % N_BUCKETS], v);
                    break;
                }
                known = peek(&p->distances[v]);
            }
        }
    }
}

// Moves all threads' buckets of this number into the frontier.
static void gather(struct paths *p, long n_threads, uint64_t bucket_number) {
    p->n_frontier = 0;
    for (long t = 0; t < n_threads; t++) {
        struct bucket *bucket = &p->buckets[t][bucket_number % N_BUCKETS];
        if (p->n_frontier + bucket->n > p->n_frontier_room) {
            p->n_frontier_room = 2 * (p->n_frontier + bucket->n);
            p->frontier = realloc(p->frontier, p->n_frontier_room * sizeof *p->frontier);
            require(p->frontier != NULL, "out of memory");
        }
        for (size_t i = 0; i < bucket->n; i++) p->frontier[p->n_frontier++] = bucket->vertices[i];
        bucket->n = 0;
    }
}

OWN_FRAME static void kernel_sssp(struct team *team, struct paths *p, uint32_t source) {
    MEMLENS_SCOPE("sssp");
    for (uint32_t v = 0; v < p->graph->n_vertices; v++) p->distances[v] = FAR;
    p->distances[source] = 0;
    add_to_bucket(&p->buckets[0][0], source);
    p->bucket_number = 0;
    for (int n_empty = 0; n_empty < N_BUCKETS;) {
        gather(p, team->n_threads, p->bucket_number);
        if (p->n_frontier == 0) {
            p->bucket_number++;
            n_empty++;
            continue;
        }
        n_empty = 0;
        parallel_for(team, p->n_frontier, 64, relax, p);
    }
}

// Dijkstra with a heap of (distance, vertex) in one word; what was improved later is skipped when it comes up.
static void oracle_sssp(const struct graph *graph, const uint8_t *weights, uint32_t source, uint32_t *distances) {
    uint64_t *heap = malloc((graph->n_edges + 2) * sizeof *heap);
    require(heap != NULL, "out of memory");
    for (uint32_t v = 0; v < graph->n_vertices; v++) distances[v] = FAR;
    size_t n = 0;
    distances[source] = 0;
    heap[++n] = source;
    while (n) {
        uint64_t top = heap[1], last = heap[n--];
        size_t at = 1;
        for (size_t child; (child = 2 * at) <= n; at = child) {
            if (child < n && heap[child + 1] < heap[child]) child++;
            if (heap[child] >= last) break;
            heap[at] = heap[child];
        }
        heap[at] = last;
        uint32_t u = (uint32_t)top, distance = (uint32_t)(top >> 32);
        if (distance != distances[u]) continue;
        for (uint64_t e = graph->offsets[u]; e < graph->offsets[u + 1]; e++) {
            uint32_t v = graph->edges[e], shorter = distance + weights[e];
            if (shorter >= distances[v]) continue;
            distances[v] = shorter;
            uint64_t word = (uint64_t)shorter << 32 | v;
            for (at = ++n; at > 1 && heap[at / 2] > word; at /= 2) heap[at] = heap[at / 2];
            heap[at] = word;
        }
    }
    free(heap);
}

int main(int argc, char **argv) {
    struct graph_run g;
    begin_graph_run(&g, argc, argv, "sssp", 8);
    uint32_t n = g.graph.n_vertices;
    struct paths p = {
        .graph = &g.graph,
        .weights = draw_weights(&g.graph, (uint64_t)g.seed),
        .distances = map_array(n, sizeof *p.distances),
        .buckets = calloc((size_t)g.n_threads, sizeof *p.buckets),
    };
    require(p.buckets != NULL, "out of memory");
    uint32_t *expected = map_array(n, sizeof *expected);
    uint64_t checksum = 0;
    for (long i = 0; i < g.iterations; i++) {
        uint32_t source = source_of_run(&g, i);
        begin_lap();
        double begin_s = now_s();
        kernel_sssp(&g.team, &p, source);
        g.kernel_s += now_s() - begin_s;
        end_lap();
        if (g.check) oracle_sssp(&g.graph, p.weights, source, expected);
        uint64_t distance_sum = 0;
        for (uint32_t v = 0; v < n; v++) {
            if (g.check && p.distances[v] != expected[v])
                fail("vertex %u has distance %u, not %u", v, p.distances[v], expected[v]);
            distance_sum += p.distances[v] == FAR ? 0 : (uint64_t)p.distances[v] * (v % 1021 + 1);
        }
        checksum = add_to_checksum(checksum, distance_sum);
    }
    printf("graph_sssp vertices=%u edges=%llu sources=%ld checksum=%016llx\n", n, (unsigned long long)g.graph.n_edges,
           g.iterations, (unsigned long long)checksum);
    return end_graph_run(&g);
}
