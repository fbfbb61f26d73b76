/* A child process that waits until it is watched, then becomes the user's program.
 *
 * The program must not see that it is profiled: it gets our standard streams,
 * environment, limits, process group and terminal. What the Python interpreter
 * changed for itself (SIGPIPE and SIGXFSZ ignored) is set back to the default;
 * signals that were ignored or blocked when we started stay so: the recorder forks
 * before it blocks any for itself. */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

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

int ml_child_spawn(struct ml_child *child, char *const argv[], const char *working_directory,
                   char *const environment[]) {
  int go[2] = {-1, -1}, failed[2] = {-1, -1};
  int status = pipe_above_stdio(go);
  if (status == 0) status = pipe_above_stdio(failed);
  if (status != 0) return status;
  const pid_t pid = fork();
  if (pid < 0) {
    status = -errno;
    close(go[0]);
    close(go[1]);
    close(failed[0]);
    close(failed[1]);
    return status;
  }
  if (pid == 0) {
    close(go[1]);
    close(failed[0]);
    char byte;
    ssize_t got;
    do got = read(go[0], &byte, 1);
    while (got < 0 && errno == EINTR);
    if (got != 1) _exit(127); /* the recorder is gone: there is nobody to run for */
    signal(SIGPIPE, SIG_DFL);
#ifdef SIGXFSZ
    signal(SIGXFSZ, SIG_DFL);
#endif
    int error = 0;
    for (size_t i = 0; environment != NULL && environment[i] != NULL; i++) putenv(environment[i]);
    if (working_directory != NULL && chdir(working_directory) != 0) error = errno;
    if (error == 0) {
      execvp(argv[0], argv);
      error = errno;
    }
    if (write(failed[1], &error, sizeof error) < 0) {
    }
    _exit(127);
  }
  close(go[0]);
  close(failed[1]);
  child->pid = pid;
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
