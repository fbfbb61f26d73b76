// One map, four hash tables: for each vertex of a graph, weights of its edges are added up by the community of the neighbour, and the
// heaviest community is taken, as the Louvain method does in its inner loop.
//
//   --table standard  std::unordered_map
//   --table chained   buckets of linked nodes, one allocation a node; grows by rehashing, as std::unordered_map does
//   --table open      open addressing with linear probing, from 16 slots up, doubling when more than half full
//   --table sized     the same, made large enough before the first insertion
//
// Maps of a batch of vertices live at the same time, so that the nodes of one lie between those of others.
//
// Options: --table NAME, --vertices N (a power of two), --degree N, --iterations N, --time, --hold-ms N.
//
// Known answer. All tables give the same communities: the line is the same for each, but for the table's name. Vertex v has between 1 and
// 2 N edges, of vertices that mix64 draws, in vertices / 64 communities. `build_map` inserts each edge once, `heaviest` walks each map once.
#include <unordered_map>

#include "workload.h"

#include "../native/include/memlens.h"

namespace {

struct Entry {
    uint32_t community;
    uint32_t weight;  // 0: the slot is free
};

class ChainedMap {
  public:
    explicit ChainedMap(size_t) { grow(13); }
    ~ChainedMap() {
        for (Node *node = first_; node;) {
            Node *next = node->next;
            free(node);
            node = next;
        }
        free(buckets_);
    }
    ChainedMap(const ChainedMap &) = delete;
    ChainedMap &operator=(const ChainedMap &) = delete;

    OWN_FRAME void insert(uint32_t community, uint32_t weight) {
        for (Node *node = buckets_[community % n_buckets_]; node; node = node->chain)
            if (node->entry.community == community) {
                node->entry.weight += weight;
                return;
            }
        if (n_entries_ == n_buckets_) grow(2 * n_buckets_ + 1);
        Node *node = static_cast<Node *>(malloc(sizeof *node));
        if (!node) fail("out of memory");
        Node *&bucket = buckets_[community % n_buckets_];
        *node = {first_, bucket, {community, weight}};
        first_ = bucket = node;
        n_entries_++;
    }

    OWN_FRAME Entry heaviest() const {
        Entry best = {UINT32_MAX, 0};
        for (const Node *node = first_; node; node = node->next) best = heavier(best, node->entry);
        return best;
    }

    static Entry heavier(Entry a, Entry b) {
        return b.weight > a.weight || (b.weight == a.weight && b.community < a.community) ? b : a;
    }

  private:
    struct Node {
        Node *next;   // of all nodes
        Node *chain;  // of the bucket
        Entry entry;
    };
    void grow(size_t n_buckets) {
        free(buckets_);
        n_buckets_ = n_buckets;
        buckets_ = static_cast<Node **>(calloc(n_buckets, sizeof *buckets_));
        if (!buckets_) fail("out of memory");
        for (Node *node = first_; node; node = node->next) {
            Node *&bucket = buckets_[node->entry.community % n_buckets_];
            node->chain = bucket;
            bucket = node;
        }
    }

    Node **buckets_ = nullptr;
    Node *first_ = nullptr;
    size_t n_buckets_ = 0, n_entries_ = 0;
};

class StandardMap {
  public:
    explicit StandardMap(size_t) {}
    OWN_FRAME void insert(uint32_t community, uint32_t weight) { weights_[community] += weight; }
    OWN_FRAME Entry heaviest() const {
        Entry best = {UINT32_MAX, 0};
        for (const auto &[community, weight] : weights_) best = ChainedMap::heavier(best, {community, weight});
        return best;
    }

  private:
    std::unordered_map<uint32_t, uint32_t> weights_;
};

template <bool is_sized>
class OpenMap {
  public:
    explicit OpenMap(size_t most_entries) {
        size_t n_slots = 16;
        while (is_sized && n_slots < 2 * most_entries) n_slots *= 2;
        make(n_slots);
    }
    ~OpenMap() { free(slots_); }
    OpenMap(const OpenMap &) = delete;
    OpenMap &operator=(const OpenMap &) = delete;

    OWN_FRAME void insert(uint32_t community, uint32_t weight) {
        Entry *slot = find(community);
        if (!slot || (!slot->weight && 2 * (n_entries_ + 1) > n_slots_)) {
            do grow();
            while (!(slot = find(community)));
        }
        n_entries_ += !slot->weight;
        slot->community = community;
        slot->weight += weight;
    }

    OWN_FRAME Entry heaviest() const {
        Entry best = {UINT32_MAX, 0};
        for (size_t i = 0; i < n_slots_ + TAIL; i++)
            if (slots_[i].weight) best = ChainedMap::heavier(best, slots_[i]);
        return best;
    }

  private:
    enum { TAIL = 16 };  // slots behind the last: a search needs not begin again at the first

    void make(size_t n_slots) {
        n_slots_ = n_slots;
        slots_ = static_cast<Entry *>(calloc(n_slots + TAIL, sizeof *slots_));
        if (!slots_) fail("out of memory");
    }
    // The slot of a community, or a free one for it; none when the tail is full.
    Entry *find(uint32_t community) const {
        Entry *const end = slots_ + n_slots_ + TAIL;
        for (Entry *slot = slots_ + (community & (n_slots_ - 1)); slot < end; slot++)
            if (!slot->weight || slot->community == community) return slot;
        return nullptr;
    }
    void grow() {
        Entry *old = slots_;
        const size_t n_old = n_slots_ + TAIL;
        make(2 * n_slots_);
        for (size_t i = 0; i < n_old; i++)
            if (old[i].weight) {
                Entry *slot = find(old[i].community);
                if (!slot) fail("a table twice as large is full");
                *slot = old[i];
            }
        free(old);
    }

    Entry *slots_;
    size_t n_slots_, n_entries_ = 0;
};

struct Graph {
    uint32_t n_vertices;
    uint64_t *offsets;
    uint32_t *edges, *communities;
};

template <class Map>
OWN_FRAME void build_map(Map &map, const Graph &graph, uint32_t vertex) {
    for (uint64_t e = graph.offsets[vertex]; e < graph.offsets[vertex + 1]; e++)
        map.insert(graph.communities[graph.edges[e]], 1 + (uint32_t)(e & 1));
}

template <class Map>
uint64_t run_with(const Graph &graph, long iterations) {
    constexpr uint32_t BATCH = 32;
    uint64_t checksum = 0;
    for (long i = 0; i < iterations; i++)
        for (uint32_t first = 0; first < graph.n_vertices; first += BATCH) {
            const uint32_t end = first + BATCH < graph.n_vertices ? first + BATCH : graph.n_vertices;
            Map *maps[BATCH];
            for (uint32_t v = first; v < end; v++) {
                maps[v - first] = new Map(graph.offsets[v + 1] - graph.offsets[v]);
                build_map(*maps[v - first], graph, v);
            }
            for (uint32_t v = first; v < end; v++) {
                const Entry best = maps[v - first]->heaviest();
                checksum = mix64(checksum ^ ((uint64_t)best.community << 32 | best.weight));
            }
            for (uint32_t v = first; v < end; v++) delete maps[v - first];
        }
    return checksum;
}

Graph make_graph(uint32_t n_vertices, uint32_t degree) {
    Graph graph = {n_vertices, nullptr, nullptr, nullptr};
    graph.offsets = static_cast<uint64_t *>(map_fresh((n_vertices + 1) * sizeof *graph.offsets));
    for (uint32_t v = 0; v < n_vertices; v++) graph.offsets[v + 1] = graph.offsets[v] + 1 + mix64(v) % (2 * degree);
    graph.edges = static_cast<uint32_t *>(map_fresh(graph.offsets[n_vertices] * sizeof *graph.edges));
    for (uint64_t e = 0; e < graph.offsets[n_vertices]; e++) graph.edges[e] = (uint32_t)(mix64(~e) % n_vertices);
    graph.communities = static_cast<uint32_t *>(map_fresh(n_vertices * sizeof *graph.communities));
    for (uint32_t v = 0; v < n_vertices; v++)
        graph.communities[v] = (uint32_t)(mix64(v * UINT64_C(7)) % (n_vertices / 64));
    return graph;
}

}  // namespace

int main(int argc, char **argv) {
    long vertices = 1 << 14, degree = 32, iterations = 2;
    const char *table = "chained";
    const option_spec options[] = {
        text_option("--table", &table, "standard, chained, open or sized"),
        number_option("--vertices", &vertices, "vertices, a power of two"),
        number_option("--degree", &degree, "edges of a vertex, on average"),
        number_option("--iterations", &iterations, "rounds over all vertices"),
    };
    run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(vertices >= 64 && (vertices & (vertices - 1)) == 0, "--vertices must be a power of two from 64 up");
    require(degree >= 1 && iterations >= 1, "--degree and --iterations must be at least 1");
    const Graph graph = make_graph((uint32_t)vertices, (uint32_t)degree);
    uint64_t checksum = 0;
    const double begin_s = now_s();
    memlens_begin("communities");
    if (!strcmp(table, "standard")) checksum = run_with<StandardMap>(graph, iterations);
    else if (!strcmp(table, "chained")) checksum = run_with<ChainedMap>(graph, iterations);
    else if (!strcmp(table, "open")) checksum = run_with<OpenMap<false>>(graph, iterations);
    else if (!strcmp(table, "sized")) checksum = run_with<OpenMap<true>>(graph, iterations);
    else fail("--table %s: not one of standard, chained, open, sized", table);
    memlens_end("communities");
    if (run.print_time) fprintf(stderr, "kernel_seconds=%.6f\n", now_s() - begin_s);
    printf("hash_tables table=%s vertices=%ld edges=%llu iterations=%ld checksum=%016llx\n", table, vertices,
           (unsigned long long)graph.offsets[vertices], iterations, (unsigned long long)checksum);
    return end_run(&run);
}
