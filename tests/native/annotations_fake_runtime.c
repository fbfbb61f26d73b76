/* A runtime for the tests of memlens.h: writes one line a call to the file MEMLENS_FAKE_LOG, or to standard error. Built as a
   library to preload and as a member of an archive. Each line is one write, so lines of several threads stay whole. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MEMLENS_RUNTIME_IMPLEMENTATION
#include "memlens.h"

static void log_line(const char *format, ...) {
  char line[512];
  int bytes = snprintf(line, sizeof line, "%ld ", (long)syscall(SYS_gettid));
  const char *path = getenv("MEMLENS_FAKE_LOG");
  int fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : STDERR_FILENO;
  va_list arguments;
  va_start(arguments, format);
  bytes += vsnprintf(line + bytes, sizeof line - (size_t)bytes, format, arguments);
  va_end(arguments);
  if (fd >= 0 && write(fd, line, (size_t)bytes) < 0) abort();
  if (path && fd >= 0) close(fd);
}

static void region_begin(const char *name) { log_line("begin %s\n", name); }
static void region_end(const char *name) { log_line("end %s\n", name); }
static void phase(const char *name) { log_line("phase %s\n", name); }
static void tag(const char *name, const volatile void *address, size_t bytes) {
  log_line("tag %s %p %zu\n", name, (void *)address, bytes);
}
static void untag(const volatile void *address) { log_line("untag %p\n", (void *)address); }
static int32_t is_recording(void) { return 1; }

#ifndef FAKE_VERSION
#define FAKE_VERSION MEMLENS_HOOKS_VERSION
#endif
#ifndef FAKE_BYTES
#define FAKE_BYTES sizeof(struct memlens_hooks)
#endif

extern const struct memlens_hooks memlens_hooks;
__attribute__((visibility("default"))) const struct memlens_hooks memlens_hooks = {
    FAKE_VERSION, FAKE_BYTES, region_begin, region_end, phase, tag, untag, is_recording,
};
MEMLENS_DEFINE_RUNTIME(memlens_hooks);
