"""Analysis `bandwidth`: bytes, time and access bandwidth of each region of a program that counts for itself.

Owns the metrics of compile-time counting (docs/bandwidth.md has the formulas): the tables and what is said about their
quality. Sums are in `_region_sums.py`, rows in `_region_rows.py` and `_code_rows.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..capture.model.count_tables import MIX
from ..capture.store.settings import settings_of
from ..registry import AnalysisDescriptor
from ._bandwidth_view import view
from ._code_rows import rows_by_code, rows_refused, rows_unseen
from ._gate import Gate
from ._levels import Levels, ceilings, roofline
from ._region_rows import OUTSIDE, event_of, per_second, rows_by_region, rows_by_thread
from ._region_sums import QUANTITIES, Path, Regions

if TYPE_CHECKING:
    import pyarrow as pa

    from ..capture.reader import Capture
    from ..results import Result
    from ._region_rows import BandwidthRow


def bandwidth(capture: Capture) -> Result:
    """Bytes, executions, time and access bandwidth by region, thread, function, inlined function, line and block.

    *Access bandwidth* is the traffic that the cores request: bytes that instructions moved by time, from whatever level. It is given by
    two definitions: ``bytes_per_thread_second``, all bytes by the sum of the threads' times in the region (the Examem
    paper's), and ``bytes_per_second``, all bytes by wall-clock time. Rows of ``by_region`` have a region with all that is
    inside it (``exclusive`` false) or without (true). A region is a path: ``a / b`` is b inside a.
    ``corrected_bytes_per_second`` is without the cost of counting: bytes of a counted execution by the time of an untouched one where
    there are any (``correction`` is untouched), else the counters' adds times the calibrated cost of one (calibrated).
    ``level`` is the level of memory that a region used, only with evidence (``level_evidence``); then ``peak_share`` is its bandwidth by
    that level's peak, which `memlens calibrate` has measured. ``roofline`` has regions whose arithmetic is known, ``roofline_ceilings`` what
    each level of memory could supply.
    With sampling, bytes are what counted executions moved times executions by counted ones, with a standard error where
    threads or epochs differ significantly. ``stack_*`` is what the compiler could follow to the function's own frame.
    """
    import pyarrow as pa

    from ..results import Quality, Result

    regions = Regions(capture)
    settings = settings_of(capture.meta, "block_count") or {}
    statuses = capture.table("count_status").to_pylist()
    add_ns = float(settings.get("add_ps") or 0) / 1000
    by_region = rows_by_region(capture, regions, add_ns)
    levels = Levels(capture, list(settings.get("events") or ()))
    gate = Gate(capture, regions, levels.peaks, _most_ns(statuses, "read_cost_ps"))
    for row in by_region:
        gate.apply(row)
    gate.spread(by_region)
    for row in by_region:
        levels.add_to(row, regions.times_of(tuple(row["region"].split(" / "))))
    by_thread, by_region_and_thread = rows_by_thread(capture, regions)
    code = rows_by_code(capture, regions)
    unseen = rows_unseen(capture, regions)
    refused = rows_refused(capture)
    over_time = _over_time(capture, regions)
    everything = by_region[0]
    sampled = regions.is_sampled
    text, number, real, wide = pa.string(), pa.uint32(), pa.float64(), pa.int64()
    figures: dict[str, Any] = {
        "loads": everything.get("loads"),
        "stores": everything.get("stores"),
        "read_bytes": everything.get("read_bytes"),
        "written_bytes": everything.get("written_bytes"),
        "accessed_bytes": everything.get("bytes"),
        "accessed_bytes_low": everything.get("bytes_low"),
        "accessed_bytes_high": everything.get("bytes_high"),
        "stack_share": everything.get("stack_share"),
        "regions": sum(row["region"] != OUTSIDE for row in by_region[1:] if not row["exclusive"]),
        "threads": len({(row["process"], row["thread"]) for row in by_thread}),
        "counted_share": everything.get("counted_share"),
        "estimated_accesses_share": everything.get("estimated_accesses_share"),
        "unseen_calls": sum(row["calls"] for row in unseen),
        "refused_functions": len(refused),
        "sampling": settings.get("sampling", "all"),
        "has_mix": regions.has_mix,
        "events": list(settings.get("events") or ()),
        "events_missing": _events_missing(list(settings.get("events") or ()), statuses, by_region),
        "clock": next((row["clock"] for row in statuses), None),
        "read_cost_ns": _most_ns(statuses, "read_cost_ps"),
        "switch_cost_ns": _most_ns(statuses, "switch_cost_ps"),
        "entry_cost_ns": regions.entry_cost_ns(),
        "add_cost_ns": add_ns or None,
        "peaks_known": levels.peaks is not None,
        "peaks_missing": levels.missing(by_region),
    }
    points = roofline(by_region, levels)
    counts_schema = [*((name, wide) for name in QUANTITIES), ("bytes", wide), ("share", real), ("stack_share", real)]
    mix_schema = [*((name, wide) for name in MIX), ("float_results_per_byte", real)]
    result_tables = {
        "by_region": _table(by_region, [
            ("region", text), ("name", text), ("depth", number), ("exclusive", pa.bool_()), ("executions", wide), ("counted", wide),
            ("untouched", wide), ("abandoned", wide), ("recursions", wide), ("threads", number), *counts_schema,
            ("bytes_error", real), ("bytes_low", real), ("bytes_high", real), ("bytes_error_reason", text), ("estimated", pa.bool_()), ("counted_share", real), ("estimated_accesses_share", real),
            ("thread_ns", wide), ("wall_ns", wide), ("wall_low_ns", wide), ("wall_high_ns", wide), ("least_ns", wide), ("most_ns", wide),
            ("own_cost_ns", wide), ("bytes_per_thread_second", real), ("bytes_per_second", real), ("bytes_per_second_low", real),
            ("bytes_per_second_high", real), ("withheld", text), ("bytes_withheld", text), ("corrected_bytes_per_second", real), ("correction", text), ("counting_cost_share", real),
            ("byte_imbalance", real), ("time_imbalance", real), *mix_schema,
            *((f"event_{n}", wide) for n in range(4)), ("event_share", real), ("working_threads", number), ("level", text),
            ("level_evidence", text), ("peak_kind", text), ("peak_bytes_per_second", real), ("peak_share", real),
            ("farthest_level", text), ("farthest_evidence", text), ("farthest_peak_bytes_per_second", real),
        ]),
        "roofline": _table(points, [
            ("region", text), ("level", text), ("level_evidence", text), ("threads", number), ("float_results_per_byte", real),
            ("float_results_per_second", real), ("peak_bytes_per_second", real), ("peak_results_per_second", real),
            ("arithmetic_share", real), ("attainable_results_per_second", real), ("attainable_share", real), ("limit", text)]),
        "roofline_ceilings": _table(ceilings(points, by_region, levels), [
            ("region", text), ("level", text), ("peak_kind", text), ("peak_bytes_per_second", real),
            ("attainable_results_per_second", real), ("reached_share", real)]),
        "by_thread": _table(by_thread, [("process", number), ("thread", number), ("name", text), *counts_schema,
                                        ("thread_ns", wide), ("bytes_per_thread_second", real)]),
        "by_region_and_thread": _table(by_region_and_thread, [
            ("region", text), ("process", number), ("thread", number), ("name", text), ("executions", wide), ("counted", wide),
            ("untouched", wide), *counts_schema, ("thread_ns", wide), ("bytes_per_thread_second", real)]),
        "by_function": _table(code["by_function"], [("function", text), ("module", text), ("file", text), ("line", number),
                                                    ("executions", wide), *counts_schema, ("vector_share", real), *mix_schema]),
        "by_scope": _table(code["by_scope"], [("function", text), ("inlined", pa.bool_()), ("module", text), *counts_schema]),
        "by_line": _table(code["by_line"], [("file", text), ("line", number), ("function", text), ("module", text),
                                            ("executions", wide), *counts_schema]),
        "by_block": _table(code["by_block"], [("function", text), ("module", text), ("block", number), ("file", text), ("line", number),
                                              ("depth", number), ("executions", wide), *counts_schema,
                                              ("float_bytes", wide), ("scalar_float_bytes", wide), *mix_schema]),
        "unseen": _table(unseen, [("callee", text), ("library", text), ("calls", wide), ("share", real), ("caller", text)]),
        "refused": _table(refused, [("function", text), ("module", text), ("file", text), ("line", number), ("reason", text)]),
        "over_time": _table(over_time, [("epoch", number), ("begin_s", real), ("end_s", real), ("region", text),
                                        ("read_bytes", wide), ("written_bytes", wide), ("thread_ns", wide),
                                        ("bytes_per_second", real)]),
    }  # fmt: skip
    notes = _notes(capture, regions, sampled=sampled, figures=figures)
    if refused:
        why = {row["reason"]: row["function"] for row in reversed(refused)}
        listed = ", ".join(f"{name}: {reason}" for reason, name in sorted(why.items()))
        notes.append(f"{len(refused)} functions have no counters, and their accesses are in no figure ({listed}).")
    return Result(
        "bandwidth",
        figures,
        result_tables,
        capture.quality.joined(
            Quality(exact=not sampled and not _losses(statuses), notes=tuple(notes), exact_for=EXACT_FOR)
        ),
    )


def _most_ns(statuses: list[dict[str, Any]], name: str) -> float | None:
    """The largest of all images in nanoseconds; None where none measured it."""
    return max((row[name] for row in statuses), default=0) / 1000 or None


def _table(rows: Sequence[Mapping[str, object]], columns: list[tuple[str, pa.DataType]]) -> pa.Table:
    import pyarrow as pa

    return pa.Table.from_pylist(rows, schema=pa.schema(columns))


def _over_time(capture: Capture, regions: Regions) -> list[dict[str, Any]]:
    """What each epoch added, by region."""
    if not capture.kinds().get("count_epoch"):
        return []
    counts = capture.counts
    places, sums = counts.places(epochs=True), counts.place_sums(epochs=True)
    rows: dict[tuple[int, Path], dict[str, Any]] = {}
    spans = {row["epoch"]: (row["begin_ns"], row["end_ns"]) for row in capture.table("count_epochs").to_pylist()}

    def row_of(epoch: int, path: Path) -> dict[str, Any]:
        begin, end = spans.get(epoch, (0, 0))
        empty = {
            "epoch": epoch, "begin_s": (begin - capture.begin_ns) / 1e9, "end_s": (end - capture.begin_ns) / 1e9,
            "region": " / ".join(path) or OUTSIDE, "read_bytes": 0, "written_bytes": 0, "thread_ns": 0,
        }  # fmt: skip
        return rows.setdefault((epoch, path), empty)

    for number in range(len(places)):
        path = counts.path_of(int(places.image[number]), int(places.node[number]))
        row = row_of(int(places.epoch[number]), path)
        factor = regions.factor(path)
        for name in ("read_bytes", "written_bytes"):
            value = int(sums[name][number])
            row[name] += value if factor == 1.0 else round(value * (factor or 0.0))
    for record in capture.table("region_time_records").to_pylist():
        if record["epoch"]:
            path = counts.path_of(record["image"], record["node"])
            row_of(record["epoch"], path)["thread_ns"] += (
                record["counted_ns"] + record["untouched_ns"] + record["open_ns"] + record["joined_ns"]
            )
    for row in rows.values():
        # Counters of loops are added before or after them: an epoch may end in between, and one be below nothing.
        row["bytes_per_second"] = per_second(
            max(0, row["read_bytes"] + row["written_bytes"]), (row["end_s"] - row["begin_s"]) * 1e9
        )
    return [rows[key] for key in sorted(rows)]


# ---- quality ---------------------------------------------------------------------------------------------------------------
EXACT_FOR = "the optimised IR"
IR_EXACT = (
    "Compiled-in counts are IR-exact: exact for the optimised IR, not for the machine code. Instruction selection can still narrow, fold or move "
    "loads and adds jump tables and spilled registers; docs/accuracy-count-packages.md has the measured difference of real programs, and "
    "`memlens verify` measures it for this one."
)


def _losses(statuses: list[dict[str, object]]) -> bool:
    return any(row["functions_refused"] or row["regions_refused"] or row["refused"] for row in statuses)


def _notes(capture: Capture, regions: Regions, *, sampled: bool, figures: dict[str, Any]) -> list[str]:
    from ..results import Note

    notes: list[str] = [IR_EXACT]
    if sampled:
        counted = sum(time.counted for time in regions.times.values())
        untouched = sum(time.untouched for time in regions.times.values())
        notes.append(
            f"Regions were sampled: {counted:,} of {counted + untouched:,} executions were counted, and bytes are estimates for all."
        )
        if (settings_of(capture.meta, "block_count") or {}).get("sampling") == "every":
            notes.append(
                "Every N-th execution was counted (periodic): executions that repeat in a pattern give wrong estimates, "
                "and no error can be given."
            )
        without = sorted({" / ".join(path) for path, _ in regions.times if regions.factor(path) is None})
        if without:
            notes.append(f"No execution of {', '.join(without[:5])} was counted: its bytes are not known and left out.")
    damaged = counts_damaged(capture)
    if damaged:
        notes.append(f"{damaged} functions have damaged static tables: what they did is left out.")
    missing = {
        row["path"]: row["status"] for row in capture.table("counted_modules").to_pylist() if row["status"] != "read"
    }
    for path, status in missing.items():
        why = {
            "missing": "its file is gone",
            "replaced": "its file was replaced",
            "no_tables": "its file has no tables",
        }
        notes.append(f"What {path} counted is left out: {why.get(status, status)}.")
    negative = int((capture.counts.by_group().executions < 0).sum())
    if negative:
        notes.append(
            f"{negative} counts are below zero: a thread was stopped between two counters that are read together; "
            "sums that contain them are off by the same amount."
        )
    share = figures["estimated_accesses_share"]
    if share and share > 0.01:
        notes.append(
            f"{share:.0%} of the loads and stores are copies, fills and comparisons, taken as one for 8 bytes; their bytes are not estimated."
        )
    statuses = capture.table("count_status").to_pylist()
    notes += [Note("bandwidth.event_missing", f"{name}: {why}.") for name, why in figures["events_missing"].items()]
    merged = sum(row["threads_merged"] for row in statuses)
    if merged:
        notes.append(
            Note(
                "bandwidth.threads_merged",
                f"{merged} threads were added up when they ended: they are one row (thread 0), and in no imbalance.",
            )
        )
    return notes


def _events_missing(events: list[str], statuses: list[dict[str, Any]], rows: list[BandwidthRow]) -> dict[str, str]:
    """Events without a value in some region → why."""
    import os

    found: dict[str, str] = {}
    for number, name in enumerate(events):
        refused = [row for row in statuses if not row["events_open"] >> number & 1]
        without = [
            row["region"]
            for row in rows
            if not row["exclusive"] and row["counted"] + row["untouched"] and event_of(row, number) is None
        ]
        if refused:
            why = os.strerror(refused[0]["event_error"]).lower() if refused[0]["event_error"] else "reason not known"
            found[name] = f"could not be opened ({why}): its values are not known"
        elif without:
            found[name] = (
                f"was not counted in every execution or thread of {', '.join(sorted(set(without))[:3])}: no value there"
            )
    return found


def counts_damaged(capture: Capture) -> int:
    sound = capture.table("count_functions").column("sound").to_pylist()
    return sum(not value for value in sound)


DESCRIPTOR = AnalysisDescriptor(
    name="bandwidth",
    question="How many bytes does each region, function and line move, how fast, and how evenly over threads?",
    needs=("block_count",),
    run=bandwidth,
    view=view,
    provide="memlens cc, then memlens record",
)
