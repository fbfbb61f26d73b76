"""What recording a page fault costs the program, measured with the same events on this machine."""

from __future__ import annotations

import contextlib
import mmap
import os
import statistics
import time

from .. import _sampling

PAGES, ROUNDS = 512, 5


def recording_ns(*, single: bool) -> float | None:
    """CPU time that our events add to a fault; None where they cannot be opened or the difference is lost in noise.

    Faults of this thread with and without events, by its own CPU clock. Events with stacks are left out: a program that
    faults much has one in 64 to 4,096, and their cost depends on its stacks. So it is rather too little than too much.
    """
    try:
        without = _rounds()
        session = _sampling.Session(faults=True, fault_before=not single, stack_mode=0, timeline_hz=0.0)
        try:
            session.attach(os.getpid(), enable_on_exec=False)
            session.start()
            recorded = _rounds()
        finally:
            session.stop()
        without += _rounds()
    except (
        OSError,
        RuntimeError,
        MemoryError,
    ):  # too many open files, no memory for rings: the capture is whole without it
        return None
    added = statistics.median(recorded) - statistics.median(without)
    return added if added > 0 else None


def _rounds() -> list[float]:
    """Nanoseconds of CPU time a fault, several times."""
    return [_touch() for _ in range(ROUNDS)]


def _touch() -> float:
    size = mmap.PAGESIZE
    with mmap.mmap(-1, PAGES * size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as pages:
        with contextlib.suppress(OSError):  # a kernel without huge pages
            pages.madvise(mmap.MADV_NOHUGEPAGE)
        values = bytes(PAGES)
        begin = time.thread_time_ns()
        pages[::size] = values
        return (time.thread_time_ns() - begin) / PAGES
