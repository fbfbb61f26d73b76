"""Recordings that are attacked while they run: programs to record, what they do natively, and what a recording leaves behind.

Owns the programs, the start of a recorder as a process of its own, and the search for stray files and processes. Attacks on
recordings (`signals`, `faults`, `names`) are built on it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from .forked import failure_of, forked, memlens_command

MARK = "MEMLENS_ATTACKED"
"""A variable by which every process of an attempt is found, whoever its parent has become."""
SECONDS = 120.0
"""A recording takes two seconds alone."""
ALONE_S = 20.0
"""How long processes may outlive a recorder that was killed: the program itself takes half a second."""
IGNORING = r"""
  if (argc > 1) {
    for (int number = 1; number < 65; number++) if (number != SIGCHLD) signal(number, SIG_IGN);
    FILE *began = fopen(argv[1], "w");
    if (began) fclose(began);
  }
"""
HEAD = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
static unsigned long fill(long rounds, unsigned long sum) {
  for (long i = 0; i < rounds; i++) {
    const size_t bytes = 16 + (size_t)(i * 7919) % 200000;
    unsigned char *p = malloc(bytes);
    memset(p, (int)i, bytes);
    sum = sum * 31 + p[bytes / 2] + bytes;
    free(p);
  }
  return sum;
}
"""
SOURCES = {
    "plain": HEAD + "int main(int argc, char **argv) {" + IGNORING + r"""
  printf("sum %lu\n", fill(3000, 1));
  return 23; }""",
    "threads": HEAD + r"""
static void *run(void *at) { *(unsigned long *)at = fill(1500, *(unsigned long *)at); return NULL; }
int main(int argc, char **argv) {""" + IGNORING + r"""
  pthread_t threads[4];
  unsigned long sums[4];
  for (int i = 0; i < 4; i++) { sums[i] = i; pthread_create(&threads[i], NULL, run, &sums[i]); }
  for (int i = 0; i < 4; i++) { pthread_join(threads[i], NULL); printf("thread %d %lu\n", i, sums[i]); }
  usleep(100000);
  return 7; }""",
    "children": HEAD + "int main(int argc, char **argv) {" + IGNORING + r"""
  for (int i = 0; i < 6; i++) {
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) { const unsigned long sum = fill(300, i); if (i == 3) raise(SIGKILL); _exit((int)(sum % 100)); }
    int status = 0;
    while (waitpid(child, &status, 0) < 0) {}
    printf("child %d %d\n", i, status);
    fprintf(stderr, "said %d\n", i);
    usleep(20000);
  }
  return 0; }""",
    "killed": HEAD + "int main(int argc, char **argv) {" + IGNORING + r"""
  printf("sum %lu\n", fill(2000, 5));
  fflush(stdout);
  signal(SIGABRT, SIG_DFL);
  abort(); }""",
    "files": HEAD + "int main(int argc, char **argv) {" + IGNORING + r"""
  char *map = mmap(NULL, 8 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  for (long i = 0; i < 8 << 20; i += 4096) map[i] = (char)i;
  printf("sum %lu\n", fill(1000, 3) + (unsigned char)map[4096 * 77]);
  if (argc > 2) { FILE *file = fopen(argv[2], "w"); for (int i = 0; i < 1000; i++) fprintf(file, "line %d\n", i); fclose(file); }
  return 3; }""",
}  # fmt: skip


def build(folder: Path) -> dict[str, Path]:
    """The programs that can be built here."""
    folder.mkdir(parents=True, exist_ok=True)
    built = {}
    for name, source in SOURCES.items():
        (folder / f"{name}.c").write_text(source)
        command = ["cc", "-O1", "-g", "-w", "-fno-builtin", "-pthread", f"{folder / name}.c", "-o", str(folder / name)]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            built[name] = folder / name
    if not built:
        raise RuntimeError("no C compiler: sudo apt-get install gcc")
    return built


@dataclass
class Ended:
    """How a program, or its recorder, ended."""

    status: int
    """Exit status, or minus the signal."""
    out: bytes
    err: bytes
    seconds: float = 0.0
    timed_out: bool = False
    strays: list[str] = field(default_factory=list)
    """Command lines of processes that had to be killed."""


class Attempted:
    """One recording in a folder of its own, with a temporary folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.temporary = folder / "tmp"
        self.temporary.mkdir(parents=True)
        self.capture = folder / "c.memlens"
        self.began = folder / "began"
        self._shared_before = _shared_memory_files()

    def start(
        self,
        command: list[str],
        *,
        environment: dict[str, str] | None = None,
        before: tuple[str, ...] = (),
        error_to: int | None = None,
    ) -> subprocess.Popen[bytes]:
        """Starts a command (or memlens itself) in a session of its own, its output in files; `error_to`: where else errors go."""
        surroundings = {**os.environ, MARK: self.mark, "TMPDIR": str(self.temporary), **(environment or {})}
        with open(self.folder / "out", "wb") as out, open(self.folder / "err", "wb") as err:
            return subprocess.Popen(
                [*before, *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err if error_to is None else error_to,
                env=surroundings,
                start_new_session=True,
            )

    def end(self, process: subprocess.Popen[bytes], *, seconds: float = SECONDS, alone_s: float = ALONE_S) -> Ended:
        """Waits for a process and everything that it started."""
        begin = time.monotonic()
        timed_out = False
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            timed_out = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        took = time.monotonic() - begin
        until = time.monotonic() + alone_s
        while (left := processes_with(self.mark)) and time.monotonic() < until:
            time.sleep(0.02)
        strays = []
        for pid, words in left.items():
            strays.append(f"{pid} {words}")
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return Ended(
            process.returncode, (self.folder / "out").read_bytes(), (self.folder / "err").read_bytes(), took, timed_out, strays
        )  # fmt: skip

    def native(self, command: list[str], *, before: tuple[str, ...] = (), error_to: int | None = None) -> Ended:
        """The program without memlens."""
        return self.end(self.start(command, before=before, error_to=error_to))

    def stray_files(self) -> list[str]:
        """What is left in the temporary folder, and in shared memory."""
        left = [str(path.relative_to(self.temporary)) for path in self.temporary.rglob("*")]
        return left + sorted(_shared_memory_files() - self._shared_before)

    def what_is_left(self, ended: Ended) -> str | None:
        """Why what a recording left behind is a failure, or None."""
        if ended.timed_out:
            return f"did not end within {SECONDS:.0f} s"
        if ended.strays:
            return f"left a process running: {ended.strays[0]}"
        if files := self.stray_files():
            return f"left files: {', '.join(files[:5])}"
        interrupted = (
            b"KeyboardInterrupt" in ended.err and not self.began.exists()
        )  # Python's own, before memlens is imported
        if (b"Traceback" in ended.err and not interrupted) or b"bug in memlens" in ended.err:
            return f"said: {ended.err.decode('utf-8', 'replace').strip().splitlines()[-1]}"
        return None

    def opens(self) -> tuple[str | None, str]:
        """Why the capture that was left cannot be read (None: it can, or there is none), and what the report says."""
        if not (self.capture / "meta.json").exists():
            return None, ""
        outcome = forked(memlens_command(["report", str(self.capture)]), self.folder)
        failure = failure_of(outcome)
        if failure is None and outcome.status not in (0, 68):
            failure = f"report of what was left: {outcome.err.decode('utf-8', 'replace').strip()}"
        return failure, (outcome.out + outcome.err).decode("utf-8", "replace")


def processes_with(mark: str) -> dict[int, str]:
    """pid → command line of the processes that have the mark in their environment and are not zombies."""
    found = {}
    wanted = f"{MARK}={mark}".encode()
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        with contextlib.suppress(OSError, IndexError):
            with open(f"/proc/{name}/environ", "rb") as file:
                if wanted not in file.read(1 << 20):
                    continue
            with open(f"/proc/{name}/stat") as stat:
                if stat.read().rpartition(")")[2].split()[0] in "ZX":
                    continue
            with open(f"/proc/{name}/cmdline", "rb") as line:
                found[int(name)] = line.read().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    return found


def _shared_memory_files() -> set[str]:
    """Others may use the folder at the same time: only names that memlens itself gives."""
    with contextlib.suppress(OSError):
        names = os.listdir("/dev/shm")
        return {f"/dev/shm/{name}" for name in names if re.match(r"memlens-(\d+|scratch)-|\.?memlens\.", name)}
    return set()


def recorder(capture: Path, program: list[str], *options: str) -> list[str]:
    """The command line that records a program."""
    return [sys.executable, "-m", "memlens", "record", "-o", str(capture), *options, "--", *program]


def shown(command: list[str]) -> str:
    return shlex.join("memlens" if word == sys.executable else word for word in command if word not in ("-m",))
