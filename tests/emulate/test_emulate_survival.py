"""Programs under the collector emulate end, print and fork as they do natively, and are counted up to their end."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import MEMLENS, needs_root, run_memlens, workload_path
from emulate_oracle import Functions
from emulate_tools import (
    ANONYMOUS,
    MODIFIED,
    build,
    build_fixed,
    by_pc,
    emulate,
    needs_emulation,
    needs_x86,
    rows,
)

import memlens

pytestmark = [needs_emulation, needs_x86]

# Loads exactly n times: what a process was seen to do is known by the loads of one instruction.
TOUCH = r"""
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
extern char **environ;
static long word;
void touch(void *memory, unsigned long n);
__asm__(".text\n.globl touch\n.type touch,@function\n"
        "touch: mov (%rdi), %rax\n dec %rsi\n jnz touch\n ret\n.size touch,.-touch\n");
#define DO(n) touch(&word, n)
#define IS(name) (!strcmp(what, name))
"""
LIVES = (
    TOUCH
    + r"""
static char *self;
static int order(const void *a, const void *b) { return strcmp(*(char **)a, *(char **)b); }
static void say(const char *text) { if (write(1, text, strlen(text)) < 0) _exit(99); }
static void ends(int number) { (void)number; DO(10); say("handler\n"); exit(21); }
static void counts(int number) { (void)number; DO(3); }
static volatile int ticks;
static void tick(int number) { (void)number; ticks++; }
static void *waits(void *unused) { for (;;) pause(); return unused; }
static void *works(void *n) { DO((long)n); return NULL; }
static void *crashes(void *unused) { DO(50); *(volatile int *)8 = 1; return unused; }
static void *exits(void *unused) { DO(50); exit(22); return unused; }
static void *outlives(void *unused) { usleep(20000); DO(60); say("later\n"); return unused; }
static void report(int status) {
  if (WIFSIGNALED(status)) printf("signal %d\n", WTERMSIG(status));
  else printf("status %d\n", WEXITSTATUS(status));
}
static void wait_all(void) { for (int status; wait(&status) > 0;) report(status); }
int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  self = argv[0];
  setvbuf(stdout, NULL, _IOLBF, 0);
  pthread_t ids[64];
  DO(1000);
  if (IS("return")) return 3;
  if (IS("_exit")) _exit(255);
  if (IS("exit in handler")) { signal(SIGUSR1, ends); raise(SIGUSR1); }
  if (IS("exit in alarm")) { signal(SIGALRM, ends); ualarm(20000, 0); for (;;) __asm__ volatile(""); }
  if (IS("segv")) *(volatile int *)8 = 1;
  if (IS("handled segv")) { signal(SIGSEGV, ends); *(volatile int *)8 = 1; }
  if (IS("abort")) abort();
  if (IS("kill")) kill(getpid(), SIGKILL);
  if (IS("term")) kill(getpid(), SIGTERM);
  if (IS("pipe")) { int fds[2]; if (pipe(fds)) return 98; close(fds[0]); return write(fds[1], "x", 1) == 1; }
  if (IS("ill")) __asm__ volatile("ud2");
  if (IS("divide")) { volatile int zero = 0; return 1 / zero; }
  if (IS("crash in thread")) { pthread_create(ids, NULL, crashes, NULL); pthread_join(ids[0], NULL); }
  if (IS("exit in thread")) {
    for (int i = 1; i < 4; i++) pthread_create(&ids[i], NULL, waits, NULL);
    pthread_create(ids, NULL, exits, NULL); pthread_join(ids[0], NULL);
  }
  if (IS("main thread leaves")) { pthread_create(ids, NULL, outlives, NULL); pthread_exit(NULL); }
  if (IS("exec fails")) { execl("/nowhere/at all", "x", (char *)0); printf("%s\n", strerror(errno)); DO(5); return 4; }
  if (IS("64 threads")) {
    for (int i = 0; i < 64; i++) pthread_create(&ids[i], NULL, works, (void *)(long)(i + 1));
    for (int i = 0; i < 64; i++) pthread_join(ids[i], NULL);
  }
  if (IS("300 threads")) for (int i = 0; i < 300; i++) { pthread_create(ids, NULL, works, (void *)7L); pthread_join(ids[0], NULL); }
  if (IS("fork")) { if (fork() == 0) { DO(20); exit(5); } wait_all(); DO(7); }
  if (IS("fork crashes")) { if (fork() == 0) { DO(20); *(volatile int *)8 = 1; } wait_all(); }
  if (IS("fork in threads")) { /* while others run */
    for (int i = 0; i < 3; i++) pthread_create(&ids[i], NULL, works, (void *)3000000L);
    for (int i = 0; i < 5; i++) if (fork() == 0) { DO(20); _exit(6); }
    wait_all();
    for (int i = 0; i < 3; i++) pthread_join(ids[i], NULL);
  }
  if (IS("200 forks")) for (int i = 0; i < 200; i++) {
    pid_t pid = fork();
    if (pid == 0) { DO(20); _exit(i); }
    int status; waitpid(pid, &status, 0);
    if (WEXITSTATUS(status) != i) return 97;
  }
  if (IS("vfork")) { pid_t pid = vfork(); if (pid == 0) { execl(self, self, "return", (char *)0); _exit(96); } wait_all(); DO(7); }
  if (IS("vfork exits")) { pid_t pid = vfork(); if (pid == 0) _exit(33); wait_all(); DO(7); }
  if (IS("spawn")) {
    char *words[] = {self, "return", NULL}; pid_t pid;
    if (posix_spawn(&pid, self, NULL, NULL, words, environ)) return 95;
    wait_all(); DO(7);
  }
  if (IS("system")) { char command[4096]; snprintf(command, sizeof command, "%s return; %s term", self, self); report(system(command)); }
  if (IS("popen")) {
    char command[4096]; snprintf(command, sizeof command, "%s 'exit in handler'", self);
    FILE *stream = popen(command, "r"); char line[99];
    while (fgets(line, sizeof line, stream)) printf("read %s", line);
    report(pclose(stream));
  }
  if (IS("exec chain")) { int left = atoi(argv[2]); char next[9]; sprintf(next, "%d", left - 1);
    if (left) execl(self, self, what, next, (char *)0); return 11; }
  if (IS("signals")) {
    struct itimerval timer = {{0, 1000}, {0, 1000}};
    signal(SIGALRM, tick); setitimer(ITIMER_REAL, &timer, NULL);
    for (int i = 0; ticks < 100; i++) DO(1000), word = i + 1;
    memset(&timer, 0, sizeof timer); setitimer(ITIMER_REAL, &timer, NULL);
    fprintf(stderr, "%ld", 1000 * word);
  }
  if (IS("closefrom")) { syscall(SYS_close_range, 3, ~0u, 0); for (int i = 3; i < 1024; i++) close(i); DO(500); }
  if (IS("no descriptors")) { struct rlimit none = {3, 3}; setrlimit(RLIMIT_NOFILE, &none); DO(500);
    pthread_create(ids, NULL, works, (void *)40L); pthread_join(ids[0], NULL); if (fork() == 0) { DO(20); _exit(0); } wait_all(); }
  if (IS("chroot")) { if (chroot(argv[2]) || chdir("/")) return 94; DO(500);
    pthread_create(ids, NULL, works, (void *)40L); pthread_join(ids[0], NULL); if (fork() == 0) { DO(20); _exit(0); } wait_all(); }
  if (IS("environment")) {
    clearenv(); setenv("ONLY", "this", 1); DO(500);
    if (fork() == 0) { execl("/bin/sh", "sh", "-c", "echo $ONLY; env | grep -c ONLY", (char *)0); _exit(93); } wait_all();
  }
  if (IS("show environment")) {
    int count = 0; /* qemu hands it on in the reverse order */
    for (char **at = environ; *at; at++) count++;
    qsort(environ, count, sizeof *environ, order);
    for (char **at = environ; *at; at++) if (strncmp(*at, "MEMLENS_", 8)) puts(*at);
  }
  if (IS("descriptors")) {
    int fds[2];
    printf("%d %d", open("/dev/null", O_RDONLY), open("/dev/zero", O_RDONLY)); DO(500);
    pthread_create(ids, NULL, works, (void *)40L); pthread_join(ids[0], NULL);
    if (pipe(fds)) return 92;
    printf(" %d %d %d %d", fds[0], fds[1], dup(0), epoll_create1(0)); close(fds[0]);
    printf(" %d\n", open("/dev/null", O_RDONLY));
    if (fork() == 0) { printf("%d\n", open("/dev/null", O_RDONLY)); exit(0); } wait_all();
  }
  if (IS("forever")) { signal(SIGUSR1, counts); say("ready\n"); for (;;) DO(1000000); }
  if (IS("a while")) { say("ready\n"); for (int i = 0; i < atoi(argv[2]); i++) { usleep(10000); DO(1000); } say("done\n"); return 12; }
  return 0;
}
"""
)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


@pytest.fixture
def lives(shop: Path) -> Path:
    return build(shop, "lives", LIVES, "-no-pie", "-fno-pie", "-Wno-format-overflow")


def touched(capture: memlens.Capture, program: Path) -> dict[int, int]:
    """Loads that each process made in `touch` of a program at fixed addresses."""
    pc = Functions(program).begin_of("touch")
    found: Counter[int] = Counter()
    for row in rows(capture, "code_counts"):
        if row["pc"] == pc:
            assert not row["flags"] & (ANONYMOUS | MODIFIED)
            found[row["process"]] += row["loads"]
    return dict(found)


def both(output: Path, *command: str | Path, mode: str = "counts", **more: Any) -> tuple[memlens.Capture, Any]:
    """Natively and under the emulator: what is printed and the status are the same. qemu's own last words are its own."""
    native = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60, **more)
    capture, done = emulate(output, *command, mode=mode, status=native.returncode, **more)
    said = re.sub(r"qemu: uncaught target signal .*\n", "", done.stderr)
    assert (done.stdout, said) == (native.stdout, native.stderr)
    return capture, native


def assert_nothing_lost(capture: memlens.Capture) -> None:
    lost = {name: capture.meta["channel"][name] for name in ("dropped", "damaged", "refused")}
    assert not any(lost.values()), lost
    assert not capture.meta["emulate"].get("unknown_processes")
    assert capture.meta["emulate"]["refused_blocks"] == 0


# ---- ends -----------------------------------------------------------------------------------------------
ENDS = {
    "return": [1000], "_exit": [1000], "exit in handler": [1010], "exit in alarm": [1010], "segv": [1000],
    "handled segv": [1010], "abort": [1000], "kill": [1000], "term": [1000], "pipe": [1000], "ill": [1000], "divide": [1000],
    "crash in thread": [1050], "exit in thread": [1050], "main thread leaves": [1060], "exec fails": [1005],
    "64 threads": [1000 + 64 * 65 // 2], "300 threads": [1000 + 300 * 7],
    "fork": [20, 1007], "fork crashes": [20, 1000], "fork in threads": [20] * 5 + [1000 + 9_000_000],
    "200 forks": [20] * 200 + [1000], "vfork": [1000, 1007], "vfork exits": [1007], "spawn": [1000, 1007],
    "system": [1000, 1000, 1000], "popen": [1000, 1010], "closefrom": [1500], "no descriptors": [20, 1540],
    "environment": [1500], "descriptors": [1540],
}  # fmt: skip


WITH_WINDOWS = ("segv", "exit in alarm", "exit in thread", "300 threads", "fork", "vfork", "popen", "no descriptors")


@pytest.mark.parametrize(
    ("what", "mode"), [*((what, "counts") for what in ENDS), *((what, "window=50,period=200") for what in WITH_WINDOWS)]
)
def test_the_program_ends_as_it_does_natively_and_is_counted_to_its_end(
    lives: Path, tmp_path: Path, what: str, mode: str
) -> None:
    capture, _ = both(tmp_path / "c.memlens", lives, what, mode=mode)
    assert sorted(touched(capture, lives).values()) == sorted(ENDS[what])
    assert_nothing_lost(capture)
    if mode != "counts":
        assert capture.kinds()["window"] > 0


def test_exec_chains_keep_the_counts_of_every_program(lives: Path, tmp_path: Path) -> None:
    capture, _ = both(tmp_path / "c.memlens", lives, "exec chain", "4")
    assert touched(capture, lives) == {1: 5000}
    (process,) = rows(capture, "processes")
    assert (process["name"], process["program"], process["execs"]) == ("lives", str(lives), 5)
    assert len(rows(capture, "emulator_status")) == 5


def test_a_pipeline_of_a_shell_is_counted_program_by_program(lives: Path, tmp_path: Path) -> None:
    capture, _ = both(tmp_path / "c.memlens", "sh", "-c", f"'{lives}' popen | sort -r | tr a-z A-Z; '{lives}' return")
    processes = {row["process"]: row for row in rows(capture, "processes")}
    assert {row["name"] for row in processes.values()} >= {"lives", "sort", "tr"}
    counted = Counter(processes[row["process"]]["name"] for row in rows(capture, "code_counts"))
    assert all(counted[name] > 100 for name in ("lives", "sort", "tr"))
    shell = next(row for row in processes.values() if row["process"] == 1)
    assert sum(row["parent"] == shell["process"] for row in processes.values()) >= 3
    assert not rows(capture, "unseen")
    assert sorted(touched(capture, lives).values()) == [1000, 1000, 1010]


def test_scripts_run_under_their_interpreter(lives: Path, tmp_path: Path) -> None:
    script = tmp_path / "a script"
    script.write_text(f"#!/bin/sh -e\necho \"$0 $1\"\n'{lives}' return\n")
    script.chmod(0o755)
    capture, native = both(tmp_path / "c.memlens", script, "it's")
    assert native.returncode == 3 and "it's" in native.stdout
    assert sorted(touched(capture, lives).values()) == [1000]


@pytest.mark.parametrize(
    ("kind", "flags"),
    [("static", "-static -no-pie -fno-pie"), ("static-pie", "-static-pie -fPIE"), ("pie", "-pie -fPIE"), ("no-pie", "-no-pie"),
     ("stripped", "-s"), ("stripped static", "-s -static")],
)  # fmt: skip
def test_every_kind_of_linking(shop: Path, tmp_path: Path, kind: str, flags: str) -> None:
    program = build(shop, kind.replace(" ", "-"), LIVES, *flags.split(), "-Wno-format-overflow")
    capture, _ = both(tmp_path / "c.memlens", program, "64 threads")
    assert capture.meta["emulate"]["loads"] > 1000 + 64 * 65 // 2
    # In no other instruction are there as many 8-byte loads by so many threads.
    threads: Counter[int] = Counter(row["pc"] for row in rows(capture, "code_counts") if row["load_width"] == 8)
    assert any(
        n == 65 and by_pc(row for row in rows(capture, "code_counts") if row["pc"] == pc)[pc][0] == 1000 + 64 * 65 // 2
        for pc, n in threads.items()
    )


def test_64_threads_have_counters_of_their_own(lives: Path, tmp_path: Path) -> None:
    capture, _ = emulate(tmp_path / "c.memlens", lives, "64 threads")
    pc = Functions(lives).begin_of("touch")
    loads = sorted(row["loads"] for row in rows(capture, "code_counts") if row["pc"] == pc)
    assert loads == [*range(1, 65), 1000]
    (process,) = rows(capture, "processes")
    assert process["threads"] == 65


def test_signals_that_keep_coming_change_no_count(lives: Path, tmp_path: Path) -> None:
    capture, done = emulate(tmp_path / "c.memlens", lives, "signals")
    assert touched(capture, lives) == {1: 1000 + int(done.stderr)}


@needs_root
def test_another_root_directory(lives: Path, tmp_path: Path) -> None:
    empty = tmp_path / "root"
    empty.mkdir()
    capture, _ = both(tmp_path / "c.memlens", lives, "chroot", empty)
    assert sorted(touched(capture, lives).values()) == [20, 1540]


def test_the_program_sees_the_environment_that_it_would_have(lives: Path, tmp_path: Path) -> None:
    both(tmp_path / "c.memlens", lives, "show environment", env={**os.environ, "EMPTY": "", "SPACES": " a  b "})


# ---- signals from outside --------------------------------------------------------------------------------
def start(output: Path, *command: str | Path, **more: Any) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [*MEMLENS, "record", "-q", "-o", str(output), "--emulate=counts", "--", *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
        **more,
    )
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    return process


def program_of(recorder: subprocess.Popen[bytes]) -> int:
    return int(Path(f"/proc/{recorder.pid}/task/{recorder.pid}/children").read_text().split()[0])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_killed_from_outside_while_counting(lives: Path, tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path / "c.memlens", lives, "forever")
    time.sleep(0.3)
    os.kill(program_of(process), number)
    process.communicate(timeout=30)
    assert process.returncode == -number
    capture = memlens.open(tmp_path / "c.memlens")
    (loads,) = touched(capture, lives).values()
    # Newer emulators keep what is counted inline in memory of their own: what came after the last system call is lost.
    assert loads > (1_000_000 if capture.meta["collectors"]["emulate"]["plugin_api"] == 1 else 100_000)


def test_ctrl_c_reaches_the_program_once_and_the_capture_is_whole(lives: Path, tmp_path: Path) -> None:
    process = start(tmp_path / "c.memlens", lives, "forever", start_new_session=True)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGINT
    capture = memlens.open(tmp_path / "c.memlens")
    assert capture.meta["state"] == "complete" and touched(capture, lives)


@pytest.mark.parametrize("mode", ["counts", "full"])
def test_without_its_recorder_the_program_runs_on(lives: Path, tmp_path: Path, mode: str) -> None:
    read_end, write_end = os.pipe()
    process = subprocess.Popen(
        [*MEMLENS, "record", "-q", "-o", str(tmp_path / "c"), f"--emulate={mode}", "--", str(lives), "a while", "60"],
        stdout=write_end,
        start_new_session=True,
    )
    os.close(write_end)
    with os.fdopen(read_end, "rb") as output:
        assert output.readline() == b"ready\n"
        program = program_of(process)
        process.kill()
        process.wait()
        assert Path(f"/proc/{program}").exists()
        assert output.readline() == b"done\n"
        assert output.read() == b""  # closed: the program has ended
    assert memlens.open(tmp_path / "c").meta["state"] != "complete"


@needs_root
def test_a_full_disk_stops_the_capture_not_the_program(lives: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "none", str(disk)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"no small file system can be mounted here: {mounted.stderr.strip()}")
    try:
        done = run_memlens(
            "record",
            "-q",
            "-o",
            disk / "c.memlens",
            "--emulate=full",
            "--",
            sys.executable,
            "-c",
            "print(sum(range(300000)))",
        )
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert (done.returncode, done.stdout) == (0, f"{sum(range(300000))}\n")
    assert "No space left" in done.stderr and "bug" not in done.stderr


# ---- code that changes -------------------------------------------------------------------------------------
CHANGES = (
    TOUCH
    + r"""
typedef void function(void *, unsigned long);
static const unsigned char load_8[] = {0x48, 0x8b, 0x07, 0x48, 0xff, 0xce, 0x75, 0xf8, 0xc3};   /* mov (%rdi),%rax; dec; jnz; ret */
static const unsigned char store_4[] = {0x90, 0x89, 0x07, 0x48, 0xff, 0xce, 0x75, 0xf8, 0xc3};  /* nop; mov %eax,(%rdi); … */
int main(int argc, char **argv) {
  unsigned char *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  (void)argv;
  printf("%lu\n", (unsigned long)code);
  for (int turn = 0; turn < 3; turn++) {
    memcpy(code, load_8, sizeof load_8);
    ((function *)code)(&word, 100);
    memcpy(code, store_4, sizeof store_4);
    ((function *)code)(&word, 11);
  }
  if (argc > 1) { /* the same instruction, seen often, changes its width in place */
    code[0] = 0x48; memcpy(code, load_8, sizeof load_8);
    for (int i = 0; i < 3000; i++) ((function *)code)(&word, 1000);
    code[0] = 0x40; /* now 4 bytes */
    for (int i = 0; i < 3000; i++) ((function *)code)(&word, 1000);
  }
  return 0;
}
"""
)


def test_code_in_anonymous_memory_that_is_rewritten(shop: Path, tmp_path: Path) -> None:
    program = build_fixed(shop, "changes", CHANGES)
    capture, done = emulate(tmp_path / "c.memlens", program)
    begin = int(done.stdout)
    found = [row for row in rows(capture, "code_counts") if begin <= row["pc"] < begin + 8]
    assert all(row["flags"] & ANONYMOUS for row in found)
    loads = [row for row in found if row["loads"]]
    stores = [row for row in found if row["stores"]]
    assert [(row["pc"], row["loads"], row["load_width"]) for row in loads] == [(begin, 300, 8)]
    assert [(row["pc"], row["stores"], row["store_width"]) for row in stores] == [(begin + 1, 33, 4)]
    assert rows(capture, "emulator_status")[0]["modified"] >= 1


def test_just_in_time_code_is_marked_and_counted(tmp_path: Path) -> None:
    n_pages = 300
    capture, _ = emulate(tmp_path / "c.memlens", workload_path("jit"), "--pages", str(n_pages), "--remove-map")
    found = [row for row in rows(capture, "code_counts") if row["flags"] & ANONYMOUS and row["store_width"] == 1]
    assert [row["stores"] for row in found] == [n_pages]


@pytest.mark.parametrize("mode", ["counts", "pages", "full", "window=100,period=5000000"])
def test_an_instruction_rewritten_in_place_is_counted_as_two(shop: Path, tmp_path: Path, mode: str) -> None:
    program = build_fixed(shop, "changes", CHANGES)
    capture, done = emulate(tmp_path / "c.memlens", program, "more", mode=mode)
    begin = int(done.stdout)
    found = [row for row in rows(capture, "code_counts") if row["pc"] == begin]
    assert sorted((row["load_width"], row["loads"]) for row in found) == [(4, 3_000_000), (8, 3_000_300)]
    assert sum(bool(row["flags"] & MODIFIED) for row in found) >= 1


PLUGIN_HOST = (
    TOUCH
    + r"""
int main(int argc, char **argv) {
  void *last = NULL;
  (void)argc;
  for (int turn = 0; turn < 4; turn++) {
    void *library = dlopen(argv[1 + turn % 2], RTLD_NOW);
    if (!library) { puts(dlerror()); return 1; }
    void (*work)(long *, long) = (void (*)(long *, long))dlsym(library, "work");
    work(&word, turn % 2 ? 1000 : 10);
    if (turn && (void *)work != last) puts("moved");
    last = (void *)work;
    dlclose(library);
  }
  printf("%lu\n", (unsigned long)last);
  return 0;
}
"""
)
PLUGIN = "void work(long *at, long n) { for (long i = 0; i < n; i++) %s }"


def test_libraries_that_follow_each_other_at_one_address_are_not_mixed(shop: Path, tmp_path: Path) -> None:
    host = build(shop, "host", PLUGIN_HOST)
    ones = [
        build(shop, f"{name}.so", PLUGIN % f"__asm__ volatile(\"{text}\" :: \"r\"(at) : \"rax\", \"memory\");", "-shared", "-fPIC", "-Wl,-Ttext-segment=0x7000000000")
        for name, text in (("loads", "mov (%0), %%rax"), ("stores", "mov %%rax, (%0)"))
    ]  # fmt: skip
    capture, done = emulate(tmp_path / "c.memlens", host, *ones)
    if "moved" in done.stdout:
        pytest.skip("the libraries did not get the same address")
    begin = int(done.stdout)
    found = [row for row in rows(capture, "code_counts") if begin <= row["pc"] < begin + 64]
    (stores,) = [row for row in found if row["stores"] == 2000]
    (loads,) = [row for row in found if row["loads"] == 20]
    assert stores["pc"] == loads["pc"] and stores["flags"] & MODIFIED
    paths = {row["path"] for row in rows(capture, "modules")}
    assert {str(path) for path in ones} <= paths


# ---- descriptors ------------------------------------------------------------------------------------------------
def test_few_descriptors_for_recorder_and_program(lives: Path, tmp_path: Path) -> None:
    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    capture, _ = emulate(tmp_path / "c.memlens", lives, "fork", preexec_fn=few)
    assert sorted(touched(capture, lives).values()) == [20, 1007]
