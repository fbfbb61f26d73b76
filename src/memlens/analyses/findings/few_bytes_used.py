"""Finding: a loop walks with even steps and uses few bytes of each cache line.

Reported for a function and an object that have MIN_SHARE of the program's accesses, in at least twice as many lines as the first cache holds, where
steps of at least MIN_STEP_LINES of a line are MIN_STRIDED of the accesses, and no more than MOST_USED of a line is used before it has
left the first cache. Where only windows were recorded, a later part of the sweep may use the rest, so one of two more conditions must hold: no more than
MOST_USED of the step's bytes are used over the whole run, and the same in both halves of the time; or a sweep is longer than the first cache holds lines. Its
length is estimated by how often steps end in windows, which begin anywhere in a sweep.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...registry import FindingDescriptor

if TYPE_CHECKING:
    from ...capture.reader import Capture
    from ...results import Finding, Result
    from .._pattern_types import PatternRow

MIN_SHARE = 0.05
"""Of the accesses that the program executes."""
MIN_STRIDED = 0.5
MIN_STEP_LINES = 0.5
MOST_USED = 0.375
"""24 of 64 bytes."""
MIN_VISITS = 200
EVIDENCE = """
SELECT function, count(*) AS recorded, count(DISTINCT address // 64) AS lines, count(DISTINCT address) AS addresses,
       min(address % 64) AS first_offset, max(address % 64 + a.bytes) AS end_offset
FROM accesses a JOIN sites ON code = id GROUP BY ALL ORDER BY recorded DESC LIMIT 10
""".strip()


def check(capture: Capture, results: dict[str, Result]) -> list[Finding]:
    from ...results import Finding
    from .._offsets import of_words
    from ._where import code, share_of, thing

    result = results["patterns"]
    line_bytes, whole = result.figures["line_bytes"], result.figures["everything_recorded"]
    found = []
    for row in result.tables["by_function_and_object"].to_pylist():
        if (
            row["share"] < MIN_SHARE
            or row["visits"] < MIN_VISITS
            or row["visit_bytes"] > MOST_USED * line_bytes
            or row["lines"] * line_bytes < 2 * result.figures["first_cache_bytes"]
        ):
            continue
        step = row["step_bytes"]
        if step is None or step < MIN_STEP_LINES * line_bytes or row["step_share"] < MIN_STRIDED:
            continue
        offsets = of_words(row["step_offsets"])
        is_field = len(offsets) <= MOST_USED * step and row["step_settled"]
        sweep = None if whole or is_field else _sweep_lines(result, row, step)
        if not (is_field or whole or (sweep or 0) * line_bytes >= result.figures["first_cache_bytes"]):
            continue
        used = row["visit_bytes"]
        fields, type_name, layout = _described(capture, row, step, offsets)
        which = f"{' and '.join(fields)} of {type_name}" if fields else f"bytes {row['step_offsets']} of every {step}"
        found.append(
            Finding(
                name=DESCRIPTOR.name,
                severity="high" if row["share"] >= 0.3 and used <= line_bytes / 4 else "medium",
                claim=(
                    f"{row['function'] or 'unnamed code'} steps through {row['object']} {step} bytes at a time and uses {used:.3g} of the "
                    f"{line_bytes} bytes of each line ({row['share']:.0%} of all accesses; {row['lines']:,} lines): "
                    + (f"only {which}." if is_field else "the rest is used only after the line has left the first cache."
                       if whole else f"a sweep visits at least {sweep:,.0f} lines, so the rest is used, if at all, after the line has left the first cache.")
                ),
                evidence={"function": row["function"], "object": row["object"], "stride_bytes": step, "used_bytes_of_line": used,
                          "line_bytes": line_bytes, "lines": row["lines"], "visits": row["visits"], "share": row["share"],
                          "offsets": row["step_offsets"], "sweep_lines": sweep, "fields": fields, "type": type_name, "layout": layout, "sql": EVIDENCE},
                remedy=(
                    "Keep what the loop uses apart from what it does not: an array for each field (or for the hot fields), or smaller records; "
                    f"the loop then needs {used / line_bytes:.0%} of the lines."
                    if is_field
                    else "Exchange the loops, or walk in blocks, so that neighbours in a line are used one after the other."
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


def _sweep_lines(result: Result, row: PatternRow, step: int) -> float:
    """A lower bound (about 95 %) of the lines that a sweep of the instructions with this row's step visits."""
    mine = [
        one
        for one in result.tables["by_instruction"].to_pylist()
        if (one["function"], one["module"]) == (row["function"], row["module"])
        and (one["object"], one["kind"]) == (row["object"], row["kind"])
        and one["class"] == "strided"
        and abs(int(one["stride_bytes"] or 0)) == step
    ]
    # Of each instruction alone: the first of an unrolled loop and its copies visit the same sweep.
    lengths = []
    for one in mine:
        ends = (1 - one["stride_share"]) * one["recorded"]
        lengths.append(one["recorded"] / (ends + 2 * ends**0.5 + 3) * min(1.0, step / result.figures["line_bytes"]))
    return max(lengths, default=0.0)


def _described(
    capture: Capture, row: PatternRow, step: int, offsets: list[int]
) -> tuple[list[str], str | None, str | None]:
    """(fields, name and layout of the type) of what is used of each element, where debug information tells them."""
    from ...capture.model.element_types import element_type
    from .._fields import fields_at, layout, variable_named

    variable = variable_named(capture, row["object"]) if row["kind"] == "static" else None
    # An unrolled loop steps over several elements.
    is_whole = variable is not None and variable["element_bytes"] and step % variable["element_bytes"] == 0
    described = element_type(capture, variable) if variable is not None and is_whole else None
    if variable is None or described is None:
        return [], None, None
    return (
        fields_at(described, [offset % variable["element_bytes"] for offset in offsets]),
        described["name"],
        layout(described),
    )


DESCRIPTOR = FindingDescriptor(
    name="few_bytes_used",
    question="Do loops with even steps use few bytes of each cache line?",
    analyses=("patterns",),
    evidence_sql=EVIDENCE,
    check=check,
    bad_workload="field_walk",
    good_workload="field_walk --split",
)
