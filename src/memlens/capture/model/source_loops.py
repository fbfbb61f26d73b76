"""Loops of traced code by name: what table ``count_loops`` says, for the addresses of traces.

A loop belongs to the function that it is written in, wherever that was inlined; it is named by file and line of its beginning, as loops
of imported traces are. The column is added where two loops of a function begin on one line.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from ..store.source import TableSource


@dataclass(frozen=True)
class NamedLoop:
    """A loop of the source."""

    name: str
    """``file.c:12``; ``loop 3`` of its function where the compiler had no line."""
    function: str | None
    depth: int
    """Loops around it in its function, with itself: 1 is an outermost one."""
    parent: str | None
    """Name of the loop around it in its function."""


def loops_of_sites(capture: TableSource) -> dict[tuple[str, int], NamedLoop]:
    """(module, site of ``count_sites``) → the innermost loop around it."""
    table = capture.table("count_loops")
    columns = table.to_pydict()
    names = _names(columns)
    row_of = {key: row for row, key in enumerate(zip(columns["module"], columns["loop"], strict=True))}
    # Copies of a loop in several places are one. Where unrolling took the loop around one copy away, the others still tell it.
    best: dict[tuple[str, str | None, str], NamedLoop] = {}
    keys = list(zip(columns["module"], columns["name"], names, strict=True))
    for row, (module, function, name) in enumerate(keys):
        parent = columns["own_parent"][row]
        found = NamedLoop(
            name, function, columns["depth"][row], None if parent is None else names[row_of[module, parent]]
        )
        if keys[row] not in best or best[keys[row]].depth < found.depth:
            best[keys[row]] = found
    return {
        (key[0], site): best[key] for key, sites in zip(keys, columns["sites"], strict=True) for site in sites or ()
    }


class LoopColumns(TypedDict):
    """Of `count_loops`, what names need."""

    module: list[str]
    name: list[str]
    file: list[str]
    function: list[int]
    loop: list[int]
    line: list[int]
    column: list[int]
    own_parent: list[int | None]


def _names(columns: LoopColumns) -> list[str]:
    places: dict[tuple[str, str, str, int], set[int]] = {}
    first: dict[tuple[str, int], int] = {}
    lines = list(zip(columns["module"], columns["name"], columns["file"], columns["line"], strict=True))
    for row, place in enumerate(lines):
        places.setdefault(place, set()).add(columns["column"][row])
        first.setdefault((columns["module"][row], columns["function"][row]), columns["loop"][row])
    names: list[str] = []
    row_of: dict[tuple[str, int], int] = {}
    nested: list[int] = []  # how many loops around it begin at the same place: a macro with several
    for row, (module, _, file, line) in enumerate(lines):
        number, parent = columns["loop"][row], columns["own_parent"][row]
        row_of[module, number] = row
        outer = None if parent is None else row_of[module, parent]
        same = outer is not None and lines[outer] == lines[row] and columns["column"][outer] == columns["column"][row]
        nested.append(nested[outer] + 1 if same and outer is not None else 0)
        if not line:
            names.append(f"loop {number - first[module, columns['function'][row]] + 1}")
            continue
        name = f"{os.path.basename(file or '?')}:{line}"
        if len(places[lines[row]]) > 1:
            name += f":{columns['column'][row]}"
        names.append(f"{name} #{nested[row] + 1}" if nested[row] else name)
    return names
