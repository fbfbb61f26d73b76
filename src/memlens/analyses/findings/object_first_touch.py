"""Finding: one thread first-touches a large object in a program where several threads work."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from ...registry import FindingDescriptor

if TYPE_CHECKING:
    from ...capture.reader import Capture
    from ...results import Finding, Result

MIN_BYTES = 16 << 20
MIN_SHARE = 0.9
MIN_BUSY_THREADS = 2
MIN_LIFE = 0.25
"""Of the run: temporary objects are gone before other threads could use them."""
MIN_OF_RUN = 0.05
"""Of what the program's objects touched."""
MOST_LOOKED_AT = 1000
EVIDENCE = """
SELECT id, process, kind, name, bytes, touched_bytes, touching_threads, top_thread_bytes, first_touch_thread, stack
FROM objects WHERE touched_bytes >= 16777216 AND top_thread_bytes >= 0.9 * touched_bytes
ORDER BY touched_bytes DESC LIMIT 10
""".strip()


class _Touched(TypedDict):
    """A row of `Objects.table`."""

    id: int
    process: int
    kind: str
    name: str | None
    stack: int
    bytes: int
    born_ns: int
    died_ns: int | None
    touched_bytes: int
    top_thread_bytes: int
    first_touch_thread: int
    first_touch_code: int | None


def check(capture: Capture, results: dict[str, Result]) -> list[Finding]:
    import numpy as np

    from ...capture.model.call_stacks import call_stacks
    from ...results import Finding
    from ...units import human_bytes
    from .._object_groups import site_name
    from .._selected_objects import chosen_objects
    from ._activity import busy_threads
    from ._program import OWN_HEAP, runtime_of
    from ._where import code, place, share_of, thing
    from ._where import process as process_of
    from ._where import thread as thread_of

    engine = capture.objects
    if engine.touches is None:
        return []
    touched = engine.pages("touched")
    here = engine.is_kind("heap", "mmap", "static") & chosen_objects(capture)
    large = np.flatnonzero(here & (touched >= MIN_BYTES))
    large = large[np.argsort(-touched[large].astype(np.int64), kind="stable")]
    stacks = call_stacks(capture)
    nodes = len(capture.meta.get("machine", {}).get("numa_nodes", [])) or 1
    run_ns = max(capture.end_ns - capture.begin_ns, 1)
    all_touched = float(touched[here].sum())
    least = max(MIN_BYTES, MIN_OF_RUN * all_touched)

    def name_of(row: _Touched) -> str:
        return str(row["name"] or site_name(stacks.site(row["stack"]), row["kind"]))

    by_place: dict[tuple[int, int, bool, str], list[_Touched]] = {}
    for row in engine.table(large[:MOST_LOOKED_AT]).to_pylist():
        if row["top_thread_bytes"] < MIN_SHARE * row["touched_bytes"]:
            continue
        if (row["died_ns"] or capture.end_ns) - row["born_ns"] < MIN_LIFE * run_ns:
            continue
        what = row["name"] or place(stacks.site(row["stack"]))
        by_place.setdefault((row["process"], row["first_touch_thread"], row["name"] is None, what), []).append(row)
    found = []
    for (process, thread, allocated, what), rows in by_place.items():
        size = sum(row["touched_bytes"] for row in rows)
        if runtime_of(capture, process) in OWN_HEAP:
            continue  # a collector moves objects between pages that it placed
        busy = busy_threads(capture, process)
        if size < least or len(busy) < MIN_BUSY_THREADS:
            continue
        first = stacks.code_row(rows[0]["first_touch_code"])
        where = place(first) if first else "the kernel"
        if allocated:
            number = f"{len(rows)} objects, " if len(rows) > 1 else ""
            what = f"the {human_bytes(sum(row['bytes'] for row in rows))} ({number}allocated at {what})"
        found.append(
            Finding(
                name=DESCRIPTOR.name,
                severity="high" if nodes > 1 else "low",
                claim=(
                    f"Thread {thread} first-touched {sum(row['top_thread_bytes'] for row in rows) / size:.0%} of "
                    f"{what}, at {where}, while {len(busy)} threads do the program's work"
                    + (
                        f": on {nodes} NUMA nodes the others access it remotely."
                        if nodes > 1
                        else ": harmless on one NUMA node."
                    )
                ),
                evidence={
                    "object": rows[0]["id"],
                    "objects": len(rows),
                    "bytes": sum(row["bytes"] for row in rows),
                    "touched_bytes": size,
                    "top_thread_bytes": sum(row["top_thread_bytes"] for row in rows),
                    "busy_threads": busy,
                    "sql": EVIDENCE,
                },
                remedy=(
                    f"If other threads work on it, let each initialise its own part (now {where} does), or interleave its "
                    "pages (numactl --interleave=all, mbind). Their use of it is assumed, not measured."
                ),
                quality=results["objects"].quality.without(
                    "objects.sampled", "objects.other_malloc", "objects.unseen_processes"
                ),
                references=(
                    thing(name_of(rows[0])),
                    thread_of(thread),
                    process_of(process),
                    *((code(first),) if first else ()),
                ),
                view="objects.largest",
                affected_share=share_of(size, all_touched),
                affected_of="bytes",
                group="placement",
            )
        )
    return found[:5]


DESCRIPTOR = FindingDescriptor(
    name="object_first_touch",
    question="Which objects that several threads may use are placed by one thread?",
    analyses=("objects", "first_touch", "capacity"),
    evidence_sql=EVIDENCE,
    check=check,
    bad_workload="first_touch --mode serial",
    good_workload="first_touch --mode parallel",
)
