"""Finding: a hot function's traffic is mostly its own stack."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...registry import FindingDescriptor

if TYPE_CHECKING:
    from ...capture.reader import Capture
    from ...results import Finding, Result

MIN_PROGRAM_SHARE = 0.1
"""Stack bytes of the function, of all bytes of the program."""
MIN_FUNCTION_SHARE = 0.6
MIN_BYTES = 4 << 20
EVIDENCE = """
SELECT function, module, sum(load_bytes + store_bytes) AS bytes, sum(stack_load_bytes + stack_store_bytes) AS stack_bytes
FROM code_counts JOIN sites ON code = id WHERE flags & 1 = 1 GROUP BY ALL ORDER BY stack_bytes DESC LIMIT 10
""".strip()


def check(capture: Capture, results: dict[str, Result]) -> list[Finding]:
    from ...results import Finding
    from ...units import human_moved
    from ._copies import is_copy_name
    from ._where import code, place, share_of

    result = results["traffic"]
    total = result.figures["accessed_bytes"]
    lines: dict[tuple[str | None, str], dict[str, object]] = {}
    for row in result.tables["by_line"].to_pylist():
        lines.setdefault((row["function"], row["module"]), row)
    found = []
    for row in result.tables["by_function"].to_pylist():
        if row["function"] is None or row["stack_load_bytes"] is None or is_copy_name(row["function"]):
            continue
        stack = row["stack_load_bytes"] + row["stack_store_bytes"]
        if stack < max(MIN_BYTES, MIN_PROGRAM_SHARE * total) or stack < MIN_FUNCTION_SHARE * row["bytes"]:
            continue
        where = place({**row, **lines[row["function"], row["module"]]})
        found.append(
            Finding(
                name=DESCRIPTOR.name,
                severity="medium" if stack >= 0.4 * total else "low",
                claim=(
                    f"{stack / row['bytes']:.0%} of the {human_moved(row['bytes'])} that {where} loads and stores are its stack: "
                    f"{stack / total:.0%} of the program's traffic is spilled registers, saved registers and local arrays there."
                ),
                evidence={"where": where, "stack_bytes": stack, "function_bytes": row["bytes"],
                          "stack_share": stack / row["bytes"], "program_share": stack / total, "sql": EVIDENCE},
                remedy=(
                    "Compile with optimisation (-O2); make constant local tables static const; fewer values alive at once in the "
                    "inner loop (split it, unroll less); inline small hot functions; pass large structures by reference."
                ),
                quality=result.quality,
                references=(code({**row, **lines[row["function"], row["module"]]}),),
                view="traffic.by_function",
                affected_share=share_of(stack, total),
                affected_of="bytes",
                group=DESCRIPTOR.name,
            )
        )  # fmt: skip
    return found[:5]


DESCRIPTOR = FindingDescriptor(
    name="stack_traffic",
    question="Is most of the traffic of a hot function to its own stack?",
    analyses=("traffic",),
    evidence_sql=EVIDENCE,
    check=check,
    bad_workload="stack_traffic",
    good_workload="stack_traffic --static",
)
