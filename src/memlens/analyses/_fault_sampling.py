"""Faults that stand for others: what a recording left out to keep its cost within the budget, and the errors of estimates.

While faults came faster than the budget allows, one in a fixed prime number was recorded, by thread and CPU. Each record has a
weight: the kernel's own count of that stretch over its records. A sum of weights estimates the faults; its error is that of a
sample in which each fault has the chance 1 / weight:

    variance of sum(w x) = sum(w (w - 1) x²)

Faults with weight 1 were all recorded and add no error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..capture.store.settings import settings_of

if TYPE_CHECKING:
    import pyarrow as pa

    from ..capture.reader import Capture


def is_sampled(capture: Capture) -> bool:
    """Whether some faults were not recorded, for the budget's sake."""
    return bool(capture.replay.sampled_stretches)


def variances(weights: Any, values: Any) -> Any:
    """What each record adds to the variance of a sum of ``weights * values``."""
    import numpy as np

    return np.where(weights > 1, weights * (weights - 1), 0.0) * np.asarray(values, dtype=np.float64) ** 2


def weighted(table: pa.Table, keys: list[str], values: dict[str, Any]) -> pa.Table:
    """Sums by the keys: for each name of `values` (one unweighted value a row) the estimate and ``NAME_error``,
    its standard error, largest first."""
    import pyarrow as pa

    weights = table.column("weight").to_numpy()
    plain = table.select(keys)
    for key in keys:
        if pa.types.is_dictionary(plain.schema.field(key).type):
            plain = plain.set_column(plain.column_names.index(key), key, plain.column(key).cast("string"))
    sums: list[tuple[str, str]] = []
    for name, value in values.items():
        plain = plain.append_column(name, pa.array(weights * value)).append_column(
            f"{name}_error", pa.array(variances(weights, value))
        )
        sums += [(name, "sum"), (f"{name}_error", "sum")]
    result = plain.group_by(keys).aggregate(sums)
    columns = {key: result.column(key) for key in keys}
    for name in values:
        columns[name] = pa.array([round(x) for x in result.column(f"{name}_sum").to_pylist()], pa.int64())
        columns[f"{name}_error"] = pa.array(
            [x**0.5 for x in result.column(f"{name}_error_sum").to_pylist()], pa.float64()
        )
    return pa.table(columns).sort_by([(next(iter(values)), "descending")])


def notes(capture: Capture) -> tuple[str, ...]:
    """When faults were sampled, for which part, and how to have all of them."""
    stretches = capture.replay.sampled_stretches
    if not stretches:
        return ()
    begin, end = capture.begin_ns, max(capture.end_ns, capture.begin_ns + 1)
    sampled_s = sum(max(min(last, end) - max(first, begin), 0) for first, last, _ in stretches) / 1e9
    first_s = max(stretches[0][0] - begin, 0) / 1e9
    weights = capture.table("faults").column("weight").to_numpy()
    records = int((weights > 1).sum())
    if capture.selection and not records:
        return ()
    stood_for = round(float(weights[weights > 1].sum()))
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
