"""Finding: a large allocation is never or hardly touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...registry import FindingDescriptor

if TYPE_CHECKING:
    from ...capture.model.call_stacks import Place
    from ...capture.reader import Capture
    from ...results import Finding, Result

MIN_BYTES = 16 << 20
MIN_SHARE = 0.75
PROT_WRITE = 2
EVIDENCE = """
SELECT id, process, kind, bytes, touched_bytes, recycled_bytes, never_touched_bytes, stack FROM objects
WHERE kind IN ('heap', 'mmap') AND never_touched_bytes >= 0.75 * bytes AND bytes >= 1048576
ORDER BY never_touched_bytes DESC LIMIT 10
""".strip()


def check(capture: Capture, results: dict[str, Result]) -> list[Finding]:
    import numpy as np

    from ...capture.model.call_stacks import call_stacks
    from ...capture.model.objects import KINDS
    from ...results import Finding
    from ...units import human_bytes
    from .._selected_objects import chosen_objects
    from ._program import OWN_HEAP, runtime_of
    from ._where import code, place, share_of

    engine = capture.objects
    if engine.touches is None:
        return []
    columns = engine.columns
    never = engine.pages("never")
    size = np.asarray(columns["bytes"])
    # Address space that was only reserved (PROT_NONE, MAP_NORESERVE) is a kind of its own.
    writable = ~engine.is_kind("mmap") | ((np.asarray(columns["protection"]) & PROT_WRITE) != 0)
    mine = (
        engine.is_kind("heap", "mmap")
        & chosen_objects(capture)
        & writable
        & (never >= MIN_SHARE * size)
        & (size >= 1 << 20)
    )
    # A library that maps memory by itself is an allocator or a runtime: it reserves on purpose and commits as it goes.
    mapped = KINDS.index("mmap")
    programs = {row["process"]: row["program"] for row in capture.table("processes").to_pylist()}
    stacks = call_stacks(capture)
    by_site: dict[str, list[int]] = {}
    sites: dict[str, Place] = {}
    allocated = sum(results["objects"].tables["by_site"].column("allocated_bytes").to_pylist())
    for row in np.flatnonzero(mine):
        site = stacks.site(int(columns["stack"][row]))
        process = int(columns["process"][row])
        if columns["kind"][row] == mapped and (
            site["module"] != programs.get(process) or runtime_of(capture, process) in OWN_HEAP
        ):
            continue
        sites.setdefault(place(site), site)
        entry = by_site.setdefault(place(site), [0, 0, 0])
        entry[0] += 1
        entry[1] += int(size[row])
        entry[2] += int(never[row])
    found = []
    for where, (count, total, unused) in sorted(by_site.items(), key=lambda item: -item[1][2]):
        if unused < MIN_BYTES:
            continue
        found.append(
            Finding(
                name=DESCRIPTOR.name,
                severity="low",
                claim=(
                    f"{human_bytes(unused)} of {human_bytes(total)} in {count} large allocation{'s' * (count > 1)} at "
                    f"{where} were never touched."
                ),
                evidence={
                    "where": where,
                    "objects": count,
                    "bytes": total,
                    "never_touched_bytes": unused,
                    "sql": EVIDENCE,
                },
                remedy=(
                    "Allocate what is used: untouched pages cost no memory, but they hide a wrong size, and they count where "
                    "address space or overcommit is limited. Mark a deliberate reservation: mmap with PROT_NONE or "
                    "MAP_NORESERVE."
                ),
                quality=results["objects"].quality.without("objects.other_malloc", "objects.unseen_processes"),
                references=(code(sites[where]),),
                view="objects.by_site",
                affected_share=share_of(unused, allocated),
                affected_of="bytes",
                group=DESCRIPTOR.name,
            )
        )
    return found[:5]


DESCRIPTOR = FindingDescriptor(
    name="unused_allocation",
    question="Are large allocations mostly untouched?",
    analyses=("objects",),
    evidence_sql=EVIDENCE,
    check=check,
    bad_workload="object_use --mode sparse",
    good_workload="object_use --mode dense",
)
