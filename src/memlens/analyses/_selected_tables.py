"""How a selection cuts each table of a capture: rows by their columns, and the tables where that would be wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..selection import Selection
from ._selected import UNTIMED, NotSelectable

if TYPE_CHECKING:
    import pyarrow as pa

    from ..arrays import Array
    from ._matching import PlaceLists
    from ._selected import SelectedCapture


WORDS = {"code_counts": "exact counts of accesses", "faults": "page faults"}
"""What rows of a table are, for reasons."""


def plain_rows(part: SelectedCapture, name: str) -> pa.Table:
    """Rows by the columns that a table has: process, thread, time_ns, address, and code or function, file and line."""
    import pyarrow as pa

    table = part.whole.table(name)
    if not table.num_rows:
        return table
    columns = set(table.column_names)

    def numbers(column: str) -> Array | None:
        return table.column(column).to_numpy() if column in columns else None

    place = None
    if part.selection.code:
        place = _place(part, table)
    chosen = part.rows(
        table.num_rows,
        WORDS.get(name, f"rows of {name}"),
        process=numbers("process"),
        thread=numbers("thread"),
        time_ns=numbers("time_ns") if name not in UNTIMED else None,
        address=numbers("address") if name not in UNTIMED else None,
        region=table.column("region").to_pylist() if "region" in columns and part.selection.region else None,
        place=place,
    )
    return table.filter(pa.array(chosen))


def _place(part: SelectedCapture, table: pa.Table) -> PlaceLists | None:
    if {"function", "file", "line"} <= set(table.column_names):
        function, file, line = (table.column(name).to_pylist() for name in ("function", "file", "line"))
        return function, file, line
    if "code" not in table.column_names:
        return None
    from .traffic import CodeNames

    names = CodeNames(part.whole)
    codes = names.of(table).tolist()
    return [names.function[c] for c in codes], [names.file[c] for c in codes], [names.line[c] for c in codes]


def _timeline(part: SelectedCapture) -> pa.Table:
    """Readings of a process are steps: the last one before the range holds at its begin."""
    import numpy as np
    import pyarrow as pa

    selection = part.selection
    if selection.threads or selection.region or selection.by_access:
        raise NotSelectable("memory and CPU time are read by process")
    table = part.whole.table("timeline")
    process, time_ns = table.column("process").to_numpy(), table.column("time_ns").to_numpy().astype(np.int64)
    keep = np.ones(table.num_rows, dtype=bool)
    metric = np.array(table.column("metric").cast("string").to_pylist(), dtype=object)
    if selection.processes:  # a limit is everybody's
        keep &= np.isin(process, np.array(selection.processes, dtype=np.int64)) | (metric == "cgroup_limit_bytes")
    if part.time_ns is None:
        return table.filter(pa.array(keep))
    first, last = part.time_ns
    ends = {row["process"]: row["end_ns"] for row in part.table("processes").to_pylist()}
    gone = np.isin(process, [number for number, end in ends.items() if end is not None and end <= first])
    # Of a process that had ended nothing holds. High-water marks would tell of peaks before the range.
    keep &= ~((metric == "peak_rss_bytes") | (gone & (time_ns < first)))
    series = [process, metric.astype(str), *(table.column(name).to_numpy() for name in ("node", "thread"))]
    order = np.lexsort((time_ns, *series))
    same = np.ones(max(len(order) - 1, 0), dtype=bool)
    for column in series:
        same &= column[order][1:] == column[order][:-1]
    before = time_ns[order] <= first
    # The last reading up to the range's begin: the next one of its series, if there is one, comes later.
    is_last = np.concatenate((~same | ~before[1:], [True])) if len(order) else np.zeros(0, dtype=bool)
    carried = np.zeros(table.num_rows, dtype=bool)
    carried[order] = before & is_last
    keep &= (carried | (time_ns > first)) & (time_ns < last)
    times = np.where(carried, first, time_ns).astype(np.uint64)
    at = table.column_names.index("time_ns")
    return table.set_column(at, "time_ns", pa.array(times)).filter(pa.array(keep)).sort_by("time_ns")


def _regions(part: SelectedCapture) -> pa.Table:
    """Spans cut at the range; those inside the selected region. An execution counts where it begins."""
    import numpy as np
    import pyarrow as pa

    selection = part.selection
    if selection.by_access:
        raise NotSelectable("regions have no code and no objects")
    table = part.whole.table("regions")
    process, thread, begin, end = (
        table.column(name).to_numpy().astype(np.int64) for name in ("process", "thread", "begin_ns", "end_ns")
    )
    executions = table.column("executions").to_numpy()
    keep = np.ones(table.num_rows, dtype=bool)
    if selection.processes:
        keep &= np.isin(process, np.array(selection.processes))
    if selection.threads:
        keep &= np.isin(thread, np.array(selection.threads))
    if selection.region and table.num_rows:
        inside = part.in_region(process, thread, begin)
        # A region around the selected one begins at its begin at the earliest: it goes on after it.
        keep &= inside & part.in_region(process, thread, np.maximum(end - 1, begin))
    if part.time_ns is not None:
        first, last = part.time_ns
        keep &= (begin < last) & ((end > first) | ((begin == end) & (begin >= first)))
        executions = np.where(begin >= first, executions, 0).astype(executions.dtype)
        begin, end = np.maximum(begin, first), np.minimum(end, last)
    for name, values in (("begin_ns", begin), ("end_ns", end), ("executions", executions)):
        at = table.column_names.index(name)
        table = table.set_column(at, table.schema.field(at), pa.array(values).cast(table.schema.field(at).type))
    return table.filter(pa.array(keep))


def _placed(part: SelectedCapture) -> pa.Table:
    """Runs of pages belong to the look that found them; their thread and code are not known: those of a thread or function are none."""
    import numpy as np
    import pyarrow as pa

    table = part.whole.table("placed")
    if part.is_by_thread:
        return table.slice(0, 0)
    time_ns = table.column("end_ns").to_numpy()
    chosen = part.rows(
        table.num_rows, "placed pages", process=table.column("process").to_numpy(), time_ns=time_ns,
        address=table.column("address").to_numpy(),
    )  # fmt: skip
    if part.time_ns is not None and np.any(chosen):
        part.note_bins("pages without an event were placed some time before the page table was looked at")
    return table.filter(pa.array(chosen))


def _objects(part: SelectedCapture) -> pa.Table:
    import numpy as np

    from ._selected_objects import chosen_objects

    chosen = chosen_objects(part)
    return part.objects.table(np.flatnonzero(chosen))


def _unseen(part: SelectedCapture) -> pa.Table:
    """What was not counted, of no known thread and region."""
    import pyarrow.compute as pc

    table = part.whole.table("unseen")
    selection = part.selection
    if selection.threads or selection.region or selection.by_access:
        return table.slice(0, 0)
    if selection.processes:
        import pyarrow as pa

        return table.filter(pc.is_in(table.column("process"), pa.array(selection.processes, pa.uint32())))
    return table


def _windows(part: SelectedCapture) -> pa.Table:
    return part.windows.table()


def _region_times(part: SelectedCapture) -> pa.Table:
    """Times of regions by thread and epoch; code has no times."""
    import pyarrow as pa

    from ._selected_counts import SelectedCounts

    table = part.whole.table("region_time_records")
    if part.selection.code:
        return table.slice(0, 0)
    counts = part.counts
    assert isinstance(counts, SelectedCounts)
    names = ("image", "node", "process", "thread", "epoch")
    return table.filter(pa.array(counts.is_place_chosen(*(table.column(name).to_numpy() for name in names))))


def _region_unions(part: SelectedCapture) -> pa.Table:
    """Wall-clock time in which any thread was in a region, over the whole run: of a time or a thread it is not known."""
    import pyarrow as pa

    from ._selected_counts import SelectedCounts

    table = part.whole.table("region_spans")
    if part.selection.code or part.selection.threads or part.time_ns is not None:
        return table.slice(0, 0)
    counts = part.counts
    assert isinstance(counts, SelectedCounts)
    image, node, process = (table.column(name).to_numpy() for name in ("image", "node", "process"))
    return table.filter(pa.array(counts.is_place_chosen(image, node, process, process, node)))


def _accesses(part: SelectedCapture) -> pa.Table:
    """Accesses of the selected windows; `window` is a row of the part's table ``windows``."""
    import pyarrow as pa

    from ..capture.tables.catalogue import descriptor_of

    table = descriptor_of("accesses").make(part.of_all_code())
    if part.time_ns is not None:
        part.note_bins(part.windows_by_time)
    if not part.selection.by_access:
        return table
    only = part.of(Selection(code=part.selection.code, object=part.selection.object))
    chosen = only.rows(
        table.num_rows, "accesses", process=table.column("process").to_numpy(), time_ns=table.column("time_ns").to_numpy(),
        address=table.column("address").to_numpy(), place=_place(part, table) if part.selection.code else None,
    )  # fmt: skip
    return table.filter(pa.array(chosen))


RULES: dict[str, Callable[[SelectedCapture], pa.Table]] = {
    "timeline": _timeline,
    "regions": _regions,
    "placed": _placed,
    "objects": _objects,
    "unseen": _unseen,
    "accesses": _accesses,
    "windows": _windows,
    "region_time_records": _region_times,
    "region_spans": _region_unions,
}
"""Tables that are not cut by `plain_rows`."""


def table_of(part: SelectedCapture, name: str) -> pa.Table:
    """A table of a selected capture."""
    rule = RULES.get(name)
    return rule(part) if rule is not None else plain_rows(part, name)
