// Writes to a private mapping of a cached file: each page is copied at its first write.
//
// Options: --pages N, --read-first, --hold-ms N, --time.
//
// Known answer. N events of class copy at `here` in write_pages. --read-first: before that ceil(N / R) events of
// class file at `here read` in read_pages (R pages of fault-around, 16 of 4096 bytes; the mapping is 2 MiB-aligned).
// The file is never changed.
#include "workload.h"

OWN_FRAME static uint64_t read_pages(const volatile unsigned char *base, size_t n_pages) {
    uint64_t sum = 0;
    for (size_t p = 0; p < n_pages; p++) sum += base[p * page_bytes()];  // touch: here read
    return sum;
}

OWN_FRAME static void write_pages(volatile unsigned char *base, size_t n_pages) {
    for (size_t p = 0; p < n_pages; p++) base[p * page_bytes() + 1] = 1;  // touch: here
}

int main(int argc, char **argv) {
    long n_pages = 256;
    bool read_first = false;
    const struct option_spec options[] = {
        number_option("--pages", &n_pages, "pages of the file"),
        flag_option("--read-first", &read_first, "read each page before the writes"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(n_pages >= 1, "--pages must be at least 1");
    size_t bytes = (size_t)n_pages * page_bytes();
    int fd = cached_file(bytes);
    unsigned char *base = reserve_aligned(bytes, 2 * MIB);
    if (mmap(base, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd, 0) == MAP_FAILED)
        fail("mmap: %s", strerror(errno));
    if (read_first)
        require(read_pages(base, (size_t)n_pages) == sum_of_cached_file((size_t)n_pages), "wrong bytes in the file");
    write_pages(base, (size_t)n_pages);
    require(sum_first_bytes(base, (size_t)n_pages) == sum_of_cached_file((size_t)n_pages),
            "a copy lost the file's bytes");
    require(sum_first_bytes(base + 1, (size_t)n_pages) == (uint64_t)n_pages, "a page lost its write");
    unsigned char second_byte;
    require(pread(fd, &second_byte, 1, 1) == 1 && second_byte == 0, "the file must not change");
    printf("case_private_file_write pages=%ld read_first=%d\n", n_pages, read_first);
    return end_run(&run);
}
