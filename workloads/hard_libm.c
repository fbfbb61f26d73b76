// Hard for counting: most of the time is spent in a library that is not counted, as in molecular energies.
//
// Options: --atoms N, --iterations N, --time, --hold-ms N.
//
// Known answer. Each iteration, region "energy", visits atoms * (atoms - 1) / 2 pairs and calls exp, log and cos once for each.
#include "workload.h"

#include "../native/include/memlens.h"

#include <math.h>

static long n_atoms = 600, iterations = 60;

struct atom {
    double x, y, z, charge;
};

OWN_FRAME static double energy(const struct atom *atoms, long n) {
    MEMLENS_SCOPE("energy");
    double total = 0;
    for (long i = 0; i < n; i++)
        for (long j = i + 1; j < n; j++) {
            double dx = atoms[i].x - atoms[j].x, dy = atoms[i].y - atoms[j].y, dz = atoms[i].z - atoms[j].z;
            double squared = dx * dx + dy * dy + dz * dz + 0.01;
            total += atoms[i].charge * atoms[j].charge * exp(-squared * 0.01) + log(squared) * cos(dx);
        }
    return total;
}

int main(int argc, char **argv) {
    const struct option_spec options[] = {
        number_option("--atoms", &n_atoms, "atoms"),
        number_option("--iterations", &iterations, "energies computed"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    struct atom *atoms = malloc((size_t)n_atoms * sizeof *atoms + 1);
    require(atoms != NULL, "out of memory");
    for (long i = 0; i < n_atoms; i++)
        atoms[i] = (struct atom){(double)(mix64((uint64_t)i) % 100), (double)(mix64((uint64_t)i + 500) % 100),
                                 (double)(mix64((uint64_t)i + 900) % 100), (double)(mix64((uint64_t)i + 1300) % 3) - 1};
    double begin_s = now_s(), total = 0;
    for (long k = 0; k < iterations; k++) total += energy(atoms, n_atoms);
    if (run.print_time) fprintf(stderr, "kernel_seconds=%.6f\n", now_s() - begin_s);
    printf("hard_libm calls=%ld total=%.3e\n", 3 * (n_atoms * (n_atoms - 1) / 2) * iterations, total);
    free(atoms);
    return end_run(&run);
}
