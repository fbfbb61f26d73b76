"""Section of bandwidth: regions, threads, code and what was not seen, of a program that counts for itself.

Owns which columns the result `bandwidth` shows and how estimates and corrections are worded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ._charts import Series, esc, step_chart
from ._markup import (
    cell,
    counted,
    definitions,
    duration_cell,
    export_command,
    function_markup,
    head_cell,
    json_command,
    module_markup,
    path_markup,
    percent,
    share_cell,
    table,
    top_rows,
    whole_number,
)
from ._object_sections import about
from ._roofline import peak_cell, roofline_markup
from ._terminal_bandwidth import _order, withheld
from ._units import (
    GIGABYTES,
    SHORT,
    THREAD_GIGABYTES,
    correction_in_words,
    error_in_words,
    gigabytes,
    human_duration,
    human_moved,
    human_rate,
    human_span,
)

if TYPE_CHECKING:
    from ..results import Result

MOST_CHARTS = 4


def bandwidth_section(result: Result) -> str:
    figures = result.figures
    estimated = figures["counted_share"] not in (None, 1.0)
    tiles = [
        (
            label,
            about(_moved(figures[f"{name}_bytes"]), sampled=estimated)
            + f"<small>by {_whole(figures[accesses])} {accesses}</small>",
        )
        for label, name, accesses in (("Read", "read", "loads"), ("Written", "written", "stores"))
    ]
    if figures["stack_share"] is not None:
        tiles.append(("Stack", f"{esc(percent(figures['stack_share']))}<small>of the bytes</small>"))
    tiles.append(("Not seen", f"{whole_number(figures['unseen_calls'])}<small>calls without counters</small>"))
    said = (
        "What the program's own code asked for, counted by compiled-in counters (IR-exact: loads and stores of the optimised IR, wherever "
        f"their bytes came from, not DRAM traffic). {GIGABYTES} ({SHORT}); {THREAD_GIGABYTES}."
    )
    if figures["read_cost_ns"] is not None and figures["switch_cost_ns"] is not None:
        said += (
            f" Reading the clock costs {figures['read_cost_ns']:.1f} ns and is taken off; an empty region costs the "
            f"one around it {figures['switch_cost_ns']:.0f} ns"
        )
        entry = figures["entry_cost_ns"]
        said += f"; in this run an entry cost {entry:.0f} ns on average, taken off too." if entry is not None else "."
    body = [definitions("tiles", tiles), f'<p class="muted">{esc(said)}</p>', _regions(result)]
    if figures["peaks_missing"]:
        body.append(f'<p class="muted">{esc(figures["peaks_missing"])}</p>')
    body += [roofline_markup(result), _over_time(result)]
    body.append(_threads(result))
    body.append(_code(result, "by_function", "By function"))
    if any(row["inlined"] for row in result.tables["by_scope"].slice(0, 30).to_pylist()):
        body.append(_code(result, "by_scope", "By function, inlined ones apart"))
    if any(row["file"] for row in result.tables["by_line"].slice(0, 30).to_pylist()):
        body.append(_code(result, "by_line", "By line"))
    body += [_unseen(result), _refused(result)]
    return f'<section id="bandwidth"><h2>Bandwidth</h2>{"".join(part for part in body if part)}</section>'


def _moved(value: float | None) -> str:
    if value is None:
        return "–"
    return f'<span title="{value:,.0f} bytes">{esc(human_moved(value))}</span>'


def _moved_cell(value: float | None, remark: str = "") -> str:
    below = f"<small>{esc(remark)}</small>" if remark else ""
    return f'<td class="number" data-v="{-1 if value is None else value}">{_moved(value)}{below}</td>'


def _rate_cell(value: float | None, remark: str = "") -> str:
    below = f"<small>{esc(remark)}</small>" if remark else ""
    return f'<td class="number" data-v="{-1 if value is None else round(value)}">{esc(human_rate(value))}{below}</td>'


def _count_cell(value: float | None, remark: str = "") -> str:
    below = f"<small>{esc(remark)}</small>" if remark else ""
    shown = "–" if value is None else whole_number(value)
    return f'<td class="number" data-v="{-1 if value is None else value}">{shown}{below}</td>'


def _time_imbalance(row: Mapping[str, Any]) -> str:
    value = row["time_imbalance"]
    return "" if value is None else f"time {100 * value:.0f} %"


def _percent_cell(value: float | None, remark: str = "") -> str:
    below = f"<small>{esc(remark)}</small>" if remark else ""
    # An imbalance may be above 100 %: no share of anything.
    shown = "–" if value is None else f"{100 * value:.0f} %" if value >= 1 else percent(value)
    return f'<td class="number" data-v="{-1 if value is None else round(value, 6)}">{esc(shown)}{below}</td>'


def _region(row: Mapping[str, Any]) -> str:
    around, _, name = row["region"].rpartition(" / ")
    return f'<span class="dir">{esc(around)} / </span>{esc(name)}' if around else esc(name)


def _regions(result: Result) -> str:
    found = result.tables["by_region"].to_pylist()
    regions = [row for row in found[1:] if not row["exclusive"]]
    own = {row["region"]: row for row in found[1:] if row["exclusive"]}
    if not regions:
        return (
            '<p class="muted">No region was marked. The whole program moved '
            f"{esc(human_rate(found[0]['bytes_per_second']))} by wall-clock time. Regions are marked with memlens.h, "
            "<code>#pragma memlens</code> or <code>memlens cc --memlens-functions=REGEX</code>.</p>"
        )
    by_path = {row["region"]: row for row in regions}
    ordered = sorted(regions, key=lambda row: _order(row, by_path))
    threads = any(row["threads"] > 1 for row in ordered)
    events = result.figures["events"] if any(row["event_share"] for row in ordered) else []
    mix = any(row["float_results_per_byte"] is not None for row in ordered)
    peaks = any(row["level"] for row in ordered)
    cells = []
    for row in ordered[:50]:
        sampled = f"{row['counted']:,} counted" if row["untouched"] else ""
        unsure = f"± {error_in_words(row)}" if row["estimated"] else ""
        inside = own.get(row["region"])
        self_bytes = inside["bytes"] if inside else row["bytes"]
        corrected = row["corrected_bytes_per_second"]
        cells.append(
            [
                head_cell(_region(row)),
                _count_cell(row["executions"] or None, sampled),
                _span_cell(row),
                _moved_cell(row["read_bytes"]),
                _moved_cell(row["written_bytes"], unsure),
                share_cell(row["share"] or 0.0, 1) if row["share"] is not None else _moved_cell(None),
                _moved_cell(self_bytes),
                _gigabytes_cell(row, correction_in_words(row) if corrected else ""),
                *([peak_cell(row)] if peaks else []),
                *([_rate_cell(row["bytes_per_thread_second"], counted(row["threads"], "thread")),
                   _percent_cell(row["byte_imbalance"], _time_imbalance(row))] if threads else []),
                *([_count_number(row["float_results_per_byte"])] if mix else []),
                *(_count_cell(row[f"event_{number}"], _multiplexed(row)) for number in range(len(events))),
            ]
        )  # fmt: skip
    heads = [
        ("Region", ""), ("Executions", "number"), ("Time", "number"), ("Read", "number"), ("Written", "number"),
        ("Share", "share"), ("Itself", "number"), ("GB/s", "number"), *([("Of the peak", "number")] if peaks else []),
        *([("By thread time", "number"), ("Imbalance", "number")] if threads else []),
        *([("Flop/byte", "number")] if mix else []),
        *((name, "number") for name in events),
    ]  # fmt: skip
    made = table("By region", heads, cells, total_rows=len(ordered), export=json_command("bandwidth", "by_region"))
    return made + "".join(
        f'<p class="muted">– {esc(region)}: {esc(why)}.</p>' for region, why in withheld(ordered[:50])
    )


def _span_cell(row: Mapping[str, Any]) -> str:
    if row["wall_ns"] is not None or row["wall_low_ns"] is None:
        return duration_cell(row["wall_ns"], remark=_longest(row))
    return f'<td class="number" data-v="{row["wall_high_ns"]}">{esc(human_span(dict(row)))}</td>'


def _gigabytes_cell(row: Mapping[str, Any], remark: str) -> str:
    value = row["corrected_bytes_per_second"] or row["bytes_per_second"]
    if value is not None or row["bytes_per_second_low"] is None:
        why = row["withheld"]
        shown = _rate_cell(value, remark)
        return shown.replace("<td ", f'<td title="{esc(why)}" ', 1) if why else shown
    low = round(row["bytes_per_second_low"])
    return f'<td class="number" data-v="{low}">{esc(gigabytes(dict(row)))} GB/s<small>a range</small></td>'


def _whole(value: float | None) -> str:
    return "–" if value is None else whole_number(value)


def _multiplexed(row: Mapping[str, Any]) -> str:
    share = row["event_share"]
    return "" if share is None or share >= 0.9995 else f"scaled from {percent(share)}"


def _longest(row: Mapping[str, Any]) -> str:
    if not row["most_ns"] or row["executions"] < 2:
        return ""
    least = human_duration(row["least_ns"]) if row["least_ns"] else "0 ns"
    return f"{least} to {human_duration(row['most_ns'])} each"


def _count_number(value: float | None) -> str:
    shown = "–" if value is None else f"{value:.3g}"
    return f'<td class="number" data-v="{-1 if value is None else value}">{shown}</td>'


def _over_time(result: Result) -> str:
    """Bytes a second of the regions with most bytes, one chart each."""
    rows = result.tables["over_time"].to_pylist()
    if not rows:
        return ""
    totals: dict[str, int] = {}
    for row in rows:
        totals[row["region"]] = totals.get(row["region"], 0) + row["read_bytes"] + row["written_bytes"]
    end_s = max(row["end_s"] for row in rows)
    charts = []
    for number, region in enumerate(sorted(totals, key=lambda name: -totals[name])[:MOST_CHARTS]):
        mine = [row for row in rows if row["region"] == region]
        times: list[float] = []
        values: list[float] = []
        last_end = 0.0
        for row in mine:
            if times and row["begin_s"] > times[-1] + 1e-9 and row["begin_s"] > last_end + 1e-9:
                times.append(last_end)
                values.append(0.0)
            times.append(max(0.0, row["begin_s"]))
            values.append(row["bytes_per_second"] or 0.0)
            last_end = row["end_s"]
        chart = step_chart(
            Series(region, times, values, last_end), None, end_s=end_s, title=f"Bytes a second over time: {region}",
            name=f"bandwidth-{number}", points="epochs",
        )  # fmt: skip
        charts.append(
            f'<figure><figcaption>{esc(region)}, bytes a second</figcaption><output class="readout"></output>{chart}</figure>'
        )
    return "".join(charts)


def _threads(result: Result) -> str:
    rows, total = top_rows(result, "by_thread")
    if total < 2:
        return ""
    cells = [
        [
            head_cell(f"{esc(row['thread'])} {esc(row['name'] or '')}" if row["thread"] else "threads that have ended"),
            duration_cell(row["thread_ns"]),
            _moved_cell(row["read_bytes"]),
            _moved_cell(row["written_bytes"]),
            share_cell(row["share"], 1),
            _rate_cell(row["bytes_per_thread_second"]),
        ]
        for row in rows
    ]
    heads = [("Thread", ""), ("Time in regions", "number"), ("Read", "number"), ("Written", "number"), ("Share", "share"),
             ("GB/s in regions", "number")]  # fmt: skip
    return table("By thread", heads, cells, total_rows=total, export=json_command("bandwidth", "by_thread"))


def _code(result: Result, name: str, caption: str) -> str:
    rows, total = top_rows(result, name)
    mix = name == "by_function" and any(row["float_results_per_byte"] is not None for row in rows)
    calls = name != "by_scope" and any(row["executions"] is not None for row in rows)
    cells = []
    for row in rows:
        if name == "by_line":
            first = [
                head_cell(path_markup(row["file"], row["line"]), "path"),
                cell(function_markup(row["function"]), "name"),
            ]
        else:
            inlined = " <small>inlined</small>" if name == "by_scope" and row["inlined"] else ""
            first = [
                head_cell(function_markup(row["function"]) + inlined),
                cell(module_markup(row["module"]), "module wide"),
            ]
        cells.append(
            [
                *first,
                *([_count_cell(row["executions"])] if calls else []),
                _moved_cell(row["read_bytes"]),
                _moved_cell(row["written_bytes"]),
                share_cell(row["share"], 1),
                _percent_cell(row["stack_share"]),
                *([_percent_cell(row["vector_share"])] if name == "by_function" else []),
                *([_count_number(row["float_results_per_byte"])] if mix else []),
            ]
        )
    heads = [
        *([("Line", ""), ("Function", "")] if name == "by_line" else [("Function", ""), ("Module", "wide")]),
        *([("Executions", "number")] if calls else []), ("Read", "number"), ("Written", "number"),
        ("Share", "share"), ("On the stack", "number"), *([("Vector", "number")] if name == "by_function" else []),
        *([("Flop/byte", "number")] if mix else []),
    ]  # fmt: skip
    export = export_command("site_counts") if name == "by_line" else json_command("bandwidth", name)
    return table(caption, heads, cells, total_rows=total, export=export)


def _unseen(result: Result) -> str:
    rows, total = top_rows(result, "unseen")
    if not rows:
        return ""
    cells = [
        [
            head_cell(function_markup(row["callee"])),
            cell(esc(row["library"] or "–")),
            _count_cell(row["calls"]),
            share_cell(row["share"], 1),
            cell(function_markup(row["caller"]), "name"),
        ]
        for row in rows
    ]
    heads = [("Function", ""), ("Library", ""), ("Calls", "number"), ("Share", "share"), ("Most from", "")]
    caption = f"Not seen: calls of {counted(total, 'function')} without counters"
    return table(caption, heads, cells, total_rows=total, export=json_command("bandwidth", "unseen"))


def _refused(result: Result) -> str:
    rows, total = top_rows(result, "refused")
    if not rows:
        return ""
    cells = [
        [
            head_cell(function_markup(row["function"])),
            cell(module_markup(row["module"]), "module wide"),
            cell(path_markup(row["file"], row["line"]), "path"),
            cell(esc(row["reason"])),
        ]
        for row in rows
    ]
    heads = [("Function", ""), ("Module", "wide"), ("Where", ""), ("Why", "")]
    caption = f"Not counted: {counted(total, 'function')} that the compiler left without counters"
    return table(caption, heads, cells, total_rows=total, export=json_command("bandwidth", "refused"))
