/* Which program an exec of a path starts, found as the kernel finds it (programs.c, used under the emulator only), and whether it can
 * load us (loadable.c, natively). */
#ifndef MEMLENS_PROGRAMS_H
#define MEMLENS_PROGRAMS_H

#include "runtime.h"

#include <elf.h>
#include <limits.h>

#if defined(__x86_64__)
#define ML_OWN_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define ML_OWN_MACHINE EM_AARCH64
#elif defined(__riscv)
#define ML_OWN_MACHINE EM_RISCV
#elif defined(__powerpc64__)
#define ML_OWN_MACHINE EM_PPC64
#else
#define ML_OWN_MACHINE EM_NONE
#endif
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define ML_OWN_ORDER ELFDATA2LSB
#else
#define ML_OWN_ORDER ELFDATA2MSB
#endif

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

void ml_loadable_start(void);
/* The memory that an environment without us takes; 0: the one given is right for the program at `path` ("": not known which). */
size_t ml_left_out_bytes(const char *path, char *const envp[]);
char **ml_left_out_build(char *const envp[], void *memory);
void ml_left_out_failed(void);   /* the program did not start */
void ml_left_out_for_good(void); /* from `environ`, where the C library takes it from there */

#endif
