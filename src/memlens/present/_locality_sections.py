"""Section of locality: footprint, growth and reuse by code and data, miss curve, heat map.

Owns which columns the result `locality` shows, and how windows, inferred classes and what windows cannot see are worded. Miss
ratios of rows are those of the result `caches`, where there is one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._charts import esc
from ._locality_charts import Bar, Layer, Mark, heat_layer, histogram, miss_curve, power_label
from ._markup import (
    counted,
    definitions,
    function_markup,
    head_cell,
    json_command,
    module_markup,
    percent,
    percent_range,
    share_cell,
    table,
    titled,
    top_rows,
    value_text,
    whole_number,
)
from ._units import human_bytes, human_count, human_duration

if TYPE_CHECKING:
    from ..results import Result

LEAST_SHARE = 0.0005
"""Rows with less of the accesses are left to the table behind the page, as are those after the first thirty."""


def locality_section(result: Result, caches: Result | None = None) -> str:
    figures = result.figures
    if not figures["recorded_accesses"]:
        said = " ".join(note for note in result.quality.notes if note.startswith("Locality"))
        why = f'<p class="muted">{esc(said or "No address of an access was recorded.")}</p>'
        return f'<section id="locality"><h2>Locality</h2>{why}</section>'
    marks = [Mark(level["name"], level["bytes"]) for level in caches.figures["levels"]] if caches else []
    body = [_tiles(figures), _said(result)]
    for name, caption in (("by_function", "By function"), ("by_object", "By object")):
        if name in result.tables:
            body.append(_rows(result, name, caption, caches))
    body += [_key(result, caches), _curve(result, marks), _histograms(result, marks), _heat(result)]
    return f'<section id="locality"><h2>Locality</h2>{"".join(part for part in body if part)}</section>'


# ---- what it is about ------------------------------------------------------------
def _tiles(figures: Mapping[str, Any]) -> str:
    whole = figures["everything_recorded"]
    line = figures["line_bytes"]
    lines = f"{human_count(figures['footprint_lines'])} lines of {line} B"
    where, of_window = ("", "") if whole else (" in windows", "window_")
    constant = ("Constant", f"{_percent(figures['constant_percent'])}<small>of the accesses: one address each</small>")
    if figures["constant_percent"] is None:
        constant = (
            f"Constant{where}",
            f"{_percent(figures[f'{of_window}constant_percent'])}<small>of the accesses: one address in a window</small>",
        )
    tiles = [
        (
            "Footprint" if whole else "Footprint of windows",
            titled("bytes", figures["footprint_bytes"]) + f"<small>in {esc(lines)}</small>",
        ),
        (f"Growth{where}", f"{_decimal(figures[f'{of_window}growth'])}<small>new addresses an access</small>"),
        constant,
        (
            f"Irregular{where}",
            f"{_percent(figures[f'{of_window}irregular_percent'])}<small>of the other addresses</small>",
        ),
        (
            f"Reuse distance{where}",
            f"{_decimal(figures[f'{of_window}reuse_distance_mean'])}<small>mean, blocks of {line} B</small>",
        ),
    ]
    if not whole:
        share = _share(figures["unobservable"], figures["recorded_accesses"])
        tiles.append(("Unobservable", f"{_percent(share)}<small>last use outside the window</small>"))
    return definitions("tiles", tiles)


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else 100 * part / whole


def _said(result: Result) -> str:
    """One paragraph: what the numbers rest on."""
    figures = result.figures
    recorded, executed = figures["recorded_accesses"], figures["executed_accesses"]
    said = []
    if figures["everything_recorded"]:
        said.append(f"Every access was recorded ({recorded:,}): footprints and distances are exact.")
    else:
        said.append(
            f"Sampled: {counted(figures['windows'], 'window')} with {recorded:,} of {executed:,} accesses "
            f"({percent(recorded / executed if executed else 0.0)}). Footprints are those of the windows, less than the run's. Growth, irregular "
            f"share and distance are means within windows of {figures['window_accesses']:,} accesses and depend on that length: a reuse is "
            "seen only when both uses lie in one window, and the rest is unobservable, not zero."
        )
    origin = {
        "static": "Classes (constant, strided, irregular) come from the compiler.",
        "inferred": "Classes (constant, strided, irregular) are inferred from the addresses seen of each instruction.",
    }
    said.append(
        origin.get(
            figures["class_origin"],
            "Classes (constant, strided, irregular) come from the compiler where it knew them; the others are inferred from addresses.",
        )
    )
    said.append("Reuse is that of each thread for itself.")
    if figures["damaged_windows"]:
        said.append(f"{counted(figures['damaged_windows'], 'damaged window')} left out.")
    return f'<p class="muted">{esc(" ".join(said))}</p>'


# ---- tables ------------------------------------------------------------
def _miss_ratios(
    caches: Result | None, name: str
) -> tuple[list[str], dict[tuple[Any, ...], list[tuple[float, float]]]]:
    """Names of the modelled levels, and the least and most that the miss ratios of each row can be, by what names it."""
    if caches is None or name not in caches.tables or not caches.figures["accesses"]:
        return [], {}
    levels = [level["name"] for level in caches.figures["levels"]]
    keys = ("function", "module") if name == "by_function" else ("object", "kind")
    columns = caches.tables[name].to_pydict()
    pairs = [
        list(zip(columns[f"miss_ratio_{at}"], columns[f"miss_ratio_high_{at}"], strict=True))
        for at in range(1, len(levels) + 1)
    ]
    ratios = zip(*pairs, strict=True)
    return levels, dict(zip(zip(*(columns[key] for key in keys), strict=True), map(list, ratios), strict=True))


def _rows(result: Result, name: str, caption: str, caches: Result | None) -> str:
    whole = result.figures["everything_recorded"]
    levels, ratios = _miss_ratios(caches, name)
    rows, total = top_rows(result, name)
    shown = [row for row in rows if row["share"] >= LEAST_SHARE] or rows[:1]
    code = name == "by_function"
    cells = []
    for row in shown:
        key = (row["function"], row["module"]) if code else (row["object"], row["kind"])
        misses = ratios.get(key, [None] * len(levels))
        cells.append(
            [
                head_cell(_name(row, code=code)),
                _accesses(row),
                share_cell(row["share"], 1).replace('class="share"', 'class="share roomy"'),
                _footprint(row),
                _growth(row, whole=whole),
                _classes(row, whole=whole),
                _distance(row, whole=whole),
                *([_number(row["unobservable_percent"], _percent(row["unobservable_percent"]))] if not whole else []),
                *(
                    _number(None, "–") if pair is None else _number(pair[1], esc(percent_range(*pair)))
                    for pair in misses
                ),
            ]
        )
    heads = [
        ("Function" if code else "Object", ""), ("Accesses", "number"), ("Share", "share roomy"), ("Footprint", "number"),
        ("Growth" if whole else "Growth in windows", "number"), ("Classes" if whole else "Classes in windows", "share classes"),
        ("Mean distance" if whole else "Mean distance in windows", "number"),
        *([("Unobserv\u00adable", "number")] if not whole else []),
        *((f"{level} misses", "number") for level in levels),
    ]  # fmt: skip
    return table(
        caption, heads, cells, total_rows=total, export=json_command("locality", name), kind="dense fitted",
        empty="No access has one.",
    )  # fmt: skip


def _name(row: Mapping[str, Any], *, code: bool) -> str:
    if code:
        return f"{function_markup(row['function'])}<small>{module_markup(row['module'])}</small>"
    kind = row["kind"] if row["kind"] and row["kind"] != "none" else ""
    shown = function_markup(row["object"]) if row["object"] else '<span class="muted">(no known object)</span>'
    return shown + (f"<small>{esc(kind)}</small>" if kind and not str(row["object"]).startswith(kind) else "")


def _number(value: float | None, shown: str, remark: str = "", title: str = "") -> str:
    below = f"<small>{remark}</small>" if remark else ""
    tip = f' title="{esc(title)}"' if title else ""
    return f'<td class="number" data-v="{-1 if value is None else round(value, 6)}"{tip}>{shown}{below}</td>'


def _decimal(value: float | None) -> str:
    if value is None:
        return "–"
    if 0 < value < 0.001:
        return esc("<0.001")
    return esc(human_count(value) if value >= 1000 else f"{value:.3g}")


def _percent(value: float | None) -> str:
    return "–" if value is None else esc(percent(value / 100))


def _accesses(row: Mapping[str, Any]) -> str:
    return _number(row["executed"], whole_number(row["executed"]))


def _footprint(row: Mapping[str, Any]) -> str:
    """Unique bytes and lines; addresses in the tooltip, where the estimate for the whole run is too."""
    said = f"{row['footprint']:,} addresses"
    if row["footprint_estimated"] is not None and row["rho"] != 1:
        said += f" in windows; {row['footprint_estimated']:,.0f} if what was not recorded is as new as what was"
    lines = f"{human_count(row['footprint_lines'])} lines"
    shown = esc(value_text("bytes", row["footprint_bytes"]))
    return _number(row["footprint_bytes"], shown, esc(lines), said)


def _growth(row: Mapping[str, Any], *, whole: bool) -> str:
    """Growth; its error where windows were sampled, and a word where that is too much."""
    remark = ""
    if not whole:
        growth, error = row["window_growth"], row["window_growth_error"]
        spread = f"± {percent(min(error / growth, 9.99))}" if error is not None and growth else ""
        if row["under_sampled"]:
            few = counted(row["windows"], "window")
            remark = f'<span class="few">few: {esc(few)}</span>' if row["windows"] < 10 or not spread else ""
            remark = remark or f'<span class="few">few: {esc(spread)}</span>'
        else:
            remark = esc(spread)
    value = row["growth" if whole else "window_growth"]
    return _number(value, _decimal(value), remark)


def _classes(row: Mapping[str, Any], *, whole: bool) -> str:
    """Strided and irregular addresses as one bar; constants are accesses, not addresses, so they are below."""
    strided, irregular = row["footprint_strided"], row["footprint_irregular"]
    if not whole and strided + irregular and row["window_irregular_percent"] is not None:
        # The same sum, in the proportion that windows have in the mean.
        irregular = (strided + irregular) * row["window_irregular_percent"] / 100
        strided = row["footprint_strided"] + row["footprint_irregular"] - irregular
    constant = row["constant_percent"] if whole else row["window_constant_percent"]
    below = f"<small>{_percent(constant)} constant</small>" if constant else ""
    if not strided + irregular:
        return f'<td class="share classes" data-v="-1">{"–" if not below else ""}{below}</td>'
    parts = {"strided": strided, "irregular": irregular}
    share = irregular / (strided + irregular)
    bars = "".join(
        f'<i class="{kind}" style="width:{100 * count / (strided + irregular):.2f}%"></i>'
        for kind, count in parts.items()
        if count
    )
    of_all = {"strided": row["footprint_strided"], "irregular": row["footprint_irregular"]}
    said = ", ".join(f"{count:,} {kind}" for kind, count in of_all.items())
    return (
        f'<td class="share classes" data-v="{share:.6f}" title="{esc(said)} addresses"><span class="track parts">{bars}</span>'
        f"<small>{esc(percent(share))} irregular</small>{below}</td>"
    )


def _distance(row: Mapping[str, Any], *, whole: bool) -> str:
    prefix = "" if whole else "window_"
    mean, error = row[f"{prefix}reuse_distance_mean"], row[f"{prefix}reuse_distance_error"]
    if mean is None:
        return _number(None, "–", "no reuse seen" if row["recorded"] else "")
    remark = (
        f"± {percent(min(error / mean, 9.99))}"
        if error and mean
        else f"up to {human_count(row[f'{prefix}reuse_distance_max'])}"
    )
    said = (
        f"least {row[f'{prefix}reuse_distance_min']:,}, greatest {row[f'{prefix}reuse_distance_max']:,} blocks; "
        f"interval {row[f'{prefix}reuse_interval_mean']:,.1f} accesses on average, {row[f'{prefix}reuse_interval_max']:,} at most"
    )
    return _number(mean, _decimal(mean), esc(remark), said)


def _key(result: Result, caches: Result | None) -> str:
    """What the columns of the tables mean, once for both."""
    figures = result.figures
    line = figures["line_bytes"]
    parts = [
        f"<b>Footprint</b>: bytes used at least once, and the lines of {line} B they lie in; constants have none.",
        "<b>Growth</b>: unique addresses an access makes, all constants counted as one address; 1 means that nothing is used twice.",
        '<b>Classes</b> of addresses: <span class="track parts key" aria-hidden="true"><i class="strided"></i></span>strided, '
        '<span class="track parts key" aria-hidden="true"><i class="irregular"></i></span>irregular; constant: share of the '
        "accesses that always go to one address.",
        f"<b>Mean distance</b>: different blocks of {line} B used between two uses of a block.",
    ]
    if not figures["everything_recorded"]:
        parts.append(
            "<b>Unobservable</b>: accesses that are their window's first to a block. ± is one standard error, from how windows differ; "
            "<b>few</b>: under-sampled, fewer than 10 windows or an error above 25 %."
        )
    if caches is not None and caches.figures["accesses"]:
        parts.append('<b>Misses</b>: of all accesses of the row, by the <a href="#caches">cache model</a>.')
    return f'<p class="remark">{" ".join(parts)}</p>'


# ---- figures ------------------------------------------------------------
def _figure(heading: str, caption: str, chart: str) -> str:
    return (
        f'<div class="block"><h3>{esc(heading)}</h3><figure><figcaption class="muted">{esc(caption)}</figcaption>'
        f'<output class="readout"></output>{chart}</figure></div>'
    )


def _curve(result: Result, marks: Sequence[Mark]) -> str:
    columns = result.tables["miss_curve"].to_pydict()
    chart = miss_curve(
        columns["cache_bytes"],
        columns["miss_ratio"],
        columns["miss_ratio_low"],
        marks,
        title="Misses by size of a cache",
    )
    if not chart:
        return ""
    caption = (
        "Share of the accesses that miss in a fully associative LRU cache of this size, one for each thread; a steep fall is a working "
        "set that begins to fit."
    )
    if not result.figures["everything_recorded"]:
        caption += " Solid: all unobservable accesses miss; dotted: none does; the truth lies between."
    elif marks:
        caption += (
            " Dashed: sizes of the modelled machine's caches; the cache model has sets, inclusive levels and a last one that threads share, "
            "so its figures at these sizes differ."
        )
    return _figure("What cache would this need?", caption, chart)


def _bars(result: Result, column: str, unit: str) -> list[Bar]:
    rows = result.tables["reuse_distances"].to_pylist()
    while rows and not rows[-1][column]:
        rows.pop()
    whole, recorded = result.figures["everything_recorded"], result.figures["recorded_accesses"]
    line = result.figures["line_bytes"] if unit == "blocks" else 0
    bars = []
    for row in rows:
        span = f"{row['from']:,} to {row['to']:,}" if row["to"] > row["from"] else f"{row['from']:,}"
        size = f" ({human_bytes(row['from'] * line)})" if line and row["from"] else ""
        label = human_bytes(row["from"] * line).replace(".0 ", " ") if line else power_label(row["from"])
        said = f"{span} {unit}{size}: {percent(row[column] / recorded)} of the accesses, {row[column]:,} reuses"
        bars.append(Bar("0" if row["from"] == 0 else label, row[column] / recorded, said))
    rest = recorded - sum(row[column] for row in rows)
    if bars and rest > 0:
        label, what = (
            ("first", "first accesses to a block") if whole else ("?", "unobservable, last use outside the window")
        )
        bars.append(Bar(label, rest / recorded, f"{what}: {percent(rest / recorded)} of the accesses, {rest:,}", True))
    return bars


def _histograms(result: Result, marks: Sequence[Mark]) -> str:
    figures = result.figures
    line, whole = figures["line_bytes"], figures["everything_recorded"]
    last = "first accesses, which have no reuse" if whole else "unobservable accesses"
    by_distance = _bars(result, "reuses_by_distance", "blocks")
    if not by_distance:
        return ""
    known = len(by_distance) - by_distance[-1].unknown
    placed = [(1 + math.log2(mark.bytes / line), mark.name) for mark in marks if mark.bytes >= line]
    distance = histogram(
        by_distance, name="reuse-distance", title="Reuse distances", axis="other data used in between", every=_every(known),
        marks=[(at, label) for at, label in placed if at <= known],
    )  # fmt: skip
    by_interval = _bars(result, "reuses_by_interval", "accesses")
    interval = histogram(
        by_interval, name="reuse-interval", title="Reuse intervals", axis="accesses from one use to the next",
        every=_every(len(by_interval)),
    )  # fmt: skip
    beyond = [label for at, label in placed if at > known]
    note = f" Every distance fits {', '.join(beyond)}." if beyond and whole else ""
    return (
        '<div class="columns">'
        + _figure(
            "Reuse distance",
            f"Share of the accesses by how much other data ({line} B blocks, as bytes) was used since the last use of their block, in "
            f"powers of two; hatched: {last}. A cache holds what lies left of its line.{note}",
            distance,
        )
        + _figure(
            "Reuse interval",
            f"Share of the accesses by how many accesses of the thread ago their block was used, in powers of two; hatched: {last}.",
            interval,
        )
        + "</div>"
    )


def _every(bars: int) -> int:
    """Labels of a histogram must not touch where the page is narrow."""
    return 1 if bars <= 6 else 2 if bars <= 12 else 4


def _heat(result: Result) -> str:
    arrow = result.tables["heat_map"]
    if not arrow.num_rows:
        return ""
    cells = arrow.to_pydict()
    places = list(zip(cells["process"], cells["address"], strict=True))
    ranges = sorted(set(places))
    row_of = {place: at for at, place in enumerate(ranges)}
    row_bytes = cells["bytes"][0]
    origin = min(cells["begin_ns"])
    part_ns = max(1, max(end - begin for begin, end in zip(cells["begin_ns"], cells["end_ns"], strict=True)))
    column_of = [round((begin - origin) / part_ns) for begin in cells["begin_ns"]]
    columns = max(column_of) + 1
    where = [(row_of[place], column) for place, column in zip(places, column_of, strict=True)]
    seconds = (max(cells["end_ns"]) - origin) / 1e9
    gaps = [
        at > 0 and (one[0] != ranges[at - 1][0] or one[1] != ranges[at - 1][1] + row_bytes)
        for at, one in enumerate(ranges)
    ]
    accesses: dict[tuple[int, int], float] = {}
    for place, count in zip(where, cells["accesses"], strict=True):  # parts shorter than a nanosecond fall together
        accesses[place] = accesses.get(place, 0) + count
    distances = {
        place: mean for place, mean in zip(where, cells["reuse_distance_mean"], strict=True) if mean is not None
    }
    line = result.figures["line_bytes"]
    layers = [Layer("accesses", "Accesses", accesses, "accesses recorded")]
    if distances:
        layers.append(Layer("distance", "Mean reuse distance", distances, f"blocks of {line} B, mean reuse distance"))
    choice = "".join(
        f'<input type="radio" name="heat" id="heat-{layer.name}"{" checked" if at == 0 else ""}>'
        f'<label for="heat-{layer.name}">{esc(layer.label)}</label>'
        for at, layer in enumerate(layers)
    )
    addresses = [address for _, address in ranges]
    drawn = "".join(
        heat_layer(layer, addresses, gaps, columns, seconds=seconds, row_bytes=row_bytes) for layer in layers
    )
    folded = (
        f" Addresses that were not used are left out: a line across stands for a gap ({counted(sum(gaps), 'gap')})."
        if any(gaps)
        else ""
    )
    several = " Each process has its own addresses." if len({process for process, _ in ranges}) > 1 else ""
    sampled = (
        ""
        if result.figures["everything_recorded"]
        else " A column without cells had no window: that is no sign of rest."
    )
    caption = (
        f"A cell is {human_bytes(row_bytes)} of addresses during {human_duration(part_ns)}; darker in the light, brighter in the dark, means more."
        f"{folded}{several}{sampled}"
    )
    rows = ",".join(f"{address:x}" for address in addresses)
    return (
        '<div class="block"><h3>Where and when: addresses over time</h3>'
        f'<figure class="heat" data-rows="{rows}" data-row-bytes="{row_bytes}" data-part="{part_ns / 1e9:.9g}">'
        f'<figcaption class="muted">{esc(caption)}</figcaption>{choice if len(layers) > 1 else ""}'
        f'<output class="readout"></output>{drawn}</figure></div>'
    )
