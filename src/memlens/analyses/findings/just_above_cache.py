"""Finding: the working set is just above what a cache holds.

From the misses of fully associative caches (table ``levels`` of `patterns`). Told of a level where at least MIN_DROP of all accesses, and MIN_PART of
those that are known to miss it, would hit a cache 1.5 times as large (JUST_ABOVE of `patterns`). A shared level only when one thread
uses it: which part of it a thread has is not known. First accesses, and in windows those whose last use was not recorded, miss at any size and say nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...registry import FindingDescriptor

if TYPE_CHECKING:
    from ...capture.reader import Capture
    from ...results import Finding, Result

MIN_DROP = 0.01
"""Of all accesses. Words of 8 bytes swept in order miss once in 8."""
MIN_PART = 0.6
"""Of the reuses that miss the level."""
ENOUGH = 0.9
"""The smallest size that takes away this part of what the largest does is named."""
EVIDENCE = """
SELECT function, count(DISTINCT address // 64) * 64 AS bytes_of_lines, count(*) AS recorded
FROM accesses JOIN sites ON code = id GROUP BY ALL ORDER BY recorded DESC LIMIT 10
""".strip()


def check(capture: Capture, results: dict[str, Result]) -> list[Finding]:
    from ...results import Finding
    from ...units import human_bytes
    from ._where import code, share_of, thing

    result = results["patterns"]
    rows = result.tables["levels"].to_pylist()
    names = list(dict.fromkeys(row["level"] for row in rows))
    found = []
    for at, name in enumerate(names):
        sizes = [row for row in rows if row["level"] == name and row["times"] <= 1.5]
        base = sizes[0]
        if not base["miss_ratio"] or (base["shared"] and result.figures["threads"] > 1):
            continue
        drop = base["misses"] - sizes[-1]["misses"]
        reuses = base["misses"] - result.figures["no_reuse"]
        if drop < MIN_DROP * result.figures["looked_at"] or drop < MIN_PART * reuses:
            continue
        enough = next(row for row in sizes if base["misses"] - row["misses"] >= ENOUGH * drop)
        whose = max(result.tables["by_instruction"].to_pylist(), key=lambda row: row["near_misses"][at])
        near = whose["near_misses"][at] / drop
        size, needed = base["cache_bytes"], enough["cache_bytes"]
        found.append(
            Finding(
                name=DESCRIPTOR.name,
                severity="high" if drop >= 0.1 * result.figures["looked_at"] else "medium",
                claim=(
                    f"The working set is just above the {name} cache ({human_bytes(size)}): {base['miss_ratio']:.1%} of all accesses miss it, "
                    f"{enough['miss_ratio']:.1%} would miss {human_bytes(needed)} (fully associative, LRU). Most of the difference ({near:.0%}) is "
                    f"{_where(whose)}."
                ),
                evidence={"level": name, "cache_bytes": base["cache_bytes"], "miss_ratio": base["miss_ratio"],
                          "enough_bytes": enough["cache_bytes"], "enough_miss_ratio": enough["miss_ratio"],
                          "function": whose["function"], "object": whose["object"], "near_share": near, "sql": EVIDENCE},
                remedy=(
                    f"Make what is used again smaller by {1 - size / needed:.0%} or more: work in blocks that fit (all passes over a block before the next), "
                    "smaller types, or only the fields that the loop uses."
                ),
                quality=result.quality,
                references=(code(whose), thing(whose["object"])),
                view="patterns.levels",
                affected_share=share_of(drop, result.figures["looked_at"]),
                affected_of="accesses",
                group=DESCRIPTOR.name,
            )
        )  # fmt: skip
    return found[:2]


def _where(row: dict[str, object]) -> str:
    from ._where import place

    return f"{row['object']} in {place(row)}"


DESCRIPTOR = FindingDescriptor(
    name="just_above_cache",
    question="Would a little less data fit into a cache?",
    analyses=("patterns",),
    evidence_sql=EVIDENCE,
    check=check,
    bad_workload="working_set",
    good_workload="working_set --blocked",
)
