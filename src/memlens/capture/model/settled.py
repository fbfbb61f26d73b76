"""The accesses of a capture that is still recorded, as far as they cannot change any more.

What a window stands for is known when its thread's next one begins: until then it may go on in another record, and reach further. So the last window of each
thread waits, unless the capture is complete. Windows that somebody has taken before are left out, so that engines are fed on.

Engines that need the order of time get what lies below a horizon: the least time up to which the windows of every live thread are complete. What a
later record adds below it, such as the first window of a thread that was not seen before, cannot be fed on: `SettledInTime.follows` is false then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from .accesses import NO_UNIT
from .decoded import DecodedChunk
from .locality import AccessBatch, AccessSource, ThreadAccesses, _part

if TYPE_CHECKING:
    from ...arrays import Bools, Ints, Uint32s, Uint64s


class SettledAccesses(ThreadAccesses):
    """`taken`: for each of the first records of windows, whether its accesses were taken before."""

    def __init__(self, capture: AccessSource, taken: Bools) -> None:
        import numpy as np

        super().__init__(capture)
        units = capture.windows.units.of_window
        count = len(capture.windows.units.executed)
        self._is_settled = np.ones(count, dtype=bool)
        drawn = np.flatnonzero(units != NO_UNIT)
        if not capture.complete and len(drawn):
            last = np.zeros(len(self.streams), dtype=np.int64)
            np.maximum.at(last, self.stream_of_window[drawn], units[drawn].astype(np.int64))
            self._is_settled[last[np.unique(self.stream_of_window[drawn])]] = False
        self.settled = np.zeros(len(units), dtype=bool)
        """For each record: whether its accesses count now."""
        self.settled[drawn] = self._is_settled[units[drawn]]
        self._fresh = self.settled.copy()
        self._fresh[: len(taken)] &= ~taken

    def batches(
        self,
        *,
        constants: bool = False,
        scalars: bool = False,
        beside: bool = False,
        on_chunk: Callable[[DecodedChunk, list[Uint64s]], None] | None = None,
        since: int = 0,
    ) -> Iterator[AccessBatch]:
        # Chunks before the first that has anything new are not even unpacked.
        first = int(self._fresh.argmax()) if self._fresh.any() else len(self._fresh)
        for chunk in self.capture.decoded:
            since += chunk.first + chunk.count <= first
        for batch in super().batches(constants=constants, scalars=scalars, since=since):
            one = _chosen(batch, self._fresh[batch.window])
            if batch.constants is not None:
                told = _chosen(batch.constants, self._fresh[batch.constants.window])
                one = replace(one, constants=told if len(told) else None)
            if len(one) or one.constants is not None:
                yield one

    @property
    def recorded(self) -> int:
        return int(self.capture.windows.columns["recorded"][self.settled].sum())

    @property
    def implied_constants(self) -> Uint64s:
        return super().implied_constants[self._is_settled]

    @cached_property
    def unit_executed(self) -> Uint64s:
        return self.capture.windows.units.executed[self._is_settled]

    @cached_property
    def unit_recorded(self) -> Ints:
        return super().unit_recorded[self._is_settled]


END_OF_TIME = 2**64 - 1


class SettledInTime(SettledAccesses):
    """Accesses below the horizon, of them those from `since_ns` on; `taken` are the records that were settled when that was the horizon.

    Windows have the row of their first record for a number: `Units` numbers them anew when the capture grows.
    """

    def __init__(self, capture: AccessSource, taken: Bools, *, since_ns: int = 0, given: int = 0) -> None:
        """`given`: accesses before `since_ns`."""
        import numpy as np

        super().__init__(capture, taken)
        columns, units = capture.windows.columns, capture.windows.units.of_window
        drawn = np.flatnonzero(units != NO_UNIT)
        count = len(capture.windows.units.executed)
        self._since_ns, self._given = since_ns, given
        self._first_row = np.full(count, len(units), dtype=np.uint32)
        np.minimum.at(self._first_row, units[drawn], drawn.astype(np.uint32))
        self.horizon_ns = END_OF_TIME if capture.complete else self._horizon(drawn)
        self.settled[drawn] = self._is_settled[units[drawn]]
        begins, ends = columns["begin_ns"], columns["end_ns"]
        before = np.zeros(len(units), dtype=bool)
        before[: len(taken)] = taken
        late = self.settled & ~before & (begins < np.uint64(since_ns))
        self.follows = self.horizon_ns >= since_ns and not bool(late.any())
        """Nothing came below the last horizon since."""
        self._fresh = self.settled & (ends >= np.uint64(since_ns)) & (begins < np.uint64(self.horizon_ns))

    def _horizon(self, drawn: Ints) -> int:
        """The least begin of a window that may still reach further; settles the last windows of threads that have ended."""
        import numpy as np

        columns, units = self.capture.windows.columns, self.capture.windows.units.of_window
        begin = np.full(len(self._is_settled), END_OF_TIME, dtype=np.uint64)
        np.minimum.at(begin, units[drawn], columns["begin_ns"][drawn])
        held = []
        for unit in np.flatnonzero(~self._is_settled).tolist():
            process, thread = self.streams[int(self.stream_of_window[self._first_row[unit]])]
            end_ns = self._ends.get((process, thread))
            if end_ns is not None and end_ns >= int(begin[unit]):
                self._is_settled[unit] = True
            else:
                held.append(int(begin[unit]))
        if held:
            return min(held)
        return int(columns["end_ns"][drawn].max()) + 1 if len(drawn) else 0

    @cached_property
    def _ends(self) -> dict[tuple[int, int], int]:
        """When threads ended, of those whose end was recorded."""
        rows = self.capture.table("threads").to_pylist()
        return {(row["process"], row["thread"]): row["end_ns"] for row in rows if row["end_ns"] is not None}

    def batches(
        self,
        *,
        constants: bool = False,
        scalars: bool = False,
        beside: bool = False,
        on_chunk: Callable[[DecodedChunk, list[Uint64s]], None] | None = None,
        since: int = 0,
    ) -> Iterator[AccessBatch]:
        first = int(self._fresh.argmax()) if self._fresh.any() else len(self._fresh)
        for chunk in self.capture.decoded:
            since += chunk.first + chunk.count <= first
        for batch in ThreadAccesses.batches(self, scalars=scalars, beside=beside, since=since):
            one, whole = self._in_time(batch), batch.with_scalars
            if whole is not None:
                whole = self._in_time(whole)
                one = replace(one, with_scalars=whole)
            self._given += len(one if whole is None else whole)
            if len(one) or whole is not None:
                yield one

    def _in_time(self, batch: AccessBatch) -> AccessBatch:
        part = _chosen(batch, self.is_given(batch.window, batch.time_ns) & self._fresh[batch.window])
        if self._since_ns:
            part = _chosen(part, part.time_ns >= part.time_ns.dtype.type(self._since_ns))
        return replace(part, unit=self._first_row[part.unit])

    def is_given(self, window: Uint32s, time_ns: Uint64s) -> Bools:
        """Which accesses are among those that have been given, now or before."""
        return self.settled[window] & (time_ns < time_ns.dtype.type(self.horizon_ns))

    @property
    def given(self) -> int:
        """Accesses so far, of a sweep that has ended."""
        return self._given

    @property
    def recorded(self) -> int:
        return super(SettledAccesses, self).recorded if self.capture.complete else self._given


def _chosen(batch: AccessBatch, chosen: Bools) -> AccessBatch:
    import numpy as np

    if chosen.all():
        return batch
    part = np.flatnonzero(chosen)
    one = _part(batch, part)
    return replace(
        one,
        number=None if batch.number is None else batch.number[part],
        count=None if batch.count is None else batch.count[part],
    )
