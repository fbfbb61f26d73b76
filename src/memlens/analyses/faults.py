"""Analysis `faults`: page faults by class, function and over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..capture.store.settings import settings_of
from ..registry import AnalysisDescriptor
from ..view import Chart, Figure, Series, Table, View, key, measure

if TYPE_CHECKING:
    from ..arrays import Columns
    from ..capture.reader import Capture
    from ..results import Result

ASSUMED_RECORDING_NS = {False: 1100.0, True: 600.0}
"""Of a fault, with --single or not, where the recording did not measure it (docs/decisions/0001)."""


def faults(capture: Capture) -> Result:
    """What the kernel did on the program's page faults.

    ``own_faults`` are those on memory of memlens's own library, which are left out everywhere else.
    ``kernel_faults`` is the kernel's own count for the waited-for tree (rusage), the oracle of
    ``faults`` + ``own_faults``: the difference are faults inside system calls that this recording could not see
    (no privilege) and pages that the kernel populated without an event.
    ``user_s`` and ``system_s`` are CPU times of the waited-for tree. Our events run inside the program's faults, as its
    system time: ``recording_s``, faults by the cost of one as measured at the end of the recording, is an estimate of that and is
    subtracted from ``system_s``. ``user_s`` includes our library in the program, which cannot be separated.
    """
    import numpy as np
    import pyarrow as pa

    from ..capture.model.replay import FAULT_CLASSES, TIME_BINS
    from ..results import Quality, Result
    from ._fault_sampling import fault_groups, weighted
    from ._fault_sampling import notes as sampling_notes

    groups = fault_groups(capture)
    weights, rows = (groups.column(name).to_numpy() for name in ("weight", "rows"))
    ones = np.ones(groups.num_rows)
    new_bytes = groups.column("new_bytes").to_numpy().astype(float)
    by_class = weighted(groups, ["class"], {"faults": ones, "new_bytes": new_bytes})
    row_of = {row["class"]: row for row in by_class.to_pylist()}
    class_rows = [row_of[name] for name in FAULT_CLASSES if name in row_of]
    counts = {name: row["faults"] for name, row in row_of.items()}
    total = round(float((rows * weights).sum()))

    by_function = weighted(groups, ["function", "module", "class"], {"faults": ones})

    begin = capture.begin_ns
    first, last = capture.time_range_ns
    duration_s = max((last - first) / 1e9, 1e-9)
    if capture.selection:
        edges = (first - begin) / 1e9 + np.linspace(0, duration_s, TIME_BINS + 1)
        times = (groups.column("time_ns").to_numpy().astype(np.int64) - begin) / 1e9
        codes = groups.column("class").cast("string").to_numpy(zero_copy_only=False)
        in_time = {
            name: np.histogram(times[codes == name], bins=edges, weights=weights[codes == name])[0]
            for name in FAULT_CLASSES
        }
    else:
        edges, in_time = capture.replay.bin_edges_s, capture.replay.faults_in_time()
    over_time: Columns = {"time_s": edges[:-1]}
    for row in class_rows:
        over_time[str(row["class"])] = in_time[row["class"]].round().astype(np.int64)
    rates = np.sum(list(in_time.values()), axis=0) / (duration_s / TIME_BINS)

    rusage = capture.meta.get("rusage", {})
    kernel = rusage.get("minor_faults", 0) + rusage.get("major_faults", 0) if rusage else None
    figures = {
        "faults": total,
        "faults_recorded": int(rows.sum()),
        "own_faults": None if capture.selection else capture.replay.own_faults,
        "kernel_faults": kernel,
        "faults_per_s": total / duration_s,
        "peak_faults_per_s": float(rates.max()) if groups.num_rows else 0.0,
        "major_faults": counts.get("major", 0),
        **_cpu_times(capture),
        "placements": sum(counts.get(name, 0) for name in ("first", "again", "placed")),
    }
    notes = list(sampling_notes(capture))
    seen = total + (figures["own_faults"] or 0)  # the kernel's count has those of our library too
    if kernel and kernel - seen > max(0.01 * kernel, 50):
        cause = (
            "the kernel populated pages without an event (MAP_POPULATE, mlock), or processes ended before they could be watched"
            if capture.meta.get("session", {}).get("include_kernel")
            else "they happened inside system calls, which this recording was not allowed to see"
        )
        if not capture.quality.exact:
            cause = "records are missing from the capture (see above)"
        notes.append(f"The kernel counted {kernel:,} faults, {seen:,} were seen as events: {cause}.")
    inferred = int(rows[(weights == 1) & groups.column("inferred").to_numpy()].sum())
    if inferred:
        notes.append(f"The class of {inferred} faults is inferred (what was mapped before was not recorded).")
    return Result(
        "faults",
        figures,
        {
            "by_class": pa.Table.from_pylist(class_rows, schema=by_class.schema),
            "by_function": by_function,
            "over_time": pa.table(over_time),
        },
        capture.quality.joined(Quality(exact=not notes, notes=tuple(notes))),
    )


def recording_seconds(capture: Capture) -> float:
    """System time of the program that our events took, estimated; 0 where faults were not recorded."""
    settings = settings_of(capture.meta, "fault")
    if settings is None:
        return 0.0
    if capture.selection:  # at the cost of a fault in the whole run
        return recording_seconds(capture.whole) * _recorded_share(capture)
    cost_ns = capture.meta.get("fault_recording_ns")
    if cost_ns is None:
        cost_ns = ASSUMED_RECORDING_NS[bool(settings.get("single"))]
    levels = capture.table("fault_levels")
    if levels.num_rows:  # as the recorder reckoned it, level by level
        return float(sum(levels.column("cost_ns").to_pylist())) / 1e9
    return float(cost_ns) * int(capture.replay.fault_count + capture.replay.own_faults) / 1e9


def _recorded_share(capture: Capture) -> float:
    """Of the records of faults, those that are selected."""
    whole = capture.replay.fault_count + capture.replay.own_faults
    return float(capture.table("faults").num_rows) / max(int(whole), 1)


def _cpu_times(capture: Capture) -> dict[str, float | None]:
    if capture.selection:
        recording = _cpu_times(capture.whole)["recording_s"]
        return {"user_s": None, "system_s": None, "recording_s": (recording or 0.0) * _recorded_share(capture)}
    rusage = capture.meta.get("rusage") or {}
    user_s, system_s = rusage.get("user_s"), rusage.get("system_s")
    recording_s = recording_seconds(capture)
    return {
        "user_s": user_s,
        "system_s": None if system_s is None else max(system_s - recording_s, 0.0),
        "recording_s": recording_s if system_s is None else min(recording_s, system_s),
    }


def view(result: Result) -> View:
    from ..capture.model.replay import TIME_BINS

    classes = [name for name in result.tables["over_time"].column_names if name != "time_s"]
    return View(
        title="Faults",
        order=700,
        headline="{faults} page faults[, {major_faults} of them major][ ({own_faults} of memlens's own library left out)]",
        figures=(
            Figure(name="faults", label="page faults", kind="count", better="lower",
                   help="Faults of the program, without those on memory of memlens's own library."),
            Figure(name="faults_recorded", label="recorded faults", kind="count", help="Rows of the table `faults`; each stands for `weight` faults."),
            Figure(name="own_faults", label="faults of memlens's library", kind="count", help="Left out everywhere else."),
            Figure(name="kernel_faults", label="faults, kernel's count", kind="count",
                   help="rusage of the program and its waited-for children: the oracle of faults and own faults together."),
            Figure(name="faults_per_s", label="faults a second", kind="per_s", better="lower", help="Mean over the recording."),
            Figure(name="peak_faults_per_s", label="fault rate, peak", kind="per_s", better="lower",
                   help=f"In the busiest of {TIME_BINS} equal parts of the recording."),
            Figure(name="major_faults", label="major faults", kind="count", better="lower", help="Waited for the disk."),
            Figure(name="placements", label="placing faults", kind="count", better="lower", help="Faults that gave the process a page."),
            Figure(name="user_s", label="CPU time, user", kind="s", better="lower", help="Of the waited-for tree; memlens's library in the program included."),
            Figure(name="system_s", label="CPU time, system", kind="s", better="lower", help="Without the estimated cost of recording faults."),
            Figure(name="recording_s", label="cost of recording faults", kind="s", help="Estimated, taken off the system time."),
        ),
        charts=(
            Chart(name="over_time", title="Page faults by class over time", kind="timeline", stacked=True, x_kind="time_s", y_kind="per_s",
                  y_label="/s", drawing="fault_classes",
                  series=tuple(Series(label=name, table="over_time", x="time_s", y=name) for name in classes)),
        ),
        tables=(
            Table(name="by_class", title="By class", sort="-faults", columns=(
                key("class", "class"),
                measure("faults", "faults", "count", error="faults_error", better="lower"),
                measure("new_bytes", "new memory", "bytes", error="new_bytes_error"),
            ), leads_to="faults"),
            Table(name="by_function", title="By function and class", sort="-faults", role="detail", columns=(
                key("function", "function", "code"), key("class", "class"),
                measure("faults", "faults", "count", error="faults_error", better="lower"),
            ), leads_to="faults"),
        ),
        remarks=("first: a page that was not there before; again: given back and touched anew; upgrade: a readable page becomes writable; copy: copy on "
                 "write; file: content of a file or of shared memory; placed: by the kernel inside a system call.",),
    )  # fmt: skip


DESCRIPTOR = AnalysisDescriptor(
    name="faults",
    question="How many page faults of each class does the program take, where and when?",
    needs=("fault",),
    run=faults,
    view=view,
    provide="memlens record (collector faults; memlens doctor says whether it works here)",
)
