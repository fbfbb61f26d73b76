// Ends in a way of your choice, or survives a SIGSEGV: what a profiler must pass on unchanged.
//
// Options: --signal N (dies by that signal), --status N (exits with it), --segv-handler, --pages N, --hold-ms N,
// --time.
//
// Known answer. N pages touched first at `here` in touch_pages. Then dies by signal N (a shell shows 128 + N), or
// exits with the status (default 0). --segv-handler: the N pages start without access; each touch at `here` raises
// SIGSEGV, the handler, on its own stack (sigaltstack), makes that one page writable and the touch is repeated: N
// signals, N first touches, and 2 N page-fault events (the kernel counts the refused access too), of which the first
// of each pair places nothing.
#include "workload.h"

#include <signal.h>
#include <sys/resource.h>

static unsigned char *base;
static size_t bytes, handler_page_bytes;
static volatile sig_atomic_t n_handled;

OWN_FRAME static void touch_pages(volatile unsigned char *memory, size_t n_pages) {
    for (size_t p = 0; p < n_pages; p++) memory[p * page_bytes()] = 1;  // touch: here
}

static void open_page(int signal_number, siginfo_t *info, void *context) {
    (void)context;
    unsigned char *address = info->si_addr;
    if (address < base || address >= base + bytes) {  // a real crash: die of it
        signal(signal_number, SIG_DFL);
        return;
    }
    n_handled++;
    mprotect(address - (uintptr_t)address % handler_page_bytes, handler_page_bytes, PROT_READ | PROT_WRITE);
}

static void install_handler(void) {
    static unsigned char handler_stack[65536];
    stack_t stack = {.ss_sp = handler_stack, .ss_size = sizeof handler_stack};
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = open_page;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    if (sigaltstack(&stack, NULL) || sigaction(SIGSEGV, &action, NULL))
        fail("cannot install the handler: %s", strerror(errno));
}

int main(int argc, char **argv) {
    long signal_number = 0, status = 0, n_pages = 16;
    bool segv_handler = false;
    const struct option_spec options[] = {
        number_option("--signal", &signal_number, "die by this signal"),
        number_option("--status", &status, "exit with this status"),
        number_option("--pages", &n_pages, "pages to touch"),
        flag_option("--segv-handler", &segv_handler, "open each page in a SIGSEGV handler"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(n_pages >= 1 && status <= 255 && signal_number <= 64, "--pages from 1, --status to 255, --signal to 64");
    handler_page_bytes = page_bytes();
    bytes = (size_t)n_pages * handler_page_bytes;
    base = map_fresh(bytes);
    if (segv_handler) {
        if (mprotect(base, bytes, PROT_NONE)) fail("mprotect: %s", strerror(errno));
        install_handler();
    }
    touch_pages(base, (size_t)n_pages);
    require(sum_first_bytes(base, (size_t)n_pages) == (uint64_t)n_pages, "a page lost its write");
    require(n_handled == (segv_handler ? n_pages : 0), "one SIGSEGV a page is expected");
    printf("signal_exit pages=%ld signal=%ld status=%ld handled=%d\n", n_pages, signal_number, status, (int)n_handled);
    int result = end_run(&run);
    if (signal_number) {
        const struct rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        signal((int)signal_number, SIG_DFL);  // fails for SIGKILL and SIGSTOP, which need no default
        raise((int)signal_number);
        fail("signal %ld does not end a process", signal_number);
    }
    return status ? (int)status : result;
}
