"""Finding: much of the traffic may be in a library that does not count."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ...registry import FindingDescriptor

if TYPE_CHECKING:
    from ...capture.reader import Capture
    from ...results import Finding, Result

MIN_USER_S = 0.1
MIN_CALLS = 100_000
MAX_ACCESSES_A_CALL = 32
"""Counted loads and stores between two calls: fewer, and the library does most of the work."""
MIN_BYTES_PER_S = 100_000_000
"""Counted, by processor time in the program: a processor that computes moves more than that."""
EVIDENCE = """
SELECT callee, function AS caller, sum(executions) AS calls
FROM site_counts WHERE kind = 'call' AND callee NOT LIKE '(%' AND callee NOT IN (SELECT linkage_name FROM count_functions)
GROUP BY ALL ORDER BY calls DESC LIMIT 10
""".strip()


def check(capture: Capture, results: dict[str, Result]) -> list[Finding]:
    from ...results import Finding
    from ...units import human_moved
    from ._where import code

    result = results["bandwidth"]
    user_s = (capture.meta.get("rusage") or {}).get("user_s") or 0.0
    unseen = [row for row in result.tables["unseen"].to_pylist() if not row["callee"].startswith("(")]
    if user_s < MIN_USER_S or not unseen:
        return []
    by_library: dict[str, int] = defaultdict(int)
    for row in unseen:
        by_library[row["library"] or "libraries that were not found"] += row["calls"]
    library = max(by_library, key=lambda name: by_library[name])
    figures = result.figures
    accesses = figures["loads"] + figures["stores"]
    calls = sum(row["calls"] for row in unseen)
    often = calls >= MIN_CALLS and accesses < MAX_ACCESSES_A_CALL * calls
    rate = (figures["accessed_bytes"] or 0) / user_s
    idle = rate < MIN_BYTES_PER_S
    if not (often or idle):
        return []
    top = ", ".join(f"{row['callee']} ({row['calls']:,})" for row in unseen[:3])
    why = (
        f"for each call only {accesses / calls:.1f} loads and stores of its own code were counted"
        if often
        else f"its own code moved only {human_moved(rate)} for each second of processor time"
    )
    return [
        Finding(
            name=DESCRIPTOR.name,
            severity="medium",
            claim=(
                f"The program called functions without counters {calls:,} times, most in {library} ({top}); {why}. Most of its traffic "
                "may be there, and is not in these numbers."
            ),
            evidence={"library": library, "calls": calls, "calls_of_the_library": by_library[library], "counted_accesses": accesses,
                      "counted_bytes": figures["accessed_bytes"], "user_s": user_s, "sql": EVIDENCE},
            remedy=(
                f'Build the library with CC="memlens cc" too, or count everything once under the emulator: memlens record --emulate. '
                f"perf record shows how much time is spent in {library}."
            ),
            quality=result.quality.without("bandwidth.event_missing", "bandwidth.threads_merged"),
            references=tuple(code({"function": row["callee"], "module": row["library"]}) for row in unseen[:3]),
            view="bandwidth.unseen",
            group=DESCRIPTOR.name,
        )
    ]  # fmt: skip


DESCRIPTOR = FindingDescriptor(
    name="unseen_library",
    question="Could much of the traffic be in a library without counters?",
    analyses=("bandwidth",),
    evidence_sql=EVIDENCE,
    check=check,
    bad_workload="unseen_library",
    good_workload="unseen_library --own",
)
