// Hard for counting: a tree of nodes that call each other through pointers, as a renderer's shader graph does.
//
// Options: --depth N, --iterations N, --time, --hold-ms N.
//
// Known answer. A full binary tree of the given depth; each evaluation of the root, region "evaluate", calls every
// node once: 2^(depth + 1) - 1 indirect calls.
#include "workload.h"

#include "../native/include/memlens.h"

static long depth = 12, iterations = 600;

struct node;
typedef double evaluate(const struct node *, double);
struct node {
    evaluate *run;
    struct node *left, *right;
    double constant;
};

OWN_FRAME static double leaf(const struct node *n, double x) { return n->constant * x; }
OWN_FRAME static double sum(const struct node *n, double x) {
    return n->left->run(n->left, x) + n->right->run(n->right, x);
}
OWN_FRAME static double blend(const struct node *n, double x) {
    double a = n->left->run(n->left, x + 1), b = n->right->run(n->right, x - 1);
    return a * n->constant + b * (1 - n->constant);
}
OWN_FRAME static double larger(const struct node *n, double x) {
    double a = n->left->run(n->left, x), b = n->right->run(n->right, x);
    return a > b ? a : b;
}

static struct node *grow(struct node **free_nodes, long levels, uint64_t seed) {
    struct node *n = (*free_nodes)++;
    evaluate *const kinds[] = {sum, blend, larger};
    n->constant = (double)(mix64(seed) % 100) / 100;
    n->run = levels ? kinds[mix64(seed + 1) % 3] : leaf;
    n->left = levels ? grow(free_nodes, levels - 1, seed * 2) : NULL;
    n->right = levels ? grow(free_nodes, levels - 1, seed * 2 + 1) : NULL;
    return n;
}

OWN_FRAME static double shade(const struct node *root, double x) {
    MEMLENS_SCOPE("evaluate");
    return root->run(root, x);
}

int main(int argc, char **argv) {
    const struct option_spec options[] = {
        number_option("--depth", &depth, "levels of the tree below its root"),
        number_option("--iterations", &iterations, "evaluations"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(depth < 26, "--depth must be below 26");
    size_t n_nodes = ((size_t)2 << depth) - 1;
    struct node *nodes = malloc(n_nodes * sizeof *nodes), *free_nodes = nodes;
    require(nodes != NULL, "out of memory");
    struct node *root = grow(&free_nodes, depth, 1);
    double begin_s = now_s(), total = 0;
    for (long i = 0; i < iterations; i++) total += shade(root, (double)(i % 17));
    if (run.print_time) fprintf(stderr, "kernel_seconds=%.6f\n", now_s() - begin_s);
    printf("hard_tree calls=%zu total=%.6g\n", n_nodes * (size_t)iterations, total);
    free(nodes);
    return end_run(&run);
}
