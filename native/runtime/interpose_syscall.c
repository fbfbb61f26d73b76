/* The C library's syscall(), for two kinds of calls alone. The memory-policy calls that the emulator does not have: programs
 * and libraries (hwloc, OpenBLAS, what looks libnuma's functions up by handle) make them this way. And those that install a
 * filter of system calls, before which recording ends (interpose_system.c).
 *
 * In assembly because it must not have a frame: a call that returns twice, or on another stack (clone), finds
 * everything as the C library's own function would. Natively it is three tests and a jump. */
#include "runtime.h"

#include <errno.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#if defined(__x86_64__) || defined(__aarch64__) || defined(__riscv)
long mbind(void *, unsigned long, int, const unsigned long *, unsigned long, unsigned);
long set_mempolicy(int, const unsigned long *, unsigned long);
long get_mempolicy(int *, unsigned long *, unsigned long, void *, unsigned);
long migrate_pages(int, unsigned long, const unsigned long *, const unsigned long *);
long move_pages(int, unsigned long, void **, const int *, int *, int);

__attribute__((visibility("hidden"))) long ml_raw_syscall(long number, ...);
__attribute__((visibility("hidden"))) long ml_syscall_failed(long error);
__attribute__((visibility("hidden"))) long ml_guest_syscall(long number, long a, long b, long c, long d, long e,
                                                            long f);

__attribute__((visibility("hidden"))) long ml_filter_syscall(long number, long a, long b, long c, long d, long e,
                                                             long f);

/* The C library's, once it is known (interpose_exec.c). */
__attribute__((visibility("hidden"))) long (*ml_next_syscall)(long, ...) = ml_raw_syscall;

long ml_syscall_failed(long error) {
  errno = (int)error;
  return -1;
}

long ml_guest_syscall(long number, long a, long b, long c, long d, long e, long f) {
  switch (number) {
    case SYS_mbind:
      return mbind((void *)a, (unsigned long)b, (int)c, (const unsigned long *)d, (unsigned long)e, (unsigned)f);
    case SYS_set_mempolicy: return set_mempolicy((int)a, (const unsigned long *)b, (unsigned long)c);
    case SYS_get_mempolicy:
      return get_mempolicy((int *)a, (unsigned long *)b, (unsigned long)c, (void *)d, (unsigned)e);
    case SYS_migrate_pages:
      return migrate_pages((int)a, (unsigned long)b, (const unsigned long *)c, (const unsigned long *)d);
    default: return move_pages((int)a, (unsigned long)b, (void **)c, (const int *)d, (int *)e, (int)f);
  }
}

/* seccomp or prctl: neither returns twice. A filter of nothing is how programs ask whether there are filters. */
long ml_filter_syscall(long number, long a, long b, long c, long d, long e, long f) {
  const bool installs = number == SYS_seccomp ? a == SECCOMP_SET_MODE_STRICT || (a == SECCOMP_SET_MODE_FILTER && c != 0)
                                              : a == PR_SET_SECCOMP && (b != SECCOMP_MODE_FILTER || c != 0);
  if (installs) ml_enter_sandbox();
  return ml_next_syscall(number, a, b, c, d, e, f);
}

#define FUNCTION(name) ".type " name ",%function\n" name ":\n"
#if defined(__x86_64__)
_Static_assert(SYS_mbind == 237 && SYS_set_mempolicy == 238 && SYS_get_mempolicy == 239 && SYS_migrate_pages == 256 &&
                   SYS_move_pages == 279 && SYS_prctl == 157 && SYS_seccomp == 317,
               "the numbers below");
__asm__(".text\n.globl syscall\n.hidden ml_raw_syscall\n"
        FUNCTION("syscall")
        "  cmpb $0, ml_emulated(%rip)\n"
        "  jne 2f\n"
        "1: cmpq $157, %rdi\n"
        "  je ml_filter_syscall\n"
        "  cmpq $317, %rdi\n"
        "  je ml_filter_syscall\n"
        "  jmp *ml_next_syscall(%rip)\n"
        "2: leaq -237(%rdi), %rax\n"
        "  cmpq $2, %rax\n"
        "  jbe ml_guest_syscall\n"
        "  cmpq $256, %rdi\n"
        "  je ml_guest_syscall\n"
        "  cmpq $279, %rdi\n"
        "  je ml_guest_syscall\n"
        "  jmp 1b\n"
        ".size syscall,.-syscall\n"
        FUNCTION("ml_raw_syscall")
        "  movq %rdi, %rax\n"
        "  movq %rsi, %rdi\n"
        "  movq %rdx, %rsi\n"
        "  movq %rcx, %rdx\n"
        "  movq %r8, %r10\n"
        "  movq %r9, %r8\n"
        "  movq 8(%rsp), %r9\n"
        "  syscall\n"
        "  cmpq $-4095, %rax\n"
        "  jae 1f\n"
        "  ret\n"
        "1: negq %rax\n"
        "  movq %rax, %rdi\n"
        "  jmp ml_syscall_failed\n"
        ".size ml_raw_syscall,.-ml_raw_syscall\n");
#else
_Static_assert(SYS_mbind == 235 && SYS_move_pages == 239 && SYS_prctl == 167 && SYS_seccomp == 277,
               "the numbers below, the first two those of a range of all five");
#if defined(__aarch64__)
__asm__(".text\n.globl syscall\n.hidden ml_raw_syscall\n.hidden ml_emulated\n.hidden ml_next_syscall\n"
        FUNCTION("syscall")
        "  adrp x16, ml_emulated\n"
        "  ldrb w16, [x16, #:lo12:ml_emulated]\n"
        "  cbz w16, 1f\n"
        "  sub x16, x0, #235\n"
        "  cmp x16, #4\n"
        "  b.hi 1f\n"
        "  b ml_guest_syscall\n"
        "1: cmp x0, #167\n"
        "  b.eq ml_filter_syscall\n"
        "  cmp x0, #277\n"
        "  b.eq ml_filter_syscall\n"
        "  adrp x16, ml_next_syscall\n"
        "  ldr x16, [x16, #:lo12:ml_next_syscall]\n"
        "  br x16\n"
        ".size syscall,.-syscall\n"
        FUNCTION("ml_raw_syscall")
        "  mov x8, x0\n"
        "  mov x0, x1\n"
        "  mov x1, x2\n"
        "  mov x2, x3\n"
        "  mov x3, x4\n"
        "  mov x4, x5\n"
        "  mov x5, x6\n"
        "  svc #0\n"
        "  cmn x0, #4095\n"
        "  b.cs 1f\n"
        "  ret\n"
        "1: neg x0, x0\n"
        "  b ml_syscall_failed\n"
        ".size ml_raw_syscall,.-ml_raw_syscall\n");
#else
__asm__(".text\n.globl syscall\n.hidden ml_raw_syscall\n.hidden ml_emulated\n.hidden ml_next_syscall\n"
        FUNCTION("syscall")
        "  lbu t0, ml_emulated\n"
        "  beqz t0, 1f\n"
        "  addi t0, a0, -235\n"
        "  li t1, 4\n"
        "  bgtu t0, t1, 1f\n"
        "  tail ml_guest_syscall\n"
        "1: li t0, 167\n"
        "  beq a0, t0, 3f\n"
        "  li t0, 277\n"
        "  beq a0, t0, 3f\n"
        "  ld t0, ml_next_syscall\n"
        "  jr t0\n"
        "3: tail ml_filter_syscall\n"
        ".size syscall,.-syscall\n"
        FUNCTION("ml_raw_syscall")
        "  mv a7, a0\n"
        "  mv a0, a1\n"
        "  mv a1, a2\n"
        "  mv a2, a3\n"
        "  mv a3, a4\n"
        "  mv a4, a5\n"
        "  mv a5, a6\n"
        "  ecall\n"
        "  li t0, -4096\n"
        "  bltu t0, a0, 1f\n"
        "  ret\n"
        "1: neg a0, a0\n"
        "  tail ml_syscall_failed\n"
        ".size ml_raw_syscall,.-ml_raw_syscall\n");
#endif
#endif
#endif
