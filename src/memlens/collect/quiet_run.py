"""A program from start to end for its capture alone: nothing on our standard output, no input."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator

from .record_options import Outcome, RecordOptions
from .recorder import Recorder


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


def record_quietly(command: list[str], options: RecordOptions) -> Outcome:
    """Raises what `memlens record` would."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        with _streams_aside():
            outcome = Recorder(options).run_command(command)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if (
        outcome.interrupted
    ):  # the recorder takes control-C for itself while it finishes; whoever started it is to end as well
        raise KeyboardInterrupt
    return outcome
