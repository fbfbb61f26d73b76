// Every way to ask the C library for memory, and to give it back, one after another in one thread.
//
// Options: --log FILE (see alloc_log.h), --hold-ms N, --time.
//
// Known answer. The log: each call is one record of the same operation, address and bytes; a realloc of an object is a
// release of the old one and the new one; realloc(p, 0) is a release; failed calls of realloc and reallocarray, and
// free(NULL), are nothing; a failed malloc is a record with address 0. `libc` calls (strdup, asprintf, getline) are
// records of malloc and realloc after which exactly the returned object lives.
#include "alloc_log.h"

#include <malloc.h>

static volatile size_t one = 1;  // keeps sizes unknown to the compiler
static void *volatile null;      // and this: it would turn realloc(NULL, n) into malloc(n)

OWN_FRAME static void chains(void) {
    char *p = MALLOC(40 * one);
    p = LOGGED("realloc", 24 * one, p, realloc(p, 24 * one));          // shrinks in place
    p = LOGGED("realloc", 300000 * one, p, realloc(p, 300000 * one));  // grows: to a mapping of its own
    p = LOGGED("realloc", 900000 * one, p, realloc(p, 900000 * one));  // grows: mremap
    p = LOGGED("realloc", 500 * one, p, realloc(p, 500 * one));        // comes back to the heap
    char *q = MALLOC(16 * one);                                        // in the way of growing in place
    p = LOGGED("realloc", 5000 * one, p, realloc(p, 5000 * one));
    p = LOGGED("reallocarray", 7 * 1000 * one, p, reallocarray(p, 7 * one, 1000));
    LOGGED("failed", 0, p, realloc(p, SIZE_MAX / 2 * one));
    LOGGED("failed", 0, p, reallocarray(p, SIZE_MAX / 2 * one, 3));
    FREE(q);
    LOGGED("realloc-free", 0, p, realloc(p, one - 1));
    p = LOGGED("realloc", 64 * one, 0, realloc(null, 64 * one));
    FREE(p);
    p = LOGGED("calloc", 21 * one, 0, calloc(3 * one, 7));
    require(p[0] == 0 && p[20] == 0, "calloc gave memory that is not zero");
    FREE(p);
    p = LOGGED("calloc", 400000 * one, 0, calloc(400 * one, 1000));
    FREE(p);
    LOGGED("failed", 0, 0, calloc(SIZE_MAX / 2 * one, 3));
    LOGGED("malloc", SIZE_MAX / 2 * one, 0, malloc(SIZE_MAX / 2 * one));
    LOGGED("malloc", SIZE_MAX - 100 + one, 0, malloc(SIZE_MAX - 100 + one));
    LOGGED("malloc", (size_t)1 << 63, 0, malloc(((size_t)1 << 63) * one));
    p = MALLOC(one - 1);
    FREE(p);
    LOGGED_FREE("nothing", NULL, free((void *)(one - 1)));
}

OWN_FRAME static void aligned(void) {
    void *p = NULL;
    uint64_t begin_ns = log_now_ns();
    int error = posix_memalign(&p, 64 * one, 100);
    log_call("aligned", p, 100, 0, begin_ns);
    require(error == 0 && (uintptr_t)p % 64 == 0, "posix_memalign");
    FREE(p);
    begin_ns = log_now_ns();
    error = posix_memalign(&p, 3 * one, 100);  // no power of two: nothing happens
    log_call("failed", NULL, 0, 0, begin_ns);
    require(error == EINVAL, "posix_memalign of 3");
    p = LOGGED("aligned", 4096, 0, aligned_alloc(256 * one, 4096));
    FREE(p);
    p = LOGGED("aligned", 33, 0, memalign(32 * one, 33));
    p = LOGGED("realloc", 4000, p, realloc(p, 4000 * one));
    FREE(p);
    p = LOGGED("aligned", 10, 0, valloc(10 * one));
    FREE(p);
    p = LOGGED("aligned", 10, 0, pvalloc(10 * one));
    FREE(p);
}

OWN_FRAME static void from_libc(const char *line_file) {
    char *p = LOGGED("malloc", 6, 0, strdup("hello"));
    FREE(p);
    p = LOGGED("malloc", 3, 0, strndup("hello", 2 * one));
    FREE(p);
    uint64_t begin_ns = log_now_ns();
    char *text = NULL;
    int length = asprintf(&text, "%0*d", (int)(300 * one), 7);
    log_call("libc", text, 0, 0, begin_ns);
    require(length == 300, "asprintf");
    FREE(text);
    FILE *file = (FILE *)LOGGED("libc", 0, 0, fopen(line_file, "r"));
    require(file != NULL, "fopen");
    static char buffer[4096];
    setvbuf(file, buffer, _IOFBF, sizeof buffer);
    char *line = NULL;
    size_t capacity = 0;
    begin_ns = log_now_ns();
    ssize_t got = getline(&line, &capacity, file);
    log_call("libc", line, 0, 0, begin_ns);
    require(got > 0, "getline");
    FREE(line);
    LOGGED_FREE("free", file, fclose(file));
}

int main(int argc, char **argv) {
    const struct option_spec options[] = {text_option("--log", &log_path, "where the calls are logged")};
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    log_prepare();
    chains();
    aligned();
    from_libc("/proc/self/status");
    for (int i = 0; i < 1000; i++) FREE(MALLOC((size_t)i * one));
    void *kept = MALLOC(12345 * one);  // never released
    require(kept != NULL, "out of memory");
    unsigned long calls = logged_count;
    log_write();
    printf("case_alloc_calls calls=%lu\n", calls);
    return end_run(&run);
}
