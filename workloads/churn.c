// A buffer for each turn of a hot loop.
// Bad: malloc and free in the loop. Good twin: --reuse, one buffer for the whole loop.
//
// Options: --turns N, --bytes N, --reuse, --time, --hold-ms N. The loop is the region "hot" (native/include/memlens.h).
//
// Known answer. N allocations of --bytes bytes (one with --reuse), each freed before the next.
#include "workload.h"

#include "../native/include/memlens.h"

OWN_FRAME static unsigned long use(unsigned char *buffer, long bytes, long turn) {
    KEEP_FRAME();
    for (long i = 0; i < bytes; i += 64) buffer[i] = (unsigned char)turn;
    return buffer[turn % bytes];
}

int main(int argc, char **argv) {
    long turns = 2000000, bytes = 256;
    bool reuse = false;
    const struct option_spec options[] = {
        number_option("--turns", &turns, "turns of the loop"),
        number_option("--bytes", &bytes, "bytes of the buffer"),
        flag_option("--reuse", &reuse, "one buffer for all turns (good)"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(turns >= 1 && bytes >= 1, "--turns and --bytes must be at least 1");
    unsigned long sum = 0;
    unsigned char *kept = reuse ? calloc((size_t)bytes, 1) : NULL;
    memlens_begin("hot");
    for (long turn = 0; turn < turns; turn++) {
        unsigned char *buffer = reuse ? kept : calloc((size_t)bytes, 1);  // allocate: here
        require(buffer != NULL, "out of memory");
        sum += use(buffer, bytes, turn);
        if (!reuse) free(buffer);
    }
    memlens_end("hot");
    free(kept);
    printf("churn turns=%ld sum=%lu\n", turns, sum);
    return end_run(&run);
}
