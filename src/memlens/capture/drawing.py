"""Sampled traces drawn from a capture that has more: windows of a whole trace, or fewer of a denser sample.

A drawn trace looks to an analysis like a recorded one. Places of windows are drawn as the tracer draws them: one start in each
period, evenly, so that every access has the same chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .locality import AccessBatch, ThreadAccesses

if TYPE_CHECKING:
    from .reader import Capture


@dataclass(frozen=True)
class Windows:
    """Windows of one thread, in positions of its recorded accesses: sorted, without overlap."""

    start: Any
    end: Any
    reach: Any
    """Where what the window stands for ends; it begins where the one before ended."""

    @property
    def count(self) -> int:
        return len(self.start)


def every_window(length: int, window: int) -> Windows:
    """The trace cut into windows, with an access or two between them; a shorter rest is left out.

    Windows begin at odd distances: a loop whose round has a number of accesses that divides the window would else be cut at
    the same place each time, and windows that are drawn cut it anywhere.

    >>> every_window(10, 4).start.tolist(), every_window(10, 4).reach.tolist()
    ([0, 5], [5, 10])
    """
    import numpy as np

    distance = window + 1 if window % 2 == 0 else window + 2
    start = np.arange(0, max(0, length - window + 1), distance, dtype=np.int64)
    reach = start + distance
    if len(reach):
        reach[-1] = length
    return Windows(start, start + window, reach)


def drawn_windows(length: int, window: int, period: int, random: Any) -> Windows:
    """One window in each period. The last period may be cut short by the end: its window then may fall out, or be shorter."""
    import numpy as np

    begin = np.arange(0, length, period, dtype=np.int64)
    start = begin + random.integers(0, period - window + 1, len(begin))
    start = start[start < length]
    if not len(start):
        return Windows(start, start, start)
    # A window stands for its period; what is left at the end goes to the last one.
    reach = np.minimum((np.arange(len(start), dtype=np.int64) + 1) * period, length)
    reach[-1] = length
    return Windows(start, np.minimum(start + window, length), reach)


class DrawnAccesses(ThreadAccesses):
    """Windows of the accesses of a capture.

    Parameters
    ----------
    windows
        By stream; see `every_window` and `drawn_windows`.
    source
        All batches of the capture, where somebody has them already.
    """

    def __init__(
        self, capture: Capture, windows: list[Windows], *, source: Sequence[AccessBatch] | None = None
    ) -> None:
        super().__init__(capture)
        self._windows = windows
        self._source = source
        counts = [part.count for part in windows]
        self._first_unit = [sum(counts[:at]) for at in range(len(counts))]

    @classmethod
    def tiled(cls, capture: Capture, window: int, *, source: Sequence[AccessBatch] | None = None) -> DrawnAccesses:
        """Every window there is."""
        return cls(capture, [every_window(length, window) for length in stream_lengths(capture)], source=source)

    @classmethod
    def drawn(
        cls, capture: Capture, window: int, period: int, *, seed: int, source: Sequence[AccessBatch] | None = None
    ) -> DrawnAccesses:
        """One window in each period."""
        import numpy as np

        random = np.random.default_rng(seed)
        lengths = stream_lengths(capture)
        return cls(capture, [drawn_windows(length, window, period, random) for length in lengths], source=source)

    @property
    def recorded(self) -> int:
        return sum(int((part.end - part.start).sum()) for part in self._windows)

    @property
    def is_whole(self) -> bool:
        return False

    @cached_property
    def _implied_before(self) -> list[tuple[Any, Any]]:
        """By stream: positions of recorded accesses, and constants left out before them."""
        import numpy as np

        columns = self.capture.windows.columns
        made = []
        for stream in range(len(self.streams)):
            mine = np.flatnonzero(self._stream_of_window == stream)
            recorded = np.concatenate(([0], np.cumsum(columns["recorded"][mine].astype(np.int64))))
            implied = np.concatenate(([0], np.cumsum(columns["implied_constant"][mine].astype(np.int64))))
            keep = np.concatenate(([True], np.diff(recorded) > 0))
            made.append((recorded[keep], implied[keep]))
        return made

    def _implied(self, stream: int, positions: Any) -> Any:
        """Constants before positions: within a record they are spread evenly."""
        import numpy as np

        recorded, implied = self._implied_before[stream]
        return np.floor(np.interp(positions, recorded, implied)).astype(np.int64)

    @property
    def implied_constants(self) -> Any:
        import numpy as np

        parts = [self._implied(s, w.end) - self._implied(s, w.start) for s, w in enumerate(self._windows)]
        return np.concatenate([np.zeros(0, dtype=np.int64), *parts]).astype(np.uint64)

    @cached_property
    def unit_executed(self) -> Any:
        """Accesses that each window stands for, constants included."""
        import numpy as np

        parts = [np.zeros(0, dtype=np.int64)]
        for stream, part in enumerate(self._windows):
            reach = part.reach + self._implied(stream, part.reach)
            parts.append(np.diff(reach, prepend=0))
        return np.concatenate(parts).astype(np.uint64)

    @cached_property
    def unit_recorded(self) -> Any:
        import numpy as np

        return np.concatenate([np.zeros(0, dtype=np.int64), *(w.end - w.start for w in self._windows)])

    def __iter__(self) -> Iterator[AccessBatch]:
        import numpy as np

        covered = self.unit_recorded + self.implied_constants.astype(np.int64)
        weights = self.unit_executed / np.maximum(covered, 1)
        position = [0] * len(self.streams)
        for batch in self._source if self._source is not None else super().__iter__():
            windows = self._windows[batch.stream]
            at = position[batch.stream] + np.arange(len(batch), dtype=np.int64)
            position[batch.stream] += len(batch)
            number = np.searchsorted(windows.start, at, side="right") - 1
            inside = number >= 0
            inside[inside] = at[inside] < windows.end[number[inside]]
            chosen = np.flatnonzero(inside)
            if not len(chosen):
                continue
            unit = (number[chosen] + self._first_unit[batch.stream]).astype(np.uint32)
            yield AccessBatch(
                batch.stream, batch.process, batch.thread, batch.window[chosen], unit, batch.time_ns[chosen], batch.pc[chosen],
                batch.address[chosen], batch.bytes[chosen], batch.is_store[chosen], weights[unit], batch.process_number,
                None if batch.site_code is None else batch.site_code[chosen],
            )  # fmt: skip


class ThinnedAccesses(ThreadAccesses):
    """One window of every `keep` of a sampled capture, which stands for all of them."""

    def __init__(self, capture: Capture, keep: int, *, seed: int, source: Sequence[AccessBatch] | None = None) -> None:
        import numpy as np

        super().__init__(capture)
        self._source = source
        units = capture.windows.units
        random = np.random.default_rng(seed)
        drawn = units.of_window < len(units.executed)
        stream = np.zeros(len(units.executed), dtype=np.int64)
        stream[units.of_window[drawn]] = self._stream_of_window[drawn]
        # Units are numbered thread by thread, in the order of time.
        group = np.zeros(len(stream), dtype=np.int64)
        for number in range(len(self.streams)):
            mine = np.flatnonzero(stream == number)
            group[mine] = np.arange(len(mine)) // keep + (group.max() + 1 if number else 0)
        order = np.lexsort((random.random(len(group)), group))
        chosen = order[np.unique(group[order], return_index=True)[1]] if len(order) else order
        self._number = np.full(len(group) + 1, -1, dtype=np.int64)
        self._number[chosen] = np.arange(len(chosen))
        self._chosen = chosen
        self.unit_executed = np.bincount(group, weights=units.executed.astype(float)).round().astype(np.uint64)
        self._weights = self.unit_executed / np.maximum(units.covered[chosen], 1)
        self._all_implied = super().implied_constants
        inside = drawn & (self._number[np.minimum(units.of_window, len(group))] >= 0)
        self._recorded = int(capture.windows.columns["recorded"][inside].sum())
        recorded = np.zeros(len(group), dtype=np.int64)
        np.add.at(recorded, units.of_window[drawn], capture.windows.columns["recorded"][drawn].astype(np.int64))
        self.unit_recorded = recorded[chosen]

    @property
    def recorded(self) -> int:
        return self._recorded

    @property
    def is_whole(self) -> bool:
        return False

    @property
    def implied_constants(self) -> Any:
        return self._all_implied[self._chosen]

    def __iter__(self) -> Iterator[AccessBatch]:
        import numpy as np

        for batch in self._source if self._source is not None else super().__iter__():
            number = self._number[np.minimum(batch.unit, len(self._number) - 1)]
            chosen = np.flatnonzero(number >= 0)
            if not len(chosen):
                continue
            unit = number[chosen].astype(np.uint32)
            yield AccessBatch(
                batch.stream, batch.process, batch.thread, batch.window[chosen], unit, batch.time_ns[chosen], batch.pc[chosen],
                batch.address[chosen], batch.bytes[chosen], batch.is_store[chosen], self._weights[unit], batch.process_number,
                None if batch.site_code is None else batch.site_code[chosen],
            )  # fmt: skip


def stream_lengths(capture: Capture) -> list[int]:
    """Recorded accesses of each thread, as `ThreadAccesses.streams` has them."""
    import numpy as np

    accesses = ThreadAccesses(capture)
    recorded = capture.windows.columns["recorded"].astype(np.int64)
    sums = np.bincount(accesses._stream_of_window, weights=recorded, minlength=len(accesses.streams))
    return [int(value) for value in sums]
