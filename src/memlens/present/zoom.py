"""The analyses `zoom_location`, `zoom_time` and `intervals` in the terminal."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

from ._names import PLACE_WIDTH, fit, place_text, short_function
from ._rich import _console, _grid, _print
from ._units import human_bytes, human_count

if TYPE_CHECKING:
    from rich.console import Console

    from ..results import Result

LEAST_SHARE = 0.05
MOST_CODE = 3
MEMGAZE = {
    "level": "LVL", "nodes": "nodes", "multiplier": "multiplier", "window_accesses": "window", "footprint": "FP",
    "footprint_strided": "strided", "footprint_irregular": "indirect", "constants": "constants", "unknown": "unknown",
    "loads": "loads", "constant_to_load_ratio": "const/load", "irregular_ratio": "NPF rate",
    "growth_irregular": "NPF growth", "growth": "growth",
}  # fmt: skip


def show(result: Result, *, top: int, file: IO[str]) -> None:
    """Prints one of the three."""
    console = _console(file)
    if result.name == "zoom_location":
        _show_location(console, result, top)
    elif result.name == "zoom_time":
        _show_time(console, result)
    elif result.figures["tree"] == "memgaze":
        _show_memgaze(console, result)
    else:
        _show_levels(console, result)
    for note in result.quality.notes:
        console.print(f"  [dim]{note}[/]", highlight=False)


def _number(value: float | None, digits: int = 3) -> str:
    """Three digits; thousands and more in words.

    >>> _number(0.25), _number(None), _number(12345), _number(0)
    ('0.25', '–', '12.3 k', '0')
    """
    if value is None:
        return "–"
    return human_count(value) if value >= 1000 else f"{value:.{digits}g}"


def _where(row: dict[str, Any]) -> str:
    if row.get("file") and row.get("line"):
        return fit(place_text(row), PLACE_WIDTH)
    return short_function(row["function"] or "(no name)", PLACE_WIDTH)


def _show_location(console: Console, result: Result, top: int) -> None:
    from rich.markup import escape

    figures, rows = result.figures, result.tables["regions"].to_pylist()
    whole = figures["everything_recorded"]
    inside = figures["accesses_in_regions"] / figures["accesses"] if figures["accesses"] else 0.0
    console.print(
        f"[bold]Hot memory[/]  {figures['regions']} regions have {inside:.0%} of {human_count(figures['accesses'])} accesses; a part is "
        f"hot from {figures['threshold']:.0%} of what is around it, pages down to {human_bytes(figures['stop_bytes'])}"
    )
    table = _grid(("", "right"), ("address", "right"), ("size", "right"), ("hot", "right"), ("blocks", "right"), ("a block", "right"),
                  ("D mean", "right"), ("D max", "right"), ("D own", "right"), *(() if whole else (("unknown", "right"),)),
                  ("object", "left"))  # fmt: skip
    table.columns[-1].max_width = 22
    for row in rows[:top]:
        table.add_row(
            str(row["region"]), f"{row['address']:#x}", human_bytes(row["bytes"]), f"{row['hotness_percent']:.1f}%",
            human_count(row["blocks"]), _number(row["accesses_per_block"]), _number(row["reuse_distance_mean"]),
            _number(row["reuse_distance_max"]), _number(row["region_distance_mean"]),
            *(() if whole else (f"{row['unobservable'] / row['accesses']:.0%}",)), escape(row["object"] or "–"),
        )  # fmt: skip
    _print(console, table)
    if len(rows) > top:
        console.print(f"  [dim]and {len(rows) - top} more: --top[/]")
    text = (
        f"hot: share of all accesses; a block: accesses to a block of {figures['block_bytes']} B; D: other blocks between two uses of a "
        "block; own: only blocks of the region"
    )
    console.print(f"  [dim]{text}{'' if whole else '; unknown: last used outside the window'}[/]")
    _show_left_out(console, result, top)
    _show_code_of_regions(console, result, top)


def _show_left_out(console: Console, result: Result, top: int) -> None:
    """What no region covers, always."""
    from rich.markup import escape

    rows = result.tables["left_out"].to_pylist()
    share = sum(row["share"] for row in rows)
    if not rows:
        return
    parts = [f"{row['object'] or 'no known object'} {row['share']:.1%}" for row in rows[: min(top, MOST_CODE)]]
    more = len(rows) - len(parts)
    console.print(
        f"  Not in these regions: {share:.1%} of the accesses: {escape(', '.join(parts))}{f' and {more} more objects' if more else ''}",
        highlight=False,
    )


def _show_code_of_regions(console: Console, result: Result, top: int) -> None:
    from rich.markup import escape

    code: dict[int, list[dict[str, Any]]] = {}
    for row in result.tables["code"].to_pylist():
        code.setdefault(row["region"], []).append(row)
    lines = []
    for region in range(min(top, result.figures["regions"])):
        found = code.get(region, [])
        shown = [
            f"{_where(row)} {row['share']:.0%}"
            for row in found[:MOST_CODE]
            if row["share"] >= LEAST_SHARE or row is found[0]
        ]
        lines.append(f"  region {region}: {escape(', '.join(shown))}")
    for line in lines:
        console.print(line, highlight=False)


def _node(row: dict[str, Any]) -> str:
    if row["kind"] == "interval":
        return f"{row['samples']:,} samples from {row['first_sample']:,}"
    if row["kind"] == "sample":
        return f"sample {row['first_sample']:,}"
    return f"accesses {row['first_access']:,} to {row['first_access'] + int(row['accesses']) - 1:,}"


def _show_time(console: Console, result: Result) -> None:
    from rich.markup import escape

    figures, rows = result.figures, result.tables["path"].to_pylist()
    console.print(
        f"[bold]Badly reused time[/]  of {figures['samples']:,} samples: where growth is greatest among parts with at least "
        f"{figures['threshold']:.0%} of the accesses around them"
    )
    table = _grid(("interval", "left"), *((name, "right") for name in ("share", "accesses", "footprint", "growth", "irregular",
                                                                     "D mean", "D max")))  # fmt: skip
    for row in rows:
        ratio = row["irregular_ratio"]
        table.add_row(
            " " * row["depth"] + _node(row), f"{row['share']:.2%}", human_count(row["accesses"]), _number(row["footprint"]),
            _number(row["growth"]), "–" if ratio is None else f"{ratio:.0%}",
            _number(row["reuse_distance_mean"]), _number(row["reuse_distance_max"]),
        )  # fmt: skip
    _print(console, table)
    console.print(
        f"  [dim]growth: unique addresses an access; D: other blocks of {figures['block_bytes']} B between two uses, within a sample[/]"
    )
    code = result.tables["code"].to_pylist()
    for depth in dict.fromkeys(row["depth"] for row in code):
        mine = [row for row in code if row["depth"] == depth]
        shown = [f"{_where(row)} ({row['object'] or '–'}) {row['share']:.0%}" for row in mine[:MOST_CODE]]
        console.print(f"  {mine[0]['kind']}: {escape(', '.join(shown))}", highlight=False)


def _show_levels(console: Console, result: Result) -> None:
    figures = result.figures
    console.print(
        f"[bold]Windows of all sizes[/]  {human_count(figures['recorded_accesses'])} accesses in {figures['samples']:,} samples"
    )
    names = (
        "nodes",
        "accesses",
        "footprint",
        "strided",
        "irregular",
        "constant",
        "growth",
        "blocks",
        "D mean",
        "D max",
    )
    table = _grid(("level", "left"), *((name, "right") for name in names))
    for row in result.tables["levels"].to_pylist():
        title = row["kind"]
        if title == "window":
            title = f"{row['node_accesses']:,} accesses"
        elif title == "interval":
            title = f"{row['node_samples']:,} samples"
        table.add_row(
            title, f"{row['nodes']:,}", _number(row["accesses"]), _number(row["footprint"]), _number(row["footprint_strided"]),
            _number(row["footprint_irregular"]), f"{row['constant_to_load_ratio'] or 0:.0%}", _number(row["growth"]),
            _number(row["blocks"]), _number(row["reuse_distance_mean"]), _number(row["reuse_distance_max"]),
        )  # fmt: skip
    _print(console, table)
    console.print("  [dim]means over the full nodes of a size, as observed; growth: unique addresses an access[/]")


def _show_memgaze(console: Console, result: Result) -> None:
    """Columns as its own table has them; lines as long as they are, for other programs to read."""
    lines = [list(MEMGAZE.values())]
    for row in result.tables["levels"].to_pylist():
        lines.append(["–" if row[name] is None else f"{row[name]:.6g}" for name in MEMGAZE])
    for line in lines:
        console.print("".join(cell.ljust(13) for cell in line).rstrip(), soft_wrap=True, highlight=False)
