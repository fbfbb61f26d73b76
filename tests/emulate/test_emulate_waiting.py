"""Windows far apart: the guest's thread is interrupted before each, and the guest must not notice."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from emulate_tools import accesses, build, by_thread, emulate, needs_emulation, needs_x86, rows, windows

pytestmark = [needs_emulation, needs_x86]
PERIOD = 4_000_000
MODE = f"window=1000,period={PERIOD},seed=5"

# Work between system calls that a signal would end early, and everything a program can find out about signals.
PROGRAM = r"""
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static volatile unsigned long memory[4096];
static volatile sig_atomic_t caught[65];
static void handler(int number) { caught[number]++; }
static void work(unsigned long rounds) { for (unsigned long i = 0; i < rounds; i++) memory[i & 4095]++; }
static unsigned long short_sleeps, failed_polls, pending_signals, waited;
static void sleep_and_look(void) {
  struct timespec time = {0, 200000}, now = {0, 0};
  sigset_t all, set;
  if (nanosleep(&time, NULL) != 0) short_sleeps++;
  if (poll(NULL, 0, 1) != 0) failed_polls++;
  sigpending(&set);
  for (int i = 1; i < 65; i++) pending_signals += sigismember(&set, i) == 1;
  sigfillset(&all);
  if (sigtimedwait(&all, NULL, &now) >= 0) waited++;
}
static void set(int number) {
  struct sigaction action = {.sa_handler = handler};
  sigaction(number, &action, NULL);
}
int main(int argc, char **argv) {
  const char *what = argv[1];
  unsigned long turns = strtoul(argv[2], NULL, 10);
  int status = 0;
  (void)argc;
  if (strcmp(what, "sleep") == 0)
    for (unsigned long i = 0; i < turns; i++) work(20000), sleep_and_look();
  if (strcmp(what, "handlers") == 0)
    for (unsigned long i = 0; i < turns; i++) {
      work(20000);
      if (i == turns / 2) for (int k = 60; k <= 62; k++) set(k);
      if (i > turns / 2) raise(60 + (int)(i % 3));
    }
  if (strcmp(what, "killed") == 0) {
    work(turns * 20000);
    raise(62);
  }
  if (strcmp(what, "blocked") == 0) {
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    for (unsigned long i = 0; i < turns; i++) work(20000), getppid();
    sigset_t set;
    sigpending(&set);
    for (int i = 1; i < 65; i++) pending_signals += sigismember(&set, i) == 1;
  }
  if (strcmp(what, "fork") == 0) {
    work(turns * 10000);
    for (int i = 0; i < 3; i++) {
      pid_t child = fork();
      if (child == 0) { work(turns * 20000); _exit(7); }
      waitpid(child, &status, 0);
    }
    work(turns * 10000);
  }
  if (strcmp(what, "exec") == 0) {
    if (turns == 0) return 5;
    work(20000 * 400);
    char left[32];
    sprintf(left, "%lu", turns - 1);
    execl("/proc/self/exe", argv[0], what, left, NULL);
  }
  printf("%lu %lu %lu %lu", short_sleeps, failed_polls, pending_signals, waited);
  for (int i = 60; i < 65; i++) printf(" %d", (int)caught[i]);
  printf(" %d %lu\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1, memory[17]);
  return 0;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("waiting"), "waiting", PROGRAM)


def recorded(tmp_path: Path, program: Path, *arguments: str, status: int = 0) -> tuple[Any, str]:
    capture, done = emulate(tmp_path / "c.memlens", program, *arguments, mode=MODE, status=status)
    return capture, done.stdout


def alone(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The program under the emulator without memlens."""
    return subprocess.run([str(shutil.which("qemu-x86_64")), str(program), *arguments], capture_output=True, text=True)


def assert_windows(capture: Any, at_least: int) -> None:
    """About one in every period, each thread's following each other without a gap. Fewer only where the emulator counted windows that began
    late: on a busy machine the guest's thread is interrupted millions of accesses after it should have been."""
    counted = rows(capture, "code_counts")
    late = sum(row["late_windows"] for row in rows(capture, "emulator_status"))
    n_windows = 0
    for thread, found in by_thread(windows(capture)).items():
        executed = accesses(row for row in counted if row["thread"] == thread)
        whole = [window for window in found if window.recorded]
        n_windows += len(whole)
        missing = executed / PERIOD - len(whole)
        assert -1.5 <= missing <= (1.5 if late == 0 else executed / PERIOD - 1), (thread, len(whole), executed, late)
        for before, after in itertools.pairwise(found):
            assert before.begin + before.fields["executed"] == after.begin
    assert n_windows >= at_least or late > 0


def test_no_sleep_ends_early_and_no_signal_is_seen(program: Path, tmp_path: Path) -> None:
    capture, output = recorded(tmp_path, program, "sleep", "1200")
    assert output.split()[:4] == ["0", "0", "0", "0"], output
    assert_windows(capture, 10)


def test_a_program_that_wants_the_signal_has_it(program: Path, tmp_path: Path) -> None:
    capture, output = recorded(tmp_path, program, "handlers", "1000")
    assert output == alone(program, "handlers", "1000").stdout
    assert int(output.split()[4]) == 167  # emulators do not know all of them
    assert_windows(capture, 8)


def test_the_signal_still_kills_a_program_that_has_no_handler(program: Path, tmp_path: Path) -> None:
    """As under the emulator alone, which makes another real-time signal of it, or does not know it."""
    recorded(tmp_path, program, "killed", "400", status=alone(program, "killed", "400").returncode)


def test_a_program_that_blocks_signals_has_its_windows(program: Path, tmp_path: Path) -> None:
    capture, output = recorded(tmp_path, program, "blocked", "1500")
    assert output.split()[2] == "0", output
    counted, found = rows(capture, "code_counts"), [window for window in windows(capture) if window.recorded]
    assert len(found) >= accesses(counted) / PERIOD / 2


def test_children_have_windows_of_their_own(program: Path, tmp_path: Path) -> None:
    capture, output = recorded(tmp_path, program, "fork", "600")
    assert output.split()[9] == "7", output
    of_thread = by_thread(window for window in windows(capture) if window.recorded)
    assert len(of_thread) == 4
    assert_windows(capture, 4 * 3)


def test_programs_that_follow_each_other(program: Path, tmp_path: Path) -> None:
    capture, _ = recorded(tmp_path, program, "exec", "4", status=5)
    assert len([window for window in windows(capture) if window.recorded]) >= 8
