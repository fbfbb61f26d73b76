"""Finding: large buffers do not begin on a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...registry import FindingDescriptor

if TYPE_CHECKING:
    from ...capture.reader import Capture
    from ...results import Finding, Result

MIN_BYTES = 4 << 20
MIN_TOTAL = 64 << 20
EVIDENCE = """
SELECT id, process, base % 4096 AS page_offset, bytes, alignment_bytes, stack FROM objects
WHERE kind = 'heap' AND bytes >= 4194304 AND base % 4096 <> 0 ORDER BY bytes DESC LIMIT 10
""".strip()


def check(capture: Capture, results: dict[str, Result]) -> list[Finding]:
    import numpy as np

    from ...results import Finding
    from ..objects import AllocationStacks
    from ._where import place

    page = int(capture.meta.get("machine", {}).get("page_bytes", 4096))
    engine = capture.objects
    base, size = np.asarray(engine.columns["base"]), np.asarray(engine.columns["bytes"])
    mine = np.flatnonzero(engine.is_kind("heap") & (size >= MIN_BYTES) & (base % np.uint64(page) != 0))
    stacks = AllocationStacks(capture)
    by_site: dict[str, list[int]] = {}
    for row in mine:
        where = place(stacks.site(int(engine.columns["stack"][row])))
        entry = by_site.setdefault(where, [0, 0, int(base[row]) % page])
        entry[0] += 1
        entry[1] = max(entry[1], int(size[row]))
    total = sum(size for _, size, _ in by_site.values())
    if total < MIN_TOTAL:
        return []
    where, (count, _, first) = max(by_site.items(), key=lambda item: item[1][1])
    return [
        Finding(
            name=DESCRIPTOR.name,
            severity="low",
            claim=(
                f"Buffers of {MIN_BYTES >> 20} MiB and more begin inside a page, the largest ({count} at {where}) "
                f"{first} bytes into one: vector loads cross cache lines, and the first and last page are shared with "
                "other data."
            ),
            evidence={
                "where": where,
                "objects": sum(n for n, _, _ in by_site.values()),
                "bytes": total,
                "sql": EVIDENCE,
            },
            remedy=(
                "Ask for alignment: aligned_alloc(64, …) for vector code, aligned_alloc(4096, …) where threads or NUMA nodes "
                "split a buffer by pages, aligned_alloc(2 MiB, …) with madvise(MADV_HUGEPAGE) for huge pages."
            ),
            quality=results["objects"].quality,
        )
    ]


DESCRIPTOR = FindingDescriptor(
    name="unaligned_buffer",
    question="Do large buffers begin in the middle of a page?",
    analyses=("objects",),
    evidence_sql=EVIDENCE,
    check=check,
    bad_workload="object_use --mode dense --heap",
    good_workload="object_use --mode dense --heap --aligned",
)
