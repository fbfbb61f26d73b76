// An open-addressing hash map (linear probing, 16-byte slots, half full): inserts, then lookups that hit and that
// miss.
//
// Options: --mib N (a power of two), --iterations N (lookup rounds), --clear, --time, --hold-ms N.
//
// Known answer. The table is A = N MiB / P pages, all used (a page of 4096 bytes has 256 slots, half of them filled:
// an unused page has a chance of about 2^-256). A probe reads a slot before it writes it. So the first touch of every
// page is the read marked below in find_slot (class first: the zero page), and the first write, at `upgrade` in
// insert, faults once more: A first + A upgrade, in random page order. With --clear each page is written first at
// `clear`, and neither of the two other lines faults: A first.
#include "workload.h"

namespace {

constexpr uint64_t kEmpty = 0;

struct Slot {
    uint64_t key;
    uint64_t value;
};

class HashMap {
  public:
    explicit HashMap(size_t bytes) : slots_(static_cast<Slot *>(map_fresh(bytes))), mask_(bytes / sizeof(Slot) - 1) {}

    OWN_FRAME void clear() {
        const size_t slots_per_page = page_bytes() / sizeof(Slot);
        for (size_t i = 0; i <= mask_; i += slots_per_page) slots_[i].key = kEmpty;  // touch: here clear
    }

    OWN_FRAME void insert(uint64_t key, uint64_t value) {
        Slot *slot = find_slot(key);
        slot->key = key;  // touch: here upgrade
        slot->value = value;
    }

    const Slot &lookup(uint64_t key) const { return *find_slot(key); }

  private:
    OWN_FRAME Slot *find_slot(uint64_t key) const {
        KEEP_FRAME();
        size_t i = mix64(key) & mask_;
        for (;; i = (i + 1) & mask_) {
            uint64_t found = slots_[i].key;  // touch: here
            if (found == key || found == kEmpty) return &slots_[i];
        }
    }

    Slot *slots_;
    size_t mask_;
};

// Odd keys are in the map, even ones are not; the map scatters them.
uint64_t inserted_key(uint64_t i) { return 2 * i + 1; }
uint64_t absent_key(uint64_t i) { return 2 * i + 2; }

}  // namespace

int main(int argc, char **argv) {
    long mib = 64, iterations = 8;
    bool clear = false;
    const option_spec options[] = {
        number_option("--mib", &mib, "MiB of the table, a power of two"),
        number_option("--iterations", &iterations, "rounds of lookups"),
        flag_option("--clear", &clear, "write every page of the table before the inserts"),
    };
    run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(mib >= 1 && (mib & (mib - 1)) == 0, "--mib must be a power of two");
    const size_t bytes = static_cast<size_t>(mib) * MIB;
    const uint64_t n_keys = bytes / sizeof(Slot) / 2;

    HashMap map(bytes);
    if (clear) map.clear();
    for (uint64_t i = 0; i < n_keys; i++) map.insert(inserted_key(i), i);

    uint64_t n_hits = 0, n_misses = 0;
    begin_lap();
    for (long round = 0; round < iterations; round++) {
        for (uint64_t i = 0; i < n_keys; i++) {
            const uint64_t pick = mix64(i) % n_keys;
            n_hits += map.lookup(inserted_key(pick)).value == pick;
            n_misses += map.lookup(absent_key(i)).key == kEmpty;
        }
        end_lap();
    }
    if (n_hits != n_keys * iterations || n_misses != n_keys * iterations)
        fail("%llu hits and %llu misses of %llu each", (unsigned long long)n_hits, (unsigned long long)n_misses,
             (unsigned long long)(n_keys * iterations));
    printf("hash_map pages=%zu keys=%llu hits=%llu misses=%llu\n", pages_in(bytes), (unsigned long long)n_keys,
           (unsigned long long)n_hits, (unsigned long long)n_misses);
    return end_run(&run);
}
