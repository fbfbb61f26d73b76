"""Finding: a hot load reads the same address again and again.

Told of loads with MIN_SHARE of the program's accesses that find, MIN_SAME of the times, the address of their last execution: a value that could stay in
a register, or a counter that is kept in memory. Not of lines that two threads use a lot and one writes: those have to be loaded, and
finding `false_sharing` may tell more. Not of stacks (finding `stack_traffic`, and calls), nor of libraries' code. Traces of `memlens cc` leave out
scalars of the frame and global ones: there, only what is behind pointers is seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...registry import FindingDescriptor

if TYPE_CHECKING:
    from ...capture.reader import Capture
    from ...results import Finding, Result
    from .._pattern_types import InstructionRow

MIN_SHARE = 0.1
"""Of the accesses that the program executes, all such loads of a line of code together."""
MIN_SAME = 0.99
MIN_RECORDED = 1000
MIN_OF_EACH = 0.05
"""Of the accesses to a line, for it to be shared: a thread that set it up once does not count."""
NO_OBJECT = "no known object"
EVIDENCE = """
SELECT function, file, line, address, count(*) AS recorded, sum(weight) AS executed
FROM accesses JOIN sites ON code = id WHERE operation = 'load' GROUP BY ALL ORDER BY recorded DESC LIMIT 10
""".strip()


def check(capture: Capture, results: dict[str, Result]) -> list[Finding]:
    from ...results import Finding
    from ._where import code, place, share_of, thing

    result = results["patterns"]
    shared = {
        row["object"] or NO_OBJECT
        for row in results["sharing"].tables["lines"].to_pylist()
        if row["writes"] + row["other_writes"] and _is_of_both(row)
    }
    places: dict[tuple[str, str], InstructionRow] = {}
    rows: list[InstructionRow] = result.tables["by_instruction"].to_pylist()
    for row in rows:
        if (
            row["operation"] == "store"
            or row["kind"] == "stack"
            or not row["file"]
            or row["object"] in shared
            or (row["same_address_share"] or 0.0) < MIN_SAME
        ):
            continue
        entry = places.setdefault((place(row), row["object"]), {**row, "accesses": 0.0, "share": 0.0, "recorded": 0})
        entry["accesses"] += row["accesses"]
        entry["share"] += row["share"]
        entry["recorded"] += row["recorded"]
    found = []
    for (where, thing_name), row in sorted(places.items(), key=lambda item: -item[1]["accesses"]):
        if row["share"] < MIN_SHARE or row["recorded"] < MIN_RECORDED:
            continue
        estimated = "" if result.figures["everything_recorded"] else "about "
        found.append(
            Finding(
                name=DESCRIPTOR.name,
                severity="medium" if row["share"] >= 0.25 else "low",
                claim=(
                    f"{where} loads the same {row['mean_bytes']:.0f} bytes of {thing_name} {estimated}{row['accesses']:,.0f} times, {row['share']:.0%} of all "
                    f"accesses: {row['same_address_share']:.1%} of the loads are at the address of the one before."
                ),
                evidence={"where": where, "object": thing_name, "executed": row["accesses"], "share": row["share"],
                          "same_address_share": row["same_address_share"], "recorded": row["recorded"], "sql": EVIDENCE},
                remedy=(
                    "Copy the value into a local variable before the loop, and a counter or sum back after it; restrict or const promises the compiler that "
                    "stores do not change it. What other threads change (atomic, volatile) has to be loaded, but not in every iteration."
                ),
                quality=result.quality,
                references=(code(row), thing(thing_name)),
                view="patterns.by_instruction",
                affected_share=share_of(row["share"], 1),
                affected_of="accesses",
                group=DESCRIPTOR.name,
            )
        )  # fmt: skip
    return found[:5]


def _is_of_both(row: Mapping[str, int]) -> bool:
    """
    >>> _is_of_both({"reads": 90, "writes": 10, "other_reads": 30, "other_writes": 0})
    True
    """
    mine, other = row["reads"] + row["writes"], row["other_reads"] + row["other_writes"]
    return bool(min(mine, other) >= MIN_OF_EACH * (mine + other))


DESCRIPTOR = FindingDescriptor(
    name="reloaded_value",
    question="Do hot loads read the same address again and again?",
    analyses=("patterns", "sharing"),
    evidence_sql=EVIDENCE,
    check=check,
    bad_workload="reloaded_value",
    good_workload="reloaded_value --local",
)
