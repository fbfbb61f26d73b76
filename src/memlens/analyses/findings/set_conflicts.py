"""Finding: lines fight for a few sets of the first cache, though it has room.

Misses of the first cache as it is are compared with those of one of the same size without sets, on the same accesses (model, LRU).
Told of a function and an object with MIN_SHARE of the program's accesses where the sets alone make MIN_RATIO of the accesses miss, and
that is MIN_CONFLICTS of all its misses. Only the first cache: later ones are indexed by physical addresses, which captures do not have.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ...registry import FindingDescriptor

if TYPE_CHECKING:
    from ...capture.reader import Capture
    from ...results import Finding, Result

MIN_SHARE = 0.05
MIN_RATIO = 0.05
"""Of the function's accesses to the object."""
MIN_CONFLICTS = 0.5
"""Of its misses."""
MIN_RECORDED = 1000
EVIDENCE = """
SELECT function, address // 64 % 64 AS set_of_64, count(*) AS recorded, count(DISTINCT address // 64) AS lines
FROM accesses a JOIN sites ON code = id GROUP BY ALL ORDER BY recorded DESC LIMIT 10
""".strip()


def check(capture: Capture, results: dict[str, Result]) -> list[Finding]:
    from ...results import Finding

    result = results["patterns"]
    figures = result.figures
    if not figures["first_cache_ways"] or figures["first_cache_sets"] < 2:
        return []
    set_span = figures["first_cache_sets"] * figures["line_bytes"]
    found = []
    for row in result.tables["by_function_and_object"].to_pylist():
        conflicts = row["misses"] - row["misses_full"]
        if (
            row["share"] < MIN_SHARE
            or row["recorded"] < MIN_RECORDED
            or conflicts < MIN_RATIO * row["recorded"]
            or conflicts < MIN_CONFLICTS * row["misses"]
        ):
            continue
        step = _step(result, row)
        reached = (
            figures["first_cache_sets"] // math.gcd(step // figures["line_bytes"], figures["first_cache_sets"])
            if step
            else row["sets"]
        )
        why = (
            f"an instruction that steps {step:,} bytes reaches {reached} of {figures['first_cache_sets']} sets"
            if step
            else f"lines multiples of {set_span:,} bytes apart are in one set"
        )
        kib = figures["first_cache_bytes"] // 1024
        found.append(
            Finding(
                name=DESCRIPTOR.name,
                severity="high" if row["share"] >= 0.3 and conflicts >= 0.3 * row["recorded"] else "medium",
                claim=(
                    f"{conflicts / row['recorded']:.0%} of the accesses of {row['function'] or 'unnamed code'} to {row['object']} miss the first "
                    f"cache ({kib} KiB, {figures['first_cache_ways']} ways) only because of its sets: {row['misses']:,} misses, "
                    f"{row['misses_full']:,} without sets; {why}."
                ),
                evidence={"function": row["function"], "object": row["object"], "misses": row["misses"], "misses_full": row["misses_full"],
                          "recorded": row["recorded"], "sets_used": reached, "sets": figures["first_cache_sets"],
                          "stride_bytes": step, "share": row["share"], "sql": EVIDENCE},
                remedy=(
                    f"Take the distance of rows or arrays away from multiples of {set_span:,} bytes: pad each row by a cache line "
                    f"({figures['line_bytes']} bytes), allocate arrays with different offsets, or walk in blocks."
                ),
                quality=result.quality,
            )
        )  # fmt: skip
    return found[:5]


def _step(result: Result, row: dict[str, Any]) -> int | None:
    """The step of the instruction with most conflicts, if it goes to few sets."""
    mine = [
        one
        for one in result.tables["by_instruction"].to_pylist()
        if all(one[name] == row[name] for name in ("function", "module", "object", "kind"))
    ]
    worst = max(mine, key=lambda one: one["misses"] - one["misses_full"], default=None)
    if worst is None or worst["class"] != "strided":
        return None
    step = abs(int(worst["stride_bytes"]))
    return step if step % (4 * result.figures["line_bytes"]) == 0 else None


DESCRIPTOR = FindingDescriptor(
    name="set_conflicts",
    question="Do steps of powers of two make lines fight for a few sets of the cache?",
    analyses=("patterns",),
    evidence_sql=EVIDENCE,
    check=check,
    bad_workload="set_conflicts",
    good_workload="set_conflicts --padded",
)
