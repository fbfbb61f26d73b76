"""Levels of live bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..arrays import Ints, Uint64s


def level_peaks(group: Ints, born: Uint64s, died: Uint64s, weight: Ints) -> dict[int, tuple[int, int]]:
    """The highest level of live bytes of each group and when it was reached."""
    import numpy as np

    change = np.concatenate((weight, -weight))
    groups = np.concatenate((group, group))
    times = np.concatenate((born, died))
    order = np.lexsort((change > 0, times, groups))  # releases before births of one moment
    groups, running, times = groups[order], np.cumsum(change[order]), times[order]
    starts = np.flatnonzero(np.concatenate(([True], groups[1:] != groups[:-1])))
    found = {}
    for begin, end in zip(starts.tolist(), [*starts[1:].tolist(), len(groups)], strict=True):
        highest = begin + int(np.argmax(running[begin:end]))
        before = int(running[begin - 1]) if begin else 0
        found[int(groups[begin])] = (int(running[highest]) - before, int(times[highest]))
    return found
