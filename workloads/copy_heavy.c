// A smoothing filter whose result becomes its next input.
// Bad: the result is copied back each step, with more bytes moved than computed. Good twin: --swap, the two buffers change places.
//
// Options: --kib N, --steps N, --swap, --time, --hold-ms N.
//
// Known answer. Each step computes one value of every 16 and copies (memcpy, from `step`) the whole array of KiB, or nothing.
#include "workload.h"

OWN_FRAME static void smooth(const double *from, double *to, long count) {
    for (long i = 16; i + 16 < count; i += 16) to[i] = 0.25 * from[i - 16] + 0.5 * from[i] + 0.25 * from[i + 16];
}

OWN_FRAME static void step(double *values, double *work, long count) {
    smooth(values, work, count);
    memcpy(values, work, (size_t)count * sizeof *values);  // touch: here
}

int main(int argc, char **argv) {
    long kib = 256, steps = 200;
    bool swap = false;
    const struct option_spec options[] = {
        number_option("--kib", &kib, "size of the array"),
        number_option("--steps", &steps, "steps"),
        flag_option("--swap", &swap, "swap the buffers (good)"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    const long count = kib * 1024 / (long)sizeof(double);
    double *values = malloc((size_t)count * sizeof *values), *work = malloc((size_t)count * sizeof *work);
    if (!values || !work) fail("no memory");
    for (long i = 0; i < count; i++) values[i] = work[i] = (double)(i % 97);
    for (long i = 0; i < steps; i++) {
        if (!swap) {
            step(values, work, count);
            continue;
        }
        smooth(values, work, count);
        double *other = values;
        values = work;
        work = other;
    }
    printf("copy_heavy values=%ld middle=%.6f\n", count, values[count / 32 * 16]);
    free(values);
    free(work);
    return end_run(&run);
}
