"""Finding: a region is far from the peak of the level of memory that it uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...registry import FindingDescriptor

if TYPE_CHECKING:
    from ...capture.reader import Capture
    from ...results import Finding, Result
    from .._region_rows import BandwidthRow

MOST_SHARE = 0.05
"""Of the peak. Plain scalar code that waits for nothing is above it at every level."""
MIN_SHARE = 0.1
"""Of the bytes of the program."""
MIN_BYTES = 10_000_000
EVIDENCE = """
SELECT region, sum(counted + untouched) AS executions, sum(counted_ns + untouched_ns) AS thread_ns, min(least_ns) AS least_ns
FROM region_times WHERE region IS NOT NULL AND epoch = 0 GROUP BY ALL ORDER BY thread_ns DESC LIMIT 20
""".strip()


def best_share(row: BandwidthRow) -> float:
    """Of the peak that the fastest execution reached, where executions can be told apart: a busy machine slows down the others."""
    peak = _peak(row)
    share = (row["corrected_bytes_per_second"] or row["bytes_per_second"] or 0.0) / peak
    if row["threads"] == 1 and row["executions"] > 1 and row["least_ns"]:
        best = row["bytes"] / row["executions"] / row["least_ns"] * 1e9
        share = max(share, best / peak)
    return share


def _peak(row: BandwidthRow) -> float:
    """Of the level that the region used; else of the farthest that its data can have come from: closer ones are faster."""
    peak = row["peak_bytes_per_second"] or row["farthest_peak_bytes_per_second"]
    assert peak is not None  # rows without a level are not looked at
    return peak


def check(capture: Capture, results: dict[str, Result]) -> list[Finding]:
    from ...results import Finding
    from ...units import human_rate
    from ._where import region, share_of

    result = results["bandwidth"]
    by_arithmetic = {row["region"] for row in result.tables["roofline"].to_pylist() if row["limit"] == "arithmetic"}
    found = []
    told: list[str] = []
    rows = [row for row in result.tables["by_region"].to_pylist()[1:] if row["level"] or row["farthest_level"]]
    for row in sorted(rows, key=lambda row: -row["depth"]):
        if row["share"] < MIN_SHARE or row["bytes"] < MIN_BYTES or row["region"] in by_arithmetic:
            continue
        if any(name.startswith(f"{row['region']} / ") for name in told):
            continue
        share = best_share(row)
        if share > MOST_SHARE:
            continue
        told.append(row["region"])
        peak = _peak(row)
        rate, level, why = (
            share * peak,
            row["level"] or row["farthest_level"],
            row["level_evidence"] or row["farthest_evidence"],
        )
        closer = "" if row["level"] else ", the slowest level that its data can have come from"
        found.append(
            Finding(
                name=DESCRIPTOR.name,
                severity="medium" if row["share"] >= 0.3 else "low",
                claim=(
                    f"Region {row['region']} moves {human_rate(rate)} at best, {share:.1%} of what "
                    f"{_threads(row)} here can {_verb(row['peak_kind'])} {_where(level)}{closer} ({human_rate(peak)}; {why})."
                ),
                evidence={"region": row["region"], "level": level, "level_evidence": why,
                          "bytes_per_second": rate, "peak_bytes_per_second": peak, "peak_kind": row["peak_kind"],
                          "best_share": share, "share": row["share"], "sql": EVIDENCE},
                remedy=(
                    "Look for loads whose address comes from the load before (lists, trees, tables of pointers) and for data accessed in irregular order: "
                    "arrays in the order of use, indices known early, or several independent walks at a time keep memory busy. If the region "
                    "computes for long with few bytes, this is expected; memlens cc --memlens-mix shows it."
                ),
                quality=result.quality,
                references=(region(row["region"]),),
                view="bandwidth.by_region",
                affected_share=share_of(row["share"], 1),
                affected_of="bytes",
                group=DESCRIPTOR.name,
            )
        )  # fmt: skip
    return found[:5]


def _threads(row: dict[str, object]) -> str:
    return "one core" if row["working_threads"] == 1 else f"{row['working_threads']} threads"


def _verb(kind: str) -> str:
    return {"read": "read from", "write": "write to"}.get(kind, "read from and write to")


def _where(level: str) -> str:
    return "memory" if level == "DRAM" else f"the {level} cache"


DESCRIPTOR = FindingDescriptor(
    name="far_from_peak",
    question="Is a region far from the peak of the level of memory that it uses?",
    analyses=("bandwidth",),
    evidence_sql=EVIDENCE,
    check=check,
    bad_workload="linked_sum",
    good_workload="linked_sum --in-order",
)
