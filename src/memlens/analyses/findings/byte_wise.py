"""Finding: a hot function walks memory one or two bytes at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...registry import FindingDescriptor

if TYPE_CHECKING:
    from ...capture.reader import Capture
    from ...results import Finding, Result

MIN_NARROW = 500_000
MIN_PROGRAM_SHARE = 0.1
"""Of all loads and stores of the program."""
MIN_FUNCTION_SHARE = 0.5
"""Of the function's accesses outside the stack."""
MIN_SEQUENTIAL = 0.6
MIN_RECORDED = 100
EVIDENCE = """
SELECT function, file, line, sum(loads + stores) AS accesses, max(greatest(load_width, store_width)) AS width
FROM code_counts JOIN sites ON code = id
WHERE load_width BETWEEN 1 AND 2 OR store_width BETWEEN 1 AND 2
GROUP BY ALL ORDER BY accesses DESC LIMIT 10
""".strip()


def check(capture: Capture, results: dict[str, Result]) -> list[Finding]:
    from ...results import Finding
    from ._copies import is_copy_name
    from ._where import code, place, share_of

    traffic = results["traffic"]
    total = traffic.figures["loads"] + traffic.figures["stores"]
    seen: dict[tuple[str | None, str], list[float]] = {}
    hottest: dict[tuple[str | None, str], dict[str, object]] = {}
    for row in results["accesses"].tables["by_instruction"].to_pylist():
        entry = seen.setdefault((row["function"], row["module"]), [0.0, 0.0, 0.0])
        if row["narrow"]:
            entry[0] += row["narrow"]
            entry[1] += row["narrow_sequential"]
            entry[2] += row["recorded"]
            hottest.setdefault((row["function"], row["module"]), row)
    found = []
    for row in traffic.tables["by_function"].to_pylist():
        key = (row["function"], row["module"])
        accesses = row["loads"] + row["stores"]
        outside = accesses - (row["stack_loads"] or 0) - (row["stack_stores"] or 0)
        narrow, sequential, recorded = seen.get(key, [0.0, 0.0, 0.0])
        if (
            row["narrow"] < max(MIN_NARROW, MIN_PROGRAM_SHARE * total)
            or row["narrow"] < MIN_FUNCTION_SHARE * outside
            or recorded < MIN_RECORDED
            or sequential < MIN_SEQUENTIAL * narrow
            or is_copy_name(row["function"])
        ):
            continue
        where = place({**row, **hottest[key]})
        share = row["narrow"] / total
        found.append(
            Finding(
                name=DESCRIPTOR.name,
                severity="medium" if share >= 0.3 else "low",
                claim=(
                    f"{where} makes {row['narrow']:,} accesses of 1 or 2 bytes, {share:.0%} of all loads and stores of the "
                    f"program and {row['narrow'] / outside:.0%} of its own outside the stack; {sequential / narrow:.0%} of them "
                    "go to the next address."
                ),
                evidence={"where": where, "narrow_accesses": row["narrow"], "program_share": share,
                          "function_share": row["narrow"] / outside, "sequential_share": sequential / narrow, "sql": EVIDENCE},
                remedy=(
                    "Read and write whole words or vectors and work on bytes in registers (memcpy of 8 bytes, SIMD, a loop that "
                    "the compiler can vectorise: no aliasing, no early exit), or use a library function that does."
                ),
                quality=traffic.quality,
                references=(code({**row, **hottest[key]}),),
                view="traffic.by_function",
                affected_share=share_of(row["narrow"], total),
                affected_of="accesses",
                group=DESCRIPTOR.name,
            )
        )  # fmt: skip
    return found[:5]


DESCRIPTOR = FindingDescriptor(
    name="byte_wise",
    question="Does a hot function walk memory one or two bytes at a time?",
    analyses=("traffic", "accesses"),
    evidence_sql=EVIDENCE,
    check=check,
    bad_workload="byte_wise",
    good_workload="byte_wise --wide",
)
