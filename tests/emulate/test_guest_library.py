"""libmemlens.so inside programs that run under qemu-user: the same records, children and results as natively.

The emulator's plugin is a stand-in here (tests/native/guest_plugin.c); the recorder is the real one.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from alloc_oracle import HEAP, MAPPINGS, allocations, births, compare, read_log, releases, stacks
from conftest import ROOT, workload_path
from guest_recorder import OTHERS, Guest, build_program, compiler_of, make_guest, without_ours

import memlens

MakeGuest = Callable[..., Guest]


@pytest.fixture
def guest(tmp_path: Path) -> Guest:
    made = make_guest(tmp_path, "x86_64")
    made.words()
    return made


def assert_nothing_lost(capture: memlens.Capture) -> None:
    lost = {name: capture.meta["channel"][name] for name in ("dropped", "damaged", "holes", "refused", "nested")}
    assert not any(lost.values()), lost


def pids_with_library(capture: memlens.Capture) -> list[int]:
    return [row["pid"] for row in capture.table("runtime_status").to_pylist()]


# ---- the same records as natively ----------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "stacks_compared"), [("case_alloc_calls", 1000), ("case_alloc_new", 10)])
def test_every_call_is_recorded_as_it_was_made(guest: Guest, tmp_path: Path, name: str, stacks_compared: int) -> None:
    capture, done = guest.record(workload_path(name), "--log", tmp_path / "log")
    assert compare(capture, read_log(tmp_path / "log")) >= stacks_compared
    assert_nothing_lost(capture)
    native = subprocess.run([workload_path(name)], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (native.stdout, native.stderr)
    assert len(guest.calls("hello")) == 1


def test_threads(guest: Guest, tmp_path: Path) -> None:
    log = tmp_path / "log"
    capture, _ = guest.record(workload_path("case_alloc_threads"), "--objects", "2000", "--threads", "5", "--log", log)
    calls = read_log(log)
    assert len(calls) == 5 * 2 * 2000
    compare(capture, calls, with_stacks=False)
    assert_nothing_lost(capture)
    rows = capture.table("thread_memory").to_pylist()
    assert len({row["thread"] for row in rows if row["thread"]}) == 6
    pointers = {row["thread_pointer"] for row in rows if row["thread"]}
    created = [row["thread_pointer"] for row in rows if row["creator"]]
    assert len(created) == 5 and set(created) <= pointers


def test_mappings(guest: Guest, tmp_path: Path) -> None:
    capture, _ = guest.record(workload_path("case_alloc_mappings"), "--log", tmp_path / "log")
    calls = [call for call in read_log(tmp_path / "log") if call.operation not in ("malloc", "free", "brk")]
    assert len(calls) > 5
    for row in (rows := allocations(capture, operations=MAPPINGS)):
        row["flags"] = 0
    assert rows
    compare(capture, calls, operations=MAPPINGS)


ATTEMPTS = 50


def test_odd_moments(guest: Guest) -> None:
    """qemu before 9.1 gives handlers of signals a stack that is not aligned: the program crashes in most runs,
    with our library or without (29 of 40 of qemu alone)."""
    program = workload_path("case_alloc_moments")
    for attempt in range(ATTEMPTS):
        try:
            capture, _ = guest.record(program)
            break
        except AssertionError as error:
            if "target signal 11" not in str(error) or attempt == ATTEMPTS - 1:
                raise
    rows = [row for row in births(capture) if 10101 <= row["bytes"] <= 10113]
    assert Counter(row["bytes"] for row in rows) == {size: 20 if size == 10108 else 1 for size in range(10101, 10114)}
    known = stacks(capture)
    assert not [row for row in rows if known[row["stack"]]["truncated"]]


def test_stacks_of_signal_handlers_reach_the_interrupted_function(guest: Guest, tmp_path: Path) -> None:
    program = build_program(
        tmp_path, "x86_64", "ticks",
        """#include <signal.h>
           #include <stdio.h>
           #include <stdlib.h>
           #include <sys/time.h>
           static volatile int ticks;
           static void handler(int n) { (void)n; free(malloc(7777)); ticks++; }
           __attribute__((noinline)) unsigned long compute(unsigned long x) {
             while (ticks < 10) for (int i = 0; i < 1000; i++) x = x * 31 + 7;
             return x; }
           int main(void) {
             printf("%p\\n", (void *)compute); fflush(stdout);
             signal(SIGALRM, handler);
             struct itimerval t = {{0, 3000}, {0, 3000}}; setitimer(ITIMER_REAL, &t, 0);
             return compute(1) == 42; }""",
    )  # fmt: skip
    capture, done = guest.record(program)
    compute = int(done.stdout, 16)
    known = stacks(capture)
    rows = [row for row in births(capture) if row["bytes"] == 7777]
    assert len(rows) >= 10
    for row in rows:
        assert any(compute <= ip < compute + 512 for ip in known[row["stack"]]["ips"])
        assert not known[row["stack"]]["truncated"]


def test_pinning_of_threads(guest: Guest) -> None:
    capture, done = guest.record(workload_path("case_alloc_pinning"))
    main, worker = (int(line.split("=")[1]) for line in done.stderr.splitlines())
    rows = [r for r in capture.table("pinning_events").to_pylist() if r["operation"] == "sched_setaffinity"]
    assert [(row["thread"], row["result"]) for row in rows] == [(main, 0), (main, 0), (worker, 0)]


WILD = """
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
__attribute__((noinline)) static void *wild(unsigned long frame) { /* a frame pointer that leads to nothing */
  void *result;
  __asm__ volatile("push %%rbp\\n mov %1, %%rbp\\n mov $4242, %%edi\\n call malloc\\n pop %%rbp"
                   : "=a"(result) : "r"(frame) : "rdi", "rsi", "rdx", "rcx", "r8", "r9", "r10", "r11", "memory");
  return result; }
int main(void) {
  char *page = mmap(0, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  unsigned long frames[] = {0, 8, 0xdeadbee0, (unsigned long)page, (unsigned long)page + 4096, 0x7ffffffff000, ~7ul};
  for (int i = 0; i < 7; i++) free(wild(frames[i]));
  puts("survived"); return 0; }
"""


def test_memory_that_is_not_there_is_not_touched(guest: Guest, tmp_path: Path) -> None:
    """The unwinder asks the kernel whether memory is readable; the emulator must answer as the kernel does."""
    program = build_program(tmp_path, "x86_64", "wild", WILD, "-O2", "-mno-red-zone")
    capture, done = guest.record(program)
    assert done.stdout == "survived\n"
    assert sum(row["bytes"] == 4242 for row in births(capture)) == 7


# ---- processes -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("plugin", [True, False], ids=["plugin", "no plugin"])
@pytest.mark.parametrize(
    ("how", "children", "processes"),
    [("fork", 4, 5), ("_Fork", 2, 3), ("clone", 2, 3), ("nested", 2, 9), ("threads", 3, 4)],
)
def test_children_have_slots_of_their_own(
    tmp_path: Path, how: str, children: int, processes: int, plugin: bool
) -> None:
    """Also where nothing clears the page that tells a child from its parent."""
    guest = make_guest(tmp_path, "x86_64", plugin=plugin)
    log = tmp_path / "log"
    capture, _ = guest.record(workload_path("case_alloc_fork"), "--how", how, "--children", str(children), "--log", log)
    calls = read_log(log)
    assert len({call.pid for call in calls}) == processes
    compare(capture, calls)
    assert_nothing_lost(capture)
    assert sorted(pids_with_library(capture)) == sorted({call.pid for call in calls})


@pytest.mark.parametrize("how", ["vfork", "spawn", "system"])
def test_programs_started_by_the_program_are_recorded(guest: Guest, tmp_path: Path, how: str) -> None:
    log = tmp_path / "log"
    capture, _ = guest.record(workload_path("case_alloc_fork"), "--how", how, "--children", "3", "--log", log)
    compare(capture, read_log(log))
    assert len(set(pids_with_library(capture))) == 4
    assert sorted(int(words[0]) for words in guest.calls("hello")) == sorted(pids_with_library(capture))
    assert capture.meta["channel"]["refused"] == 0


def test_a_child_that_starts_nothing_costs_no_slot(guest: Guest, tmp_path: Path) -> None:
    program = build_program(
        tmp_path, "x86_64", "silent",
        """#include <stdlib.h>
           #include <sys/wait.h>
           #include <unistd.h>
           int main(void) {
             for (int i = 0; i < 5; i++) { if (fork() == 0) _exit(0); wait(0); }
             return 0; }""",
    )  # fmt: skip
    capture, _ = guest.record(program)
    assert len(pids_with_library(capture)) == 1


# ---- what is started ---------------------------------------------------------------------------------------------------
SHOW = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
extern char **environ;
static int order(const void *a, const void *b) { return strcmp(*(char **)a, *(char **)b); }
int main(int argc, char **argv) {
  char exe[4096] = "";
  if (readlink("/proc/self/exe", exe, sizeof exe - 1) < 0) return 9;
  printf("exe %s\n", exe);
  for (int i = 0; i < argc; i++) printf("argv[%d] %s\n", i, argv[i]);
  int count = 0;
  while (environ[count]) count++;
  qsort(environ, count, sizeof *environ, order);
  for (int i = 0; i < count; i++)
    if (strncmp(environ[i], "MEMLENS_", 8) != 0 && strncmp(environ[i], "_=", 2) != 0) printf("env %s\n", environ[i]);
  free(malloc(4321));
  return argc > 1 ? atoi(argv[argc - 1]) : 0;
}
"""
START = r"""
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
extern char **environ;
static int ended(int status) {
  if (WIFSIGNALED(status)) printf("signal %d\n", WTERMSIG(status));
  else printf("status %d\n", WEXITSTATUS(status));
  fflush(stdout);
  return 0;
}
int main(int argc, char **argv) { /* HOW FILE [WORD...]; the words begin with argv[0] */
  const char *how = argv[1], *file = argv[2];
  char **words = argv + 3;
  if (argc < 3) return 99;
  char *more[] = {"EXTRA=yes", NULL, NULL, NULL, NULL, NULL, NULL, NULL};
  int count = 1;
  for (char **at = environ; *at; at++)
    if (!strncmp(*at, "MEMLENS_", 8) || !strncmp(*at, "PATH=", 5)) more[count++] = *at;
  char *cleared[] = {"ONLY=this", NULL};
  printf("before\n");
  fflush(stdout);
  errno = 0;
  if (!strcmp(how, "execv")) execv(file, words);
  else if (!strcmp(how, "execve")) execve(file, words, more);
  else if (!strcmp(how, "execve-cleared")) execve(file, words, cleared);
  else if (!strcmp(how, "execvp")) execvp(file, words);
  else if (!strcmp(how, "execvpe")) execvpe(file, words, more);
  else if (!strcmp(how, "execl")) execl(file, words[0], words[1], words[2], (char *)0);
  else if (!strcmp(how, "execlp")) execlp(file, words[0], words[1], words[2], (char *)0);
  else if (!strcmp(how, "execle")) execle(file, words[0], words[1], words[2], (char *)0, more);
  else if (!strcmp(how, "no-words")) { char *none[] = {NULL}; execv(file, none); }
  else if (!strcmp(how, "fexecve")) fexecve(open(file, O_RDONLY), words, environ);
  else if (!strcmp(how, "fexecve-cloexec")) fexecve(open(file, O_RDONLY | O_CLOEXEC), words, environ);
  else if (!strcmp(how, "execveat")) execveat(AT_FDCWD, file, words, environ, 0);
  else if (!strcmp(how, "execveat-directory")) {
    char *slash = strrchr(file, '/');
    *slash = 0;
    execveat(open(file, O_RDONLY | O_DIRECTORY | O_CLOEXEC), slash + 1, words, environ, 0);
  } else if (!strcmp(how, "vfork")) {
    volatile int error = 0;
    pid_t pid = vfork();
    if (pid == 0) { execv(file, words); _exit(100 + errno); }
    int status;
    waitpid(pid, &status, 0);
    return ended(status);
  } else if (!strncmp(how, "spawn", 5)) {
    pid_t pid;
    int status;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    if (!strcmp(how, "spawn-elsewhere")) posix_spawn_file_actions_addchdir_np(&actions, "/");
    int error = !strcmp(how, "spawnp") ? posix_spawnp(&pid, file, &actions, NULL, words, environ)
                                       : posix_spawn(&pid, file, &actions, NULL, words, environ);
    if (error) { printf("error %s\n", strerror(error)); return 0; }
    waitpid(pid, &status, 0);
    return ended(status);
  } else if (!strcmp(how, "system")) {
    return ended(system(file));
  } else if (!strcmp(how, "popen")) {
    FILE *stream = popen(file, "r");
    char line[4096];
    while (fgets(line, sizeof line, stream)) printf("read %s", line);
    return ended(pclose(stream));
  } else if (!strcmp(how, "popen-write")) {
    FILE *stream = popen(file, "w");
    fputs("to the child\n", stream);
    return ended(pclose(stream));
  } else return 98;
  printf("error %s\n", strerror(errno));
  return 7;
}
"""
EXECS = [
    "execv",
    "execve",
    "execvp",
    "execvpe",
    "execl",
    "execlp",
    "execle",
    "fexecve",
    "execveat",
    "execveat-directory",
]
SPAWNS = ["vfork", "spawn", "spawnp"]


@pytest.fixture
def programs(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "bin").mkdir()
    return build_program(tmp_path, "x86_64", "start", START, "-Wno-nonnull"), build_program(
        tmp_path / "bin", "x86_64", "show", SHOW
    )


def both(guest: Guest, *command: str | Path, **more: object) -> tuple[str, int]:
    """What a program prints and its status: natively and under the emulator, which must be the same."""
    options = {"capture_output": True, "text": True, "timeout": 60, "env": os.environ, **more}
    native = subprocess.run(list(map(str, command)), **options)  # type: ignore[call-overload]
    if "env" in more:
        more["env"] = {**more["env"], **guest.variables()}  # type: ignore[dict-item]
    emulated = guest.run(*command, **more)
    assert (emulated.stdout, emulated.stderr) == (native.stdout, native.stderr), command
    assert emulated.returncode == native.returncode, command
    return emulated.stdout, emulated.returncode


@pytest.mark.parametrize("how", [*EXECS, *SPAWNS, "fexecve-cloexec"])
def test_what_is_started_runs_under_the_emulator_as_it_would_natively(
    guest: Guest, programs: tuple[Path, Path], how: str
) -> None:
    start, show = programs
    output, _ = both(guest, start, how, show, "a name", "it's", "5")
    if how != "execle" and how not in ("execve", "execvpe"):
        assert "argv[0] a name" in output and f"exe {show}" in output
    assert "LD_PRELOAD" not in output
    assert len(guest.calls("hello")) == 2


def test_the_new_program_is_recorded_with_the_pid_it_had(guest: Guest, programs: tuple[Path, Path]) -> None:
    start, show = programs
    capture, _ = guest.record(start, "execvp", show, "show", "3", status=3)
    assert [row["bytes"] for row in births(capture)].count(4321) == 1
    pids = pids_with_library(capture)
    assert len(pids) == 2 and len(set(pids)) == 1  # one process, two lives
    assert_nothing_lost(capture)


def test_programs_are_found_through_path(guest: Guest, programs: tuple[Path, Path], tmp_path: Path) -> None:
    start, show = programs
    (tmp_path / "refused").mkdir()
    (tmp_path / "refused" / "show").write_text("not executable")
    (tmp_path / "refused" / "other").write_text("not executable")
    environment = {**os.environ, "PATH": f"/nonexistent:{tmp_path}/refused:{show.parent}:/usr/bin:/bin"}
    for how in ("execvp", "execlp", "spawnp"):
        output, _ = both(guest, start, how, "show", "show", "2", "3", env=environment)
        assert f"exe {show}" in output
        assert "error Permission denied" in both(guest, start, how, "other", "other", "2", "3", env=environment)[0]
        assert "error No such file" in both(guest, start, how, "nowhere", "nowhere", "2", "3", env=environment)[0]
        assert "error" in both(guest, start, how, "", "x", "2", "3", env=environment)[0]
        assert "error File name too long" in both(guest, start, how, "n" * 300, "x", "2", "3", env=environment)[0]
    both(guest, start, "execvp", "show", "show", "1", "2", env={**environment, "PATH": ":/bin"}, cwd=show.parent)


def test_a_file_without_a_format_is_given_to_a_shell_by_execvp_alone(
    guest: Guest, programs: tuple[Path, Path], tmp_path: Path
) -> None:
    start, show = programs
    text = tmp_path / "bin" / "text"
    text.write_text(f"echo shell $0 $1\nexec {show} 1 4\n")
    text.chmod(0o755)
    environment = {**os.environ, "PATH": f"{show.parent}:/usr/bin:/bin"}
    output, status = both(guest, start, "execvp", "text", "x", "word", env=environment)
    assert f"shell {text} word" in output and status == 4
    assert len(guest.calls("hello")) == 3
    for how in ("execv", "spawn", "spawnp"):
        assert "error Exec format error" in both(guest, start, how, text, "x", "word", env=environment)[0]


def test_scripts(guest: Guest, programs: tuple[Path, Path], tmp_path: Path) -> None:
    start, show = programs
    lines = {
        "plain": f"#!{show}\n", "argument": f"#! {show}  one argument  \nrest", "no-end": f"#!{show} x",
        "nested": f"#!{tmp_path}/argument second\n", "shell": f"#!/bin/sh -e\necho in $0 $1; exec {show} a 6\n",
        "blank": "#!   \n", "missing": "#!/nonexistent/interpreter\n", "directory": "#!/tmp\n",
        "loop": f"#!{tmp_path}/loop\n", "long": f"#!{show} " + "y" * 400, "cut": "#!/" + "z" * 400,
        "windows": f"#!{show}\r\n", "relative": "#!bin/show\n",
    }  # fmt: skip
    for name, text in lines.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    previous = str(tmp_path / "argument")
    for level in range(1, 7):  # the kernel follows five
        (tmp_path / f"deep{level}").write_text(f"#!{previous} {level}\n")
        (tmp_path / f"deep{level}").chmod(0o755)
        previous = str(tmp_path / f"deep{level}")
    for name in [*lines, *(f"deep{level}" for level in range(1, 7))]:
        for how in ("execv", "execvp", "spawn", "execveat"):
            before = len(guest.calls("hello"))
            output, _ = both(guest, start, how, tmp_path / name, "zero", "1", "2", cwd=tmp_path)
            started = len(guest.calls("hello")) - before - 1
            fails = name in ("missing", "directory", "loop", "windows", "deep5", "deep6")
            fails |= how != "execvp" and name in ("blank", "cut")
            assert started == (0 if fails else 2 if name == "shell" else started), (name, how, output)
            assert fails == ("error" in output), (name, how, output)
            assert fails or started >= 1, (name, how, output)
    for how in ("fexecve", "fexecve-cloexec"):
        both(guest, start, how, tmp_path / "shell", "zero", "1")


def test_failures_have_the_errno_that_they_have_natively(
    guest: Guest, programs: tuple[Path, Path], tmp_path: Path
) -> None:
    start, show = programs
    (tmp_path / "plain").write_text("text")
    (tmp_path / "empty").touch(mode=0o755)
    (tmp_path / "empty").chmod(0o755)
    no_loader = build_program(tmp_path, "x86_64", "no-loader", SHOW, "-Wl,--dynamic-linker=/nonexistent/ld.so")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    broken = tmp_path / "broken"
    broken.write_bytes(show.read_bytes()[:40])
    broken.chmod(0o755)
    other = tmp_path / "other-machine"
    other.write_bytes(show.read_bytes()[:18] + b"\x02\x00" + show.read_bytes()[20:])  # SPARC
    other.chmod(0o755)
    targets = [
        tmp_path / "nowhere", tmp_path, tmp_path / "plain", tmp_path / "empty", no_loader, tmp_path / "dangling",
        tmp_path / "circle", broken, other, show / "below", "", "/" + "d/" * 3000,
    ]  # fmt: skip
    for how in ("execv", "execve", "execl", "execveat", "spawn", "vfork"):
        for target in targets:
            if how == "spawn" and target in (broken, other):
                continue  # what only exec finds out: qemu's vfork is a fork, and posix_spawn cannot tell
            output, _ = both(guest, start, how, target, "x", "1", "2")
            assert "exe " not in output
    assert both(guest, start, "spawn", tmp_path / "nowhere", "x")[0].endswith("error No such file or directory\n")


def test_an_environment_without_ours_runs_natively(guest: Guest, programs: tuple[Path, Path]) -> None:
    start, show = programs
    output, status = both(guest, start, "execve-cleared", show, "show", "4")
    assert "env ONLY=this" in output and status == 4
    assert len(guest.calls("hello")) == 1
    capture, _ = guest.record(start, "execve-cleared", show, "show", "4", status=4)
    assert 4321 not in [row["bytes"] for row in births(capture)]


@pytest.mark.skipif(os.geteuid() != 0, reason="a set-uid program needs root to make")
def test_set_uid_programs_run_natively(guest: Guest, programs: tuple[Path, Path]) -> None:
    start, show = programs
    show.chmod(0o4755)
    assert both(guest, start, "execv", show, "show", "4")[1] == 4
    assert len(guest.calls("hello")) == 1


def test_variables_of_the_loader_reach_the_program_and_not_the_emulator(
    guest: Guest, programs: tuple[Path, Path], tmp_path: Path
) -> None:
    _, show = programs
    source = tmp_path / "other.c"
    source.write_text(
        """#include <stdio.h>
           #include <unistd.h>
           __attribute__((constructor)) static void come(void) {
             char exe[4096] = ""; if (readlink("/proc/self/exe", exe, 4095) < 0) return;
             printf("loaded into %s\\n", exe); fflush(stdout); }"""
    )
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(tmp_path / "other.so")], check=True)
    program = build_program(
        tmp_path, "x86_64", "sets",
        """#include <stdlib.h>
           #include <unistd.h>
           int main(int argc, char **argv) {
             setenv("LD_PRELOAD", argv[1], 1); setenv("LD_LIBRARY_PATH", "/a:/b", 1); setenv("LD_BIND_NOW", "1", 1);
             execl(argv[2], "show", "5", (char *)0); return 1; }""",
    )  # fmt: skip
    output, status = both(guest, program, tmp_path / "other.so", show)
    assert status == 5 and output.count(f"loaded into {show}") == 1
    assert f"env LD_PRELOAD={tmp_path}/other.so" in output and "env LD_LIBRARY_PATH=/a:/b" in output
    assert len(guest.calls("hello")) == 2


def test_the_program_itself_again(guest: Guest, tmp_path: Path) -> None:
    program = build_program(
        tmp_path, "x86_64", "again",
        """#include <stdio.h>
           #include <unistd.h>
           int main(int argc, char **argv) {
             printf("%d %s\\n", argc, argv[0]); fflush(stdout);
             if (argc < 3) execl("/proc/self/exe", "new name", "x", argc == 1 ? (char *)0 : "y", (char *)0);
             return 0; }""",
    )  # fmt: skip
    assert both(guest, program)[0].endswith("2 new name\n3 new name\n")
    assert len(guest.calls("hello")) == 3


def test_argv_may_be_empty_and_a_name_may_look_like_an_option(
    guest: Guest, programs: tuple[Path, Path], tmp_path: Path
) -> None:
    start, show = programs
    assert both(guest, start, "no-words", show)[0].count("argv[0] \n") == 1
    (tmp_path / "-strace").write_bytes(show.read_bytes())
    (tmp_path / "-strace").chmod(0o755)
    assert both(guest, start, "execv", "-strace", "-0", "3", cwd=tmp_path)[1] == 3
    both(guest, start, "execv", show, "", "", "")


def test_a_spawned_program_elsewhere_is_not_mistaken_for_one_here(
    guest: Guest, programs: tuple[Path, Path], tmp_path: Path
) -> None:
    start, _ = programs
    (tmp_path / "usr").mkdir()
    output, _ = both(guest, start, "spawn-elsewhere", "usr/bin/env", "env", "true", cwd=tmp_path)
    assert output.endswith("status 0\n")


# ---- shells --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "command",
    [
        "exit 3", "echo 'quo\"ted' \"it's\" $0 $#", "kill -9 $$", "kill -TERM $$", "printf 'b\\na\\nb\\n' | sort | uniq -c",
        "exec 2>&1; /nonexistent/program; echo $?", "true; false", "echo one; # comment", "", "echo 'a\nb'", ": | cat; echo \\\\",
        "syntax (", "echo $HOME $LD_PRELOAD end", "sleep 0.1 & wait; echo waited",
    ],
)  # fmt: skip
def test_commands_of_system_and_popen(guest: Guest, programs: tuple[Path, Path], command: str) -> None:
    start, _ = programs
    for how in ("system", "popen"):
        before = len(guest.calls("hello"))
        native = subprocess.run([start, how, command], capture_output=True, text=True)
        emulated = guest.run(start, how, command)
        assert emulated.returncode == native.returncode and emulated.stdout == native.stdout
        assert emulated.stderr.replace("-c: 1:", "1:") == native.stderr.replace("-c: 1:", "1:")
        assert len(guest.calls("hello")) - before >= 2  # the shell too
    both(guest, start, "popen-write", f"cat; {command}") if "(" not in command else None


def test_a_pipeline_of_a_shell_is_recorded_in_every_process(guest: Guest, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\nprintf 'b\\na\\nb\\n' | sort | uniq -c\nexit 3\n")
    script.chmod(0o755)
    capture, done = guest.record("/bin/sh", "-c", f"{script}; echo $?")
    native = subprocess.run(["/bin/sh", "-c", f"{script}; echo $?"], capture_output=True, text=True)
    assert done.stdout == native.stdout == "      1 a\n      2 b\n3\n"
    hello = [int(words[0]) for words in guest.calls("hello")]
    assert len(hello) == 4  # both shells, sort, uniq
    pids = pids_with_library(capture)
    assert set(hello) <= set(pids)
    assert_nothing_lost(capture)
    by_pid = Counter(row["pid"] for row in births(capture))
    assert all(by_pid[pid] > 0 for pid in hello)


def test_a_command_too_long_to_be_wrapped_still_runs(guest: Guest, programs: tuple[Path, Path]) -> None:
    start, _ = programs
    command = "echo begin; : '" + "x" * 125_000 + "'; echo ' it is done '"
    output, _ = both(guest, start, "system", command)
    assert "it is done" in output


def test_variables_are_those_of_a_program_without_us(guest: Guest) -> None:
    """qemu itself turns their order around; nothing is missing, nothing is added but MEMLENS_*."""
    native = subprocess.run(["env"], capture_output=True, text=True, env=os.environ)
    emulated = guest.run("/usr/bin/env")
    assert without_ours(emulated.stdout) == without_ours(native.stdout)
    deeper = guest.run("/bin/sh", "-c", "env; exit 2")
    assert deeper.returncode == 2
    shell = subprocess.run(["/bin/sh", "-c", "env; exit 2"], capture_output=True, text=True, env=os.environ)
    assert without_ours(deeper.stdout) == without_ours(shell.stdout)


@pytest.mark.parametrize(
    "code",
    [
        "import subprocess; print(subprocess.run(['printf', 'x%s', 'y'], capture_output=True).stdout)",
        "import subprocess; print(subprocess.run('echo $0 a | cat', shell=True, capture_output=True).stdout)",
        "import os; print(os.spawnlp(os.P_WAIT, 'sh', 'sh', '-c', 'exit 4')); os.execlp('echo', 'echo', 'end')",
        "import os; print(os.popen('echo b').read()); print(os.system('exit 7') >> 8)",
        "import subprocess\ntry: subprocess.run(['/nonexistent'])\nexcept OSError as e: print(e)",
    ],
)  # fmt: skip
def test_python_starts_programs(guest: Guest, code: str) -> None:
    both(guest, "/usr/bin/python3", "-c", code)


# ---- regions and policies --------------------------------------------------------------------------------------------------
def test_regions_reach_the_plugin_and_the_capture(guest: Guest, tmp_path: Path) -> None:
    program = build_program(
        tmp_path, "x86_64", "regions",
        """#include "memlens.h"
           int main(void) {
             for (int i = 0; i < 2; i++) {
               memlens_begin("outer one"); memlens_begin("inner"); memlens_phase("phase");
               memlens_end("inner"); memlens_end("outer one"); }
             return 0; }""",
        "-I", str(ROOT / "native" / "include"),
    )  # fmt: skip
    capture, _ = guest.record(program)
    calls = [(words[1], " ".join(words[2:])) for words in guest.calls("region")]
    assert calls == [("1", "outer one"), ("1", "inner"), ("2", "inner"), ("2", "outer one")] * 2
    events = capture.table("region_events").to_pylist()
    assert [row["operation"] for row in events] == ["begin", "begin", "phase", "end", "end"] * 2


POLICIES = r"""
#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#ifdef WITH_LIBNUMA
#include <numa.h>
#include <numaif.h>
#else
long mbind(void *, unsigned long, int, const unsigned long *, unsigned long, unsigned);
long set_mempolicy(int, const unsigned long *, unsigned long);
long get_mempolicy(int *, unsigned long *, unsigned long, void *, unsigned);
long move_pages(int, unsigned long, void **, const int *, int *, int);
long migrate_pages(int, unsigned long, const unsigned long *, const unsigned long *);
#pragma weak mbind
#pragma weak set_mempolicy
#pragma weak get_mempolicy
#pragma weak move_pages
#pragma weak migrate_pages
#define MPOL_BIND 2
#define MPOL_INTERLEAVE 3
#endif
int main(void) {
  unsigned long nodes = 1;
  int mode = -1;
  char *p = mmap(0, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  void *pages[1] = {p}; int node[1] = {0}, status[1] = {-1};
#ifdef WITH_LIBNUMA
  if (numa_available() < 0) return 77;
  void *q = numa_alloc_onnode(8192, 0);
  if (q) numa_free(q, 8192);
  numa_set_localalloc();
#endif
#ifdef RAW
#define mbind(...) syscall(SYS_mbind, __VA_ARGS__)
#define set_mempolicy(...) syscall(SYS_set_mempolicy, __VA_ARGS__)
#define get_mempolicy(...) syscall(SYS_get_mempolicy, __VA_ARGS__)
#define move_pages(...) syscall(SYS_move_pages, __VA_ARGS__)
#define migrate_pages(...) syscall(SYS_migrate_pages, __VA_ARGS__)
#endif
  printf("%p\n", (void *)p);
  printf("%ld\n", mbind(p, 65536ul, MPOL_BIND, &nodes, 64ul, 0u));
  printf("%ld\n", set_mempolicy(MPOL_INTERLEAVE, &nodes, 64ul));
  long result = get_mempolicy(&mode, NULL, 0ul, NULL, 0u);
  printf("%ld %d\n", result, mode);
  printf("%ld\n", move_pages(0, 1ul, pages, node, status, 0));
  errno = 0;
  result = migrate_pages(0, 64ul, &nodes, &nodes);
  printf("%ld %d\n", result, errno);
  return (int)syscall(SYS_getppid) <= 0;
}
"""


@pytest.mark.parametrize("way", ["symbols", "syscall", "libnuma"])
def test_memory_policies_are_carried_out_by_the_plugin(tmp_path: Path, way: str) -> None:
    if way == "libnuma" and not Path("/usr/include/numa.h").exists():
        pytest.skip("libnuma is not installed: sudo apt-get install libnuma-dev")
    guest = make_guest(tmp_path, "x86_64", fake_policy=True)
    flags = {"symbols": [], "syscall": ["-DRAW"], "libnuma": ["-DWITH_LIBNUMA", "-lnuma"]}[way]
    program = build_program(tmp_path, "x86_64", "policies", POLICIES, *flags)
    capture, done = guest.record(program)
    address, *results = done.stdout.split("\n")[:-1]
    assert results == ["0", "0", "0 3", "0", "-1 1"]  # EPERM is what the stand-in says
    calls = [words[1:] for words in guest.calls("policy")]
    own = calls[-5:]
    assert [int(words[0]) for words in own] == [1, 2, 3, 4, 5]
    assert own[0][1:4] == [f"{int(address, 16):x}", "10000", "2"] and own[0][5:7] == ["40", "0"]
    assert own[1][1] == "3" and own[3][1:3] == ["0", "1"]
    rows = [r for r in capture.table("pinning_events").to_pylist() if r["operation"] != "found"]
    last = rows[-3:]
    assert [row["operation"] for row in last] == ["mbind", "set_mempolicy", "move_pages"]  # what failed is left out
    assert (last[0]["address"], last[0]["bytes"], last[0]["policy"]) == (int(address, 16), 65536, 2)
    assert int.from_bytes(last[0]["tail"], "little") == 1
    if way == "libnuma":
        assert len(calls) > 7 and [r["operation"] for r in rows[:-3]].count("mbind") >= 1


def test_memory_policies_of_the_kernel(guest: Guest, tmp_path: Path) -> None:
    program = build_program(tmp_path, "x86_64", "policies", POLICIES, "-DRAW")
    native = subprocess.run([program], capture_output=True, text=True)
    if "-1" in native.stdout.split("\n")[1:4]:
        pytest.skip("this kernel refuses memory policies")
    emulated = guest.run(program)
    assert emulated.stdout.split("\n")[1:4] == native.stdout.split("\n")[1:4]


def test_without_a_plugin_policies_fail_as_qemu_lets_them(tmp_path: Path) -> None:
    guest = make_guest(tmp_path, "x86_64", plugin=False)
    program = build_program(tmp_path, "x86_64", "policies", POLICIES, "-DRAW")
    emulated = guest.run(program)
    assert emulated.returncode == 0 and emulated.stdout.split("\n")[1] == "-1"


# ---- other machines ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("machine", OTHERS)
def test_other_machines_record_what_programs_log(tmp_path: Path, machine: str) -> None:
    guest = make_guest(tmp_path, machine)
    guest.words()
    for name in ("case_alloc_calls", "case_alloc_threads"):
        program = build_program(tmp_path, machine, name, ROOT / "workloads" / f"{name}.c")
        log = tmp_path / f"{name}.log"
        more = ["--objects", "1000", "--threads", "3"] if name == "case_alloc_threads" else []
        capture, _ = guest.record(program, *more, "--log", log)
        # Debian's C library for RISC-V has no unwind tables: stacks that begin in it end there.
        with_stacks = name == "case_alloc_calls" and machine != "riscv64"
        compared = compare(capture, read_log(log), with_stacks=with_stacks)
        assert not with_stacks or compared >= 1000
        assert_nothing_lost(capture)
    assert len(guest.calls("hello")) == 2


@pytest.mark.parametrize("machine", OTHERS)
def test_stacks_on_other_machines(tmp_path: Path, machine: str) -> None:
    guest = make_guest(tmp_path, machine)
    guest.words()
    program = build_program(
        tmp_path, machine, "stacks",
        """#include <signal.h>
           #include <stdio.h>
           #include <stdlib.h>
           __attribute__((noinline)) void *inner(int n) { void *p = malloc(n); return p; }
           __attribute__((noinline)) int outer(int n) { free(inner(n)); return n; }
           static void handler(int n) { outer(30000 + n); }
           int main(void) {
             printf("%p %p %p\\n", (void *)inner, (void *)outer, (void *)main);
             int sum = 0;
             for (int i = 0; i < 50; i++) sum += outer(20000 + i % 7);
             signal(SIGUSR1, handler); raise(SIGUSR1);
             return sum == 0; }""",
    )  # fmt: skip
    capture, done = guest.record(program)
    functions = [int(text, 16) for text in done.stdout.split()]
    known = stacks(capture)
    rows = [row for row in births(capture) if 20000 <= row["bytes"] < 20007]
    assert len(rows) == 50
    for row in rows:
        ips = known[row["stack"]]["ips"]
        assert all(0 <= ip - function < 256 for ip, function in zip(ips, functions, strict=False)) and len(ips) >= 3
    assert sum(row["bytes"] > 30000 and row["bytes"] < 30100 for row in births(capture)) == 1


@pytest.mark.parametrize("plugin", [True, False], ids=["plugin", "no plugin"])
@pytest.mark.parametrize("machine", OTHERS)
def test_children_on_other_machines(tmp_path: Path, machine: str, plugin: bool) -> None:
    guest = make_guest(tmp_path, machine, plugin=plugin)
    guest.words()
    program = build_program(tmp_path, machine, "case_alloc_fork", ROOT / "workloads" / "case_alloc_fork.c")
    log = tmp_path / "log"
    capture, _ = guest.record(program, "--how", "fork", "--children", "3", "--log", log)
    calls = read_log(log)
    compare(capture, calls)
    assert_nothing_lost(capture)
    assert sorted(pids_with_library(capture)) == sorted({call.pid for call in calls})


@pytest.mark.parametrize("machine", OTHERS)
def test_other_machines_start_programs(tmp_path: Path, machine: str) -> None:
    """Their own under the emulator; the host's natively, without a word of its loader about our library."""
    guest = make_guest(tmp_path, machine, fake_policy=True)
    guest.words()
    start = build_program(tmp_path, machine, "start", START, "-Wno-nonnull")
    show = build_program(tmp_path, machine, "show", SHOW)
    for how in [*EXECS, *SPAWNS]:
        before = len(guest.calls("hello"))
        done = guest.run(start, how, show, "a name", "it's", "5")
        assert "argv[0] a name" in done.stdout and f"exe {show}" in done.stdout, (how, done)
        assert done.stderr == "" and ("status 5" in done.stdout if how in SPAWNS else done.returncode == 5), (how, done)
        assert len(guest.calls("hello")) == before + 2
    for how in ("system", "popen", "execvp"):
        before = len(guest.calls("hello"))
        done = guest.run(start, how, *(["echo", "echo", "hi"] if how == "execvp" else ["echo hi"]))
        assert done.stderr == "" and "hi" in done.stdout
        assert len(guest.calls("hello")) == before + 1
    capture, done = guest.record(start, "spawn", show, "show", "1")
    assert sum(row["bytes"] == 4321 for row in births(capture)) == 1
    policies = build_program(tmp_path, machine, "policies", POLICIES, *([] if machine == "ppc64le" else ["-DRAW"]))
    done = guest.run(policies)
    assert done.stdout.split("\n")[1:6] == ["0", "0", "0 3", "0", "-1 1"], done


@pytest.mark.parametrize("machine", OTHERS)
def test_regions_on_other_machines(tmp_path: Path, machine: str) -> None:
    guest = make_guest(tmp_path, machine)
    guest.words()
    source = '#include "memlens.h"\nint main(void) { memlens_begin("r"); memlens_end("r"); return 0; }'
    program = build_program(tmp_path, machine, "regions", source, "-I", str(ROOT / "native" / "include"))
    capture, _ = guest.record(program)
    assert [words[1:] for words in guest.calls("region")] == [["1", "r"], ["2", "r"]]
    assert [row["operation"] for row in capture.table("region_events").to_pylist()] == ["begin", "end"]


def test_natively_no_call_is_made_that_no_kernel_has(tmp_path: Path) -> None:
    """strace of a program with the library and without the variable."""
    from memlens.collect import preload

    program = build_program(tmp_path, "x86_64", "nothing", "int main(void) { return 0; }")
    environment = {**os.environ, "LD_PRELOAD": str(preload.library())}
    try:
        done = subprocess.run(
            ["strace", "-f", str(program)], env=environment, capture_output=True, text=True, timeout=60
        )
    except FileNotFoundError:
        pytest.skip("strace is not installed: sudo apt-get install strace")
    if done.returncode != 0:
        pytest.skip("strace may not trace here")
    assert not re.search(r"syscall_0x|MADV_\?\?\?|27756", done.stderr)


def test_heap_of_a_chain_of_execs(guest: Guest, tmp_path: Path) -> None:
    program = build_program(
        tmp_path, "x86_64", "chain",
        """#include <stdio.h>
           #include <stdlib.h>
           #include <unistd.h>
           int main(int argc, char **argv) {
             int left = atoi(argv[1]);
             for (int i = 0; i < 100; i++) free(malloc(20000 + left));
             if (left == 0) return 0;
             char next[16]; sprintf(next, "%d", left - 1);
             execl(argv[0], argv[0], next, (char *)0);
             return 1; }""",
    )  # fmt: skip
    capture, _ = guest.record(program, "3")
    sizes = Counter(row["bytes"] for row in births(capture) if 20000 <= row["bytes"] <= 20003)
    assert sizes == dict.fromkeys(range(20000, 20004), 100)
    assert len(releases(capture)) >= 400 and len(allocations(capture, operations=HEAP)) >= 800
    assert len(pids_with_library(capture)) == 4
    assert_nothing_lost(capture)
    compiler_of("x86_64")
