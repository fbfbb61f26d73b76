// Touches pages at a known depth: D frames of a recursive function, 8 instances of a function template, and two
// functions that are always inlined.
//
// Options: --depth D, --pages N, --hold-ms N, --time.
//
// Known answer. N pages touched first by the main thread at the line marked below. The physical frames, innermost
// first: Tower<0>::descend, Tower<1>::descend ... Tower<7>::descend, then `recurse` D times, then main. With inlined
// frames: store_byte and touch_inlined come before Tower<0>::descend, three functions at one instruction. Total: D +
// 8 physical frames below main, D + 10 with the inlined ones.
#include "workload.h"

namespace {

// The compiler may not know what this holds, so nothing of the recursion is folded away.
volatile int n_returns = 0;

__attribute__((always_inline)) inline void store_byte(volatile unsigned char *address) {
    *address = 1;  // touch: here
}

__attribute__((always_inline)) inline void touch_inlined(unsigned char *base, size_t n_pages, size_t stride_bytes) {
    for (size_t p = 0; p < n_pages; p++) store_byte(base + p * stride_bytes);
}

template <int Level>
struct Tower {
    OWN_FRAME static void descend(unsigned char *base, size_t n_pages, size_t stride_bytes) {
        Tower<Level - 1>::descend(base, n_pages, stride_bytes);
        n_returns = n_returns + 1;
    }
};

template <>
struct Tower<0> {
    OWN_FRAME static void descend(unsigned char *base, size_t n_pages, size_t stride_bytes) {
        KEEP_FRAME();
        touch_inlined(base, n_pages, stride_bytes);
        n_returns = n_returns + 1;
    }
};

OWN_FRAME void recurse(long depth, unsigned char *base, size_t n_pages) {
    if (depth > 1) recurse(depth - 1, base, n_pages);
    else Tower<7>::descend(base, n_pages, page_bytes());
    n_returns = n_returns + 1;
}

}  // namespace

int main(int argc, char **argv) {
    long depth = 32, n_pages = 256;
    const option_spec options[] = {
        number_option("--depth", &depth, "frames of recurse"),
        number_option("--pages", &n_pages, "pages to touch"),
    };
    run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(depth >= 1 && depth <= 50000 && n_pages >= 1, "--depth from 1 to 50000, --pages from 1");
    auto *base = static_cast<unsigned char *>(map_fresh(static_cast<size_t>(n_pages) * page_bytes()));
    recurse(depth, base, static_cast<size_t>(n_pages));
    require(sum_first_bytes(base, static_cast<size_t>(n_pages)) == static_cast<uint64_t>(n_pages),
            "a page lost its write");
    require(n_returns == depth + 8, "a frame is missing");
    printf("deep_stack pages=%ld frames=%ld\n", n_pages, depth + 8);
    return end_run(&run);
}
