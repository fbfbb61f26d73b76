// What the eight graph kernels (graph_*.c) share: the graph, a team of threads with a parallel for, and how a run ends.
//
// Kernels of the kind that graph benchmark suites have, on a graph that is made in the process: nothing to download,
// the same graph for the same --scale, --degree, --seed and --uniform on every machine and instruction set.
//
// The graph is undirected and simple: 2^scale vertices, degree * 2^scale edges drawn, both directions stored, in CSR
// form with sorted rows, without self-loops and duplicates. Edges are Kronecker (R-MAT with a = 0.57, b = c = 0.19)
// with scattered labels, or uniform. Every file has
//
//   kernel_NAME   the timed part, a function of its own and a memlens.h region of that name in each thread;
//   oracle_NAME   a simple serial version of another algorithm that --check compares with.
//
// A team of T threads is the main thread and T - 1 helpers, which sleep between parallel parts: with one thread there
// is one thread in the process, and nobody spins, so that the number of accesses does not depend on scheduling more
// than the algorithm does.
#ifndef MEMLENS_GRAPH_H
#define MEMLENS_GRAPH_H

#include "workload.h"

#include "../native/include/memlens.h"

// ---- a team of threads ----

typedef void range_body(size_t begin, size_t end, long thread_index, void *shared);

struct team {
    long n_threads;
    const char *region;  // what the helpers' work is marked as
    pthread_t *helpers;
    pthread_mutex_t mutex;
    pthread_cond_t work_changed, work_done;
    uint64_t n_parts_started;
    long n_working;
    bool ends;
    // The parallel part under way. Written by the main thread while all helpers sleep.
    range_body *body;
    void *shared;
    size_t n_items, chunk_items, next_item;
};

struct helper_start {
    struct team *team;
    long thread_index;
};

static inline void take_chunks(struct team *team, long thread_index) {
    for (;;) {
        size_t begin = __atomic_fetch_add(&team->next_item, team->chunk_items, __ATOMIC_RELAXED);
        if (begin >= team->n_items) return;
        size_t end = team->n_items - begin < team->chunk_items ? team->n_items : begin + team->chunk_items;
        team->body(begin, end, thread_index, team->shared);
    }
}

static inline void *helper_main(void *argument) {
    struct helper_start start = *(struct helper_start *)argument;
    free(argument);
    struct team *team = start.team;
    char name[16];
    snprintf(name, sizeof name, "worker-%ld", start.thread_index % 10000);
    pthread_setname_np(pthread_self(), name);
    uint64_t n_parts_seen = 0;
    for (;;) {
        pthread_mutex_lock(&team->mutex);
        while (!team->ends && team->n_parts_started == n_parts_seen)
            pthread_cond_wait(&team->work_changed, &team->mutex);
        bool ends = team->ends;
        n_parts_seen = team->n_parts_started;
        pthread_mutex_unlock(&team->mutex);
        if (ends) return NULL;
        memlens_begin(team->region);
        take_chunks(team, start.thread_index);
        memlens_end(team->region);
        pthread_mutex_lock(&team->mutex);
        if (--team->n_working == 0) pthread_cond_signal(&team->work_done);
        pthread_mutex_unlock(&team->mutex);
    }
}

static inline void start_team(struct team *team, long n_threads, const char *region) {
    require(n_threads >= 1 && n_threads <= 1024, "--threads must be from 1 to 1024");
    memset(team, 0, sizeof *team);
    team->n_threads = n_threads;
    team->region = region;
    pthread_mutex_init(&team->mutex, NULL);
    pthread_cond_init(&team->work_changed, NULL);
    pthread_cond_init(&team->work_done, NULL);
    team->helpers = (pthread_t *)calloc((size_t)n_threads, sizeof *team->helpers);
    require(team->helpers != NULL, "out of memory");
    for (long i = 1; i < n_threads; i++) {
        struct helper_start *start = (struct helper_start *)malloc(sizeof *start);
        require(start != NULL, "out of memory");
        *start = (struct helper_start){team, i};
        int error = pthread_create(&team->helpers[i], NULL, helper_main, start);
        if (error) fail("cannot start thread %ld: %s", i, strerror(error));
    }
}

static inline void end_team(struct team *team) {
    pthread_mutex_lock(&team->mutex);
    team->ends = true;
    pthread_cond_broadcast(&team->work_changed);
    pthread_mutex_unlock(&team->mutex);
    for (long i = 1; i < team->n_threads; i++) pthread_join(team->helpers[i], NULL);
    free(team->helpers);
}

// Runs body over [0, n_items) in chunks that the threads take in turn, and waits. Thread 0 is the caller.
static inline void parallel_for(struct team *team, size_t n_items, size_t chunk_items, range_body *body, void *shared) {
    if (n_items == 0) return;
    if (team->n_threads == 1 || n_items <= chunk_items) {
        body(0, n_items, 0, shared);
        return;
    }
    pthread_mutex_lock(&team->mutex);
    team->body = body;
    team->shared = shared;
    team->n_items = n_items;
    team->chunk_items = chunk_items;
    team->next_item = 0;
    team->n_working = team->n_threads - 1;
    team->n_parts_started++;
    pthread_cond_broadcast(&team->work_changed);
    pthread_mutex_unlock(&team->mutex);
    take_chunks(team, 0);
    pthread_mutex_lock(&team->mutex);
    while (team->n_working) pthread_cond_wait(&team->work_done, &team->mutex);
    pthread_mutex_unlock(&team->mutex);
}

enum { CHUNK_VERTICES = 512 };

// ---- shared words: several threads read and write them without a lock ----

static inline uint32_t peek(const uint32_t *word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }
static inline void poke(uint32_t *word, uint32_t value) { __atomic_store_n(word, value, __ATOMIC_RELAXED); }
static inline bool replace(uint32_t *word, uint32_t expected, uint32_t value) {
    return __atomic_compare_exchange_n(word, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

// ---- the graph ----

static const uint32_t NO_VERTEX = UINT32_MAX;

struct graph {
    uint32_t n_vertices;
    uint64_t n_edges;   // stored, so each of them twice
    uint64_t *offsets;  // n_vertices + 1
    uint32_t *edges;    // row v is [offsets[v], offsets[v + 1]), ascending
};

static inline void *map_array(size_t n_items, size_t item_bytes) {
    size_t bytes = n_items * item_bytes;
    return map_fresh(bytes ? bytes : 1);
}

static inline uint64_t degree_of(const struct graph *graph, uint32_t v) {
    return graph->offsets[v + 1] - graph->offsets[v];
}

// A bijection of [0, 2^scale): without it the vertices of high degree would all be neighbours in memory.
static inline uint32_t scatter_label(uint32_t v, unsigned scale) {
    uint32_t mask = (uint32_t)((UINT64_C(1) << scale) - 1);
    v = (v + UINT32_C(0x5bd1e995)) * UINT32_C(0x9e3779b1) & mask;  // 0 would stay 0
    v ^= v >> (scale + 1) / 2;
    v = v * UINT32_C(0x85ebca6b) & mask;
    return v;
}

// Edge i of the drawing. Kronecker: each bit of both ends picks one of four quadrants by 16 random bits.
static inline void draw_edge(uint64_t i, unsigned scale, uint64_t seed, bool uniform, uint32_t *from, uint32_t *to) {
    uint64_t random = mix64(seed * UINT64_C(0x100000001b3) + i);
    uint32_t mask = (uint32_t)((UINT64_C(1) << scale) - 1);
    if (uniform) {
        *from = (uint32_t)random & mask;
        *to = (uint32_t)(random >> 32) & mask;
        return;
    }
    enum { A = 37356, AB = A + 12452, ABC = AB + 12452 };  // of 65536
    uint32_t u = 0, v = 0;
    for (unsigned bit = 0; bit < scale; bit++) {
        if (bit % 4 == 0) random = mix64(random);
        uint32_t draw = (uint32_t)(random >> bit % 4 * 16) & 0xffff;
        u = u << 1 | (draw >= AB);
        v = v << 1 | (draw >= ABC || (draw >= A && draw < AB));
    }
    *from = scatter_label(u, scale);
    *to = scatter_label(v, scale);
}

static inline void sum_offsets(uint64_t *offsets, uint32_t n_vertices) {
    uint64_t sum = 0;
    for (uint32_t v = 0; v <= n_vertices; v++) {
        uint64_t row = offsets[v];
        offsets[v] = sum;
        sum += row;
    }
}

// Two counting sorts: by one end, then, reading those rows in order, by the other. The second leaves the rows sorted.
OWN_FRAME static struct graph build_graph(unsigned scale, uint64_t degree, uint64_t seed, bool uniform) {
    struct graph graph = {.n_vertices = UINT32_C(1) << scale};
    uint32_t n = graph.n_vertices;
    uint64_t n_drawn = degree << scale, n_stored = 0;
    uint64_t *offsets = map_array((size_t)n + 1, sizeof *offsets), *next = map_array((size_t)n + 1, sizeof *next);
    for (uint64_t i = 0; i < n_drawn; i++) {
        uint32_t u, v;
        draw_edge(i, scale, seed, uniform, &u, &v);
        if (u == v) continue;
        offsets[u]++;
        offsets[v]++;
        n_stored += 2;
    }
    sum_offsets(offsets, n);
    for (uint32_t v = 0; v <= n; v++) next[v] = offsets[v];
    uint32_t *unsorted = map_array(n_stored, sizeof *unsorted), *edges = map_array(n_stored, sizeof *edges);
    for (uint64_t i = 0; i < n_drawn; i++) {
        uint32_t u, v;
        draw_edge(i, scale, seed, uniform, &u, &v);
        if (u == v) continue;
        unsorted[next[u]++] = v;
        unsorted[next[v]++] = u;
    }
    for (uint32_t v = 0; v <= n; v++) next[v] = offsets[v];
    for (uint32_t u = 0; u < n; u++)  // symmetric, so the transposed graph is the graph
        for (uint64_t e = offsets[u]; e < offsets[u + 1]; e++) edges[next[unsorted[e]]++] = u;
    munmap(unsorted, n_stored * sizeof *unsorted);
    uint64_t n_kept = 0;
    for (uint32_t u = 0; u < n; u++) {
        uint64_t begin = n_kept;
        for (uint64_t e = offsets[u]; e < next[u]; e++)
            if (n_kept == begin || edges[n_kept - 1] != edges[e]) edges[n_kept++] = edges[e];
        offsets[u] = begin;  // rows only move down, so the row after this one is still in place
    }
    offsets[n] = n_kept;
    munmap(next, ((size_t)n + 1) * sizeof *next);
    graph.n_edges = n_kept;
    graph.offsets = offsets;
    graph.edges = edges;
    return graph;
}

// ---- a run of a kernel ----

struct graph_run {
    struct run run;
    long scale, degree, n_threads, iterations, seed;
    bool uniform, check, converge;
    struct graph graph;
    struct team team;
    double kernel_s;
};

// Options, the graph and the team. `iterations` is the default; what it counts is up to the kernel. `may_converge`: it
// can sweep until little changes.
static inline void begin_sweeping_run(struct graph_run *g, int argc, char **argv, const char *region, long iterations,
                                      bool may_converge) {
    g->scale = 16, g->degree = 8, g->n_threads = 1, g->iterations = iterations, g->seed = 1;
    g->uniform = g->check = g->converge = false;
    const struct option_spec options[] = {
        number_option("--scale", &g->scale, "2^N vertices"),
        number_option("--degree", &g->degree, "edges drawn a vertex; each is stored twice"),
        number_option("--threads", &g->n_threads, "threads, the main one included"),
        number_option("--iterations", &g->iterations, "runs of the kernel, or its sweeps"),
        number_option("--seed", &g->seed, "of the graph and the sources"),
        flag_option("--uniform", &g->uniform, "a uniform random graph, not a Kronecker one"),
        flag_option("--check", &g->check, "compare with a simple serial algorithm"),
        flag_option("--converge", &g->converge, "sweep until little changes, at most --iterations times; one thread"),
    };
    g->run = begin_run(argc, argv, options, COUNT_OF(options) - (may_converge ? 0 : 1));
    // Which sweep is the last would depend on scheduling, or on the order in which threads' changes are added up.
    require(!g->converge || g->n_threads == 1, "--converge needs --threads 1");
    require(g->scale >= 2 && g->scale <= 28, "--scale must be from 2 to 28");
    require(g->degree >= 1 && g->degree <= 1024, "--degree must be from 1 to 1024");
    require(g->iterations >= 1, "--iterations must be at least 1");
    g->graph = build_graph((unsigned)g->scale, (uint64_t)g->degree, (uint64_t)g->seed, g->uniform);
    require(g->graph.n_edges > 0, "the graph has no edges");
    start_team(&g->team, g->n_threads, region);
    g->kernel_s = 0;
}

static inline void begin_graph_run(struct graph_run *g, int argc, char **argv, const char *region, long iterations) {
    begin_sweeping_run(g, argc, argv, region, iterations, false);
}

// The source of run i: a vertex that has edges.
static inline uint32_t source_of_run(const struct graph_run *g, long i) {
    uint64_t random = mix64((uint64_t)g->seed + UINT64_C(0x51ed2701)) + (uint64_t)i * UINT64_C(0x9e3779b97f4a7c15);
    for (;;) {
        random = mix64(random);
        uint32_t v = (uint32_t)(random % g->graph.n_vertices);
        if (degree_of(&g->graph, v)) return v;
    }
}

static inline int end_graph_run(struct graph_run *g) {
    end_team(&g->team);
    if (g->run.print_time) fprintf(stderr, "kernel_seconds=%.6f\n", g->kernel_s);
    return end_run(&g->run);
}

// Sums words so that an exchange of two shows.
static inline uint64_t add_to_checksum(uint64_t checksum, uint64_t word) { return mix64(checksum ^ word); }

// Depth of each vertex from the source by a plain queue, NO_VERTEX where it is not reached: the oracle of several.
static inline void serial_depths(const struct graph *graph, uint32_t source, uint32_t *depths) {
    uint32_t *queue = (uint32_t *)malloc(graph->n_vertices * sizeof *queue);
    require(queue != NULL, "out of memory");
    for (uint32_t v = 0; v < graph->n_vertices; v++) depths[v] = NO_VERTEX;
    size_t head = 0, tail = 0;
    depths[source] = 0;
    queue[tail++] = source;
    while (head < tail) {
        uint32_t v = queue[head++];
        for (uint64_t e = graph->offsets[v]; e < graph->offsets[v + 1]; e++) {
            uint32_t w = graph->edges[e];
            if (depths[w] != NO_VERTEX) continue;
            depths[w] = depths[v] + 1;
            queue[tail++] = w;
        }
    }
    free(queue);
}

// Smallest vertex of each component: the oracle of both component kernels.
static inline void serial_components(const struct graph *graph, uint32_t *labels) {
    uint32_t *stack = (uint32_t *)malloc(graph->n_vertices * sizeof *stack);
    require(stack != NULL, "out of memory");
    for (uint32_t v = 0; v < graph->n_vertices; v++) labels[v] = NO_VERTEX;
    for (uint32_t root = 0; root < graph->n_vertices; root++) {
        if (labels[root] != NO_VERTEX) continue;
        size_t n_open = 0;
        labels[root] = root;
        stack[n_open++] = root;
        while (n_open) {
            uint32_t v = stack[--n_open];
            for (uint64_t e = graph->offsets[v]; e < graph->offsets[v + 1]; e++) {
                uint32_t w = graph->edges[e];
                if (labels[w] != NO_VERTEX) continue;
                labels[w] = root;
                stack[n_open++] = w;
            }
        }
    }
    free(stack);
}

// A queue that many threads fill: each keeps a small buffer and takes room for it all at once.
enum { QUEUE_BUFFER = 256 };

struct vertex_queue {
    uint32_t *vertices;
    size_t n_vertices;
};

struct queue_buffer {
    size_t n;
    uint32_t vertices[QUEUE_BUFFER];
};

static inline void flush_buffer(struct queue_buffer *buffer, struct vertex_queue *queue) {
    size_t at = __atomic_fetch_add(&queue->n_vertices, buffer->n, __ATOMIC_RELAXED);
    for (size_t i = 0; i < buffer->n; i++) queue->vertices[at + i] = buffer->vertices[i];
    buffer->n = 0;
}

static inline void add_to_queue(struct queue_buffer *buffer, struct vertex_queue *queue, uint32_t v) {
    if (buffer->n == QUEUE_BUFFER) flush_buffer(buffer, queue);
    buffer->vertices[buffer->n++] = v;
}

#endif
