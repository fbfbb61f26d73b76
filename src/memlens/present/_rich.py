"""Text by rich, for presenters that are not yet renderers of views."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

from ..plain_text import plain_console, trusted
from ._names import PLACE_WIDTH, fit_names, place_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


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


def _grid(*columns: tuple[str, str]) -> Table:
    """A table without lines; columns are (title, left or right)."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=True, header_style="dim", padding=(0, 2, 0, 0))
    for title, side in columns:
        if side == "left":
            table.add_column(title, overflow="ellipsis", no_wrap=True, max_width=PLACE_WIDTH)
        else:
            table.add_column(title, justify="right", no_wrap=True)
    return table


def _print(console: Console, table: Table) -> None:
    from rich.padding import Padding

    if table.columns and table.columns[0].justify == "left":
        fit_names(console, table)
    console.print(Padding(table, (0, 0, 0, 2)))


def _code(row: dict[str, Any], *, line: bool) -> str:
    return place_text(row, line=line)


def _percent(part: float | None, total: float) -> str:
    return "–" if part is None or not total else f"{part / total:.0%}"
