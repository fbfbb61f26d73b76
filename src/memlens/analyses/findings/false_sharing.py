"""Finding: threads write different bytes of one cache line.

From analysis `sharing`. Reported for an object whose lines are shared falsely (few of their hand-overs pass data), where accesses that find the line last written by
another thread (hand-overs) are MIN_HAND_OVERS at least, and MIN_SHARE of the accesses to the line by the two threads. Windows of two threads seldom overlap, so
of a sampled capture it is enough that both threads use the line in MIN_WINDOWS windows each while both do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...registry import FindingDescriptor

if TYPE_CHECKING:
    from ...capture.reader import Capture
    from ...results import Finding, Result
    from ..sharing import LineRow

MIN_HAND_OVERS = 20
MIN_SHARE = 0.0001
"""Of the accesses to the line: threads that take turns for milliseconds have few hand-overs."""
MIN_PART = 0.01
"""Of the accesses to the line, by either thread: the one that starts a thread writes some of its memory once."""
MIN_WINDOWS = 3
MIN_ACCESSES = 0.01
"""Of all recorded accesses go to the lines of the object that are shared so."""
EVIDENCE = """
SELECT address // 64 * 64 AS line, thread, min(address % 64) AS first_offset, max(address % 64 + bytes) AS end_offset,
       count(*) FILTER (operation <> 'load') AS writes, count(*) AS recorded
FROM accesses GROUP BY ALL ORDER BY writes DESC LIMIT 20
""".strip()


def check(capture: Capture, results: dict[str, Result]) -> list[Finding]:
    from ...results import Finding
    from ._where import cache_line, share_of, thing, thread

    result = results["sharing"]
    line_bytes = result.figures["line_bytes"]
    objects: dict[str, list[LineRow]] = {}
    for row in result.tables["lines"].to_pylist():
        if row["kind"] == "false" and is_contended(row, whole=result.quality.exact):
            objects.setdefault(row["object"] or "memory of no known object", []).append(row)
    found = []
    for thing_name, rows in objects.items():
        hand_overs = sum(row["hand_overs"] for row in rows)
        accesses = sum(row["reads"] + row["writes"] + row["other_reads"] + row["other_writes"] for row in rows)
        if accesses < MIN_ACCESSES * result.figures["accesses"]:
            continue
        whole = result.quality.exact
        if whole and hand_overs < MIN_HAND_OVERS:
            continue
        worst = max(rows, key=lambda row: (row["hand_overs"], min(row["windows"] or 0, row["other_windows"] or 0)))
        lines = {(row["process"], row["line"]) for row in rows}
        threads = {row["thread"] for row in rows} | {row["other_thread"] for row in rows}
        mine, other = _fields(worst)
        found.append(
            Finding(
                name=DESCRIPTOR.name,
                severity="high" if accesses >= 0.1 * result.figures["accesses"] else "medium",
                claim=(
                    f"{len(threads)} threads write to {len(lines)} cache line{'s' if len(lines) > 1 else ''} of {thing_name} and {_shared(rows)}: "
                    f"in the line at {worst['line']:#x} thread {worst['thread']} writes {mine}, thread {worst['other_thread']} uses {other}. "
                    + (f"{hand_overs:,} times a thread found a line last written by another." if whole else
                       f"Both use it in the same stretch of time, in {worst['windows']:,} and {worst['other_windows']:,} windows; how often it changes hands "
                       "is not seen in windows (record every access to count it).")
                ),
                evidence={"object": thing_name, "lines": len(lines), "threads": len(threads), "hand_overs": hand_overs, "useful_hand_overs": sum(row["useful_hand_overs"] for row in rows), "accesses": accesses, "windows": [worst["windows"], worst["other_windows"]],
                          "line": worst["line"], "thread": worst["thread"], "other_thread": worst["other_thread"], "bytes": mine,
                          "other_bytes": other, "sql": EVIDENCE},
                remedy=(
                    f"Keep what each thread writes in lines of its own: alignas({2 * line_bytes}) for its data (two lines: neighbours are fetched in "
                    "pairs), or add up in a local variable and store once at the end."
                ),
                quality=result.quality,
                references=(
                    thing(thing_name), cache_line(worst["line"]), *(thread(number) for number in (worst["thread"], worst["other_thread"])),
                ),
                view="sharing.lines",
                affected_share=share_of(accesses, result.figures["accesses"]),
                affected_of="accesses",
                group=DESCRIPTOR.name,
            )
        )  # fmt: skip
    return sorted(found, key=lambda one: -int(one.evidence["hand_overs"]))[:5]


def is_contended(row: LineRow, *, whole: bool) -> bool:
    """Whether two threads use a line at the same time, and one writes to it."""
    both = row["reads"] + row["writes"] + row["other_reads"] + row["other_writes"]
    if not row["writes"] + row["other_writes"]:
        return False
    if min(row["reads"] + row["writes"], row["other_reads"] + row["other_writes"]) < MIN_PART * both:
        return False
    # Windows of two threads that follow each other closely also tell of a line that is handed over.
    if not whole and min(row["windows"] or 0, row["other_windows"] or 0) >= MIN_WINDOWS:
        return True
    return bool(row["hand_overs"] >= max(1 if whole else MIN_HAND_OVERS, MIN_SHARE * both))


def _shared(rows: list[LineRow]) -> str:
    """What the threads have in common beside the lines."""
    useful, hand_overs = sum(row["useful_hand_overs"] for row in rows), sum(row["hand_overs"] for row in rows)
    if not any(row["common_offsets"] for row in rows):
        return "share no byte of them"
    return f"each uses other bytes of them (of {hand_overs:,} hand-overs {useful:,} pass data)"


def _fields(row: LineRow) -> tuple[str, str]:
    """What each thread uses of a line: fields where the type is known, else offsets in the line."""
    other = f"bytes {row['other_offsets']}" if row["other_offsets"] else "other bytes"
    return row["fields"] or f"bytes {row['offsets']}", row["other_fields"] or other


DESCRIPTOR = FindingDescriptor(
    name="false_sharing",
    question="Do threads write different bytes of one cache line?",
    analyses=("sharing",),
    evidence_sql=EVIDENCE,
    check=check,
    bad_workload="false_sharing --iterations 1",
    good_workload="false_sharing --iterations 1 --padded",
)
