"""Finding: a large array of structs is to a good part padding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...registry import FindingDescriptor

if TYPE_CHECKING:
    from ...capture.reader import Capture
    from ...results import Finding, Result

MIN_BYTES = 1 << 20
MIN_SHARE = 0.2
EVIDENCE = """
SELECT v.name, v.type, v.bytes, v.element_bytes, v.padding_bytes, o.touched_bytes, v.file, v.line
FROM variables v JOIN objects o ON o.process = v.process AND o.base = v.base AND o.kind = v.kind
WHERE v.padding_bytes > 0 AND v.bytes >= 1048576 AND v.bytes >= 2 * v.element_bytes
ORDER BY v.bytes DESC LIMIT 10
""".strip()


def check(capture: Capture, results: dict[str, Result]) -> list[Finding]:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from ...results import Finding
    from ...units import human_bytes
    from ._where import share_of, thing

    variables = capture.table("variables")
    padded = variables.filter(
        pc.and_(
            pc.greater_equal(variables.column("bytes"), pa.scalar(MIN_BYTES, pa.uint64())),
            pc.greater_equal(
                pc.cast(variables.column("padding_bytes").fill_null(0), pa.float64(), safe=False),
                pc.multiply(
                    pc.cast(variables.column("element_bytes").fill_null(0), pa.float64(), safe=False), MIN_SHARE
                ),
            ),
        )
    ).to_pylist()
    engine = capture.objects
    peak = results["capacity"].figures["peak_rss_bytes"] or 0 if "capacity" in results else 0
    found: list[Finding] = []
    told = set()
    for row in padded:
        if not row["padding_bytes"] or row["bytes"] < 2 * row["element_bytes"] or row["name"] in told:
            continue
        base, born_ns = np.array([row["base"]], dtype=np.uint64), np.array([row["born_ns"]], dtype=np.uint64)
        found_id = int(engine.find(base, born_ns, process=row["process"], layer="variable")[0])
        touched = int(engine.pages("touched")[found_id - 1]) if found_id and engine.touches is not None else None
        if touched is not None and touched < MIN_BYTES:
            continue  # it is there, and nobody uses it
        told.add(row["name"])
        share = row["padding_bytes"] / row["element_bytes"]
        found.append(
            Finding(
                name=DESCRIPTOR.name,
                severity="medium" if share >= 0.4 and row["bytes"] >= 64 << 20 else "low",
                claim=(
                    f"{row['name']} ({row['type']}, {human_bytes(row['bytes'])}) is {share:.0%} padding: "
                    f"{row['padding_bytes']} of {row['element_bytes']} bytes of each element, so every cache line and page "
                    "carries that much less."
                ),
                evidence={
                    "variable": row["name"],
                    "type": row["type"],
                    "bytes": row["bytes"],
                    "element_bytes": row["element_bytes"],
                    "padding_bytes": row["padding_bytes"],
                    "where": f"{row['file']}:{row['line']}",
                    "sql": EVIDENCE,
                },
                remedy=(
                    "Order the fields by decreasing size, use the smallest types that hold the values, or keep an array for "
                    "each field. (Heap arrays are not checked: their element type is not recorded.)"
                ),
                quality=results["objects"].quality.without(
                    "objects.sampled", "objects.other_malloc", "objects.unseen_processes"
                ),
                references=(thing(row["name"], file=row["file"], line=row["line"]),),
                view="objects.largest",
                affected_share=share_of(share * row["bytes"], peak),
                affected_of="peak memory" if peak else "",
                group=DESCRIPTOR.name,
            )
        )
    return found[:5]


DESCRIPTOR = FindingDescriptor(
    name="struct_padding",
    question="Is a large part of big arrays of structs padding?",
    analyses=("objects",),
    evidence_sql=EVIDENCE,
    check=check,
    bad_workload="struct_padding",
    good_workload="struct_padding --packed",
)
