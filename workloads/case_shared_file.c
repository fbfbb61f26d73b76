// A shared mapping of a file that is in the page cache: reads, writes (--write) or reads from the disk (--cold).
//
// Options: --pages N, --write, --read-then-write, --cold, --hold-ms N, --time.
//
// Known answer, with R pages of fault-around (64 KiB / P unless set in debugfs; 16 here), the mapping 2 MiB-aligned:
// reads: ceil(N / R) events of class file at `here` in read_pages, each maps the R pages around it.
// --write: N events of class file at `here write` in write_pages: a shared write is never mapped around.
// --read-then-write: ceil(N / R) file, then N upgrade (each page becomes dirty at its own first write); no upgrade on
// tmpfs, which does not track dirty pages and maps them writable at once.
// --cold: the file is dropped from the page cache and read ahead is off: N events of class major.
// Folders that keep files in memory (tmpfs) cannot be cold (exit 77). TMPDIR chooses the folder.
#include "workload.h"

#include <fcntl.h>

OWN_FRAME static uint64_t read_pages(const volatile unsigned char *base, size_t n_pages) {
    uint64_t sum = 0;
    for (size_t p = 0; p < n_pages; p++) sum += base[p * page_bytes()];  // touch: here
    return sum;
}

OWN_FRAME static void write_pages(volatile unsigned char *base, size_t n_pages) {
    for (size_t p = 0; p < n_pages; p++) base[p * page_bytes() + 1] = 1;  // touch: here write
}

int main(int argc, char **argv) {
    long n_pages = 256;
    bool write_only = false, read_then_write = false, cold = false;
    const struct option_spec options[] = {
        number_option("--pages", &n_pages, "pages of the file"),
        flag_option("--write", &write_only, "write each page instead of reading it"),
        flag_option("--read-then-write", &read_then_write, "read each page, then write each"),
        flag_option("--cold", &cold, "drop the file from the page cache first"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(n_pages >= 1, "--pages must be at least 1");
    size_t bytes = (size_t)n_pages * page_bytes();
    int fd = cached_file(bytes);
    // Written back before it is mapped: a write-back during the writes would write-protect pages again and add
    // events.
    if (fsync(fd)) fail("fsync: %s", strerror(errno));
    unsigned char *base = reserve_aligned(bytes, 2 * MIB);
    if (mmap(base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
        fail("mmap: %s", strerror(errno));
    if (cold) {
        (void)madvise(base, bytes, MADV_RANDOM);
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        if (resident_pages(base, bytes)) skip("this folder keeps its files in memory; set TMPDIR to one on a disk");
    }
    if (!write_only)
        require(read_pages(base, (size_t)n_pages) == sum_of_cached_file((size_t)n_pages), "wrong bytes in the file");
    if (write_only || read_then_write) write_pages(base, (size_t)n_pages);
    require(sum_first_bytes(base, (size_t)n_pages) == sum_of_cached_file((size_t)n_pages), "wrong bytes in the file");
    printf("case_shared_file pages=%ld write=%d read_then_write=%d cold=%d\n", n_pages, write_only, read_then_write,
           cold);
    return end_run(&run);
}
