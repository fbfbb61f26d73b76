"""Presenter of the analysis `validation` in the terminal: errors of figures, of window sizes and functions, and of intervals."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

from ._rich import _console
from ._units import human_bytes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ..results import Result

KINDS = {"footprint": "F", "footprint_strided": "F_str", "footprint_irregular": "F_irr"}


def _percent(value: float | None, *, signed: bool = False) -> str:
    if value is None:
        return "–"
    digits = 1 if abs(value) < 100 else 0
    return f"{value:+,.{digits}f} %" if signed else f"{value:,.{digits}f} %"


def _grid(*columns: tuple[str, str]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for title, side in columns:
        table.add_column(title, justify=side, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]
    return table


def show(result: Result, *, file: IO[str], rows: int = 10) -> None:
    """Prints the whole judgement."""
    from rich.markup import escape

    console = _console(file)
    figures = result.figures
    truth = "every access" if figures["truth_is_whole"] else "a denser sample"
    console.print(
        f"\n[bold]Validation[/]  {figures['samples']} samples of {figures['window_accesses']:,} accesses in "
        f"{figures['period_accesses']:,}, against {truth} ({figures['recorded_accesses']:,})\n"
    )
    _metrics(console, result)
    _sizes(console, result)
    _functions(console, result, rows)
    _misses(console, result)
    if figures["covered_percent"] is not None:
        console.print(
            f"\n[bold]Intervals[/]  {figures['intervals']:,} were stated, {figures['covered_percent']:.1f} % hold the truth; "
            f"claimed {figures['claimed_percent']:.0f} %"
        )
    for note in result.quality.notes:
        console.print(f"! {escape(note)}", style="yellow")


TRUTHS = {"whole": "Against the whole trace", "windows": "Against all windows of this length"}


def _metrics(console: Console, result: Result) -> None:
    """One table for each kind of truth, narrow enough for 80 columns."""
    for truth, title in TRUTHS.items():
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for row in result.tables["metrics"].to_pylist():
            if row["truth_is"] == truth:
                found.setdefault(row["metric"], {})[row["scope"]] = row
        table = _grid(
            ("figure", "left"),
            ("program", "right"),
            ("bias", "right"),
            ("functions", "right"),
            ("bias", "right"),
            ("hold", "right"),
        )
        for metric, scopes in found.items():
            whole, parts = scopes.get("program", {}), scopes.get("function", {})
            held = [(r["covered_percent"] * r["intervals"], r["intervals"]) for r in scopes.values() if r["intervals"]]
            covered = sum(c for c, _ in held) / sum(n for _, n in held) if held else None
            table.add_row(
                metric, _percent(whole.get("mape_percent")), _percent(whole.get("bias_percent"), signed=True),
                _percent(parts.get("mape_percent")), _percent(parts.get("bias_percent"), signed=True),
                "" if covered is None else f"{covered:.0f} %",
            )  # fmt: skip
        console.print(f"[bold]{title}[/]  mean absolute error; hold: intervals with the truth")
        console.print(table)
        console.print()


def _sizes(console: Console, result: Result) -> None:
    rows = result.tables["window_sizes"].to_pylist()
    found: dict[tuple[str, int], dict[str, float | None]] = {}
    for row in rows:
        found.setdefault((row["where"], row["window_accesses"]), {})[row["metric"]] = row["mape_percent"]
    console.print("[bold]By window size[/]  mean absolute error of the mean footprint")
    table = _grid(("accesses", "right"), *((name, "right") for name in KINDS.values()), ("", "left"))
    for (where, size), errors in found.items():
        table.add_row(f"{size:,}", *(_percent(errors[kind]) if kind in errors else "" for kind in KINDS), where)
    console.print(table)
    means = [f"{name} {_percent(result.figures[f'window_mape_percent_{kind}'])}" for kind, name in KINDS.items()]
    console.print(f"[dim]within windows, over all sizes:[/] {', '.join(means)}")


def _functions(console: Console, result: Result, rows: int) -> None:
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in result.tables["functions"].to_pylist():
        found.setdefault(row["function"] or "?", {})[row["metric"]] = row
    names = ("window_growth", "window_growth_strided", "window_growth_irregular", "window_reuse_distance_mean")
    judged = [(name, own) for name, own in found.items() if own.get("window_growth", {}).get("judged")]
    judged.sort(key=lambda pair: -pair[1]["share"]["truth"] if "share" in pair[1] else 0.0)
    console.print("\n[bold]By function[/]  mean absolute error within windows")
    table = _grid(
        ("function", "left"),
        ("share", "right"),
        ("growth", "right"),
        ("strided", "right"),
        ("irregular", "right"),
        ("D", "right"),
    )
    table.columns[0].max_width = 40
    for name, own in judged[:rows]:
        cells = [_percent(own[m]["mape_percent"]) if m in own and own[m]["judged"] else "–" for m in names]
        table.add_row(name, _percent(100 * own["share"]["truth"]) if "share" in own else "–", *cells)
    console.print(table)
    if len(judged) < len(found):
        console.print(f"[dim]{len(found) - len(judged)} functions are too small or under-sampled, and not judged[/]")


def _misses(console: Console, result: Result) -> None:
    table = _grid(
        ("cache", "left"),
        ("miss ratio", "right"),
        ("from windows", "right"),
        ("error", "right"),
        ("within bounds", "right"),
    )
    for row in result.tables["miss_ratios"].to_pylist():
        cache = human_bytes(row["cache_bytes"]) if row["cache_bytes"] else row["what"]
        low, high = row["low_mean"], row["high_mean"]
        shown = "–" if low is None else f"{low:.3f}" if low == high else f"{low:.3f} to {high:.3f}"
        table.add_row(cache, f"{row['truth']:.3f}", shown, _percent(row["mape_percent"]) if row["mape_percent"] is not None else "",
                      _percent(row["within_percent"]) if row["within_percent"] is not None else "")  # fmt: skip
    console.print("\n[bold]Miss ratios[/]  of fully associative caches, and of the cache model")
    console.print(table)
