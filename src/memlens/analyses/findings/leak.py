"""Finding: one place allocates all the time and what it allocates is never freed.

Memory that is alive at exit is no leak by itself: most programs leave what they need to the kernel. A leak grows with the run. So
it is told of a place with MIN_BYTES and MIN_HEAP_SHARE of the heap at its peak that freed less than MAX_FREED, in a process that ran
MIN_LIFE_S or longer, when at least MIN_SLICES of ten equal parts of that life each added a fair part of it. A table that is
filled and then used stops growing; one that grows to the last moment cannot be told from a leak without seeing who uses it, and the
claim says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...registry import FindingDescriptor

if TYPE_CHECKING:
    from ...capture.model.call_stacks import Place
    from ...capture.reader import Capture
    from ...capture.tables.run import ProcessRow
    from ...results import Finding, Result

MIN_BYTES = 8 << 20
MIN_HEAP_SHARE = 0.2
MAX_FREED = 0.05
MIN_RECORDED = 30
"""Objects that were really recorded: the estimate is then known to about 18 % (one standard error)."""
MIN_LIFE_S = 0.5
MAX_ERROR = 0.2
"""Standard error of the bytes."""
SLICES = 10
MIN_SLICES = 8
FAIR_PART = 0.3
"""Of what a slice would add if growth were even."""
EVIDENCE = """
SELECT stack, process, count(*) AS recorded, sum(count) AS objects, sum(weight_bytes) AS bytes,
       min(born_ns) AS first_ns, max(born_ns) AS last_ns
FROM objects WHERE kind = 'heap' AND died_ns IS NULL GROUP BY ALL ORDER BY bytes DESC LIMIT 10
""".strip()


def check(capture: Capture, results: dict[str, Result]) -> list[Finding]:
    import numpy as np

    from ...capture.model.call_stacks import call_stacks
    from .._selected_objects import chosen_objects, object_totals
    from ._where import place

    engine = capture.objects
    columns = {
        name: np.asarray(engine.columns[name])
        for name in ("process", "stack", "born_ns", "died_ns", "bytes", "weight_bytes")
    }
    heap = engine.is_kind("heap") & chosen_objects(capture)
    weight = np.where(columns["weight_bytes"] != 0, columns["weight_bytes"], columns["bytes"]).astype(np.float64)
    stacks = call_stacks(capture)
    sites_of_heap = [row for row in (object_totals(capture) or engine).sites().to_pylist() if row["kind"] == "heap"]
    peaks = {row["process"]: row["heap_peak_bytes"] for row in results["objects"].tables["by_process"].to_pylist()}
    found = []
    for process in capture.table("processes").to_pylist():
        number, ended = process["process"], process["end_ns"]
        life_ns = (ended or capture.end_ns) - process["begin_ns"]
        recorded = sum(row["rows"] for row in sites_of_heap if row["process"] == number)
        if life_ns < MIN_LIFE_S * 1e9 or recorded < MIN_RECORDED:
            continue
        allocated_by_stack = {
            row["stack"]: float(row["allocated_bytes"]) for row in sites_of_heap if row["process"] == number
        }
        mine = np.flatnonzero(
            heap & (columns["process"] == number) & (columns["died_ns"] == 0)
        )  # small ones that ended have no row
        # Objects of one place: several stacks lead to it.
        numbers = np.array(sorted(allocated_by_stack), dtype=columns["stack"].dtype)
        places: dict[tuple[str | None, str | None, str | None, int | None], int] = {}
        sites: list[Place] = []
        group_of_stack = []
        allocated_at: list[float] = []
        for stack in numbers.tolist():
            site = stacks.site(stack)
            key = (site["function"], site["module"], site["file"], site["line"])
            if key not in places:
                places[key] = len(sites)
                sites.append(site)
                allocated_at.append(0.0)
            allocated_at[places[key]] += allocated_by_stack[stack]
            group_of_stack.append(places[key])
        group = np.array(group_of_stack, dtype=np.int64)[np.searchsorted(numbers, columns["stack"][mine])]
        for index, site in enumerate(sites):
            here = mine[group == index]
            live, allocated = float(weight[here].sum()), allocated_at[index]
            if len(here) < MIN_RECORDED or live < max(MIN_BYTES, MIN_HEAP_SHARE * peaks.get(number, 0)):
                continue
            if allocated - live > MAX_FREED * allocated:
                continue
            edges = np.linspace(process["begin_ns"], process["begin_ns"] + life_ns, SLICES + 1)
            added = np.histogram(columns["born_ns"][here].astype(np.float64), bins=edges, weights=weight[here])[0]
            growing = int((added >= FAIR_PART * live / SLICES).sum())
            if growing < MIN_SLICES or added[-1] < FAIR_PART * live / SLICES:
                continue
            # What a recorded object stands for beyond itself is estimated.
            beyond = np.maximum(weight[here] - columns["bytes"][here], 0.0)
            error = float(np.sqrt((beyond * weight[here]).sum()))
            if error > MAX_ERROR * live:
                continue
            found.append(
                _finding(
                    results,
                    process,
                    site,
                    place(site),
                    live,
                    error,
                    len(here),
                    life_ns / 1e9,
                    bool(ended),
                    peaks.get(number, 0),
                )
            )
    return sorted(found, key=lambda one: -one.evidence["bytes"])[:5]


def _finding(
    results: dict[str, Result], process: ProcessRow, site: Place, where: str, live: float, error: float, recorded: int,
    life_s: float, ended: bool, peak: float,
) -> Finding:  # fmt: skip
    from ...results import Finding
    from ...units import estimated_bytes, human_bytes
    from ._where import code, share_of
    from ._where import process as process_of

    via = f" (through {site['via']})" if site.get("via") else ""
    about = estimated_bytes(live, error)
    growth = f"{'about ' if error else ''}{human_bytes(live / life_s)}"
    return Finding(
        name=DESCRIPTOR.name,
        severity="high" if live >= 64 << 20 else "medium",
        claim=(
            f"{where}{via} allocates {about} in {process['name'] or 'the program'} that "
            f"{'is never freed' if ended else 'was not freed while it was watched'}, and continues to the end: "
            f"{growth} a second over {life_s:.1f} s."
        ),
        evidence={
            "where": where,
            "process": process["process"],
            "bytes": int(live),
            "bytes_error": error,
            "recorded": recorded,
            "bytes_per_s": live / life_s,
            "sql": EVIDENCE,
        },
        remedy=(
            "Free each object where its last user is done with it, or bound the structure that keeps it. If the program is meant to "
            "keep all of it, its memory grows with its run time. memlens report lists the call stacks (objects.leaks)."
        ),
        quality=results["objects"].quality.without(
            "faults.sampled", "objects.other_malloc", "objects.unseen_processes"
        ),
        references=(code(site), process_of(process["process"])),
        view="objects.leaks" if ended else "objects.by_site",
        affected_share=share_of(live, peak),
        affected_of="peak memory",
        group=DESCRIPTOR.name,
    )


DESCRIPTOR = FindingDescriptor(
    name="leak",
    question="Does one place keep allocating without freeing?",
    analyses=("objects",),
    evidence_sql=EVIDENCE,
    check=check,
    bad_workload="leak",
    good_workload="leak --free",
)
