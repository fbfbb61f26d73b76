// What the case_alloc programs share: a log of the allocation calls that they make, which is their known answer.
//
// Every call is logged with its thread, its arguments and result, the times before and after it, and the return
// addresses above it as glibc's backtrace() sees them. `--log FILE` appends the log there when the process ends; a line
// is `pid thread operation address bytes old begin_ns end_ns frame,frame,...` (addresses in hexadecimal, the first frame
// is inside the function that made the call). The log itself never allocates.
#ifndef MEMLENS_ALLOC_LOG_H
#define MEMLENS_ALLOC_LOG_H

#include "workload.h"

#include <execinfo.h>
#include <fcntl.h>
#include <sys/syscall.h>

enum { LOG_CAPACITY = 1 << 18, LOG_DEPTH = 12 };

struct logged_call {
    const char *operation;
    uintptr_t address, old_address;
    size_t bytes;
    uint64_t begin_ns, end_ns;
    pid_t thread;
    int n_frames;
    void *frames[LOG_DEPTH];
};

// Lines are formatted here; a child that was forked starts with an empty log (log_forget).
static struct logged_call logged_calls[LOG_CAPACITY];
static unsigned long logged_count;
static bool log_frames = true;
static const char *log_path;

static inline uint64_t log_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static inline pid_t log_thread(void) { return (pid_t)syscall(SYS_gettid); }

// backtrace() loads a library at its first call; that must not happen inside a logged call.
static inline void log_prepare(void) {
    void *frames[LOG_DEPTH];
    (void)backtrace(frames, LOG_DEPTH);
}

__attribute__((always_inline)) static inline void log_call(const char *operation, const void *address, size_t bytes,
                                                           uintptr_t old_address, uint64_t begin_ns) {
    uint64_t end_ns = log_now_ns();
    unsigned long at = __atomic_fetch_add(&logged_count, 1, __ATOMIC_RELAXED);
    if (at >= LOG_CAPACITY) return;
    struct logged_call *call = &logged_calls[at];
    call->operation = operation;
    call->address = (uintptr_t)address;
    call->old_address = old_address;
    call->bytes = bytes;
    call->begin_ns = begin_ns;
    call->end_ns = end_ns;
    call->thread = log_thread();
    call->n_frames = log_frames ? backtrace(call->frames, LOG_DEPTH) : 0;
}

static inline void log_forget(void) { logged_count = 0; }

static inline void log_write(void) {
    if (log_path == NULL) return;
    unsigned long count = __atomic_load_n(&logged_count, __ATOMIC_RELAXED);
    require(count <= LOG_CAPACITY, "the log is full");
    int fd = open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0) fail("cannot open %s: %s", log_path, strerror(errno));
    static char text[1 << 16];
    size_t used = 0;
    for (unsigned long i = 0; i <= count; i++) {
        if (used > sizeof text - 1024 || i == count) {
            if (write(fd, text, used) != (ssize_t)used) fail("cannot write %s", log_path);
            used = 0;
        }
        if (i == count) break;
        const struct logged_call *c = &logged_calls[i];
        used += (size_t)snprintf(text + used, sizeof text - used, "%d %d %s %lx %zu %lx %lu %lu ", (int)getpid(),
                                 (int)c->thread, c->operation, (unsigned long)c->address, c->bytes,
                                 (unsigned long)c->old_address, (unsigned long)c->begin_ns, (unsigned long)c->end_ns);
        for (int f = 0; f < c->n_frames; f++)
            used += (size_t)snprintf(text + used, sizeof text - used, "%lx,", (unsigned long)(uintptr_t)c->frames[f]);
        text[used++] = '\n';
    }
    close(fd);
    logged_count = 0;
}

// The calls, logged. Macros: the call must stand in the function whose frame is expected.
#define LOGGED(operation, bytes, old, call)                                     \
    ({                                                                          \
        uint64_t log_begin_ns = log_now_ns();                                   \
        void *log_result = (void *)(call);                                      \
        log_call(operation, log_result, bytes, (uintptr_t)(old), log_begin_ns); \
        log_result;                                                             \
    })
#define LOGGED_FREE(operation, pointer, call)                             \
    do {                                                                  \
        uintptr_t log_freed = (uintptr_t)(pointer);                       \
        uint64_t log_begin_ns = log_now_ns();                             \
        call;                                                             \
        log_call(operation, (const void *)log_freed, 0, 0, log_begin_ns); \
    } while (0)
#define MALLOC(bytes) LOGGED("malloc", bytes, 0, malloc(bytes))
#define FREE(pointer)                                        \
    do {                                                     \
        void *log_pointer = (pointer);                       \
        LOGGED_FREE("free", log_pointer, free(log_pointer)); \
    } while (0)

#endif
