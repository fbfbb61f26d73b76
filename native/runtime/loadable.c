/* Natively: can the loader of the program that is about to start load this library? Where it cannot (a 32-bit program, another
 * machine's, another root directory, a user who may not read the file, no descriptor left) it would say so on the program's
 * standard error, and go on without us. So such a program gets an environment without us.
 *
 * A vfork's child runs here: memory comes from the stack, and no state is left behind. */
#include "programs.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FEW_DESCRIPTORS 64  /* with a limit above nobody runs out by the limit alone: not looked at */
#define MOST_VARIABLES 2048 /* a copy on the stack; with more the environment stays */

static char library[PATH_MAX]; /* our own, as the loader knows it */

void ml_loadable_start(void) {
  Dl_info info;
  if (dladdr((void *)&library, &info) != 0 && info.dli_fname != NULL && info.dli_fname[0] == '/' &&
      strlen(info.dli_fname) < sizeof library)
    strcpy(library, info.dli_fname);
}

/* Our entry in a value of LD_PRELOAD, NULL if it is not there. */
static const char *find_entry(const char *value) {
  const size_t length = strlen(library);
  for (const char *at = value; (at = strstr(at, library)) != NULL; at++)
    if ((at == value || at[-1] == ':' || at[-1] == ' ') && (at[length] == 0 || at[length] == ':' || at[length] == ' '))
      return at;
  return NULL;
}

static size_t find_variable(char *const envp[], size_t *count) {
  size_t found = SIZE_MAX;
  for (*count = 0; envp[*count] != NULL; ++*count)
    if (strncmp(envp[*count], "LD_PRELOAD=", 11) == 0 && find_entry(envp[*count] + 11) != NULL) found = *count;
  return found;
}

/* In the process to come, after descriptors that are closed on exec are. */
static bool has_descriptor(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur > FEW_DESCRIPTORS) return true;
  for (int fd = 0; fd < (int)limit.rlim_cur; fd++) {
    const int flags = fcntl(fd, F_GETFD);
    if (flags < 0 || (flags & FD_CLOEXEC) != 0) return true;
  }
  return false;
}

static bool is_foreign_elf(const unsigned char *head, long bytes) {
  Elf64_Half machine;
  if (bytes < 20) return false;
  memcpy(&machine, head + offsetof(Elf64_Ehdr, e_machine), sizeof machine); /* at the same place in both classes */
  return head[EI_CLASS] != ELFCLASS64 || head[EI_DATA] != ML_OWN_ORDER || machine != ML_OWN_MACHINE;
}

/* An ELF program of another class or machine, or a script of one. What cannot be read is not known, and may load us. */
static bool is_foreign(const char *path) {
  char line[257];
  for (unsigned scripts = 0; scripts <= ML_MAX_SCRIPTS; scripts++) {
    struct stat status;
    if (stat(path, &status) != 0 || !S_ISREG(status.st_mode)) return false;
    const int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0);
    if (fd < 0) return false;
    unsigned char head[256];
    const long bytes = syscall(SYS_pread64, fd, head, sizeof head, 0L);
    syscall(SYS_close, fd);
    if (bytes >= 4 && memcmp(head, ELFMAG, SELFMAG) == 0) return is_foreign_elf(head, bytes);
    if (bytes < 3 || head[0] != '#' || head[1] != '!') return false;
    memcpy(line, head, (size_t)bytes);
    line[bytes] = 0;
    char *begin = line + 2 + strspn(line + 2, " \t");
    begin[strcspn(begin, " \t\n")] = 0;
    path = begin;
  }
  return false;
}

/* By opening it, as the loader will: a filter of system calls that this process was started under allows what loaders do. */
static bool is_unreadable(void) {
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, library, O_RDONLY | O_CLOEXEC | O_NOCTTY, 0);
  if (fd < 0) return errno == ENOENT || errno == EACCES || errno == ENOTDIR || errno == ELOOP;
  syscall(SYS_close, fd);
  return false;
}

size_t ml_left_out_bytes(const char *path, char *const envp[]) {
  /* Not from foreign thread-local memory, where errno is somebody's, and not under a filter of system calls. */
  if (library[0] == 0 || !ml_own_thread() || ml_runtime.sandboxed || envp == NULL || path == NULL) return 0;
  const int saved = errno;
  size_t bytes = 0, count;
  if (ml_readable((uint64_t)(uintptr_t)envp, sizeof *envp) && ml_readable((uint64_t)(uintptr_t)path, 1)) {
    const size_t at = find_variable(envp, &count);
    if (at != SIZE_MAX && count < MOST_VARIABLES &&
        (is_unreadable() || !has_descriptor() || (*path != 0 && is_foreign(path))))
      bytes = (count + 1) * sizeof *envp + strlen(envp[at]) + 1;
  }
  errno = saved;
  return bytes;
}

/* Takes our entry out of "LD_PRELOAD=…". False: nothing is left. */
static bool cut(char *variable) {
  const size_t length = strlen(library);
  char *value = variable + 11, *found = value + (find_entry(value) - value);
  const char *rest = found + length;
  if (*rest != 0) rest++;
  else if (found != value) found--; /* the separator before it */
  memmove(found, rest, strlen(rest) + 1);
  return *value != 0;
}

char **ml_left_out_build(char *const envp[], void *memory) {
  size_t count;
  const size_t at = find_variable(envp, &count);
  char **copy = memory, *text = (char *)(copy + count + 1);
  memcpy(copy, envp, (count + 1) * sizeof *envp);
  copy[at] = strcpy(text, envp[at]);
  if (!cut(text)) memmove(copy + at, copy + at + 1, (count - at) * sizeof *copy);
  if (ml_runtime.header != NULL) atomic_fetch_add(&ml_runtime.header->left_out, 1);
  return copy;
}

void ml_left_out_failed(void) {
  if (ml_runtime.header != NULL) atomic_fetch_sub(&ml_runtime.header->left_out, 1);
}

void ml_left_out_for_good(void) {
  size_t count;
  if (ml_left_out_bytes("", environ) == 0) return;
  const size_t at = find_variable(environ, &count);
  if (!cut(environ[at])) memmove(environ + at, environ + at + 1, (count - at) * sizeof *environ);
  if (ml_runtime.header != NULL) atomic_fetch_add(&ml_runtime.header->left_out, 1);
}
