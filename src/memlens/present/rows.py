"""Rows of a table as a renderer shows them: chosen, sorted, folded and cut as the view says.

Every renderer of tables uses this, so that terminal, page and JSON pages agree on which rows there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..view import Column, Table
from .values import is_share, share_of

if TYPE_CHECKING:
    import pyarrow as pa

    from ..results import Result
    from ..view import Series

Row = dict[str, Any]


@dataclass(frozen=True)
class Rows:
    """The rows that are shown, and how many are not."""

    shown: list[Row]
    more: int = 0
    """Rows behind the last one shown."""
    folded: int = 0
    """Rows whose share is too small to matter."""


def chosen(table: pa.Table, where: tuple[tuple[str, str | int | bool | None], ...]) -> pa.Table:
    """Rows in which columns have the values of `where`."""
    import pyarrow.compute as pc

    for name, value in where:
        column = table.column(name)
        table = table.filter(pc.is_null(column) if value is None else pc.equal(column, value))
    return table


def ordered(table: pa.Table, sort: str) -> pa.Table:
    """Sorted by `column`, or by `-column` with the largest first; rows that compare equal keep their order."""
    if not sort or not table.num_rows:
        return table
    import pyarrow as pa
    import pyarrow.compute as pc

    name = sort.removeprefix("-")
    direction = "descending" if sort.startswith("-") else "ascending"
    numbered = table.append_column("_row", pa.array(range(table.num_rows), pa.int64()))
    order = pc.sort_indices(numbered, sort_keys=[(name, direction), ("_row", "ascending")])
    return table.take(order)


def rows_of(result: Result, view: Table, *, most: int, offset: int = 0) -> Rows:
    """The rows of a table of a view, from `offset` on, at most `most`."""
    table = result.tables.get(view.source)
    if table is None or not table.num_columns:
        return Rows([])
    table = ordered(chosen(table, view.where), view.sort)
    if view.fold and table.num_rows:
        column = next((c for c in view.columns if c.name == view.fold and is_share(c)), None)
        if column is not None:
            # The largest part of any table of shares is above the limit; one that is not is shown as it is.
            rows = table.to_pylist()
            large = [row for row in rows if (share_of(column, row, result.figures) or 0.0) >= view.fold_below]
            kept = large or rows
            shown = kept[offset : offset + most]
            return Rows(shown, len(kept) - offset - len(shown), len(rows) - len(kept))
    shown = table.slice(offset, most).to_pylist()
    return Rows(shown, max(0, table.num_rows - offset - len(shown)))


def columns_of(view: Table, rows: list[Row], *, details: bool) -> list[Column]:
    """The columns that are shown for these rows."""
    return [
        column
        for column in view.columns
        if (details or column.role != "detail") and (column.show == "always" or any(_has(column, row) for row in rows))
    ]


def _has(column: Column, row: Mapping[str, Any]) -> bool:
    value = row.get(column.name)
    if column.show == "nonzero":
        return bool(value)
    return value is not None or (column.low is not None and row.get(column.low) is not None)


def reasons(view: Table, columns: list[Column], rows: list[Row]) -> list[tuple[str, str]]:
    """(row, why) of values that are not known, each reason once a row."""
    found: dict[tuple[str, str], None] = {}
    key = next((column.name for column in view.columns if column.role == "key"), "")
    for row in rows:
        for column in columns:
            why = row.get(column.reason) if column.reason else None
            if why:
                found[str(row.get(key) or "?"), str(why)] = None
    return list(found)


def series_of(result: Result, series: Series) -> tuple[list[float], list[float], list[float]]:
    """x, y and lower ends of a series; nulls are left out."""
    table = result.tables.get(series.table)
    if table is None or not table.num_columns or series.x not in table.column_names:
        return [], [], []
    table = chosen(table, series.where)
    xs = table.column(series.x).to_pylist()
    ys = table.column(series.y).to_pylist()
    lows = table.column(series.low).to_pylist() if series.low else ys
    points = [(x, y, y if low is None else low) for x, y, low in zip(xs, ys, lows, strict=True) if y is not None]
    return [x for x, _, _ in points], [y for _, y, _ in points], [low for _, _, low in points]
