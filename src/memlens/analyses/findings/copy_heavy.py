"""Finding: much of the memory traffic only copies or fills memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...registry import FindingDescriptor

if TYPE_CHECKING:
    from ...capture.reader import Capture
    from ...results import Finding, Reference, Result

MIN_SHARE = 0.3
"""Of all bytes that the program loads and stores."""
MIN_BYTES = 8 << 20
EVIDENCE = """
SELECT function, module, sum(load_bytes + store_bytes) AS bytes, sum(loads + stores) AS accesses
FROM code_counts JOIN sites ON code = id GROUP BY ALL ORDER BY bytes DESC LIMIT 10
""".strip()


def check(capture: Capture, results: dict[str, Result]) -> list[Finding]:
    import numpy as np

    from ...results import Finding
    from ...units import human_moved
    from ._copies import callers, copying_codes
    from ._where import code, place, share_of

    result = results["traffic"]
    total = result.figures["accessed_bytes"]
    copying = copying_codes(capture)
    table = capture.table("code_counts")
    codes = table.column("code").fill_null(2**32 - 1).to_numpy()
    moved = table.column("load_bytes").to_numpy() + table.column("store_bytes").to_numpy()
    mine = np.isin(codes, np.fromiter(copying, dtype=np.uint32, count=len(copying)))
    copied = int(moved[mine].sum())
    if copied < max(MIN_BYTES, MIN_SHARE * total):
        return []
    by_name: dict[str, int] = {}
    for number, size in zip(codes[mine].tolist(), moved[mine].tolist(), strict=True):
        by_name[copying[number]] = by_name.get(copying[number], 0) + int(size)
    names = sorted(by_name, key=lambda name: -by_name[name])
    calling = callers(capture, copying)
    weight = sum(one for _, one in calling)
    said = ", ".join(f"{place(frame)} {one / weight:.0%}" for frame, one in calling[:3])
    share = copied / total

    def function(name: str) -> Reference:
        return code({"function": name})

    return [
        Finding(
            name=DESCRIPTOR.name,
            severity="medium" if share >= 0.6 else "low",
            claim=(
                f"{share:.0%} of the bytes that the program loads and stores are moved by {', '.join(names[:3])}: "
                f"{human_moved(copied)}." + (f" Called from {said} (by the stacks at the starts of windows)." if said else "")
            ),
            evidence={"copied_bytes": copied, "copied_share": share, "functions": names[:5],
                      "callers": [place(frame) for frame, _ in calling[:5]], "sql": EVIDENCE},
            remedy=(
                "Copy less: pass pointers, views or spans, move instead of copying, swap buffers, grow containers by reserve, "
                "clear only what was used."
            ),
            quality=result.quality,
            references=(*(function(name) for name in names[:3]), *(code(frame) for frame, _ in calling[:3])),
            view="traffic.by_function",
            affected_share=share_of(copied, total),
            affected_of="bytes",
            group=DESCRIPTOR.name,
        )
    ]  # fmt: skip


DESCRIPTOR = FindingDescriptor(
    name="copy_heavy",
    question="Does much of the memory traffic only copy or fill memory?",
    analyses=("traffic",),
    evidence_sql=EVIDENCE,
    check=check,
    bad_workload="copy_heavy",
    good_workload="copy_heavy --swap",
)
