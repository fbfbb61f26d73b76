"""Sections of the HTML page that show one analysis each: memory, first touch, faults, processes.

Owns which columns a result's tables show and under which names. Each function takes a Result
and gives a `<section>`; a table or figure that is missing, empty or zero leaves a sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ._charts import Series, esc, icicle, shortened, stacked_chart, step_chart
from ._markup import (
    FAULT_CLASSES,
    MAX_ROWS,
    cell,
    class_fill,
    column,
    counted,
    definitions,
    estimate_cell,
    export_command,
    function_markup,
    head_cell,
    line_swatch,
    module_markup,
    number_cell,
    path_markup,
    percent,
    share_cell,
    swatch,
    table,
    titled,
    top_rows,
    unwinder,
    value_text,
    words,
)
from ._units import human_bytes

if TYPE_CHECKING:
    from ..results import Result

LIMIT_ON_CHART_RATIO = 4
"""A limit further above the peak would only flatten the curve."""


# ---- capacity ------------------------------------------------------------
def capacity_section(result: Result) -> str:
    figures = result.figures
    rss = Series("RSS", column(result, "over_time", "time_s"), column(result, "over_time", "rss_bytes"))
    pss = Series("PSS", column(result, "pss_over_time", "time_s"), column(result, "pss_over_time", "pss_bytes"))
    body = []
    if rss.times or pss.times:
        peak = max([0, *rss.values, *pss.values])
        limit = figures.get("limit_bytes")
        near = limit if limit and peak and limit <= LIMIT_ON_CHART_RATIO * peak else None
        kind = figures.get("limit_kind") or "machine"
        legend = [f"<li>{line_swatch('filled')}RSS of all processes (shared pages count in each)</li>"]
        if pss.times:
            legend.append(f"<li>{line_swatch('dotted')}PSS (shared pages divided among their users)</li>")
        if near:
            legend.append(f"<li>{line_swatch('limit')}limit of the {esc(kind)}, {titled('bytes', near)}</li>")
        chart = step_chart(
            rss,
            pss if pss.times else None,
            end_s=figures.get("duration_s") or 0.0,
            limit_bytes=near,
            title="Memory held over time",
        )
        interval = figures.get("mean_interval_s")
        readings = counted(int(figures.get("readings") or len(rss.times)), "reading") + (
            f", one every {interval:.3g} s" if interval else ""
        )
        far = f" The {kind}'s limit of {human_bytes(limit)} is far above and not drawn." if limit and not near else ""
        body.append(
            f'<figure><ul class="legend">{"".join(legend)}</ul>'
            f'<output class="readout">{esc(readings)}.{esc(far)}</output>{chart}</figure>'
        )
    else:
        body.append('<p class="muted">There is no reading of RSS: the program ended before the first one.</p>')
    nodes, total = top_rows(result, "by_node")
    if nodes:
        most = sum(row["peak_bytes"] for row in nodes)
        rows = [
            [
                head_cell(esc(_node(row["node"])), ""),
                number_cell("bytes", row["peak_bytes"]),
                share_cell(row["peak_bytes"], most),
            ]
            for row in nodes
        ]
        by_node = table(
            "Peak by NUMA node",
            [("Node", ""), ("Peak", "number"), ("Share", "share")],
            rows,
            total_rows=total,
            export=export_command("timeline"),
        )
        body.append(f'<div class="columns">{by_node}</div>')
    return f'<section id="capacity"><h2>Memory over time</h2>{"".join(body)}</section>'


def _behind(row: dict[str, Any]) -> str:
    """What touched memory for the function, and whether its part is an estimate."""
    via = [f"via {shortened(row['via'], 60)}"] if row.get("via") else []
    words = [*via, *(["estimated"] if row.get("estimated") else [])]
    return f' <small class="muted">{esc(", ".join(words))}</small>' if words else ""


def _node(node: int | None) -> str:
    return "unknown" if node is None or node < 0 else f"node {node}"


# ---- first touch ------------------------------------------------------------
def first_touch_section(result: Result, meta: dict[str, Any]) -> str:
    figures = result.figures
    placed = figures.get("first_touched_bytes") or 0
    parts: dict[str, tuple[str, list[tuple[str, str]], Callable[[dict[str, Any]], list[str]]]] = {
        "by_function": (
            "By function",
            [("Function", ""), ("Module", "wide")],
            lambda row: [
                head_cell(function_markup(row["function"]) + _behind(row)),
                cell(module_markup(row["module"]), "module wide"),
            ],
        ),
        "by_line": (
            "By line",
            [("Line", ""), ("Function", "")],
            lambda row: [
                head_cell(path_markup(row["file"], row["line"]), "path"),
                cell(function_markup(row["function"]) + _behind(row), "name"),
            ],
        ),
        "by_thread": (
            "By thread",
            [("Thread", "")],
            lambda row: [head_cell(f"{esc(row['thread'])} {esc(row['name'] or '')}", "name nowrap")],
        ),
        "by_node": ("By NUMA node", [("Node", "")], lambda row: [head_cell(esc(_node(row["node"])), "")]),
        "by_area": (
            "By kind of memory",
            [("Memory", "")],
            lambda row: [head_cell(esc(row["area"] or "unknown"), "")],
        ),
    }
    made = {}
    for name, (caption, heads, first_cells) in parts.items():
        rows, total = top_rows(result, name)
        has_threads = bool(rows) and "threads" in rows[0]
        cells = [
            [
                *first_cells(row),
                estimate_cell("bytes", row["bytes"], row.get("bytes_error")),
                share_cell(row["bytes"], placed),
                estimate_cell("faults", row["faults"], row.get("faults_error")),
                *([number_cell("threads", row["threads"])] if has_threads else []),
            ]
            for row in rows
        ]
        heads = [
            *heads,
            ("Placed", "number"),
            ("Share", "share"),
            ("Faults", "number"),
            *([("Threads", "number")] if has_threads else []),
        ]
        made[name] = table(
            caption,
            heads,
            cells,
            total_rows=total,
            export=export_command("faults"),
            empty="No fault placed memory.",
        )
    lead = (
        f"{titled('bytes', placed)} were placed by {counted(int(figures.get('placing_faults') or 0), 'fault')}: "
        "a page counts where it was touched first, because that decides which NUMA node it lies on."
    )
    named = figures.get("named_share")
    if named is not None and named < 0.995:
        lead += f" {esc(percent(named))} of the bytes have a function name."
    return (
        f'<section id="first-touch"><h2>First touch</h2><p>{lead}</p>{_stacks(result, meta)}'
        f"{made['by_function']}{made['by_line']}"
        f'<div class="columns">{made["by_thread"]}{made["by_node"]}{made["by_area"]}</div>'
        f"{_placed_by_kernel(result, meta)}</section>"
    )


def _placed_by_kernel(result: Result, meta: dict[str, Any]) -> str:
    arrow = result.tables.get("placed_by_kernel")
    total_bytes = result.figures.get("placed_without_event_bytes") or 0
    caption = "Placed by the kernel without an event"
    before = result.figures.get("placed_before_attach_bytes")
    attached = (
        f"<p>{titled('bytes', before)} were resident before memlens attached: who placed them is not known.</p>"
        if before
        else ""
    )
    if arrow is None or not arrow.num_rows:
        return attached + table(caption, [], [], empty="No page became resident without a fault that was seen.")
    begin = meta.get("begin_ns") or 0
    rows = [
        [
            head_cell(f"0x{row['address']:x}"),
            cell(esc(row["area"] or "unknown")),
            number_cell("bytes", row["bytes"]),
            share_cell(row["bytes"], total_bytes),
            cell("huge" if row["huge"] else "small"),
            cell(esc(_between(row["begin_ns"], row["end_ns"], begin)), "nowrap"),
        ]
        for row in arrow.sort_by([("bytes", "descending")]).slice(0, MAX_ROWS).to_pylist()
    ]
    heads = [
        ("Address", ""),
        ("Memory", ""),
        ("Placed", "number"),
        ("Share", "share"),
        ("Pages", ""),
        ("When", ""),
    ]
    said = f"{titled('bytes', total_bytes)}: populated, read ahead, or set up by exec"
    return attached + table(
        f'{caption} <span class="muted">{said}</span>',
        heads,
        rows,
        total_rows=arrow.num_rows,
        export=export_command("placed"),
    )


def _between(low_ns: int | None, high_ns: int | None, begin_ns: int) -> str:
    """When a page became resident: after one look at the page tables and before the next."""
    high = "?" if high_ns is None else f"{(high_ns - begin_ns) / 1e9:.2f} s"
    return f"before {high}" if not low_ns or low_ns <= begin_ns else f"{(low_ns - begin_ns) / 1e9:.2f} to {high}"


def _stacks(result: Result, meta: dict[str, Any]) -> str:
    arrow = result.tables.get("stacks")
    rows = arrow.to_pylist() if arrow is not None and arrow.num_columns else []
    stacks = [
        (row["frames"] or ["(no frames)"], int(row["estimated_bytes"] or 0), int(row["samples"] or 0)) for row in rows
    ]
    svg, remarks = icicle(stacks, title="Call stacks of first touches")
    if not svg:
        return table("By call stack", [], [], empty="No call stack of a first touch was sampled.")
    samples = sum(row["samples"] or 0 for row in rows)
    faults = sum(row["estimated_faults"] or 0 for row in rows)
    one_in = f"one in {max(1, round(faults / samples)):,} on average, " if samples else ""
    how = (meta.get("quality") or {}).get("stack")
    by = f" by {unwinder(how)}" if how and how != "none" else ""
    said = [f"Sampled: {one_in}{samples:,} stacks{by}; bytes are estimated."]
    said += ["Callers above, touching code below.", *remarks]
    return (
        '<div class="block"><h3>By call stack</h3><figure>'
        f'<output class="readout">{esc(" ".join(said))}</output>{svg}</figure></div>'
    )


# ---- faults ------------------------------------------------------------
def faults_section(result: Result) -> str:
    figures = result.figures
    total = figures.get("faults") or 0
    classes, n_classes = top_rows(result, "by_class")
    rows = [
        [
            head_cell(swatch(str(row["class"])) + esc(row["class"]), "nowrap"),
            estimate_cell("faults", row["faults"], row.get("faults_error")),
            share_cell(row["faults"], total),
            estimate_cell("bytes", row["new_bytes"], row.get("new_bytes_error")),
            cell(esc(FAULT_CLASSES.get(str(row["class"]), "")), "muted"),
        ]
        for row in classes
    ]
    heads = [
        ("Class", ""),
        ("Faults", "number"),
        ("Share", "share"),
        ("New memory", "number"),
        ("What it is", ""),
    ]
    by_class = table(
        "By class",
        heads,
        rows,
        total_rows=n_classes,
        export=export_command("faults"),
        empty="There were no faults.",
    )
    functions, n_functions = top_rows(result, "by_function")
    rows = [
        [
            head_cell(function_markup(row["function"])),
            cell(module_markup(row["module"]), "module wide"),
            cell(swatch(str(row["class"])) + esc(row["class"]), "nowrap"),
            estimate_cell("faults", row["faults"], row.get("faults_error")),
            share_cell(row["faults"], total),
        ]
        for row in functions
    ]
    heads = [("Function", ""), ("Module", "wide"), ("Class", ""), ("Faults", "number"), ("Share", "share")]
    by_function = table(
        "By function and class",
        heads,
        rows,
        total_rows=n_functions,
        export=export_command("faults"),
        empty="There were no faults.",
    )
    over_time = _faults_over_time(result)
    own = figures.get("own_faults") or 0
    said = (
        f'<p class="muted">{counted(own, "page fault")} on memory of memlens\'s own library inside the program '
        f"{'is' if own == 1 else 'are'} left out here; the kernel's count has {'it' if own == 1 else 'them'} too.</p>"
        if own
        else ""
    )
    return f'<section id="faults"><h2>Page faults</h2>{said}{by_class}{over_time}{by_function}</section>'


def _faults_over_time(result: Result) -> str:
    times = column(result, "over_time", "time_s")
    arrow = result.tables.get("over_time")
    names = [name for name in arrow.column_names if name != "time_s"] if arrow is not None else []
    series = [Series(name, times, column(result, "over_time", name)) for name in names]
    series = [one for one in series if any(one.values)]
    if not series:
        return ""
    legend = "".join(f"<li>{swatch(one.name)}{esc(one.name)}</li>" for one in series)
    bin_s = times[1] - times[0] if len(times) > 1 else 0.0
    said = f"One bar is {bin_s:.3g} s." if bin_s else "One bar is the whole run."
    chart = stacked_chart(series, end_s=0.0, fill=class_fill, title="Page faults over time by class")
    return (
        '<div class="block"><h3>Faults per second, stacked by class</h3>'
        f'<figure><ul class="legend">{legend}</ul><output class="readout">{said}</output>{chart}'
        "</figure></div>"
    )


# ---- processes, and results without a view of their own ------------------------------------
def processes_section(result: Result) -> str:
    processes, total = top_rows(result, "by_process")
    peak = result.figures.get("peak_rss_bytes")
    rows = [
        [
            head_cell(esc(row["pid"])),
            cell(esc(row["name"] or "?"), "name"),
            number_cell("bytes", row["peak_rss_bytes"]),
            share_cell(row["peak_rss_bytes"], peak),
            number_cell("begin_s", row["begin_s"]),
            number_cell("end_s", row["end_s"])
            if row["end_s"] is not None
            else '<td class="number" data-v="1e99">end of recording</td>',
            number_cell("threads", row["threads"]),
        ]
        for row in processes
    ]
    heads = [
        ("PID", ""),
        ("Name", ""),
        ("Peak RSS", "number"),
        ("Of tree's peak", "share"),
        ("Begin", "number"),
        ("End", "number"),
        ("Threads", "number"),
    ]
    body = table(
        counted(total, "process", "processes"),
        heads,
        rows,
        total_rows=total,
        export=export_command("processes"),
        empty="No process was seen.",
    )
    return f'<section id="processes"><h2>Processes</h2>{body}</section>'


def other_section(result: Result) -> str:
    """A result that this page has no view of its own for: its figures and tables as they are."""
    name = result.name.replace("_", " ")
    body = (
        [definitions("tiles", ((esc(words(key)), titled(key, value)) for key, value in result.figures.items()))]
        if result.figures
        else []
    )
    for table_name, arrow in result.tables.items():
        rows, total = top_rows(result, table_name)
        numeric = {key for row in rows[:1] for key, value in row.items() if type(value) in (int, float)}
        heads = [(words(key), "number" if key in numeric else "") for key in arrow.column_names]
        cells = [
            [
                number_cell(key, value) if key in numeric else cell(esc(value_text(key, value)), "name")
                for key, value in row.items()
            ]
            for row in rows
        ]
        body.append(
            table(
                esc(table_name.replace("_", " ")),
                heads,
                cells,
                total_rows=total,
                export="memlens report CAPTURE --json",
            )
        )
    return (
        f'<section id="{esc(result.name.replace("_", "-"))}"><h2>{esc(name[:1].upper() + name[1:])}</h2>'
        f"{''.join(body)}</section>"
    )
