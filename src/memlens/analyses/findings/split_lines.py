"""Finding: accesses of an instruction cross cache lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...registry import FindingDescriptor

if TYPE_CHECKING:
    from ...capture.reader import Capture
    from ...results import Finding, Result

MIN_SPLIT_SHARE = 0.1
"""Of the line's accesses. A misaligned 8-byte stream crosses at 1 in 8, misaligned vectors of 32 bytes at 1 in 2."""
MIN_PROGRAM_SHARE = 0.01
"""Split accesses, of all that the program executes."""
MIN_RECORDED = 200
LINE_BYTES = 64
EVIDENCE = """
SELECT function, file, line, count(*) AS recorded, sum(weight) AS executed,
       sum(CASE WHEN address % 64 + a.bytes > 64 THEN weight ELSE 0 END) AS split
FROM accesses a JOIN sites ON code = id GROUP BY ALL HAVING split > 0 ORDER BY split DESC LIMIT 10
""".strip()


def check(capture: Capture, results: dict[str, Result]) -> list[Finding]:
    from ...results import Finding
    from ._copies import is_copy_name
    from ._where import code, place, share_of

    result = results["accesses"]
    executed = result.figures["executed_accesses"]
    lines: dict[tuple[object, ...], dict[str, Any]] = {}
    for row in result.tables["by_instruction"].to_pylist():
        if not row["split"]:
            continue
        # Instructions of one line that split; its others do not make it better.
        key = (row["function"], row["module"], row["file"], row["line"], None if row["line"] else row["code"])
        entry = lines.setdefault(key, {**row, "accesses": 0.0, "split": 0.0, "bytes": 0.0, "recorded": 0})
        for name in ("accesses", "split", "bytes", "recorded"):
            entry[name] += row[name]
    found = []
    for row in sorted(lines.values(), key=lambda one: -one["split"]):
        share = row["split"] / row["accesses"]
        if (
            share < MIN_SPLIT_SHARE
            or row["split"] < MIN_PROGRAM_SHARE * executed
            or row["recorded"] < MIN_RECORDED
            or is_copy_name(row["function"])
        ):
            continue
        where = place(row)
        estimated = "" if result.figures["recorded_share"] >= 1 else "about "
        found.append(
            Finding(
                name=DESCRIPTOR.name,
                severity="medium" if row["split"] >= 0.1 * executed else "low",
                claim=(
                    f"{share:.0%} of the accesses at {where}, {estimated}{row['split']:,.0f}, cross a {LINE_BYTES}-byte cache "
                    f"line ({row['bytes'] / row['accesses']:.0f} bytes each): each needs two lines."
                ),
                evidence={"where": where, "split_accesses": row["split"], "accesses": row["accesses"],
                          "split_share": share, "program_share": row["split"] / executed, "sql": EVIDENCE},
                remedy=(
                    "Align what is accessed to its own size: alignas or aligned_alloc for the buffer, padding after a header, "
                    "no packed structures, larger members first."
                ),
                quality=result.quality.without("accesses.no_allocations", "accesses.objects_sampled", "accesses.objects_above"),
                references=(code(row),),
                view="accesses.by_instruction",
                affected_share=share_of(row["split"], executed),
                affected_of="accesses",
                group=DESCRIPTOR.name,
            )
        )  # fmt: skip
    return found[:5]


DESCRIPTOR = FindingDescriptor(
    name="split_lines",
    question="Do accesses of hot code cross cache lines?",
    analyses=("accesses",),
    evidence_sql=EVIDENCE,
    check=check,
    bad_workload="split_lines",
    good_workload="split_lines --aligned",
)
