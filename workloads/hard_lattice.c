// Easy for counting, hard for sampling: one static loop nest, as in a lattice-Boltzmann solver.
//
// Options: --iterations N, --time, --hold-ms N.
//
// Known answer. A lattice of 256 * 256 cells with nine values each; each iteration, region "stream", reads and writes the nine values
// of every inner cell: 254 * 254 * 9 doubles of both.
#include "workload.h"

#include "../native/include/memlens.h"

enum { SIDE = 256, VALUES = 9 };
static long iterations = 400;
static double lattice[2][SIDE][SIDE][VALUES];

OWN_FRAME static void stream(double (*restrict to)[SIDE][VALUES], double (*restrict from)[SIDE][VALUES]) {
    MEMLENS_SCOPE("stream");
    static const int dx[VALUES] = {0, 1, 0, -1, 0, 1, -1, -1, 1}, dy[VALUES] = {0, 0, 1, 0, -1, 1, 1, -1, -1};
    for (int y = 1; y < SIDE - 1; y++)
        for (int x = 1; x < SIDE - 1; x++) {
            double sum = 0, in[VALUES];
            for (int k = 0; k < VALUES; k++) sum += in[k] = from[y - dy[k]][x - dx[k]][k];
            for (int k = 0; k < VALUES; k++) to[y][x][k] = in[k] + 0.1 * (sum / VALUES - in[k]);
        }
}

int main(int argc, char **argv) {
    const struct option_spec options[] = {number_option("--iterations", &iterations, "steps")};
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++)
            for (int k = 0; k < VALUES; k++)
                lattice[0][y][x][k] = lattice[1][y][x][k] = (double)((x * 7 + y * 3 + k) % 16);
    double begin_s = now_s();
    for (long i = 0; i < iterations; i++) stream(lattice[(i + 1) % 2], lattice[i % 2]);
    if (run.print_time) fprintf(stderr, "kernel_seconds=%.6f\n", now_s() - begin_s);
    printf("hard_lattice cells=%d centre=%.9g\n", (SIDE - 2) * (SIDE - 2),
           lattice[iterations % 2][SIDE / 2][SIDE / 2][0]);
    return end_run(&run);
}
