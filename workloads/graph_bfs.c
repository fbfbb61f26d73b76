// Direction-optimising breadth-first search: from a queue, or bottom-up over a bitmap while the frontier is large.
//
// Options: those of graph.h; --iterations N searches from N sources.
//
// Known answer. The depth of a vertex, so the number of vertices reached and the sum of their depths; which of several
// parents a vertex gets is a race. --check compares the parents' depths with a serial search.
#include "graph.h"

enum { ALPHA = 15, BETA = 18 };  // when to go bottom-up (edges to look at) and back (vertices in the frontier)

struct search {
    const struct graph *graph;
    uint32_t *parents;
    struct vertex_queue frontier, next;
    uint64_t *in_frontier, *in_next;  // bitmaps
    uint64_t n_edges_found, n_found;  // of the step under way
};

struct search_result {
    uint64_t n_reached, depth_sum, depth;
};

static bool has_bit(const uint64_t *bitmap, uint32_t v) { return bitmap[v / 64] >> v % 64 & 1; }

OWN_FRAME static void step_down(size_t begin, size_t end, long thread_index, void *shared) {
    (void)thread_index;
    struct search *search = shared;
    const struct graph *graph = search->graph;
    struct queue_buffer buffer;
    buffer.n = 0;
    uint64_t n_edges_found = 0;
    for (size_t i = begin; i < end; i++) {
        uint32_t v = search->frontier.vertices[i];
        for (uint64_t e = graph->offsets[v]; e < graph->offsets[v + 1]; e++) {
            uint32_t w = graph->edges[e];
            if (peek(&search->parents[w]) != NO_VERTEX || !replace(&search->parents[w], NO_VERTEX, v)) continue;
            add_to_queue(&buffer, &search->next, w);
            n_edges_found += degree_of(graph, w);
        }
    }
    flush_buffer(&buffer, &search->next);
    __atomic_fetch_add(&search->n_edges_found, n_edges_found, __ATOMIC_RELAXED);
}

// Ranges are multiples of 64 vertices, so a word of the bitmap has one writer.
OWN_FRAME static void step_up(size_t begin, size_t end, long thread_index, void *shared) {
    (void)thread_index;
    struct search *search = shared;
    const struct graph *graph = search->graph;
    uint64_t n_found = 0;
    for (size_t word = begin / 64; word * 64 < end; word++) {
        uint64_t found = 0;
        for (uint32_t v = (uint32_t)(word * 64); v < end && v < word * 64 + 64; v++) {
            if (search->parents[v] != NO_VERTEX) continue;
            for (uint64_t e = graph->offsets[v]; e < graph->offsets[v + 1]; e++) {
                uint32_t u = graph->edges[e];
                if (!has_bit(search->in_frontier, u)) continue;
                search->parents[v] = u;
                found |= UINT64_C(1) << v % 64;
                n_found++;
                break;
            }
        }
        search->in_next[word] = found;
    }
    __atomic_fetch_add(&search->n_found, n_found, __ATOMIC_RELAXED);
}

static void queue_to_bitmap(const struct search *search, size_t n_words) {
    for (size_t word = 0; word < n_words; word++) search->in_frontier[word] = 0;
    for (size_t i = 0; i < search->frontier.n_vertices; i++) {
        uint32_t v = search->frontier.vertices[i];
        search->in_frontier[v / 64] |= UINT64_C(1) << v % 64;
    }
}

static void bitmap_to_queue(struct search *search, size_t n_words) {
    struct vertex_queue *queue = &search->frontier;
    queue->n_vertices = 0;
    for (size_t word = 0; word < n_words; word++)
        for (uint64_t left = search->in_frontier[word]; left; left &= left - 1)
            queue->vertices[queue->n_vertices++] = (uint32_t)(word * 64) + (uint32_t)__builtin_ctzll(left);
}

OWN_FRAME static struct search_result kernel_bfs(struct team *team, struct search *search, uint32_t source) {
    MEMLENS_SCOPE("bfs");
    const struct graph *graph = search->graph;
    uint32_t n = graph->n_vertices;
    size_t n_words = ((size_t)n + 63) / 64;
    for (uint32_t v = 0; v < n; v++) search->parents[v] = NO_VERTEX;
    search->parents[source] = source;
    search->frontier.vertices[0] = source;
    search->frontier.n_vertices = 1;
    struct search_result result = {1, 0, 0};
    uint64_t n_edges_left = graph->n_edges, n_edges_to_look_at = degree_of(graph, source);
    while (search->frontier.n_vertices) {
        if (n_edges_to_look_at > n_edges_left / ALPHA) {
            queue_to_bitmap(search, n_words);
            uint64_t n_frontier = search->frontier.n_vertices, n_before;
            do {
                n_before = n_frontier;
                search->n_found = 0;
                parallel_for(team, n, CHUNK_VERTICES, step_up, search);
                n_frontier = search->n_found;
                result.n_reached += n_frontier;
                result.depth += n_frontier > 0;
                result.depth_sum += n_frontier * result.depth;
                uint64_t *was_next = search->in_next;
                search->in_next = search->in_frontier;
                search->in_frontier = was_next;
            } while (n_frontier && (n_frontier >= n_before || n_frontier > n / BETA));
            bitmap_to_queue(search, n_words);
            n_edges_to_look_at = 1;
        } else {
            n_edges_left -= n_edges_to_look_at < n_edges_left ? n_edges_to_look_at : n_edges_left;
            search->next.n_vertices = 0;
            search->n_edges_found = 0;
            parallel_for(team, search->frontier.n_vertices, 64, step_down, search);
            struct vertex_queue was_frontier = search->frontier;
            search->frontier = search->next;
            search->next = was_frontier;
            n_edges_to_look_at = search->n_edges_found;
            result.n_reached += search->frontier.n_vertices;
            result.depth += search->frontier.n_vertices > 0;
            result.depth_sum += search->frontier.n_vertices * result.depth;
        }
    }
    return result;
}

static void check(const struct graph *graph, const uint32_t *parents, uint32_t source, struct search_result result) {
    uint32_t *depths = malloc(graph->n_vertices * sizeof *depths);
    require(depths != NULL, "out of memory");
    serial_depths(graph, source, depths);
    struct search_result expected = {0, 0, 0};
    for (uint32_t v = 0; v < graph->n_vertices; v++) {
        if ((depths[v] == NO_VERTEX) != (parents[v] == NO_VERTEX)) fail("vertex %u is reached by one search only", v);
        if (depths[v] == NO_VERTEX) continue;
        expected.n_reached++;
        expected.depth_sum += depths[v];
        if (depths[v] > expected.depth) expected.depth = depths[v];
        if (v == source) continue;
        uint32_t parent = parents[v];
        bool is_neighbour = false;
        for (uint64_t e = graph->offsets[v]; e < graph->offsets[v + 1]; e++) is_neighbour |= graph->edges[e] == parent;
        if (!is_neighbour || depths[parent] + 1 != depths[v]) fail("vertex %u has the wrong parent %u", v, parent);
    }
    require(result.n_reached == expected.n_reached, "wrong number of vertices reached");
    require(result.depth_sum == expected.depth_sum && result.depth == expected.depth, "wrong depths");
    free(depths);
}

int main(int argc, char **argv) {
    struct graph_run g;
    begin_graph_run(&g, argc, argv, "bfs", 40);
    uint32_t n = g.graph.n_vertices;
    size_t n_words = ((size_t)n + 63) / 64;
    struct search search = {
        .graph = &g.graph,
        .parents = map_array(n, sizeof *search.parents),
        .frontier = {map_array(n, sizeof(uint32_t)), 0},
        .next = {map_array(n, sizeof(uint32_t)), 0},
        .in_frontier = map_array(n_words, sizeof(uint64_t)),
        .in_next = map_array(n_words, sizeof(uint64_t)),
    };
    uint64_t checksum = 0;
    for (long i = 0; i < g.iterations; i++) {
        uint32_t source = source_of_run(&g, i);
        begin_lap();
        double begin_s = now_s();
        struct search_result result = kernel_bfs(&g.team, &search, source);
        g.kernel_s += now_s() - begin_s;
        end_lap();
        if (g.check) check(&g.graph, search.parents, source, result);
        checksum = add_to_checksum(checksum, result.n_reached);
        checksum = add_to_checksum(checksum, result.depth_sum);
    }
    printf("graph_bfs vertices=%u edges=%llu searches=%ld checksum=%016llx\n", n, (unsigned long long)g.graph.n_edges,
           g.iterations, (unsigned long long)checksum);
    return end_graph_run(&g);
}
