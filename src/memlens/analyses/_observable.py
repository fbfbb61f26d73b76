"""Which reuse intervals windows can show (MemGaze, section IV-A).

R1   shorter than a window: seen when both accesses fall into it, with chance (w - d) / w
R2   as long as a window or longer, within a period: never seen
R3   longer than a period: seen in two windows, but nobody knows whether the same data was used in between
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from ..arrays import Floats, Ints
    from ..capture.model.locality import LocalityStream

BINS = 48


def chance_of(lengths: Ints, intervals: Ints) -> Floats:
    """The chance that a reuse whose second access was recorded is seen, by interval: both accesses lie in one window.

    >>> import numpy as np
    >>> chance_of(np.array([4, 4]), np.array([1, 3, 4])).tolist()
    [0.75, 0.25, 0.0]
    """
    import numpy as np

    total = max(int(lengths.sum()), 1)
    unique, times = np.unique(lengths, return_counts=True)
    inside = np.maximum(unique[None, :] - np.asarray(intervals)[:, None], 0)
    chance: Floats = (inside * times[None, :]).sum(axis=1) / total
    return chance


def reuse_intervals(merged: LocalityStream | None, lengths: Ints, *, whole: bool, group: int = 0) -> pa.Table:
    """Reuses of the whole program by interval, in powers of two, with what of them can be observed.

    ``reuses_estimated`` corrects for the chance; it is null, not zero, where windows show nothing. The last row holds all intervals
    that are longer than any window.
    """
    import numpy as np
    import pyarrow as pa

    schema = pa.schema([("from", pa.uint64()), ("to", pa.uint64()), ("reuses", pa.uint64()), ("observed_percent", pa.float64()),
                        ("reuses_estimated", pa.float64()), ("observable", pa.string())])  # fmt: skip
    if merged is None or len(merged.reuse(0)["accesses"]) <= group:
        return schema.empty_table()
    bins = merged.reuse(0)["interval_bins"][group].tolist()
    longest = int(lengths.max()) if len(lengths) else 0
    last = max((at for at in range(BINS) if bins[at]), default=0)
    if not whole:
        last = max(last, (longest - 1).bit_length() if longest > 1 else 0)
    rows = []
    for at in range(1, last + 1):
        first, end = 1 << (at - 1), (1 << at) - 1
        if whole:
            chance = 1.0
        else:
            end = min(end, longest - 1)
            chance = float(
                chance_of(lengths, np.unique(np.linspace(first, max(end, first), 64).astype(np.int64))).mean()
            )
        rows.append({
            "from": first, "to": end, "reuses": bins[at], "observed_percent": 100 * chance,
            "reuses_estimated": bins[at] / chance if chance > 0 else None,
            "observable": "all" if whole else "in part" if chance > 0 else "no",
        })  # fmt: skip
    if not whole:
        rows.append({"from": max(longest, 1), "to": None, "reuses": None, "observed_percent": 0.0, "reuses_estimated": None,
                     "observable": "no"})  # fmt: skip
    return pa.Table.from_pylist(rows, schema=schema)
