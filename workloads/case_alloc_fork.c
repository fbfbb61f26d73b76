// Processes of every kind of birth: a child releases its parent's objects and allocates its own.
//
// Options: --how fork|_Fork|clone|nested|threads|vfork|spawn|system, --children N, --log FILE (see alloc_log.h),
// --hold-ms N, --time.
//
// Known answer. The log, by process: the parent's 100 objects and its own releases; each child's releases of the same
// 100 objects at the same addresses, and 50 objects of its own, 25 of them released. A child of vfork, posix_spawn and
// system only runs another program (`true`), which is recorded as a process of its own.
#include "alloc_log.h"

#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

enum { SHARED = 100, OWN = 50 };

static void *shared[SHARED];

OWN_FRAME static void child_work(void) {
    for (int i = 0; i < SHARED; i++) FREE(shared[i]);
    void *own[OWN];
    for (int i = 0; i < OWN; i++) own[i] = MALLOC((size_t)(1000 + i));
    for (int i = 0; i < OWN / 2; i++) FREE(own[i]);
}

__attribute__((noreturn)) static void child(int levels) {
    log_forget();
    child_work();
    log_write();
    if (levels > 1) {
        for (int i = 0; i < SHARED; i++) shared[i] = malloc(64);
        pid_t pid = fork();
        if (pid == 0) child(levels - 1);
        int status;
        if (waitpid(pid, &status, 0) != pid || status != 0) _exit(1);
    }
    _exit(0);
}

static void wait_for(pid_t pid) {
    int status = -1;
    require(pid > 0, "cannot start a process");
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
    require(status == 0, "a child failed");
}

static volatile bool busy = true;

static void *allocate_until_told(void *unused) {
    while (busy) {
        for (int i = 0; i < 20; i++) free(malloc(128));
        sleep_ms(1);
    }
    return unused;
}

int main(int argc, char **argv) {
    const char *how = "fork";
    long n_children = 1;
    const struct option_spec options[] = {text_option("--how", &how, "how children are made"),
                                          number_option("--children", &n_children, "one after another"),
                                          text_option("--log", &log_path, "where the calls are logged")};
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    log_prepare();
    pthread_t others[4];
    bool with_threads = !strcmp(how, "threads");
    for (int i = 0; with_threads && i < 4; i++) pthread_create(&others[i], NULL, allocate_until_told, NULL);
    for (int i = 0; i < SHARED; i++) shared[i] = MALLOC((size_t)(100 + i));
    for (long i = 0; i < n_children; i++) {
        pid_t pid = -1;
        if (!strcmp(how, "fork") || with_threads) {
            if ((pid = fork()) == 0) child(1);
        } else if (!strcmp(how, "nested")) {
            if ((pid = fork()) == 0) child(4);
        } else if (!strcmp(how, "_Fork")) {
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 34)
            if ((pid = _Fork()) == 0) child(1);
#else
            skip("_Fork came with glibc 2.34");
#endif
        } else if (!strcmp(how, "clone")) {
            if ((pid = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)) == 0) child(1);
        } else if (!strcmp(how, "vfork")) {
            if ((pid = vfork()) == 0) {
                execlp("true", "true", (char *)NULL);
                _exit(127);
            }
        } else if (!strcmp(how, "spawn")) {
            char *words[] = {(char *)"true", NULL};
            require(posix_spawnp(&pid, "true", NULL, NULL, words, environ) == 0, "posix_spawnp");
        } else if (!strcmp(how, "system")) {
            require(system("true; true") == 0, "system");
            continue;
        } else {
            fail("--how %s is not known", how);
        }
        wait_for(pid);
    }
    for (int i = 0; i < SHARED; i++) FREE(shared[i]);
    busy = false;
    for (int i = 0; with_threads && i < 4; i++) pthread_join(others[i], NULL);
    log_write();
    printf("case_alloc_fork %s children=%ld\n", how, n_children);
    return end_run(&run);
}
