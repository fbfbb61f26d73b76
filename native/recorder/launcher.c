/* A small program between the recorder and the user's: the kernel keeps the largest RSS of a process over exec, so a child
 * that the recorder forks would report at least the recorder's own memory as the program's peak.
 *
 * It creates the process that becomes the program as a sibling (CLONE_PARENT), so that this is the recorder's own child,
 * writes its pid to the recorder and ends before the program starts. Where no process can be created it becomes the
 * program itself.
 *
 * Arguments: descriptors "GO,FAILED,REPORT", working directory or "", number of variables, NAME=VALUE ..., program and
 * its arguments. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <sys/syscall.h>

#include "become.h"

static const char *number(const char *text, int *value) {
  *value = 0;
  while (*text >= '0' && *text <= '9') *value = *value * 10 + (*text++ - '0');
  return *text == ',' ? text + 1 : text;
}

int main(int count, char **arguments) {
  if (count < 5) _exit(127);
  int go_fd, failed_fd, report_fd, variables;
  number(number(number(arguments[1], &go_fd), &failed_fd), &report_fd);
  number(arguments[3], &variables);
  if (variables < 0 || variables > count - 5) _exit(127);
  fcntl(go_fd, F_SETFD, FD_CLOEXEC);
  fcntl(failed_fd, F_SETFD, FD_CLOEXEC);
  fcntl(report_fd, F_SETFD, FD_CLOEXEC);
#if defined(__s390__)
  const long made = syscall(SYS_clone, 0, CLONE_PARENT | SIGCHLD, 0, 0, 0);
#else
  const long made = syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0);
#endif
  if (made != 0) { /* the launcher, or no process could be created */
    const int32_t pid = made > 0 ? (int32_t)made : (int32_t)getpid();
    if (write(report_fd, &pid, sizeof pid) != sizeof pid) _exit(127);
    if (made > 0) _exit(0);
  }
  close(report_fd);
  ml_become(go_fd, failed_fd, arguments + 4, (size_t)variables, arguments[2][0] != '\0' ? arguments[2] : NULL,
            arguments + 4 + variables);
}
