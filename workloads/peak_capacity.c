// A short peak far above the steady state. The program expands N MiB of input F-fold, digests it and goes on with a
// result of N MiB for a while. Bad: expands everything, digests it, then frees it. Good twin: --streaming expands
// one MiB at a time into one buffer.
//
// Options: --mib N, --factor F, --steady-ms N, --streaming, --time, --hold-ms N.
//
// Known answer, in pages of P bytes with A = N MiB / P: the result, A pages, touched at `here result` in keep_result.
// Bad: F A pages more, touched at `here` in expand_chunk and freed before the steady phase: peak (F + 1) A, steady A.
// --streaming: 1 MiB / P pages at `here`: peak and steady A + 1 MiB / P, give or take the C library's own pages.
#include "workload.h"

static long mib = 32, factor = 8, steady_ms = 1000;
static bool streaming = false;

// Volatile: the store keeps the line number of this statement, not that of the inlined mix64.
OWN_FRAME static void expand_chunk(volatile uint64_t *words, size_t n_words, uint64_t first_word) {
    KEEP_FRAME();
    for (size_t i = 0; i < n_words; i++) {
        uint64_t word = mix64(first_word + i);
        words[i] = word;  // touch: here
    }
}

static uint64_t digest(const uint64_t *words, size_t n_words) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n_words; i++) sum ^= words[i] >> 7;
    return sum;
}

OWN_FRAME static void keep_result(uint64_t *words, size_t n_words, uint64_t value) {
    KEEP_FRAME();
    for (size_t i = 0; i < n_words; i++) words[i] = value + i;  // touch: here result
}

int main(int argc, char **argv) {
    const struct option_spec options[] = {
        number_option("--mib", &mib, "MiB of the result that stays"),
        number_option("--factor", &factor, "size of the expanded input, in results"),
        number_option("--steady-ms", &steady_ms, "length of the steady phase"),
        flag_option("--streaming", &streaming, "expand one MiB at a time"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(mib >= 1 && factor >= 1, "--mib and --factor must be at least 1");
    size_t result_bytes = (size_t)mib * MIB, expanded_bytes = result_bytes * (size_t)factor;
    size_t chunk_words = MIB / sizeof(uint64_t), n_chunks = expanded_bytes / MIB;
    size_t buffer_bytes = streaming ? MIB : expanded_bytes;
    uint64_t *buffer = map_fresh(buffer_bytes), value = 0;
    if (streaming) {
        for (size_t c = 0; c < n_chunks; c++) {
            expand_chunk(buffer, chunk_words, c * chunk_words);
            value ^= digest(buffer, chunk_words);
        }
    } else {
        for (size_t c = 0; c < n_chunks; c++) expand_chunk(buffer + c * chunk_words, chunk_words, c * chunk_words);
        value = digest(buffer, n_chunks * chunk_words);
    }
    size_t n_words = result_bytes / sizeof(uint64_t);
    uint64_t *result = map_fresh(result_bytes);
    keep_result(result, n_words, value);
    if (!streaming) munmap(buffer, buffer_bytes);

    sleep_ms(steady_ms);
    uint64_t expected = 0;  // xor is associative: chunked or whole, the digest is that of all words
    for (uint64_t i = 0; i < n_chunks * chunk_words; i++) expected ^= mix64(i) >> 7;
    require(value == expected, "wrong digest");
    for (size_t i = 0; i < n_words; i++)
        if (result[i] != expected + i) fail("word %zu of the result is wrong", i);
    size_t peak_pages = pages_in(result_bytes) + pages_in(buffer_bytes);
    size_t steady_pages = streaming ? peak_pages : pages_in(result_bytes);
    printf("peak_capacity peak_pages=%zu steady_pages=%zu digest=%016llx\n", peak_pages, steady_pages,
           (unsigned long long)value);
    return end_run(&run);
}
