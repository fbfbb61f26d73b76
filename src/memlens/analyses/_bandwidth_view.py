"""What `bandwidth` shows: regions first, then the roofline, code, threads, and what was not seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..view import Chart, Column, Figure, Series, Table, View, detail, key, measure

if TYPE_CHECKING:
    from ..results import Result
    from ._region_rows import BandwidthRow

GIGABYTES = "GB/s: 10^9 bytes a second, over the time during which at least one thread was in the region, as a stopwatch shows it; a range where executions are too short to know that time."
THREAD_GIGABYTES = "By thread: bytes over the time that threads spent in the region, added up."
ROOFLINE = "Of each level: results reached by those attainable if all bytes came from there; the level that a region used needs its own events."
MOST_SERIES = 6
"""Regions that the chart over time draws."""
OUTSIDE = "(outside regions)"


def view(result: Result) -> View:
    figures = result.figures
    regions = [row for row in result.tables["by_region"].to_pylist()[1:] if not row["exclusive"]]
    about = "about " if figures["counted_share"] not in (None, 1.0) else ""
    unmarked = "" if any(row["region"] != OUTSIDE for row in regions) else (
        "; no region was marked (memlens.h, #pragma memlens, or memlens cc --memlens-functions=REGEX)"
    )  # fmt: skip
    remarks = [GIGABYTES] if regions else []
    if any((row["threads"] or 0) > 1 for row in regions):
        remarks.append(THREAD_GIGABYTES)
    if any(row["estimated"] for row in regions):
        remarks.append("±: two standard errors.")
    if any(row["correction"] for row in regions):
        remarks.append(
            "Bandwidth is without the cost of counting, as the untouched executions or the calibration show it."
        )
    remarks += dict.fromkeys(f"Evidence of {row['level']}: {row['level_evidence']}." for row in regions if row["level"])
    remarks += [f"{name}: {why}" for name, why in figures["events_missing"].items()]
    if figures["peaks_missing"]:
        remarks.append(str(figures["peaks_missing"]))
    if result.tables["roofline"].num_rows:
        remarks.append(ROOFLINE)
    return View(
        title="Bandwidth",
        order=200,
        headline=f"{about}{{read_bytes}} read by {{loads}} loads, {about}{{written_bytes}} written by {{stores}} stores"
        f"[; {{stack_share}} of the bytes on the stack]{unmarked}",
        figures=_figures(),
        tables=_tables(result, regions),
        charts=_charts(result),
        remarks=tuple(remarks),
    )


def _figures() -> tuple[Figure, ...]:
    return (
        Figure(name="read_bytes", label="read", kind="moved", better="lower"),
        Figure(name="written_bytes", label="written", kind="moved", better="lower"),
        Figure(name="accessed_bytes", label="accessed", kind="moved", better="lower", low="accessed_bytes_low", high="accessed_bytes_high",
               help="Bytes read and written by counted code."),
        Figure(name="loads", label="loads", kind="count", better="lower"),
        Figure(name="stores", label="stores", kind="count", better="lower"),
        Figure(name="stack_share", label="on the stack", kind="share", help="Of the accessed bytes."),
        Figure(name="regions", label="regions", kind="count"),
        Figure(name="threads", label="threads", kind="count"),
        Figure(name="counted_share", label="counted executions", kind="share", help="Of all executions of regions; the others were estimated from these."),
        Figure(name="estimated_accesses_share", label="accesses of copies and fills", kind="share",
               help="Of all loads and stores: copies, fills and comparisons, taken as one for 8 bytes. Their bytes are exact."),
        Figure(name="unseen_calls", label="calls of uncounted code", kind="count", better="lower", show="nonzero"),
        Figure(name="refused_functions", label="functions left uncounted", kind="count", better="lower", show="nonzero"),
        Figure(name="sampling", label="executions counted", kind="text"),
        Figure(name="clock", label="clock", kind="text"),
        Figure(name="has_mix", label="instruction mix counted", kind="flag"),
        Figure(name="peaks_known", label="peaks of the machine known", kind="flag"),
        Figure(name="peaks_missing", label="why not", kind="text"),
        Figure(name="read_cost_ns", label="cost of reading the clock", kind="ns"),
        Figure(name="switch_cost_ns", label="cost of a region switch", kind="ns"),
        Figure(name="entry_cost_ns", label="cost of a thread's first entry", kind="ns"),
        Figure(name="add_cost_ns", label="cost of an addition to a counter", kind="ns"),
    )  # fmt: skip


def _moved() -> tuple[Column, ...]:
    return (
        measure("read_bytes", "read", "moved", better="lower"), measure("written_bytes", "written", "moved", better="lower"),
    )  # fmt: skip


LOADS = (detail("loads", "loads", "count", better="lower"), detail("stores", "stores", "count", better="lower"))


def _rest() -> tuple[Column, ...]:
    """Columns for which the terminal has no room."""
    return (
        *LOADS,
        detail("integer_operations", "integer operations", "count", show="known"), detail("float_operations", "float operations", "count", show="known"),
        detail("vector_operations", "vector operations", "count", show="known"), detail("branches", "branches", "count", show="known"),
        detail("calls", "calls", "count", show="known"), detail("prefetches", "prefetches", "count", show="known"),
    )  # fmt: skip


def _tables(result: Result, regions: list[BandwidthRow]) -> tuple[Table, ...]:
    events = [
        measure(f"event_{number}", str(name), "count", show="known") for number, name in enumerate(result.figures["events"])
    ]  # fmt: skip
    code = (
        *_moved(), measure("share", "share", "share", bar=True), measure("stack_share", "stack", "share"),
    )  # fmt: skip
    return (
        Table(name="by_region", title="By region", role="key", where=(("exclusive", False),), depth="depth", columns=(
            key("name", "region", "region"),
            measure("executions", "times", "count", show="nonzero"),
            measure("counted", "counted", "count", show="nonzero" if any(row["estimated"] for row in regions) else "always") if any(row["estimated"] for row in regions)
            else detail("counted", "counted", "count"),
            measure("wall_ns", "time", "ns", low="wall_low_ns", high="wall_high_ns", better="lower", help="At least one thread was in the region."),
            measure("bytes", "bytes", "moved", low="bytes_low", high="bytes_high", error="bytes_error", better="lower", reason="bytes_error_reason"),
            measure("share", "share", "share"),
            measure("bytes_per_second", "GB/s", "bytes_per_s", low="bytes_per_second_low", high="bytes_per_second_high", better="higher", reason="withheld"),
            measure("peak_share", "of the peak", "share", better="higher", show="known", beside=("level",)),
            *_moved(),  # a narrow terminal has no room for the last columns
            *((measure("bytes_per_thread_second", "by thread", "bytes_per_s", better="higher"),
               measure("byte_imbalance", "imbalance", "share", better="lower", show="known", help="Bytes of the busiest thread over the mean, less one."))
              if any((row["threads"] or 0) > 1 for row in regions) else ()),
            *events,
            detail("threads", "threads", "count"), detail("thread_ns", "time of threads", "ns"),
            detail("time_imbalance", "imbalance of time", "share", show="known"),
            detail("corrected_bytes_per_second", "GB/s, corrected", "bytes_per_s", show="known"), detail("correction", "correction", "text", show="known"),
            detail("counting_cost_share", "cost of counting", "share", show="known"), detail("own_cost_ns", "own cost", "ns", show="known"),
            detail("event_share", "time that events ran", "share", show="known"),
            detail("stack_share", "stack", "share"), detail("float_results_per_byte", "flop/B", "number", show="known"),
            detail("farthest_level", "reached level", "text", show="known"), detail("farthest_evidence", "its evidence", "text", show="known"),
            *_rest(),
        ), leads_to="region_times"),
        Table(name="roofline", title="Roofline", columns=(
            key("region", "region", "region"),
            measure("float_results_per_byte", "flop/B", "number", better="higher"), measure("float_results_per_second", "flop/s", "number", better="higher"),
            measure("arithmetic_share", "of arithmetic", "share", better="higher"),
            measure("level", "level", "text", show="known"), measure("limit", "limited by", "text", show="known"),
            detail("level_evidence", "evidence", "text", show="known"), detail("attainable_share", "of the attainable", "share", show="known"),
        )),
        Table(name="roofline_ceilings", title="Ceilings", columns=(
            key("region", "region", "region"), key("level", "ceiling of"), measure("peak_bytes_per_second", "peak, GB/s", "bytes_per_s"),
            measure("attainable_results_per_second", "attainable flop/s", "number"), measure("reached_share", "reached", "share", better="higher"),
            detail("peak_kind", "peak of", "text"),
        )),
        Table(name="by_function", title="By function", columns=(
            key("function", "function", "code"), measure("executions", "calls", "count", show="known"), *code,
            measure("vector_share", "vector", "share", show="nonzero"), measure("float_results_per_byte", "flop/B", "number", show="known"), *_rest(),
        ), leads_to="site_counts"),
        Table(name="by_line", title="By line", role="detail", columns=(
            key("function", "line", "code"), measure("executions", "times", "count", show="known"), *code, *LOADS,
        ), leads_to="site_counts"),
        Table(name="by_scope", title="By inlined function", role="detail", columns=(
            key("function", "function", "code"), detail("inlined", "inlined", "flag"), *code, *LOADS,
        ), leads_to="site_counts"),
        Table(name="by_block", title="By basic block", role="detail", columns=(
            key("function", "block of", "code"), key("block", "block", "count"), detail("depth", "loop depth", "count"),
            measure("executions", "times", "count", show="known"), *code, *_rest(),
        ), leads_to="block_counts"),
        Table(name="by_thread", title="By thread", least_rows=2, columns=(
            key("thread", "thread", "thread", beside=("name",)), *_moved(), measure("share", "share", "share", bar=True),
            measure("bytes_per_thread_second", "GB/s", "bytes_per_s", better="higher"), measure("thread_ns", "time in regions", "ns"), *LOADS,
        ), leads_to="site_counts"),
        Table(name="by_region_and_thread", title="By region and thread", role="detail", columns=(
            key("region", "region", "region"), key("thread", "thread", "thread", beside=("name",)), measure("executions", "times", "count"),
            *_moved(), measure("share", "share", "share"), measure("bytes_per_thread_second", "GB/s", "bytes_per_s", better="higher"),
            measure("thread_ns", "time", "ns"), *LOADS,
        ), leads_to="region_times"),
        Table(name="unseen", title="Called without counters", help="What these calls read and wrote is in no figure above.", columns=(
            key("callee", "function", "function"), key("library", "in", "module", show="known"), measure("calls", "calls", "count", better="lower"),
            measure("share", "share", "share"), detail("caller", "called by", "function"),
        ), fold="share"),
        Table(name="refused", title="Left uncounted by the compiler plugin", role="detail", columns=(
            key("function", "function", "code"), measure("reason", "reason", "text"),
        )),
    )  # fmt: skip


def _charts(result: Result) -> tuple[Chart, ...]:
    charts = []
    if result.tables["roofline"].num_rows:
        charts.append(
            Chart(name="roofline", title="Roofline", kind="scatter", drawing="roofline", table="roofline", role="detail",
                  columns=(("label", "region"), ("x", "float_results_per_byte"), ("y", "float_results_per_second")),
                  x_label="floating-point results a byte", y_label="floating-point results a second"),
        )  # fmt: skip
    over_time = result.tables.get("over_time")
    if over_time is not None and over_time.num_rows:
        totals: dict[str, int] = {}
        for row in over_time.select(["region", "read_bytes", "written_bytes"]).to_pylist():
            totals[row["region"]] = (
                totals.get(row["region"], 0) + (row["read_bytes"] or 0) + (row["written_bytes"] or 0)
            )
        shown = sorted(totals, key=lambda name: -totals[name])[:MOST_SERIES]
        charts.append(
            Chart(name="over_time", title="Bandwidth over time", kind="timeline", x_kind="time_s", y_kind="bytes_per_s", series=tuple(
                Series(label=name, table="over_time", x="begin_s", y="bytes_per_second", where=(("region", name),)) for name in shown)),
        )  # fmt: skip
    return tuple(charts)
