"""Finding: one thread first-touches the memory that several threads work on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...registry import FindingDescriptor

if TYPE_CHECKING:
    from ...capture.reader import Capture
    from ...results import Finding, Result

MIN_BYTES = 16 << 20
MIN_SHARE = 0.9
MIN_BUSY_THREADS = 2
MAX_TURNOVER = 2.0
"""Placed memory against the process's peak: above it most was temporary, and gone before other threads could use it."""
EVIDENCE = """
SELECT t.name, f.thread, f.function, f.file, f.line, sum(f.new_bytes * f.weight) AS bytes
FROM faults f LEFT JOIN threads t ON t.process = f.process AND t.thread = f.thread
WHERE f.class = 'first' AND f.area <> 'file'
GROUP BY ALL ORDER BY bytes DESC LIMIT 10
""".strip()


def check(capture: Capture, results: dict[str, Result]) -> list[Finding]:
    from ...results import Finding
    from ...units import human_bytes
    from .._fault_sampling import fault_groups
    from .._touch_places import rows_by, touch_places
    from ..first_touch import placing_faults
    from ._activity import busy_threads
    from ._program import OWN_HEAP, runtime_of
    from ._where import place, share_of, thread
    from ._where import process as process_of

    touches = results["first_touch"]
    by_thread = touches.tables["by_thread"].to_pylist()
    nodes = len(capture.meta.get("machine", {}).get("numa_nodes", [])) or 1
    held = {row["process"]: row["peak_rss_bytes"] for row in results["capacity"].tables["by_process"].to_pylist()}
    found = []
    for process in capture.table("processes").to_pylist():
        mine = [row for row in by_thread if row["process"] == process["process"]]
        total = sum(row["bytes"] for row in mine)
        if process["threads"] < 2 or total < MIN_BYTES or not mine:
            continue
        if runtime_of(capture, process["process"]) in OWN_HEAP:
            continue  # a collector moves objects between pages that it placed
        top = max(mine, key=lambda row: row["bytes"])
        share = top["bytes"] / total
        busy = busy_threads(capture, process["process"])
        peak = held.get(process["process"])
        if share < MIN_SHARE or len(busy) < MIN_BUSY_THREADS or (peak and total > MAX_TURNOVER * peak):
            continue
        import pyarrow.compute as pc

        faults = placing_faults(fault_groups(capture))
        faults = faults.filter(
            pc.and_(
                pc.equal(faults.column("process"), process["process"]), pc.equal(faults.column("thread"), top["thread"])
            )
        )
        lines = rows_by(touch_places(capture, faults), ("function", "module", "file", "line"))
        where = place(lines.slice(0, 1).to_pylist()[0])
        cost = (
            f"all of it lies on the nodes near that thread, so threads on the other of {nodes} NUMA nodes use remote memory"
            if nodes > 1
            else "harmless on this machine with one NUMA node; on a machine with several, other nodes' threads would use remote memory"
        )
        found.append(
            Finding(
                name=DESCRIPTOR.name,
                severity="high" if nodes > 1 else "low",
                claim=(
                    f"Thread {top['thread']} ({top['name'] or process['name']}) first-touched {share:.0%} of the "
                    f"{human_bytes(total)} that {process['name'] or 'the program'} uses, while {len(busy)} "
                    f"threads do its work: {cost}."
                ),
                evidence={
                    "process": process["process"],
                    "thread": top["thread"],
                    "share": share,
                    "bytes": total,
                    "where": where,
                    "busy_threads": busy,
                    "numa_nodes": nodes,
                    "sql": EVIDENCE,
                },
                remedy=(
                    f"Let each thread initialise the part it will work on (the touching line is {where}); "
                    "or interleave the pages: numactl --interleave=all."
                ),
                quality=touches.quality,
                references=(thread(top["thread"]), process_of(process["process"])),
                view="first_touch.by_thread",
                affected_share=share_of(top["bytes"], touches.figures["first_touched_bytes"]),
                affected_of="bytes",
                group="placement",
            )
        )
    return found


DESCRIPTOR = FindingDescriptor(
    name="serial_first_touch",
    question="Does one thread place the memory that several threads use?",
    analyses=("first_touch", "capacity"),
    evidence_sql=EVIDENCE,
    check=check,
    bad_workload="first_touch --mode serial",
    good_workload="first_touch --mode parallel",
)
