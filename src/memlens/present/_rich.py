"""Text by rich, for presenters that are not yet renderers of views."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

from ..plain_text import plain_console, trusted

if TYPE_CHECKING:
    from rich.console import Console


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
