// Counts events by key, in no order. Bad: a counter in each large record. Good twin: --dense has the counters in an array of their own.
//
// Options: --records N (a power of two, at most 4096), --events N, --dense, --time, --hold-ms N.
//
// Known answer. `count_events` loads and stores one counter of 8 bytes for each event. The counters lie in N lines of 64 bytes, one in every
// record of 256 bytes, with --dense in N / 8 lines. They add up to the number of events.
#include "workload.h"

enum { MOST_RECORDS = 1 << 12 };
struct account {
    char name[120];
    uint64_t count;
    char address[128];
};
_Alignas(64) static struct account accounts[MOST_RECORDS];
_Alignas(64) static uint64_t counts[MOST_RECORDS];

OWN_FRAME static void count_events(uint64_t *first, size_t step, uint64_t mask, long events) {
    for (long i = 0; i < events; i++) first[(mix64((uint64_t)i) & mask) * step]++;
}

int main(int argc, char **argv) {
    long records = 1 << 11, events = 400000;
    bool dense = false;
    const struct option_spec options[] = {
        number_option("--records", &records, "records, a power of two"),
        number_option("--events", &events, "events"),
        flag_option("--dense", &dense, "the counters in an array of their own"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(records >= 1 && records <= MOST_RECORDS && (records & (records - 1)) == 0,
            "--records must be a power of two, at most 4096");
    const size_t step = dense ? 1 : sizeof *accounts / sizeof(uint64_t);
    uint64_t *first = dense ? counts : &accounts[0].count, sum = 0;
    count_events(first, step, (uint64_t)records - 1, events);
    for (long i = 0; i < records; i++) sum += first[(size_t)i * step];
    require(sum == (uint64_t)events, "every event must be counted");
    printf("scattered_field records=%ld events=%ld dense=%d\n", records, events, dense);
    return end_run(&run);
}
