// The kernel writes first: read(2) fills a fresh buffer, which the program never touches before.
//
// Options: --pages N, --source zero|file|pipe|direct, --hold-ms N, --time.
//
// Known answer. N pages placed by the kernel; the program touches none of them first.
// zero, file, pipe: the copy to user space faults in kernel mode, once a page (an event with a kernel address as its
// instruction; none at all when kernel events are excluded). direct (O_DIRECT): the pages are pinned, not faulted,
// so no event exists whatever is recorded. /dev/zero and huge reads may be split, the count is the same.
#include "workload.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/vfs.h>

// Fills the buffer from fd. Never inlined: the system call is what places the pages.
OWN_FRAME static void read_into_buffer(int fd, unsigned char *buffer, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        ssize_t n_read = read(fd, buffer + done, bytes - done);  // touch: here
        if (n_read < 0 && errno == EINTR) continue;
        if (n_read <= 0) fail("read: %s", n_read ? strerror(errno) : "end of file");
        done += (size_t)n_read;
    }
}

static void *fill_pipe(void *argument) {
    const int *write_end = argument;
    static const unsigned char zeros[4096];
    while (write(*write_end, zeros, sizeof zeros) > 0) continue;
    return NULL;
}

// tmpfs accepts O_DIRECT and copies all the same.
static bool can_read_directly(int fd) {
    struct statfs file_system;
    if (fstatfs(fd, &file_system) || file_system.f_type == TMPFS_MAGIC) return false;
    return fsync(fd) == 0 && fcntl(fd, F_SETFL, O_DIRECT) == 0;
}

int main(int argc, char **argv) {
    long n_pages = 256;
    const char *source = "zero";
    const struct option_spec options[] = {
        number_option("--pages", &n_pages, "pages of the buffer"),
        text_option("--source", &source, "zero, file, pipe or direct"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(n_pages >= 1, "--pages must be at least 1");
    size_t bytes = (size_t)n_pages * page_bytes();
    uint64_t expected = 0;
    int fd = -1, pipe_ends[2];
    pthread_t writer;
    bool from_pipe = !strcmp(source, "pipe"), direct = !strcmp(source, "direct");
    if (!strcmp(source, "zero")) {
        fd = open("/dev/zero", O_RDONLY);
    } else if (from_pipe) {
        if (pipe(pipe_ends) || pthread_create(&writer, NULL, fill_pipe, &pipe_ends[1]))
            fail("pipe: %s", strerror(errno));
        fd = pipe_ends[0];
    } else if (!strcmp(source, "file") || direct) {
        fd = cached_file(bytes);
        expected = sum_of_cached_file((size_t)n_pages);
        if (direct && !can_read_directly(fd))
            skip("no direct reads (O_DIRECT) in this folder; set TMPDIR to one on a disk");
        lseek(fd, 0, SEEK_SET);
    } else {
        fail("--source is zero, file, pipe or direct");
    }
    if (fd < 0) fail("cannot open the source: %s", strerror(errno));

    unsigned char *buffer = map_fresh(bytes);
    require(resident_pages(buffer, bytes) == 0, "the buffer must be fresh");
    read_into_buffer(fd, buffer, bytes);
    require(resident_pages(buffer, bytes) == (size_t)n_pages, "read() must have placed every page");
    require(sum_first_bytes(buffer, (size_t)n_pages) == expected, "wrong bytes were read");
    printf("case_read_into_buffer source=%s pages=%ld\n", source, n_pages);
    return end_run(&run);  // the writer of a pipe is blocked in write() and ends with the process
}
