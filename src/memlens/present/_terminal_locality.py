"""Locality in the terminal: footprint and reuse by code and data, working set, modelled misses, shared lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._terminal_traffic import _code, _grid, _percent, _print
from ._units import human_bytes, human_count

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ..results import Result

CURVE_POINTS = 6
LEAST_SHARE = 0.002
"""Rows with less of the accesses, or of the misses, are left to the tables."""
LEAST_HAND_OVERS = 0.001
"""Of all accesses: start-up and shut-down of threads share lines in every program."""


def _show(console: Console, table: Table) -> None:
    """Prints a table whose names give way to its numbers: those are never cut."""
    _print(console, table)


def _say(console: Console, text: str) -> None:
    """A line below a table; where it is long it goes on below its beginning."""
    from rich.padding import Padding

    console.print(Padding(text, (0, 0, 0, 2)))


def _number(value: float | None, digits: int = 3) -> str:
    """
    >>> _number(0.0000814), _number(0.267), _number(2410), _number(None)
    ('<0.001', '0.267', '2.41 k', '–')
    """
    if value is None:
        return "–"
    if 0 < value < 0.001:
        return "<0.001"
    return human_count(value) if value >= 1000 else f"{value:.{digits}g}"


def _function(row: dict[str, Any]) -> str:
    """A function and its module; an anonymous namespace would leave no room for the name."""
    return _code({**row, "function": (row["function"] or "").replace("(anonymous namespace)::", "")}, line=False)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}%"


def show_locality(console: Console, result: Result, rows: int, *, brief: bool) -> None:
    from rich.markup import escape

    figures = result.figures
    if not figures["recorded_accesses"]:
        return
    whole = figures["everything_recorded"]
    how = "every access" if whole else f"in {figures['windows']:,} windows"
    of_window = "" if whole else "window_"
    inferred = "" if figures["class_origin"] == "static" else ", classes inferred"
    where = "" if whole else " in windows"
    constant = f"{_share(figures['constant_percent'])} of the accesses constant"
    if figures["constant_percent"] is None:  # a class that is inferred from windows is that of a window
        constant = f"{_share(figures[f'{of_window}constant_percent'])} of the accesses stay at one address{where}"
    console.print(
        f"\n[bold]Locality[/]  {how}: {human_count(figures['footprint'])} addresses, {human_bytes(figures['footprint_bytes'])} in "
        f"{human_count(figures['footprint_lines'])} lines; {_number(figures[f'{of_window}growth'])} new addresses an access{where}; "
        f"{constant}{inferred}"
    )
    if not whole:
        _say(
            console,
            f"[dim]growth, irregular and distance: in windows of {figures['window_accesses']:,} accesses; they depend on that length[/]",
        )
    for name, title in (("by_function", "function"), *(() if brief else (("by_object", "object"),))):
        if name not in result.tables:
            continue
        found = [row for row in result.tables[name].slice(0, rows).to_pylist() if row["share"] >= LEAST_SHARE]
        table = _grid((title, "left"), *((n, "right") for n in ("accesses", "footprint", "growth", "irregular", "distance")),
                      *(() if whole else (("unknown", "right"),)))  # fmt: skip
        for row in found:
            label = _function(row) if title == "function" else row["object"]
            table.add_row(
                escape(label), human_count(row["executed"]), human_bytes(row["footprint_bytes"]),
                _number(row[f"{of_window}growth"]) + ("?" if row["under_sampled"] else ""), _share(row[f"{of_window}irregular_percent"]),
                _number(row[f"{of_window}reuse_distance_mean"]),
                *(() if whole else (_share(row["unobservable_percent"]),)),
            )  # fmt: skip
        _show(console, table)
    if not brief:
        _legend(console, result, whole=whole)
    _curve(console, result, whole=whole)


def _legend(console: Console, result: Result, *, whole: bool) -> None:
    text = f"footprint: unique bytes; growth: unique addresses an access; distance: mean blocks of {result.figures['line_bytes']} B between two uses"
    if not whole:
        text += "; unknown: accesses whose last use lies outside their window; ?: too few windows"
    _say(console, f"[dim]{text}[/]")


def curve_points(points: list[dict[str, Any]], most: int = CURVE_POINTS) -> list[int]:
    """Rows of a miss curve that describe it: the ratio falls by at most 1/`most` of its range between two of them, but for jumps, which lie at
    a chosen row. The last is the smallest cache that misses no more than the largest one.

    >>> curve_points([{"miss_ratio": ratio} for ratio in (0.5, 0.5, 0.3, 0.29, 0.1, 0.1)], 2)
    [0, 2, 4]
    """
    ratios = [point["miss_ratio"] for point in points]
    fall = ratios[0] - ratios[-1]
    wanted = [ratios[-1] + fall * part / most for part in range(most, -1, -1)]
    chosen = (next(at for at, ratio in enumerate(ratios) if ratio <= limit + 1e-12) for limit in wanted)
    return sorted(set(chosen))


def _curve(console: Console, result: Result, *, whole: bool) -> None:
    points = result.tables["miss_curve"].to_pylist()
    if len(points) < 2:
        return
    chosen = [points[at] for at in curve_points(points)]
    parts = [
        f"{'from ' if point is chosen[-1] else ''}{human_bytes(point['cache_bytes'])}{' on' if point is chosen[-1] else ''} "
        f"{_between(point['miss_ratio_low'], point['miss_ratio'])}"
        for point in chosen
    ]
    ends = "" if whole else "; the range is accesses whose line was last used outside their window"
    _say(console, f"Misses of a fully associative LRU cache, one for each thread: {', '.join(parts)}{ends}")


def _between(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return "–"
    least, most = f"{low:.1%}", f"{high:.1%}"
    return most if least == most else f"{least.removesuffix('%')} to {most}"


def _associative(curve: Result | None, cache_bytes: int) -> str:
    """The same cache in the miss curve: without sets, and without other levels around it."""
    if curve is None or "miss_curve" not in curve.tables:
        return ""
    points = curve.tables["miss_curve"].to_pylist()
    # Beyond the last row the curve is flat.
    found = [row for row in points if row["cache_bytes"] == cache_bytes] or [
        row for row in points[-1:] if row["cache_bytes"] < cache_bytes
    ]
    return f" (curve {_between(found[0]['miss_ratio_low'], found[0]['miss_ratio'])})" if found else ""


def show_caches(console: Console, result: Result, rows: int, *, brief: bool, curve: Result | None = None) -> None:
    """`curve`: the result ``locality``, whose miss curve models the same sizes otherwise."""
    levels = result.figures["levels"]
    if not result.figures["accesses"]:
        return
    accesses, unknown = result.figures["accesses"], result.figures["unknown"]
    same_lines = curve is not None and curve.figures.get("line_bytes") == result.figures["line_bytes"]
    beside = [_associative(curve if same_lines else None, v["bytes"]) for v in levels]
    parts = [
        f"{v['name']} {human_bytes(v['bytes'])} {_between(v['miss_ratio'], v['miss_ratio_high'])}{other}"
        for v, other in zip(levels, beside, strict=True)
    ]
    tlbs = [
        f"{v['name']} {_between(v['misses'] / accesses, (v['misses'] + result.figures['tlb_unknown']) / accesses)}"
        for v in result.figures["tlbs"]
    ]
    _say(console, f"\n[bold]Modelled misses[/]  of all accesses: {', '.join([*parts, *tlbs])}")
    if any(beside):
        _say(
            console,
            "[dim]model: sets and ways, all levels together; curve: each size alone, fully associative, one for each thread[/]",
        )
    if unknown:
        _say(
            console,
            f"[dim]{unknown / accesses:.0%} of the accesses are their window's first to a line: they may hit or miss[/]",
        )
    if brief:
        return
    for name, title in (("by_function", "function"), ("by_line", "line")):
        if name not in result.tables or (title == "line" and not any(result.tables[name].column("file").to_pylist())):
            continue
        _show_misses(console, result, name, title, rows)


def _misses_cell(row: dict[str, Any], level: int, *, is_range: bool) -> str:
    """Misses of a level and their share of the row's accesses; of windows the least and the greatest share that they can be.

    >>> row = {"accesses": 1000, "misses_1": 0, "unknown": 530, "miss_ratio_1": 0.0, "miss_ratio_high_1": 0.53}
    >>> _misses_cell(row, 1, is_range=False), _misses_cell(row, 1, is_range=True)
    ('0 (0%)', '0 to 53%')
    """
    if not is_range:
        return f"{human_count(row[f'misses_{level}'])} ({_percent(row[f'misses_{level}'], row['accesses'])})"
    low, high = (f"{100 * row[f'miss_ratio{end}_{level}']:.0f}" for end in ("", "_high"))
    return f"{low}%" if low == high else f"{low} to {high}%"


def _show_misses(console: Console, result: Result, name: str, title: str, rows: int) -> None:
    from rich.markup import escape

    levels, unknown = result.figures["levels"], result.figures["unknown"]
    last = len(levels)
    most = {at: v["misses"] + unknown for at, v in enumerate(levels, 1)}
    table = _grid(
        (title, "left"),
        *((f"{v['name']} misses", "right") for v in levels),
        *([("unknown", "right")] if unknown else []),
    )
    for row in result.tables[name].slice(0, rows).to_pylist():
        if all(row[f"misses_{at}"] + row["unknown"] < LEAST_SHARE * most[at] for at in range(1, last + 1)):
            continue
        cells = [_misses_cell(row, at, is_range=bool(unknown)) for at in range(1, last + 1)]
        table.add_row(
            escape(_code(row, line=True) if title == "line" else _function(row)),
            *cells,
            *([_percent(row["unknown"], row["accesses"])] if unknown else []),
        )
    _show(console, table)


def is_contended(row: dict[str, Any], accesses: int) -> bool:
    """Whether two threads meet in a line often, or would: windows of two threads seldom overlap, so few hand-overs are seen in them.

    >>> line = {"hand_overs": 3, "reads": 500, "writes": 500, "other_reads": 400, "other_writes": 0}
    >>> is_contended(line, 10_000), is_contended(line, 10_000_000)
    (True, False)
    """
    both = min(row["reads"] + row["writes"], row["other_reads"] + row["other_writes"])
    return bool(max(row["hand_overs"], both) > LEAST_HAND_OVERS * accesses)


def show_sharing(console: Console, result: Result, rows: int) -> None:
    """Nothing for a program whose threads hardly meet."""
    from rich.markup import escape

    figures = result.figures
    hand_overs = figures["false_sharing_hand_overs"] + figures["true_sharing_hand_overs"]
    lines = result.tables["lines"].to_pylist()
    contended = [row for row in lines if is_contended(row, figures["accesses"])]
    if not contended and hand_overs <= LEAST_HAND_OVERS * figures["accesses"]:
        return
    console.print(
        f"\n[bold]Shared lines[/]  {figures['false_sharing_lines']:,} falsely ({human_count(figures['false_sharing_hand_overs'])} "
        f"hand-overs), {figures['true_sharing_lines']:,} truly ({human_count(figures['true_sharing_hand_overs'])})"
    )
    if not contended:  # many lines, each a few times: one by one they say nothing
        table = _grid(
            ("object", "left"), ("sharing", "left"), ("lines", "right"), ("threads", "right"), ("hand-overs", "right")
        )
        for row in result.tables["by_object"].slice(0, rows).to_pylist():
            table.add_row(
                escape(row["object"] or "?"),
                row["kind"],
                f"{row['lines']:,}",
                str(row["threads"]),
                human_count(row["hand_overs"]),
            )
        _show(console, table)
        return
    table = _grid(("object", "left"), ("line", "right"), ("sharing", "left"), ("threads", "left"), ("hand-overs", "right"),
                  ("written", "left"))  # fmt: skip
    for row in contended[:rows]:
        written: list[Any] = [row[f"{name}fields"] or row[f"{name}offsets"] or "none" for name in ("", "other_")]
        table.add_row(escape(row["object"] or "?"), f"{row['line']:#x}", row["kind"], f"{row['thread']}, {row['other_thread']}",
                      human_count(row["hand_overs"]), escape(" / ".join(written)))  # fmt: skip
    _show(console, table)
    seldom = (
        ""
        if result.quality.exact
        else "; windows of two threads seldom overlap, so hand-overs are fewer than in the run"
    )
    _say(console, f"[dim]written: fields, or bytes of the line, that each thread writes{seldom}[/]")
