"""Attacks of issue 23: each program ends as it ends natively, with the same output, and its names arrive byte for byte."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import MEMLENS, needs_root

import memlens

PROGRAMS = {
    # What Chromium's sandbox does (credentials.cc, ChrootToSafeEmptyDir): a child on thread-local memory of its own.
    "settls": """
        #define _GNU_SOURCE
        #include <sched.h>
        #include <signal.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <string.h>
        #include <sys/mman.h>
        #include <sys/prctl.h>
        #include <sys/syscall.h>
        #include <sys/wait.h>
        #include <unistd.h>
        static int exits(void *unused) { _exit(chdir("/") ? 1 : 0); }
        static int maps(void *unused) {
          void *p = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
          prctl(PR_GET_DUMPABLE, 0, 0, 0, 0); syscall(SYS_prctl, PR_GET_DUMPABLE, 0, 0, 0, 0); close(dup(1)); raise(SIGURG);
          _exit(p == MAP_FAILED || munmap(p, 4096)); }
        static int becomes(void *unused) { /* the C library's exec touches no thread-local variable where it succeeds */
          char *argv[] = {"true", NULL}; execve("/bin/true", argv, environ); _Exit(9); }
        static char stack[1 << 18], tls[0x8000], *old;
        static int allocates(void *unused) { /* the C library keeps what it needs below the thread pointer: zeros will do */
          char *p = malloc(300000); p[0] = 1; free(p); free(realloc(malloc(10), 70000)); free(calloc(3, 100)); free(old);
          p = NULL; if (posix_memalign((void **)&p, 64, 100000) == 0) free(p);
          _exit(0); }
        int main(int argc, char **argv) {
          free(malloc(100000));
          int status, flags = CLONE_VM | CLONE_VFORK | CLONE_SETTLS | SIGCHLD;
          /* The memory below the thread pointer is nobody's: a thread-local variable there would be a fault. */
          char *own = mmap(NULL, 3 * 0x8000, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
          mprotect(own + 0x8000, 0x8000, PROT_READ | PROT_WRITE);
          void *areas[] = {tls, own + 0x8000};
          int (*children[])(void *) = {exits, maps, becomes};
          for (int i = 0; i < 6; i++) {
            pid_t p = clone(children[i / 2], stack + sizeof stack - 64, flags, 0, 0, areas[i % 2], 0);
            waitpid(p, &status, 0);
            printf("signalled %d status %d\\n", WIFSIGNALED(status) ? WTERMSIG(status) : 0, WEXITSTATUS(status));
          }
          for (int i = 0; i < 2; i++) { /* sharing our memory or not */
            memset(tls, 0, sizeof tls); old = malloc(100000);
            pid_t p = clone(allocates, stack + sizeof stack - 64, i ? CLONE_SETTLS | SIGCHLD : flags, 0, 0, tls + 0x4000, 0);
            waitpid(p, &status, 0);
            printf("signalled %d status %d\\n", WIFSIGNALED(status) ? WTERMSIG(status) : 0, WEXITSTATUS(status));
          }
          free(malloc(200000)); return 0; }""",
    # Installs a filter in one of several ways; every call but a few is then answered by `refused`.
    "filter": """
        #define _GNU_SOURCE
        #include <errno.h>
        #include <linux/filter.h>
        #include <linux/seccomp.h>
        #include <stddef.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <string.h>
        #include <sys/prctl.h>
        #include <sys/syscall.h>
        #include <unistd.h>
        static __attribute__((noinline)) void deep(int n) {
          volatile char room[3000]; room[0] = 1;
          if (n > 0) deep(n - 1);
          else for (int i = 1; i < 4000; i++) { volatile char *q = malloc(i * 100); q[0] = 1; free((void *)q); }
          room[1] = 2; }
        int main(int argc, char **argv) {
          const char *how = argv[1]; const int deeper = argc > 3 ? 20 : 0;
          const unsigned refused = strcmp(argv[2], "kill") == 0 ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ERRNO | EPERM;
          const int allowed[] = {SYS_read, SYS_write, SYS_exit_group, SYS_exit, SYS_brk, SYS_mmap, SYS_munmap, SYS_mremap,
                                 SYS_futex, SYS_fstat, SYS_newfstatat, SYS_mprotect};
          struct sock_filter f[64]; int n = 0;
          f[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
          for (unsigned i = 0; i < sizeof allowed / sizeof *allowed; i++) {
            f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i], 0, 1);
            f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
          }
          f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, refused);
          struct sock_fprog p = {n, f};
          prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
          /* Asking for support installs nothing. */
          if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, NULL) != -1 || errno != EFAULT) return 1;
          volatile char *q0 = malloc(500000); q0[5] = 1;
          long r;
          if (strcmp(how, "prctl") == 0) r = prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &p);
          else if (strcmp(how, "syscall") == 0) r = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &p);
          else if (strcmp(how, "syscall-prctl") == 0) r = syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &p, 0, 0);
          else __asm__ volatile("syscall" : "=a"(r) : "a"(SYS_seccomp), "D"(SECCOMP_SET_MODE_FILTER), "S"(0), "d"(&p)
                                : "rcx", "r11", "memory");
          deep(deeper);
          free((void *)q0);
          char text[64]; int length = snprintf(text, 64, "r=%ld done\\n", r);
          if (write(1, text, length) != length) return 2;
          syscall(SYS_exit_group, 6); }""",
    "arguments": """
        #include <stdio.h>
        #include <stdlib.h>
        int main(int argc, char **argv) {
          for (int i = 1; i < argc; i++) puts(argv[i]);
          printf("%s\\n", getenv("STRANGE")); free(malloc(1000000)); return 3; }""",
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    directory = tmp_path_factory.mktemp("unharmed")

    def build(name: str) -> str:
        program = directory / name
        if not program.exists():
            (directory / f"{name}.c").write_text(PROGRAMS[name])
            command = ["gcc", "-O1", "-g", "-fno-builtin", "-w", str(directory / f"{name}.c"), "-o", str(program)]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        return str(program)

    return build


def ends_alike(capture: Path | bytes, *command: str | bytes, **how: object) -> subprocess.CompletedProcess[bytes]:
    """The program natively and recorded: status and both streams are the same."""
    native = subprocess.run(command, capture_output=True, timeout=60, **how)  # type: ignore[call-overload]
    recorder = [*MEMLENS, "record", "-q", "--force", "-o", capture, "--", *command]
    done: subprocess.CompletedProcess[bytes] = subprocess.run(recorder, capture_output=True, timeout=120, **how)  # type: ignore[call-overload]
    assert (done.returncode, done.stdout, done.stderr) == (native.returncode, native.stdout, native.stderr)
    return native


def test_names_that_are_not_utf8_reach_the_program_unchanged(tmp_path: Path, programs: Callable[[str], str]) -> None:
    folder = os.fsencode(tmp_path) + b"/d\xff"
    os.mkdir(folder)
    program = folder + b"/pr\xfeog"
    os.link(programs("arguments"), program)
    environment = {**os.environb, b"STRANGE": b"v\xc3\x28w"}
    capture = folder + b"/o\xfd.memlens"
    native = ends_alike(capture, program, b"a\xffb", "é".encode(), b"", env=environment, cwd=folder)
    assert native.stdout == b"a\xffb\n\xc3\xa9\n\nv\xc3(w\n"

    opened = memlens.open(os.fsdecode(capture))
    assert opened.meta["command"][1:] == ["a\\xffb", "é", ""]
    assert opened.meta["working_directory"].endswith("/d\\xff")
    # Named from the file's own symbols, and shown escaped.
    sites = [row for row in opened.table("sites").to_pylist() if row["function"] == "main"]
    assert sites and all(row["module"].endswith("/d\\xff/pr\\xfeog") for row in sites)

    for options in ((), ("--json",), ("--html", os.fsencode(tmp_path) + b"/p\xff.html")):
        done = subprocess.run([*MEMLENS, "report", capture, *options], capture_output=True, timeout=120)
        assert done.returncode == 0, done.stderr
        text = done.stdout.decode("utf-8")  # strict
        assert "\\xfe" in text or "pr" in text or options
        if options == ("--json",):
            json.loads(text)
    assert "\\xfe" in Path(os.fsdecode(os.fsencode(tmp_path) + b"/p\xff.html")).read_text("utf-8")


def test_a_name_that_is_not_utf8_is_shown_escaped_in_messages(tmp_path: Path) -> None:
    done = subprocess.run(
        [*MEMLENS, "record", "-o", tmp_path / "c.memlens", "--", b"./no\xffne"], capture_output=True, timeout=60, cwd=tmp_path
    )  # fmt: skip
    assert done.returncode == 127 and b"no\\xffne" in done.stderr
    done = subprocess.run(
        [*MEMLENS, "record", "--", "/bin/sh", "-c", "exit 4"], capture_output=True, timeout=60, cwd=tmp_path,
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    )  # fmt: skip
    assert done.returncode == 4, done.stderr


SWAPPED_LIBRARY = """
#include <stddef.h>
#include <stdint.h>
uint64_t lib_sum(const uint64_t *a, size_t n) { uint64_t s = 0; for (size_t i = 0; i < n; i++) s += a[i]; return s; }
"""
SWAPPED_MAIN = """
#include <stdint.h>
#include <stdio.h>
uint64_t lib_sum(const uint64_t *, unsigned long);
uint64_t A[10];
int main(void) {
#pragma memlens begin(r)
  A[1] = lib_sum(A, 10);
#pragma memlens end
  puts("fine"); return 0; }
"""
SWAPPED_DLOPENS = """
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
int main(void) {
  for (int i = 0; i < 2; i++) {
    void *library = dlopen("libswapped.so", RTLD_NOW);
    if (library == NULL) { puts(dlerror()); return 1; }
    uint64_t values[10] = {1}, (*sum)(const uint64_t *, unsigned long);
    *(void **)&sum = dlsym(library, "lib_sum");
    if (sum(values, 10) != 1 || dlclose(library) != 0) return 2;
  }
  puts("fine"); return 0; }
"""


# ---- thread-local memory of somebody else --------------------------------------------------------------------------------
def test_a_child_on_thread_local_memory_of_its_own_ends_in_order(
    tmp_path: Path, programs: Callable[[str], str]
) -> None:
    native = ends_alike(tmp_path / "c.memlens", programs("settls"))
    assert native.stdout == b"signalled 0 status 0\n" * 8
    rows = memlens.open(tmp_path / "c.memlens").table("allocations").to_pylist()
    assert any(row["bytes"] == 100_000 for row in rows) and any(row["bytes"] == 200_000 for row in rows)


def test_chromium_with_its_sandbox(tmp_path: Path) -> None:
    """As a user without rights: as root it refuses to run with a sandbox."""
    if not shutil.which("chromium"):
        pytest.skip("chromium is not installed: sudo apt-get install chromium")
    as_nobody = []
    if os.getuid() == 0:
        as_nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    if subprocess.run([*as_nobody, "unshare", "-U", "true"], capture_output=True).returncode:
        pytest.skip("users without rights make no user namespaces here: sysctl user.max_user_namespaces")
    page = "data:text/html,<script>let a=[];for(let i=0;i<99999;i++)a.push({i});document.write(a.length)</script>"
    with tempfile.TemporaryDirectory(prefix="memlens-chromium-", ignore_cleanup_errors=True) as home:
        if as_nobody:
            os.chown(home, 65534, 65534)
        command = [*as_nobody, "env", f"HOME={home}", "chromium", "--headless", "--disable-gpu", "--no-first-run"]
        command += [f"--user-data-dir={home}/data", "--dump-dom", page]
        native = subprocess.run(command, capture_output=True, timeout=120, cwd=home)
        if native.returncode or b"99999" not in native.stdout:
            pytest.skip(f"chromium does not run here: {native.stderr[-500:]!r}")
        recorder = [*MEMLENS, "record", "-q", "-o", tmp_path / "c.memlens", "--", *command]
        done = subprocess.run(recorder, capture_output=True, timeout=300, cwd=home)
    assert (done.returncode, done.stdout) == (0, native.stdout), done.stderr[-2000:]
    assert memlens.open(tmp_path / "c.memlens").complete


# ---- filters of system calls ---------------------------------------------------------------------------------------------
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the filter is installed by x86-64 instructions")
@pytest.mark.parametrize(
    "words",
    [("prctl", "kill"), ("syscall", "kill"), ("syscall", "errno"), ("syscall-prctl", "kill"), ("asm", "kill"),
     ("asm", "kill", "deep"), ("asm", "errno", "deep")],
    ids="-".join,
)  # fmt: skip
def test_a_filter_meets_no_call_of_ours(tmp_path: Path, programs: Callable[[str], str], words: tuple[str, ...]) -> None:
    """Every object recorded, so that stacks and tables are busy. The filter allows what the program needs, and futexes."""
    command = [programs("filter"), *words]
    native = subprocess.run(command, capture_output=True, timeout=60)
    if native.returncode != 6:
        pytest.skip(f"filters of system calls cannot be installed here: {native}")
    recorder = [*MEMLENS, "record", "-q", "--sample-bytes", "0", "-o", tmp_path / "c.memlens", "--", *command]
    done = subprocess.run(recorder, capture_output=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (native.returncode, native.stdout, native.stderr)
    rows = memlens.open(tmp_path / "c.memlens").table("allocations").to_pylist()
    sizes = [row["bytes"] for row in rows if row["operation"] == "malloc"]
    assert 500_000 in sizes  # what came before the filter; asking for support did not end the recording
    assert (399_900 in sizes) == (
        words[0] == "asm"
    )  # of a filter that nobody tells us of we learn by a refused call at most


# ---- a library that is replaced ------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def swapped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """main-KIND (linked beside a plain library if it is plain itself), main-KIND-2 (the other way round), lib-KIND, dlopens-KIND."""
    if not shutil.which("clang"):
        pytest.skip("clang is not installed: sudo apt-get install clang-19 llvm-19-dev lld-19")
    folder = tmp_path_factory.mktemp("swapped")
    for name, text in (("lib", SWAPPED_LIBRARY), ("main", SWAPPED_MAIN), ("dlopens", SWAPPED_DLOPENS)):
        (folder / f"{name}.c").write_text(text)
    compilers: dict[str, list[str]] = {
        "plain": ["gcc"],
        "counted": [*MEMLENS, "cc"],
        "traced": [*MEMLENS, "cc", "--memlens=trace"],
    }

    def build(kind: str, *words: str) -> None:
        command = [*compilers[kind], "-O1", "-g", "-w", *words]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    for kind in compilers:
        (folder / f"lib-{kind}").mkdir()
        build(kind, "-shared", "-fPIC", "lib.c", "-o", f"lib-{kind}/libswapped.so")
    for kind in compilers:
        beside = ("plain", "counted") if kind == "plain" else ("counted", "plain")
        for library, suffix in zip(beside, ("", "-2"), strict=True):
            build(kind, "main.c", "-o", f"main-{kind}{suffix}", f"-Llib-{library}", "-lswapped")
        build(kind, "dlopens.c", "-o", f"dlopens-{kind}", "-ldl")
    return folder


SWAPS = [
    (program, library)
    for program in ("main-plain-2", "main-counted", "dlopens-plain", "dlopens-counted")
    for library in ("plain", "counted")
]
MORE_SWAPS = [
    (program, library)
    for program in ("main-plain", "main-counted-2", "main-traced", "main-traced-2", "dlopens-traced")
    for library in ("plain", "counted", "traced")
] + [(program, "traced") for program, library in SWAPS if library == "plain"]


@pytest.mark.parametrize(
    ("program", "library"),
    [*SWAPS, ("main-traced", "plain"), *(pytest.param(*swap, marks=pytest.mark.slow) for swap in MORE_SWAPS)],
)
def test_a_program_starts_whatever_library_it_finds(tmp_path: Path, swapped: Path, program: str, library: str) -> None:
    environment = {**os.environ, "LD_LIBRARY_PATH": str(swapped / f"lib-{library}")}
    native = ends_alike(tmp_path / "c.memlens", str(swapped / program), env=environment)
    assert (native.returncode, native.stdout) == (0, b"fine\n")
    if program.startswith("main-counted"):
        assert [row["name"] for row in memlens.open(tmp_path / "c.memlens").table("regions").to_pylist()] == ["r"]


# ---- programs whose loader cannot load the library ------------------------------------------------------------------------
THIRTY_TWO_BITS = """
.globl _start
_start:
  movl $4, %eax; movl $1, %ebx; call 1f
1: popl %ecx; addl $message - 1b, %ecx; movl $3, %edx; int $0x80
  movl $1, %eax; movl $7, %ebx; int $0x80
message: .ascii "32\\n"
"""
LEAVES = """
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
extern char **environ;
int main(int argc, char **argv) { /* HOW DIRECTORY PROGRAM ARGUMENTS... */
  char *how = argv[1];
  if (argv[2][0] != '-' && (chroot(argv[2]) != 0 || chdir("/") != 0)) return 77;
  if (argv[2][0] == '-' && argv[2][1] != 0) setrlimit(RLIMIT_NOFILE, &(struct rlimit){atoi(argv[2] + 1), atoi(argv[2] + 1)});
  fflush(stdout);
  if (how[0] == 's') return system(argv[3]) == -1 ? 78 : 5;
  if (how[0] == 'f') { FILE *pipe = popen(argv[3], "w"); return pipe == NULL ? 78 : pclose(pipe) == -1 ? 79 : 5; }
  int status;
  for (int i = 0; i < 2; i++)
    if ((i == 0 ? vfork() : fork()) == 0) {
      if (how[0] == 'v') execv(argv[3], argv + 3);
      if (how[0] == 'e') execve(argv[3], argv + 3, environ);
      if (how[0] == 'p') execvp(argv[3], argv + 3);
      if (how[0] == 'l') execl(argv[3], argv[3], argv[4], NULL);
      _exit(9);
    } else wait(&status);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 80;
}
"""


@pytest.fixture(scope="module")
def leaving(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs `leaves`, `dynamic32` and `static32`, a script of the former, and a directory to be a root with an echo in it."""
    folder = tmp_path_factory.mktemp("leaving")
    (folder / "leaves.c").write_text(LEAVES)
    (folder / "32.s").write_text(THIRTY_TWO_BITS)
    commands = [["gcc", "-O1", "-w", "leaves.c", "-o", "leaves"]]
    if os.uname().machine == "x86_64":
        commands += [
            ["as", "--32", "32.s", "-o", "32.o"],
            ["ld", "-m", "elf_i386", "32.o", "-o", "static32"],
            ["ld", "-m", "elf_i386", "-pie", "--dynamic-linker=/lib/ld-linux.so.2", "32.o", "-o", "dynamic32"],
        ]
        (folder / "script32").write_text(f"#!{folder}/dynamic32\n")
        (folder / "script32").chmod(0o755)
    for command in commands:
        subprocess.run(command, cwd=folder, check=True)
    for path in ("/bin/echo", "/bin/sh"):
        needed = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
        for word in [path, *(word for word in needed.split() if word.startswith("/"))]:
            copy = folder / "root" / word.lstrip("/")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(os.path.realpath(word), copy)
    return folder


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="32-bit programs of x86")
@pytest.mark.parametrize("program", ["dynamic32", "static32", "script32"])
def test_nothing_is_said_about_32_bit_programs(tmp_path: Path, leaving: Path, program: str) -> None:
    if not os.path.exists("/lib/ld-linux.so.2"):
        pytest.skip("there is no 32-bit loader: sudo apt-get install libc6-i386")
    path = str(leaving / program)
    if subprocess.run([path], capture_output=True).returncode != 7:
        pytest.skip("this kernel runs no 32-bit programs")
    assert ends_alike(tmp_path / "c.memlens", path).stdout == b"32\n"
    how = f"{leaving}/leaves v - {path}; {leaving}/leaves p - {path}; {leaving}/leaves l - {path} a; {path} | cat; env {path}"
    assert ends_alike(tmp_path / "c.memlens", "sh", "-c", how).stdout == b"32\n" * 8
    notes = memlens.open(tmp_path / "c.memlens").meta["quality"]["notes"]
    assert any("8 programs were started without the library" in note for note in notes)
    script = (
        f"import os; os.wait() and 0 if os.posix_spawn('{path}', ['a'], os.environ) else 0; os.execvp('{path}', ['a'])"
    )
    assert ends_alike(tmp_path / "c.memlens", sys.executable, "-c", script).stdout == b"32\n" * 2


@needs_root
@pytest.mark.parametrize("how", ["v", "p", "s", "f"])
def test_nothing_is_said_in_another_root(tmp_path: Path, leaving: Path, how: str) -> None:
    command = "/bin/echo here" if how in "sf" else "/bin/echo"
    native = ends_alike(tmp_path / "c.memlens", str(leaving / "leaves"), how, str(leaving / "root"), command, "here")
    assert native.stdout.startswith(b"here\n")


@pytest.mark.parametrize(("how", "limit"), [("v", "-3"), ("s", "-3"), ("p", "-4"), ("v", "-64")])
def test_nothing_is_said_without_a_descriptor(tmp_path: Path, leaving: Path, how: str, limit: str) -> None:
    ends_alike(
        tmp_path / "c.memlens", str(leaving / "leaves"), how, limit, "/bin/echo" if how != "s" else "/bin/echo x", "x"
    )
