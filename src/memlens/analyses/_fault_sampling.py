"""Faults that stand for others: what a recording left out to keep its cost within the budget, and the errors of estimates.

While faults came faster than the budget allows, one in a fixed prime number was recorded, by thread and CPU. Each record has a
weight: the kernel's own count of that stretch over its records. A sum of weights estimates the faults; its error is that of a
sample in which each fault has the chance 1 / weight:

    variance of sum(w x) = sum(w (w - 1) x²)

Faults with weight 1 were all recorded and add no error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..capture.store.settings import settings_of

if TYPE_CHECKING:
    import pyarrow as pa

    from ..arrays import Array, Floats
    from ..capture.reader import Capture


PLACING = ("first", "again", "placed")
"""Classes of faults that place a page of the process's own; `file` pages are the page cache's."""


def fault_groups(capture: Capture) -> pa.Table:
    """`Replay.fault_groups`; of a selection the selected faults, each for itself."""
    import numpy as np
    import pyarrow as pa

    if not capture.selection:
        return capture.replay.fault_groups
    faults = capture.table("faults")
    return faults.append_column("rows", pa.array(np.ones(faults.num_rows, dtype=np.uint64)))


def is_sampled(capture: Capture) -> bool:
    """Whether some faults were not recorded, for the budget's sake."""
    return bool(capture.replay.sampled_stretches)


def variances(weights: Floats, values: Array | float) -> Floats:
    """What each record adds to the variance of a sum of ``weights * values``."""
    import numpy as np

    return np.where(weights > 1, weights * (weights - 1), 0.0) * np.asarray(values, dtype=np.float64) ** 2


def weighted(groups: pa.Table, keys: list[str], values: Mapping[str, Array | float]) -> pa.Table:
    """Sums over faults by the keys, of `Replay.fault_groups`: for each name of `values` (one unweighted value a fault of the row)
    the estimate and ``NAME_error``, its standard error, largest first; of equal ones that with the first fault."""
    import numpy as np
    import pyarrow as pa

    weights = groups.column("weight").to_numpy()
    rows = groups.column("rows").to_numpy().astype(float)
    plain = groups.select(keys)
    for key in keys:
        if pa.types.is_dictionary(plain.schema.field(key).type):
            plain = plain.set_column(plain.column_names.index(key), key, plain.column(key).cast("string"))
    plain = plain.append_column("at", pa.array(np.arange(groups.num_rows)))
    sums: list[tuple[str, str]] = [("at", "min")]
    for name, value in values.items():
        plain = plain.append_column(name, pa.array(rows * weights * value)).append_column(
            f"{name}_error", pa.array(rows * variances(weights, value))
        )
        sums += [(name, "sum"), (f"{name}_error", "sum")]
    result = plain.group_by(keys).aggregate(sums)
    columns = {key: result.column(key) for key in keys}
    for name in values:
        columns[name] = pa.array([round(x) for x in result.column(f"{name}_sum").to_pylist()], pa.int64())
        columns[f"{name}_error"] = pa.array(
            [x**0.5 for x in result.column(f"{name}_error_sum").to_pylist()], pa.float64()
        )
    columns["at"] = result.column("at_min")
    ordered = pa.table(columns).sort_by([(next(iter(values)), "descending"), ("at", "ascending")])
    return ordered.drop_columns(["at"])


def notes(capture: Capture) -> tuple[str, ...]:
    """When faults were sampled, for which part, and how to have all of them."""
    stretches = capture.replay.sampled_stretches
    if not stretches:
        return ()
    begin, end = capture.begin_ns, max(capture.end_ns, capture.begin_ns + 1)
    sampled_s = sum(max(min(last, end) - max(first, begin), 0) for first, last, _ in stretches) / 1e9
    first_s = max(stretches[0][0] - begin, 0) / 1e9
    weights, rows = (fault_groups(capture).column(name).to_numpy() for name in ("weight", "rows"))
    several = weights > 1
    records = int(rows[several].sum())
    if capture.selection and not records:
        return ()
    stood_for = round(float((weights * rows)[several].sum()))
    settings = settings_of(capture.meta, "fault") or {}
    budget = settings.get("budget_share")
    limit = "the budget" if budget is None else f"the budget of {100 * budget:.3g} %"
    from ..results import Note

    return (
        Note(
            "faults.sampled",
            f"Faults were sampled for {sampled_s:.2g} of {(end - begin) / 1e9:.2g} s, first at {first_s:.2g} s, to keep their cost within "
            f"{limit}: {records:,} records stand for {stood_for:,} faults. Figures with ± are estimates (± is two standard errors), and classes of "
            "those faults are inferred. memlens record --exact records every fault.",
        ),
    )
