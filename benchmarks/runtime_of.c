// Runs a command and writes what that command alone took: from just before fork to its end.
//
//     runtime_of -o FILE -- CMD ARG...
//
// The overhead benchmark records this program, not CMD itself, in every variant: the time is then taken inside, and
// the profiler's own start-up and finishing are outside it. FILE gets lines of name=value. The exit status is that of
// CMD; a signal that ended CMD ends this program too. The cost of its own, one fork and exec, is the same in every
// variant.
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { EXIT_CANNOT_RUN = 127, EXIT_USAGE = 2, EXIT_CANNOT_WRITE = 125 };

static long long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static long long to_ns(struct timeval time) { return time.tv_sec * 1000000000LL + time.tv_usec * 1000LL; }

int main(int argc, char **argv) {
    if (argc < 5 || strcmp(argv[1], "-o") || strcmp(argv[3], "--")) {
        fprintf(stderr, "usage: runtime_of -o FILE -- CMD ARG...\n");
        return EXIT_USAGE;
    }
    const char *output = argv[2];
    char **command = argv + 4;

    long long begin_ns = now_ns();
    pid_t child = fork();
    if (child < 0) {
        fprintf(stderr, "runtime_of: fork: %s\n", strerror(errno));
        return EXIT_CANNOT_RUN;
    }
    if (child == 0) {
        execvp(command[0], command);
        fprintf(stderr, "runtime_of: cannot run %s: %s\n", command[0], strerror(errno));
        _exit(EXIT_CANNOT_RUN);
    }
    int status = 0;
    struct rusage usage;
    while (wait4(child, &status, 0, &usage) < 0 && errno == EINTR) continue;
    long long end_ns = now_ns();

    FILE *file = fopen(output, "w");
    if (!file) {
        fprintf(stderr, "runtime_of: cannot write %s: %s\n", output, strerror(errno));
        return EXIT_CANNOT_WRITE;
    }
    fprintf(file, "wall_ns=%lld\nuser_ns=%lld\nsystem_ns=%lld\n", end_ns - begin_ns, to_ns(usage.ru_utime),
            to_ns(usage.ru_stime));
    fprintf(file, "max_rss_kib=%ld\nminor_faults=%ld\nmajor_faults=%ld\n", usage.ru_maxrss, usage.ru_minflt,
            usage.ru_majflt);
    if (fclose(file)) {
        fprintf(stderr, "runtime_of: cannot write %s: %s\n", output, strerror(errno));
        return EXIT_CANNOT_WRITE;
    }
    if (WIFSIGNALED(status)) {
        signal(WTERMSIG(status), SIG_DFL);
        raise(WTERMSIG(status));
    }
    return WEXITSTATUS(status);
}
