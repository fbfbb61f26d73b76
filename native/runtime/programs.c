/* Which program an exec of a path starts: ELF headers, #! lines, permissions. */
#include "programs.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SHELL "/bin/sh"

static bool read_at(int fd, void *to, size_t bytes, uint64_t offset) {
  return syscall(SYS_pread64, fd, to, bytes, offset) == (long)bytes;
}

/* ---- ELF ------------------------------------------------------------------------------------------- */
static bool is_own_elf(int fd, const unsigned char *head, long head_bytes, int *error) {
  Elf64_Ehdr header;
  if (head_bytes < (long)sizeof header) return false;
  memcpy(&header, head, sizeof header);
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ML_OWN_ORDER ||
      header.e_machine != ML_OWN_MACHINE || (header.e_type != ET_EXEC && header.e_type != ET_DYN))
    return false;
  for (unsigned i = 0; i < header.e_phnum && i < 128; i++) {
    Elf64_Phdr segment;
    if (!read_at(fd, &segment, sizeof segment, header.e_phoff + (uint64_t)i * header.e_phentsize)) return false;
    if (segment.p_type != PT_INTERP) continue;
    char loader[PATH_MAX / 4];
    if (segment.p_filesz < 2 || segment.p_filesz > sizeof loader ||
        !read_at(fd, loader, segment.p_filesz, segment.p_offset) || loader[segment.p_filesz - 1] != 0)
      return false;
    const int loader_fd = (int)syscall(SYS_openat, AT_FDCWD, loader, O_RDONLY | O_CLOEXEC, 0);
    if (loader_fd < 0) { /* the kernel says it at exec, an emulator only when it runs */
      *error = errno;
      return false;
    }
    syscall(SYS_close, loader_fd);
    break;
  }
  return true;
}

/* ---- #! lines, as the kernel's load_script reads them ------------------------------------------------ */
static bool is_blank(char c) { return c == ' ' || c == '\t'; }

static bool parse_script(struct ml_script *script, const unsigned char *head, long bytes) {
  char *line = script->line;
  memset(line, 0, sizeof script->line);
  memcpy(line, head, (size_t)bytes);
  char *last = line + 255, *end = memchr(line, '\n', 256);
  if (end == NULL) {
    char *at = line + 2;
    while (at < last && is_blank(*at)) at++;
    while (at < last && *at != 0 && !is_blank(*at)) at++;
    if (at == last) return false; /* nothing, or a name that may be cut off */
    end = last;
  }
  while (is_blank(end[-1])) end--;
  *end = 0;
  char *at = line + 2;
  while (is_blank(*at)) at++;
  if (at >= end || *at == 0) return false;
  script->interpreter = at;
  script->argument = NULL;
  while (*at != 0 && !is_blank(*at)) at++;
  if (*at == 0) return true;
  *at++ = 0;
  while (is_blank(*at)) at++;
  script->argument = at;
  return true;
}

/* ---- paths that mean something else in another process ---------------------------------------------- */
static bool same_file(const struct stat *one, const char *path) {
  struct stat other;
  return stat(path, &other) == 0 && one->st_dev == other.st_dev && one->st_ino == other.st_ino;
}

/* /proc/self/exe is the emulator's own in the process to come, and a descriptor may be closed in it. True
 * when `*path` names the same file there. */
static bool resolve_link(struct ml_program *program, const char **path) {
  if (strncmp(*path, "/proc/", 6) != 0 && strncmp(*path, "/dev/fd/", 8) != 0) return true;
  struct stat status;
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, *path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
  if (fd < 0) return false;
  const bool known = fstat(fd, &status) == 0;
  syscall(SYS_close, fd);
  const ssize_t length = readlink(*path, program->resolved, sizeof program->resolved - 1);
  if (!known || length < 0) return known && same_file(&status, *path);
  program->resolved[length] = 0;
  if (program->resolved[0] == '/' && same_file(&status, program->resolved)) {
    *path = program->resolved;
    return true;
  }
  const char *number = strrchr(*path, '/') + 1; /* a file without a name */
  return strstr(*path, "/fd/") != NULL && fcntl(atoi(number), F_GETFD) == 0;
}

enum found { FOUND_ELF, FOUND_SCRIPT, FOUND_OTHER };

#ifdef MEMLENS_OTHER_MACHINE
/* The emulator looks paths up below the root that it was given (-L) when its program opens them, and not
 * when it opens its program itself: the name of what was opened. */
static void use_true_path(struct ml_program *program, int fd) {
  char link[32] = "/proc/self/fd/", *at = link + strlen(link);
  if (fd < 10) *at++ = (char)('0' + fd);
  else if (fd < 100) *at++ = (char)('0' + fd / 10), *at++ = (char)('0' + fd % 10);
  else return;
  struct stat status;
  const ssize_t length = readlink(link, program->resolved, sizeof program->resolved - 1);
  if (length <= 0 || fstat(fd, &status) != 0) return;
  program->resolved[length] = 0;
  if (same_file(&status, program->resolved)) program->path = program->resolved;
}
#endif

static enum found look_at(struct ml_program *program, const char *path, struct ml_script *script) {
  int *error = &program->error;
  struct stat status;
  unsigned char head[256];
  if (stat(path, &status) != 0) {
    *error = errno;
    return FOUND_OTHER;
  }
  if (!S_ISREG(status.st_mode) || faccessat(AT_FDCWD, path, X_OK, AT_EACCESS) != 0) {
    *error = EACCES;
    return FOUND_OTHER;
  }
  if ((status.st_mode & S_ISUID) != 0 || (status.st_mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP))
    return FOUND_OTHER; /* an emulator has not its owner's rights */
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return FOUND_OTHER; /* may be executed, not read */
  enum found found = FOUND_OTHER;
  const long bytes = syscall(SYS_pread64, fd, head, sizeof head, 0L);
  if (bytes >= 4 && memcmp(head, ELFMAG, SELFMAG) == 0) {
    program->path = path;
    if (is_own_elf(fd, head, bytes, error)) found = FOUND_ELF;
#ifdef MEMLENS_OTHER_MACHINE
    use_true_path(program, fd);
#endif
  } else if (bytes >= 2 && head[0] == '#' && head[1] == '!') {
    if (script == NULL) *error = ELOOP;
    else if (parse_script(script, head, bytes)) found = FOUND_SCRIPT;
    else *error = ENOEXEC;
  } else if (bytes >= 0) {
    *error = ENOEXEC;
  }
  syscall(SYS_close, fd);
  return found;
}

static void follow(struct ml_program *program, const char *path) {
  for (;;) {
    struct ml_script *script = program->script_count < ML_MAX_SCRIPTS ? &program->scripts[program->script_count] : NULL;
    const enum found found = look_at(program, path, script);
    if (script != NULL && found == FOUND_SCRIPT) {
      path = script->interpreter;
      program->script_count++;
      continue;
    }
    program->emulated = found == FOUND_ELF;
    return;
  }
}

void ml_program_find(struct ml_program *program, const char *path) {
  const int saved = errno;
  program->emulated = false;
  program->error = 0;
  program->path = path;
  program->script_count = 0;
  if (path != NULL && ml_readable((uint64_t)(uintptr_t)path, 1) && resolve_link(program, &path)) follow(program, path);
  errno = saved;
}

void ml_program_use_shell(struct ml_program *program) {
  const int saved = errno;
  program->script_count = 1;
  program->scripts[0].interpreter = SHELL;
  program->scripts[0].argument = NULL;
  program->error = 0;
  follow(program, SHELL);
  errno = saved;
}
