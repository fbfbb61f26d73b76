"""What the judge says of one figure: the value that memlens reports, the oracle's, and whether they agree."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable


@dataclasses.dataclass(frozen=True)
class Row:
    """One figure of one program beside one oracle."""

    program: str
    collector: str
    metric: str
    reported: float | None
    """None: memlens withholds the figure; `reason` has what it says."""
    low: float
    high: float
    """What the oracle says: several runs of it, or an interval that memlens itself gives, are a range."""
    oracle: str
    relative: float
    """Tolerance, as a share of the nearest end of the range."""
    absolute: float = 0.0
    """Tolerance on top, in the metric's unit."""
    unit: str = ""
    reason: str = ""
    """Why a difference is expected. A difference with a reason is listed and does not fail."""

    @property
    def difference(self) -> float:
        """Distance from the oracle's range; 0 inside it."""
        if self.reported is None:
            return 0.0
        if self.reported < self.low:
            return self.reported - self.low
        return max(0.0, self.reported - self.high)

    @property
    def error(self) -> float:
        """The difference as a share of the oracle; infinite where the oracle is 0.

        >>> Row("p", "c", "m", 103, 100, 101, "o", 0.01).error == 2 / 101
        True
        """
        if not self.difference:
            return 0.0
        base = abs(self.low if self.difference < 0 else self.high)
        return self.difference / base if base else float("inf")

    @property
    def excess(self) -> float:
        """How many tolerances the difference is; above 1 it does not hold."""
        base = abs(self.low if self.difference < 0 else self.high)
        allowed = self.relative * base + self.absolute
        if not self.difference:
            return 0.0
        return abs(self.difference) / allowed if allowed else float("inf")

    @property
    def verdict(self) -> str:
        if self.reported is None:
            return "withheld"
        if self.excess <= 1:
            return "holds"
        return "explained" if self.reason else "FAILS"


@dataclasses.dataclass(frozen=True)
class Missing:
    """A check that could not be made here, and the command that would allow it."""

    program: str
    check: str
    why: str


def fails(rows: Iterable[Row | Missing]) -> list[Row]:
    return [row for row in rows if isinstance(row, Row) and row.verdict == "FAILS"]


def worst_first(rows: Iterable[Row]) -> list[Row]:
    """Failures first, then what is explained, then by how much of its tolerance a difference takes."""
    rank = {"FAILS": 0, "explained": 1, "withheld": 2, "holds": 3}
    return sorted(rows, key=lambda row: (rank[row.verdict], -row.excess, row.program, row.metric))
