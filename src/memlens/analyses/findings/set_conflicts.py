"""Finding: lines fight for a few sets of the first cache, though it has room.

Misses of the first cache as it is are compared with those of one of the same size without sets, on the same accesses (model, LRU).
Told of a function and an object with MIN_SHARE of the program's accesses where the sets alone make MIN_RATIO of the accesses miss, and
that is MIN_CONFLICTS of all its misses. Windows are often shorter than the sweep after which a line is used again, so that the model
sees first uses only. There conflicts are predicted: an instruction steps by a multiple of many lines, over more lines in a row than its
sets hold and fewer than the cache does, and later sweeps use other bytes of the same lines. Only the first cache: later ones are indexed by physical addresses, which captures do not have.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ...registry import FindingDescriptor

if TYPE_CHECKING:
    from ...capture.reader import Capture
    from ...results import Finding, Result
    from .._pattern_types import InstructionRow

MIN_SHARE = 0.05
MIN_RATIO = 0.05
"""Of the function's accesses to the object."""
MIN_CONFLICTS = 0.5
"""Of its misses."""
MIN_RECORDED = 1000
MAX_SETS_SHARE = 0.25
"""Of the sets: steps that reach more of them are not told from windows."""
MIN_STRIDE_SHARE = 0.9
MIN_OVERFLOW = 2.0
"""Lines of a sweep against what its sets hold."""
MIN_VISITS = 1.25
"""Recorded visits of each line, or bytes used of a line against those of one visit: it is used again."""
EVIDENCE = """
SELECT function, address // 64 % 64 AS set_of_64, count(*) AS recorded, count(DISTINCT address // 64) AS lines
FROM accesses a JOIN sites ON code = id GROUP BY ALL ORDER BY recorded DESC LIMIT 10
""".strip()


def check(capture: Capture, results: dict[str, Result]) -> list[Finding]:
    from ...results import Finding
    from ...units import human_bytes
    from ._where import code, share_of, thing

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
        found.append(
            Finding(
                name=DESCRIPTOR.name,
                severity="high" if row["share"] >= 0.3 and conflicts >= 0.3 * row["recorded"] else "medium",
                claim=(
                    f"{conflicts / row['recorded']:.0%} of the accesses of {row['function'] or 'unnamed code'} to {row['object']} miss the first "
                    f"cache ({human_bytes(figures['first_cache_bytes'])}, {figures['first_cache_ways']} ways) only because of its sets: {row['misses']:,} misses, "
                    f"{row['misses_full']:,} without sets; {why}."
                ),
                evidence={"function": row["function"], "object": row["object"], "misses": row["misses"], "misses_full": row["misses_full"],
                          "recorded": row["recorded"], "sets_used": reached, "sets": figures["first_cache_sets"],
                          "stride_bytes": step, "share": row["share"], "sql": EVIDENCE},
                remedy=(
                    f"Avoid distances between rows or arrays that are multiples of {set_span:,} bytes: pad each row by a cache line "
                    f"({figures['line_bytes']} bytes), allocate arrays with different offsets, or walk in blocks."
                ),
                quality=result.quality,
                references=(code(row), thing(row["object"])),
                view="patterns.by_function_and_object",
                affected_share=share_of(row["share"], 1),
                affected_of="accesses",
                group=DESCRIPTOR.name,
            )
        )  # fmt: skip
    if not figures["everything_recorded"] and not found:
        found = _predicted(result, set_span)
    return found[:5]


def _predicted(result: Result, set_span: int) -> list[Finding]:
    """Conflicts that windows are too short to show."""
    from ...results import Finding
    from ._where import code, share_of, thing

    figures = result.figures
    line, sets, ways = figures["line_bytes"], figures["first_cache_sets"], figures["first_cache_ways"]
    instructions: dict[tuple[str | None, str, str, str, int], list[InstructionRow]] = {}
    for one in result.tables["by_instruction"].to_pylist():
        step = abs(int(one["stride_bytes"] or 0))
        if one["class"] == "strided" and step and step % line == 0 and one["stride_share"] >= MIN_STRIDE_SHARE:
            instructions.setdefault((one["function"], one["module"], one["object"], one["kind"], step), []).append(one)
    rows = {
        (row["function"], row["module"], row["object"], row["kind"]): row
        for row in result.tables["by_function_and_object"].to_pylist()
    }
    found = []
    for (function, module, thing_name, kind, step), mine in instructions.items():
        row = rows.get((function, module, thing_name, kind))
        share, recorded = sum(one["share"] for one in mine), sum(one["recorded"] for one in mine)
        reached = sets // math.gcd(step // line, sets)
        if row is None or share < MIN_SHARE or recorded < MIN_RECORDED or reached > MAX_SETS_SHARE * sets:
            continue
        # A sweep ends where the step differs: one in so many executions. Without an end it is as long as was seen in a window.
        breaks = sum((1 - (one["stride_share"] or 0.0)) * one["recorded"] for one in mine) / recorded
        sweep = 1 / breaks if breaks > 0 else float(figures["first_cache_bytes"] // line)
        again = max(row["recorded"] / max(row["lines"], 1),
                    row["used_bytes"] / max(row["lines"], 1) / max(row["visit_bytes"] or line, 1))  # fmt: skip
        if sweep < MIN_OVERFLOW * reached * ways or sweep > sets * ways or again < MIN_VISITS:
            continue
        where = (
            f"{function or 'unnamed code'} ({mine[0]['file'].rpartition('/')[2]}:{mine[0]['line']})"
            if mine[0]["file"]
            else function
        )
        found.append(
            Finding(
                name=DESCRIPTOR.name,
                severity="medium",
                claim=(
                    f"{where} steps {step:,} bytes through {thing_name}, about {sweep:,.0f} lines in a row: they fall into {reached} of {sets} sets of the "
                    f"first cache, which hold {reached * ways} lines, and are evicted before their other bytes are used. {share:.0%} of the "
                    "accesses; predicted from steps, because windows are shorter than a sweep."
                ),
                evidence={"function": function, "object": thing_name, "stride_bytes": step, "sweep_lines": sweep, "sets_used": reached, "sets": sets,
                          "recorded": recorded, "share": share, "predicted": True, "sql": EVIDENCE},
                remedy=(
                    f"Avoid distances between rows that are multiples of {set_span:,} bytes: pad each row by a cache line ({line} bytes), "
                    "or walk in blocks. Longer windows (window=100000) or full show the conflicts themselves."
                ),
                quality=result.quality,
                references=(code(mine[0]), thing(thing_name)),
                view="patterns.by_instruction",
                affected_share=share_of(share, 1),
                affected_of="accesses",
                group=DESCRIPTOR.name,
            )
        )  # fmt: skip
    return sorted(found, key=lambda one: -one.evidence["share"])


def _step(result: Result, row: dict[str, object]) -> int | None:
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
    question="Do strides of powers of two map lines to a few sets of the cache?",
    analyses=("patterns",),
    evidence_sql=EVIDENCE,
    check=check,
    bad_workload="set_conflicts",
    good_workload="set_conflicts --padded",
)
