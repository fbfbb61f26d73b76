"""How busy threads and processes were, from the timeline's CPU times."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...capture.reader import Capture

BUSY_SHARE = 0.2
BUSY_NS = 20_000_000
"""A thread is busy when it used this share of what the busiest thread of its process used, and at least 20 ms."""


def busy_threads(capture: Capture, process: int) -> list[int]:
    """Threads that really ran, from the last reading of each thread's CPU time; [] when the run was too short to tell."""
    from ..capacity import metric_rows

    rows = metric_rows(capture.table("timeline"), "thread_cpu_ns")
    mine = rows["process"] == process
    used: dict[int, int] = {}
    for thread, value in zip(rows["thread"][mine].tolist(), rows["value"][mine].tolist(), strict=True):
        used[thread] = max(used.get(thread, 0), value)
    most = max(used.values(), default=0)
    return [thread for thread, value in used.items() if value >= max(BUSY_SHARE * most, BUSY_NS)]


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
        rows = metric_rows(table, metric)
        last: dict[int, int] = {}
        for process, value in zip(rows["process"].tolist(), rows["value"].tolist(), strict=True):
            last[process] = max(last.get(process, 0), value)
        totals.append(sum(last.values()) / 1e9)
    return totals[0], max(totals[1] - recording_s, 0.0)
