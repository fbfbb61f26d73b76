"""One run for its counts, emulated or counting for itself: a program from start to end, its capture, and nothing on our
standard output."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from ..capture.store.counted_modules import first_counted
from .counting import CountOptions
from .emulator import EmulateOptions
from .program import find_program
from .record_options import Outcome, RecordOptions
from .recorder import Recorder

WINDOW, PERIOD = 100, 5_000
"""Short windows: addresses of many moments say more about shares than long stretches of few."""


@contextlib.contextmanager
def _streams_aside() -> Iterator[None]:
    """The program writes to standard error and reads nothing: standard output is for results, and input cannot be
    given to several runs."""
    sys.stdout.flush()
    kept = [os.dup(0), os.dup(1)]
    empty = os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(empty, 0)
        os.dup2(2, 1)
        yield
    finally:
        for number, descriptor in enumerate(kept):
            os.dup2(descriptor, number)
        for descriptor in (*kept, empty):
            os.close(descriptor)


def record_emulated(command: list[str], output: Path, *, functions: str = "", cpu: str = "") -> Outcome:
    """Counts with regions and windows, a function's own frame told apart; raises what `memlens record --emulate` would."""
    options = EmulateOptions(
        window=WINDOW, period=PERIOD, stacks=False, functions=functions, cpu=cpu, split_stack=True, frames=True
    )
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        with _streams_aside():
            outcome = Recorder(RecordOptions(output=output, emulate=options)).run_command(command)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return _unless_interrupted(outcome)


def _unless_interrupted(outcome: Outcome) -> Outcome:
    """The recorder takes control-C for itself while it finishes; whoever started it is to end as well."""
    if outcome.interrupted:
        raise KeyboardInterrupt
    return outcome


def counts_for_itself(program: str) -> bool:
    """Whether a program, or a library that it needs, was built with memlens cc."""
    return first_counted(find_program(program)) is not None


def record_counted(command: list[str], output: Path) -> Outcome:
    """Counts of the program's own counters, with nothing else recorded."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        with _streams_aside():
            options = RecordOptions(output=output, collectors=("count",), count=CountOptions(events=()))
            outcome = Recorder(options).run_command(command)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return _unless_interrupted(outcome)
