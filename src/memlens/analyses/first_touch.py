"""Analysis `first_touch`: which function, line, thread and node placed the pages."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..registry import AnalysisDescriptor
from ..view import Chart, Column, Figure, Table, View, detail, key, measure

if TYPE_CHECKING:
    import pyarrow as pa

    from ..capture.reader import Capture
    from ..results import Result


def placing_faults(faults: pa.Table) -> pa.Table:
    """Faults that placed memory, with `bytes`: what each placed, and stands for (`weight`, see `_fault_sampling`).

    Takes the table `faults` or `Replay.fault_groups`, whose rows stand for `rows` faults: `bytes` are those of all of them.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from ._fault_sampling import PLACING

    mine = faults.filter(pc.is_in(faults.column("class").cast("string"), pa.array(PLACING)))
    again = pc.equal(mine.column("class").cast("string"), "again")
    one = pc.if_else(again, mine.column("span_bytes"), mine.column("new_bytes"))
    mine = mine.append_column("one_bytes", one)
    size = pc.multiply(one.cast("float64"), mine.column("weight"))
    if "rows" in mine.column_names:
        size = pc.multiply(size, mine.column("rows").cast("float64"))
    return mine.append_column("bytes", size)


def grouped(faults: pa.Table, keys: list[str]) -> pa.Table:
    """Bytes, faults and threads by the keys, most bytes first."""
    import numpy as np
    import pyarrow as pa

    from ._fault_sampling import weighted

    values = {"bytes": faults.column("one_bytes").to_numpy().astype(float), "faults": np.ones(faults.num_rows)}
    result = weighted(faults, keys, values)
    plain = faults.select([*keys, "thread"] if "thread" not in keys else keys)
    for name in keys:
        if pa.types.is_dictionary(plain.schema.field(name).type):
            plain = plain.set_column(plain.column_names.index(name), name, plain.column(name).cast("string"))
    if "thread" in keys:
        return result.append_column("threads", pa.array([1] * result.num_rows, pa.int64()))
    counted = plain.group_by(keys).aggregate([("thread", "count_distinct")])
    threads = {tuple(row[k] for k in keys): row["thread_count_distinct"] for row in counted.to_pylist()}
    rows = zip(*(result.column(k).to_pylist() for k in keys), strict=True)
    return result.append_column("threads", pa.array([threads[row] for row in rows], pa.int64()))


def first_touch(capture: Capture) -> Result:
    """First touches by function, line, thread, node and data area.

    A page counts where it was placed: by the access that faulted, or inside the system call
    that made the kernel place it (``in_kernel``). ``placed_by_kernel`` lists runs of pages
    that became resident with no event at all, with the time range in which that happened. Pages that a process had when
    the recorder attached to it (``--pid``) are ``placed_before_attach_bytes``: who placed them is not known.

    A touch inside the C library, an allocator or a wrapper belongs to its caller (``via`` is what touched). Inlined
    callers are exact. Others come from sampled call stacks, of a fault itself or of the nearest one in time in the same
    thread and function: ``estimated`` marks rows that hold such faults. Sums over all rows stay exact.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from ..capture.model.call_stacks import UNNAMED
    from ..results import Note, Quality, Result
    from ._fault_sampling import notes as sampling_notes
    from ._fault_sampling import variances
    from ._selected import selected
    from ._touch_places import places_of_rows, row_places, rows_by, touch_places

    part = selected(capture)
    if part is None:
        placing = placing_faults(capture.replay.fault_groups)
        places = touch_places(capture, placing)
    else:
        placing = placing_faults(capture.whole.table("faults"))
        of_rows = row_places(capture, placing)
        numbers = ("process", "thread", "time_ns", "address")
        kept = part.rows(
            placing.num_rows, "first touches", **{name: placing.column(name).to_numpy() for name in numbers},
            place=of_rows.lists,
        )  # fmt: skip
        placing, of_rows = placing.filter(pa.array(kept)), of_rows.chosen(kept)
        placing = placing.append_column("rows", pa.array([1] * placing.num_rows, pa.uint64()))
        places = places_of_rows(placing, of_rows)
    resident = capture.table("placed")
    before = resident.filter(resident.column("before"))
    # Pages of a stretch in which faults were sampled are in the estimates already.
    left_out = pc.or_(pc.or_(resident.column("moved"), resident.column("before")), resident.column("sampled"))
    placed = resident.filter(pc.invert(left_out))
    moved = resident.filter(resident.column("moved"))
    total = _sum(placing)
    placed_bytes = pc.sum(placed.column("bytes")).as_py() or 0
    names = {(row["process"], row["thread"]): row["name"] for row in capture.table("threads").to_pylist()}

    by_thread = grouped(placing, ["process", "thread"])
    by_thread = by_thread.drop_columns(["threads"]).append_column(
        "name",
        [
            [
                names.get((p, t))
                for p, t in zip(by_thread["process"].to_pylist(), by_thread["thread"].to_pylist(), strict=True)
            ]
        ],
    )
    in_kernel = placing.filter(placing.column("in_kernel"))
    weights = placing.column("weight").to_numpy()
    rows = placing.column("rows").to_numpy()
    n_placing = int(rows.sum())
    inferred = int(rows[(weights == 1) & placing.column("inferred").to_numpy()].sum())
    unnamed = placing.filter(pc.is_null(placing.column("function")))
    huge = placing.filter(pc.greater(placing.column("span_bytes"), capture.replay.page_bytes))
    figures: dict[str, object] = {
        "first_touched_bytes": total,
        "first_touched_bytes_error": float((rows * variances(weights, placing.column("one_bytes").to_numpy())).sum())
        ** 0.5,
        "placing_faults": round(float((rows * weights).sum())),
        "placing_faults_error": float((rows * variances(weights, 1.0)).sum()) ** 0.5,
        "huge_bytes": _sum(huge),
        "placed_in_system_calls_bytes": _sum(in_kernel),
        "placed_without_event_bytes": placed_bytes,
        "placed_before_attach_bytes": (pc.sum(before.column("bytes")).as_py() or 0)
        if capture.meta.get("pid")
        else None,
        "moved_bytes": pc.sum(moved.column("bytes")).as_py() or 0,
        "named_share": 1.0 - _sum(unnamed) / total if total else None,
        "threads": by_thread.num_rows,
    }
    notes = list(sampling_notes(capture))
    if part is not None and resident.num_rows < capture.whole.table("placed").num_rows and part.is_by_thread:
        notes.append(
            Note(
                "selection.placed",
                "Pages that the kernel placed without an event are left out: their thread, region and code are not known.",
            )
        )
    if inferred:
        notes.append(f"{inferred} of {n_placing} placing faults were classed without knowing what was mapped before.")
    unknown = int(rows[placing.column("node").is_null().to_numpy()].sum())
    if unknown:
        notes.append(
            f"The NUMA node of {unknown} of {n_placing} placing faults is unknown: the page or its process was "
            "gone before it could be asked."
        )
    jit = pc.sum(unnamed.filter(pc.equal(unnamed.column("module"), "[jit]")).column("rows")).as_py() or 0
    if jit:
        notes.append(
            f"{jit} placing faults come from just-in-time code without names; make the run-time write them "
            "(node --perf-basic-prof, java -XX:+UnlockDiagnosticVMOptions -XX:+DumpPerfMapAtExit, python3.12 -X perf)."
        )
    if not capture.quality.exact and placed.num_rows:
        notes.append(
            "Records are missing, so some pages listed as placed by the kernel may have been touched by the program."
        )
    exact = not notes
    unnamed_bytes = sum(t.bytes for place, t in places.items() if not place[0] or UNNAMED.search(place[0]))
    if unnamed_bytes >= 0.1 * max(total, 1):
        notes.extend(
            f"{os.path.basename(row['module'])} (build-id {row['build_id'] or 'none'}) has no symbols: {row['remedy']}."
            for row in capture.meta.get("unnamed_modules") or []
        )
    return Result(
        "first_touch",
        figures,
        {
            "by_function": rows_by(places, ("function", "module")),
            "by_line": rows_by(places, ("function", "module", "file", "line")),
            "by_thread": by_thread,
            "by_node": grouped(placing, ["node"]),
            "by_area": grouped(placing, ["area"]),
            "placed_by_kernel": placed,
            "stacks": _stacks(capture, placing),
        },
        capture.quality.joined(Quality(exact=exact, notes=tuple(notes))),
    )


def _sum(placing: pa.Table) -> int:
    import pyarrow.compute as pc

    return round(pc.sum(placing.column("bytes")).as_py() or 0)


def _module_name(path: str | None) -> str:
    name = (path or "?").rpartition("/")[2]
    return name if name.startswith("[") else f"[{name}]"


def _stacks(capture: Capture, placing: pa.Table) -> pa.Table:
    """Sampled call stacks, each with the faults and bytes it stands for."""
    import pyarrow as pa
    import pyarrow.compute as pc

    sampled = placing.filter(pc.greater(placing.column("stack"), 0))
    weights = pc.multiply(sampled.column("stack_weight").cast("uint64"), sampled.column("rows"))
    sampled = sampled.append_column("estimated_bytes", pc.multiply(sampled.column("one_bytes"), weights))
    sampled = sampled.append_column("estimated_faults", weights)
    sums = sampled.group_by(["stack"]).aggregate(
        [("estimated_bytes", "sum"), ("estimated_faults", "sum"), ("rows", "sum")]
    )
    frames = capture.replay.stacks
    sites = capture.replay.code_sites
    functions = sites.column("function").to_pylist()
    modules = sites.column("module").to_pylist()
    merged: dict[tuple[str, ...], list[int]] = {}  # two stacks may differ in addresses and not in names
    for stack, *numbers in zip(
        *(sums.column(n).to_pylist() for n in ("stack", "estimated_bytes_sum", "estimated_faults_sum", "rows_sum")),
        strict=True,
    ):
        names = tuple(functions[code] or _module_name(modules[code]) for code in frames.get(stack, []))
        entry = merged.setdefault(names, [0, 0, 0])
        merged[names] = [a + b for a, b in zip(entry, numbers, strict=True)]
    rows = [
        {"frames": list(names), "estimated_bytes": size, "estimated_faults": faults, "samples": samples}
        for names, (size, faults, samples) in merged.items()
    ]
    rows.sort(key=lambda row: -int(str(row["estimated_bytes"])))
    schema = pa.schema(
        [
            ("frames", pa.list_(pa.string())),
            ("estimated_bytes", pa.uint64()),
            ("estimated_faults", pa.uint64()),
            ("samples", pa.int64()),
        ]
    )
    return pa.Table.from_pylist(rows, schema=schema)


def view(result: Result) -> View:
    total = "figures.first_touched_bytes"
    measures = (measure("bytes", "bytes", "bytes", error="bytes_error", better="lower"),)
    share = Column(name="bytes", label="share", kind="bytes", of=total, bar=True)
    faults = measure("faults", "faults", "count", error="faults_error")

    def by(name: str, title: str, *keys: Column, threads: bool = True, **more: Any) -> Table:
        several = (measure("threads", "threads", "count", show="nonzero"),) if threads else ()
        return Table(
            name=name, title=title, columns=(*keys, *measures, share, faults, *several), leads_to="faults", **more
        )

    estimated = detail(
        "estimated", "estimated", "flag", help="A part of the row comes from sampled call stacks.", show="nonzero"
    )
    place = by("by_line", "By place", key("function", "first touched by", "code"), role="key", fold="bytes")
    return View(
        title="First touch",
        order=600,
        headline="{first_touched_bytes} placed by {placing_faults} faults[, {huge_bytes} in huge pages]"
        "[, {placed_in_system_calls_bytes} inside system calls][; {placed_without_event_bytes} more placed by the kernel without an event]"
        "[; {placed_before_attach_bytes} were resident before memlens attached]",
        figures=(
            Figure(name="first_touched_bytes", label="first-touched", kind="bytes", better="lower", error="first_touched_bytes_error",
                   help="Memory that faults of the program placed: bytes of the pages."),
            Figure(name="placing_faults", label="placing faults", kind="count", better="lower", error="placing_faults_error"),
            Figure(name="huge_bytes", label="in huge pages", kind="bytes", better="higher", show="nonzero"),
            Figure(name="placed_in_system_calls_bytes", label="inside system calls", kind="bytes", show="nonzero", help="Of the first-touched bytes."),
            Figure(name="placed_without_event_bytes", label="placed without an event", kind="bytes", show="nonzero", help="By the kernel: MAP_POPULATE, mlock and the like."),
            Figure(name="placed_before_attach_bytes", label="resident before memlens attached", kind="bytes", show="nonzero"),
            Figure(name="moved_bytes", label="moved", kind="bytes", show="nonzero", help="By mremap, as far as no collector reported the call."),
            Figure(name="named_share", label="share with a function", kind="share"),
            Figure(name="threads", label="touching threads", kind="count"),
        ),
        charts=(
            Chart(name="stacks", title="First touch by call stack", kind="tree", role="detail", table="stacks", y_kind="bytes",
                  columns=(("frames", "frames"), ("weight", "estimated_bytes"), ("count", "samples")),
                  help="Callers above callees; widths are bytes, estimated from sampled call stacks."),
        ),
        tables=(
            replace(place, columns=(*place.columns, estimated)),
            by("by_thread", "By thread", key("thread", "thread", "thread", beside=("name",)), threads=False, least_rows=2, fold="bytes"),
            by("by_node", "By NUMA node", key("node", "NUMA node", "node", null="unknown"), least_rows=2),
            by("by_function", "By function", key("function", "function", "code"), role="detail", fold="bytes"),
            by("by_area", "By data area", key("area", "area"), role="detail"),
            Table(name="placed_by_kernel", title="Placed by the kernel without an event", role="detail", columns=(
                key("address", "address", "address"), measure("bytes", "bytes", "bytes"), measure("area", "area", "text"),
                measure("moved", "moved", "flag", show="nonzero"), measure("before", "before attaching", "flag", show="nonzero"),
            ), leads_to="placed"),
        ),
    )  # fmt: skip


DESCRIPTOR = AnalysisDescriptor(
    name="first_touch",
    question="Which function, line and thread touched the memory first, and so placed it?",
    needs=("fault",),
    run=first_touch,
    view=view,
    provide="memlens record (collector faults; memlens doctor says whether it works here)",
)
