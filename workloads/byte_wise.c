// A rolling cipher over a buffer, one byte at a time.
// Bad: each byte is loaded and stored by itself. Good twin: --wide, the same bytes in words of 8, worked on in registers.
//
// Options: --mib N, --passes N, --wide, --time, --hold-ms N.
//
// Known answer. In `cipher_bytes` each pass makes one load and one store of 1 byte for each byte; in `cipher_words` one of each
// of 8 bytes for 8 bytes. The bytes afterwards are the same.
#include "workload.h"

OWN_FRAME static unsigned cipher_bytes(unsigned char *bytes, size_t count, unsigned state) {
    for (size_t i = 0; i < count; i++) {
        state = state * 31 + 7;
        bytes[i] ^= (unsigned char)(state >> 8);  // touch: here
    }
    return state;
}

OWN_FRAME static unsigned cipher_words(unsigned char *bytes, size_t count, unsigned state) {
    for (size_t i = 0; i < count; i += 8) {
        uint64_t word, key = 0;
        for (unsigned byte = 0; byte < 8; byte++) {
            state = state * 31 + 7;
            key |= (uint64_t)(unsigned char)(state >> 8) << (8 * byte);
        }
        memcpy(&word, bytes + i, 8);
        word ^= key;
        memcpy(bytes + i, &word, 8);
    }
    return state;
}

int main(int argc, char **argv) {
    long mib = 1, passes = 4;
    bool wide = false;
    const struct option_spec options[] = {
        number_option("--mib", &mib, "size of the buffer"),
        number_option("--passes", &passes, "passes over it"),
        flag_option("--wide", &wide, "work in words of 8 bytes (good)"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    const size_t count = (size_t)mib * MIB;
    unsigned char *bytes = malloc(count);
    if (!bytes) fail("no memory");
    memset(bytes, 1, count);
    unsigned state = 1;
    for (long pass = 0; pass < passes; pass++)
        state = wide ? cipher_words(bytes, count, state) : cipher_bytes(bytes, count, state);
    printf("byte_wise bytes=%zu state=%u last=%u\n", count, state, bytes[count - 1]);
    free(bytes);
    return end_run(&run);
}
