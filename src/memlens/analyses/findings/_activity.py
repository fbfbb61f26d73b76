"""How busy threads and processes were, from the timeline's CPU times."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...arrays import Bools, Columns
    from ...capture.reader import Capture

BUSY_SHARE = 0.2
BUSY_NS = 20_000_000
"""A thread is busy when it used this share of what the busiest thread of its process used, and at least 20 ms."""


def busy_threads(capture: Capture, process: int) -> list[int]:
    """Threads that really ran, from the last reading of each thread's CPU time; [] when the run was too short to tell."""
    from ..capacity import metric_rows

    rows = metric_rows(capture.table("timeline"), "thread_cpu_ns")
    mine = rows["process"] == process
    used = _spent(capture, rows, "thread", mine)
    most = max(used.values(), default=0)
    return [thread for thread, value in used.items() if value >= max(BUSY_SHARE * most, BUSY_NS)]


def _spent(capture: Capture, rows: Columns, by: str, mine: Bools | slice = slice(None)) -> dict[int, int]:
    """The last reading of a counter of CPU time, by thread or process; of a selected time what it grew by."""
    last: dict[int, int] = {}
    first: dict[int, int] = {}
    begin = capture.time_range_ns[0] if capture.selection.time_s is not None else -1
    columns = (rows[name][mine].tolist() for name in (by, "value", "time_ns"))
    for number, value, time_ns in zip(*columns, strict=True):
        last[number] = max(last.get(number, 0), value)
        if time_ns <= begin:  # what it was before the range
            first[number] = max(first.get(number, 0), value)
    return {number: value - first.get(number, 0) for number, value in last.items()}


def cpu_seconds(capture: Capture) -> tuple[float, float]:
    """User and system CPU time of the whole tree: the kernel's total, else the sum of last readings.

    Without the system time that recording faults took (estimated); user time includes our library in the program.
    """
    from ..capacity import metric_rows
    from ..faults import recording_seconds

    recording_s = recording_seconds(capture)
    rusage = capture.meta.get("rusage") or {}
    if rusage.get("user_s") is not None and rusage.get("system_s") is not None:
        return float(rusage["user_s"]), max(float(rusage["system_s"]) - recording_s, 0.0)
    totals = []
    table = capture.table("timeline")
    for metric in ("user_cpu_ns", "system_cpu_ns"):
        totals.append(sum(_spent(capture, metric_rows(table, metric), "process").values()) / 1e9)
    return totals[0], max(totals[1] - recording_s, 0.0)
