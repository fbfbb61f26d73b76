/* Which program an exec of a path starts, found as the kernel finds it. Used under the emulator only. */
#ifndef MEMLENS_PROGRAMS_H
#define MEMLENS_PROGRAMS_H

#include "runtime.h"

#include <limits.h>

#define ML_MAX_SCRIPTS 5 /* the kernel's limit of scripts that are interpreters of scripts */

struct ml_script { /* a file that begins with #! */
  char line[257];
  const char *interpreter, *argument; /* in `line`; argument NULL: none */
};

struct ml_program {
  bool emulated;    /* an ELF program of this machine that the emulator can open and run as the kernel would */
  int error;        /* exec fails with it; 0: not known, let the kernel say */
  const char *path; /* of the ELF program */
  unsigned script_count;
  struct ml_script scripts[ML_MAX_SCRIPTS]; /* [0] is the path given, [i] the interpreter of [i - 1] */
  char resolved[PATH_MAX];
};

void ml_program_find(struct ml_program *program, const char *path);
/* After ENOEXEC, as execvp does: the file is the argument of a shell. */
void ml_program_use_shell(struct ml_program *program);

#endif
