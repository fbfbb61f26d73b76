"""Inline SVG charts of the HTML page: steps over time, stacked bars over time, call stacks.

Owns scales, ticks and shapes. Knows nothing of reports or results: plain lists in, markup
out. Every chart fills the width it is given without scaling its text: horizontal positions
are percentages, vertical ones pixels, and axis labels lie outside the SVG's box, in the
padding of `.plot` (overflow: visible). Colours are CSS variables of the page's style.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from zlib import crc32

from ..units import human_bytes
from ..view import Kind
from .values import plain

PLOT_PX = 210
MAX_POINTS = 1200
"""More than a screen has columns; a longer series keeps the extremes of each column."""
FRAME_PX = 19
MAX_FRAMES = 1500
MAX_DEPTH = 60
FOLD_FROM_DEPTH = 32
"""Deeper stacks have their unbranched runs folded into one row, so that the leaves stay on the page."""
MIN_FRAME_PERCENT = 0.05
NARROW_PERCENT = 3.0
MAX_LABEL = 200
"""Characters of a box's label: more than the widest page shows."""
MAX_NAME = 600
"""Characters of a name in a tooltip; C++ templates have names of tens of thousands."""

UNREADABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def esc(value: object) -> str:
    """Text for HTML: escaped, and free of what no page may hold (lone surrogates, controls, overrides of direction).

    >>> esc("a<b>&\\udc80")
    'a&lt;b&gt;&amp;�'
    """
    return escape(UNREADABLE.sub("\ufffd", str(value)), quote=True)


def shortened(text: str, limit: int = MAX_NAME) -> str:
    """Text cut in its middle to at most `limit` characters.

    >>> shortened("abcdefghij", 5), shortened("abc", 5)
    ('ab…ij', 'abc')
    """
    if len(text) <= limit:
        return text
    kept = limit - 1
    return f"{text[: kept - kept // 2]}…{text[len(text) - kept // 2 :]}"


# ---- scales ------------------------------------------------------------
def byte_ticks(top: float) -> list[float]:
    """Ticks from 0 at a power of two of bytes, four or so below `top`.

    >>> [human_bytes(tick) for tick in byte_ticks(130 << 20)]
    ['0 B', '32.0 MiB', '64.0 MiB', '96.0 MiB', '128 MiB']
    >>> byte_ticks(0)
    [0.0]
    """
    if not top > 0:
        return [0.0]
    step = 2.0 ** math.ceil(math.log2(top / 5))
    return [step * n for n in range(int(top / step) + 1)]


def decimal_ticks(top: float, *, count: int = 6) -> list[float]:
    """Ticks from 0 at 1, 2 or 5 times a power of ten.

    >>> decimal_ticks(2.2), decimal_ticks(0)
    ([0.0, 0.5, 1.0, 1.5, 2.0], [0.0])
    """
    if not top > 0:
        return [0.0]
    power = 10.0 ** math.floor(math.log10(top / count))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor * count >= top)
    return [round(step * n, 12) for n in range(int(top / step + 1e-9) + 1)]


def byte_label(value: float, top: float) -> str:
    """A tick's label, all in the unit that suits `top`.

    >>> byte_label(1 << 29, 2 << 30), byte_label(0, 2 << 30)
    ('0.5 GiB', '0 GiB')
    """
    unit = min(4, int(math.log2(max(top, 1)) / 10))
    return f"{value / 1024**unit:g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[unit]}"


def rate_label(value: float, top: float) -> str:
    """A tick's label for counts a second.

    >>> rate_label(250000, 500000), rate_label(0.5, 2)
    ('250 k/s', '0.5 /s')
    """
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if top >= 10 * size or (top >= size and size > 1e3):
            return f"{value / size:g}{unit}/s"
    return f"{value:g} /s"


def thinned(
    times: Sequence[float], values: Sequence[float], *, max_points: int = MAX_POINTS
) -> tuple[list[float], list[float]]:
    """A step series of at most about `max_points` points that keeps every column's extremes and last value."""
    if len(times) <= max_points:
        return list(times), list(values)
    keep: list[int] = []
    columns = max_points // 4
    for column in range(columns):
        low, high = column * len(times) // columns, (column + 1) * len(times) // columns
        span = range(low, high)
        keep += sorted({low, min(span, key=values.__getitem__), max(span, key=values.__getitem__), high - 1})
    return [times[i] for i in keep], [values[i] for i in keep]


# ---- parts ------------------------------------------------------------
@dataclass(frozen=True)
class Series:
    """One named step function of time, from its first time to `end_s` (None: to the end of the chart)."""

    name: str
    times: Sequence[float]
    values: Sequence[float]
    end_s: float | None = None


def moment(time_s: float, end_s: float) -> str:
    """A time, as exact as the run is short.

    >>> moment(1.234, 60), moment(0.00012345, 0.001)
    ('1.23 s', '0.123 ms')
    """
    return f"{time_s:.2f} s" if end_s >= 0.5 else f"{1000 * time_s:.3g} ms"


def _series_data(series: Sequence[Series], end_s: float) -> str:
    digits = 5 if end_s > 1 else 8
    rows: list[dict[str, object]] = []
    for one in series:
        row: dict[str, object] = {"name": one.name, "t": [round(t, digits) for t in one.times], "v": list(one.values)}
        rows.append(row if one.end_s is None else row | {"end": round(one.end_s, digits)})
    return esc(json.dumps(rows, separators=(",", ":")))


def _axes(end_s: float, top: float, ticks: list[float], label: Callable[[float, float], str]) -> str:
    parts = []
    for tick in ticks:
        y = PLOT_PX * (1 - tick / top)
        parts.append(f'<line class="grid" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="-8" y="{y + 4:.1f}" text-anchor="end">{esc(label(tick, top))}</text>')
    seconds = decimal_ticks(end_s)
    for tick in seconds:
        x = 100 * tick / end_s
        parts.append(f'<line class="axis" x1="{x:.3f}%" x2="{x:.3f}%" y1="{PLOT_PX}" y2="{PLOT_PX + 4}"/>')
        parts.append(f'<text x="{x:.3f}%" y="{PLOT_PX + 17}" text-anchor="middle">{tick:g}</text>')
    parts.append(f'<line class="axis" x1="0" x2="100%" y1="{PLOT_PX}" y2="{PLOT_PX}"/>')
    parts.append(f'<text x="50%" y="{PLOT_PX + 34}" text-anchor="middle">seconds since the start</text>')
    return "".join(parts)


def _frame(name: str, title: str, description: str, data: str, body: str) -> str:
    return (
        f'<div class="plot"><svg height="{PLOT_PX}" role="img" '
        f'aria-labelledby="{name}-title {name}-desc" {data}>'
        f'<title id="{name}-title">{esc(title)}</title><desc id="{name}-desc">{esc(description)}</desc>{body}'
        f'<line class="cursor" y1="0" y2="{PLOT_PX}" x1="0" x2="0" visibility="hidden"/></svg></div>'
    )


def _step_path(one: Series, end_s: float, top: float, *, closed: bool) -> str:
    points = [
        (1000 * min(time / end_s, 1), PLOT_PX * (1 - value / top))
        for time, value in zip(one.times, one.values, strict=True)
    ]
    first_x, first_y = points[0]
    last_x = 1000.0 if one.end_s is None else max(points[-1][0], 1000 * min(one.end_s / end_s, 1))
    path = f"M{first_x:.2f} {first_y:.1f}" + "".join(f"H{x:.2f}V{y:.1f}" for x, y in points[1:]) + f"H{last_x:.2f}"
    return path + f"V{PLOT_PX}H{first_x:.2f}Z" if closed else path


# ---- charts ------------------------------------------------------------
def step_chart(
    filled: Series,
    dotted: Series | None,
    *,
    end_s: float,
    limit: float | None = None,
    title: str,
    name: str = "capacity",
    points: str = "readings",
    max_points: int = MAX_POINTS,
    kind: Kind = "bytes",
) -> str:
    """Values over time: one series filled, one dotted, a limit dashed, the filled one's peak marked.

    The caller decides whether the limit belongs on the chart. `name` begins the chart's ids, `kind` gives the unit.
    """
    end_s = max([end_s, *filled.times, *(dotted.times if dotted else ()), 1e-9])
    lines = [
        Series(one.name, *thinned(one.times, one.values, max_points=max_points), one.end_s)
        for one in (filled, dotted)
        if one and len(one.times)
    ]
    peak = max(filled.values, default=0)
    top = max([limit or 0.0, *(max(one.values) for one in lines)], default=0.0) * 1.16 or 1.0
    ticks = byte_ticks(top) if kind == "bytes" else decimal_ticks(top, count=5)
    body = [_axes(end_s, top, ticks, byte_label if kind == "bytes" else lambda value, _: plain(kind, value))]
    body.append(f'<svg width="100%" height="{PLOT_PX}" viewBox="0 0 1000 {PLOT_PX}" preserveAspectRatio="none">')
    for one, look in zip(lines, ("filled", "dotted") if len(filled.times) else ("dotted",), strict=False):
        if look == "filled":
            body.append(f'<path class="area" d="{_step_path(one, end_s, top, closed=True)}"/>')
        body.append(f'<path class="{look}" d="{_step_path(one, end_s, top, closed=False)}"/>')
    body.append("</svg>")
    if limit:
        y = PLOT_PX * (1 - limit / top)
        body.append(f'<line class="limit" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>')
    said = f"{len(filled.times)} {points} over {end_s:.2f} s"
    if peak > 0:
        at = filled.times[list(filled.values).index(peak)]
        x, y = 100 * at / end_s, PLOT_PX * (1 - peak / top)
        anchor, shift = ("end", -2) if x > 50 else ("start", 2)
        mark = f"at most {plain(kind, peak)}, at {moment(at, end_s)}"
        said += f"; {mark}"
        body.append(f'<circle class="peak" cx="{x:.3f}%" cy="{y:.1f}" r="4"/>')
        body.append(
            f'<text class="mark" x="{x:.3f}%" dx="{shift}" y="{y - 10:.1f}" text-anchor="{anchor}">{esc(mark)}</text>'
        )
    unit = "bytes" if kind == "bytes" else "count"
    data = f'data-unit="{unit}" data-end="{end_s:.6g}" data-series="{_series_data(lines, end_s)}"'
    return _frame(name, title, said, data, "".join(body))


def stacked_chart(
    series: Sequence[Series], *, end_s: float, fill: Callable[[str], str], title: str, name: str = "faults-time"
) -> str:
    """Counts of equal time bins as bars, stacked by series; the axis shows counts a second."""
    times = list(series[0].times) if series else []
    if not times:
        return ""
    bin_s = times[1] - times[0] if len(times) > 1 else max(end_s, 1e-9)
    bin_s = bin_s if bin_s > 0 else 1e-9
    end_s = max(end_s, times[-1] + bin_s)
    totals = [sum(one.values[i] for one in series) for i in range(len(times))]
    top = max(totals) / bin_s * 1.08 or 1.0
    body = [_axes(end_s, top, decimal_ticks(top, count=5), rate_label)]
    width = 100 * bin_s / end_s
    heights = [0.0] * len(times)
    for one in series:
        bars = []
        for i, count in enumerate(one.values):
            if count:
                height = PLOT_PX * count / bin_s / top
                y = PLOT_PX - heights[i] - height
                # A class that is there at all must be visible: at least half a pixel.
                bars.append(
                    f'<rect x="{100 * times[i] / end_s:.3f}%" width="{width:.3f}%" '
                    f'y="{y:.2f}" height="{max(height, 0.5):.2f}"/>'
                )
                heights[i] += height
        if bars:
            body.append(f'<g fill="{fill(one.name)}">{"".join(bars)}</g>')
    sums = ", ".join(f"{one.name} {sum(one.values):,}" for one in series)
    said = f"{len(times)} bars of {bin_s:.3g} s; {sums} in all"
    data = f'data-unit="count" data-end="{end_s:.6g}" data-series="{_series_data(series, end_s)}"'
    return _frame(name, title, said, data, "".join(body))


# ---- call stacks ------------------------------------------------------------
@dataclass
class Node:
    """A frame under the same callers; `names` has more than one entry when a run was folded."""

    names: list[str]
    weight: int = 0
    samples: int = 0
    children: dict[str, Node] = field(default_factory=dict)


def stack_tree(stacks: Sequence[tuple[Sequence[str], int, int]], *, whole: str = "all") -> Node:
    """Merges (frames innermost first, bytes, samples) from the outermost frame down.

    >>> root = stack_tree([(("touch", "main"), 8, 2), (("grow", "main"), 4, 1)])
    >>> main = root.children["main"]
    >>> root.weight, main.weight, sorted(main.children)
    (12, 12, ['grow', 'touch'])
    """
    root = Node([whole])
    for frames, weight, samples in stacks:
        node = root
        node.weight += weight
        node.samples += samples
        for name in reversed(frames):
            node = node.children.setdefault(name, Node([name]))
            node.weight += weight
            node.samples += samples
    return root


def tree_depth(root: Node) -> int:
    """Rows below the root."""
    depth, row = 0, list(root.children.values())
    while row:
        depth, row = depth + 1, [child for node in row for child in node.children.values()]
    return depth


def fold_runs(root: Node) -> None:
    """Joins frames that have one child of the same weight with that child, all but the last of a run."""
    todo = list(root.children.values())
    while todo:
        node = todo.pop()
        while len(node.children) == 1:
            (child,) = node.children.values()
            if child.weight != node.weight or not child.children:
                break
            node.names += child.names
            node.children = child.children
        todo += node.children.values()


def _label(node: Node) -> str:
    if len(node.names) == 1:
        return node.names[0][:MAX_LABEL]
    first, last = node.names[0][:MAX_LABEL], node.names[-1][:MAX_LABEL]
    return f"{first} → … {len(node.names) - 2} frames … → {last}" if len(node.names) > 2 else f"{first} → {last}"


def _samples(number: int) -> str:
    return f"{number:,} samples"


def icicle(
    stacks: Sequence[tuple[Sequence[str], int, int]],
    *,
    title: str,
    name: str = "stacks",
    whole: str = "all sampled first touches",
    amount: Callable[[int], str] = human_bytes,
    second_amount: Callable[[int], str] = _samples,
    estimated: bool = True,
    max_frames: int = MAX_FRAMES,
    min_percent: float = MIN_FRAME_PERCENT,
) -> tuple[str, list[str]]:
    """Call stacks as an icicle (callers above callees), and what a reader must know about it.

    A stack is (frames innermost first, weight, a second number); `amount` and `second_amount` say both
    in words, `name` begins the chart's ids.
    """
    root = stack_tree(stacks, whole=whole)
    if root.weight <= 0:
        return "", []
    remarks = []
    if tree_depth(root) > FOLD_FROM_DEPTH:
        fold_runs(root)
        remarks.append("Runs of frames with one callee are folded into one box.")
    boxes: list[tuple[Node, float, int]] = []
    left_out = 0
    deepest = 0
    row: list[tuple[Node, float]] = [(root, 0.0)]
    depth = 0
    while row:
        below: list[tuple[Node, float]] = []
        for node, x in row:
            width = 100 * node.weight / root.weight
            if width < min_percent or len(boxes) >= max_frames or depth > MAX_DEPTH:
                left_out += 1
                continue
            boxes.append((node, x, depth))
            deepest = depth
            for child in sorted(node.children.values(), key=lambda child: (-child.weight, child.names)):
                below.append((child, x))
                x += 100 * child.weight / root.weight
        row, depth = below, depth + 1
    if left_out:
        remarks.append(f"{left_out:,} boxes too small or too deep to see are left out.")
    body = []
    for node, x, depth in boxes:
        width = 100 * node.weight / root.weight
        colour = "root" if depth == 0 else f"c{crc32(node.names[-1].encode('utf-8', 'replace')) % 3}"
        narrow = " narrow" if width < NARROW_PERCENT else ""
        place = f'x="{x:.4f}%" width="{width:.4f}%" y="{depth * FRAME_PX}" height="{FRAME_PX - 1}"'
        about = (
            f"{shortened(' → '.join(shortened(one) for one in node.names), 4 * MAX_NAME)}: "
            f"{amount(node.weight)}, {width:.1f} %, {second_amount(node.samples)}"
        )
        body.append(
            f'<g class="{colour}{narrow}" data-x="{x:.4f}" data-w="{width:.4f}"><title>{esc(about)}</title>'
            f'<rect {place}/><svg {place}><text x="4" y="13">{esc(_label(node))}</text></svg></g>'
        )
    height = (deepest + 1) * FRAME_PX
    svg = (
        f'<svg class="icicle" height="{height}" role="group" aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{esc(title)}</title>'
        f'<desc id="{name}-desc">Callers above callees; the width is the share of '
        f"{'the estimated ' if estimated else ''}{esc(amount(root.weight))}.</desc>"
        f"{''.join(body)}</svg>"
    )
    return svg, remarks
