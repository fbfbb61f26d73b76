// Mappings that are made, cut, grown and moved, and a heap that grows; all through the C library's functions.
//
// Options: --log FILE (see alloc_log.h), --hold-ms N, --time.
//
// Known answer. The log: one record a call. `brk`: after it the last record of operation brk ends at the logged address.
#include "alloc_log.h"

OWN_FRAME static void map_and_cut(void) {
    const size_t page = page_bytes();
    char *p =
        LOGGED("mmap", 8 * page, 0, mmap(NULL, 8 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    LOGGED("munmap", 2 * page, 0, munmap(p + 2 * page, 2 * page) == 0 ? p + 2 * page : NULL);
    LOGGED("munmap", page, 0, munmap(p, page) == 0 ? p : NULL);
    LOGGED("failed", 0, 0, munmap(p + 1, page) == 0 ? p : NULL);
    LOGGED("munmap", 7 * page, 0, munmap(p + page, 7 * page) == 0 ? p + page : NULL);
    LOGGED("failed", 0, 0, mmap(NULL, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    LOGGED("failed", 0, 0, mmap(NULL, SIZE_MAX / 2, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    p = LOGGED("mmap", 4 * page, 0, mmap(NULL, 4 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    char *q = LOGGED("mremap", 64 * page, p, mremap(p, 4 * page, 64 * page, MREMAP_MAYMOVE));
    q = LOGGED("mremap", page, q, mremap(q, 64 * page, page, 0));
    char *target = LOGGED("mmap", page, 0, mmap(NULL, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    q = LOGGED("mremap", page, q, mremap(q, page, page, MREMAP_MAYMOVE | MREMAP_FIXED, target));
    require(q == target, "mremap did not move where it was told to");
    LOGGED("munmap", page, 0, munmap(q, page) == 0 ? q : NULL);
}

OWN_FRAME static void grow_heap(void) {
    require(sbrk((intptr_t)(16 * page_bytes())) != (void *)-1, "sbrk");
    void *p = MALLOC(24);  // the heap's end is looked at when something is recorded
    uint64_t begin_ns = log_now_ns();
    log_call("brk", sbrk(0), 0, 0, begin_ns);
    FREE(p);
}

int main(int argc, char **argv) {
    const struct option_spec options[] = {text_option("--log", &log_path, "where the calls are logged")};
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    log_prepare();
    map_and_cut();
    grow_heap();
    unsigned long calls = logged_count;
    log_write();
    printf("case_alloc_mappings calls=%lu\n", calls);
    return end_run(&run);
}
