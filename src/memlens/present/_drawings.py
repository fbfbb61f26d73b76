"""Drawings of the HTML page: one function for each kind of chart, and special ones by name.

    Chart (kind, drawing, named columns) ──► DRAWINGS[drawing] or DRAWINGS[kind] ──► <figure>

Owns which rows of a result a chart draws; shapes and scales are in `_charts`, `_locality_charts` and `_roofline`. A chart whose table is
missing or empty leaves nothing. Must not know an analysis: everything comes from the chart's declaration.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..units import human_bytes
from ..view import Chart
from . import rows as table_rows
from ._charts import Series, esc, icicle, shortened, stacked_chart, step_chart
from ._locality_charts import Bar, Layer, Mark, heat_layer, histogram, miss_curve, power_label
from ._markup import class_fill, counted, head_cell, line_swatch, percent, share_cell, swatch, table
from ._roofline import Region, roofline_chart
from ._units import human_duration
from .values import number_in, plain

if TYPE_CHECKING:
    from ..results import Result

MOST_MATRIX_KEYS = 32
MOST_BARS, MOST_NAME = 40, 80
MAX_BOXES = 700
MIN_BOX_PERCENT = 0.2
"""Call stacks are many and deep: boxes too narrow to see would only make the page tall."""
BYTE_MAP_PX = 256
Drawing = Callable[["Result", Chart], str]


def drawn(result: Result, chart: Chart) -> str:
    """A chart as a captioned figure; empty where it has no data."""
    make = DRAWINGS.get(chart.drawing) or DRAWINGS.get(chart.kind)
    body = make(result, chart) if make else ""
    if not body:
        return ""
    caption = f'<p class="muted">{esc(chart.help)}</p>' if chart.help else ""
    return f'<div class="block"><h3>{esc(chart.title)}</h3>{caption}{body}</div>'


def _rows(result: Result, chart: Chart) -> list[dict[str, Any]]:
    arrow = result.tables.get(chart.table)
    return arrow.to_pylist() if arrow is not None and arrow.num_columns else []


def _column(chart: Chart, part: str) -> str:
    return next((name for what, name in chart.columns if what == part), "")


def _id(result: Result, chart: Chart, number: int = 0) -> str:
    return re.sub(r"[^a-z0-9]+", "-", f"{result.name}-{chart.name}-{number}".lower())


# ---- time ------------------------------------------------------------
def timeline(result: Result, chart: Chart) -> str:
    """Series that share all but their last condition are drawn together, if they are two; else one chart each."""
    limit = result.figures.get(chart.limit) if chart.limit else None
    groups: dict[tuple[object, ...], list[Series]] = {}
    for one in chart.series:
        x, y, _ = table_rows.series_of(result, one)
        if x and any(y):
            groups.setdefault((one.table, one.where[:-1]), []).append(Series(one.label, x, y))
    charts = [pair for found in groups.values() for pair in ([found] if len(found) <= 2 else [[one] for one in found])]
    ends = [series.times[-1] for pair in charts for series in pair]
    end_s = max([result.figures.get(chart.end) or 0.0 if chart.end else 0.0, *ends], default=0.0)
    made = []
    for number, pair in enumerate(charts):
        legend = "".join(
            f"<li>{line_swatch(look)}{esc(one.name)}</li>"
            for one, look in zip(pair, ("filled", "dotted"), strict=False)
        )
        if limit:
            legend += f"<li>{line_swatch('limit')}limit, {esc(plain(chart.y_kind, limit))}</li>"
        svg = step_chart(
            pair[0], pair[1] if len(pair) > 1 else None, end_s=end_s, limit=limit, title=chart.title,
            name=_id(result, chart, number), points="values", kind=chart.y_kind,
        )  # fmt: skip
        points = counted(len(pair[0].times), "value")
        figure = f'<figure><ul class="legend">{legend}</ul><output class="readout">{points}</output>{svg}</figure>'
        said = ", ".join(f"{one.name}, at most {plain(chart.y_kind, max(one.values))}" for one in pair)
        made.append(figure if number == 0 else f"<details><summary>{esc(said)}</summary>{figure}</details>")
    return "".join(made)


def stacked(result: Result, chart: Chart) -> str:
    """Counts of equal bins, stacked."""
    if not chart.stacked:
        return timeline(result, chart)
    found = [(one.label, *table_rows.series_of(result, one)[:2]) for one in chart.series]
    series = [Series(label, x, y) for label, x, y in found if any(y)]
    if not series:
        return ""
    legend = "".join(f"<li>{swatch(one.name)}{esc(one.name)}</li>" for one in series)
    times = series[0].times
    said = f"One bar is {times[1] - times[0]:.3g} s." if len(times) > 1 else "One bar is the whole run."
    svg = stacked_chart(series, end_s=0.0, fill=class_fill, title=chart.title, name=_id(result, chart))
    return f'<figure><ul class="legend">{legend}</ul><output class="readout">{said}</output>{svg}</figure>'


# ---- trees, bars, curves ------------------------------------------------------------
def tree(result: Result, chart: Chart) -> str:
    frames, weight, number = (_column(chart, part) for part in ("frames", "weight", "count"))
    rows = _rows(result, chart)
    stacks = [(row[frames] or ["(no frames)"], round(row[weight] or 0), round(row[number] or 0)) for row in rows]
    svg, remarks = icicle(
        stacks, title=chart.title, name=_id(result, chart), whole="all", amount=lambda value: plain(chart.y_kind, value),
        second_amount=lambda value: f"{value:,} {number.replace('_', ' ')}", estimated=False, max_frames=MAX_BOXES,
        min_percent=MIN_BOX_PERCENT,
    )  # fmt: skip
    said = " ".join(["Callers above callees.", *remarks])
    return f'<figure><output class="readout">{esc(said)}</output>{svg}</figure>' if svg else ""


def bars(result: Result, chart: Chart) -> str:
    """One bar a row: `label` and `value`, or a series."""
    label, value = _column(chart, "label"), _column(chart, "value")
    points = [(shortened(str(row[label]), MOST_NAME), row[value] or 0) for row in _rows(result, chart)] if label else []
    if len(points) > MOST_BARS:
        rest = points[MOST_BARS - 1 :]
        points = [*points[: MOST_BARS - 1], (f"{len(rest):,} others", sum(amount for _, amount in rest))]
    for one in chart.series:
        points += [(plain(chart.x_kind, x), y) for x, y in zip(*table_rows.series_of(result, one)[:2], strict=True)]
    total = sum(amount for _, amount in points)
    if not total:
        return ""
    made = [Bar(name, amount / total, f"{name}: {plain(chart.y_kind, amount)}") for name, amount in points]
    svg = histogram(
        made, name=_id(result, chart), title=chart.title, axis=chart.x_label, every=max(1, -(-len(made) // 12))
    )
    return f'<figure><output class="readout"></output>{svg}</figure>'


def reuse_histogram(result: Result, chart: Chart) -> str:
    """Accesses by powers of two; what is in no row is a hatched bar at the end."""
    low, high, value = (_column(chart, part) for part in ("from", "to", "value"))
    rows = _rows(result, chart)
    while rows and not rows[-1][value]:
        rows.pop()
    whole, recorded = result.figures["everything_recorded"], result.figures["recorded_accesses"]
    if not rows or not recorded:
        return ""
    line = result.figures["line_bytes"] if chart.x_kind == "bytes" else 0
    unit = "blocks" if line else "accesses"
    made = []
    for row in rows:
        span = f"{row[low]:,} to {row[high]:,}" if row[high] > row[low] else f"{row[low]:,}"
        size = f" ({human_bytes(row[low] * line)})" if line and row[low] else ""
        label = human_bytes(row[low] * line).replace(".0 ", " ") if line else power_label(row[low])
        said = f"{span} {unit}{size}: {percent(row[value] / recorded)} of the accesses, {row[value]:,} reuses"
        made.append(Bar("0" if row[low] == 0 else label, row[value] / recorded, said))
    rest = recorded - sum(row[value] for row in rows)
    if rest > 0:
        label, what = (
            ("first", "first accesses to a block") if whole else ("?", "last use outside the window, not observable")
        )
        made.append(Bar(label, rest / recorded, f"{what}: {percent(rest / recorded)} of the accesses, {rest:,}", True))
    every = 1 if len(made) <= 6 else 2 if len(made) <= 12 else 4
    svg = histogram(made, name=_id(result, chart), title=chart.title, axis=chart.x_label, every=every)
    return f'<figure><output class="readout"></output>{svg}</figure>'


def curve(result: Result, chart: Chart) -> str:
    """A falling curve of shares against sizes."""
    if not chart.series:
        return ""
    x, y, low = table_rows.series_of(result, chart.series[0])
    marks = [Mark(name, int(size)) for name, size in chart.marks]
    svg = miss_curve(
        [int(size) for size in x], y, low, marks, title=chart.title, name=_id(result, chart), axis=chart.x_label
    )
    return f'<figure><output class="readout"></output>{svg}</figure>' if svg else ""


def roofline(result: Result, chart: Chart) -> str:
    rows = [
        Region(
            row["region"],
            row["float_results_per_byte"],
            row["float_results_per_second"],
            row["peak_results_per_second"],
        )
        for row in _rows(result, chart)
    ]
    peaks: dict[str, float] = {}
    for row in result.tables["roofline_ceilings"].to_pylist():
        peaks[row["level"]] = max(peaks.get(row["level"], 0.0), row["peak_bytes_per_second"])
    return roofline_chart(rows, peaks) if rows and peaks else ""


def scatter(result: Result, chart: Chart) -> str:
    """Points as a table: a renderer with a drawing of its own registers it by name."""
    label, x, y = (_column(chart, part) for part in ("label", "x", "y"))
    cells = [
        [head_cell(esc(row.get(label) or "–")), *(f'<td class="number">{esc(plain(kind, row.get(name)))}</td>'
         for kind, name in ((chart.x_kind, x), (chart.y_kind, y)))]
        for row in _rows(result, chart)
    ]  # fmt: skip
    return table("", [("", ""), (chart.x_label, "number"), (chart.y_label, "number")], cells) if cells else ""


# ---- two dimensions ------------------------------------------------------------
def matrix(result: Result, chart: Chart) -> str:
    """Rows against columns; a cell is the share of all. Columns with names of their own are of the same things as rows: each has a row and a column."""
    row_key, column_key = _column(chart, "row"), _column(chart, "column")
    row_name, column_name = _column(chart, "row_name"), _column(chart, "column_name")
    values = [name for what, name in chart.columns if what == "value"]
    row_names: dict[Place, str] = {}
    column_names: dict[Place, str] = {}
    cells: dict[tuple[Place, Place], float] = {}
    for row in _rows(result, chart):
        for names, key, name in ((row_names, row_key, row_name), (column_names, column_key, column_name)):
            one = "not known" if row[key] is None else row[key]
            names[row[key]] = f"{one} {row.get(name) or ''}".strip()
        place = (row[row_key], row[column_key])
        cells[place] = cells.get(place, 0.0) + sum(row[name] or 0 for name in values)
    if column_name:
        column_names = row_names | column_names
    rows, columns = _in_order(row_names), _in_order(column_names)
    total = sum(cells.values())
    if not total or len(columns) > MOST_MATRIX_KEYS:
        return ""
    made = [
        [
            head_cell(esc(row_names[one]), "name nowrap"),
            *(share_cell(cells.get((one, other)), total) for other in columns),
        ]
        for one in rows
    ]
    said = esc(f"{chart.y_label} (rows), {chart.x_label} (columns)")
    return table(said, [("", ""), *((column_names[other], "share") for other in columns)], made)


Place = int | str | None
"""A row or column of a matrix; None: not known."""


def _in_order(names: Mapping[Place, str]) -> list[Place]:
    """Numbers in their order, then texts; what is not known last."""
    return sorted(
        names, key=lambda one: (one is None, isinstance(one, str), one if isinstance(one, int) else 0, str(one))
    )


def heat_map(result: Result, chart: Chart) -> str:
    """Addresses against time, a layer for each value; addresses without a cell are folded."""
    arrow = result.tables.get(chart.table)
    if arrow is None or not arrow.num_rows:
        return ""
    cells = arrow.to_pydict()
    row, size, begin, end, group = (
        cells[_column(chart, part)] for part in ("row", "row_bytes", "begin", "end", "group")
    )
    places = list(zip(group, row, strict=True))
    ranges = sorted(set(places))
    row_of = {place: at for at, place in enumerate(ranges)}
    row_bytes, origin = size[0], min(begin)
    part_ns = max(1, max(last - first for first, last in zip(begin, end, strict=True)))
    column_of = [round((first - origin) / part_ns) for first in begin]
    where = [(row_of[place], column) for place, column in zip(places, column_of, strict=True)]
    seconds = (max(end) - origin) / 1e9
    gaps = [
        at > 0 and (one[0] != ranges[at - 1][0] or one[1] != ranges[at - 1][1] + row_bytes)
        for at, one in enumerate(ranges)
    ]
    layers = []
    for name, style in zip(
        (name for what, name in chart.columns if what == "value"), ("accesses", "distance"), strict=False
    ):
        values: dict[tuple[int, int], float] = {}
        for place, value in zip(where, cells[name], strict=True):
            if value is None:
                continue
            # Parts shorter than a nanosecond fall together: counts add up, means do not.
            values[place] = values.get(place, 0) + value if style == "accesses" else value
        words = name.replace("_", " ")
        if values:
            layers.append(Layer(style, words[:1].upper() + words[1:], values, words))
    choice = "".join(
        f'<input type="radio" name="heat" id="heat-{layer.name}"{" checked" if at == 0 else ""}>'
        f'<label for="heat-{layer.name}">{esc(layer.label)}</label>'
        for at, layer in enumerate(layers)
    )
    addresses = [address for _, address in ranges]
    body = "".join(
        heat_layer(layer, addresses, gaps, max(column_of) + 1, seconds=seconds, row_bytes=row_bytes) for layer in layers
    )
    folded = (
        f" A line across stands for addresses that were not used ({counted(sum(gaps), 'gap')})." if any(gaps) else ""
    )
    caption = f"A cell is {human_bytes(row_bytes)} of addresses during {human_duration(part_ns)}.{folded}"
    return (
        f'<figure class="heat" data-rows="{",".join(f"{address:x}" for address in addresses)}" data-row-bytes="{row_bytes}" '
        f'data-part="{part_ns / 1e9:.9g}"><figcaption class="muted">{esc(caption)}</figcaption>{choice if len(layers) > 1 else ""}'
        f'<output class="readout"></output>{body}</figure>'
    )


# ---- beside rows ------------------------------------------------------------
def byte_ranges(offsets: str) -> list[tuple[int, int]]:
    """First and last byte of each range.

    >>> byte_ranges("0-7, 12"), byte_ranges("")
    ([(0, 7), (12, 12)], [])
    """
    return [(int(first), int(last or first)) for first, last in re.findall(r"(\d+)(?:-(\d+))?", offsets)]


def line_bytes(row: Mapping[str, object], figures: Mapping[str, object]) -> str:
    """A cache line as a strip: the bytes that each of two threads writes; framed are those that both use."""
    size = number_in(figures, "line_bytes")
    assert size
    scale = BYTE_MAP_PX / size

    def boxes(name: str, kind: str, y: int, height: int) -> str:
        return "".join(
            f'<rect class="{kind}" x="{scale * first:g}" width="{scale * (last - first + 1):g}" y="{y}" height="{height}"/>'
            for first, last in byte_ranges(str(row[name] or ""))
        )

    said = [f"{row['thread']}: {row['offsets'] or 'none'}", f"{row['other_thread']}: {row['other_offsets'] or 'none'}"]
    return (
        f'<svg class="bytes" width="{BYTE_MAP_PX}" height="19" role="img" aria-label="{esc("; ".join(said))}">'
        f'<rect class="cold" width="{BYTE_MAP_PX}" height="8"/><rect class="cold" width="{BYTE_MAP_PX}" height="8" y="11"/>'
        f"{boxes('offsets', 'bar', 0, 8)}{boxes('other_offsets', 'bar', 11, 8)}{boxes('common_offsets', 'common', 0, 19)}</svg>"
    )


DRAWINGS: Mapping[str, Drawing] = {
    "timeline": stacked, "bars": bars, "curve": curve, "tree": tree, "matrix": matrix, "heat_map": heat_map, "scatter": scatter,
    "reuse_histogram": reuse_histogram, "roofline": roofline,
}  # fmt: skip
"""By the chart's `drawing`, else by its kind."""
ROW_DRAWINGS: Mapping[str, tuple[str, Callable[[Mapping[str, object], Mapping[str, object]], str]]] = {
    "line_bytes": ("bytes written", line_bytes)
}
"""By a table's `drawing`: the label of the column and what draws a cell."""
__all__: Sequence[str] = ("DRAWINGS", "ROW_DRAWINGS", "drawn")
