/* The last steps of a waiting child: wait for the recorder's word, then become the user's program. Shared by the forked
 * child (child.c) and the launcher (launcher.c). */
#ifndef MEMLENS_BECOME_H
#define MEMLENS_BECOME_H

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

/* What the Python interpreter changed for itself (SIGPIPE and SIGXFSZ ignored) is set back to the default; signals that
 * were ignored or blocked when the recorder started stay so. Does not return. */
static inline void ml_become(int go_fd, int failed_fd, char *const environment[], size_t environment_count,
                             const char *working_directory, char *const argv[]) {
  char byte;
  ssize_t got;
  do got = read(go_fd, &byte, 1);
  while (got < 0 && errno == EINTR);
  if (got != 1) _exit(127); /* the recorder is gone: there is nobody to run for */
  signal(SIGPIPE, SIG_DFL);
#ifdef SIGXFSZ
  signal(SIGXFSZ, SIG_DFL);
#endif
  int error = 0;
  for (size_t i = 0; i < environment_count; i++) putenv(environment[i]);
  if (working_directory != NULL && chdir(working_directory) != 0) error = errno;
  if (error == 0) {
    execvp(argv[0], argv);
    error = errno;
  }
  if (write(failed_fd, &error, sizeof error) < 0) {
  }
  _exit(127);
}

#endif
