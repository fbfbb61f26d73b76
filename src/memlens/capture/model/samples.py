"""Accesses sample by sample, in the order of time: what the trees over time are built from.

A sample is what was recorded without a gap (a unit of `Windows.units`). Samples of several threads follow each other by the
time at which they began; each stays whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from .accesses import NO_UNIT
from .locality import AccessBatch, ThreadAccesses, _part


class Samples:
    """The samples of a capture: when they began and ended, what they stand for, and their accesses."""

    def __init__(self, accesses: ThreadAccesses) -> None:
        import numpy as np

        self.accesses = accesses
        columns, units = accesses.capture.windows.columns, accesses.capture.windows.units
        drawn = np.flatnonzero(units.of_window != NO_UNIT)
        whose = units.of_window[drawn]
        count = len(units.executed)
        begin, end = np.full(count, 2**64 - 1, dtype=np.uint64), np.zeros(count, dtype=np.uint64)
        recorded, first = np.zeros(count, dtype=np.uint64), np.full(count, len(columns["begin_ns"]), dtype=np.int64)
        np.minimum.at(begin, whose, columns["begin_ns"][drawn])
        np.maximum.at(end, whose, columns["end_ns"][drawn])
        np.add.at(recorded, whose, columns["recorded"][drawn].astype(np.uint64))
        np.minimum.at(first, whose, drawn)
        # One thread's samples are in the order of its records, whatever its clock says.
        self.order = np.argsort(first, kind="stable") if len(accesses.streams) < 2 else np.lexsort((first, begin))
        """Units in the order of time; a sample's number is its place here."""
        self.begin_ns, self.end_ns, self.recorded = begin[self.order], end[self.order], recorded[self.order]
        self.executed, self.implied = units.executed[self.order], accesses.implied_constants[self.order]
        self.first_window = first[self.order]
        self._number = np.empty(count, dtype=np.int64)
        self._number[self.order] = np.arange(count)

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[tuple[int, AccessBatch]]:
        """(number of the sample, some of its accesses), sample after sample; each sample has at least one part."""
        import numpy as np

        held: dict[int, list[AccessBatch]] = {}
        left = self.recorded.astype(np.int64).tolist()
        now = 0
        for batch in self.accesses:
            cuts = np.concatenate(([0], np.flatnonzero(np.diff(batch.unit)) + 1, [len(batch)])).tolist()
            for begin, end in itertools.pairwise(cuts):
                number = int(self._number[batch.unit[begin]])
                part = batch if end - begin == len(batch) else _part(batch, slice(begin, end))
                left[number] -= len(part)
                if number == now:
                    yield number, part
                else:
                    held.setdefault(number, []).append(part)
                while now < len(left) and left[now] <= 0:
                    now += 1
                    for other in held.pop(now, ()):
                        yield now, other
        # What is left has lost accesses: its windows are damaged.
        for number in sorted(held):
            for part in held[number]:
                yield number, part
