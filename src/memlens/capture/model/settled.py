"""The accesses of a capture that is still recorded, as far as they cannot change any more.

What a window stands for is known when its thread's next one begins: until then it may go on in another record, and reach further. So the last window of each
thread waits, unless the capture is complete. Windows that somebody has taken before are left out, so that engines are fed on.
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
    from ...arrays import Bools, Ints, Uint64s


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
