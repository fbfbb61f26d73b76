"""Finding: one thread first-touches a large object in a program where several threads work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...registry import FindingDescriptor

if TYPE_CHECKING:
    from ...capture.reader import Capture
    from ...results import Finding, Result

MIN_BYTES = 16 << 20
MIN_SHARE = 0.9
MIN_BUSY_THREADS = 2
MOST_LOOKED_AT = 1000
EVIDENCE = """
SELECT id, process, kind, name, bytes, touched_bytes, touching_threads, top_thread_bytes, first_touch_thread, stack
FROM objects WHERE touched_bytes >= 16777216 AND top_thread_bytes >= 0.9 * touched_bytes
ORDER BY touched_bytes DESC LIMIT 10
""".strip()


def check(capture: Capture, results: dict[str, Result]) -> list[Finding]:
    import numpy as np

    from ...results import Finding
    from ..objects import AllocationStacks
    from ._activity import busy_threads
    from ._where import place

    engine = capture.objects
    if engine.touches is None:
        return []
    touched = engine.pages("touched")
    large = np.flatnonzero(engine.is_kind("heap", "mmap", "static") & (touched >= MIN_BYTES))
    large = large[np.argsort(-touched[large].astype(np.int64), kind="stable")]
    stacks = AllocationStacks(capture)
    nodes = len(capture.meta.get("machine", {}).get("numa_nodes", [])) or 1
    found = []
    for row in engine.table(large[:MOST_LOOKED_AT]).to_pylist():
        if row["top_thread_bytes"] < MIN_SHARE * row["touched_bytes"]:
            continue
        busy = busy_threads(capture, row["process"])
        if len(busy) < MIN_BUSY_THREADS:
            continue
        first = stacks.code_row(row["first_touch_code"])
        what = row["name"] or f"the {row['bytes'] / 2**20:.0f} MiB allocated at {place(stacks.site(row['stack']))}"
        where = place(first) if first else "the kernel"
        found.append(
            Finding(
                name=DESCRIPTOR.name,
                severity="high" if nodes > 1 else "low",
                claim=(
                    f"Thread {row['first_touch_thread']} first-touched {row['top_thread_bytes'] / row['touched_bytes']:.0%} of "
                    f"{what}, at {where}, while {len(busy)} threads do the program's work"
                    + (
                        f": on {nodes} NUMA nodes the others use it from afar."
                        if nodes > 1
                        else ": harmless on one NUMA node."
                    )
                ),
                evidence={
                    "object": row["id"],
                    "bytes": row["bytes"],
                    "touched_bytes": row["touched_bytes"],
                    "top_thread_bytes": row["top_thread_bytes"],
                    "busy_threads": busy,
                    "sql": EVIDENCE,
                },
                remedy=(
                    f"If other threads work on it, let each initialise its own part (now {where} does), or interleave its "
                    "pages (numactl --interleave=all, mbind). That they do use it is supposed here, not measured."
                ),
                quality=results["objects"].quality,
            )
        )
    return found[:5]


DESCRIPTOR = FindingDescriptor(
    name="object_first_touch",
    question="Which object does one thread place that several threads may use?",
    analyses=("objects", "first_touch", "capacity"),
    evidence_sql=EVIDENCE,
    check=check,
    bad_workload="first_touch --mode serial",
    good_workload="first_touch --mode parallel",
)
