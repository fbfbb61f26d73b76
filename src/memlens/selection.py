"""What part of a run an analysis looks at, and how far its result obeys.

A leaf: plain data, so that analyses, findings, the command line and the page name a part of a run in the same way. An empty selection is
the whole run. Each analysis says in `Result.scope` what it did: data without times cannot be cut at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Scope = Literal["selection", "time bins", "whole run"]
"""selection: the result has only what was selected. time bins: whole bins that overlap the time range. whole run: the selection was not
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

    def window_ns(self, begin_ns: int) -> tuple[int, int] | None:
        """The time range in the capture's clock, for a recording that began at `begin_ns`.

        >>> Selection(time_s=(0.5, 2)).window_ns(1_000)
        (500001000, 2000001000)
        """
        if self.time_s is None:
            return None
        first, last = self.time_s
        return begin_ns + round(first * 1e9), begin_ns + round(last * 1e9)
