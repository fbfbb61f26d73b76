"""Analysis `objects`: what the program allocates, where, how much of it is used, and what is left."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from ..capture.store.layouts import enum_value
from ..registry import AnalysisDescriptor
from ..units import human_bytes
from ..view import Chart, Figure, Series, Table, View, detail, key, measure

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from ..capture.model.call_stacks import CallStacks, Frame
    from ..capture.reader import Capture
    from ..results import Key, Result

LARGEST = 200
"""Objects listed one by one."""
CURVE_PROCESSES = 8


def objects(capture: Capture) -> Result:
    """Objects by allocation site, the largest ones, leaks, and live bytes over time.

    The first small objects of a process are all recorded, later ones are sampled (unless every object was
    recorded): ``allocations`` and bytes are then estimates, scaled by what each recorded object stands for, and
    ``*_error`` is the standard error of each, 0 where it is exact; ``samples`` counts the sampled objects behind a
    row. Whether an object is temporary (freed before its thread allocates again) is not known of a sample: null.
    A sampled peak is estimated from two halves of the sample, because the maximum of a noisy curve is biased upwards.
    Bytes are requested bytes. Touched
    bytes come from page faults, so they are known for whole pages only: ``recycled`` pages were
    touched before the object was born, and whether it used them too is not known. ``never_touched``
    is known for private anonymous memory only (null otherwise): of files and shared memory one
    fault maps several pages.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from ..capture.model.call_stacks import call_stacks
    from ..results import Note, Quality, Result
    from ._fault_sampling import is_sampled
    from ._fault_sampling import notes as sampling_notes
    from ._selected_objects import chosen_objects, object_totals

    engine = capture.objects
    stacks = call_stacks(capture)
    totals, chosen = object_totals(capture), chosen_objects(capture)
    sites = engine.sites() if totals is None else totals.sites()
    peaks = engine.peaks() if totals is None else totals.by_process()
    heap = sites.filter(pc.equal(sites.column("kind"), "heap"))
    by_site = _by_site(capture, sites, stacks)
    ended = {row["process"] for row in capture.table("processes").to_pylist() if row["end_ns"] is not None}
    leaks = _leaks(heap, stacks, ended)

    status = capture.table("runtime_status")
    rate = max(status.column("sample_bytes").to_pylist(), default=0)
    sampled = rate > 0 and _has_sampled(status.column("flags").to_pylist())
    if sampled:
        by_site = _without_temporary(by_site)
    peak = max(peaks.to_pylist(), key=lambda row: row["heap_peak_bytes"], default=None)
    data = engine.is_kind("heap", "mmap") & chosen
    known = engine.pages_known("never") & data
    never = int(engine.pages("never")[known].sum()) if engine.touches is not None and not is_sampled(capture) else None
    figures: dict[str, Any] = {
        "peak_heap_bytes": peak["heap_peak_bytes"] if peak else 0,
        "peak_heap_bytes_error": peak["heap_peak_error"] if peak else 0.0,
        "peak_heap_process": peak["process"] if peak else None,
        "peak_heap_s": (peak["heap_peak_ns"] - capture.begin_ns) / 1e9 if peak and peak["heap_peak_ns"] else None,
        "peak_mmap_bytes": max(peaks.column("mmap_peak_bytes").to_pylist(), default=0),
        "allocations": float(pc.sum(heap.column("allocations")).as_py() or 0),
        "allocated_bytes": int(pc.sum(heap.column("allocated_bytes")).as_py() or 0),
        "allocations_error": _joint(peaks.column("allocations_error").to_pylist()),
        "allocated_bytes_error": _joint(peaks.column("allocated_bytes_error").to_pylist()),
        "temporary_allocations": None if sampled else float(pc.sum(heap.column("temporary")).as_py() or 0),
        "leaked_bytes": sum(row["live_bytes"] for row in leaks),
        "leaked_bytes_error": _joint(row["live_bytes_error"] for row in leaks),
        "leaked_objects": sum(row["live"] for row in leaks),
        "leaked_objects_error": _joint(row["live_error"] for row in leaks),
        "never_touched_bytes": never,
        "objects_recorded": engine.count_of("heap", "mmap") if totals is None else int(data.sum()),
        "sample_bytes": rate if sampled else 0,
        "processes": peaks.num_rows,
    }
    notes = list(sampling_notes(capture))
    if sampled:
        notes.append(
            Note(
                "objects.sampled",
                f"After the first 5,000, objects below {human_bytes(status.column('large_bytes')[0].as_py())} are sampled, one in at "
                f"most {human_bytes(rate)} of allocations: their counts and bytes are estimates (± is two standard errors; record "
                "with --sample-bytes 0 for all).",
            )
        )
    thinned = sum(1 for flag in status.column("flags").to_pylist() if flag & THINNED)
    if thinned:
        notes.append(
            Note(
                "objects.thinned",
                f"In {thinned} processes recording objects cost more than the budget allows: large objects were sampled too, from "
                "then on; memlens record --exact records all of them.",
            )
        )
    counts = engine.counts
    if counts["lost_releases"]:
        notes.append(
            Note(
                "objects.lost_releases",
                f"{counts['lost_releases']} releases were not seen; these objects end where the next one begins.",
            )
        )
    other = [row for row in status.to_pylist() if row["flags"] & OTHER_MALLOC]
    if other:
        notes.append(
            Note(
                "objects.other_malloc",
                f"{len(other)} processes define malloc themselves (a statically linked allocator): their heap is not seen.",
            )
        )
    notes.extend(_without_library(capture, status))
    return Result(
        "objects",
        figures,
        {
            "by_site": by_site,
            "largest": _largest(capture, stacks),
            "leaks": pa.Table.from_pylist(leaks, schema=LEAK_SCHEMA()),
            "stacks": _stacks(heap, stacks),
            "over_time": _over_time(capture, peaks),
            "by_process": peaks,
        },
        capture.quality.joined(Quality(exact=not sampled and not notes, notes=tuple(notes))),
    )


OTHER_MALLOC, EXACT_FIRST, SAMPLED, THINNED = (
    enum_value("runtime_flags", name) for name in ("other_malloc", "exact_first", "sampled", "thinned")
)


def _has_sampled(flags: list[int]) -> bool:
    """Whether small objects may be missing: a process has left its exact beginning, or (older captures) there was none."""
    return any(flag & SAMPLED for flag in flags) or not any(flag & EXACT_FIRST for flag in flags)


def _joint(errors: Iterable[float]) -> float:
    """Standard error of a sum of independent estimates."""
    return math.sqrt(sum(error * error for error in errors))


def _without_temporary(by_site: pa.Table) -> pa.Table:
    import pyarrow as pa

    at = by_site.column_names.index("temporary")
    return by_site.set_column(at, "temporary", pa.nulls(by_site.num_rows, pa.float64()))


ERRORS = ("allocations_error", "allocated_bytes_error", "peak_bytes_error", "live_error", "live_bytes_error")


def LEAK_SCHEMA() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            ("function", pa.string()), ("module", pa.string()), ("file", pa.string()), ("line", pa.uint32()),
            ("process", pa.uint32()), ("live", pa.float64()), ("live_bytes", pa.uint64()), ("sampled", pa.bool_()),
            ("samples", pa.uint64()), ("live_error", pa.float64()), ("live_bytes_error", pa.float64()),
            ("frames", pa.list_(pa.string())), ("via", pa.string()),
        ]
    )  # fmt: skip


def _without_library(capture: Capture, status: pa.Table) -> list[str]:
    """Programs that ran without our library: static ones, setuid ones, other namespaces."""
    seen = Counter(status.column("process").to_pylist())
    missing = [
        row
        for row in capture.table("processes").to_pylist()
        # One status for each program that a process executed, and one for a child before its first.
        if seen[row["process"]] < max(row["execs"], 0 if row["parent"] else 1)
    ]
    if not missing or capture.standalone:
        return []
    names = sorted({row["name"] or "?" for row in missing})
    from ..results import Note

    return [
        Note(
            "objects.unseen_processes",
            f"{len(missing)} processes ran without our library, so their objects are not seen ({', '.join(names[:5])}"
            f"{', …' if len(names) > 5 else ''}): statically linked, setuid, of another user or in another namespace.",
        ),
    ]


def _by_site(capture: Capture, sites: pa.Table, stacks: CallStacks) -> pa.Table:
    """Sums over call stacks that end in one line. `recorded` objects are what the sums rest on; `cleared_bytes` were asked of
    calloc; `via` is a wrapper that the line allocates through."""
    import numpy as np
    import pyarrow as pa

    from ._selected_objects import chosen_objects, object_totals

    engine = capture.objects
    site_of_object = np.asarray(engine.columns["site"])
    totals = object_totals(capture)
    placed = (site_of_object < sites.num_rows) & chosen_objects(capture)
    touched: dict[str, Any] = {}
    if engine.touches is not None:
        for name, which in (
            ("touched_bytes", "touched"),
            ("recycled_bytes", "recycled"),
            ("never_touched_bytes", "never"),
        ):
            sums = np.bincount(
                site_of_object[placed], weights=engine.pages(which)[placed].astype(float), minlength=sites.num_rows
            )
            known = np.bincount(site_of_object[placed & engine.pages_known(which)], minlength=sites.num_rows) > 0
            touched[name] = [int(value) if is_known else None for value, is_known in zip(sums, known, strict=True)]
    merged: dict[Key, dict[str, Any]] = {}
    group_of_site = np.full(sites.num_rows, -1)
    for number, row in enumerate(sites.to_pylist()):
        if row["kind"] not in ("heap", "mmap") or (totals is not None and not row["objects"] and not row["peak_bytes"]):
            continue
        site = stacks.site(row["stack"])
        key = (row["kind"], site["function"], site["module"], site["file"], site["line"])
        entry = merged.setdefault(
            key,
            {
                **site, "group": len(merged), "kind": row["kind"], "stacks": 0, "recorded": 0, "cleared_bytes": 0, "allocations": 0.0, "allocated_bytes": 0, "peak_bytes": 0,
                "bytes_at_process_peak": 0, "live": 0.0, "live_bytes": 0, "releases": 0.0, "lifetime_ns": 0.0,
                "temporary": 0.0, "largest_bytes": 0, "touched_bytes": None, "recycled_bytes": None,
                "never_touched_bytes": None, "sampled": False, "samples": 0, **dict.fromkeys(ERRORS, 0.0),
            },
        )  # fmt: skip
        entry["stacks"] += 1
        entry["recorded"] += row["rows"]
        entry["cleared_bytes"] += int(row["cleared_bytes"])
        entry["via"] = entry["via"] or site["via"]
        for name in ("allocations", "allocated_bytes", "bytes_at_process_peak", "live", "live_bytes", "releases",
                     "lifetime_ns", "temporary", "peak_bytes", "samples"):  # fmt: skip
            entry[name] += row[name]
        for name in ERRORS:
            entry[name] = _joint((entry[name], row[name]))
        group_of_site[number] = entry["group"]
        entry["largest_bytes"] = max(entry["largest_bytes"], row["max_bytes"])
        entry["sampled"] = entry["sampled"] or row["sampled"]
        for name, of_site in touched.items():
            if of_site[number] is not None:
                entry[name] = (entry[name] or 0) + of_site[number]
    entries = list(merged.values())
    # The peaks of several call stacks are not at one time.
    several = np.array([entry["stacks"] > 1 for entry in entries], dtype=bool)
    if totals is None:
        together = np.where(several[group_of_site], group_of_site, -1) if len(entries) else group_of_site
        together[group_of_site < 0] = -1
        peaks = dict(enumerate(engine.peaks_together(together, len(entries)).tolist()))
    else:
        of_object = np.where(totals.placed, group_of_site[np.where(totals.placed, site_of_object, 0)], -1)
        peaks = {group: peak for group, (peak, _, _) in totals.peaks(of_object, of_object >= 0).items()}
    for group, peak in peaks.items():
        if several[group]:
            entries[group]["peak_bytes"] = peak
    rows = sorted(merged.values(), key=lambda entry: -entry["peak_bytes"])
    for entry in rows:
        del entry["group"]
        total, count = entry.pop("lifetime_ns"), entry["releases"]
        entry["mean_lifetime_ns"] = total / count if count else None
    schema = pa.schema(
        [
            ("function", pa.string()), ("module", pa.string()), ("file", pa.string()), ("line", pa.uint32()),
            ("kind", pa.string()), ("allocations", pa.float64()), ("allocated_bytes", pa.uint64()),
            ("peak_bytes", pa.uint64()), ("bytes_at_process_peak", pa.uint64()), ("live", pa.float64()),
            ("live_bytes", pa.uint64()), ("releases", pa.float64()), ("mean_lifetime_ns", pa.float64()),
            ("temporary", pa.float64()), ("largest_bytes", pa.uint64()), ("touched_bytes", pa.uint64()),
            ("recycled_bytes", pa.uint64()), ("never_touched_bytes", pa.uint64()), ("stacks", pa.uint32()),
            ("sampled", pa.bool_()), ("recorded", pa.uint64()), ("cleared_bytes", pa.uint64()), ("via", pa.string()),
            ("samples", pa.uint64()), *((name, pa.float64()) for name in ERRORS),
        ]
    )  # fmt: skip
    return pa.Table.from_pylist(rows, schema=schema)


def _leaks(heap: pa.Table, stacks: CallStacks, ended: set[int]) -> list[dict[str, Any]]:
    """What lives when its process ends, by call stack, most bytes first."""
    import pyarrow.compute as pc

    rows = []
    for row in heap.filter(pc.greater(heap.column("live"), 0)).to_pylist():
        if row["process"] not in ended:
            continue
        names = ("process", "live", "live_bytes", "sampled", "live_error", "live_bytes_error")
        rows.append(
            {
                **stacks.site(row["stack"]),
                **{n: row[n] for n in names},
                "samples": row["live_samples"],
                "frames": stacks.names(row["stack"]),
            }
        )
    return sorted(rows, key=lambda row: -row["live_bytes"])


def _largest(capture: Capture, stacks: CallStacks) -> pa.Table:
    """The largest objects one by one, with who touched them first."""
    import numpy as np
    import pyarrow as pa

    from ..capture.model.call_stacks import NO_FRAME
    from ._selected_objects import chosen_objects

    engine = capture.objects
    mine = np.flatnonzero(engine.is_kind("heap", "mmap", "tag", "static", "tls") & chosen_objects(capture))
    sizes = np.asarray(engine.columns["bytes"])[mine]
    if len(mine) > LARGEST:
        mine = mine[np.argpartition(sizes, len(sizes) - LARGEST)[-LARGEST:]]
        sizes = np.asarray(engine.columns["bytes"])[mine]
    mine = mine[np.argsort(-sizes.astype(np.int64), kind="stable")]
    rows = []
    end_ns = capture.end_ns
    for row in engine.table(mine).to_pylist():
        touch: Frame = stacks.code_row(row["first_touch_code"]) or NO_FRAME
        row["site"] = stacks.site(row["stack"])
        rows.append(
            {
                "id": row["id"], "process": row["process"], "kind": row["kind"], "name": row["name"], "base": row["base"],
                "bytes": row["bytes"], "born_s": (row["born_ns"] - capture.begin_ns) / 1e9,
                "lifetime_s": ((row["died_ns"] or end_ns) - row["born_ns"]) / 1e9, "released": row["died_ns"] is not None,
                "thread": row["thread"], **row["site"], "touched_bytes": row["touched_bytes"],
                "recycled_bytes": row["recycled_bytes"], "never_touched_bytes": row["never_touched_bytes"],
                "touching_threads": row["touching_threads"], "first_touch_thread": row["first_touch_thread"],
                "first_touch_function": touch["function"], "first_touch_file": touch["file"], "first_touch_line": touch["line"],
            }
        )  # fmt: skip
    schema = pa.schema(
        [
            ("id", pa.uint64()), ("process", pa.uint32()), ("kind", pa.string()), ("name", pa.string()),
            ("base", pa.uint64()), ("bytes", pa.uint64()), ("born_s", pa.float64()), ("lifetime_s", pa.float64()),
            ("released", pa.bool_()), ("thread", pa.uint32()), ("function", pa.string()), ("module", pa.string()),
            ("file", pa.string()), ("line", pa.uint32()), ("touched_bytes", pa.uint64()),
            ("recycled_bytes", pa.uint64()), ("never_touched_bytes", pa.uint64()), ("touching_threads", pa.uint32()),
            ("first_touch_thread", pa.uint32()), ("first_touch_function", pa.string()), ("first_touch_file", pa.string()),
            ("first_touch_line", pa.uint32()),
        ]
    )  # fmt: skip
    return pa.Table.from_pylist(rows, schema=schema)


def _stacks(heap: pa.Table, stacks: CallStacks) -> pa.Table:
    """Call stacks with what they allocated and held at the process's peak: the site tree and flame data."""
    import pyarrow as pa

    merged: dict[tuple[str, ...], list[float]] = {}
    for row in heap.to_pylist():
        entry = merged.setdefault(tuple(stacks.names(row["stack"])), [0, 0, 0, 0])
        for at, name in enumerate(("bytes_at_process_peak", "allocated_bytes", "allocations", "live_bytes")):
            entry[at] += row[name]
    rows: list[dict[str, Any]] = [
        {"frames": list(names), "bytes_at_process_peak": int(at_peak), "allocated_bytes": int(allocated),
         "allocations": count, "live_bytes": int(live)}
        for names, (at_peak, allocated, count, live) in merged.items()
    ]  # fmt: skip
    rows.sort(key=lambda row: -row["bytes_at_process_peak"])
    schema = pa.schema(
        [
            ("frames", pa.list_(pa.string())), ("bytes_at_process_peak", pa.uint64()), ("allocated_bytes", pa.uint64()),
            ("allocations", pa.float64()), ("live_bytes", pa.uint64()),
        ]
    )  # fmt: skip
    return pa.Table.from_pylist(rows, schema=schema)


def _over_time(capture: Capture, peaks: pa.Table) -> pa.Table:
    """Live heap and mmap bytes of the largest processes."""
    import numpy as np
    import pyarrow as pa

    from ._selected_objects import object_totals

    source = object_totals(capture) or capture.objects
    parts = []
    order = peaks.sort_by([("heap_peak_bytes", "descending")]).column("process").to_pylist()[:CURVE_PROCESSES]
    for process in order:
        for kind in ("heap", "mmap"):
            times, levels = source.curve(process, kind)
            parts.append(
                pa.table(
                    {
                        "process": pa.array(np.full(len(times), process, dtype=np.uint32)),
                        "kind": pa.array([kind] * len(times), type=pa.string()),
                        "time_s": pa.array((np.asarray(times).astype(np.int64) - capture.begin_ns) / 1e9),
                        "bytes": pa.array(np.asarray(levels)),
                    }
                )
            )
    schema = pa.schema(
        [("process", pa.uint32()), ("kind", pa.string()), ("time_s", pa.float64()), ("bytes", pa.uint64())]
    )
    return pa.concat_tables([part.cast(schema) for part in parts]) if parts else schema.empty_table()


def view(result: Result) -> View:
    figures = result.figures
    of = " of the largest process" if figures["processes"] > 1 else ""
    heap = (
        f"peak heap{of} {{peak_heap_bytes}}[ at {{peak_heap_s}}]; {{allocations}} allocation(s) of {{allocated_bytes}}"
        if figures["allocations"]
        else f"no heap object was recorded{' (small ones are sampled)' if figures['sample_bytes'] else ''}"
    )
    processes = list(dict.fromkeys(result.tables["over_time"].column("process").to_pylist()))
    site, kind = key("function", "allocated by", "code"), key("kind", "kind")
    touched = (
        detail("touched_bytes", "touched", "bytes", help="Whole pages that faults placed while the object lived."),
        detail("recycled_bytes", "recycled", "bytes", help="Pages touched before the object was born."),
    )
    never = measure("never_touched_bytes", "never touched", "bytes", show="nonzero", zero="", better="lower", null="")
    return View(
        title="Objects",
        order=500,
        headline=f"{heap}[; mmap peak {{peak_mmap_bytes}}][; {{never_touched_bytes}} never touched][; {{leaked_bytes}} not freed at exit]",
        figures=(
            Figure(name="peak_heap_bytes", label="peak heap", kind="bytes", better="lower", error="peak_heap_bytes_error", help="Requested bytes of live objects, of one process."),
            Figure(name="peak_heap_process", label="process of the peak heap", kind="process"),
            Figure(name="peak_heap_s", label="time of the peak heap", kind="time_s"),
            Figure(name="peak_mmap_bytes", label="peak of mmap", kind="bytes", better="lower", help="Mapped by the program itself."),
            Figure(name="allocations", label="allocations", kind="count", better="lower", error="allocations_error"),
            Figure(name="allocated_bytes", label="allocated", kind="bytes", better="lower", error="allocated_bytes_error", help="All allocations of the run, freed or not."),
            Figure(name="temporary_allocations", label="temporary allocations", kind="count", better="lower", help="Freed before their thread allocated again; not known of a sample."),
            Figure(name="leaked_bytes", label="not freed at exit", kind="bytes", better="lower", error="leaked_bytes_error", help="Of the heap, when its process ended."),
            Figure(name="leaked_objects", label="objects not freed at exit", kind="count", better="lower", error="leaked_objects_error"),
            Figure(name="never_touched_bytes", label="never touched", kind="bytes", better="lower", help="Whole pages of recorded objects in private anonymous memory."),
            Figure(name="objects_recorded", label="recorded objects", kind="count"),
            Figure(name="sample_bytes", label="sampling rate", kind="bytes", show="nonzero", help="One small object in about so many bytes; 0: every object."),
            Figure(name="processes", label="processes with objects", kind="count"),
        ),
        charts=(
            Chart(name="live", title="Live bytes over time", kind="timeline", role="detail", x_kind="time_s", y_kind="bytes", series=tuple(
                Series(label=what if len(processes) == 1 else f"{what} of process {process}", table="over_time", x="time_s", y="bytes",
                       where=(("process", process), ("kind", what)))
                for process in processes for what in ("heap", "mmap"))),
            Chart(name="held", title="Heap at the peak, by call stack", kind="tree", role="detail", table="stacks", y_kind="bytes",
                  columns=(("frames", "frames"), ("weight", "bytes_at_process_peak"), ("count", "allocations")),
                  help="Bytes that each process held at its own peak of the heap; callers above callees."),
            Chart(name="made", title="Allocations, by call stack", kind="tree", role="detail", table="stacks", y_kind="count",
                  columns=(("frames", "frames"), ("weight", "allocations"), ("count", "allocated_bytes")),
                  help="All allocations of the run, freed or not; callers above callees."),
        ),
        tables=(
            Table(name="by_site", title="By allocation site", role="key", columns=(
                site, kind,
                measure("peak_bytes", "peak", "bytes", error="peak_bytes_error", better="lower"),
                measure("allocations", "allocations", "count", error="allocations_error", better="lower"),
                measure("mean_lifetime_ns", "mean life", "ns", null="to the end"),
                never,
                measure("live_bytes", "live at exit", "bytes", error="live_bytes_error", better="lower", zero="", show="nonzero"),
                detail("allocated_bytes", "allocated", "bytes", error="allocated_bytes_error", better="lower"),
                detail("bytes_at_process_peak", "at process peak", "bytes"),
                detail("temporary", "temporary", "count", of="allocations", help="Freed before their thread allocated again."),
                detail("largest_bytes", "largest", "bytes"), *touched,
                detail("sampled", "sampled", "flag", show="nonzero"),
            ), leads_to="objects"),
            Table(name="largest", title="Largest objects", role="detail", columns=(
                key("name", "object", "object", null=""), key("function", "allocated by", "code"), kind,
                measure("bytes", "bytes", "bytes", better="lower"), measure("born_s", "born", "time_s"), measure("lifetime_s", "lifetime", "s"),
                *touched, never, measure("first_touch_function", "first touched by", "code"),
                measure("first_touch_thread", "first thread", "thread"), measure("touching_threads", "touching threads", "count"),
            ), leads_to="objects"),
            Table(name="leaks", title="Not freed at exit, by call stack", role="detail", sort="-live_bytes", columns=(
                key("function", "allocated by", "code"), measure("live_bytes", "bytes", "bytes", error="live_bytes_error", better="lower"),
                measure("live", "objects", "count", error="live_error", better="lower"), measure("frames", "called from", "frames"),
            ), empty="Every heap object that was seen was freed before its process ended, or no process has ended.", leads_to="objects"),
        ),
    )  # fmt: skip


DESCRIPTOR = AnalysisDescriptor(
    name="objects",
    question="Which objects does the program allocate, where, how long do they live, and which are never used?",
    needs=("runtime_status",),
    run=objects,
    view=view,
    provide="memlens record (collector alloc)",
)
