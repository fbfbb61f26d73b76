"""Other clocks in terms of CLOCK_MONOTONIC, from the pairs that the recorder wrote.

Two pairs, at the start and the end of a recording, give offset and rate; in between
a reading is interpolated, outside it is extrapolated with the same rate. One pair
gives the offset only, with the clock's nominal frequency.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from ...errors import NoDataError

if TYPE_CHECKING:
    from ..store.source import RecordSource


@dataclass(frozen=True)
class ClockMap:
    """Converts one clock's readings.

    >>> clock = ClockMap("tsc", ticks=1000, monotonic_ns=50, ns_per_tick=0.5, uncertainty_ns=20)
    >>> clock.to_monotonic_ns(1100), clock.from_monotonic_ns(100)
    (100, 1100)
    """

    clock: str
    ticks: int
    monotonic_ns: int
    ns_per_tick: float
    uncertainty_ns: int
    """The worse of the pairs used; extrapolation adds to it."""

    def to_monotonic_ns(self, ticks: int) -> int:
        return self.monotonic_ns + round((ticks - self.ticks) * self.ns_per_tick)

    def from_monotonic_ns(self, monotonic_ns: int) -> int:
        return self.ticks + round((monotonic_ns - self.monotonic_ns) / self.ns_per_tick)


class _ClockPair(TypedDict):
    """A record `clock_pair`."""

    clock: str
    ticks: int
    ticks_per_second: int
    monotonic_ns: int
    uncertainty_ns: int


def clock_map(capture: RecordSource, clock: str) -> ClockMap:
    """The conversion for ``realtime``, ``boottime``, ``monotonic_raw``, ``tsc``, ``perf`` or ``guest``."""
    pairs: list[_ClockPair] = []
    for batch in capture.batches("clock_pair"):
        pairs.extend(row for row in batch.to_pylist() if row["clock"] == clock)
    if not pairs:
        known = sorted({row["clock"] for batch in capture.batches("clock_pair") for row in batch.to_pylist()})
        raise NoDataError(f"the capture has no pair for clock {clock!r}", hint=f"it has: {', '.join(known) or 'none'}")
    pairs.sort(key=lambda row: int(row["monotonic_ns"]))
    first, last = pairs[0], pairs[-1]
    elapsed_ns, elapsed_ticks = last["monotonic_ns"] - first["monotonic_ns"], last["ticks"] - first["ticks"]
    uncertainty_ns = max(first["uncertainty_ns"], last["uncertainty_ns"])
    nominal = 1e9 / first["ticks_per_second"] if first["ticks_per_second"] else None
    if elapsed_ticks > 0 and elapsed_ns > 0 and (nominal is None or elapsed_ns > 1000 * uncertainty_ns):
        rate = elapsed_ns / elapsed_ticks
    elif nominal is not None:
        rate = nominal  # too short a run to measure a rate better than the nominal one
    else:
        raise NoDataError(
            f"one pair of clock {clock!r} does not give its frequency", hint="the recording was cut short"
        )
    return ClockMap(clock, first["ticks"], first["monotonic_ns"], rate, uncertainty_ns)
