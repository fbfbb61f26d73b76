"""Mean footprint against window size, in powers of two: within windows as they are, across windows by the paper's scaling.

A window of n accesses is cut into pieces of 2^k from its start; an access is new in its piece when the last access to its address
lies in another one. So one sort tells the footprint of all sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ..capture.model.locality import CLASSES

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ..capture.model.locality import AccessBatch

    Addresses = npt.NDArray[np.uint64]
    Units = npt.NDArray[np.integer]
    Classes = npt.NDArray[np.uint8]
    Batches = Iterable[tuple[AccessBatch, Classes]]
    Columns = tuple[Addresses, Classes, Units]

CONSTANT, STRIDED = CLASSES.index("constant"), CLASSES.index("strided")
LEAST_SIZE = 16
KINDS = ("footprint", "footprint_strided", "footprint_irregular")
HELD_ACCESSES = 1 << 20


def sizes_within(window: int) -> list[int]:
    """
    >>> sizes_within(100)
    [16, 32, 64]
    """
    return [1 << k for k in range(LEAST_SIZE.bit_length() - 1, window.bit_length()) if 1 << k <= window]


def _previous(addresses: Addresses, units: Units) -> npt.NDArray[np.int64]:
    """Index of the last access to the same address in the same unit, -1 where there is none."""
    import numpy as np

    order = np.lexsort((addresses, units))  # stable: earlier ones first
    a, u = addresses[order], units[order]
    same = (a[1:] == a[:-1]) & (u[1:] == u[:-1])
    previous = np.full(len(addresses), -1, dtype=np.int64)
    previous[order[1:][same]] = order[:-1][same]
    return previous


class WindowSizes:
    """Sums over pieces of windows; `add` takes whole windows, one after the other."""

    def __init__(self, window: int) -> None:
        import numpy as np

        self.sizes = sizes_within(window)
        self.pieces = np.zeros(len(self.sizes), dtype=np.int64)
        self.sums = {kind: np.zeros(len(self.sizes), dtype=np.int64) for kind in KINDS}

    def add(self, addresses: Addresses, classes: Classes, units: Units) -> None:
        import numpy as np

        if not len(addresses):
            return
        first = np.flatnonzero(np.concatenate(([True], units[1:] != units[:-1])))
        lengths = np.diff(np.concatenate((first, [len(units)])))
        number = np.repeat(np.arange(len(first)), lengths)
        offset = np.arange(len(units)) - first[number]
        length = lengths[number]
        kinds = {"footprint": classes != CONSTANT, "footprint_strided": classes == STRIDED,
                 "footprint_irregular": (classes != CONSTANT) & (classes != STRIDED)}  # fmt: skip
        for kind, mine in kinds.items():
            own, place, whole = number[mine], offset[mine], length[mine]
            previous = _previous(addresses[mine], own)
            before = np.where(previous >= 0, place[previous], -1)
            for at, size in enumerate(self.sizes):
                is_new = (before < 0) | (before // size != place // size)
                self.sums[kind][at] += int((is_new & (place < whole // size * size)).sum())
        constant = classes == CONSTANT
        for at, size in enumerate(self.sizes):
            self.pieces[at] += int((lengths // size).sum())
            place = offset[constant]
            inside = place < length[constant] // size * size
            together = number[constant][inside] * (int(lengths.max()) // size + 1) + place[inside] // size
            self.sums["footprint"][at] += len(np.unique(together))  # all constants of a piece are one

    def means(self) -> dict[tuple[int, str], float]:
        return {
            (size, kind): float(self.sums[kind][at]) / int(self.pieces[at])
            for at, size in enumerate(self.sizes)
            for kind in KINDS
            if self.pieces[at]
        }


def _whole_windows(batches: Batches) -> Iterator[Columns]:
    """(addresses, classes, units) of whole windows of one thread at a time."""
    import numpy as np

    held: dict[int, list[Columns]] = {}
    count: dict[int, int] = {}

    def joined(stream: int) -> Columns:
        addresses, classes, units = zip(*held.pop(stream), strict=True)
        return np.concatenate(addresses), np.concatenate(classes), np.concatenate(units)

    for batch, found in batches:
        held.setdefault(batch.stream, []).append((batch.key_address, found, batch.unit))
        count[batch.stream] = count.get(batch.stream, 0) + len(batch)
        if count[batch.stream] >= HELD_ACCESSES:
            addresses, classes, units = joined(batch.stream)
            cut = int(np.searchsorted(units, units[-1], side="left"))
            held[batch.stream] = [(addresses[cut:], classes[cut:], units[cut:])]
            count[batch.stream] = len(units) - cut
            if cut:
                yield addresses[:cut], classes[:cut], units[:cut]
    for stream in list(held):
        yield joined(stream)


def footprint_within(batches: Batches, window: int) -> dict[tuple[int, str], float]:
    """Mean footprint of pieces of windows by (size, kind)."""
    sums = WindowSizes(window)
    for addresses, classes, units in _whole_windows(batches):
        sums.add(addresses, classes, units)
    return sums.means()


def groups_across(units: int) -> list[int]:
    """Numbers of consecutive windows: powers of two."""
    return [1 << k for k in range(units.bit_length()) if 1 << k <= units]


def footprint_across(batches: Batches, period: int, window: int) -> dict[int, float]:
    """rho · F of groups of consecutive windows of a thread, by the accesses that they stand for."""
    import numpy as np

    held: dict[int, list[tuple[Addresses, npt.NDArray[np.int64]]]] = {}
    for batch, classes in batches:
        mine = classes != CONSTANT
        held.setdefault(batch.stream, []).append((batch.key_address[mine], batch.unit[mine].astype(np.int64)))
    sums: dict[int, list[float]] = {}
    for parts in held.values():
        addresses = np.concatenate([part for part, _ in parts])
        units = np.concatenate([part for _, part in parts])
        if not len(units):
            continue
        number = np.unique(addresses, return_inverse=True)[1].reshape(-1).astype(np.int64)
        units = units - units.min()
        for group in groups_across(int(units.max()) + 1):
            n_groups = (int(units.max()) + 1) // group
            inside = units < n_groups * group
            unique = len(np.unique(number[inside] * n_groups + units[inside] // group))
            have = sums.setdefault(group * period, [0.0, 0.0])
            have[0] += unique * period / window
            have[1] += n_groups
    return {size: total / count for size, (total, count) in sums.items()}


def footprint_of_spans(batches: Batches, spans: list[int], lengths: list[int]) -> dict[int, float]:
    """The true mean of the same, of a trace that is whole: pieces of so many accesses of a thread, constants included. Batches have numbers."""
    import numpy as np

    from ..capture.model.locality import REUSE_FIRST, ReuseDistances

    engines = {stream: ReuseDistances(block_bytes=1) for stream in range(len(lengths))}
    # Intervals count accesses that are not constant: their positions are kept to go back by.
    positions = [np.empty(length, dtype=np.int64) for length in lengths]
    moving = [0] * len(lengths)
    sums = dict.fromkeys(spans, 0)
    for batch, classes in batches:
        at = batch.stream
        mine = classes != CONSTANT
        assert batch.number is not None  # of batches with constants
        position = batch.number[mine]
        distances, between = engines[at].add(np.ascontiguousarray(batch.key_address[mine]))
        own = np.arange(moving[at], moving[at] + len(position))
        moving[at] += len(position)
        positions[at][own] = position
        before = np.where(distances == REUSE_FIRST, -1, positions[at][own - between.astype(np.int64)])
        for span in spans:
            inside = position < lengths[at] // span * span
            sums[span] += int(((before < 0) | (before // span != position // span))[inside].sum())
    pieces = {span: sum(length // span for length in lengths) for span in spans}
    return {span: sums[span] / pieces[span] for span in spans if pieces[span]}
