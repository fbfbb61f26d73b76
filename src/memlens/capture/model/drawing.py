"""Sampled traces drawn from a capture that has more: windows of a whole trace, or fewer of a denser sample.

A drawn trace looks to an analysis like a recorded one. Places of windows are drawn as the tracer draws them: one start in each
period, evenly, so that every access has the same chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from .decoded import DecodedChunk
from .locality import AccessBatch, AccessSource, ThreadAccesses

if TYPE_CHECKING:
    import numpy as np

    from ...arrays import Floats, Ints, Uint32s, Uint64s


@dataclass(frozen=True)
class Windows:
    """Windows of one thread, in numbers of its accesses, constants included: sorted, without overlap."""

    start: Ints
    end: Ints
    reach: Ints
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


def drawn_windows(length: int, window: int, period: int, random: np.random.Generator) -> Windows:
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
    """Windows of the accesses of a capture that has every access.

    Windows are ranges of access numbers, constants included: one in code that has nothing else is drawn as often as any other.

    Parameters
    ----------
    windows
        By stream; see `every_window` and `drawn_windows`.
    source
        All batches of the capture with their constants, where somebody has them already.
    """

    def __init__(
        self, capture: AccessSource, windows: list[Windows], *, source: Sequence[AccessBatch] | None = None
    ) -> None:
        super().__init__(capture)
        self._windows = windows
        self._source = source
        counts = [part.count for part in windows]
        self._first_unit = [sum(counts[:at]) for at in range(len(counts))]

    @classmethod
    def tiled(cls, capture: AccessSource, window: int, *, source: Sequence[AccessBatch] | None = None) -> DrawnAccesses:
        """Every window there is."""
        return cls(capture, [every_window(length, window) for length in stream_lengths(capture)], source=source)

    @classmethod
    def drawn(
        cls, capture: AccessSource, window: int, period: int, *, seed: int, source: Sequence[AccessBatch] | None = None
    ) -> DrawnAccesses:
        """One window in each period."""
        import numpy as np

        random = np.random.default_rng(seed)
        lengths = stream_lengths(capture)
        return cls(capture, [drawn_windows(length, window, period, random) for length in lengths], source=source)

    @property
    def recorded(self) -> int:
        return int(self.unit_recorded.sum())

    @property
    def units_in_order(self) -> bool:
        return False  # nobody has looked

    @property
    def is_whole(self) -> bool:
        return False

    @cached_property
    def _covered(self) -> Ints:
        import numpy as np

        return np.concatenate([np.zeros(0, dtype=np.int64), *(part.end - part.start for part in self._windows)])

    @property
    def implied_constants(self) -> Uint64s:
        import numpy as np

        return (self._covered - self.unit_recorded).astype(np.uint64)

    @cached_property
    def unit_executed(self) -> Uint64s:
        """Accesses that each window stands for, constants included."""
        import numpy as np

        parts = [np.zeros(0, dtype=np.int64), *(np.diff(part.reach, prepend=0) for part in self._windows)]
        return np.concatenate(parts).astype(np.uint64)

    @cached_property
    def unit_recorded(self) -> Ints:
        import numpy as np

        recorded = np.zeros(len(self._covered), dtype=np.int64)
        for batch in self._all():
            assert batch.number is not None  # constants were asked for
            unit, _ = self._inside(batch, batch.number)
            recorded += np.bincount(unit, minlength=len(recorded))
        return recorded

    def _all(self) -> Iterator[AccessBatch]:
        return iter(self._source) if self._source is not None else super().batches(constants=True)

    def _inside(self, batch: AccessBatch, number: Ints) -> tuple[Uint32s, Ints]:
        """(unit, place in the batch) of those that lie in a window."""
        import numpy as np

        windows = self._windows[batch.stream]
        at = np.searchsorted(windows.start, number, side="right") - 1
        inside = at >= 0
        inside[inside] = number[inside] < windows.end[at[inside]]
        chosen = np.flatnonzero(inside)
        return (at[chosen] + self._first_unit[batch.stream]).astype(np.uint32), chosen

    def batches(
        self,
        *,
        constants: bool = False,
        scalars: bool = False,
        beside: bool = False,
        on_chunk: Callable[[DecodedChunk, list[Uint64s]], None] | None = None,
        since: int = 0,
    ) -> Iterator[AccessBatch]:
        import numpy as np

        weights = self.unit_executed / np.maximum(self._covered, 1)
        for batch in self._all():
            assert batch.number is not None  # constants were asked for
            unit, chosen = self._inside(batch, batch.number)
            drawn = _chosen(batch, chosen, unit, weights[unit])
            if constants and batch.constants is not None:
                drawn = replace(drawn, constants=self._drawn_constants(batch.constants, weights))
            if len(drawn) or drawn.constants is not None:
                yield drawn

    def _drawn_constants(self, given: AccessBatch, weights: Floats) -> AccessBatch | None:
        """Those in windows. A row of many is spread over its record, and cut where windows begin and end."""
        import numpy as np

        assert given.number is not None and given.count is not None  # as all constants have
        alone = given.count == 1
        unit, chosen = self._inside(given, given.number)
        keep = alone[chosen]
        unit, chosen = unit[keep], chosen[keep]
        count = np.ones(len(chosen), dtype=np.uint64)
        windows = self._windows[given.stream]
        for row in np.flatnonzero(~alone).tolist():
            begin = int(given.number[row])
            span = int(self.capture.windows.covered[given.window[row]])
            end = begin + span
            low, high = np.searchsorted(windows.end, begin, side="right"), np.searchsorted(windows.start, end)
            if high <= low:
                continue
            first = np.maximum(windows.start[low:high], begin) - begin
            last = np.minimum(windows.end[low:high], end) - begin
            inside = last * int(given.count[row]) // span - first * int(given.count[row]) // span
            unit = np.concatenate((unit, np.arange(low, high) + self._first_unit[given.stream])).astype(np.uint32)
            chosen = np.concatenate((chosen, np.full(high - low, row)))
            count = np.concatenate((count, inside.astype(np.uint64)))
        if not len(chosen):
            return None
        order = np.argsort(unit, kind="stable")
        unit, chosen, count = unit[order], chosen[order], count[order]
        return replace(_chosen(given, chosen, unit, weights[unit]), count=count)


def _chosen(batch: AccessBatch, chosen: Ints, unit: Uint32s, weight: Floats) -> AccessBatch:
    return AccessBatch(
        batch.stream, batch.process, batch.thread, batch.window[chosen], unit, batch.time_ns[chosen], batch.pc[chosen],
        batch.address[chosen], batch.bytes[chosen], batch.is_store[chosen], weight, batch.process_number,
        None if batch.site_code is None else batch.site_code[chosen],
        None if batch.number is None else batch.number[chosen], None, None if batch.count is None else batch.count[chosen],
    )  # fmt: skip


class ThinnedAccesses(ThreadAccesses):
    """One window of every `keep` of a sampled capture, which stands for all of them."""

    def __init__(
        self, capture: AccessSource, keep: int, *, seed: int, source: Sequence[AccessBatch] | None = None
    ) -> None:
        import numpy as np

        super().__init__(capture)
        self._source = source
        units = capture.windows.units
        random = np.random.default_rng(seed)
        drawn = units.of_window < len(units.executed)
        stream = np.zeros(len(units.executed), dtype=np.int64)
        stream[units.of_window[drawn]] = self.stream_of_window[drawn]
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
    def units_in_order(self) -> bool:
        return False  # nobody has looked

    @property
    def is_whole(self) -> bool:
        return False

    @property
    def implied_constants(self) -> Uint64s:
        return self._all_implied[self._chosen]

    def batches(
        self,
        *,
        constants: bool = False,
        scalars: bool = False,
        beside: bool = False,
        on_chunk: Callable[[DecodedChunk, list[Uint64s]], None] | None = None,
        since: int = 0,
    ) -> Iterator[AccessBatch]:
        for batch in self._source if self._source is not None else super().batches(constants=constants):
            drawn = self._of_chosen(batch)
            if constants and batch.constants is not None:
                mine = self._of_chosen(batch.constants)
                drawn = replace(drawn, constants=mine if len(mine) else None)
            if len(drawn) or drawn.constants is not None:
                yield drawn

    def _of_chosen(self, batch: AccessBatch) -> AccessBatch:
        import numpy as np

        number = self._number[np.minimum(batch.unit, len(self._number) - 1)]
        chosen = np.flatnonzero(number >= 0)
        unit = number[chosen].astype(np.uint32)
        return _chosen(batch, chosen, unit, self._weights[unit])


def stream_lengths(capture: AccessSource) -> list[int]:
    """Accesses of each thread, constants included, as `ThreadAccesses.streams` has them."""
    return ThreadAccesses(capture).lengths
