/* Memory whose use is known to the program: what it wrote, moved, read from files, populated and shared. The first
 * argument chooses the part. Each prints what the kernel's own view (mincore) has of it where that is an oracle. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, MIB = 1 << 20 };
static void touch(volatile char *at, size_t bytes) {
  for (size_t i = 0; i < bytes; i += PAGE) at[i] = 1;
}
static void *map(size_t bytes, int flags) {
  void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  return at == MAP_FAILED ? NULL : at;
}

int main(int count, char **arguments) {
  const char *part = count > 1 ? arguments[1] : "";
  if (strcmp(part, "realloc") == 0) { /* grown 12 times, every byte written; other mappings come and go */
    size_t bytes = MIB;
    char *buffer = malloc(bytes);
    memset(buffer, 1, bytes);
    while (bytes < 16 * MIB) {
      const size_t more = bytes + bytes / 4;
      char *between = malloc(2 * MIB);
      memset(between, 1, 2 * MIB);
      buffer = realloc(buffer, more);
      memset(buffer + bytes, 1, more - bytes);
      free(between);
      bytes = more;
    }
    free(buffer);
  } else if (strcmp(part, "half") == 0) { /* 8 MiB written, then grown to 16: the second half is never touched */
    char *buffer = malloc(8 * MIB);
    memset(buffer, 1, 8 * MIB);
    void *blocked = map(MIB, 0); /* below it, most likely */
    buffer = realloc(buffer, 16 * MIB);
    printf("%p %p\n", blocked, (void *)buffer);
    free(buffer);
  } else if (strcmp(part, "mremap") == 0) { /* every second page of 8 MiB written, moved three times, then the rest */
    char *at = map(8 * MIB, 0), *target = map(64 * MIB, 0);
    munmap(target, 64 * MIB);
    for (size_t i = 0; i < 8 * MIB; i += 2 * PAGE) at[i] = 1;
    for (int i = 1; i <= 3; i++)
      at = mremap(at, 8 * MIB, 8 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, target + (size_t)i * 8 * MIB);
    for (size_t i = PAGE; i < 8 * MIB; i += 4 * PAGE) at[i] = 1;
    munmap(at, 8 * MIB);
  } else if (strcmp(part, "populate") == 0) {
    char *at = map(8 * MIB, MAP_POPULATE);
    munmap(at, 8 * MIB);
  } else if (strcmp(part, "file") == 0) { /* every page read; the kernel maps several a fault */
    const int fd = open(arguments[2], O_RDONLY);
    const long bytes = lseek(fd, 0, SEEK_END);
    const char *at = mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED, fd, 0);
    long sum = 0;
    for (long i = 0; i < bytes; i += PAGE) sum += at[i];
    return sum < 0;
  } else if (strcmp(part, "shared") == 0) { /* w: writes a new segment; r: reads one that was there */
    const int fd = open(arguments[2], O_RDWR | O_CREAT, 0600);
    if (ftruncate(fd, 8 * MIB) != 0) return 1;
    volatile char *at = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    long sum = 0;
    for (size_t i = 0; i < 8 * MIB; i += PAGE) arguments[3][0] == 'w' ? (void)(at[i] = 1) : (void)(sum += at[i]);
    return sum < 0;
  } else if (strcmp(part, "child") == 0) { /* a child uses what its parent allocated */
    char *buffer = malloc(8 * MIB);
    if (fork() == 0) {
      memset(buffer, 1, 8 * MIB);
      _exit(0);
    }
    wait(NULL);
    free(buffer);
  } else if (strcmp(part, "attach") == 0) { /* 16 MiB before somebody attaches; then 8 MiB new, 4 MiB given back and anew */
    char *old = map(16 * MIB, 0);
    touch(old, 16 * MIB);
    printf("ready\n");
    fflush(stdout);
    if (getchar() == EOF) return 1;
    touch(map(8 * MIB, 0), 8 * MIB);
    touch(old, 16 * MIB);
    madvise(old, 4 * MIB, MADV_DONTNEED);
    touch(old, 4 * MIB);
    printf("done\n");
    fflush(stdout);
    return getchar() == EOF;
  }
  return 0;
}
