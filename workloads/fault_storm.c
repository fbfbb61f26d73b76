// A buffer for each piece of work. Bad: it is mapped, touched and unmapped every time, so every pass faults on every
// page. Good twin: --reuse maps it once. --hugepage asks for 2 MiB pages: one fault for 512 base pages where granted.
//
// Options: --mib N, --iterations N, --threads N, --reuse, --hugepage, --time, --hold-ms N.
//
// Known answer. A = N MiB / P pages a pass, touched first by each worker at the line marked below in touch_buffer.
// Bad: T I A faults. --reuse: T A. --hugepage (2 MiB-aligned, N rounded up to a multiple of 2): T I N / 2 faults of
// 512 pages where the kernel grants huge pages, T I A where not. Different mappings may reuse the same addresses:
// a page touched after a munmap is touched first, not again.
#include "workload.h"

static long mib = 16, iterations = 120, n_threads = 2;
static bool reuse = false, hugepage = false;

static unsigned char *map_buffer(size_t bytes) {
    if (!hugepage) return map_fresh(bytes);
    unsigned char *base = reserve_aligned(bytes, 2 * MIB);
    if (mprotect(base, bytes, PROT_READ | PROT_WRITE)) fail("mprotect: %s", strerror(errno));
    (void)madvise(base, bytes, MADV_HUGEPAGE);  // a refusal only means base pages
    return base;
}

OWN_FRAME static void touch_buffer(volatile unsigned char *buffer, size_t bytes, size_t stride_bytes,
                                   unsigned char value) {
    KEEP_FRAME();
    for (size_t at = 0; at < bytes; at += stride_bytes) buffer[at] = value;  // touch: here
}

static void work(long thread_index, void *shared) {
    size_t bytes = *(const size_t *)shared;
    unsigned char *buffer = reuse ? map_buffer(bytes) : NULL;
    for (long pass = 0; pass < iterations; pass++) {
        if (!reuse) buffer = map_buffer(bytes);
        unsigned char value = (unsigned char)(pass + thread_index);
        touch_buffer(buffer, bytes, page_bytes(), value);
        if (sum_first_bytes(buffer, pages_in(bytes)) != (uint64_t)value * pages_in(bytes))
            fail("pass %ld lost a write", pass);
        if (!reuse) munmap(buffer, bytes);
    }
}

int main(int argc, char **argv) {
    const struct option_spec options[] = {
        number_option("--mib", &mib, "MiB of a thread's buffer"),
        number_option("--iterations", &iterations, "passes"),
        number_option("--threads", &n_threads, "worker threads"),
        flag_option("--reuse", &reuse, "map the buffer once"),
        flag_option("--hugepage", &hugepage, "2 MiB-aligned, with MADV_HUGEPAGE"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(mib >= 1, "--mib must be at least 1");
    if (hugepage) mib += mib % 2;
    size_t bytes = (size_t)mib * MIB;
    run_on_threads(n_threads, work, &bytes);
    printf("fault_storm pages=%zu threads=%ld passes=%ld reuse=%d hugepage=%d\n", pages_in(bytes), n_threads,
           iterations, reuse, hugepage);
    return end_run(&run);
}
