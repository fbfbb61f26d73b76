"""The roofline of a program's regions: arithmetic for each byte against arithmetic a second, below the machine's ceilings.

All ceilings are drawn, whichever a region used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..units import human_rate
from ._charts import PLOT_PX, esc
from ._units import human_count


class Region(NamedTuple):
    """One point of the chart."""

    name: str
    results_per_byte: float
    results_per_second: float
    peak_results_per_second: float


def _decades(values: list[float]) -> tuple[int, int]:
    """Powers of ten around positive values, at least two apart.

    >>> _decades([0.2, 0.3]), _decades([1e9, 2e11])
    ((-1, 1), (9, 12))
    """
    low = math.floor(math.log10(min(values)))
    return low, max(math.ceil(math.log10(max(values))), low + 2)


def roofline_chart(rows: Sequence[Region], peaks: Mapping[str, float]) -> str:
    """Both axes are logarithmic; each level's ceiling is a rising line up to the peak of arithmetic."""
    highest = max(row.peak_results_per_second for row in rows)
    ceilings = [(level, rate, highest) for level, rate in peaks.items()]
    low_x, high_x = _decades([row.results_per_byte for row in rows] + [top / rate for _, rate, top in ceilings])
    low_y, high_y = _decades([row.results_per_second for row in rows] + [row.peak_results_per_second for row in rows])

    def x_of(value: float) -> float:
        return 100 * (math.log10(value) - low_x) / (high_x - low_x)

    def y_of(value: float) -> float:
        return PLOT_PX * (1 - (math.log10(value) - low_y) / (high_y - low_y))

    body = []
    for power in range(low_y, high_y + 1):
        y = y_of(10.0**power)
        body.append(f'<line class="grid" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>')
        body.append(f'<text x="-8" y="{y + 4:.1f}" text-anchor="end">{esc(human_count(10.0**power))}</text>')
    for power in range(low_x, high_x + 1):
        x = x_of(10.0**power)
        body.append(f'<line class="axis" x1="{x:.3f}%" x2="{x:.3f}%" y1="{PLOT_PX}" y2="{PLOT_PX + 4}"/>')
        body.append(f'<text x="{x:.3f}%" y="{PLOT_PX + 17}" text-anchor="middle">{10.0**power:g}</text>')
    body.append(f'<line class="axis" x1="0" x2="100%" y1="{PLOT_PX}" y2="{PLOT_PX}"/>')
    body.append(f'<text x="50%" y="{PLOT_PX + 34}" text-anchor="middle">floating-point results a byte</text>')
    for level, rate, top in ceilings:
        ridge = top / rate
        begin = max(10.0**low_x, 10.0**low_y / rate)
        if begin < ridge:
            body.append(
                f'<line class="limit" x1="{x_of(begin):.3f}%" y1="{y_of(begin * rate):.1f}" x2="{x_of(ridge):.3f}%" y2="{y_of(top):.1f}"/>'
            )
        body.append(
            f'<line class="limit" x1="{x_of(ridge):.3f}%" x2="100%" y1="{y_of(top):.1f}" y2="{y_of(top):.1f}"/>'
        )
        body.append(
            f'<text class="mark" x="{x_of(ridge):.3f}%" dx="4" y="{y_of(top) - 6:.1f}">{esc(level)} {esc(human_rate(rate))}</text>'
        )
    for row in rows:
        x, y = x_of(row.results_per_byte), y_of(row.results_per_second)
        body.append(f'<circle class="peak" cx="{x:.3f}%" cy="{y:.1f}" r="4"/>')
        anchor, shift = ("end", -7) if x > 60 else ("start", 7)
        body.append(
            f'<text class="mark" x="{x:.3f}%" dx="{shift}" y="{y + 4:.1f}" text-anchor="{anchor}">{esc(row.name)}</text>'
        )
    said = f"{len(rows)} regions below {len(ceilings)} ceilings"
    return (
        "<figure><figcaption>Roofline: floating-point results a second, below what the machine could do</figcaption>"
        f'<div class="plot"><svg height="{PLOT_PX}" role="img" aria-labelledby="roofline-title roofline-desc">'
        f'<title id="roofline-title">Roofline</title><desc id="roofline-desc">{esc(said)}</desc>{"".join(body)}</svg></div></figure>'
    )
