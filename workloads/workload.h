// What every workload shares: options, fresh memory, threads, time, and how a run ends.
//
// Header only, C11 and C++17; included first (it asks for the GNU interfaces). It prints nothing on stdout except
// through skip(); a workload prints its own single deterministic line. Nothing here touches a page of the memory it
// maps: first touches belong to the line marked `// touch: here` of the workload (`// touch: here NAME` where a
// program has several).
#ifndef MEMLENS_WORKLOAD_H
#define MEMLENS_WORKLOAD_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

// Keeps a function's own name and frame. GCC would otherwise clone it (`f.constprop.0`) or merge two equal bodies.
#if defined(__GNUC__) && !defined(__clang__)
#define OWN_FRAME __attribute__((noinline, noclone, no_icf))
#else
#define OWN_FRAME __attribute__((noinline))
#endif

// Says that the function needs its frame pointer. Even with -fno-omit-frame-pointer GCC on x86-64 leaves it out of a
// leaf function that uses no stack; a stack walked by frame pointers then misses that function's caller. Functions
// that touch pages and call nothing start with this, so that stacks in the known answers are whole.
#define KEEP_FRAME() __asm__ volatile("" : : "r"(__builtin_frame_address(0)))

enum { EXIT_SKIPPED = 77 };  // what test drivers read as "cannot run here"
#define MIB ((size_t)1 << 20)

__attribute__((noreturn, format(printf, 1, 2))) static inline void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("error: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(EXIT_FAILURE);
}

__attribute__((noreturn)) static inline void skip(const char *reason) {
    printf("skipped: %s\n", reason);
    exit(EXIT_SKIPPED);
}

static inline void require(bool condition, const char *what) {
    if (!condition) fail("%s", what);
}

// ---- options ----

// One command-line option; exactly one target is set. Numbers are decimal and not negative.
struct option_spec {
    const char *name;
    const char *help;
    long *number;
    bool *flag;
    const char **text;
};

static inline struct option_spec number_option(const char *name, long *target, const char *help) {
    struct option_spec spec = {name, help, target, NULL, NULL};
    return spec;
}
static inline struct option_spec flag_option(const char *name, bool *target, const char *help) {
    struct option_spec spec = {name, help, NULL, target, NULL};
    return spec;
}
static inline struct option_spec text_option(const char *name, const char **target, const char *help) {
    struct option_spec spec = {name, help, NULL, NULL, target};
    return spec;
}

static inline void print_usage(const char *program, const struct option_spec *options, size_t n_options) {
    fprintf(stderr, "usage: %s [options]\n", program);
    for (size_t i = 0; i < n_options; i++) {
        const struct option_spec *o = &options[i];
        const char *value = o->number ? " N" : o->text ? " NAME" : "";
        fprintf(stderr, "  %s%-*s %s", o->name, (int)(18 - strlen(o->name)), value, o->help);
        if (o->number) fprintf(stderr, " (default %ld)", *o->number);
        if (o->text) fprintf(stderr, " (default %s)", *o->text);
        fputc('\n', stderr);
    }
}

static inline void parse_options(int argc, char **argv, const struct option_spec *options, size_t n_options) {
    for (int a = 1; a < argc; a++) {
        if (!strcmp(argv[a], "--help")) {
            print_usage(argv[0], options, n_options);
            exit(EXIT_SUCCESS);
        }
        const struct option_spec *found = NULL;
        for (size_t i = 0; i < n_options; i++)
            if (!strcmp(argv[a], options[i].name)) found = &options[i];
        if (!found) {
            print_usage(argv[0], options, n_options);
            fail("unknown option %s", argv[a]);
        }
        if (found->flag) {
            *found->flag = true;
            continue;
        }
        if (a + 1 == argc) fail("%s needs a value", argv[a]);
        const char *value = argv[++a];
        if (found->text) {
            *found->text = value;
            continue;
        }
        char *end;
        errno = 0;
        long number = strtol(value, &end, 10);
        if (errno || *end || end == value || number < 0) fail("%s %s: not a number from 0 up", found->name, value);
        *found->number = number;
    }
}

// ---- a run: --time, --laps and --hold-ms are options of every workload ----

struct run {
    double begin_s;
    bool print_time;
    long hold_ms;
};

static inline double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static inline void sleep_ms(long ms) {
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&left, &left) && errno == EINTR) continue;
}

// Laps: parts of the work that are the same in every run, each timed by itself, for machines that others slow down now and
// then: of several runs, the least time of each lap. Nothing but a comparison without --laps.
struct laps {
    bool wanted;
    size_t n, n_allocated;
    double began_s;
    double *seconds;
};

static inline struct laps *laps_of_run(void) {
    static struct laps laps;
    return &laps;
}

static inline void begin_lap(void) {
    if (laps_of_run()->wanted) laps_of_run()->began_s = now_s();
}

// Another may follow at once.
static inline void end_lap(void) {
    struct laps *laps = laps_of_run();
    if (!laps->wanted) return;
    double now = now_s();
    if (laps->n == laps->n_allocated) {
        laps->n_allocated = laps->n_allocated ? 2 * laps->n_allocated : 4096;
        laps->seconds = (double *)realloc(laps->seconds, laps->n_allocated * sizeof *laps->seconds);
        require(laps->seconds != NULL, "out of memory");
    }
    laps->seconds[laps->n++] = now - laps->began_s;
    laps->began_s = now;
}

// At most 12 options of the workload's own.
static inline struct run begin_run(int argc, char **argv, const struct option_spec *own, size_t n_own) {
    struct run run = {now_s(), false, 0};
    struct option_spec all[15];
    require(n_own <= 12, "too many options for the table");
    for (size_t i = 0; i < n_own; i++) all[i] = own[i];
    all[n_own] = flag_option("--time", &run.print_time, "print seconds=S on stderr");
    all[n_own + 1] = number_option("--hold-ms", &run.hold_ms, "sleep at the end, memory still mapped");
    all[n_own + 2] = flag_option("--laps", &laps_of_run()->wanted, "print laps=S,S,... on stderr");
    parse_options(argc, argv, all, n_own + 3);
    return run;
}

// The workload has verified and printed its line; nothing may be unmapped before this when --hold-ms is to show it.
static inline int end_run(const struct run *run) {
    if (fflush(stdout)) fail("cannot write the result line: %s", strerror(errno));
    if (run->print_time) fprintf(stderr, "seconds=%.6f\n", now_s() - run->begin_s);
    const struct laps *laps = laps_of_run();
    for (size_t i = 0; i < laps->n; i++) fprintf(stderr, "%s%.7f", i ? "," : "laps=", laps->seconds[i]);
    if (laps->n) fputc('\n', stderr);
    if (run->hold_ms) sleep_ms(run->hold_ms);
    return EXIT_SUCCESS;
}

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

// ---- memory ----

static inline size_t page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }

static inline size_t pages_in(size_t bytes) { return (bytes + page_bytes() - 1) / page_bytes(); }

static inline unsigned char *map_or_fail(size_t bytes, int flags, int fd) {
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (base == MAP_FAILED) fail("mmap of %zu bytes: %s", bytes, strerror(errno));
    return (unsigned char *)base;
}

// Private anonymous memory, untouched, in base pages whatever the transparent-huge-page policy is:
// the closed forms count one fault a page. madvise fails harmlessly on kernels without huge pages.
static inline void *map_fresh(size_t bytes) {
    unsigned char *base = map_or_fail(bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    (void)madvise(base, bytes, MADV_NOHUGEPAGE);
    return base;
}

// An address range of `bytes` whose start is a multiple of `align_bytes`, reserved without access: map over it with
// MAP_FIXED.
static inline unsigned char *reserve_aligned(size_t bytes, size_t align_bytes) {
    void *raw = mmap(NULL, bytes + align_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) fail("mmap of %zu bytes: %s", bytes + align_bytes, strerror(errno));
    size_t head_bytes = (align_bytes - (uintptr_t)raw % align_bytes) % align_bytes;
    unsigned char *aligned = (unsigned char *)raw + head_bytes;
    if (head_bytes) munmap(raw, head_bytes);
    if (head_bytes < align_bytes) munmap(aligned + bytes, align_bytes - head_bytes);
    return aligned;
}

// How many pages of the range the page table (private memory) or the page cache (file) holds, by mincore(2).
static inline size_t resident_pages(void *base, size_t bytes) {
    size_t n_pages = pages_in(bytes), n_resident = 0;
    unsigned char *is_resident = (unsigned char *)malloc(n_pages);
    require(is_resident != NULL, "out of memory");
    if (mincore(base, bytes, is_resident)) fail("mincore: %s", strerror(errno));
    for (size_t i = 0; i < n_pages; i++) n_resident += is_resident[i] & 1;
    free(is_resident);
    return n_resident;
}

// An unlinked temporary file of `bytes`, its page p starting with the byte p & 0xff, wholly in the page cache.
static inline int cached_file(size_t bytes) {
    const char *folder = getenv("TMPDIR");
    char path[4096];
    snprintf(path, sizeof path, "%s/memlens-workload-XXXXXX", folder && *folder ? folder : "/tmp");
    int fd = mkstemp(path);
    if (fd < 0) fail("cannot create %s: %s", path, strerror(errno));
    unlink(path);
    unsigned char *page = (unsigned char *)calloc(1, page_bytes());
    require(page != NULL, "out of memory");
    for (size_t p = 0; p < bytes / page_bytes(); p++) {
        page[0] = (unsigned char)p;
        if (write(fd, page, page_bytes()) != (ssize_t)page_bytes()) fail("cannot write %s: %s", path, strerror(errno));
    }
    free(page);
    return fd;
}

// Reads one byte of each page; on pages already there this faults nothing. Used to verify.
static inline uint64_t sum_first_bytes(const void *base, size_t n_pages) {
    const volatile unsigned char *bytes = (const volatile unsigned char *)base;
    uint64_t sum = 0;
    for (size_t p = 0; p < n_pages; p++) sum += bytes[p * page_bytes()];
    return sum;
}

// What sum_first_bytes gives for a cached_file of n_pages.
static inline uint64_t sum_of_cached_file(size_t n_pages) {
    uint64_t sum = 0;
    for (size_t p = 0; p < n_pages; p++) sum += p & 0xff;
    return sum;
}

// ---- random numbers (splitmix64: a bijection of 64-bit integers, so distinct inputs stay distinct) ----

static inline uint64_t mix64(uint64_t x) {
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

// ---- threads ----

typedef void thread_body(long thread_index, void *shared);

struct thread_start {
    thread_body *body;
    long thread_index;
    void *shared;
};

static inline void *thread_main(void *argument) {
    const struct thread_start *start = (const struct thread_start *)argument;
    char name[16];
    snprintf(name, sizeof name, "worker-%ld", start->thread_index % 10000);
    pthread_setname_np(pthread_self(), name);
    start->body(start->thread_index, start->shared);
    return NULL;
}

// Runs body(0..n_threads-1, shared), each on a new thread named worker-I, and waits. The calling thread only waits.
static inline void run_on_threads(long n_threads, thread_body *body, void *shared) {
    require(n_threads >= 1, "--threads must be at least 1");
    pthread_t *threads = (pthread_t *)calloc((size_t)n_threads, sizeof *threads);
    struct thread_start *starts = (struct thread_start *)calloc((size_t)n_threads, sizeof *starts);
    require(threads && starts, "out of memory");
    for (long i = 0; i < n_threads; i++) {
        starts[i].body = body;
        starts[i].thread_index = i;
        starts[i].shared = shared;
        int error = pthread_create(&threads[i], NULL, thread_main, &starts[i]);
        if (error) fail("cannot start thread %ld: %s", i, strerror(error));
    }
    for (long i = 0; i < n_threads; i++) pthread_join(threads[i], NULL);
    free(starts);
    free(threads);
}

// Part i of n_items in n_parts is [part_begin(i), part_begin(i + 1)); parts differ by at most one item.
static inline size_t part_begin(size_t n_items, long part, long n_parts) {
    return (size_t)((unsigned __int128)n_items * (unsigned long)part / (unsigned long)n_parts);
}

#endif
