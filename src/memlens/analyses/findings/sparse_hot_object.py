"""Finding: an object that is accessed in irregular order is spread over more lines than a cache has, and what is used of it would fit.

Told of a function and an object with MIN_SHARE of the program's accesses, MIN_IRREGULAR of them irregular, whose lines do not fit a cache level while
the bytes that are used take at most MOST_USED of the lines and would fill at most MOST_FILL of the level; MIN_MISSES of the accesses miss the first cache. Every
used address must have been seen MIN_SEEN times on average: of a large object, a few random windows would look sparse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from ...registry import FindingDescriptor

if TYPE_CHECKING:
    from ...capture.reader import Capture
    from ...results import Finding, Result

MIN_SHARE = 0.05
MIN_IRREGULAR = 0.5
MOST_USED = 0.25
MOST_FILL = 0.5
MIN_MISSES = 0.05
MIN_SEEN = 4
EVIDENCE = """
SELECT function, count(*) AS recorded, count(DISTINCT address) AS addresses, count(DISTINCT address // 64) AS lines
FROM accesses JOIN sites ON code = id GROUP BY ALL ORDER BY recorded DESC LIMIT 10
""".strip()


def check(capture: Capture, results: dict[str, Result]) -> list[Finding]:
    from ...results import Finding
    from ...units import human_bytes
    from ._where import code, share_of, thing

    result = results["patterns"]
    line_bytes = result.figures["line_bytes"]
    levels = [row for row in result.tables["levels"].to_pylist() if row["times"] == 1]
    found = []
    for row in result.tables["by_function_and_object"].to_pylist():
        spread = row["lines"] * line_bytes
        if (
            row["share"] < MIN_SHARE
            or row["kind"] == "stack"
            or row["irregular_share"] < MIN_IRREGULAR
            or row["used_bytes"] > MOST_USED * spread
            or row["recorded"] < MIN_SEEN * row["addresses"]
            or row["misses"] < MIN_MISSES * row["recorded"]
        ):
            continue
        level = _level(levels, spread, row["used_bytes"])
        if level is None:
            continue
        found.append(
            Finding(
                name=DESCRIPTOR.name,
                severity="high" if row["share"] >= 0.3 and row["misses"] >= 0.3 * row["recorded"] else "medium",
                claim=(
                    f"{row['function'] or 'unnamed code'} uses {human_bytes(row['used_bytes'])} of {row['object']} in irregular order, spread over "
                    f"{row['lines']:,} lines ({human_bytes(spread)}): {row['misses'] / row['recorded']:.0%} of its accesses miss the first cache (model), "
                    f"and what it uses would fit into {level['level']} ({human_bytes(level['cache_bytes'])})."
                ),
                evidence={"function": row["function"], "object": row["object"], "used_bytes": row["used_bytes"], "lines": row["lines"],
                          "spread_bytes": spread, "misses": row["misses"], "recorded": row["recorded"], "share": row["share"],
                          "level": level["level"], "cache_bytes": level["cache_bytes"], "sql": EVIDENCE},
                remedy=(
                    "Make it dense: an array of only what the loop uses, indexed as the records are; or a smaller table (a pool of nodes, "
                    "open addressing, 32-bit indices instead of pointers)."
                ),
                quality=result.quality,
                references=(code(row), thing(row["object"])),
                view="patterns.by_function_and_object",
                affected_share=share_of(row["share"], 1),
                affected_of="accesses",
                group="use of lines",
            )
        )  # fmt: skip
    return found[:5]


class _Level(TypedDict):
    """A row of table ``levels``."""

    level: str
    cache_bytes: int


def _level(levels: list[_Level], spread: int, used: int) -> _Level | None:
    """The nearest level that the lines do not fit into and the used bytes do."""
    return next((one for one in levels if spread > one["cache_bytes"] and used <= MOST_FILL * one["cache_bytes"]), None)


DESCRIPTOR = FindingDescriptor(
    name="sparse_hot_object",
    question="Is a hot object that is accessed in irregular order small enough to be made dense?",
    analyses=("patterns",),
    evidence_sql=EVIDENCE,
    check=check,
    bad_workload="scattered_field",
    good_workload="scattered_field --dense",
)
