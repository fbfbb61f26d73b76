"""Whether the machine has a CPU to spare: what can wait is done when it has, and not while the program needs them all."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

LOOK_S = 0.1
LEAST_SPARE = 0.5
"""Of a CPU, over the time since the last look: less is what a program leaves idle while its threads wait for each other."""


def idle_seconds(text: str, cpus: set[int], hz: int) -> float:
    """Idle time of the CPUs so far, from /proc/stat.

    >>> idle_seconds("cpu  9 9 9 300 50\\ncpu0 1 1 1 100 50 0\\ncpu1 1 1 1 200 0 0\\nintr 5", {0}, 100)
    1.5
    """
    ticks = 0
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cpus:
            fields = rest.split()
            ticks += sum(int(field) for field in fields[3:5])
    return ticks / hz


class SpareTime:
    """Asked now and then. What this process uses itself counts as spare: it is what it would give up."""

    def __init__(
        self, read: Callable[[], str] = Path("/proc/stat").read_text, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read, self._clock = read, clock
        self._hz = os.sysconf("SC_CLK_TCK")
        self._seen: tuple[float, float, float] | None = None
        self._answer = True

    def there_is(self) -> bool:
        """True also where it cannot be told: then nothing waits."""
        if self._seen is None or self._clock() - self._seen[0] >= LOOK_S:
            self._answer = self._look()
        return self._answer

    def _look(self) -> bool:
        try:
            idle = idle_seconds(self._read(), os.sched_getaffinity(0), self._hz)
        except (OSError, ValueError):
            return True
        now = (self._clock(), idle, time.process_time())
        before, self._seen = self._seen, now
        if before is None:
            return True
        return (now[1] - before[1] + now[2] - before[2]) / (now[0] - before[0]) >= LEAST_SPARE
