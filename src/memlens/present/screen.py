"""Lines of text for a terminal, a file or a pipe: widths, styles, and characters that the encoding has.

Owns how a table fits a width: numbers are never shortened. Bars go first, then names become shorter (template arguments before
the middle of a name; `file:line` stays), then whole columns are left out from the right and named below the table. Without a terminal
there is no limit, unless COLUMNS is set. Knows nothing of results or views.
"""

from __future__ import annotations

import os
import re
import shutil
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO

from ..plain_text import plain, trusted

BLOCKS = " ▁▂▃▄▅▆▇█"
PARTS = " ▏▎▍▌▋▊▉"
BAR_CELLS = 12
SPARK_CELLS = 60
GAP = 2
LEAST_NAME = 14
"""Cells of the first name of a row, below which other columns are left out instead."""
LEAST_TEXT = 8
"""Cells of any other name."""
UNIT = re.compile(r"(?<=\d) (?=(?:%|[KMGT]?i?B|GB/s|[nµm]?s|[kMGT])(?![\w/]))")
"""The blank before a unit: a line does not end there."""
STYLES = {"bold": "1", "dim": "2", "red": "1;31", "yellow": "33", "green": "32", "cyan": "36", "": ""}
PLAIN_GLYPHS = {
    "–": "-", "−": "-", "…": "...", "→": "->", "±": "+-", "×": "x", "µ": "u", "≤": "<=", "≥": ">=", "▲": "^", "◆": "*", "●": "o", "\u00ad": "",
    **dict(zip(BLOCKS[1:], "..::==##", strict=True)), **dict.fromkeys(PARTS[1:], "#"),
}  # fmt: skip
"""What stands for characters of ours that an encoding lacks."""


def spark(values: Sequence[float], *, width: int = SPARK_CELLS) -> str:
    """A line of block characters; each column shows the largest of its values.

    >>> spark([0, 1, 2, 4], width=4)
    ' ▂▄█'
    """
    if not values:
        return ""
    columns = min(width, len(values))
    picked = []
    for column in range(columns):
        low = column * len(values) // columns
        high = max(low + 1, (column + 1) * len(values) // columns)
        picked.append(max(values[low:high]))
    top = max(picked) or 1.0
    return "".join(BLOCKS[round(max(0.0, value) / top * (len(BLOCKS) - 1))] for value in picked)


def resampled(times: Sequence[float], values: Sequence[float], end: float, *, width: int = SPARK_CELLS) -> list[float]:
    """A step function at equal distances: the largest value of each interval.

    >>> resampled([0.0, 1.0], [5.0, 1.0], 2.0, width=4)
    [5.0, 5.0, 1.0, 1.0]
    """
    if not times:
        return []
    end = max(end, times[-1], 1e-9)
    columns: list[float] = []
    index = 0
    current = 0.0
    for column in range(width):
        stop = end * (column + 1) / width
        best = current
        while index < len(times) and times[index] <= stop:
            current = values[index]
            best = max(best, current)
            index += 1
        columns.append(best)
    return columns


def bar(share: float, width: int = BAR_CELLS) -> str:
    """
    >>> bar(0.5, 4), bar(0.0, 4)
    ('██', '')
    """
    filled = round(min(max(share, 0.0), 1.0) * width * 8)
    return "█" * (filled // 8) + (PARTS[filled % 8] if filled % 8 else "")


def cells(text: str) -> int:
    """Cells that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


@dataclass
class Head:
    """One column of a grid."""

    label: str
    is_number: bool = False
    is_bar: bool = False
    fit: Callable[[str, int], str] | None = None
    """Shortens a text to a number of cells; None: never shortened."""
    least: int = 0
    """Cells that it needs; 0: as few as any name."""


class Screen:
    """Where text goes: its width, its styles and its characters."""

    def __init__(self, file: IO[str], *, width: int | None = None) -> None:
        self._file = file
        is_terminal = file.isatty()
        self.width: int | None = width if width is not None else _width(is_terminal)
        """None: no limit."""
        self._styled = is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._encoding = getattr(file, "encoding", None) or "utf-8"
        self._fallback = str.maketrans({glyph: text for glyph, text in PLAIN_GLYPHS.items() if not self._can(glyph)})

    def _can(self, glyph: str) -> bool:
        try:
            glyph.encode(self._encoding)
        except (UnicodeEncodeError, LookupError):
            return False
        return True

    def line(self, *parts: str | tuple[str, str]) -> None:
        """One line; a part is text, or (style, text). Blanks at its end are left out."""
        said = [("", part) if isinstance(part, str) else part for part in parts]
        while said and not said[-1][1].rstrip():
            said.pop()
        if said:
            said[-1] = (said[-1][0], said[-1][1].rstrip())
        texts = [(style, plain(text).translate(self._fallback)) for style, text in said]
        if self._styled:
            out = "".join(f"\x1b[{STYLES[style]}m{text}\x1b[0m" if style else text for style, text in texts)
            trusted(self._file).write(out + "\n")
        else:
            self._file.write("".join(text for _, text in texts) + "\n")

    def paragraph(self, text: str, *, indent: int = 0, hanging: int = 0, style: str = "", head: str = "") -> None:
        """Text that is wrapped at blanks, but not between a number and its unit; `head` begins it in bold and is part of its first line."""
        first = " " * indent
        whole = f"{head}{text}"
        if self.width is None:
            lines = [first + whole]
        else:
            lines = textwrap.wrap(
                UNIT.sub("\u00a0", whole), max(self.width, 24), initial_indent=first, subsequent_indent=" " * (indent + hanging),
                break_long_words=False, break_on_hyphens=False, drop_whitespace=True,
            ) or [first]  # fmt: skip
            lines = [line.replace("\u00a0", " ") for line in lines]
        for number, line in enumerate(lines):
            begin = first + head.rstrip()
            if number == 0 and head and line.startswith(begin):
                self.line(("bold", begin), (style, line[len(begin) :]))
            else:
                self.line((style, line))

    def grid(self, heads: Sequence[Head], rows: Sequence[Sequence[str]], *, indent: int = 2, keys: int = 0) -> None:
        """A table without lines, in the width that there is. With `keys` the columns that have no room follow below, behind so many first
        columns again; without, they are named."""
        shown, widths, left_out = fitted(heads, rows, None if self.width is None else self.width - indent)
        margin = " " * indent

        def laid(texts: Sequence[str]) -> str:
            out = []
            for at, width in zip(shown, widths, strict=True):
                text = texts[at]
                fit = heads[at].fit
                if cells(text) > width and fit is not None:
                    text = fit(text, width)
                blanks = " " * (width - cells(text))
                out.append(blanks + text if heads[at].is_number else text + blanks)
            return margin + (" " * GAP).join(out)

        self.line(("dim", laid([head.label for head in heads])))
        for row in rows:
            self.line(laid(row))
        gone = [at for at, head in enumerate(heads) if at not in shown and not head.is_bar]
        keys = min(keys, len(heads) - len(gone) - 1)  # fewer of them where they leave no room for another column
        if gone and keys > 0:
            below = [*range(keys), *(at for at in gone if at >= keys)]
            self.grid(
                [heads[at] for at in below], [[row[at] for at in below] for row in rows], indent=indent, keys=keys
            )
        elif left_out:
            self.paragraph(f"(no room for: {', '.join(left_out)})", indent=indent, style="dim")


def fitted(
    heads: Sequence[Head], rows: Sequence[Sequence[str]], width: int | None
) -> tuple[list[int], list[int], list[str]]:
    """Which columns are shown, their widths, and the labels of those that are left out.

    >>> heads = [Head("name", fit=lambda text, width: text[:width]), Head("n", is_number=True), Head("m", is_number=True)]
    >>> fitted(heads, [["a" * 40, "1" * 20, "2" * 20]], 60)
    ([0, 1, 2], [16, 20, 20], [])
    >>> fitted(heads, [["a" * 40, "1" * 20, "2" * 20]], 50)
    ([0, 1], [28, 20], ['m'])
    """
    natural = [max([cells(head.label), *(cells(row[at]) for row in rows)]) for at, head in enumerate(heads)]
    shown = [at for at in range(len(heads)) if not (heads[at].is_bar and width is None)]
    left_out: list[str] = []
    if width is None:
        return shown, [natural[at] for at in shown], left_out

    def total(columns: Sequence[int], sizes: Sequence[int]) -> int:
        return sum(sizes[at] for at in columns) + GAP * (len(columns) - 1)

    if total(shown, natural) > width:
        shown = [at for at in shown if not heads[at].is_bar]
    first = next((at for at in shown if heads[at].fit is not None), -1)
    least = [
        min(size, max(heads[at].least, cells(heads[at].label), LEAST_NAME if at == first else LEAST_TEXT))
        if heads[at].fit is not None
        else size
        for at, size in enumerate(natural)
    ]
    while len(shown) > 1 and total(shown, least) > width:
        gone = next((at for at in reversed(shown) if at != first), shown[-1])
        shown.remove(gone)
        left_out.insert(0, heads[gone].label)
    sizes = list(natural)
    while (over := total(shown, sizes) - width) > 0:
        names = [at for at in shown if sizes[at] > least[at]]
        if not names:
            break
        widest = max(names, key=lambda at: sizes[at])
        others = max((sizes[at] for at in names if at != widest), default=0)
        sizes[widest] -= min(over, max(1, sizes[widest] - max(others, least[widest])), sizes[widest] - least[widest])
    return shown, [sizes[at] for at in shown], left_out


def _width(is_terminal: bool) -> int | None:
    """Cells of a line: COLUMNS where it is set, else those of the terminal, else no limit."""
    said = os.environ.get("COLUMNS", "")
    if said.isdigit() and int(said) > 0:
        return max(40, int(said))
    return max(40, shutil.get_terminal_size().columns) if is_terminal else None


__all__ = ["BLOCKS", "Head", "Screen", "bar", "cells", "fitted", "resampled", "spark"]
