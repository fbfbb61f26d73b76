"""Finding: the program spends much of its time in page faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...registry import FindingDescriptor

if TYPE_CHECKING:
    from ...capture.reader import Capture
    from ...results import Finding, Result

MIN_FAULTS = 20_000
MIN_FAULTS_PER_CPU_S = 100_000
"""A fault costs 0.5 to 1 µs: fewer are not worth a change."""
MIN_GROWTH_PER_CPU_S = 200_000
"""Of a program that only grows: its one remedy, huge pages, saves a part of that."""
MIN_SYSTEM_SHARE = 0.25
"""Of the CPU time, without what recording the faults took."""
MIN_DURATION_SHARE = 0.15
"""System time against the run's duration: a program that mostly waits does not wait for its faults."""
REUSE_RATIO = 3.0
EVIDENCE = """
SELECT function, file, line, class, round(sum(weight)) AS faults, sum(weight) / count(DISTINCT address >> 12) AS times_each_recorded_page
FROM faults GROUP BY ALL ORDER BY faults DESC LIMIT 10
""".strip()


def check(capture: Capture, results: dict[str, Result]) -> list[Finding]:
    from ...results import Finding
    from ...units import human_bytes
    from ._activity import cpu_seconds
    from ._program import huge_pages_remedy, keep_pages_remedy
    from ._where import code, place, share_of
    from ._where import process as process_of

    faults = results["faults"]
    recorded = faults.figures["placements"]
    lost_factor = _lost_factor(capture, faults)
    placements = round(recorded * lost_factor)
    user_s, system_s = cpu_seconds(capture)
    cpu_s = user_s + system_s
    if placements < MIN_FAULTS or cpu_s <= 0:
        return []
    recording_s = faults.figures["recording_s"] or 0.0
    rate = placements / cpu_s
    share = system_s / cpu_s
    first, last = capture.time_range_ns
    duration_s = max((last - first) / 1e9, 1e-9)
    if rate < MIN_FAULTS_PER_CPU_S or share < MIN_SYSTEM_SHARE or system_s < MIN_DURATION_SHARE * duration_s:
        return []
    touches = results["first_touch"]
    placed = round(touches.figures["first_touched_bytes"] * lost_factor)
    peak = max(
        results["capacity"].figures["peak_rss_bytes"] or 0, results["capacity"].figures["kernel_peak_rss_bytes"] or 0, 1
    )
    ratio = placed / peak
    if ratio < REUSE_RATIO and rate < MIN_GROWTH_PER_CPU_S:
        return []
    process = _most_faulting(capture)
    lines = sorted(touches.tables["by_line"].to_pylist(), key=lambda row: -row["faults"])
    where = place(lines[0])
    part = lines[0]["faults"] / max(recorded, 1)
    counted = f"{placements:,} page faults"
    if placements != recorded:
        counted = f"About {placements:,} page faults by the kernel's count ({recorded:,} were recorded)"
    if ratio >= REUSE_RATIO:
        what = f"it places {human_bytes(placed)} in total but never holds more than {human_bytes(peak)}: memory is returned to the kernel and touched again"
        remedy = f"Keep and reuse the memory that {where} touches. {keep_pages_remedy(capture, process)}"
    else:
        what = f"it places {human_bytes(placed)} one small page at a time"
        remedy = f"Use huge pages for what {where} touches: {huge_pages_remedy(capture, process)}."
    if ratio >= REUSE_RATIO and touches.figures["huge_bytes"] < placed / 2:
        remedy += f" Or make each fault cover 512 pages: {huge_pages_remedy(capture, process)}."
    return [
        Finding(
            name=DESCRIPTOR.name,
            severity="high" if share > 0.4 and system_s > 0.5 else "medium",
            claim=(
                f"{counted}, {rate:,.0f} for each second of CPU time, while {share:.0%} of the CPU time is "
                f"the kernel's (without about {recording_s:.2g} s for recording them): {what}. {part:.0%} of the faults come from {where}."
            ),
            evidence={
                "placements": placements,
                "faults_per_cpu_s": rate,
                "system_share": share,
                "recording_s": recording_s,
                "placed_bytes": placed,
                "peak_bytes": peak,
                "where": where,
                "where_faults": lines[0]["faults"],
                "sql": EVIDENCE,
            },
            remedy=remedy,
            quality=faults.quality,
            references=(code(lines[0]), process_of(process)),
            view="first_touch.by_line",
            affected_share=share_of(share, 1),
            affected_of="CPU time",
            group="returned memory" if ratio >= REUSE_RATIO else DESCRIPTOR.name,
        )
    ]


def _lost_factor(capture: Capture, faults: Result) -> float:
    """Faults by the kernel's count for each one seen, where records were lost; else 1."""
    kernel = faults.figures["kernel_faults"]
    seen = faults.figures["faults"] + (faults.figures["own_faults"] or 0)
    if not capture.quality.dropped_records or not kernel or not seen or capture.selection:
        return 1.0
    return max(float(kernel) / float(seen), 1.0)


def _most_faulting(capture: Capture) -> int:
    """The process with most faults."""
    from .._fault_sampling import fault_groups, weighted

    return int(weighted(fault_groups(capture), ["process"], {"faults": 1.0}).column("process")[0].as_py())


DESCRIPTOR = FindingDescriptor(
    name="fault_storm",
    question="Is much of the time spent in page faults?",
    analyses=("faults", "first_touch", "capacity"),
    evidence_sql=EVIDENCE,
    check=check,
    bad_workload="fault_storm",
    good_workload="fault_storm --reuse",
)
