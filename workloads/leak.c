// A message for each turn that is never given back.
// Bad: messages are kept by nobody. Good twins: --free, each message is freed; --table, all are made before the work begins.
//
// Options: --turns N, --batch N, --bytes N, --free, --table, --time, --hold-ms N.
//
// Known answer. turns x batch messages of --bytes bytes are alive at exit (none with --free).
#include "workload.h"

OWN_FRAME static unsigned char *make_message(long bytes, long turn) {
    unsigned char *message = malloc((size_t)bytes);  // allocate: here
    require(message != NULL, "out of memory");
    memset(message, (int)turn, (size_t)bytes);
    KEEP_FRAME();
    return message;
}

int main(int argc, char **argv) {
    long turns = 200, batch = 500, bytes = 1500;
    bool release = false, table = false;
    const struct option_spec options[] = {
        number_option("--turns", &turns, "turns of the loop, 4 ms each"),
        number_option("--batch", &batch, "messages a turn"),
        number_option("--bytes", &bytes, "bytes of a message"),
        flag_option("--free", &release, "free each message (good)"),
        flag_option("--table", &table, "make all messages first, then work (good)"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(turns >= 1 && batch >= 1 && bytes >= 1, "--turns, --batch and --bytes must be at least 1");
    unsigned long sum = 0;
    for (long i = 0; table && i < turns * batch; i++) sum += make_message(bytes, i)[0];
    for (long turn = 0; turn < turns; turn++) {
        for (long i = 0; !table && i < batch; i++) {
            unsigned char *message = make_message(bytes, turn);
            sum += message[bytes / 2];
            if (release) free(message);
        }
        const struct timespec pause = {.tv_nsec = 4000000};
        nanosleep(&pause, NULL);
    }
    printf("leak turns=%ld sum=%lu\n", turns, sum);
    return end_run(&run);
}
