"""Finding: a short peak of memory far above what the program needs in the median."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...registry import FindingDescriptor

if TYPE_CHECKING:
    from ...arrays import Floats, Ints
    from ...capture.reader import Capture
    from ...results import Finding, Reference, Result

MIN_RATIO = 2.0
MIN_EXCESS_BYTES = 64 << 20
MAX_TIME_SHARE = 0.35
MIN_READINGS = 5
MIN_AFTER_SHARE = 0.1
"""The program must run on below the peak: memory that only grows to the end is no peak."""
EVIDENCE = """
SELECT process, (time_ns - (SELECT min(time_ns) FROM timeline)) // 100000000 / 10.0 AS second, max(value) AS rss_bytes
FROM timeline WHERE metric = 'rss_bytes' GROUP BY ALL ORDER BY rss_bytes DESC LIMIT 10
""".strip()


def check(capture: Capture, results: dict[str, Result]) -> list[Finding]:
    import numpy as np

    from ...results import Finding
    from ...units import human_bytes
    from ..capacity import weighted_median
    from ._where import place, share_of

    capacity = results["capacity"]
    what, times, values = _curve(capture, capacity)
    if len(values) < MIN_READINGS:
        return []
    durations = np.diff(np.append(times, max(capacity.figures["duration_s"], times[-1])))
    peak, steady = float(values.max()), weighted_median(values, durations)
    if steady <= 0 or peak < MIN_RATIO * steady or peak - steady < MIN_EXCESS_BYTES:
        return []
    at = float(times[int(values.argmax())])
    high = float(durations[values > (peak + steady) / 2].sum() / max(durations.sum(), 1e-9))
    later_and_low = (times > at) & (values > 0) & (values <= (peak + steady) / 2)
    after = float(durations[later_and_low].sum() / max(durations.sum(), 1e-9))
    if high > MAX_TIME_SHARE or after < MIN_AFTER_SHARE:
        return []
    where, first = "", None
    if "first_touch" in results:
        lines = results["first_touch"].tables["by_line"].slice(0, 1).to_pylist()
        if lines and lines[0]["file"]:
            first = lines[0]
            where = f" Most memory is first touched in {place(lines[0])}."
    return [
        Finding(
            name=DESCRIPTOR.name,
            severity="medium",
            claim=(
                f"The peak of {human_bytes(peak)} {what}(at {at:.1f} s) is {peak / steady:.1f} times the median of "
                f"{human_bytes(steady)}, and lasts {high:.0%} of the run."
            ),
            evidence={
                "peak_bytes": int(peak),
                "steady_bytes": int(steady),
                "peak_at_s": at,
                "time_share": high,
                "sql": EVIDENCE,
            },
            remedy=f"Process the data of that moment in pieces, or free the input before expanding it.{where}",
            quality=capacity.quality,
            references=_whose(capacity, first),
            time_s=(
                float(times[values > (peak + steady) / 2].min()),
                float((times + durations)[values > (peak + steady) / 2].max()),
            ),
            view="capacity.over_time",
            affected_share=share_of(peak - steady, peak),
            affected_of="peak memory",
            group=DESCRIPTOR.name,
        )
    ]


def _whose(capacity: Result, first: dict[str, object] | None) -> tuple[Reference, ...]:
    """The process with most memory, and the line that touched most of it."""
    from ._where import code, process

    largest = capacity.tables["by_process"].slice(0, 1).to_pylist()
    return (*(process(row["process"]) for row in largest), *((code(first),) if first else ()))


def _curve(capture: Capture, capacity: Result) -> tuple[str, Floats, Ints]:
    """(whose, seconds, bytes): of several processes RSS cannot be added up, for they share pages. Their PSS can; where it was
    read too rarely, the process with the largest RSS stands for them."""
    import numpy as np

    from ..capacity import metric_rows

    if capacity.figures["processes"] <= 1:
        table = capacity.tables["over_time"]
        return "", table.column("time_s").to_numpy(), table.column("rss_bytes").to_numpy()
    pss = capacity.tables["pss_over_time"]
    if pss.num_rows >= MIN_READINGS:
        return "(PSS) ", pss.column("time_s").to_numpy(), pss.column("pss_bytes").to_numpy()
    rows = metric_rows(capture.table("timeline"), "rss_bytes")
    if len(rows["value"]) == 0:
        return "", np.array([]), np.array([])
    process = rows["process"][int(rows["value"].argmax())]
    mine = rows["process"] == process
    order = np.argsort(rows["time_ns"][mine], kind="stable")
    times = (rows["time_ns"][mine].astype(np.int64) - capture.begin_ns)[order] / 1e9
    return f"of process {process} ", times, rows["value"][mine][order]


DESCRIPTOR = FindingDescriptor(
    name="capacity_peak",
    question="Is the peak of memory far above the steady state?",
    analyses=("capacity",),
    evidence_sql=EVIDENCE,
    check=check,
    bad_workload="peak_capacity",
    good_workload="peak_capacity --streaming",
)
