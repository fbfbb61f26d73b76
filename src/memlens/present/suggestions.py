"""Candidates for regions in the terminal."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

from ._rich import _code, _grid, _percent, _print
from ._units import human_count, human_duration, human_moved, human_rate

if TYPE_CHECKING:
    from ..results import Result


def show(result: Result, rows: list[dict[str, Any]], *, by: str, file: IO[str]) -> None:
    from rich.markup import escape

    from ._rich import _console

    console = _console(file)
    timed = any(row["time_s"] is not None for row in rows)
    mixed = any(row["float_results_per_byte"] is not None for row in rows)
    order = {
        "time": "time" if timed else "bytes (no function's time is known)",
        "intensity": "arithmetic for each byte",
    }
    console.print(f"\n[bold]Functions[/]  by {order.get(by, by)}")
    heads = [
        *(["time"] if timed else []),
        "bytes",
        "share",
        "stack",
        *(["GB/s"] if timed else []),
        *(["flop/B"] if mixed else []),
    ]
    table = _grid(("function", "left"), *((name, "right") for name in heads), ("good for", "left"))
    for row in rows:
        intensity = row["float_results_per_byte"]
        table.add_row(
            escape(_code(row, line=True)),
            *(["–" if row["time_s"] is None else human_duration(1e9 * row["time_s"])] if timed else []),
            human_moved(row["bytes"]),
            f"{row['share']:.1%}",
            _percent(row["stack_share"], 1),
            *([human_rate(row["bytes_per_second"])] if timed else []),
            *([("–" if intensity is None else f"{intensity:.3g}")] if mixed else []),
            row["good_for"],
        )
    _print(console, table)
    if result.figures["functions"] > len(rows):
        console.print(f"  … and {human_count(result.figures['functions'] - len(rows))} more (--top)", style="dim")
    for note in result.quality.notes:
        console.print(f"  ! {escape(note)}", style="yellow")
