/* Programs that the program starts. Natively the hooks take us out of the environment of a program that cannot load us (loadable.c)
 * and call the C library's functions; under the emulator they start the new program under it too.
 *
 * The command is MEMLENS_EMULATOR's words, then the settings of the loader as options (the emulator is a
 * program of the host, and a library of the guest has no place in it), argv[0] and the program. What the
 * emulator could not run as the kernel does (another machine's, set-uid, unreadable), and what fails, goes
 * to the C library unchanged: it runs natively, or gives the errno it always gave. An environment without
 * MEMLENS_EMULATOR is the caller's way to say that nothing of us is wanted.
 *
 * A child of vfork runs here: memory comes from the stack, and no state is left behind. (The emulator's own
 * vfork is a fork.) */
#include "programs.h"

#include <alloca.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "memlens_emulator.h"

#define SEPARATOR 0x1f
#define MAX_COMMAND_BYTES (128u << 10) /* the kernel's limit of one argument */

static char library[PATH_MAX]; /* our own, as the loader knows it */

/* ---- the C library's functions ---------------------------------------------------------------------- */
/* Looked up when the library is loaded: a fork's child must not ask the loader. */
#define EACH_FUNCTION(X) X(execve) X(execvpe) X(fexecve) X(execveat) X(posix_spawn) X(posix_spawnp) X(system) X(popen)
#define KEPT(name) static _Atomic(void *) kept_##name;
EACH_FUNCTION(KEPT)
#undef KEPT
#define REAL(name)                            \
  void *found = ml_next(&kept_##name, #name); \
  __typeof__(&name) function;                 \
  __builtin_memcpy(&function, &found, sizeof function)

static int real_execve(const char *path, char *const argv[], char *const envp[]) {
  REAL(execve);
  return function != NULL ? function(path, argv, envp) : (int)syscall(SYS_execve, path, argv, envp);
}

/* ---- the command -------------------------------------------------------------------------------------- */
struct launch {
  const struct ml_program *program;
  const char *script; /* the name that a script is given to its interpreter by */
  char *const *argv, *const *envp;
  const char *words;   /* MEMLENS_EMULATOR's value */
  const char *preload; /* LD_PRELOAD's, or NULL */
  size_t argc, envc, word_count, word_bytes, preload_bytes;
  size_t bytes; /* that build() needs */
  char **new_argv, **new_envp;
};

static const char *value_of(const char *variable, const char *name) {
  const size_t length = strlen(name);
  return strncmp(variable, name, length) == 0 && variable[length] == '=' ? variable + length + 1 : NULL;
}

/* The loader's variables become options of the emulator, which would obey them itself. A comma ends an
 * option's value: such a variable stays, LD_PRELOAD must not. */
static bool is_moved(const char *variable) {
  return strncmp(variable, "LD_", 3) == 0 && strchr(variable, '=') != NULL && strchr(variable, ',') == NULL;
}

static bool names_library(const char *preload) {
  const size_t length = strlen(library);
  for (const char *at = preload; (at = strstr(at, library)) != NULL; at++)
    if ((at == preload || at[-1] == ':' || at[-1] == ' ') &&
        (at[length] == 0 || at[length] == ':' || at[length] == ' '))
      return true;
  return false;
}

static bool prepare(struct launch *launch) {
  size_t moved = 0;
  launch->words = launch->preload = NULL;
  if (launch->envp == NULL || library[0] == 0 || strchr(library, ',') != NULL) return false;
  if (!ml_readable((uint64_t)(uintptr_t)launch->envp, 8) ||
      (launch->argv != NULL && !ml_readable((uint64_t)(uintptr_t)launch->argv, 8)))
    return false; /* EFAULT */
  for (launch->argc = 0; launch->argv != NULL && launch->argv[launch->argc] != NULL;) launch->argc++;
  for (launch->envc = 0; launch->envp[launch->envc] != NULL; launch->envc++) {
    const char *variable = launch->envp[launch->envc], *value;
    if ((value = value_of(variable, ML_EMULATOR_VARIABLE)) != NULL) launch->words = value;
    if ((value = value_of(variable, "LD_PRELOAD")) != NULL) launch->preload = value;
    moved += is_moved(variable);
  }
  if (launch->words == NULL || (launch->preload != NULL && strchr(launch->preload, ',') != NULL)) return false;
  launch->word_count = 0;
  const char *at = launch->words;
  while (!(at[0] == '-' && at[1] == '-' && (at[2] == 0 || at[2] == SEPARATOR))) {
    const char *end = strchr(at, SEPARATOR);
    launch->word_count++;
    if (end == NULL) return false;
    at = end + 1;
  }
  if (launch->word_count == 0 || launch->words[0] != '/') return false;
  launch->word_bytes = (size_t)(at - launch->words);
  launch->preload_bytes =
      sizeof "LD_PRELOAD=:" + strlen(library) + (launch->preload != NULL ? strlen(launch->preload) : 0);
  launch->bytes =
      (launch->word_count + 2 * (moved + 1) + 4 + 2 * ML_MAX_SCRIPTS + launch->argc + 1 + launch->envc + 1) *
          sizeof(char *) +
      launch->word_bytes + launch->preload_bytes;
  return true;
}

/* The options take strings that nobody writes to. */
static char *word(const char *text) {
  char *changeable;
  memcpy(&changeable, &text, sizeof changeable);
  return changeable;
}

static void build(struct launch *launch, void *memory) {
  const struct ml_program *program = launch->program;
  char **envp = memory, **argv = envp + launch->envc + 1;
  launch->new_envp = envp;
  launch->new_argv = argv;
  char *text = (char *)memory + launch->bytes - launch->word_bytes - launch->preload_bytes;
  char *preload = text + launch->word_bytes;
  memcpy(text, launch->words, launch->word_bytes);
  for (size_t i = 0; i < launch->word_count; i++) {
    *argv++ = text;
    text = strchr(text, SEPARATOR);
    *text++ = 0;
  }
  strcat(strcpy(preload, "LD_PRELOAD="), library);
  if (launch->preload != NULL && names_library(launch->preload))
    strcpy(preload + sizeof "LD_PRELOAD=" - 1, launch->preload);
  else if (launch->preload != NULL && *launch->preload != 0) strcat(strcat(preload, ":"), launch->preload);
  for (size_t i = 0; i < launch->envc; i++) {
    char *variable = launch->envp[i];
    if (value_of(variable, "LD_PRELOAD") != NULL) continue;
    if (is_moved(variable)) {
      *argv++ = word("-E");
      *argv++ = variable;
    } else {
      *envp++ = variable;
    }
  }
  *envp = NULL;
  *argv++ = word("-E");
  *argv++ = preload;
  *argv++ = word("-0");
  const unsigned scripts = program->script_count;
  if (scripts > 0) *argv++ = word(program->scripts[scripts - 1].interpreter);
  else *argv++ = launch->argc > 0 ? launch->argv[0] : word("");
  *argv++ = word("--");
  *argv++ = word(program->path);
  for (unsigned i = scripts; i-- > 0;) {
    if (program->scripts[i].argument != NULL) *argv++ = word(program->scripts[i].argument);
    *argv++ = word(i > 0 ? program->scripts[i - 1].interpreter : launch->script);
  }
  for (size_t i = 1; i < launch->argc; i++) *argv++ = launch->argv[i];
  *argv = NULL;
}

/* ---- exec ------------------------------------------------------------------------------------------- */
/* Returns when it did not come to that: the caller goes on natively. */
static void exec_emulated(const struct ml_program *program, const char *script, char *const argv[],
                          char *const envp[]) {
  struct launch launch = {.program = program, .script = script, .argv = argv, .envp = envp};
  if (!program->emulated || !prepare(&launch)) return;
  build(&launch, alloca(launch.bytes));
  real_execve(launch.new_argv[0], launch.new_argv, launch.new_envp);
}

static int exec_path(const char *path, char *const argv[], char *const envp[], bool with_shell) {
  struct ml_program program;
  ml_program_find(&program, path);
  exec_emulated(&program, path, argv, envp);
  const int result = real_execve(path, argv, envp);
  if (!with_shell || errno != ENOEXEC) return result;
  ml_program_use_shell(&program);
  exec_emulated(&program, path, argv, envp);
  size_t argc = 0;
  while (argv[argc] != NULL) argc++;
  char **words = alloca((argc + 3) * sizeof *words);
  words[0] = word("/bin/sh");
  words[1] = word(path);
  words[2] = NULL;
  for (size_t i = 1; i <= argc; i++) words[1 + i] = argv[i];
  return real_execve(words[0], words, envp);
}

/* Fills in `candidate` with the next path of PATH; false at its end. */
static bool next_candidate(const char **path, const char *file, char *candidate, size_t capacity) {
  const size_t file_bytes = strlen(file) + 1;
  while (*path != NULL) {
    const char *begin = *path, *end = strchr(begin, ':');
    const size_t length = end != NULL ? (size_t)(end - begin) : strlen(begin);
    *path = end != NULL ? end + 1 : NULL;
    if (length + 1 + file_bytes > capacity) continue;
    memcpy(candidate, begin, length);
    if (length > 0) candidate[length] = '/';
    memcpy(candidate + length + (length > 0), file, file_bytes);
    return true;
  }
  return false;
}

static const char *search_path(void) {
  const char *path = getenv("PATH");
  return path != NULL ? path : "/bin:/usr/bin";
}

static bool is_absent(int error) {
  return error == ENOENT || error == ESTALE || error == ENOTDIR || error == ENODEV || error == ETIMEDOUT;
}

/* The search of the C library, so that each candidate can start under the emulator. */
static int exec_searched(const char *file, char *const argv[], char *const envp[]) {
  if (*file == 0) {
    errno = ENOENT;
    return -1;
  }
  if (strchr(file, '/') != NULL) return exec_path(file, argv, envp, true);
  if (strlen(file) > NAME_MAX) {
    errno = ENAMETOOLONG;
    return -1;
  }
  char candidate[PATH_MAX];
  bool refused = false;
  errno = ENOENT;
  for (const char *path = search_path(); next_candidate(&path, file, candidate, sizeof candidate);) {
    exec_path(candidate, argv, envp, true);
    if (errno == EACCES) refused = true;
    else if (!is_absent(errno)) return -1;
  }
  if (refused) errno = EACCES;
  return -1;
}

/* The program that a search will find; "": not known. */
static const char *searched(const char *file, char *candidate, size_t capacity) {
  if (!ml_own_thread() || ml_runtime.sandboxed || file == NULL || !ml_readable((uint64_t)(uintptr_t)file, 1)) return "";
  if (*file == 0 || strchr(file, '/') != NULL) return file;
  if (strlen(file) > NAME_MAX) return "";
  const int saved = errno;
  const char *found = "";
  struct stat status;
  for (const char *path = search_path(); *found == 0 && next_candidate(&path, file, candidate, capacity);)
    if (stat(candidate, &status) == 0 && S_ISREG(status.st_mode) && (status.st_mode & 0111) != 0) found = candidate;
  errno = saved;
  return found;
}

static int start(const char *path, char *const argv[], char *const envp[]) {
  if (ML_UNLIKELY(ml_emulated)) return exec_path(path, argv, envp, false);
  const size_t bytes = ml_left_out_bytes(path, envp);
  if (ML_LIKELY(bytes == 0)) return real_execve(path, argv, envp);
  const int result = real_execve(path, argv, ml_left_out_build(envp, alloca(bytes)));
  ml_left_out_failed();
  return result;
}

static int start_searched(const char *file, char *const argv[], char *const envp[]) {
  if (ML_UNLIKELY(ml_emulated)) return exec_searched(file, argv, envp);
  char candidate[PATH_MAX];
  const size_t bytes = ml_left_out_bytes(searched(file, candidate, sizeof candidate), envp);
  REAL(execvpe);
  if (ML_UNLIKELY(bytes != 0)) {
    char **changed = ml_left_out_build(envp, alloca(bytes));
    const int result = function != NULL ? function(file, argv, changed) : exec_searched(file, argv, changed);
    ml_left_out_failed();
    return result;
  }
  return function != NULL ? function(file, argv, envp) : exec_searched(file, argv, envp);
}

ML_EXPORT int execve(const char *path, char *const argv[], char *const envp[]) { return start(path, argv, envp); }

ML_EXPORT int execv(const char *path, char *const argv[]) { return start(path, argv, environ); }

ML_EXPORT int execvp(const char *file, char *const argv[]) { return start_searched(file, argv, environ); }

ML_EXPORT int execvpe(const char *file, char *const argv[], char *const envp[]) {
  return start_searched(file, argv, envp);
}

/* Of a variadic call, without the NULL. */
static size_t count_words(va_list arguments) {
  size_t count = 1;
  while (va_arg(arguments, char *) != NULL) count++;
  return count;
}

#define TAKE_WORDS(first)                             \
  va_list arguments;                                  \
  va_start(arguments, first);                         \
  const size_t count = count_words(arguments);        \
  va_end(arguments);                                  \
  char **words = alloca((count + 1) * sizeof *words); \
  va_start(arguments, first);                         \
  words[0] = word(first);                             \
  for (size_t i = 1; i <= count; i++) words[i] = va_arg(arguments, char *)

ML_EXPORT int execl(const char *path, const char *first, ...) {
  TAKE_WORDS(first);
  va_end(arguments);
  return start(path, words, environ);
}

ML_EXPORT int execlp(const char *file, const char *first, ...) {
  TAKE_WORDS(first);
  va_end(arguments);
  return start_searched(file, words, environ);
}

ML_EXPORT int execle(const char *path, const char *first, ...) {
  TAKE_WORDS(first);
  char *const *envp = va_arg(arguments, char *const *);
  va_end(arguments);
  return start(path, words, envp);
}

/* ---- exec of a descriptor ---------------------------------------------------------------------------- */
static size_t put_number(char *to, unsigned value) {
  char digits[12];
  size_t count = 0, length = 0;
  do digits[count++] = (char)('0' + value % 10);
  while ((value /= 10) != 0);
  while (count > 0) to[length++] = digits[--count];
  to[length] = 0;
  return length;
}

/* False: the answer is in errno, also where the emulator without the call would find another. */
static bool exec_descriptor(int fd, char *const argv[], char *const envp[]) {
  char path[40] = "/proc/self/fd/", script[24] = "/dev/fd/";
  struct ml_program program;
  if (fd < 0) return true;
  put_number(path + strlen(path), (unsigned)fd);
  put_number(script + strlen(script), (unsigned)fd);
  ml_program_find(&program, path);
  if (program.script_count > 0 && fcntl(fd, F_GETFD) != 0) { /* closed before its interpreter could read it */
    errno = ENOENT;
    return false;
  }
  exec_emulated(&program, script, argv, envp);
  return true;
}

ML_EXPORT int fexecve(int fd, char *const argv[], char *const envp[]) {
  if (ML_UNLIKELY(ml_emulated) && !exec_descriptor(fd, argv, envp)) return -1;
  REAL(fexecve);
  if (function == NULL) {
    errno = ENOSYS;
    return -1;
  }
  char path[40] = "/proc/self/fd/";
  put_number(path + strlen(path), (unsigned)fd);
  const size_t bytes = ml_emulated || fd < 0 ? 0 : ml_left_out_bytes(path, envp);
  if (ML_LIKELY(bytes == 0)) return function(fd, argv, envp);
  const int result = function(fd, argv, ml_left_out_build(envp, alloca(bytes)));
  ml_left_out_failed();
  return result;
}

ML_EXPORT int execveat(int directory, const char *path, char *const argv[], char *const envp[], int flags) {
  if (ML_UNLIKELY(ml_emulated)) {
    struct stat status;
    char whole[PATH_MAX], link[40] = "/proc/self/fd/";
    const bool is_link = (flags & AT_SYMLINK_NOFOLLOW) != 0 &&
                         fstatat(directory, path, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(status.st_mode);
    if (is_link) {
      errno = ELOOP;
      return -1;
    }
    if (*path == 0 && (flags & AT_EMPTY_PATH) != 0) {
      if (!exec_descriptor(directory, argv, envp)) return -1;
    } else if (*path == '/' || directory == AT_FDCWD) {
      return exec_path(path, argv, envp, false);
    } else if (*path != 0 && directory >= 0) { /* the emulator does not have the call itself (seen with 7.2) */
      put_number(link + strlen(link), (unsigned)directory);
      const ssize_t length = readlink(link, whole, sizeof whole);
      if (length > 0 && whole[0] == '/' && (size_t)length + strlen(path) + 2 <= sizeof whole) {
        whole[length] = '/';
        strcpy(whole + length + 1, path);
        return exec_path(whole, argv, envp, false);
      }
    }
  }
  REAL(execveat);
  const bool is_here =
      !ml_emulated && ml_readable((uint64_t)(uintptr_t)path, 1) && (*path == '/' || directory == AT_FDCWD);
  const size_t bytes = ml_emulated ? 0 : ml_left_out_bytes(is_here ? path : "", envp);
  if (ML_UNLIKELY(bytes != 0)) envp = ml_left_out_build(envp, alloca(bytes));
  const int result = function != NULL ? function(directory, path, argv, envp, flags)
                                      : (int)syscall(SYS_execveat, directory, path, argv, envp, flags);
  if (bytes != 0) ml_left_out_failed();
  return result;
}

/* ---- posix_spawn ------------------------------------------------------------------------------------- */
/* A relative path after a change of directory is another program than it is here. */
static bool changes_directory(const posix_spawn_file_actions_t *actions) {
#ifdef __GLIBC__
  struct action { /* as in the C library, unchanged since directories are among them (2.29) */
    int tag;
    struct {
      int fd;
      const char *path;
      int flags;
      mode_t mode;
    } largest;
  };
  if (actions == NULL) return false;
  const struct action *list = (const void *)actions->__actions;
  for (int i = 0; i < actions->__used; i++)
    if (list[i].tag == 3 || list[i].tag == 4) return true;
#else
  (void)actions;
#endif
  return false;
}

struct spawn {
  pid_t *pid;
  const posix_spawn_file_actions_t *actions;
  const posix_spawnattr_t *attributes;
  char *const *argv, *const *envp;
};

/* -1: let the C library do it. */
static int spawn_emulated(const struct spawn *spawn, const struct ml_program *program, const char *path) {
  struct launch launch = {.program = program, .script = path, .argv = spawn->argv, .envp = spawn->envp};
  if (!program->emulated || !prepare(&launch)) return -1;
  build(&launch, alloca(launch.bytes));
  REAL(posix_spawn);
  return function(spawn->pid, launch.new_argv[0], spawn->actions, spawn->attributes, launch.new_argv, launch.new_envp);
}

/* An error that exec will give is given here: under the emulator, where the C library's child cannot tell its
 * parent, posix_spawn succeeds and the child ends with 127. */
static int spawn_path(const struct spawn *spawn, const char *path) {
  struct ml_program program;
  if (*path != '/' && changes_directory(spawn->actions)) return -1;
  ml_program_find(&program, path);
  return program.error != 0 ? program.error : spawn_emulated(spawn, &program, path);
}

static int spawn_searched(const struct spawn *spawn, const char *file) {
  if (strchr(file, '/') != NULL) return spawn_path(spawn, file);
  if (*file == 0) return ENOENT;
  if (strlen(file) > NAME_MAX) return ENAMETOOLONG;
  char candidate[PATH_MAX];
  struct ml_program program;
  bool refused = false;
  for (const char *path = search_path(); next_candidate(&path, file, candidate, sizeof candidate);) {
    ml_program_find(&program, candidate);
    if (program.error == EACCES) refused = true;
    else if (program.error != 0 && !is_absent(program.error)) return program.error;
    else if (program.error == 0) return spawn_emulated(spawn, &program, candidate);
  }
  return refused ? EACCES : ENOENT;
}

ML_EXPORT int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                          const posix_spawnattr_t *attributes, char *const argv[], char *const envp[]) {
  if (ML_UNLIKELY(ml_emulated)) {
    const int result = spawn_path(&(struct spawn){pid, actions, attributes, argv, envp}, path);
    if (result >= 0) return result;
  }
  REAL(posix_spawn);
  const size_t bytes = ml_emulated ? 0 : ml_left_out_bytes(path, envp);
  if (ML_UNLIKELY(bytes != 0)) envp = ml_left_out_build(envp, alloca(bytes));
  const int result = function != NULL ? function(pid, path, actions, attributes, argv, envp) : ENOSYS;
  if (bytes != 0 && result != 0) ml_left_out_failed();
  return result;
}

ML_EXPORT int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,
                           const posix_spawnattr_t *attributes, char *const argv[], char *const envp[]) {
  if (ML_UNLIKELY(ml_emulated)) {
    const int result = spawn_searched(&(struct spawn){pid, actions, attributes, argv, envp}, file);
    if (result >= 0) return result;
  }
  REAL(posix_spawnp);
  char candidate[PATH_MAX];
  const size_t bytes = ml_emulated ? 0 : ml_left_out_bytes(searched(file, candidate, sizeof candidate), envp);
  if (ML_UNLIKELY(bytes != 0)) envp = ml_left_out_build(envp, alloca(bytes));
  const int result = function != NULL ? function(pid, file, actions, attributes, argv, envp) : ENOSYS;
  if (bytes != 0 && result != 0) ml_left_out_failed();
  return result;
}

/* ---- system and popen ---------------------------------------------------------------------------------- */
static char *put_text(char *at, const char *text) {
  const size_t length = strlen(text);
  memcpy(at, text, length);
  return at + length;
}

static char *put_quoted(char *at, const char *text) {
  *at++ = '\'';
  for (; *text != 0; text++) {
    if (*text == '\'') at = put_text(at, "'\\''");
    else *at++ = *text;
  }
  *at++ = '\'';
  *at++ = ' ';
  return at;
}

static size_t quoted_bytes(const char *text) {
  size_t bytes = 3;
  for (; *text != 0; text++) bytes += *text == '\'' ? 4 : 1;
  return bytes;
}

/* A command for the C library's shell that becomes the emulator with a shell in it, which runs the command
 * given. In memory of its own, `*bytes` of it: a command may be larger than a thread's stack. */
static char *shell_command(const char *command, size_t *bytes) {
  char *words[] = {word("sh"), word("-c"), word(command), NULL};
  struct ml_program program;
  ml_program_find(&program, "/bin/sh");
  struct launch launch = {.program = &program, .script = "/bin/sh", .argv = words, .envp = environ};
  if (!program.emulated || !prepare(&launch)) return NULL;
  build(&launch, alloca(launch.bytes));
  *bytes = sizeof "unset;exec ";
  for (char *const *at = environ; *at != NULL; at++)
    if (is_moved(*at)) *bytes += 2 + strlen(*at);
  for (char **at = launch.new_argv; *at != NULL; at++) *bytes += quoted_bytes(*at);
  if (*bytes > MAX_COMMAND_BYTES) return NULL;
  void *memory = (void *)syscall(SYS_mmap, NULL, *bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);
  if (memory == MAP_FAILED) return NULL;
  char *at = memory;
  bool any = false;
  for (char *const *variable = environ; *variable != NULL; variable++) {
    if (!is_moved(*variable)) continue;
    const size_t length = (size_t)(strchr(*variable, '=') - *variable);
    at = put_text(at, any ? " " : "unset ");
    memcpy(at, *variable, length);
    at += length;
    any = true;
  }
  at = put_text(at, any ? ";exec " : "exec ");
  for (char **argument = launch.new_argv; *argument != NULL; argument++) at = put_quoted(at, *argument);
  *at = 0;
  return memory;
}

ML_EXPORT int system(const char *command) {
  REAL(system);
  if (function == NULL) return -1;
  if (ML_LIKELY(!ml_emulated)) ml_left_out_for_good();
  if (ML_LIKELY(!ml_emulated) || command == NULL) return function(command);
  size_t bytes;
  char *rewritten = shell_command(command, &bytes);
  if (rewritten == NULL) return function(command);
  const int status = function(rewritten);
  const int saved = errno;
  syscall(SYS_munmap, rewritten, bytes);
  errno = saved;
  return status;
}

ML_EXPORT FILE *popen(const char *command, const char *mode) {
  REAL(popen);
  if (function == NULL) return NULL;
  size_t bytes;
  if (ML_LIKELY(!ml_emulated)) ml_left_out_for_good();
  char *rewritten = ML_UNLIKELY(ml_emulated) ? shell_command(command, &bytes) : NULL;
  if (rewritten == NULL) return function(command, mode);
  FILE *stream = function(rewritten, mode);
  const int saved = errno;
  syscall(SYS_munmap, rewritten, bytes);
  errno = saved;
  return stream;
}

/* ---- start ----------------------------------------------------------------------------------------------- */
/* Takes our library out of LD_PRELOAD: the loader has read it. Programs then see the variables that they see
 * without us, and what runs natively (an exec by a bare system call, the shell of system()) is not given a
 * library of the guest. */
static void hide_preload(void) {
  Dl_info info;
  if (dladdr((void *)&library, &info) == 0 || info.dli_fname == NULL || strlen(info.dli_fname) >= sizeof library)
    return;
  strcpy(library, info.dli_fname);
  for (char **at = environ; *at != NULL; at++) {
    char *value = word(value_of(*at, "LD_PRELOAD"));
    const size_t length = strlen(library);
    if (value == NULL) continue;
    for (char *found = value; (found = strstr(found, library)) != NULL; found++) {
      const bool begins = found == value || found[-1] == ':' || found[-1] == ' ';
      if (!begins || (found[length] != 0 && found[length] != ':' && found[length] != ' ')) continue;
      const char *rest = found + length;
      if (*rest != 0) rest++;
      else if (found != value) found--; /* the separator before it */
      memmove(found, rest, strlen(rest) + 1);
      break;
    }
    if (*value != 0) return;
    do at[0] = at[1];
    while (*at++ != NULL);
    return;
  }
}

#if defined(__x86_64__) || defined(__aarch64__) || defined(__riscv)
extern long (*ml_next_syscall)(long, ...) __attribute__((visibility("hidden"))); /* interpose_syscall.c */
#endif

void ml_exec_start(void) {
#define LOOK_UP(name) ml_next(&kept_##name, #name);
  EACH_FUNCTION(LOOK_UP)
#undef LOOK_UP
#if defined(__x86_64__) || defined(__aarch64__) || defined(__riscv)
  static _Atomic(void *) kept_syscall;
  void *found = ml_next(&kept_syscall, "syscall");
  if (found != NULL) memcpy(&ml_next_syscall, &found, sizeof found);
#endif
  if (ml_emulated) hide_preload();
  else ml_loadable_start();
}
