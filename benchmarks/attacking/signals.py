"""Attack `signals`: every signal to the recorder, its group, or the process that finishes, at random moments.

The programs ignore all signals as soon as they run, and say so by a file. So from then on nothing but SIGKILL and a fault of
memlens can end them: a program that began must end as natively, and a recorder that does not die itself passes its status on.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from .forked import warm
from .model import Attempt
from .recordings import Attempted, Ended, build, recorder, shown
from .workplace import workplace

PASSED_ON = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
             signal.SIGCONT, signal.SIGWINCH}  # fmt: skip
"""What the recorder takes for the program: it must not die of one while the program runs."""
STOPS = {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
EVERY = sorted(signal.valid_signals())
OFTEN = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL, signal.SIGINT, signal.SIGTERM)
MODES: tuple[tuple[str, ...], ...] = (
    (),
    (),
    ("-q",),
    ("--sample-bytes", "0"),
    ("--stacks", "fp", "--single"),
    ("--collectors", "faults"),
)
EMULATED = ("--emulate", "-q")
AT_MOST_S = 4.0
"""Emulated runs take longer than others; moments are drawn from this at most."""


def children_of(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(word) for word in file.read().split()]
    return []


def _is_memlens(pid: int) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return b"\0memlens\0record" in file.read()
    return False


def send(target: str, process: subprocess.Popen[bytes], number: int) -> str | None:
    """Sends it; who got it, None when nobody was there."""
    with contextlib.suppress(ProcessLookupError):
        if target == "group":
            os.killpg(process.pid, number)
            return "its process group"
        if target == "finishing":
            for child in children_of(process.pid):
                if _is_memlens(child):  # a fork of the recorder that has not become another program
                    os.kill(child, number)
                    return "the process that finishes"
            return None
        if process.poll() is None:
            process.send_signal(number)
            return "the recorder"
    return None


def judge(attempt: Attempted, native: Ended, ended: Ended, sent: list[tuple[str, int]]) -> str | None:
    """Why the end of a recording that got these signals is a failure."""
    left = attempt.what_is_left(ended)
    if left is not None:
        return left
    failure, _ = attempt.opens()
    if failure is not None:
        return failure
    to_recorder = {number for who, number in sent if who != "the process that finishes"}
    group_killed = any(who == "its process group" and number in (signal.SIGKILL,) for who, number in sent)
    if group_killed:
        return None
    said = ended.err.split(b"memlens: ", 1)[0]
    if attempt.began.exists():
        if ended.out != native.out:
            return f"the program printed {ended.out[-80:]!r}, natively {native.out[-80:]!r}"
        if native.err not in ended.err:
            return f"the program said {said[-80:]!r}, natively {native.err[-80:]!r}"
        died_itself = ended.status < 0 and -ended.status in to_recorder - {int(number) for number in PASSED_ON}
        if ended.status != native.status and not died_itself:
            return f"the recorder ended with {ended.status}, the program natively with {native.status}"
        return None
    if ended.out:
        return f"the program printed {ended.out[:80]!r} before it began"
    expected = {-number for number in to_recorder} | {128 + number for number in to_recorder}
    if ended.status not in expected:
        return f"ended with {ended.status} before the program began"
    return None


def attacks(seconds: float, seed: int, *, fresh: bool = True) -> Iterator[Attempt]:
    """Recordings that get signals until the time is over. `fresh`: emulated ones too."""
    warm()
    with workplace() as place:
        programs = build(place / "programs")
        natives: dict[str, Ended] = {}
        usual_s: dict[tuple[str, tuple[str, ...]], float] = {}
        until = time.monotonic() + seconds
        modes = MODES if not (fresh and shutil.which(f"qemu-{os.uname().machine}")) else (*MODES, EMULATED)
        for number in itertools.count():
            if time.monotonic() > until:
                return
            draw = random.Random(f"signals {seed} {number}")
            name, mode = draw.choice(sorted(programs)), draw.choice(modes)
            if name not in natives:
                alone = Attempted(place / f"native-{name}")
                natives[name] = alone.native([str(programs[name]), str(alone.began)])
            folder = place / str(number)
            attempt = Attempted(folder)
            yield _attempt(attempt, folder, draw, number, programs[name], mode, natives[name], usual_s)
            shutil.rmtree(folder, ignore_errors=True)


def _attempt(
    attempt: Attempted,
    folder: Path,
    draw: random.Random,
    number: int,
    program: Path,
    mode: tuple[str, ...],
    native: Ended,
    usual_s: dict[tuple[str, tuple[str, ...]], float],
) -> Attempt:
    command = recorder(attempt.capture, [str(program), str(attempt.began)], *mode)
    key = (program.name, mode)
    quiet = key not in usual_s  # the first of its kind gets none, and says how long it takes
    begin = time.monotonic()
    process = attempt.start(command)
    sent: list[tuple[str, int]] = []
    words = []
    if not quiet:
        target = draw.choice(("recorder", "recorder", "group", "finishing"))
        moments = sorted(draw.uniform(0, 1.05 * usual_s[key]) for _ in range(draw.choice((1, 1, 2, 4))))
        if target == "finishing":
            moments = [draw.uniform(0, 0.3)]
        for moment in moments:
            signal_number = int(draw.choice(OFTEN) if draw.random() < 0.5 else draw.choice(EVERY))
            if target == "finishing":
                _wait_for_finishing(process, attempt.began, begin + 20)
                begin = time.monotonic()
            while time.monotonic() < begin + moment and process.poll() is None:
                time.sleep(0.002)
            who = send(target, process, signal_number)
            words.append(f"{signal_number} to {target} after {moment:.3f} s")
            if who is None:
                continue
            sent.append((who, signal_number))
            if signal_number in STOPS:
                time.sleep(draw.uniform(0.01, 0.3))
                send("group" if target == "group" else target, process, signal.SIGCONT)
                sent.append((who, int(signal.SIGCONT)))
    ended = attempt.end(process)
    if quiet:
        usual_s[key] = min(AT_MOST_S, time.monotonic() - begin)
    failure = judge(attempt, native, ended, sent)
    again = f"{shown(command)}  # {'; '.join(words)}" if failure else ""
    if failure:
        failure += f" [{ended.err[-200:].decode('utf-8', 'replace').strip()!r}]"
    what = f"recording {number}: {program.name} {' '.join(mode)}: {'; '.join(words) or 'no signal'}"
    return Attempt("signals", what, tuple(command), failure, again, {"seconds": ended.seconds})


def _wait_for_finishing(process: subprocess.Popen[bytes], began: Path, until: float) -> None:
    while process.poll() is None and time.monotonic() < until:
        if began.exists() and any(_is_memlens(child) for child in children_of(process.pid)):
            return
        time.sleep(0.003)
