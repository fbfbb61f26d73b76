"""What part of a run an analysis looks at, and how far its result obeys.

A leaf: plain data, so that analyses, findings, the command line and the page name a part of a run in the same way. An empty selection is
the whole run. Each analysis says in `Result.scope` what it did: data without times cannot be cut at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Scope = Literal["selection", "time bins", "whole run"]
"""selection: the result has only what was selected. time bins: whole bins (readings of counters, windows of accesses) of which each belongs
to one time range, by its middle or its begin, so that sums over ranges that follow each other add up. whole run: the selection was not
applied, because the data has no such thing (counts without time)."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """A part of a run. Conditions are joined by *and*; an empty one selects everything.

    >>> bool(Selection()), bool(Selection(threads=(4711,)))
    (False, True)
    """

    time_s: tuple[float, float] | None = None
    """Seconds since the recording began: from, to (exclusive)."""
    processes: tuple[int, ...] = ()
    """Process numbers, as tables name them."""
    threads: tuple[int, ...] = ()
    """Kernel ids of threads."""
    region: str = ""
    """The name of a region of interest or phase."""
    code: str = ""
    """A function by its name, or FILE:LINE."""
    object: str = ""
    """An object, as tables name it."""

    def __bool__(self) -> bool:
        return self != Selection()

    def __str__(self) -> str:
        """
        >>> str(Selection(time_s=(1.5, 2), threads=(4711, 4712), code="solve.c:42"))
        '1.5 to 2 s, threads 4711 and 4712, code solve.c:42'
        """
        parts = []
        if self.time_s is not None:
            parts.append(f"{self.time_s[0]:g} to {self.time_s[1]:g} s")
        for what, numbers in (("process", self.processes), ("thread", self.threads)):
            if numbers:
                plural = "es" if what == "process" else "s"
                parts.append(f"{what}{plural if len(numbers) > 1 else ''} {' and '.join(map(str, numbers))}")
        parts += [
            f"{what} {name}"
            for what, name in (("region", self.region), ("code", self.code), ("object", self.object))
            if name
        ]
        return ", ".join(parts)

    @property
    def by_access(self) -> bool:
        """Whether single accesses are chosen: those of code, or to an object."""
        return bool(self.code or self.object)

    def window_ns(self, begin_ns: int) -> tuple[int, int] | None:
        """The time range in the capture's clock, for a recording that began at `begin_ns`.

        >>> Selection(time_s=(0.5, 2)).window_ns(1_000)
        (500001000, 2000001000)
        """
        if self.time_s is None:
            return None
        first, last = self.time_s
        return begin_ns + round(first * 1e9), begin_ns + round(last * 1e9)
