"""Nasty programs for the attack `programs`: what each does is the same at every run, and so is what it prints."""

from __future__ import annotations

HEAD = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>
extern char **environ;
static void churn(int n) { for (int i = 0; i < n; i++) { volatile char *p = malloc(1 + (i * 7919) % 200000); p[0] = 1; free((void *)p); } }
static void show(const char *what, int status) {
  printf("%s: signal %d status %d\n", what, WIFSIGNALED(status) ? WTERMSIG(status) : 0, WIFEXITED(status) ? WEXITSTATUS(status) : -1); fflush(stdout); }
static void show_child(const char *what, pid_t pid) { int status = -1; if (pid > 0) waitpid(pid, &status, __WALL); show(what, status); }
"""

SOURCES: dict[str, str] = {
    "faults": r"""
static sigjmp_buf back; static volatile int caught;
static void handler(int s, siginfo_t *i, void *c) { caught++; churn(3); siglongjmp(back, 1); }
int main(int argc, char **argv) {
  static char alternate[1 << 16]; stack_t st = {.ss_sp = alternate, .ss_size = sizeof alternate}; sigaltstack(&st, NULL);
  struct sigaction a = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER}; sigaction(SIGSEGV, &a, NULL); sigaction(SIGBUS, &a, NULL);
  char *page = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  for (volatile int i = 0; i < 300; i++) if (sigsetjmp(back, 1) == 0) page[i] = 1;
  printf("caught %d\n", caught); return 4; }""",
    "dies": r"""
int main(int argc, char **argv) { churn(200); puts("so far"); fflush(stdout);
  switch (argv[1][0]) {
    case 's': *(volatile int *)0 = 1; break;
    case 'a': abort();
    case 'k': kill(getpid(), SIGKILL); break;
    case 't': raise(SIGTERM); break;
    case 'f': { volatile int zero = 0; return 1 / zero; }
    case 'i': __builtin_trap();
    case 'x': { struct rlimit l = {4096, 4096}; setrlimit(RLIMIT_FSIZE, &l); FILE *f = fopen("large", "w"); for (int i = 0; i < 10000; i++) fputs("0123456789\n", f); fclose(f); break; }
    case 'c': { struct rlimit l = {1, 1}; setrlimit(RLIMIT_CPU, &l); for (;;) churn(10); }
    case 'o': { volatile char big[1 << 16]; big[0] = argc; return main(argc, argv) + big[0]; }
    case 'p': { int e[2]; pipe(e); close(e[0]); write(e[1], "x", 1); break; }
  } return 5; }""",
    "vforks": r"""
int main(void) { for (int i = 0; i < 30; i++) { pid_t p = vfork(); if (p == 0) { if (i % 3 == 0) execl("/bin/true", "true", NULL); if (i % 3 == 1) execl("/nowhere", "x", NULL); _exit(i); }
    if (i % 10 == 0) show("vfork", (waitpid(p, &(int){0}, 0), 0)); else show_child("vfork", p); churn(20); } return 6; }""",
    "clones": r"""
static int leaves(void *a) { _exit((int)(intptr_t)a); } static int returns(void *a) { return (int)(intptr_t)a; }
static int becomes(void *a) { char *v[] = {"true", NULL}; execve("/bin/true", v, environ); _exit(9); }
static int works(void *a) { churn(100); return 3; } static int allocates(void *a) { churn(100); _exit(4); }
static char stack[1 << 18], tls[1 << 15];
int main(void) { churn(50); char *top = stack + sizeof stack - 64;
  show_child("settls first", clone(leaves, top, CLONE_VM | CLONE_VFORK | CLONE_SETTLS | SIGCHLD, (void *)5, NULL, tls + 4096, NULL));
  show_child("plain", clone(works, top, SIGCHLD, NULL)); show_child("vm vfork", clone(leaves, top, CLONE_VM | CLONE_VFORK | SIGCHLD, (void *)7));
  show_child("vm", clone(leaves, top, CLONE_VM | SIGCHLD, (void *)8)); show_child("returns", clone(returns, top, CLONE_VM | CLONE_VFORK | SIGCHLD, (void *)9));
  show_child("exec", clone(becomes, top, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL)); show_child("no signal", clone(works, top, 0, NULL));
  show_child("files", clone(works, top, CLONE_FILES | CLONE_FS | CLONE_SIGHAND * 0 | SIGCHLD, NULL));
  show_child("settls exec", clone(becomes, top, CLONE_VM | CLONE_VFORK | CLONE_SETTLS | SIGCHLD, NULL, NULL, tls + 4096, NULL));
  memset(tls, 0, sizeof tls); show_child("settls churn", clone(allocates, top, CLONE_VM | CLONE_VFORK | CLONE_SETTLS | SIGCHLD, NULL, NULL, tls + (1 << 14), NULL));
  pid_t p = syscall(SYS_fork < 0 ? SYS_clone : SYS_fork); if (p == 0) { churn(50); _exit(2); } show_child("bare fork", p); return 0; }""",
    "jumps": r"""
static jmp_buf back; static sigjmp_buf from_signal; static volatile int n; static ucontext_t one, two; static char stack[1 << 16];
static void handler(int s) { siglongjmp(from_signal, 1); }
static void coroutine(void) { for (int i = 0; i < 50; i++) { churn(5); n++; swapcontext(&two, &one); } }
int main(void) { signal(SIGUSR1, handler);
  for (volatile int i = 0; i < 200; i++) { if (setjmp(back) == 0) { churn(3); longjmp(back, 1); } if (sigsetjmp(from_signal, 1) == 0) raise(SIGUSR1); n++; }
  getcontext(&two); two.uc_stack.ss_sp = stack; two.uc_stack.ss_size = sizeof stack; two.uc_link = &one; makecontext(&two, coroutine, 0);
  for (int i = 0; i < 50; i++) swapcontext(&one, &two);
  printf("%d\n", n); return 7; }""",
    "alarms": r"""
static volatile int ticks; static void handler(int s) { free(malloc(1000)); ticks++; }
static void plain(int s) { ticks++; }
int main(void) { struct sigaction a = {.sa_handler = plain, .sa_flags = SA_RESTART}; sigaction(SIGALRM, &a, NULL);
  struct itimerval t = {{0, 500}, {0, 500}}; setitimer(ITIMER_REAL, &t, NULL); struct timespec now, begin; clock_gettime(CLOCK_MONOTONIC, &begin);
  do { churn(50); clock_gettime(CLOCK_MONOTONIC, &now); } while ((now.tv_sec - begin.tv_sec) * 1000000000l + now.tv_nsec - begin.tv_nsec < 150000000l || ticks < 5);
  puts("ticked"); return 8; }""",
    "filters": r"""
int main(int argc, char **argv) { const int ok[] = {SYS_read, SYS_write, SYS_exit_group, SYS_exit, SYS_brk, SYS_mmap, SYS_munmap, SYS_mremap, SYS_futex, SYS_mprotect, SYS_madvise};
  struct sock_filter f[64]; int n = 0; f[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
  for (unsigned i = 0; i < sizeof ok / sizeof *ok; i++) { f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ok[i], 0, 1); f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW); }
  const unsigned refused = argv[2][0] == 'k' ? SECCOMP_RET_KILL_PROCESS : argv[2][0] == 't' ? SECCOMP_RET_TRAP : SECCOMP_RET_ERRNO | EPERM;
  f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, refused); struct sock_fprog p = {n, f}; volatile char *first = malloc(500000); first[0] = 1; prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  long r = 0; switch (argv[1][0]) { case 'p': r = prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &p); break; case 's': r = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &p); break;
#ifdef __x86_64__
    case 'a': __asm__ volatile("syscall" : "=a"(r) : "a"(SYS_seccomp), "D"(SECCOMP_SET_MODE_FILTER), "S"(0), "d"(&p) : "rcx", "r11", "memory"); break;
#endif
    case 'm': r = prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT); for (int i = 0; i < 2000; i++) free(malloc(100 + i)); write(1, "strict\n", 7); syscall(SYS_exit, 3); }
  churn(3000); free((void *)first); char t[32]; write(1, t, snprintf(t, 32, "filtered %ld\n", r)); syscall(SYS_exit_group, 6); }""",
    "drops": r"""
int main(int argc, char **argv) { churn(100); setgroups(0, NULL); if (setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534)) return 77; churn(100);
  pid_t p = fork(); if (p == 0) { churn(100); _exit(4); } show_child("child", p); printf("%d\n", (int)getuid()); fflush(stdout); execl("/usr/bin/id", "id", "-u", NULL); return 78; }""",
    "roots": r"""
int main(void) { churn(100); mkdir("root", 0755); if (chroot("root") || chdir("/")) return 77; churn(100); pid_t p = fork(); if (p == 0) { churn(100); _exit(4); } show_child("child", p);
  execl("/bin/true", "true", NULL); printf("%s\n", strerror(errno)); FILE *f = fopen("inside", "w"); fputs("x", f); fclose(f); return 9; }""",
    "closed": r"""
int main(int argc, char **argv) { for (char *c = argv[1]; *c; c++) close(*c - '0'); churn(100); int fd = open("file", O_CREAT | O_WRONLY | O_APPEND, 0600); char t[64];
  write(fd, t, snprintf(t, 64, "first %d next %d\n", fd, dup(fd))); for (int i = 3; i < 2000; i++) close(i); churn(100);
  pid_t p = fork(); if (p == 0) { churn(10); int again = open("file", O_WRONLY | O_APPEND); write(again, t, snprintf(t, 64, "child %d\n", again)); _exit(0); } waitpid(p, NULL, 0); printf("out\n"); fprintf(stderr, "err\n"); return 3; }""",
    "limits": r"""
int main(int argc, char **argv) { int which = atoi(argv[1]); rlim_t value = strtoull(argv[2], NULL, 0); struct rlimit l = {value, value}; signal(SIGXFSZ, SIG_IGN); churn(50);
  printf("set %d\n", setrlimit(which, &l)); int opened = 0; for (int i = 0; i < 300; i++) opened += open("/dev/null", O_RDONLY) >= 0; printf("opened %d\n", opened);
  for (int i = 3; i < 400; i++) close(i); FILE *f = fopen("written", "w"); if (f) { int wrote = 0; for (int i = 0; i < 2000; i++) wrote += fputs("0123456789", f) >= 0; fclose(f); }
  churn(500); pid_t p = fork(); if (p == 0) { churn(50); _exit(2); } if (p < 0) printf("fork: %s\n", strerror(errno)); else show_child("child", p);
  fflush(stdout); if (argc > 3) { execl("/bin/sh", "sh", "-c", argv[3], NULL); } return 4; }""",
    "loads": r"""
int main(void) { const char *names[] = {"libm.so.6", "libz.so.1", "libstdc++.so.6", "libgcc_s.so.1", "libnowhere.so"}; int n = 0;
  for (int i = 0; i < 30; i++) { void *h = dlopen(names[i % 5], i % 2 ? RTLD_NOW : RTLD_LAZY); n += h != NULL; churn(10); if (h) dlclose(h); } if (dlerror() == NULL) puts("no error told");
  double (*cosine)(double); void *h = dlopen("libm.so.6", RTLD_NOW); *(void **)&cosine = dlsym(h, "cos"); printf("%d %.3f\n", n, cosine(0)); dlclose(h); puts(dlerror() ? "error" : "none"); return 2; }""",
    "threads": r"""
static void *work(void *a) { churn(400); return a; }
int main(void) { pthread_t t[6]; for (long i = 0; i < 6; i++) pthread_create(&t[i], NULL, work, (void *)i); int bad = 0;
  for (int i = 0; i < 12; i++) { pid_t p = fork(); if (p == 0) { churn(30); _exit(i); } int s; waitpid(p, &s, 0); bad += WEXITSTATUS(s) != i || WIFSIGNALED(s); }
  long sum = 0; for (int i = 0; i < 6; i++) { void *r; pthread_join(t[i], &r); sum += (long)r; } printf("%d %ld\n", bad, sum); return 1; }""",
    "again": r"""
int main(int argc, char **argv) { int n = atoi(argv[1]); churn(100); printf("%d %s\n", n, argv[0]); fflush(stdout); if (n == 0) return 11; char t[16]; sprintf(t, "%d", n - 1);
  if (n % 3 == 0) execl("/proc/self/exe", n % 2 ? "" : "name", t, NULL); if (n % 3 == 1) { int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC); char *v[] = {"by descriptor", t, NULL}; fexecve(fd, v, environ); }
  char *v[] = {"other", t, NULL}; char path[4096]; path[readlink("/proc/self/exe", path, 4095)] = 0; execve(path, v, environ); return 99; }""",
    "traces": r"""
int main(void) { pid_t p = fork(); if (p == 0) { ptrace(PTRACE_TRACEME, 0, 0, 0); raise(SIGSTOP); churn(200); _exit(6); } int s, stops = 0; waitpid(p, &s, 0);
  for (int i = 0; i < 200 && !WIFEXITED(s); i++) { ptrace(PTRACE_SINGLESTEP, p, 0, 0); waitpid(p, &s, 0); stops++; } ptrace(PTRACE_CONT, p, 0, 0); waitpid(p, &s, 0); printf("%d steps\n", stops); show("traced", s);
  p = fork(); if (p == 0) { ptrace(PTRACE_TRACEME, 0, 0, 0); execl("/bin/true", "true", NULL); } waitpid(p, &s, 0); show("exec", s); ptrace(PTRACE_DETACH, p, 0, 0); waitpid(p, &s, 0); show("left", s); return 0; }""",
    "bomb": r"""
static int grow(int depth) { churn(5); if (depth == 0) return 1; int n = 1; for (int i = 0; i < 2; i++) { pid_t p = fork(); if (p == 0) _exit(grow(depth - 1)); int s; waitpid(p, &s, 0); n += WEXITSTATUS(s); } return n; }
int main(void) { printf("%d processes\n", grow(5)); return 0; }""",
    "ends": r"""
static const char *how; static void by_handler(int s) { _exit(21); } static void at_end(void) { churn(50); printf("at exit\n"); fflush(stdout); if (how[0] == 'a') _exit(22); }
static void *ends(void *a) { churn(20); if (how[0] == 't') exit(23); if (how[0] == 'T') _exit(24); if (how[0] == 'q') quick_exit(25); if (how[0] == 'g') syscall(SYS_exit_group, 26); usleep(20000); return NULL; }
__attribute__((constructor)) static void begin(void) { free(malloc(100000)); if (getenv("EARLY")) _exit(27); }
__attribute__((destructor)) static void end(void) { churn(20); printf("destructor\n"); fflush(stdout); if (how && how[0] == 'd') _exit(28); }
int main(int argc, char **argv) { how = argv[1]; atexit(at_end); pthread_t t; pthread_create(&t, NULL, ends, NULL); if (how[0] == 'h') { signal(SIGUSR1, by_handler); raise(SIGUSR1); }
  if (how[0] == 'e') { static char early[] = "EARLY=1"; putenv(early); execv("/proc/self/exe", argv); } if (how[0] == 'm') pthread_exit(NULL); if (how[0] == 'r') return 29; pthread_join(t, NULL); if (how[0] == 'x') _Exit(30); return 31; }""",
    "arguments": r"""
int main(int argc, char **argv) { uint64_t h = 1469598103934665603u; for (int i = 1; i < argc; i++) for (char *c = argv[i];; c++) { h = (h ^ (unsigned char)*c) * 1099511628211u; if (!*c) break; }
  churn(100); const char *s = getenv("STRANGE"); printf("%d %llx %s\n", argc, (unsigned long long)h, s ? s : "-"); return 13; }""",
    "own_malloc": r"""
static char arena[1 << 24]; static size_t used;
void *malloc(size_t n) { size_t at = __atomic_fetch_add(&used, (n + 31) & ~15ul, __ATOMIC_RELAXED); return at + n < sizeof arena ? arena + at : NULL; } void free(void *p) { }
void *calloc(size_t a, size_t b) { return malloc(a * b); } void *realloc(void *p, size_t n) { void *q = malloc(n); if (p && q) memcpy(q, p, n < 4096 && (char *)p + n < arena + sizeof arena ? n : 16); return q; }
int main(void) { for (int i = 0; i < 1000; i++) { char *p = malloc(1000); p[0] = 1; free(p); } printf("own\n"); return 14; }""",
    "hostile": r"""
static unsigned long begin, end;
static void find(void) { FILE *f = fopen("/proc/self/maps", "r"); char line[512]; while (fgets(line, sizeof line, f)) if (strstr(line, "memfd:memlens") && !begin) sscanf(line, "%lx-%lx", &begin, &end); fclose(f); }
int main(int argc, char **argv) { churn(100); find(); int go[2]; pipe(go); if (end - begin > 1 << 20) end = begin + (1 << 20); pid_t p = fork();
  if (p == 0) { setresuid(65534, 65534, 65534); uint64_t x = 88172645463325252u; char c = 1; write(go[1], &c, 1);
    for (;;) { x ^= x << 13; x ^= x >> 7; x ^= x << 17; if (begin) { uint64_t at = argv[1][0] == 'h' ? x % 512 * 8 : argv[1][0] == 's' ? 4096 + x % 512 * 8 : x % (end - begin) & ~7ul;
      if (at == 104 || at == 96) continue; /* `closed` ends the recording: too easy */ *(volatile uint64_t *)(begin + at) = x % 3 ? x >> (x & 63) : 0x80000000u | (x >> 40 & 0xfff8); } else usleep(1000); } }
  char c; read(go[0], &c, 1); churn(20000); pid_t q = fork(); if (q == 0) { churn(500); _exit(3); } show_child("child", q); kill(p, SIGKILL); waitpid(p, NULL, 0); puts("fine"); return 16; }""",
    "empty": r"""
int main(int argc, char **argv) { churn(100); if (argc > 1) { environ = NULL; clearenv(); pid_t p = fork(); if (p == 0) { churn(20); char *v[] = {argv[0], NULL}; execve("/proc/self/exe", v, (char *[]){NULL}); } show_child("child", p); } puts("done"); return 15; }""",
}
SOURCES["static"] = SOURCES["jumps"]

THIRTY_TWO_BITS = """
.globl _start
_start: movl $4, %eax; movl $1, %ebx; call 1f
1: popl %ecx; addl $message - 1b, %ecx; movl $3, %edx; int $0x80
  movl $1, %eax; movl $7, %ebx; int $0x80
message: .ascii "32\\n"
"""
