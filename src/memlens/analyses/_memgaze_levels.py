"""MemGaze's own table of levels, for the analysis `intervals`: a capture as its analyser would have read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from ..arrays import Array, Uint8s, Uint32s, Uint64s
    from ..capture.model.locality import ThreadAccesses
    from ..results import Result


def _memgaze_columns(
    accesses: ThreadAccesses, site_classes: Mapping[str, Uint8s] | None, *, numbered: bool
) -> tuple[Uint64s, Uint8s, Uint32s, Uint64s]:
    """Addresses, classes (0 constant, 1 strided, 2 irregular, 3 unknown, 4 store), implied constants and samples' numbers, in the
    order of the trace."""
    import numpy as np

    from ..capture.model.constants import ImpliedConstants
    from ..capture.model.locality import CLASSES, Classifier

    capture = accesses.capture
    constants = ImpliedConstants(capture)
    # The tool knows the classes that it was given; nothing is inferred beside them.
    names = capture.table("sites").column("class").to_pylist()
    of_code = np.array([CLASSES.index(name) if name in CLASSES else 0 for name in names] + [0], dtype=np.uint8)
    infer = None if constants.imported else Classifier(accesses, site_classes)
    to_memgaze = np.array([3, 0, 1, 2], dtype=np.uint8)
    parts: list[list[Array]] = [[], [], [], []]
    for batch in accesses:
        if infer is None:
            codes = np.minimum(accesses.codes(batch), np.uint32(len(of_code) - 1))
            classes = to_memgaze[of_code[codes]]
            classes[(classes == 3) & (batch.is_store != 0)] = 4
        else:
            classes = to_memgaze[infer(batch)]
        implied = constants(batch)
        parts[0].append(batch.key_address)
        parts[1].append(classes)
        parts[2].append(np.zeros(len(batch), dtype=np.uint32) if implied is None else implied)
        parts[3].append(batch.window)
    empty = (np.uint64, np.uint8, np.uint32, np.uint32)
    made = [np.concatenate(p) if p else np.zeros(0, dtype=t) for p, t in zip(parts, empty, strict=True)]
    window = made[3]
    if len(accesses.streams) > 1:
        # CPUs take turns, also within a sample: windows in the order of time. One CPU's are in the order of its records.
        begins = capture.windows.columns["begin_ns"]
        rank = np.empty(len(begins), dtype=np.int64)
        rank[np.lexsort((np.arange(len(begins)), begins))] = np.arange(len(begins))
        order = np.argsort(rank[window], kind="stable")
        made, window = [values[order] for values in made], window[order]
    return made[0], made[1], made[2], _numbers(accesses, numbered=constants.imported and numbered)[window]


def _numbers(accesses: ThreadAccesses, *, numbered: bool) -> Uint64s:
    """The number of the sample that each window is of: the trace's own, which a window's place tells, or any but 0."""
    import numpy as np

    windows = accesses.capture.windows
    if not numbered:
        return windows.units.of_window.astype(np.uint64) + np.uint64(1)
    columns = windows.columns
    numbers: Uint64s = (columns["first_executed"] // np.maximum(columns["period"], 1)).astype(np.uint64)
    return numbers


def ratio(top: Array, bottom: Array) -> pa.Array:
    """Column of quotients, null where there is nothing to divide by."""
    import numpy as np
    import pyarrow as pa

    bottom = np.asarray(bottom, dtype=np.float64)
    return pa.array(np.divide(top, bottom, out=np.zeros(len(bottom)), where=bottom > 0), mask=bottom <= 0)


def memgaze_levels(accesses: ThreadAccesses, site_classes: Mapping[str, Uint8s] | None) -> Result:
    import numpy as np
    import pyarrow as pa

    from ..capture.model.locality import memgaze_table
    from ..results import Quality, Result

    capture = accesses.capture
    periods = capture.windows.columns["period"]
    executed, recorded = capture.windows.units.executed.sum(), capture.windows.units.covered.sum()
    period = int(periods.max()) if len(periods) and executed > recorded else 0
    found = memgaze_table(*_memgaze_columns(accesses, site_classes, numbered=period > 0), period=period)
    nodes = np.maximum(found["nodes"], 1)
    by = np.where(found["is_scaled"] != 0, found["multiplier"], 1.0)
    window, footprint = found["window"], found["footprint"]
    table = pa.table(
        {
            "level": found["level"],
            "nodes": found["nodes"],
            "multiplier": by,
            "window_accesses": by * window / nodes,
            "footprint": by * footprint / nodes,
            "footprint_strided": by * found["strided"] / nodes,
            "footprint_irregular": by * found["irregular"] / nodes,
            "constants": by * found["constants"] / nodes,
            "unknown": by * found["unknown"] / nodes,
            "loads": by * (window + found["constants"]) / nodes,
            "constant_to_load_ratio": ratio(found["constants"], window + found["constants"]),
            "irregular_ratio": ratio(found["irregular"], footprint),
            "growth_irregular": ratio(found["irregular"], window),
            "growth": ratio(footprint, window),
        }
    )
    figures = {
        "tree": "memgaze",
        "samples": found["samples"],
        "accesses": found["accesses"],
        "loads": found["loads"],
        "multiplier": found["multiplier"],
        "period": period,
        "recorded_accesses": accesses.recorded,
        "damaged_windows": accesses.damaged,
    }
    note = (
        "MemGaze's own table: a level mixes windows, samples and intervals of its size, and scales all of them or none."
    )
    quality = capture.quality.joined(Quality(exact=False, notes=(note,)))
    return Result("intervals", figures, {"levels": table}, quality)
