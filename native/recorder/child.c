/* A child process that waits until it is watched, then becomes the user's program.
 *
 * The program must not see that it is profiled: it gets our standard streams,
 * environment, limits, process group and terminal; signals that were ignored or
 * blocked when we started stay so: the recorder forks before it blocks any for itself.
 * With a launcher (launcher.c) the program's peak RSS starts small; without one it is
 * at least that of the forked recorder. */
#include "internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "become.h"

static int pipe_above_stdio(int ends[2]) {
  if (pipe2(ends, O_CLOEXEC) != 0) return -errno;
  for (int i = 0; i < 2; i++) {
    if (ends[i] > 2) continue; /* the caller had closed a standard stream: do not take its place */
    const int moved = fcntl(ends[i], F_DUPFD_CLOEXEC, 3);
    if (moved < 0) return -errno;
    close(ends[i]);
    ends[i] = moved;
  }
  return 0;
}

/* The arguments of the launcher, in one block that the caller frees; NULL: out of memory. */
static char **launcher_arguments(const char *launcher, const int descriptors[3], char *const argv[],
                                 const char *working_directory, char *const environment[], size_t variables) {
  size_t words = 0;
  while (argv[words] != NULL) words++;
  char **arguments = calloc(1, (4 + variables + words + 1) * sizeof *arguments + 64);
  if (arguments == NULL) return NULL;
  char *text = (char *)(arguments + 4 + variables + words + 1);
  snprintf(text, 48, "%d,%d,%d", descriptors[0], descriptors[1], descriptors[2]);
  snprintf(text + 48, 16, "%zu", variables);
  arguments[0] = (char *)(uintptr_t)launcher;
  arguments[1] = text;
  arguments[2] = (char *)(uintptr_t)(working_directory != NULL ? working_directory : "");
  arguments[3] = text + 48;
  for (size_t i = 0; i < variables; i++) arguments[4 + i] = environment[i];
  for (size_t i = 0; i < words; i++) arguments[4 + variables + i] = argv[i];
  return arguments;
}

static void close_pair(const int ends[2]) {
  if (ends[0] >= 0) close(ends[0]);
  if (ends[1] >= 0) close(ends[1]);
}

int ml_child_spawn(struct ml_child *child, char *const argv[], const char *working_directory, char *const environment[],
                   const char *launcher) {
  int go[2] = {-1, -1}, failed[2] = {-1, -1}, report[2] = {-1, -1};
  int status = pipe_above_stdio(go);
  if (status == 0) status = pipe_above_stdio(failed);
  if (status == 0) status = pipe_above_stdio(report);
  size_t variables = 0;
  while (environment != NULL && environment[variables] != NULL) variables++;
  const int handed_on[3] = {go[0], failed[1], report[1]};
  char **launcher_argv = NULL;
  if (status == 0 && launcher != NULL) {
    launcher_argv = launcher_arguments(launcher, handed_on, argv, working_directory, environment, variables);
    if (launcher_argv == NULL) status = -ENOMEM;
  }
  const pid_t pid = status == 0 ? fork() : -1;
  if (pid < 0) {
    if (status == 0) status = -errno;
    free(launcher_argv);
    close_pair(go);
    close_pair(failed);
    close_pair(report);
    return status;
  }
  if (pid == 0) {
    close(go[1]);
    close(failed[0]);
    close(report[0]);
    if (launcher_argv != NULL) {
      for (int i = 0; i < 3; i++) fcntl(handed_on[i], F_SETFD, 0);
      execv(launcher, launcher_argv);
      for (int i = 0; i < 3; i++) fcntl(handed_on[i], F_SETFD, FD_CLOEXEC); /* it could not be executed: without it */
    }
    const int32_t own = (int32_t)getpid();
    if (write(report[1], &own, sizeof own) != sizeof own) _exit(127);
    close(report[1]);
    ml_become(go[0], failed[1], environment, variables, working_directory, argv);
  }
  free(launcher_argv);
  close(go[0]);
  close(failed[1]);
  close(report[1]);
  int32_t program = 0;
  ssize_t got;
  do got = read(report[0], &program, sizeof program);
  while (got < 0 && errno == EINTR);
  close(report[0]);
  if (got != (ssize_t)sizeof program || program != pid) { /* the launcher has ended, or was killed */
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    }
  }
  if (got != (ssize_t)sizeof program) {
    close(go[1]);
    close(failed[0]);
    return -ECHILD;
  }
  child->pid = program;
  child->go_fd = go[1];
  child->failed_fd = failed[0];
  return 0;
}

int ml_child_go(struct ml_child *child) {
  const char byte = 1;
  ssize_t wrote;
  do wrote = write(child->go_fd, &byte, 1);
  while (wrote < 0 && errno == EINTR);
  close(child->go_fd);
  child->go_fd = -1;
  int error = 0;
  ssize_t got;
  do got = read(child->failed_fd, &error, sizeof error);
  while (got < 0 && errno == EINTR);
  close(child->failed_fd);
  child->failed_fd = -1;
  if (got == (ssize_t)sizeof error) {
    waitpid(child->pid, NULL, 0);
    return error;
  }
  return 0;
}

void ml_child_abandon(struct ml_child *child) {
  if (child->go_fd >= 0) close(child->go_fd);
  if (child->failed_fd >= 0) close(child->failed_fd);
  child->go_fd = child->failed_fd = -1;
  waitpid(child->pid, NULL, 0);
}
