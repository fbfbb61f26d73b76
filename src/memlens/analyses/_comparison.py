"""Two reports side by side: figures by their qualified names, rows of tables by what they name, with the noise of each.

Works on results and views (labels, kinds, keys, errors), so that an analysis is compared as soon as it has a view. Owns how rows are
aligned and which changes are differences; knows nothing of captures, and of no analysis by name.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from ..view import NUMBERS, Column, Figure, Kind, Table, View

if TYPE_CHECKING:
    from ..results import Report, Result

SURE = 2.0
"""Standard errors of a change below which it is noise."""
NORMAL_95 = 3.92
"""Width of a 95 % interval in standard errors."""
UNCOMPARED: frozenset[str] = frozenset({"time_s", "address"})
"""Moments and addresses: another value means nothing."""
FLOORS: dict[str, tuple[float, float]] = {
    "bytes": (0.02, 256 << 10), "moved": (0.01, 4096), "count": (0.02, 16), "number": (0.05, 0), "share": (0.05, 0.02),
    "percent": (0.05, 2.0), "ns": (0.25, 1e6), "s": (0.25, 0.05), "per_s": (0.25, 0), "bytes_per_s": (0.25, 0),
}  # fmt: skip
"""Change between runs of one binary that means nothing: relative to the larger value, and absolute. Time is of a shared machine."""
ROW_FLOOR = 0.01
"""The same for a row of a table: relative to the total of the larger capture."""
ADDITIVE: frozenset[str] = frozenset({"bytes", "moved", "count", "ns", "s"})
GROUPS: tuple[tuple[str, frozenset[str]], ...] = (
    ("object", frozenset({"object"})),
    ("region", frozenset({"region"})),
    ("function", frozenset({"function"})),
    ("line", frozenset({"code"})),
)
"""What a table is about, by the kind of its first key."""


@dataclass(frozen=True)
class Pair:
    """A figure or row of both captures; None where one has none."""

    name: str
    """ANALYSIS.FIGURE, or the key of the row."""
    label: str
    kind: Kind
    better: str
    before: float | None
    after: float | None
    error: float = 0.0
    """Standard error of the change."""
    floor: float = 0.0
    """Change below which it is noise."""

    @property
    def change(self) -> float | None:
        return None if self.before is None or self.after is None else self.after - self.before

    @property
    def relative(self) -> float | None:
        change = self.change
        return change / abs(self.before) if change is not None and self.before else None

    @property
    def is_sure(self) -> bool:
        """The change is larger than what sampling explains."""
        change = self.change
        return change is not None and change != 0 and abs(change) > SURE * self.error

    @property
    def verdict(self) -> str:
        """same, noise, better, worse, changed, only before, only after."""
        if self.before is None or self.after is None:
            return "only after" if self.before is None else "only before"
        change = self.after - self.before
        if change == 0:
            return "same"
        if not self.is_sure or abs(change) <= self.floor:
            return "noise"
        if self.better == "neither":
            return "changed"
        return "better" if (change < 0) == (self.better == "lower") else "worse"


# ---- figures ------------------------------------------------------------
def _number(value: object) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def _spread(values: Mapping[str, object], name: str, error: str | None, low: str | None, high: str | None) -> float:
    """Standard error of a value: what it says, or from the width of its 95 % interval."""
    said = _number(values.get(error if error is not None else f"{name}_error"))
    if said is not None:
        return said
    ends = [_number(values.get(end)) if end else None for end in (low, high)]
    return (ends[1] - ends[0]) / NORMAL_95 if ends[0] is not None and ends[1] is not None else 0.0


def _floor(kind: Kind, before: float | None, after: float | None) -> float:
    relative, absolute = FLOORS.get(kind, (0.0, 0.0))
    return max(absolute, relative * max(abs(before or 0.0), abs(after or 0.0)))


def figures_of(name: str, view: View) -> Iterator[Figure]:
    """Figures of a view that are numbers of their own: not the error or an end of another, no moment."""
    others = {other for figure in view.figures for other in (figure.error, figure.low, figure.high)}
    others |= {f"{figure.name}_error" for figure in view.figures}
    return (figure for figure in view.figures if figure.kind in NUMBERS - UNCOMPARED and figure.name not in others)


def figure_pairs(before: Report, after: Report) -> list[Pair]:
    """Figures of analyses that both reports have, and those of only one with None for the other."""
    pairs = []
    for name in dict.fromkeys([*before.results, *after.results]):
        one, other = before.results.get(name), after.results.get(name)
        view = (after if other is not None else before).views[name]
        for figure in figures_of(name, view):
            values = [{} if result is None else result.figures for result in (one, other)]
            old, new = (_number(of.get(figure.name)) for of in values)
            if old is None and new is None:
                continue
            errors = [_spread(of, figure.name, figure.error, figure.low, figure.high) for of in values]
            pairs.append(
                Pair(
                    f"{name}.{figure.name}", figure.label, figure.kind, figure.better, old, new,
                    math.hypot(*errors), _floor(figure.kind, old, new),
                )
            )  # fmt: skip
    return pairs


# ---- rows ------------------------------------------------------------
@dataclass(frozen=True)
class RowPair(Pair):
    """A row of a table in both captures."""

    table: str = ""
    """ANALYSIS.TABLE"""
    title: str = ""
    group: str = ""
    before_share: float | None = None
    after_share: float | None = None
    place: tuple[object, ...] = ()
    """function, file, line, module of the row, each or None."""

    @property
    def weight(self) -> float:
        """How much of the total changed: what rows are ranked by."""
        return abs((self.after_share or 0.0) - (self.before_share or 0.0))


def group_of(table: Table) -> str | None:
    """What the rows are: an object, a region, a function or a line; None for tables that are not aligned."""
    kind = next((column.kind for column in table.keys), None)
    return next((group for group, kinds in GROUPS if kind in kinds), None)


COMPARED: frozenset[str] = frozenset({"bytes", "moved", "count"})
"""Kinds of measures that rows are compared by where no column sorts the table; times are left to figures."""


def measures_of(table: Table) -> list[Column]:
    """What rows are compared by: the additive column that sorts the table, else all amounts of which more or fewer are better."""
    sorting = [column for column in table.columns if f"-{column.name}" == table.sort and column.kind in ADDITIVE]
    amounts = [c for c in table.columns if c.role == "measure" and c.kind in COMPARED and c.better != "neither"]
    return sorting or amounts


def rows_of(result: Result | None, table: Table) -> list[dict[str, object]]:
    """The rows of a table of a view."""
    found = None if result is None else result.tables.get(table.source)
    if found is None or not found.num_columns:
        return []
    rows: list[dict[str, object]] = found.to_pylist()
    return [row for row in rows if all(row.get(name) == value for name, value in table.where)]


def identities(row: Mapping[str, object], table: Table) -> tuple[tuple[object, ...], tuple[object, ...]]:
    """What identifies a row in another run, exactly and without what an edit of the source moves.

    Exactly: the keys with line and call stack (or path of a region). Loosely: without line and stack. Processes, threads and addresses
    differ from run to run and identify nothing.
    """
    keys = [row.get(c.name) for c in table.keys if c.kind not in ("process", "thread", *UNCOMPARED)]
    module = row.get("module")
    loose = (*keys, PurePath(module).name if isinstance(module, str) else None)
    frames = row.get("frames") or row.get("path") or row.get("parent")
    exact = tuple(frames) if isinstance(frames, list) else frames
    return (*loose, row.get("file"), _line(row), exact), loose


def _line(row: Mapping[str, object]) -> int | None:
    """The source line of a row; `line` without a file is the address of a cache line."""
    line = row.get("line")
    return line if isinstance(line, int) and "file" in row else None


@dataclass
class _Sum:
    """A sum over rows, its variance, and the first row."""

    value: float
    variance: float
    row: dict[str, object]


def _totals(rows: list[dict[str, object]], table: Table, measure: Column) -> dict[tuple[object, ...], _Sum]:
    """Sums by exact identity."""
    sums: dict[tuple[object, ...], _Sum] = {}
    for row in rows:
        value = _number(row.get(measure.name))
        if value is None:
            continue
        error = _spread(row, measure.name, measure.error, measure.low, measure.high)
        entry = sums.setdefault(identities(row, table)[0], _Sum(0.0, 0.0, row))
        entry.value += value
        entry.variance += error * error
    return sums


def aligned(
    before: list[dict[str, object]], after: list[dict[str, object]], table: Table, measure: Column
) -> list[tuple[_Sum | None, _Sum | None]]:
    """Sums of the same thing: first by exact identity, what is left by the loose one in order of lines."""
    old, new = (_totals(rows, table, measure) for rows in (before, after))
    pairs: list[tuple[_Sum | None, _Sum | None]] = [(old.pop(key), new.pop(key)) for key in list(old) if key in new]
    waiting: dict[tuple[object, ...], list[_Sum]] = defaultdict(list)
    for entry in sorted(new.values(), key=_by_line):
        waiting[identities(entry.row, table)[1]].append(entry)
    for entry in sorted(old.values(), key=_by_line):
        others = waiting[identities(entry.row, table)[1]]
        pairs.append((entry, others.pop(0) if others else None))
    pairs.extend((None, entry) for others in waiting.values() for entry in others)
    return pairs


def _by_line(entry: _Sum) -> tuple[str, int]:
    return str(entry.row.get("file") or ""), _line(entry.row) or 0


def row_pairs(before: Report, after: Report) -> list[RowPair]:
    """Rows of tables about code, objects and regions that both reports have, the largest change of share first."""
    pairs = []
    for name in before.results.keys() & after.results.keys():
        for table in after.views[name].tables:
            group = group_of(table)
            if group is None or table.role == "detail":
                continue
            sides = (rows_of(before.results[name], table), rows_of(after.results[name], table))
            title = f"{after.views[name].title}: {table.title}"
            for measure in measures_of(table):
                pairs += _pairs_of(sides, table, measure, group=group, name=f"{name}.{table.name}", title=title)
    return sorted(pairs, key=lambda pair: (-pair.weight, pair.table, pair.name))


def _pairs_of(
    sides: tuple[list[dict[str, object]], list[dict[str, object]]],
    table: Table,
    measure: Column,
    *,
    group: str,
    name: str,
    title: str,
) -> list[RowPair]:
    """The rows of one table by one measure."""
    pairs = []
    totals = [sum(_number(row.get(measure.name)) or 0.0 for row in rows) for rows in sides]
    floor = max(ROW_FLOOR * max(totals), FLOORS[measure.kind][1])
    for old, new in aligned(*sides, table, measure):
        first = new or old
        row = first.row if first is not None else {}
        values = [0.0 if entry is None else entry.value for entry in (old, new)]
        pairs.append(
            RowPair(
                _text(row, table), measure.label, measure.kind, measure.better, values[0], values[1],
                math.sqrt(sum(entry.variance for entry in (old, new) if entry is not None)), floor,
                table=name, title=f"{title}, {measure.label}", group=group,
                before_share=values[0] / totals[0] if totals[0] else None,
                after_share=values[1] / totals[1] if totals[1] else None,
                place=(row.get("function"), row.get("file"), _line(row), row.get("module")),
            )
        )  # fmt: skip
    return pairs


def _text(row: Mapping[str, object], table: Table) -> str:
    """The key of a row in one line, the address and number of nothing."""
    parts = [row.get(c.name) for c in table.keys if c.kind not in ("process", "thread", *UNCOMPARED)]
    said = [str(part) for part in parts if part not in (None, "")]
    place = f"{PurePath(str(row['file'])).name}:{row['line']}" if row.get("file") and row.get("line") else ""
    return " ".join([*said, place]).strip() or "(unnamed)"
