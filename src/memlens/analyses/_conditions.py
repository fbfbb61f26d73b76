"""Conditions on the figures and rows of two reports: `memlens diff --fail-if`.

    capacity.peak_rss_bytes > +5%            a change against the first capture
    objects.by_site[make_table].peak_bytes >= 2GiB      a value of the second
    caches.by_function[spmv].l2_misses > +10%

Owns the grammar and what a condition means; knows nothing of a command line.
"""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import UsageError
from ._comparison import ADDITIVE, SURE, _number, _spread

if TYPE_CHECKING:
    from ..results import Report
    from ..view import Column

UNITS = {"": 1, "k": 1000, "m": 10**6, "g": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "s": 1}
BYTE_UNITS = {**UNITS, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "kb": 1000, "mb": 10**6, "gb": 10**9}
"""Of figures in bytes, as in --sample-bytes and the reports: K, M and G are binary."""
CONDITION = re.compile(
    r"^\s*(?P<subject>[\w.]+(?:\[.+\]\.\w+)?)\s*(?P<relation>>=|<=|>|<)\s*(?P<sign>[+-])?\s*(?P<number>[0-9.]+)\s*(?P<unit>%|[A-Za-z]*)\s*$"
)
CELL = re.compile(r"^(?P<analysis>\w+)\.(?P<table>\w+)\[(?P<key>.+)\]\.(?P<column>\w+)$")


@dataclass(frozen=True)
class Condition:
    """One --fail-if."""

    text: str
    subject: str
    relation: str
    is_change: bool
    """The limit is a change against the first capture."""
    is_percent: bool
    limit: float


@dataclass(frozen=True)
class Measured:
    """What a condition is about, in both captures."""

    before: float | None
    after: float | None
    error: float = 0.0
    """Standard error of the change."""


def parse(text: str) -> Condition:
    """One condition.

    >>> parse("peak_rss_bytes > +5%").is_percent, parse("peak_rss_bytes >= 2M").limit, parse("faults > 2M").limit
    (True, 2097152.0, 2000000.0)
    >>> parse("objects.by_site[operator new[]].peak_bytes < -1k").subject
    'objects.by_site[operator new[]].peak_bytes'
    """
    match = CONDITION.match(text)
    if match is None:
        raise UsageError(
            f"invalid value {text!r} for --fail-if; expected SUBJECT RELATION LIMIT",
            hint="write 'capacity.peak_rss_bytes > +5%' or 'objects.by_site[make_table].peak_bytes > 2GiB'",
        )
    subject, relation, sign, number, unit = match.groups()
    percent = unit == "%"
    if percent and sign is None:
        raise UsageError(
            f"--fail-if {text!r}: a percentage is a change and needs a sign", hint=f"'{subject} {relation} +{number}%'"
        )
    units = BYTE_UNITS if subject.endswith("bytes") else UNITS
    if not percent and unit.lower() not in units:
        raise UsageError(f"--fail-if {text!r}: unknown unit {unit!r}", hint="units: KiB, MiB, GiB, k, M, G, %")
    try:
        value = float(number) * (1 if percent else units[unit.lower()])
    except ValueError as error:
        raise UsageError(f"--fail-if {text!r}: {number!r} is not a number") from error
    return Condition(text, subject, relation, sign is not None, percent, -value if sign == "-" else value)


def holds(condition: Condition, measured: Measured) -> bool:
    """Whether a condition is met. A change within twice its standard error is none.

    >>> condition = parse("x > +5%")
    >>> holds(condition, Measured(100, 105)), holds(condition, Measured(100, 106)), holds(condition, Measured(100, 106, 4.0))
    (False, True, False)
    """
    before, after = measured.before, measured.after
    if after is None or (condition.is_change and before is None):
        return False
    value = after
    if condition.is_change:
        assert before is not None
        value = after - before
        if measured.error and abs(value) <= SURE * measured.error:
            value = 0.0
        elif condition.is_percent:
            value = math.copysign(math.inf, value) if before == 0 and value else 100 * value / before if before else 0.0
    compare = {">": value > condition.limit, "<": value < condition.limit}
    compare |= {">=": value >= condition.limit, "<=": value <= condition.limit}
    return compare[condition.relation]


# ---- what a condition is about ------------------------------------------------------------
def measured(condition: Condition, before: Report, after: Report) -> Measured:
    """The value of a condition's subject in both captures."""
    cell = CELL.match(condition.subject)
    if cell is not None:
        return _cells(condition, before, after, **cell.groupdict())
    return _figure(condition, before, after)


def _names(*reports: Report) -> list[str]:
    """Qualified names of all figures that are numbers."""
    names = [
        f"{result.name}.{name}"
        for report in reports
        for result in report.results.values()
        for name, value in result.figures.items()
        if value is None or _number(value) is not None
    ]
    return list(dict.fromkeys(names))


def _figure(condition: Condition, before: Report, after: Report) -> Measured:
    names = _names(before, after)
    wanted = condition.subject
    found = [name for name in names if wanted in (name, name.partition(".")[2])]
    if not found:
        close = difflib.get_close_matches(wanted, [*names, *(name.partition(".")[2] for name in names)], n=1)
        raise UsageError(
            f"there is no figure {wanted!r} in these captures",
            hint=f"did you mean {close[0]}?" if close else f"figures: {', '.join(names)}",
        )
    if len(found) > 1:
        raise UsageError(f"--fail-if: several analyses have a figure {wanted!r}", hint=f"name one: {', '.join(found)}")
    analysis, _, name = found[0].partition(".")
    values, errors = [], []
    for report in (before, after):
        result = report.results.get(analysis)
        figures = {} if result is None else result.figures
        view = report.views.get(analysis)
        figure = view.figure(name) if view is not None else None
        error, low, high = (None, None, None) if figure is None else (figure.error, figure.low, figure.high)
        values.append(_number(figures.get(name)))
        errors.append(_spread(figures, name, error, low, high))
    return Measured(values[0], values[1], math.hypot(*errors))


def _cells(condition: Condition, before: Report, after: Report, *, analysis: str, table: str, key: str, column: str) -> Measured:  # fmt: skip
    values: list[float | None] = []
    errors, keys_seen = [], set()
    for report in (before, after):
        view = report.views.get(analysis)
        shown = None if view is None else view.table(table)
        if view is None or shown is None:
            known = [f"{name}.{one.name}" for name, of in after.views.items() for one in of.tables]
            raise UsageError(
                f"--fail-if {condition.text!r}: there is no table {analysis}.{table} in these captures",
                hint=f"tables: {', '.join(known)}",
            )
        cell = next((one for one in shown.columns if one.name == column), None)
        if cell is None:
            raise UsageError(
                f"--fail-if {condition.text!r}: {analysis}.{table} has no column {column!r}",
                hint=f"columns: {', '.join(one.name for one in shown.columns)}",
            )
        found = report.results[analysis].tables.get(shown.source)
        rows: list[dict[str, object]] = found.to_pylist() if found is not None and found.num_columns else []
        names = [one.name for one in shown.keys]
        keys_seen |= {str(row.get(name)) for row in rows for name in names if row.get(name) is not None}
        value, error = _sum([row for row in rows if any(str(row.get(name)) == key for name in names)], cell, condition)
        values.append(value)
        errors.append(error)
    if values == [None, None]:
        close = difflib.get_close_matches(key, sorted(keys_seen), n=1, cutoff=0.4)
        raise UsageError(
            f"--fail-if {condition.text!r}: no row of {analysis}.{table} has the key {key!r}",
            hint=f"did you mean {close[0]}?" if close else f"keys: {', '.join(sorted(keys_seen)[:8])}",
        )
    # A row that one capture does not have is nothing there, if rows of this column add up.
    assert cell is not None
    before_value, after_value = (0.0 if value is None and cell.kind in ADDITIVE else value for value in values)
    return Measured(before_value, after_value, math.hypot(*errors))


def _sum(rows: list[dict[str, object]], column: Column, condition: Condition) -> tuple[float | None, float]:
    """The value of rows with one key; several are added up where that means something."""
    values = [value for row in rows if (value := _number(row.get(column.name))) is not None]
    if not values:
        return None, 0.0
    if len(values) > 1 and column.kind not in ADDITIVE:
        raise UsageError(
            f"--fail-if {condition.text!r}: {len(values)} rows have this key, and {column.name} does not add up",
            hint="name a row by a key that only it has",
        )
    errors = [_spread(row, column.name, column.error, column.low, column.high) for row in rows]
    return sum(values), math.hypot(*errors) if errors else 0.0
