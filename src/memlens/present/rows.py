"""Rows of a table as a renderer shows them: chosen, sorted, folded and cut as the view says.

Every renderer of tables uses this, so that terminal, page and JSON pages agree on which rows there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..view import Column, Table
from .values import is_share, share_of

if TYPE_CHECKING:
    import pyarrow as pa

    from ..results import Result
    from ..view import Series

Row = dict[str, object]
EACH_ROWS = 3
"""Rows of each value of `Table.each`."""


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


def order_of(table: pa.Table, sort: str) -> list[int]:
    """Row numbers by `column`, or by `-column` with the largest first; rows that compare equal keep their order."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not sort:
        return list(range(table.num_rows))
    name = sort.removeprefix("-")
    direction = "descending" if sort.startswith("-") else "ascending"
    keys = pa.table({name: table.column(name), "_row": pa.array(range(table.num_rows), pa.int64())})
    order: list[int] = pc.sort_indices(keys, sort_keys=[(name, direction), ("_row", "ascending")]).to_pylist()
    return order


def rows_of(result: Result, view: Table, *, most: int, offset: int = 0) -> Rows:
    """The rows of a table of a view, from `offset` on, at most `most`."""
    table = result.tables.get(view.source)
    if table is None or not table.num_columns:
        return Rows([])
    table = chosen(table, view.where)
    order = order_of(table, view.sort)
    large = _large(result, view, table, order)
    kept = large or order  # a table whose every part is below the limit is shown as it is
    folded = len(order) - len(kept)
    most = table.num_rows if view.whole else most
    if view.across:
        rows = _across(view, [table.slice(row, 1).to_pylist()[0] for row in kept])
        return Rows(rows[offset : offset + most], max(0, len(rows) - offset - most), folded)
    chosen_rows = (
        _of_each(table.column(view.each).to_pylist(), kept, most) if view.each else kept[offset : offset + most]
    )
    # One slice a row: Arrow cannot gather lists of strings beyond 2 GiB.
    shown = [table.slice(row, 1).to_pylist()[0] for row in chosen_rows]
    return Rows(shown, max(0, len(kept) - offset - len(shown)), folded)


def _across(view: Table, rows: list[Row]) -> list[Row]:
    """Rows with equal keys as one row: `NAME@VALUE` is what the one with this value of `view.across` has."""
    merged: dict[tuple[object, ...], Row] = {}
    for row in rows:
        into = merged.setdefault(tuple(row[column.name] for column in view.keys), dict(row))
        into.update({f"{name}@{row[view.across]}": value for name, value in row.items()})
    return list(merged.values())


def _of_each(values: list[object], kept: list[int], most: int) -> list[int]:
    """The first rows of each of the first `most` values."""
    found: dict[object, list[int]] = {}
    for row in kept:
        if values[row] in found or len(found) < most:
            found.setdefault(values[row], []).append(row)
    return [row for rows in found.values() for row in rows[:EACH_ROWS]]


def _large(result: Result, view: Table, table: pa.Table, order: list[int]) -> list[int]:
    """The rows whose share is not below the limit of the view."""
    column = next((c for c in view.columns if c.name == view.fold and is_share(c)), None)
    if column is None:
        return order
    needed = [name for name in (column.name, column.of) if name is not None and name in table.column_names]
    rows = table.select(needed).to_pylist()
    return [at for at in order if (share_of(column, rows[at], result.figures) or 0.0) >= view.fold_below]


def columns_of(view: Table, rows: list[Row], *, details: bool) -> list[Column]:
    """The columns that are shown for these rows."""
    return [
        column
        for column in view.columns
        if (details or column.role != "detail") and (column.show == "always" or any(_has(column, row) for row in rows))
    ]


def _has(column: Column, row: Mapping[str, object]) -> bool:
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
