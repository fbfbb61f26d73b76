"""Finding: one place allocates and frees short-lived objects all the time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...registry import FindingDescriptor

if TYPE_CHECKING:
    from ...capture.reader import Capture
    from ...results import Finding, Result

MIN_ALLOCATIONS = 50_000
MIN_RECORDED = 50
"""Objects that were really recorded: the number of allocations is then known to about 15 % (one standard error)."""
MAX_ERROR = 0.2
"""Standard error of the number of allocations."""
MIN_RATE = 2_000_000
"""Allocations for each second of CPU time of the program: malloc and free take 20 to 40 ns, so 4 to 8 % of the time. Start-up code of node
(OpenSSL) has 1.5 million, which nobody would change."""
PAIR_S = 40e-9
MIN_COST_SHARE = 0.04
"""Of the run's duration, at PAIR_S for a malloc and its free: a program that mostly waits has no such problem."""
MIN_FAULTED = 0.25
LARGE_BYTES = 64 << 10
MIN_BYTES_RATE = 1 << 30
"""Or large buffers of so many bytes a second of CPU time, when MIN_FAULTED of them was placed anew by page faults or cleared by calloc."""
MAX_LIFETIME_NS = 1e6
EVIDENCE = """
SELECT stack, count(*) AS recorded, sum(count) AS objects, sum(weight_bytes) AS bytes,
       avg(died_ns - born_ns) AS mean_lifetime_ns
FROM objects WHERE kind = 'heap' AND died_ns IS NOT NULL GROUP BY stack ORDER BY objects DESC LIMIT 10
""".strip()


def check(capture: Capture, results: dict[str, Result]) -> list[Finding]:
    from ...results import Finding
    from ._activity import cpu_seconds
    from ._where import code, counted, place, share_of
    from ._where import region as region_of

    result = results["objects"]
    first, last = capture.time_range_ns
    run_s = (last - first) / 1e9
    # A capture without a recorder has no CPU times: its duration is what there is.
    cpu_s = max(sum(cpu_seconds(capture)) or run_s, 1e-3)
    found = []
    for row in result.tables["by_site"].to_pylist():
        life = row["mean_lifetime_ns"]
        if (
            row["kind"] != "heap"
            or life is None
            or life > MAX_LIFETIME_NS
            or row["releases"] < 0.9 * row["allocations"]
        ):
            continue
        # Of an estimate the lower end counts: a few samples make no finding.
        allocations = row["allocations"] - 2 * row["allocations_error"]
        allocated = row["allocated_bytes"] - 2 * row["allocated_bytes_error"]
        rate, bytes_rate = allocations / cpu_s, allocated / cpu_s
        error = row["allocations_error"] or 0.0
        if row["recorded"] < MIN_RECORDED or error > MAX_ERROR * row["allocations"]:
            continue
        many = allocations >= MIN_ALLOCATIONS and rate >= MIN_RATE and allocations * PAIR_S >= MIN_COST_SHARE * run_s
        mean_bytes = row["allocated_bytes"] / max(row["allocations"], 1)
        faulted = (row["touched_bytes"] or 0) / max(row["allocated_bytes"], 1)
        cleared = row["cleared_bytes"] / max(row["allocated_bytes"], 1)
        large = mean_bytes >= LARGE_BYTES and bytes_rate >= MIN_BYTES_RATE and max(faulted, cleared) >= MIN_FAULTED
        if not many and not large:
            continue
        where = place(row)
        inside = _region(results, row["allocations"])
        region = f", in region {inside}" if inside else ""
        found.append(
            Finding(
                name=DESCRIPTOR.name,
                severity="medium" if rate >= 3 * MIN_RATE or large else "low",
                claim=(
                    f"{where} makes {counted(row['allocations'], error)} objects of "
                    f"{row['allocated_bytes'] / max(row['allocations'], 1):,.0f} bytes that live {life / 1e3:.1f} µs on "
                    f"average: {counted(rate, error)} allocations for each second of CPU time{region}"
                    + (
                        ""
                        if not large
                        else f", and page faults place {faulted:.0%} of their bytes anew"
                        if faulted >= cleared
                        else f", and calloc clears {cleared:.0%} of their bytes"
                    )
                    + "."
                ),
                evidence={
                    "where": where, "allocations": row["allocations"], "bytes": row["allocated_bytes"],
                    "mean_lifetime_ns": life, "allocations_per_cpu_s": rate, "recorded": row["recorded"], "sql": EVIDENCE,
                },
                remedy="Allocate once outside the loop and reuse it (a member, an arena, a pool, std::vector::clear and reserve).",
                quality=result.quality if large else result.quality.without("faults.sampled"),
                references=(code(row), *((region_of(inside),) if inside else ())),
                view="objects.by_site",
                affected_share=share_of(row["allocated_bytes"], result.figures["allocated_bytes"]),
                affected_of="bytes",
                group="returned memory" if large and faulted >= MIN_FAULTED else DESCRIPTOR.name,
            )
        )  # fmt: skip
    return found[:5]


def _region(results: dict[str, Result], allocations: float) -> str:
    """The innermost region with most of the allocations, if the program names regions."""
    if "regions" not in results:
        return ""
    regions = [r for r in results["regions"].tables["by_name"].to_pylist() if r["kind"] == "region"]
    inside = [r for r in regions if r["allocations"] >= 0.5 * allocations]
    if not inside:
        return ""
    tightest = min(inside, key=lambda r: r["seconds"])
    return str(tightest["name"])


DESCRIPTOR = FindingDescriptor(
    name="allocation_churn",
    question="Does one place allocate and free short-lived objects all the time?",
    analyses=("objects",),
    evidence_sql=EVIDENCE,
    check=check,
    bad_workload="churn",
    good_workload="churn --reuse",
)
