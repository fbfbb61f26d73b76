"""Finding: the hottest loop moves floating-point numbers one at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...registry import FindingDescriptor

if TYPE_CHECKING:
    from ...capture.reader import Capture
    from ...results import Finding, Result

MIN_SHARE = 0.2
"""Of the bytes of the program, in one innermost loop."""
MIN_EXECUTIONS = 1_000_000
MIN_FLOAT_SHARE = 0.95
"""Of the loop's bytes outside the stack: with whole numbers among them it may follow indices, which vectors hardly help."""
MIN_SCALAR_SHARE = 0.9
EVIDENCE = """
SELECT function, file, line, kind, flags & 4 <> 0 AS vector, sum(executions) AS executions, sum(read_bytes + written_bytes) AS bytes
FROM site_counts WHERE flags & 128 <> 0 GROUP BY ALL ORDER BY bytes DESC LIMIT 10
""".strip()


def check(capture: Capture, results: dict[str, Result]) -> list[Finding]:
    from ...results import Finding
    from ...units import human_moved
    from ._where import code, place, share_of

    result = results["bandwidth"]
    blocks = result.tables["by_block"].to_pylist()
    deepest: dict[tuple[str, str], int] = {}
    for row in blocks:
        key = (row["function"], row["module"])
        deepest[key] = max(deepest.get(key, 0), row["depth"])
    found = []
    for row in blocks:
        on_stack = row["stack_read_bytes"] + row["stack_written_bytes"]
        outside = row["bytes"] - on_stack
        if (
            row["depth"] < 1
            or row["depth"] < deepest[row["function"], row["module"]]
            or row["share"] < MIN_SHARE
            or row["executions"] < MIN_EXECUTIONS
            or row["float_bytes"] < MIN_FLOAT_SHARE * outside
            or row["scalar_float_bytes"] < MIN_SCALAR_SHARE * row["float_bytes"]
        ):
            continue
        where = place(row)
        found.append(
            Finding(
                name=DESCRIPTOR.name,
                severity="medium" if row["share"] >= 0.5 else "low",
                claim=(
                    f"The innermost loop at {where} moves {row['share']:.0%} of all bytes, {human_moved(row['scalar_float_bytes'])} of "
                    "floating-point numbers, one number at a time: the compiler has not vectorised it."
                ),
                evidence={"where": where, "share": row["share"], "executions": row["executions"], "float_bytes": row["float_bytes"],
                          "scalar_float_bytes": row["scalar_float_bytes"], "sql": EVIDENCE},
                remedy=(
                    "Ask the compiler why (-Rpass-missed=loop-vectorize): give it independent partial sums or "
                    "-fassociative-math for a sum, restrict for pointers that do not overlap, contiguous arrays instead of a "
                    "stride, and -march for wider registers."
                ),
                quality=result.quality.without("bandwidth.event_missing", "bandwidth.threads_merged"),
                references=(code(row),),
                view="bandwidth.by_block",
                affected_share=share_of(row["share"], 1),
                affected_of="bytes",
                group=DESCRIPTOR.name,
            )
        )  # fmt: skip
    return found[:3]


DESCRIPTOR = FindingDescriptor(
    name="scalar_floats",
    question="Does the hottest loop move floating-point numbers one at a time?",
    analyses=("bandwidth",),
    evidence_sql=EVIDENCE,
    check=check,
    bad_workload="scalar_floats",
    good_workload="scalar_floats --lanes",
)
