"""Finding: a hot loop follows pointers, each load waiting for the one before.

Told of loads that lead themselves (table ``by_instruction`` of `patterns`: by the compiler's word in traced programs, else by the instruction's
bytes) with MIN_SHARE of the program's accesses, where MIN_MISSES of the nodes miss the first cache in the model; a node's miss may be that of
another irregular load of the function from the same object, which comes first. A list that lies in memory in the order of the walk is
strided, not irregular, and is not told: the processor fetches ahead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...registry import FindingDescriptor

if TYPE_CHECKING:
    from ...capture.reader import Capture
    from ...results import Finding, Result
    from .._pattern_types import InstructionRow

MIN_SHARE = 0.02
"""Of the accesses that the program executes."""
MIN_MISSES = 0.05
"""Of the steps."""
MIN_RECORDED = 500
EVIDENCE = """
SELECT function, file, line, count(*) AS recorded, count(DISTINCT address // 64) AS lines, sum(weight) AS executed
FROM accesses JOIN sites ON code = id GROUP BY ALL ORDER BY lines DESC LIMIT 10
""".strip()


def check(capture: Capture, results: dict[str, Result]) -> list[Finding]:
    from ...results import Finding
    from ._where import code, place, share_of, thing

    result = results["patterns"]
    places: dict[str, InstructionRow] = {}
    rows: list[InstructionRow] = result.tables["by_instruction"].to_pylist()
    for row in rows:
        if not row["leads_itself"] or row["class"] != "irregular":
            continue
        # Unrolled loops have several such loads on one line.
        entry = places.setdefault(place(row), {**row, "accesses": 0.0, "share": 0.0, "recorded": 0})
        entry["accesses"] += row["accesses"]
        entry["share"] += row["share"]
        entry["recorded"] += row["recorded"]
    static = {row["code"] for row in capture.table("trace_sites").select(["code"]).to_pylist()}
    estimated = "" if result.figures["everything_recorded"] else "about "
    found = []
    for where, row in sorted(places.items(), key=lambda item: -item[1]["accesses"]):
        misses = min(row["recorded"], sum(one["misses"] for one in rows if _of_nodes(one, row)))
        missed = misses / row["recorded"]
        if row["share"] < MIN_SHARE or row["recorded"] < MIN_RECORDED or missed < MIN_MISSES:
            continue
        is_static = row["code"] in static
        found.append(
            Finding(
                name=DESCRIPTOR.name,
                severity="high" if row["share"] >= 0.1 and missed >= 0.3 else "medium",
                claim=(
                    f"The load at {where} follows pointers through {row['object']}: {estimated}{row['accesses']:,.0f} times, each waiting for "
                    f"the one before, and {missed:.0%} of the nodes miss the first cache (model). "
                    + ("The compiler says so." if is_static else "Inferred from the instruction: it loads the register that it takes its address from.")
                ),
                evidence={"where": where, "object": row["object"], "executed": row["accesses"], "share": row["share"], "misses": misses,
                          "recorded": row["recorded"], "miss_share": missed, "dependence": "static" if is_static else "inferred", "sql": EVIDENCE},
                remedy=(
                    "Lay the nodes out in the order of the walk (one array, sorted after building), use indices known early, put several items into a "
                    "node, or follow several chains at a time; prefetching the node after the next helps where it is known."
                ),
                quality=result.quality,
                references=(code(row), thing(row["object"])),
                view="patterns.by_instruction",
                affected_share=share_of(row["share"], 1),
                affected_of="accesses",
                group=DESCRIPTOR.name,
            )
        )  # fmt: skip
    return found[:5]


def _of_nodes(one: InstructionRow, row: InstructionRow) -> bool:
    return one["class"] == "irregular" and all(
        one[name] == row[name] for name in ("function", "module", "object", "kind")
    )


DESCRIPTOR = FindingDescriptor(
    name="pointer_chase",
    question="Does a hot loop wait for each pointer before it can load the next?",
    analyses=("patterns",),
    evidence_sql=EVIDENCE,
    check=check,
    bad_workload="linked_sum --n 131072 --iterations 5",
    good_workload="linked_sum --n 131072 --iterations 5 --in-order",
)
