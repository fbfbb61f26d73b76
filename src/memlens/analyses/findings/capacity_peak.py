"""Finding: a short peak of memory far above what the program needs most of the time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...registry import FindingDescriptor

if TYPE_CHECKING:
    from ...capture.reader import Capture
    from ...results import Finding, Result

MIN_RATIO = 2.0
MIN_EXCESS_BYTES = 64 << 20
MAX_TIME_SHARE = 0.35
MIN_AFTER_SHARE = 0.1
"""The program must run on below the peak: memory that only grows to the end is no peak."""
EVIDENCE = """
WITH readings AS (
  SELECT process, time_ns // 100000000 AS slot, max(value) AS rss_bytes
  FROM timeline WHERE metric = 'rss_bytes' GROUP BY ALL)
SELECT (slot - (SELECT min(slot) FROM readings)) / 10.0 AS second, sum(rss_bytes) AS rss_bytes
FROM readings GROUP BY slot ORDER BY rss_bytes DESC LIMIT 10
""".strip()


def check(capture: Capture, results: dict[str, Result]) -> list[Finding]:
    import numpy as np

    from ...results import Finding

    capacity = results["capacity"]
    peak, steady = capacity.figures["peak_reading_bytes"] or 0, capacity.figures["steady_rss_bytes"] or 0
    if steady <= 0 or peak < MIN_RATIO * steady or peak - steady < MIN_EXCESS_BYTES:
        return []
    over_time = capacity.tables["over_time"]
    times = over_time.column("time_s").to_numpy()
    values = over_time.column("rss_bytes").to_numpy()
    durations = np.diff(np.append(times, capacity.figures["duration_s"]))
    high = float(durations[values > (peak + steady) / 2].sum() / max(durations.sum(), 1e-9))
    later_and_low = (times > capacity.figures["peak_at_s"]) & (values > 0) & (values <= (peak + steady) / 2)
    after = float(durations[later_and_low].sum() / max(durations.sum(), 1e-9))
    if high > MAX_TIME_SHARE or after < MIN_AFTER_SHARE:
        return []
    at = capacity.figures["peak_at_s"]
    where = ""
    if "first_touch" in results:
        lines = results["first_touch"].tables["by_line"].slice(0, 1).to_pylist()
        if lines and lines[0]["file"]:
            where = f" Most memory is first touched in {lines[0]['function']} ({lines[0]['file']}:{lines[0]['line']})."
    return [
        Finding(
            name=DESCRIPTOR.name,
            severity="medium",
            claim=(
                f"The peak of {peak / 2**20:.0f} MiB (at {at:.1f} s) is {peak / steady:.1f} times the {steady / 2**20:.0f} MiB "
                f"held most of the time, and lasts {high:.0%} of the run."
            ),
            evidence={"peak_bytes": peak, "steady_bytes": steady, "peak_at_s": at, "time_share": high, "sql": EVIDENCE},
            remedy=f"Process the data of that moment in pieces, or free the input before expanding it.{where}",
            quality=capacity.quality,
        )
    ]


DESCRIPTOR = FindingDescriptor(
    name="capacity_peak",
    question="Is the peak of memory far above the steady state?",
    analyses=("capacity",),
    evidence_sql=EVIDENCE,
    check=check,
    bad_workload="peak_capacity",
    good_workload="peak_capacity --streaming",
)
