"""Analysis `capacity`: how much memory the tree holds over time, and who holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..capture.store.settings import settings_of
from ..registry import AnalysisDescriptor
from ..units import human_bytes
from ..view import Chart, Figure, Series, Table, View, detail, key, measure

if TYPE_CHECKING:
    import pyarrow as pa

    from ..arrays import Array, Columns, Integers, Ints
    from ..capture.reader import Capture
    from ..capture.tables.run import ProcessRow
    from ..results import Result


LIMIT_ON_CHART_RATIO = 4
"""A limit further above the peak would only flatten the curve."""


def step_total(times: Integers, owners: Integers, values: Integers, ends: dict[int, int]) -> tuple[Ints, Ints]:
    """Total of several step functions: each owner's value holds until its next reading or its end.

    >>> import numpy as np
    >>> t, v = step_total(np.array([0, 1, 2]), np.array([1, 2, 1]), np.array([5, 7, 6]), {1: 3, 2: 4})
    >>> t.tolist(), v.tolist()
    ([0, 1, 2, 3, 4], [5, 12, 13, 7, 0])
    """
    import numpy as np

    if len(times) == 0:
        return np.array([], dtype=np.int64), np.array([], dtype=np.int64)
    order = np.lexsort((times, owners))
    t, o, v = times[order].astype(np.int64), owners[order], values[order].astype(np.int64)
    previous = np.concatenate(([0], v[:-1]))
    previous[np.concatenate(([True], o[1:] != o[:-1]))] = 0
    deltas = v - previous
    last_of_owner = np.concatenate((o[1:] != o[:-1], [True]))
    end_times, end_deltas = [], []
    for owner, value, time in zip(
        o[last_of_owner].tolist(), v[last_of_owner].tolist(), t[last_of_owner].tolist(), strict=True
    ):
        if owner in ends:
            end_times.append(max(ends[owner], time))
            end_deltas.append(-value)
    all_times = np.concatenate((t, np.array(end_times, dtype=np.int64)))
    all_deltas = np.concatenate((deltas, np.array(end_deltas, dtype=np.int64)))
    order = np.argsort(all_times, kind="stable")
    all_times, total = all_times[order], np.cumsum(all_deltas[order])
    keep = np.concatenate((all_times[1:] != all_times[:-1], [True]))
    return all_times[keep], total[keep]


def weighted_median(values: Array, weights: Array) -> float:
    """The value that holds for half of the weight.

    >>> import numpy as np
    >>> weighted_median(np.array([1, 100]), np.array([9, 1]))
    1.0
    """
    import numpy as np

    if len(values) == 0 or weights.sum() <= 0:
        return 0.0
    order = np.argsort(values, kind="stable")
    cumulative = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(cumulative, cumulative[-1] / 2)])


def metric_rows(table: pa.Table, metric: str) -> Columns:
    """time, process, node, thread and value of one metric of the timeline."""
    import pyarrow.compute as pc

    rows = table.filter(pc.equal(table.column("metric").cast("string"), metric))
    return {name: rows.column(name).to_numpy() for name in ("time_ns", "process", "node", "thread", "value")}


def shared_once(rss: Columns, shared: Columns, ends: dict[int, int], times: Ints, summed: Ints) -> tuple[Ints, Ints]:
    """The tree's memory over time with pages of files and shared memory counted once: those of the process with most of them.

    Exact for one process and for processes that share the same pages; a lower bound where each maps files of its own.
    """
    import numpy as np

    if len(np.unique(rss["process"])) < 2 or len(shared["time_ns"]) == 0:
        return times, summed
    _, shared_sum = step_total(shared["time_ns"], shared["process"], shared["value"], ends)
    if len(shared_sum) != len(times):  # the two are read together; not so in an older or damaged capture
        return times, summed
    most = np.zeros(len(times), dtype=np.int64)
    for process in np.unique(shared["process"]).tolist():
        mine = shared["process"] == process
        order = np.argsort(shared["time_ns"][mine], kind="stable")
        when, value = shared["time_ns"][mine][order].astype(np.int64), shared["value"][mine][order].astype(np.int64)
        at = np.searchsorted(when, times, side="right") - 1
        alive = (at >= 0) & (times < max(ends.get(process, 1 << 62), int(when[-1])))
        most = np.maximum(most, np.where(alive, value[np.maximum(at, 0)], 0))
    return times, np.minimum(summed, summed - shared_sum + most)


def capacity(capture: Capture) -> Result:
    """Capacity of the whole process tree over time.

    Figures: ``peak_rss_bytes`` (the larger of ``peak_reading_bytes`` and ``kernel_peak_rss_bytes``), ``peak_reading_bytes``
    (largest reading of the tree: private pages of all processes, and pages of files and shared memory once, as many as the
    process with most of them has), ``peak_rss_sum_bytes`` (largest sum of RSS, in which shared pages count in each process: an
    upper bound), ``median_rss_bytes`` (time-weighted median of the readings: half of the time at or below it),
    ``peak_pss_bytes``, ``peak_hugetlb_bytes`` (hugetlb pages, which are not in RSS), ``kernel_peak_rss_bytes`` (the kernel's own
    high-water mark of the largest single process; None when it is below that of the process before exec),
    ``readings``, ``mean_interval_s``, ``limit_bytes`` and ``limit_kind``.
    """
    import numpy as np
    import pyarrow as pa

    from ..results import Quality, Result

    table = capture.table("timeline")
    begin = capture.begin_ns
    first, last = capture.time_range_ns
    processes = [row for row in capture.table("processes").to_pylist() if _is_selected(capture, row)]
    ends = {row["process"]: row["end_ns"] or last for row in processes}
    if capture.selection.time_s is not None:  # a process that goes on holds its memory to the end of the range
        ends = {process: end for process, end in ends.items() if end < last}
    rss = metric_rows(table, "rss_bytes")
    times, summed = step_total(rss["time_ns"], rss["process"], rss["value"], ends)
    times, total = shared_once(rss, metric_rows(table, "shared_bytes"), ends, times, summed)
    pss = metric_rows(table, "pss_bytes")
    pss_times, pss_total = step_total(pss["time_ns"], pss["process"], pss["value"], ends)
    huge = metric_rows(table, "anon_huge_bytes")
    _, huge_total = step_total(huge["time_ns"], huge["process"], huge["value"], ends)
    swap = metric_rows(table, "swap_bytes")
    hugetlb = metric_rows(table, "hugetlb_bytes")
    _, hugetlb_total = step_total(hugetlb["time_ns"], hugetlb["process"], hugetlb["value"], ends)
    durations = np.diff(np.append(times, max(last, int(times[-1]) if len(times) else 0)))
    median = weighted_median(total, durations)
    peak = int(total.max()) if len(total) else 0
    readings = len(rss["time_ns"])
    span_s = (float(rss["time_ns"].max()) - float(rss["time_ns"].min())) / 1e9 if readings > 1 else 0.0
    distinct_ticks = len(np.unique(rss["time_ns"] // 1_000_000)) if readings else 0

    cgroup_limit = metric_rows(table, "cgroup_limit_bytes")["value"]
    cgroup = metric_rows(table, "cgroup_bytes")["value"]
    machine = capture.meta.get("machine", {})
    limit, limit_kind = (
        (int(cgroup_limit.min()), "cgroup") if len(cgroup_limit) else (int(machine.get("memory_bytes", 0)), "machine")
    )

    rusage = capture.meta.get("rusage", {})
    kernel_peak = rusage.get("peak_rss_bytes") or 0
    figures = {
        "peak_rss_bytes": max(peak, kernel_peak) if readings or kernel_peak else None,
        "peak_reading_bytes": peak if readings else None,
        "peak_rss_sum_bytes": int(summed.max()) if len(summed) else None,
        "peak_at_s": (int(times[int(total.argmax())]) - begin) / 1e9 if len(total) else 0.0,
        "median_rss_bytes": int(median) if readings else None,
        "peak_pss_bytes": int(pss_total.max()) if len(pss_total) else None,
        "peak_anon_huge_bytes": int(huge_total.max()) if len(huge_total) else None,
        "peak_hugetlb_bytes": int(hugetlb_total.max()) if len(hugetlb_total) else 0,
        "peak_swap_bytes": int(swap["value"].max()) if len(swap["value"]) else 0,
        "kernel_peak_rss_bytes": rusage.get("peak_rss_bytes"),
        "peak_cgroup_bytes": int(cgroup.max()) if len(cgroup) else None,
        "limit_bytes": limit,
        "limit_kind": limit_kind,
        "processes": len(processes),
        "readings": readings,
        "mean_interval_s": span_s / (distinct_ticks - 1) if distinct_ticks > 1 else None,
        "duration_s": (last - first) / 1e9,
    }

    # The kernel's high-water mark of each process, where it was read, knows peaks between two readings.
    marks = metric_rows(table, "peak_rss_bytes")
    by_process = []
    for row in processes:
        own = np.concatenate(
            (rss["value"][rss["process"] == row["process"]], marks["value"][marks["process"] == row["process"]])
        )
        by_process.append(
            {
                "process": row["process"],
                "pid": row["pid"],
                "name": row["name"] or "",
                "peak_rss_bytes": int(own.max()) if len(own) else None,
                "begin_s": (row["begin_ns"] - begin) / 1e9,
                "end_s": (row["end_ns"] - begin) / 1e9 if row["end_ns"] else None,
                "threads": row["threads"],
            }
        )
    by_process.sort(key=lambda row: -(row["peak_rss_bytes"] or 0))
    nodes = metric_rows(table, "node_bytes")
    node_rows = []
    for node in np.unique(nodes["node"]).tolist():
        mine = nodes["node"] == node
        _, node_total = step_total(nodes["time_ns"][mine], nodes["process"][mine], nodes["value"][mine], ends)
        node_rows.append({"node": int(node), "peak_bytes": int(node_total.max()) if len(node_total) else 0})
    notes = []
    # Of an emulated program RSS would be the emulator's; a program that writes for itself has no reader, a trace no RSS.
    expected = not (capture.standalone or "import" in capture.meta) and (
        settings_of(capture.meta, "timeline") is not None or settings_of(capture.meta, "code_count") is None
    )
    if readings == 0 and expected:
        notes.append("No reading of RSS: the program ended before the first one.")
    several = len(np.unique(rss["process"])) > 1
    if readings and several and kernel_peak > 1.05 * peak and kernel_peak - peak > 1 << 20:
        notes.append(
            f"The kernel saw a peak of {human_bytes(kernel_peak)} in one process, the readings of the whole tree only "
            f"{human_bytes(peak)}: it was shorter than the interval; record with a higher --rate."
        )
    unread = (
        0 if capture.selection.time_s is not None else sum(1 for row in by_process if row["peak_rss_bytes"] is None)
    )
    if unread and expected:
        notes.append(f"{unread} of {len(by_process)} processes ended before their first reading.")
    return Result(
        "capacity",
        figures,
        {
            "over_time": pa.table({"time_s": (times - begin) / 1e9, "rss_bytes": total}),
            "pss_over_time": pa.table({"time_s": (pss_times - begin) / 1e9, "pss_bytes": pss_total}),
            "by_process": pa.Table.from_pylist(by_process) if by_process else pa.table({}),
            "by_node": pa.Table.from_pylist(node_rows) if node_rows else pa.table({"node": [], "peak_bytes": []}),
        },
        capture.quality.joined(Quality(exact=readings == 0 and not expected, notes=tuple(notes))),
    )


def _is_selected(capture: Capture, process: ProcessRow) -> bool:
    """Whether a process is selected, and was there in the selected time."""
    if capture.selection.processes and process["process"] not in capture.selection.processes:
        return False
    first, last = capture.time_range_ns
    return capture.selection.time_s is None or (
        process["begin_ns"] < last and (process["end_ns"] is None or process["end_ns"] > first)
    )


def view(result: Result) -> View:
    figures = result.figures
    several = (figures["peak_rss_sum_bytes"] or 0) > 1.05 * (figures["peak_rss_bytes"] or 0)
    near = figures["limit_bytes"] and figures["limit_bytes"] <= LIMIT_ON_CHART_RATIO * (figures["peak_rss_bytes"] or 0)
    counted_twice = " (shared pages once[; {peak_rss_sum_bytes} if counted in each process])"
    return View(
        title="Memory",
        order=100,
        silent=figures["peak_rss_bytes"] is None,  # a program that writes for itself reads no RSS; for others the quality gives the reason
        headline="peak {peak_rss_bytes}" + (counted_twice if several else "") + ", median {median_rss_bytes}[, PSS at least {peak_pss_bytes}]"
        "[, hugetlb {peak_hugetlb_bytes} (not in RSS)][, huge pages {peak_anon_huge_bytes}]"
        + (", cgroup limit {limit_bytes}" if figures["limit_kind"] == "cgroup" else ""),
        figures=(
            Figure(name="peak_rss_bytes", label="peak RSS", kind="bytes", better="lower", help="Of all processes, shared pages once: the larger of readings and the kernel's high-water mark."),
            Figure(name="peak_reading_bytes", label="peak RSS of readings", kind="bytes", better="lower", help="Largest reading of the tree, shared pages once."),
            Figure(name="kernel_peak_rss_bytes", label="peak RSS, kernel", kind="bytes", better="lower", help="The kernel's high-water mark of the largest single process."),
            Figure(name="peak_rss_sum_bytes", label="peak RSS, summed", kind="bytes", better="lower", help="Shared pages count in each process: an upper bound."),
            Figure(name="median_rss_bytes", label="median RSS", kind="bytes", better="lower", help="Half of the time at or below it."),
            Figure(name="peak_pss_bytes", label="peak PSS", kind="bytes", better="lower", help="Shared pages divided among their users; readings are rare, so a lower bound."),
            Figure(name="peak_anon_huge_bytes", label="huge pages, peak", kind="bytes", show="nonzero", help="Anonymous memory in transparent huge pages."),
            Figure(name="peak_hugetlb_bytes", label="hugetlb, peak", kind="bytes", show="nonzero", help="Not part of RSS."),
            Figure(name="peak_swap_bytes", label="swap, peak", kind="bytes", better="lower", show="nonzero", help="Of one process."),
            Figure(name="peak_cgroup_bytes", label="cgroup, peak", kind="bytes", show="nonzero", help="What the kernel charged to the control group."),
            Figure(name="peak_at_s", label="time of the peak", kind="time_s"),
            Figure(name="limit_bytes", label="limit", kind="bytes", help="Of the control group, else the machine's memory."),
            Figure(name="limit_kind", label="kind of the limit", kind="text"),
            Figure(name="duration_s", label="duration", kind="s", better="lower", help="Of the recording."),
            Figure(name="processes", label="processes", kind="count"),
            Figure(name="readings", label="readings", kind="count"),
            Figure(name="mean_interval_s", label="interval of readings", kind="s"),
        ),
        charts=(
            Chart(name="over_time", title="Memory over time", kind="timeline", role="key", x_kind="time_s", y_kind="bytes", end="duration_s",
                  limit="limit_bytes" if near else "",
                  series=(Series(label="RSS", table="over_time", x="time_s", y="rss_bytes"),)),
            Chart(name="pss_over_time", title="Proportional share over time", kind="timeline", role="detail", x_kind="time_s", y_kind="bytes", end="duration_s",
                  series=(Series(label="PSS", table="pss_over_time", x="time_s", y="pss_bytes"),)),
        ),
        tables=(
            Table(name="by_process", title="Processes", sort="-peak_rss_bytes", least_rows=2, columns=(
                key("pid", "process", "process", beside=("name",)),
                measure("peak_rss_bytes", "peak RSS", "bytes", better="lower"), measure("threads", "threads", "count"),
                detail("begin_s", "begin", "time_s"), detail("end_s", "end", "time_s"),
            ), leads_to="processes"),
            Table(name="by_node", title="By NUMA node", least_rows=2, columns=(
                key("node", "node", "node"), measure("peak_bytes", "peak", "bytes"),
            ), leads_to="timeline"),
        ),
    )  # fmt: skip


DESCRIPTOR = AnalysisDescriptor(
    name="capacity",
    question="How much memory does the program hold over time, and which process holds it?",
    needs=("process_event",),
    run=capacity,
    view=view,
    provide="memlens record (collector timeline)",
)
