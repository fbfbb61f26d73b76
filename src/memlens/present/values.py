"""Values as text: one function for each kind of the view model, used by every renderer.

Owns digits, units and the words for what is missing or estimated. Knows kinds (`memlens.view`), never what a column means. Markup,
colours and widths belong to the renderers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

from ..units import human_bytes, human_moved, human_rate, plus_minus, two_digits
from ..view import Column, Figure, Kind
from ._units import human_count, human_duration

NULL = "–"
EXACT_COUNT = 100_000
"""Counts below this are written out."""
ESTIMATES = frozenset({"bytes", "moved", "count"})
"""Kinds whose estimates have two significant digits."""


def number(value: float) -> str:
    """A number without unit.

    >>> number(0.0000814), number(0.267), number(2410), number(0)
    ('<0.001', '0.267', '2.41 k', '0')
    """
    if 0 < value < 0.001:
        return "<0.001"
    return human_count(value) if value >= 1000 else f"{value:.3g}"


def count(value: float) -> str:
    """
    >>> count(2604), count(454_900), count(0.4)
    ('2,604', '455 k', '0.4')
    """
    if value < EXACT_COUNT:
        return f"{value:,.0f}" if float(value).is_integer() or value >= 10 else f"{value:.2g}"
    return human_count(value)


def percent(value: float) -> str:
    """
    >>> percent(50), percent(0.001), percent(0), percent(99.99), percent(100), percent(342)
    ('50.0 %', '<0.1 %', '0 %', '>99.9 %', '100 %', '342 %')
    """
    if value in (0, 100):
        return f"{value:.0f} %"
    if 0 < value < 0.1:
        return "<0.1 %"
    if 99.9 < value < 100:
        return ">99.9 %"
    return f"{value:.1f} %" if value < 100 else f"{value:,.0f} %"


def deviation(value: float, *, signed: bool = False) -> str:
    """A relative error in percent: two digits, four where it is small. What rounding leaves is 0.

    >>> deviation(0.0), deviation(-2.5), deviation(0.00123, signed=True), deviation(-0.00001), deviation(1e-14), deviation(227367.4, signed=True)
    ('0 %', '-2.50 %', '+0.0012 %', '-<0.0001 %', '0 %', '+227,367 %')
    """
    if abs(value) < 1e-9:
        return "0 %"
    sign, size = "-" if value < 0 else "+" if signed else "", abs(value)
    if size < 0.0001:
        return f"{sign}<0.0001 %"
    digits = 4 if size < 0.01 else 2 if size < 1000 else 0
    return f"{sign}{size:,.{digits}f} %"


def precise(value: float) -> str:
    """
    >>> precise(108189), precise(0.00232288), precise(291470.0)
    ('108,189', '0.00232288', '291470')
    """
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def seconds(value: float) -> str:
    """
    >>> seconds(1.5), seconds(0.0123), seconds(0)
    ('1.50 s', '12.3 ms', '0 s')
    """
    if value == 0:
        return "0 s"
    return f"{value:.2f} s" if abs(value) >= 0.1 else human_duration(1e9 * value)


def plain(kind: Kind, value: object) -> str:
    """A value of a kind, without errors.

    >>> plain("bytes", 1536), plain("address", 4096), plain("flag", True), plain("per_s", 1234.5), plain("share", 0.021)
    ('1.5 KiB', '0x1000', 'yes', '1,234/s', '2.1 %')
    """
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return NULL
    if isinstance(value, list | tuple):
        return ", ".join(str(one) if isinstance(one, int) else plain(kind, one) for one in value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return str(value)
    match kind:
        case "bytes":
            return human_bytes(value)
        case "moved":
            return human_moved(value)
        case "bytes_per_s":
            return human_rate(value)
        case "count":
            return count(value)
        case "number":
            return number(value) if value >= 0 else f"{value:.3g}"
        case "share":
            return percent(100 * value)
        case "percent":
            return percent(value)
        case "deviation":
            return deviation(value)
        case "precise":
            return precise(value)
        case "ns":
            return human_duration(value)
        case "s" | "time_s":
            return seconds(value)
        case "per_s":
            return f"{value:,.0f}/s"
        case "address":
            return f"{int(value):#x}"
        case "node":
            return f"node {value}"
        case _:
            return str(value)


def estimated(kind: Kind, value: float | None, error: float | None, *, about: bool = True) -> str:
    """A value with its standard error: two significant digits and ± two standard errors.

    >>> estimated("count", 97849, 2000), estimated("bytes", 146600000, 3e6), estimated("count", 37, 0)
    ('about 98,000 ±4 %', 'about 140 MiB ±4 %', '37')
    """
    if value is None or not error:
        return plain(kind, value)
    shown = value
    if kind == "count":
        shown = two_digits(value)
        text = f"{shown:,.0f}"
    elif kind in ESTIMATES:
        unit = 1024 ** max(0, min(4, int(math.log(abs(value), 1024)))) if value else 1
        text = f"{two_digits(value / unit):g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[int(math.log(unit, 1024) + 0.5)]}"
    else:
        text = plain(kind, value)
    return f"{'about ' if about else ''}{text}{plus_minus(value, error)}"


def between(kind: Kind, low: float, high: float) -> str:
    """A range; one value where both ends look alike.

    >>> between("share", 0.0, 0.221), between("share", 0.3, 0.3001), between("ns", 1e6, 2e6)
    ('0 to 22.1 %', '30.0 %', '1.0 to 2.0 ms')
    """
    least, most = plain(kind, low), plain(kind, high)
    if least == most:
        return most
    unit = most.rpartition(" ")[2]
    return f"{least.removesuffix(f' {unit}')} to {most}" if " " in most else f"{least} to {most}"


def number_in(values: Mapping[str, object], name: str | None) -> float | None:
    """A number of a row or of a result's figures; None where there is none."""
    value = values.get(name) if name else None
    return value if isinstance(value, int | float) else None


def of_figure(figure: Figure, figures: Mapping[str, object]) -> str:
    """The text of a figure of a result."""
    if figure.error is not None:
        return estimated(figure.kind, number_in(figures, figure.name), number_in(figures, figure.error))
    value, low, high = figures.get(figure.name), number_in(figures, figure.low), number_in(figures, figure.high)
    if value is None and low is not None and high is not None:
        return between(figure.kind, low, high)
    return plain(figure.kind, value)


def denominator(column: Column, row: Mapping[str, object], figures: Mapping[str, object]) -> float | None:
    """What the value of a column is shown as a share of."""
    assert column.of is not None
    if column.of.startswith("figures."):
        return number_in(figures, column.of.removeprefix("figures."))
    return number_in(row, column.of)


def is_share(column: Column) -> bool:
    """Whether a column is shown as a part of a whole."""
    return column.of is not None or column.kind in ("share", "percent")


def share_of(column: Column, row: Mapping[str, object], figures: Mapping[str, object]) -> float | None:
    """The value of a column as its share of another, 0 to 1; the value itself where it is a share already."""
    value = number_in(row, column.name)
    if column.of is not None:
        whole = denominator(column, row, figures)
        return None if value is None or not whole else value / whole
    return None if value is None else value / 100 if column.kind == "percent" else value


def _own_kind(column: Column, row: Mapping[str, object], value: object) -> str:
    """A value whose kind the row gives, or a change with its sign."""
    kind = cast("Kind", row.get(column.kind_from) or column.kind) if column.kind_from else column.kind
    if not column.signed or not isinstance(value, int | float):
        return plain(kind, value)
    if kind == "deviation":
        return deviation(value, signed=True)
    error = number_in(row, column.error)
    ends = f" ±{plain(kind, 2 * error)}" if error else ""
    return f"{'+' if value > 0 else '−' if value < 0 else ''}{plain(kind, abs(value))}{ends}"


def of_cell(column: Column, row: Mapping[str, object], figures: Mapping[str, object]) -> str:
    """The text of a cell: value, range, error and the columns beside it."""
    value = row.get(column.name)
    low, high = number_in(row, column.low), number_in(row, column.high)
    if column.of is not None:
        share = share_of(column, row, figures)
        text = column.null if share is None else plain("share", share)
    elif low is not None and high is not None and (value is None or column.is_range):
        text = between(column.kind, low, high)
    elif value is None:
        text = column.null
    elif column.zero is not None and value == 0:
        return column.zero
    elif column.signed or column.kind_from:
        text = _own_kind(column, row, value)
    elif column.kind == "bytes_per_s" and isinstance(value, int | float):  # the unit is in the label
        text = human_rate(value).removesuffix(" GB/s")
    elif column.error is not None:
        text = estimated(column.kind, number_in(row, column.name), number_in(row, column.error), about=False)
    else:
        text = plain(column.kind, value)
    beside = [str(row[name]) for name in column.beside if row.get(name)]
    return " ".join([text, *beside]) if beside else text
