"""Charts of locality: histogram of reuses, miss curve, heat map of addresses over time.

Owns logarithmic scales, levels of heat and the shapes. Plain lists in, markup out, as in `_charts`. A chart's read-outs are
texts that are made here and lie in its `data-points`; a heat map keeps one letter a cell, and the script puts its text together.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..units import human_bytes
from ._charts import PLOT_PX, decimal_ticks, esc
from ._markup import percent

HEAT_LEVELS = 7
HEAT_PX = 330
"""Height that the rows of a heat map share, as far as whole pixels go."""
LABEL_PX = 13
"""Labels of addresses closer than this are left out."""
FAR_LABEL_PX = 52
"""Within a range without a gap, a label this often."""


@dataclass(frozen=True)
class Mark:
    """A cache: where it stands on an axis of bytes."""

    name: str
    bytes: int


@dataclass(frozen=True)
class Bar:
    """One bin of a histogram: its label on the axis, its share of all, what the read-out says."""

    label: str
    share: float
    said: str
    unknown: bool = False


def _framed(name: str, title: str, description: str, data: str, body: str) -> str:
    return (
        f'<div class="plot"><svg height="{PLOT_PX}" role="img" aria-labelledby="{name}-title {name}-desc" {data}>'
        f'<title id="{name}-title">{esc(title)}</title><desc id="{name}-desc">{esc(description)}</desc>{body}'
        f'<line class="cursor" y1="0" y2="{PLOT_PX}" x1="0" x2="0" visibility="hidden"/></svg></div>'
    )


def _points(points: Sequence[tuple[float, str]]) -> str:
    return f'data-points="{esc(json.dumps([[round(x, 2), said] for x, said in points], separators=(",", ":")))}"'


def _percent_axis(top: float) -> str:
    parts = []
    for tick in decimal_ticks(top, count=5):
        y = PLOT_PX * (1 - tick / top)
        parts.append(f'<line class="grid" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="-8" y="{y + 4:.1f}" text-anchor="end">{100 * tick:g} %</text>')
    parts.append(f'<line class="axis" x1="0" x2="100%" y1="{PLOT_PX}" y2="{PLOT_PX}"/>')
    return "".join(parts)


def _tick(x: float, label: str) -> str:
    return (
        f'<line class="axis" x1="{x:.3f}%" x2="{x:.3f}%" y1="{PLOT_PX}" y2="{PLOT_PX + 4}"/>'
        f'<text x="{x:.3f}%" y="{PLOT_PX + 17}" text-anchor="middle">{esc(label)}</text>'
    )


def _marked(x: float, label: str, row: int) -> str:
    """A dashed line and its name, a row lower for each: sizes may lie close together."""
    anchor, shift = ("end", -5) if x > 55 else ("start", 5)
    return (
        f'<line class="limit" x1="{x:.3f}%" x2="{x:.3f}%" y1="0" y2="{PLOT_PX}"/>'
        f'<text class="mark" x="{x:.3f}%" dx="{shift}" y="{11 + 16 * row}" text-anchor="{anchor}">{esc(label)}</text>'
    )


# ---- reuse ------------------------------------------------------------
def histogram(
    bars: Sequence[Bar], *, name: str, title: str, axis: str, every: int, marks: Sequence[tuple[float, str]] = ()
) -> str:
    """Bars side by side; each has the same width, whatever range it stands for.

    `marks` are (position in bars, label): a size of a cache lies where distances begin to miss. `every` bar gets a label.
    """
    if not bars:
        return ""
    top = max(bar.share for bar in bars) * 1.12 or 1.0
    width = 100 / len(bars)
    body, points = [_percent_axis(top)], []
    for at, bar in enumerate(bars):
        height = PLOT_PX * bar.share / top
        if bar.share:
            kind = "unknown" if bar.unknown else "bar"
            body.append(
                f'<rect class="{kind}" x="{at * width + 0.06 * width:.3f}%" width="{0.88 * width:.3f}%" '
                f'y="{PLOT_PX - max(height, 0.7):.2f}" height="{max(height, 0.7):.2f}"/>'
            )
        crowded = bars[-1].unknown and every > 1 and len(bars) - every < at < len(bars) - 1
        if bar.label and (bar.unknown or (at % every == 0 and not crowded)):
            body.append(_tick((at + (0.5 if bar.unknown or at == 0 else 0)) * width, bar.label))
        points.append(((at + 0.5) * width, bar.said))
    for row, (place, label) in enumerate(marks):
        body.append(_marked(place * width, label, row))
    body.append(f'<text x="50%" y="{PLOT_PX + 34}" text-anchor="middle">{esc(axis)}</text>')
    most = max(bars, key=lambda bar: bar.share)
    return _framed(name, title, f"{len(bars)} bars; the highest: {most.said}", _points(points), "".join(body))


# ---- miss curve ------------------------------------------------------------
def misses_between(sizes: Sequence[int], ratios: Sequence[float], cache_bytes: int) -> tuple[float, float]:
    """Least and greatest miss ratio of a size, from the points of a falling curve on both sides of it.

    >>> misses_between([64, 128, 256], [1.0, 0.5, 0.25], 128), misses_between([64, 128, 256], [1.0, 0.5, 0.25], 192)
    ((0.5, 0.5), (0.25, 0.5))
    >>> misses_between([64, 128], [1.0, 0.5], 4096)
    (0.5, 0.5)
    """
    below = [ratio for size, ratio in zip(sizes, ratios, strict=True) if size <= cache_bytes]
    above = [ratio for size, ratio in zip(sizes, ratios, strict=True) if size >= cache_bytes]
    greatest = below[-1] if below else 1.0
    return (above[0] if above else ratios[-1]), greatest


def range_in_words(least: float, greatest: float) -> str:
    """
    >>> range_in_words(0.25, 0.5), range_in_words(0.12341, 0.12342)
    ('25.0 to 50.0 %', '12.3 %')
    """
    low, high = percent(least), percent(greatest)
    return high if low == high else f"{low.removesuffix(' %')} to {high}"


def miss_curve(
    sizes: Sequence[int],
    ratios: Sequence[float],
    least: Sequence[float],
    marks: Sequence[Mark],
    *,
    title: str,
    name: str = "miss-curve",
    axis: str = "size of the cache",
) -> str:
    """Misses against the size of a cache, logarithmic; the band below reaches down to what misses for certain."""
    if len(sizes) < 2:
        return ""
    low = math.log2(sizes[0])
    high = math.log2(max([sizes[-1], *(mark.bytes for mark in marks)])) + 0.5
    top = max(ratios) * 1.1 or 1.0

    def x_of(size: float) -> float:
        return 100 * (math.log2(size) - low) / (high - low)

    def line(values: Sequence[float], *, back: bool = False) -> str:
        points = [(10 * x_of(size), PLOT_PX * (1 - v / top)) for size, v in zip(sizes, values, strict=True)]
        points.append((1000.0, points[-1][1]))
        return "L".join(f"{x:.1f} {y:.1f}" for x, y in (reversed(points) if back else points))

    band = any(a != b for a, b in zip(ratios, least, strict=True))
    body = [_percent_axis(top)]
    power = math.ceil(low / 2) * 2
    while power <= high:
        body.append(_tick(x_of(2.0**power), _short_bytes(1 << power)))
        power += 2 if high - low < 14 else 4
    body.append(f'<svg width="100%" height="{PLOT_PX}" viewBox="0 0 1000 {PLOT_PX}" preserveAspectRatio="none">')
    if band:
        body.append(f'<path class="area" d="M{line(ratios)}L{line(least, back=True)}Z"/>')
        body.append(f'<path class="dotted" d="M{line(least)}"/>')
    else:
        body.append(f'<path class="area" d="M{line(ratios)}L1000 {PLOT_PX}L0 {PLOT_PX}Z"/>')
    body.append(f'<path class="filled" d="M{line(ratios)}"/></svg>')
    shown = [mark for mark in marks if mark.bytes >= sizes[0]]
    for row, mark in enumerate(shown):
        words = f"{mark.name} {human_bytes(mark.bytes)}: {_of_size(sizes, ratios, least, mark.bytes)}"
        body.append(_marked(x_of(mark.bytes), words, row))
    body.append(f'<text x="50%" y="{PLOT_PX + 34}" text-anchor="middle">{esc(axis)}</text>')
    points = [(x_of(size), f"{human_bytes(size)}: {_of_size(sizes, ratios, least, size)} miss") for size in sizes]
    said = f"from {percent(ratios[0])} at {human_bytes(sizes[0])} to {percent(ratios[-1])} at {human_bytes(sizes[-1])}"
    return _framed(name, title, said, _points(points), "".join(body))


def _of_size(sizes: Sequence[int], ratios: Sequence[float], least: Sequence[float], cache_bytes: int) -> str:
    certain, _ = misses_between(sizes, least, cache_bytes)
    between, most = misses_between(sizes, ratios, cache_bytes)
    return range_in_words(min(certain, between), most)


def _short_bytes(value: int) -> str:
    """
    >>> _short_bytes(64), _short_bytes(1 << 20)
    ('64 B', '1 MiB')
    """
    return human_bytes(value).replace(".0 ", " ")


# ---- heat map ------------------------------------------------------------
@dataclass(frozen=True)
class Layer:
    """What one colour scale of a heat map shows: values by (row, column), and the noun of its legend."""

    name: str
    label: str
    cells: dict[tuple[int, int], float]
    noun: str


def heat_edges(values: Sequence[float], *, levels: int = HEAT_LEVELS) -> list[float]:
    """Lower edges of at most `levels` classes that grow by one power of two, from the least value to the greatest.

    >>> heat_edges([1, 5, 100], levels=7), heat_edges([3, 3]), heat_edges([0, 1, 10_000], levels=4)
    ([1, 2, 4, 8, 16, 32, 64], [2], [0, 1, 32, 1024])
    """
    if not values:
        return []
    positive = [value for value in values if value >= 1]
    edges: list[float] = [0] if len(positive) < len(values) else []
    if not positive:
        return edges
    first, last = math.floor(math.log2(min(positive))), math.floor(math.log2(max(positive)))
    step = max(1, math.ceil((last - first + 1) / (levels - len(edges))))
    return edges + [1 << power for power in range(first, last + 1, step)]


def heat_level(value: float, edges: Sequence[float]) -> int:
    """
    >>> heat_level(5, [1, 4, 16]), heat_level(16, [1, 4, 16])
    (1, 2)
    """
    return max(at for at, edge in enumerate(edges) if value >= edge or at == 0)


def heat_layer(
    layer: Layer, addresses: Sequence[int], gaps: Sequence[bool], columns: int, *, seconds: float, row_bytes: int
) -> str:
    """One layer with its legend. `gaps[row]` says that the row does not follow the one above it."""
    edges = heat_edges(list(layer.cells.values()))
    row_px = max(2, min(14, HEAT_PX // max(1, len(addresses))))
    gap_px = 4 if sum(gaps) <= 24 else 2
    tops, y = [], 0
    for gap in gaps:
        y += gap_px if gap else 0
        tops.append(y)
        y += row_px
    height = y
    # Runs of one level are one stroke as high as a row; cells of a level are one path.
    strokes: dict[int, list[str]] = {}
    letters = []
    for row, top in enumerate(tops):
        levels = [
            heat_level(layer.cells[row, column], edges) if (row, column) in layer.cells else None
            for column in range(columns)
        ]
        letters.append("".join("." if level is None else str(level) for level in levels))
        begin = 0
        for column in range(1, columns + 1):
            if column == columns or levels[column] != levels[begin]:
                level = levels[begin]
                if level is not None:
                    strokes.setdefault(level, []).append(f"M{begin} {top + row_px / 2:g}h{column - begin}")
                begin = column
    shades = [_shade(level, len(edges)) for level in range(len(edges))]
    paths = "".join(f'<path class="h{shades[level]}" d="{"".join(runs)}"/>' for level, runs in sorted(strokes.items()))
    body = [
        f'<rect class="cold" width="100%" height="{height}"/>'
        f'<svg width="100%" height="{height}" viewBox="0 0 {columns} {height}" preserveAspectRatio="none">'
        f'<g class="cells" stroke-width="{row_px}">{paths}</g></svg>'
    ]
    last = -LABEL_PX
    for row, top in enumerate(tops):
        if gaps[row]:
            body.append(f'<line class="fold" x1="0" x2="100%" y1="{top - gap_px / 2:g}" y2="{top - gap_px / 2:g}"/>')
        begins = row == 0 or gaps[row]
        if top - last >= (LABEL_PX if begins else FAR_LABEL_PX):
            body.append(f'<text x="-8" y="{top + 9}" text-anchor="end">{addresses[row]:#x}</text>')
            last = top
    for tick in decimal_ticks(seconds):
        x = 100 * tick / seconds if seconds else 0.0
        body.append(f'<line class="axis" x1="{x:.3f}%" x2="{x:.3f}%" y1="{height}" y2="{height + 4}"/>')
        body.append(f'<text x="{x:.3f}%" y="{height + 17}" text-anchor="middle">{tick:g}</text>')
    body.append(f'<text x="50%" y="{height + 34}" text-anchor="middle">seconds since the first window</text>')
    ranges = _ranges(edges, max(layer.cells.values(), default=0))
    legend = "".join(
        f'<li><svg width="13" height="13" aria-hidden="true"><rect class="h{shades[at]}" width="13" height="13"/></svg>{esc(one)}</li>'
        for at, one in enumerate(ranges)
    )
    data = (
        f'data-cells="{" ".join(letters)}" data-levels="{esc(json.dumps([f"{one} {layer.noun}" for one in ranges]))}" '
        f'data-tops="{esc(json.dumps(tops, separators=(",", ":")))}" data-row-px="{row_px}"'
    )
    said = f"{len(addresses)} ranges of {human_bytes(row_bytes)} by {columns} parts of {seconds:.3g} s"
    return (
        f'<div class="layer {layer.name}"><ul class="legend"><li>{esc(layer.noun)}:</li>{legend}</ul>'
        f'<div class="plot addresses"><svg class="heat-map" height="{height}" role="img" '
        f'aria-labelledby="heat-{layer.name}-title heat-{layer.name}-desc" {data}>'
        f'<title id="heat-{layer.name}-title">{esc(layer.label)} over address and time</title>'
        f'<desc id="heat-{layer.name}-desc">{esc(said)}</desc>{"".join(body)}'
        f'<rect class="chosen" width="{100 / columns:.4f}%" height="{row_px}" visibility="hidden"/></svg></div></div>'
    )


def _shade(level: int, levels: int) -> int:
    """Few levels are spread over all shades."""
    return HEAT_LEVELS - 1 if levels == 1 else round(level * (HEAT_LEVELS - 1) / (levels - 1))


def _ranges(edges: Sequence[float], greatest: float) -> list[str]:
    """What each level stands for, as whole numbers and means both need it.

    >>> _ranges([0, 1, 4], 21)
    ['below 1', '1 to below 4', '4 to 21']
    """
    said = []
    for at, edge in enumerate(edges):
        if at + 1 < len(edges):
            end = power_label(int(edges[at + 1]))
            said.append(f"{power_label(int(edge))} to below {end}" if edge else f"below {end}")
        else:
            most = f"{greatest:,.0f}" if greatest >= 100 else f"{greatest:.3g}"
            said.append(f"{power_label(int(edge))} to {most}" if greatest > edge else most)
    return said


def power_label(value: int) -> str:
    """A power of two, short and exact.

    >>> power_label(512), power_label(2048), power_label(1 << 21)
    ('512', '2 Ki', '2 Mi')
    """
    for shift, unit in ((30, "Gi"), (20, "Mi"), (10, "Ki")):
        if value >= 1 << shift:
            return f"{value / (1 << shift):g} {unit}"
    return str(value)
