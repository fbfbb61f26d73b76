"""Inferred classes of accesses beside those that the compiler found, on captures that have both."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..errors import NoDataError

if TYPE_CHECKING:
    from ..capture.reader import Capture


@dataclass
class Agreement:
    """Accesses by (static class, inferred class)."""

    accesses: dict[tuple[str, str], int] = field(default_factory=dict)
    sites: list[dict[str, object]] = field(default_factory=list)
    """Code whose classes differ, most accesses first."""

    @property
    def total(self) -> int:
        return sum(self.accesses.values())

    @property
    def agreed_percent(self) -> float:
        same = sum(count for (static, inferred), count in self.accesses.items() if static == inferred)
        return 100 * same / self.total if self.total else 100.0

    def percent(self, static: str, inferred: str) -> float:
        return 100 * self.accesses.get((static, inferred), 0) / self.total if self.total else 0.0


def class_agreement(capture: Capture) -> Agreement:
    """Compares class by class, each access counted once.

    A static class is about the code: the address steps evenly, or not. An inferred one is about the addresses that were seen, so
    code that was run with few addresses, or whose irregular index happens to step evenly, differs with good reason.
    """
    import numpy as np

    from ..capture.model.locality import CLASSES, Classifier, ThreadAccesses

    accesses = ThreadAccesses(capture)
    static, inferred = Classifier(accesses), Classifier(accesses, ignore_static=True)
    counts = np.zeros((len(CLASSES), len(CLASSES)), dtype=np.int64)
    by_code: dict[tuple[int, int, int], int] = {}
    for batch in accesses:
        known = static.static_of(batch)
        found = inferred(batch)
        mine = known > 0
        np.add.at(counts, (known[mine], found[mine]), 1)
        differ = mine & (known != found)
        if differ.any():
            keys = accesses.codes(batch)[differ].astype(np.int64) * 16 + known[differ] * 4 + found[differ]
            for key, times in zip(*(v.tolist() for v in np.unique(keys, return_counts=True)), strict=True):
                at = (key // 16, key // 4 % 4, key % 4)
                by_code[at] = by_code.get(at, 0) + times
    if not counts.sum():
        raise NoDataError(
            f"{capture.path} has no static classes", hint="trace a program built with memlens cc --memlens=trace"
        )
    names = capture.table("sites").select(["function", "line", "kind", "stride_bytes"]).to_pylist()
    sites = [
        {**names[code], "static": CLASSES[a], "inferred": CLASSES[b], "accesses": times}
        for (code, a, b), times in sorted(by_code.items(), key=lambda item: -item[1])
    ]
    pairs = {(CLASSES[a], CLASSES[b]): int(counts[a, b]) for a in range(4) for b in range(4) if counts[a, b]}
    return Agreement(pairs, sites)
