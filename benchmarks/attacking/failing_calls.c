/* A shim for LD_PRELOAD: makes system calls of memlens fail, and of nothing else.
 *
 * FAULT=CALL:ERRNO:FIRST:COUNT   the FIRST-th matching call and COUNT - 1 after it fail; ERRNO 0: they do half of what they are asked
 * FAULT_UNDER=TEXT               only calls on files whose path contains it; unset: all
 * FAULT_LOG=FILE                 gets a line for each call that failed
 *
 * Only processes that run Python are concerned: the program that is recorded has the shim too, and passes everything on. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static char call[32], under[512], log_path[512];
static int number;
static long first, count, seen;

__attribute__((constructor)) static void settings(void) {
  char exe[512];
  const ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
  const char *text = getenv("FAULT");
  if (n <= 0 || text == NULL) return;
  exe[n] = 0;
  const char *name = strrchr(exe, '/');
  if (name == NULL || strncmp(name, "/python", 7) != 0) return;
  if (sscanf(text, "%31[^:]:%d:%ld:%ld", call, &number, &first, &count) != 4) call[0] = 0;
  snprintf(under, sizeof under, "%s", getenv("FAULT_UNDER") ? getenv("FAULT_UNDER") : "");
  snprintf(log_path, sizeof log_path, "%s", getenv("FAULT_LOG") ? getenv("FAULT_LOG") : "");
}

static int path_of(int fd, char *path, size_t room) {
  char link[64];
  if (fd == AT_FDCWD) return getcwd(path, room) != NULL;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t n = readlink(link, path, room - 1);
  if (n <= 0) return 0;
  path[n] = 0;
  return 1;
}

static void note(const char *what, const char *path) {
  char line[1200];
  const int n = snprintf(line, sizeof line, "%s %d %s\n", what, number, path);
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0) return;
  syscall(SYS_write, fd, line, (size_t)n);
  syscall(SYS_close, fd);
}

/* Whether this call, by its turn, is to fail. */
static int is_due(const char *name, const char *path) {
  if (strcmp(name, call) != 0 || (under[0] != 0 && (path == NULL || strstr(path, under) == NULL))) return 0;
  const long turn = __atomic_add_fetch(&seen, 1, __ATOMIC_RELAXED);
  if (turn < first || turn - first >= count) return 0;
  const int kept = errno;
  note(name, path != NULL ? path : "");
  errno = kept;
  return 1;
}

static int fd_is_due(const char *name, int fd) {
  char path[1024];
  if (strcmp(name, call) != 0) return 0;
  return is_due(name, path_of(fd, path, sizeof path) ? path : NULL);
}

static int name_is_due(const char *name, int folder, const char *path) {
  char whole[2048] = "", linked[1024];
  int fd, at = 0;
  if (strcmp(name, call) != 0) return 0;
  if (sscanf(path, "/proc/self/fd/%d/%n", &fd, &at) == 1 && at > 0) {
    if (path_of(fd, linked, sizeof linked)) snprintf(whole, sizeof whole, "%s/%s", linked, path + at);
  } else if (path[0] == '/') {
    snprintf(whole, sizeof whole, "%s", path);
  } else if (path_of(folder, linked, sizeof linked)) {
    snprintf(whole, sizeof whole, "%s/%s", linked, path);
  }
  return is_due(name, whole);
}

#define NEXT(type, name, ...) \
  static type (*next)(__VA_ARGS__); \
  if (next == NULL) *(void **)&next = dlsym(RTLD_NEXT, name)
#define FAIL return errno = number, -1

ssize_t write(int fd, const void *from, size_t bytes) {
  NEXT(ssize_t, "write", int, const void *, size_t);
  if (bytes > 1 && fd_is_due("write", fd)) {
    if (number != 0) FAIL;
    return next(fd, from, bytes / 2);
  }
  return next(fd, from, bytes);
}
ssize_t writev(int fd, const struct iovec *parts, int n) {
  NEXT(ssize_t, "writev", int, const struct iovec *, int);
  if (fd_is_due("write", fd)) {
    if (number != 0) FAIL;
    return write(fd, parts[0].iov_base, parts[0].iov_len);
  }
  return next(fd, parts, n);
}
ssize_t pwrite(int fd, const void *from, size_t bytes, off_t at) {
  NEXT(ssize_t, "pwrite", int, const void *, size_t, off_t);
  if (bytes > 1 && fd_is_due("write", fd)) {
    if (number != 0) FAIL;
    return next(fd, from, bytes / 2, at);
  }
  return next(fd, from, bytes, at);
}
ssize_t pwrite64(int fd, const void *from, size_t bytes, off_t at) { return pwrite(fd, from, bytes, at); }
int fsync(int fd) {
  NEXT(int, "fsync", int);
  if (fd_is_due("fsync", fd)) FAIL;
  return next(fd);
}
int close(int fd) {
  NEXT(int, "close", int);
  /* Network file systems report there what they could not write before. */
  if ((fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY && fd_is_due("close", fd)) {
    next(fd);
    FAIL;
  }
  return next(fd);
}
int ftruncate(int fd, off_t bytes) {
  NEXT(int, "ftruncate", int, off_t);
  if (fd_is_due("ftruncate", fd)) FAIL;
  return next(fd, bytes);
}
int ftruncate64(int fd, off_t bytes) { return ftruncate(fd, bytes); }
int renameat(int from_folder, const char *from, int to_folder, const char *to) {
  NEXT(int, "renameat", int, const char *, int, const char *);
  if (name_is_due("rename", to_folder, to)) FAIL;
  return next(from_folder, from, to_folder, to);
}
int rename(const char *from, const char *to) { return renameat(AT_FDCWD, from, AT_FDCWD, to); }
int mkdir(const char *path, mode_t mode) {
  NEXT(int, "mkdir", const char *, mode_t);
  if (name_is_due("mkdir", AT_FDCWD, path)) FAIL;
  return next(path, mode);
}
int openat(int folder, const char *path, int flags, ...) {
  NEXT(int, "openat", int, const char *, int, ...);
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  if (name_is_due("open", folder, path)) FAIL;
  return next(folder, path, flags, mode);
}
#define OPEN_MODE \
  va_list more; \
  va_start(more, flags); \
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0; \
  va_end(more)
int openat64(int folder, const char *path, int flags, ...) {
  OPEN_MODE;
  return openat(folder, path, flags, mode);
}
int open(const char *path, int flags, ...) {
  OPEN_MODE;
  return openat(AT_FDCWD, path, flags, mode);
}
int open64(const char *path, int flags, ...) {
  OPEN_MODE;
  return openat(AT_FDCWD, path, flags, mode);
}
void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
  NEXT(void *, "mmap", void *, size_t, int, int, int, off_t);
  if (fd >= 0 && (flags & MAP_SHARED) != 0 && fd_is_due("mmap", fd)) return errno = number, MAP_FAILED;
  return next(at, bytes, protection, flags, fd, offset);
}
void *mmap64(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
  return mmap(at, bytes, protection, flags, fd, offset);
}
int memfd_create(const char *name, unsigned flags) {
  NEXT(int, "memfd_create", const char *, unsigned);
  if (is_due("memfd_create", name)) FAIL;
  return next(name, flags);
}
int pipe2(int fds[2], int flags) {
  NEXT(int, "pipe2", int[2], int);
  if (is_due("pipe2", NULL)) FAIL;
  return next(fds, flags);
}
pid_t fork(void) {
  NEXT(pid_t, "fork", void);
  if (is_due("fork", NULL)) FAIL;
  return next();
}
int pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *with) {
  NEXT(int, "pthread_create", pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
  if (is_due("pthread_create", NULL)) return number;
  return next(thread, how, run, with);
}
long syscall(long what, ...) {
  NEXT(long, "syscall", long, ...);
  va_list more;
  long a[6];
  va_start(more, what);
  for (int i = 0; i < 6; i++) a[i] = va_arg(more, long);
  va_end(more);
  if (what == SYS_perf_event_open && is_due("perf_event_open", NULL)) FAIL;
  return next(what, a[0], a[1], a[2], a[3], a[4], a[5]);
}
