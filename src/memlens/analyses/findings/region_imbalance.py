"""Finding: threads share the work of a region unevenly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...registry import FindingDescriptor

if TYPE_CHECKING:
    from ...capture.reader import Capture
    from ...results import Finding, Result

MIN_IMBALANCE = 0.3
"""Busiest thread's bytes by the mean of all, less one."""
MIN_SHARE = 0.1
"""Of the bytes of the program."""
MIN_BYTES = 10_000_000
EVIDENCE = """
SELECT region, thread, sum(read_bytes + written_bytes) AS bytes
FROM site_counts WHERE region IS NOT NULL GROUP BY ALL ORDER BY region, bytes DESC LIMIT 20
""".strip()


def check(capture: Capture, results: dict[str, Result]) -> list[Finding]:
    from ...results import Finding
    from ...units import human_moved
    from ._where import region, share_of, thread

    result = results["bandwidth"]
    found = []
    shares = result.tables["by_region_and_thread"].to_pylist()
    told: list[str] = []
    rows = [row for row in result.tables["by_region"].to_pylist()[1:] if not row["exclusive"]]
    # Inner regions first: an outer one is uneven only because of them.
    for row in sorted(rows, key=lambda row: -row["depth"]):
        uneven = row["byte_imbalance"]
        if uneven is None or uneven < MIN_IMBALANCE or row["share"] < MIN_SHARE or row["bytes"] < MIN_BYTES:
            continue
        if any(name.startswith(f"{row['region']} / ") for name in told):
            continue
        told.append(row["region"])
        mine = [share for share in shares if share["region"] == row["region"] and share["thread"]]
        busiest = max(mine, key=lambda share: share["bytes"])
        mean = busiest["bytes"] / (1 + uneven)
        sharing = round(sum(share["bytes"] for share in mine) / mean)
        # With equal shares the busiest thread would have had the mean.
        gain = 1 - 1 / (1 + uneven)
        found.append(
            Finding(
                name=DESCRIPTOR.name,
                severity="high" if uneven >= 1 and row["share"] >= 0.3 else "medium",
                claim=(
                    f"In region {row['region']} thread {busiest['thread']} moves {human_moved(busiest['bytes'])}, {1 + uneven:.1f} "
                    f"times the mean of the {sharing} threads that share it ({human_moved(mean)}); the others wait, or have nothing to do."
                ),
                evidence={"region": row["region"], "threads": sharing, "busiest_thread": busiest["thread"],
                          "busiest_thread_bytes": busiest["bytes"], "mean_bytes": round(mean), "byte_imbalance": uneven,
                          "time_imbalance": row["time_imbalance"], "share": row["share"], "sql": EVIDENCE},
                remedy=(
                    f"Divide the work by its bytes, not by its items, or hand it out in small pieces (schedule(dynamic), a queue): up "
                    f"to {gain:.0%} of the region's time could be saved."
                ),
                quality=result.quality.without("bandwidth.event_missing"),
                references=(region(row["region"]), thread(busiest["thread"])),
                view="bandwidth.by_region_and_thread",
                affected_share=share_of(row["share"], 1),
                affected_of="bytes",
                group=DESCRIPTOR.name,
            )
        )  # fmt: skip
    return found[:5]


DESCRIPTOR = FindingDescriptor(
    name="region_imbalance",
    question="Do threads share the work of a region unevenly?",
    analyses=("bandwidth",),
    evidence_sql=EVIDENCE,
    check=check,
    bad_workload="uneven_threads",
    good_workload="uneven_threads --even",
)
