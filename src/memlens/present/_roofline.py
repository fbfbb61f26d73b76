"""The roofline of a program's regions: arithmetic for each byte against arithmetic a second, below the machine's ceilings.

Owns the words for how far a region is from a peak, in the terminal and on the page, and the chart: all ceilings are drawn, whichever a region used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ._charts import PLOT_PX, esc
from ._markup import cell, head_cell, json_command, table
from ._units import human_count, human_rate

if TYPE_CHECKING:
    from ..results import Result


def peak_in_words(row: Mapping[str, Any]) -> str:
    """How a region stands beside its level's peak.

    >>> peak_in_words({"level": "L3", "peak_share": 0.0123}), peak_in_words({"level": "DRAM", "peak_share": 0.87})
    ('1.2 % of L3', '87 % of DRAM')
    >>> peak_in_words({"level": None, "peak_share": None})
    '–'
    """
    if not row["level"]:
        return "–"
    share = 100 * row["peak_share"]
    return f"{share:.1f} % of {row['level']}" if share < 10 else f"{share:.0f} % of {row['level']}"


def peak_cell(row: Mapping[str, Any]) -> str:
    if not row["level"]:
        return '<td class="number" data-v="-1">–</td>'
    said = f"{human_rate(row['peak_bytes_per_second'])}, {row['peak_kind']}; {row['level_evidence']}"
    return (
        f'<td class="number" data-v="{round(row["peak_share"], 6)}" title="{esc(said)}">{esc(peak_in_words(row))}'
        f"<small>{esc(human_rate(row['peak_bytes_per_second']))}</small></td>"
    )


def reached_by_level(result: Result) -> dict[str, dict[str, Mapping[str, Any]]]:
    """Region → level → its row of `roofline_ceilings`; levels from the first cache to memory."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in result.tables["roofline_ceilings"].to_pylist():
        found.setdefault(row["region"], {})[row["level"]] = row
    return found


LEGEND = "Of each level: results reached by those attainable if all bytes came from there; the level that a region used needs its own events."


def roofline_markup(result: Result) -> str:
    """Chart and table; nothing where no region has arithmetic."""
    rows = result.tables["roofline"].to_pylist()
    if not rows:
        return ""
    by_level = reached_by_level(result)
    levels = list(next(iter(by_level.values())))
    cells = [
        [
            head_cell(esc(row["region"])),
            _number(row["float_results_per_byte"], f"{row['float_results_per_byte']:.3g}"),
            _number(row["float_results_per_second"], human_count(row["float_results_per_second"])),
            *(_share_of(by_level[row["region"]][level]["reached_share"]) for level in levels),
            _share_of(row["arithmetic_share"]),
            cell(esc(row["level"] or "–")),
            cell(esc(row["limit"] or "–")),
            cell(esc(row["level_evidence"] or "–")),
        ]
        for row in rows
    ]
    heads = [
        ("Region", ""), ("Flop/byte", "number"), ("Flop/s", "number"), *((f"Of {level}", "number") for level in levels),
        ("Of arithmetic", "number"), ("Level", ""), ("Limited by", ""), ("Evidence of the level", ""),
    ]  # fmt: skip
    made = table("Roofline", heads, cells, total_rows=len(rows), export=json_command("bandwidth", "roofline"))
    highest = {level: max(found[level]["peak_bytes_per_second"] for found in by_level.values()) for level in levels}
    return roofline_chart(rows, highest) + made + f'<p class="muted">{esc(LEGEND)}</p>'


def share_in_words(share: float) -> str:
    """
    >>> share_in_words(0.4), share_in_words(3.2)
    ('40.0%', '320%')
    """
    return f"{share:.1%}" if share < 1 else f"{share:.0%}"


def _share_of(share: float) -> str:
    return _number(share, share_in_words(share))


def _number(value: float, shown: str) -> str:
    return f'<td class="number" data-v="{value}">{esc(shown)}</td>'


def _decades(values: list[float]) -> tuple[int, int]:
    """Powers of ten around positive values, at least two apart.

    >>> _decades([0.2, 0.3]), _decades([1e9, 2e11])
    ((-1, 1), (9, 12))
    """
    low = math.floor(math.log10(min(values)))
    return low, max(math.ceil(math.log10(max(values))), low + 2)


def roofline_chart(rows: list[dict[str, Any]], peaks: Mapping[str, float]) -> str:
    """Both axes are logarithmic; each level's ceiling is a rising line up to the peak of arithmetic."""
    highest = max(row["peak_results_per_second"] for row in rows)
    ceilings = [(level, rate, highest) for level, rate in peaks.items()]
    low_x, high_x = _decades(
        [row["float_results_per_byte"] for row in rows] + [top / rate for _, rate, top in ceilings]
    )
    low_y, high_y = _decades(
        [row["float_results_per_second"] for row in rows] + [row["peak_results_per_second"] for row in rows]
    )

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
        x, y = x_of(row["float_results_per_byte"]), y_of(row["float_results_per_second"])
        body.append(f'<circle class="peak" cx="{x:.3f}%" cy="{y:.1f}" r="4"/>')
        anchor, shift = ("end", -7) if x > 60 else ("start", 7)
        body.append(
            f'<text class="mark" x="{x:.3f}%" dx="{shift}" y="{y + 4:.1f}" text-anchor="{anchor}">{esc(row["region"])}</text>'
        )
    said = f"{len(rows)} regions below {len(ceilings)} ceilings"
    return (
        "<figure><figcaption>Roofline: floating-point results a second, below what the machine could do</figcaption>"
        f'<div class="plot"><svg height="{PLOT_PX}" role="img" aria-labelledby="roofline-title roofline-desc">'
        f'<title id="roofline-title">Roofline</title><desc id="roofline-desc">{esc(said)}</desc>{"".join(body)}</svg></div></figure>'
    )
