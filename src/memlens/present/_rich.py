"""Text by rich, for presenters that are not yet renderers of views."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

from ..plain_text import plain_console, trusted
from ._units import human_bytes, human_figure

if TYPE_CHECKING:
    from rich.console import Console

    from ..results import Finding, Quality


class _WithoutTrailingBlanks:
    """rich pads tables to their width: what goes into a file or pipe should not."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, text: str) -> int:
        return self._file.write("\n".join(line.rstrip() for line in text.split("\n")))

    def flush(self) -> None:
        self._file.flush()

    def isatty(self) -> bool:
        return False


def _console(file: IO[str]) -> Console:
    if file.isatty():
        return plain_console(trusted(file), highlight=False, emoji=False)  # type: ignore[no-any-return]
    return plain_console(_WithoutTrailingBlanks(file), highlight=False, width=110, emoji=False)  # type: ignore[no-any-return]


def show_diff(
    figures: list[dict[str, Any]],
    functions: list[dict[str, Any]],
    new_findings: list[Finding],
    gone: list[str],
    broken: list[dict[str, Any]],
    quality: Quality,
    *,
    file: IO[str],
) -> None:
    """Prints a comparison."""
    from rich.markup import escape
    from rich.table import Table

    console = _console(file)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("figure", "before", "after", "change", ""):
        table.add_column(name, justify="left" if name == "figure" else "right")
    for row in figures:
        if not row["change"]:
            continue
        change = (
            ""
            if row["change"] is None
            else ("+" if row["change"] > 0 else "") + human_figure(row["figure"], row["change"])
        )
        relative = "" if row["relative"] is None else f"{row['relative']:+.1%}"
        table.add_row(
            row["figure"],
            human_figure(row["figure"], row["before"]),
            human_figure(row["figure"], row["after"]),
            change,
            relative,
        )
    console.print(table)
    if functions:
        console.print("\n[bold]First-touched bytes by function[/]")
        for row in functions:
            change = ("+" if row["change_bytes"] > 0 else "") + human_bytes(row["change_bytes"])
            console.print(
                f"  {change:>11}  {escape(row['function'])}  "
                f"({human_bytes(row['before_bytes'])} → {human_bytes(row['after_bytes'])})"
            )
    for finding in new_findings:
        console.print(f"\n[red]new finding[/] {finding.name}: {escape(finding.claim)}")
    for name in gone:
        console.print(f"\n[green]finding gone[/] {name}")
    for note in quality.notes:
        console.print(f"! {escape(note)}", style="yellow")
    for entry in broken:
        console.print(
            f"[bold red]failed[/] {escape(entry['condition'])}: before {entry['before']}, after {entry['after']}"
        )
