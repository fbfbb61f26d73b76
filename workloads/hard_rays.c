// Hard for counting: a tiny region entered for every ray and sphere, as in a ray tracer.
//
// Options: --spheres N, --rays N, --time, --hold-ms N.
//
// Known answer. Region "hit" is entered rays * spheres times; each execution reads one sphere (four floats).
#include "workload.h"

#include "../native/include/memlens.h"

static long n_spheres = 64, n_rays = 200000;

struct sphere {
    float x, y, z, radius;
};

OWN_FRAME static float hit(const struct sphere *s, const float *direction, float nearest) {
    MEMLENS_SCOPE("hit");
    float along = s->x * direction[0] + s->y * direction[1] + s->z * direction[2];
    if (along < 0) return nearest;
    float distance = s->x * s->x + s->y * s->y + s->z * s->z - along * along;
    float room = s->radius * s->radius - distance;
    if (room < 0) return nearest;
    return along < nearest ? along : nearest;
}

int main(int argc, char **argv) {
    const struct option_spec options[] = {
        number_option("--spheres", &n_spheres, "spheres"),
        number_option("--rays", &n_rays, "rays; each is tried on every sphere"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    struct sphere *spheres = malloc((size_t)n_spheres * sizeof *spheres);
    require(spheres != NULL, "out of memory");
    for (long i = 0; i < n_spheres; i++)
        spheres[i] =
            (struct sphere){(float)(mix64((uint64_t)i) % 200) - 100, (float)(mix64((uint64_t)i + 1000) % 200) - 100,
                            (float)(mix64((uint64_t)i + 2000) % 100), (float)(mix64((uint64_t)i + 3000) % 20) + 1};
    double begin_s = now_s();
    unsigned long n_hits = 0;
    for (long r = 0; r < n_rays; r++) {
        float direction[3] = {(float)(r % 100) / 100 - 0.5f, (float)(r / 100 % 100) / 100 - 0.5f, 0.70f};
        float nearest = 1e30f;
        for (long i = 0; i < n_spheres; i++) nearest = hit(&spheres[i], direction, nearest);
        n_hits += nearest < 1e30f;
    }
    if (run.print_time) fprintf(stderr, "kernel_seconds=%.6f\n", now_s() - begin_s);
    printf("hard_rays executions=%ld hits=%lu\n", n_rays * n_spheres, n_hits);
    free(spheres);
    return end_run(&run);
}
