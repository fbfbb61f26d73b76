"""Finding: the program spends much of its time in page faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...registry import FindingDescriptor

if TYPE_CHECKING:
    from ...capture.reader import Capture
    from ...results import Finding, Result

MIN_FAULTS = 20_000
MIN_FAULTS_PER_CPU_S = 20_000
MIN_SYSTEM_SHARE = 0.2
REUSE_RATIO = 3.0
EVIDENCE = """
SELECT function, file, line, class, count(*) AS faults, count(*) * 1.0 / count(DISTINCT address >> 12) AS times_each_page
FROM faults GROUP BY ALL ORDER BY faults DESC LIMIT 10
""".strip()


def check(capture: Capture, results: dict[str, Result]) -> list[Finding]:
    from ...results import Finding
    from ._activity import cpu_seconds

    faults = results["faults"]
    placements = faults.figures["placements"]
    user_s, system_s = cpu_seconds(capture)
    cpu_s = user_s + system_s
    if placements < MIN_FAULTS or cpu_s <= 0:
        return []
    rate = placements / cpu_s
    share = system_s / cpu_s
    if rate < MIN_FAULTS_PER_CPU_S or share < MIN_SYSTEM_SHARE:
        return []
    touches = results["first_touch"]
    placed = touches.figures["first_touched_bytes"]
    peak = max(
        results["capacity"].figures["peak_rss_bytes"] or 0, results["capacity"].figures["kernel_peak_rss_bytes"] or 0, 1
    )
    ratio = placed / peak
    line = touches.tables["by_line"].slice(0, 1).to_pylist()[0]
    where = f"{line['function'] or 'unnamed code'}" + (f" ({line['file']}:{line['line']})" if line["file"] else "")
    machine = capture.meta.get("machine", {})
    if ratio >= REUSE_RATIO:
        what = f"it places {placed / 2**30:.1f} GiB in all but never holds more than {peak / 2**20:.0f} MiB: memory is given back and touched again"
        remedy = (
            f"Keep and reuse the buffer that {where} touches. If malloc gives it back: "
            "MALLOC_TRIM_THRESHOLD_=-1 MALLOC_MMAP_THRESHOLD_=4294967296 (glibc), or an allocator that keeps pages."
        )
    else:
        what = f"it places {placed / 2**20:.0f} MiB one small page at a time"
        remedy = f"Use huge pages for what {where} touches: "
    if ratio < REUSE_RATIO or touches.figures["huge_bytes"] < placed / 2:
        thp = machine.get("transparent_hugepages")
        advice = (
            "madvise(MADV_HUGEPAGE) on a 2 MiB-aligned buffer, or GLIBC_TUNABLES=glibc.malloc.hugetlb=1"
            if thp == "madvise"
            else "sudo sh -c 'echo madvise > /sys/kernel/mm/transparent_hugepage/enabled', then madvise(MADV_HUGEPAGE)"
            if thp == "never"
            else "align the buffer to 2 MiB so that the kernel can use them"
        )
        remedy += advice + "." if ratio < REUSE_RATIO else f" Or make each fault cover 512 pages: {advice}."
    return [
        Finding(
            name=DESCRIPTOR.name,
            severity="high" if share > 0.4 and system_s > 0.5 else "medium",
            claim=(
                f"{placements:,} page faults, {rate:,.0f} for each second of CPU time, while {share:.0%} of the CPU time is "
                f"the kernel's: {what}. Most come from {where}."
            ),
            evidence={
                "placements": placements,
                "faults_per_cpu_s": rate,
                "system_share": share,
                "placed_bytes": placed,
                "peak_bytes": peak,
                "where": where,
                "sql": EVIDENCE,
            },
            remedy=remedy,
            quality=faults.quality,
        )
    ]


DESCRIPTOR = FindingDescriptor(
    name="fault_storm",
    question="Is much of the time spent in page faults?",
    analyses=("faults", "first_touch", "capacity"),
    evidence_sql=EVIDENCE,
    check=check,
    bad_workload="fault_storm",
    good_workload="fault_storm --reuse",
)
