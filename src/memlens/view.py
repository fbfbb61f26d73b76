"""The view model: what a result shows, declared by the analysis next to its `run`.

    Result (numbers) ──► View (labels, units, roles, charts) ──► terminal, page, JSON: generic renderers

A view is plain data. It names figures, tables and columns of a result and says what they are: label, unit or kind, which
direction is better, what a row leads to. Renderers know widths, colours and how to draw; they never know what a column means.
Units, labels and the limits below which rows are folded are written here and nowhere else.

A view must not hold markup or anything a renderer computes. JSON Schema and TypeScript types of everything in this file are
generated from it (`view_types.py`); a change of meaning raises `SCHEMA_VERSION`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = 1

Kind = Literal[
    "bytes",  # an amount of memory, binary units
    "moved",  # bytes of memory traffic, binary units, three significant digits
    "bytes_per_s",  # bandwidth, 1 GB/s = 10^9 bytes a second
    "count",  # events: a whole number, or an estimate of one
    "number",  # without unit
    "share",  # 0 to 1, shown as percent
    "percent",  # 0 to 100
    "deviation",  # in percent, where small parts matter: a relative error, with two digits after the point or more
    "precise",  # without unit: all digits of a whole number, six of any other
    "ns",  # a duration
    "s",  # a duration
    "time_s",  # a moment, in seconds since the recording began
    "per_s",  # events a second
    "address",
    "flag",
    "text",
    "code",  # a function, with its file and line or its module
    "function",
    "module",
    "file",
    "object",
    "thread",
    "process",
    "region",
    "node",
    "frames",  # a call stack, innermost frame first
]
Better = Literal["lower", "higher", "neither"]
Role = Literal["key", "measure", "detail"]
Show = Literal["always", "known", "nonzero"]
ChartKind = Literal["timeline", "bars", "curve", "heat_map", "tree", "matrix", "scatter"]

NUMBERS: frozenset[str] = frozenset({
    "bytes", "moved", "bytes_per_s", "count", "number", "share", "percent", "deviation", "precise", "ns", "s", "time_s", "per_s", "address",
})  # fmt: skip
"""Kinds that are aligned to the right, sorted as numbers and never shortened."""
REFERENCES: frozenset[str] = frozenset(
    {"address", "code", "function", "module", "file", "object", "thread", "process", "region", "node"}
)
"""Kinds that name a thing which other tables name too."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One number of a result. Its qualified name is `ANALYSIS.name`."""

    name: str
    label: str
    kind: Kind
    help: str = ""
    """One sentence: the definition."""
    better: Better = "neither"
    show: Show = "known"
    """always: null is shown as –. known: left out where it is null. nonzero: left out where it is null or 0."""
    error: str | None = None
    """The figure with its standard error."""
    low: str | None = None
    high: str | None = None
    """Figures with the ends of its 95 % interval."""
    reason: str | None = None
    """The figure that says why the value is null."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a table."""

    name: str
    """As the result has it; `NAME@VALUE` in a table with `across`."""
    label: str
    kind: Kind
    help: str = ""
    role: Role = "measure"
    """key: identifies the row. measure: shown everywhere. detail: shown where there is room (page, JSON), not in the terminal."""
    better: Better = "neither"
    show: Show = "always"
    """known, nonzero: the column is left out where no row has such a value."""
    of: str | None = None
    """The value is shown as its share of this column, or of the figure `figures.NAME`."""
    error: str | None = None
    """The column with its standard error."""
    low: str | None = None
    high: str | None = None
    """Columns with the ends of its interval; a null value with both ends is shown as a range."""
    is_range: bool = False
    """What is known are the ends: `low` and `high` are shown instead of the value."""
    reason: str | None = None
    """The column that says why a value is null."""
    null: str = "–"
    """What a null means, in a word."""
    zero: str | None = None
    """What a zero is shown as, where that is not the number."""
    bar: bool = False
    """A share that may be drawn as a bar where there is room."""
    beside: tuple[str, ...] = ()
    """Columns whose text is part of the cell: the name of a thread, the kind of an object."""
    kind_from: str = ""
    """The column with the kind of each row's value, where rows have different ones."""
    signed: bool = False
    """A change: shown with its sign."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table of a result, or part of its rows."""

    name: str
    title: str
    columns: tuple[Column, ...]
    table: str = ""
    """The result's table, where several views show one; else `name`."""
    where: tuple[tuple[str, str | int | bool | None], ...] = ()
    """Only rows in which these columns have these values."""
    sort: str = ""
    """`column`, or `-column` for the largest first; empty: the order of the result."""
    help: str = ""
    leads_to: str = ""
    """What a row leads to: a table of the capture (`memlens query`), or ANALYSIS.TABLE with the same key."""
    role: Role = "measure"
    """key: in the short summary after `record` too. detail: on the page and in JSON, not in the terminal."""
    across: str = ""
    """A column whose values become columns: rows with equal keys are one row, and `NAME@VALUE` is NAME of the one with this value. NAME
    alone is that of the first."""
    each: str = ""
    """A column: of each of its values the first rows are shown, and as many values as there are rows in other tables."""
    whole: bool = False
    """All rows are shown everywhere: there are few."""
    least_rows: int = 1
    """Fewer rows say nothing that a figure does not say: the table is left out."""
    depth: str = ""
    """A column with the depth of the row below the one around it."""
    fold: str = ""
    """A share column: rows below `fold_below` are counted, not shown."""
    fold_below: float = 0.001
    empty: str = ""
    """One sentence for a table without rows; without it the table is left out."""
    drawing: str = ""
    """The name of a drawing for each row, for renderers that have it."""

    @property
    def source(self) -> str:
        return self.table or self.name

    @property
    def keys(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.role == "key")


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line of a chart: columns of a table, or of part of its rows."""

    label: str
    table: str
    x: str
    y: str
    where: tuple[tuple[str, str | int | bool | None], ...] = ()
    low: str = ""
    """The column with the lower end, where `y` is the upper one."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A drawing over named columns of the result."""

    name: str
    title: str
    kind: ChartKind
    series: tuple[Series, ...] = ()
    """timeline, curve, bars, scatter."""
    table: str = ""
    columns: tuple[tuple[str, str], ...] = ()
    """heat_map, tree, matrix: what each column is to the drawing, and its name in `table`."""
    x_kind: Kind = "number"
    y_kind: Kind = "number"
    x_label: str = ""
    y_label: str = ""
    help: str = ""
    stacked: bool = False
    limit: str = ""
    """A figure that is drawn as a line across."""
    marks: tuple[tuple[str, float], ...] = ()
    """Labelled places on the horizontal axis: the sizes of caches."""
    end: str = ""
    """The figure with the end of the horizontal axis."""
    drawing: str = ""
    """The name of a special drawing; a renderer without it uses that of the kind."""
    role: Role = "measure"
    """detail: on the page only."""


@dataclass(frozen=True, kw_only=True)
class View:
    """What a result shows."""

    title: str
    order: int = 500
    """Sections of a report are in this order."""
    help: str = ""
    headline: str = ""
    """A sentence with figures in braces. A part in brackets is left out where one of its figures is null, 0 or false. `(s)` is the
    plural of the words after a figure: left out where the figure is 1."""
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    charts: tuple[Chart, ...] = ()
    remarks: tuple[str, ...] = ()
    """Sentences that define what the tables show, below them."""
    silent: bool = False
    """The result has nothing to say: the section is left out of terminal and page."""

    def figure(self, name: str) -> Figure | None:
        return next((figure for figure in self.figures if figure.name == name), None)

    def table(self, name: str) -> Table | None:
        return next((table for table in self.tables if table.name == name), None)


@dataclass(frozen=True, kw_only=True)
class Absence:
    """Why a section is missing from a report."""

    analysis: str
    question: str
    reason: str
    provide: str
    """The command that records what it needs."""


class Numbers(Protocol):
    """What a view describes: a result, as far as this module needs it."""

    @property
    def name(self) -> str: ...
    @property
    def figures(self) -> Mapping[str, Any]: ...
    @property
    def tables(self) -> Mapping[str, pa.Table]: ...


ViewMaker = Callable[[Any], View]


def key(name: str, label: str, kind: Kind = "text", **more: Any) -> Column:
    """A column that identifies the row."""
    return Column(name=name, label=label, kind=kind, role="key", **more)


def measure(name: str, label: str, kind: Kind = "count", **more: Any) -> Column:
    return Column(name=name, label=label, kind=kind, **more)


def detail(name: str, label: str, kind: Kind = "count", **more: Any) -> Column:
    """A column for which the terminal has no room."""
    return Column(name=name, label=label, kind=kind, role="detail", **more)


# ---- headlines ------------------------------------------------------------
_FIELD = re.compile(r"\{(\w+)\}")
_PLURAL = re.compile(r"\{(\w+)\}(?: [\w-]+)+\(s\)")


def figures_in(headline: str) -> list[str]:
    """The figures that a headline names.

    >>> figures_in("peak {peak}[, {swap} swapped]")
    ['peak', 'swap']
    """
    return _FIELD.findall(headline)


def filled(headline: str, values: Mapping[str, object], shown: Callable[[str], str]) -> str:
    """A headline with its figures; `shown` formats the figure of a name.

    >>> filled("peak {a}[, {b} swapped][ of {c}]", {"a": 1, "b": 0, "c": 9}, lambda name: f"<{name}>")
    'peak <a> of <c>'
    >>> filled("{n} new finding(s), {m} hand-over(s)", {"n": 1, "m": 2}, lambda name: f"<{name}>")
    '<n> new finding, <m> hand-overs'
    """

    def part(match: re.Match[str]) -> str:
        inner = match[1]
        return inner if all(values.get(name) for name in figures_in(inner)) else ""

    def counted(match: re.Match[str]) -> str:
        return match[0].removesuffix("(s)") + ("" if values.get(match[1]) == 1 else "s")

    kept = _PLURAL.sub(counted, re.sub(r"\[([^\[\]]*)\]", part, headline))
    return _FIELD.sub(lambda match: shown(match[1]), kept)


# ---- results without a view ------------------------------------------------
def guessed(result: Numbers) -> View:
    """A view of a result whose analysis gives none: names as labels, units from the ends of the names.

    >>> from memlens.results import Quality, Result
    >>> guessed(Result("x_y", {"peak_rss_bytes": 1}, {}, Quality())).figures[0].kind
    'bytes'
    """
    figures = tuple(
        Figure(name=name, label=words(name), kind=kind_of(name, value))
        for name, value in result.figures.items()
        if isinstance(value, str | int | float | bool) or value is None
    )
    tables = []
    for name, table in result.tables.items():
        columns = [
            Column(
                name=field.name, label=words(field.name), kind=kind_of_field(field.name, str(field.type)),
                role="key" if at == 0 else "measure",
            )
            for at, field in enumerate(table.schema)
        ]  # fmt: skip
        tables.append(Table(name=name, title=name.replace("_", " "), columns=tuple(columns)))
    title = result.name.replace("_", " ")
    return View(title=title[:1].upper() + title[1:], order=900, figures=figures, tables=tuple(tables))


_SUFFIXES: tuple[tuple[str, Kind], ...] = (
    ("bytes", "bytes"), ("bytes_per_second", "bytes_per_s"), ("_ns", "ns"), ("_per_s", "per_s"), ("_s", "s"), ("share", "share"),
    ("percent", "percent"), ("address", "address"),
)  # fmt: skip
_THINGS: frozenset[str] = frozenset({"function", "module", "file", "object", "thread", "process", "region", "node"})


def kind_of(name: str, value: object = None) -> Kind:
    """The kind that the name of a figure carries.

    >>> kind_of("peak_rss_bytes"), kind_of("faults_per_s"), kind_of("faults"), kind_of("limit_kind", "cgroup")
    ('bytes', 'per_s', 'count', 'text')
    """
    if isinstance(value, bool):
        return "flag"
    if isinstance(value, str):
        return "text"
    found = [kind for suffix, kind in _SUFFIXES if name.endswith(suffix)]
    if found:
        return "per_s" if "per_s" in found else found[0]
    return "number" if isinstance(value, float) else "count"


def kind_of_field(name: str, arrow_type: str) -> Kind:
    """The kind of a column, from its name and Arrow type.

    >>> kind_of_field("function", "string"), kind_of_field("class", "string"), kind_of_field("bytes", "uint64")
    ('function', 'text', 'bytes')
    """
    if name in _THINGS:
        return name  # type: ignore[return-value]
    if arrow_type.startswith("list"):
        return "frames"
    if not arrow_type.startswith(("int", "uint", "float", "double", "halffloat")):
        return "flag" if arrow_type == "bool" else "text"
    return kind_of(name, 0.0 if arrow_type.startswith(("float", "double")) else 0)


def words(name: str) -> str:
    """A name without its unit suffix.

    >>> words("peak_rss_bytes"), words("faults_per_cpu_s"), words("duration_s"), words("bytes")
    ('peak RSS', 'faults', 'duration', 'bytes')
    """
    stem = name.partition("_per_")[0]
    for suffix in ("_bytes", "_ns", "_s"):
        stem = stem.removesuffix(suffix)
    upper = {"rss": "RSS", "pss": "PSS", "numa": "NUMA", "cpu": "CPU"}
    return " ".join(upper.get(word, word) for word in stem.split("_"))


# ---- checks and JSON ------------------------------------------------------------
def problems(view: View, result: Numbers) -> list[str]:
    """What a view says of its result that is not so; empty for a good view."""
    found = []
    named = [name for f in view.figures for name in (f.name, f.error, f.low, f.high, f.reason) if name is not None]
    named += [chart.limit for chart in view.charts if chart.limit] + [chart.end for chart in view.charts if chart.end]
    found += [f"figure {name}: not in the result" for name in dict.fromkeys(named) if name not in result.figures]
    declared = {figure.name for figure in view.figures}
    found += [f"headline: {{{name}}} is no figure" for name in figures_in(view.headline) if name not in declared]
    found += _twice("figure", [figure.name for figure in view.figures])
    found += _twice("table", [table.name for table in view.tables])
    found += _twice("chart", [chart.name for chart in view.charts])
    for table in view.tables:
        if table.source not in result.tables:
            continue  # a table may be missing in a result, its columns may not
        wanted = {
            name
            for column in table.columns
            for name in (
                column.name,
                column.error,
                column.low,
                column.high,
                column.reason,
                *column.beside,
                column.of,
                column.kind_from or None,
            )
            if name is not None and not name.startswith("figures.")
        }
        if table.across:
            wanted = {name.partition("@")[0] for name in wanted}
        wanted |= {table.sort.removeprefix("-"), table.fold, table.depth, table.across, table.each} - {""}
        wanted |= {name for name, _ in table.where}
        found += _missing(result, table.source, wanted, f"table {table.name}")
        if not table.keys:
            found.append(f"table {table.name}: no key")
    for chart in view.charts:
        for one in chart.series:
            wanted = {one.x, one.y, one.low, *(name for name, _ in one.where)} - {""}
            found += _missing(result, one.table, wanted, f"chart {chart.name}")
        if chart.table:
            found += _missing(result, chart.table, {name for _, name in chart.columns}, f"chart {chart.name}")
    return found


def _missing(result: Numbers, table: str, wanted: set[str], what: str) -> list[str]:
    if table not in result.tables or not result.tables[table].num_columns:
        return []
    missing = wanted - set(result.tables[table].column_names)
    return [f"{what}: {table} has no columns {sorted(missing)}"] if missing else []


def _twice(what: str, names: Iterable[str]) -> list[str]:
    seen: set[str] = set()
    twice = [name for name in names if name in seen or seen.add(name)]  # type: ignore[func-returns-value]
    return [f"{what} {name}: twice" for name in twice]


def to_json(value: object) -> Any:
    """A view, or part of one, as plain JSON."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple | list):
        return [to_json(one) for one in value]
    if isinstance(value, Mapping):
        return {name: to_json(one) for name, one in value.items()}
    return value
