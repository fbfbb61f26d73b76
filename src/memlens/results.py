"""What analyses return and presenters render: tables, findings, quality.

Plain data. No analysis prints, no presenter computes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from .selection import Scope, Selection
from .view import SCHEMA_VERSION, Absence, View, to_json

if TYPE_CHECKING:
    import pyarrow as pa

Cell = int | float | str | bool | None
Row = dict[str, Cell]
"""A row of a table, its columns by name."""
Key = tuple[int | str | None, ...]
"""What a row is of: the values of some columns."""
Severity = Literal["high", "medium", "low"]
ReferenceKind = Literal["code", "object", "line", "region", "thread", "process", "node"]


# ---- as JSON: `memlens report --json`; JSON Schema and TypeScript types are generated from these (`view_types.py`)
class NoteJson(TypedDict):
    code: str
    text: str
    values: dict[str, object]


class QualityJson(TypedDict):
    exact: bool
    exact_for: str | None
    dropped_records: int
    truncated: bool
    notes: list[NoteJson]


class ReferenceJson(TypedDict):
    kind: ReferenceKind
    name: str
    module: str | None
    file: str | None
    line: int | None


class FindingJson(TypedDict):
    name: str
    severity: Severity
    claim: str
    evidence: dict[str, object]
    remedy: str
    quality: QualityJson
    references: list[ReferenceJson]
    time_s: list[float] | None
    view: str | None
    affected_share: float | None
    affected_of: str | None
    group: str | None


class ResultJson(TypedDict):
    name: str
    figures: dict[str, object]
    tables: dict[str, list[dict[str, object]]]
    table_rows: dict[str, int]
    quality: QualityJson
    scope: Scope
    scope_reason: str | None


class PageJson(TypedDict):
    offset: int
    rows: int | None


class SelectionJson(TypedDict):
    time_s: list[float] | None
    processes: list[int]
    threads: list[int]
    region: str | None
    code: str | None
    object: str | None


class ReportJson(TypedDict):
    schema: Literal["memlens-report"]
    schema_version: int
    title: str
    selection: SelectionJson | None
    meta: dict[str, object]
    findings: list[FindingJson]
    results: dict[str, ResultJson]
    page: PageJson
    views: dict[str, View]
    absences: list[Absence]
    quality: QualityJson


class Note(str):
    """A sentence about the quality of a result, with a code that programs recognise it by and the numbers in it.

    >>> note = Note("rows.under_sampled", "9 rows are under-sampled.", rows=9)
    >>> note, note.code, note.values["rows"]
    ('9 rows are under-sampled.', 'rows.under_sampled', 9)
    """

    __slots__ = ("code", "values")
    code: str
    values: Mapping[str, object]

    def __new__(cls, code: str, text: str, /, **values: object) -> Note:
        note = super().__new__(cls, text)
        note.code = code
        note.values = values
        return note

    def __getnewargs_ex__(self) -> tuple[tuple[str, str], dict[str, object]]:
        return (self.code, str(self)), dict(self.values)

    @staticmethod
    def json_of(note: str) -> NoteJson:
        """Any note as JSON; one that another program wrote into the capture has the code ``recorded``."""
        if isinstance(note, Note):
            return {"code": note.code, "text": str(note), "values": dict(note.values)}
        return {"code": "recorded", "text": note, "values": {}}


@dataclass(frozen=True)
class Quality:
    """How far a number can be trusted; travels with every result.

    ``exact`` is True only when nothing was sampled, dropped or inferred. ``exact_for`` names what the numbers are exact for where
    that is not the machine code that ran.
    """

    exact: bool = True
    dropped_records: int = 0
    truncated: bool = False
    notes: tuple[str, ...] = ()
    """Each a whole sentence: what is missing or estimated, and why."""
    exact_for: str = ""

    def joined(self, other: Quality) -> Quality:
        """The quality of a result that rests on both."""
        return Quality(
            exact=self.exact and other.exact,
            dropped_records=max(self.dropped_records, other.dropped_records),
            truncated=self.truncated or other.truncated,
            notes=tuple(dict.fromkeys(self.notes + other.notes)),
            exact_for=self.exact_for or other.exact_for,
        )

    def without(self, *codes: str) -> Quality:
        """The same without notes of these codes: what does not bear on a finding.

        >>> Quality(notes=(Note("a.b", "One."), "Two.")).without("a.b").notes
        ('Two.',)
        """
        kept = tuple(note for note in self.notes if not (isinstance(note, Note) and note.code in codes))
        return replace(self, notes=kept)

    def to_json(self) -> QualityJson:
        return {
            "exact": self.exact,
            "exact_for": self.exact_for or None,
            "dropped_records": self.dropped_records,
            "truncated": self.truncated,
            "notes": [Note.json_of(note) for note in self.notes],
        }


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A thing that a finding is about; tables and pages select by it."""

    kind: ReferenceKind
    name: str
    """As tables name it: a function, an object, `0x` and the address of a cache line, a thread's number."""
    module: str | None = None
    file: str | None = None
    line: int | None = None


@dataclass(frozen=True)
class Finding:
    """What a person should do next, with the evidence for it."""

    name: str
    severity: Severity
    claim: str
    evidence: dict[str, Any]
    remedy: str
    quality: Quality = field(default_factory=Quality)
    references: tuple[Reference, ...] = ()
    time_s: tuple[float, float] | None = None
    """When it happened, where that is less than the whole run."""
    view: str = ""
    """ANALYSIS.TABLE: the rows that prove it."""
    affected_share: float | None = None
    """The part of the run that it affects, of `affected_of`."""
    affected_of: str = ""
    """The base of `affected_share`: CPU time, accesses, bytes, faults or peak memory."""
    group: str = ""
    """Findings of one group about one thing state one fact; the first of them is kept."""

    def to_json(self) -> FindingJson:
        return {
            "name": self.name,
            "severity": self.severity,
            "claim": self.claim,
            "evidence": self.evidence,
            "remedy": self.remedy,
            "quality": self.quality.to_json(),
            "references": [
                {"kind": one.kind, "name": one.name, "module": one.module, "file": one.file, "line": one.line}
                for one in self.references
            ],
            "time_s": None if self.time_s is None else list(self.time_s),
            "view": self.view or None,
            "affected_share": self.affected_share,
            "affected_of": self.affected_of or None,
            "group": self.group or None,
        }


NOTEBOOK_ROWS = 10


def _need(package: str) -> Any:
    """A package that memlens works without."""
    import importlib

    from .errors import UsageError

    try:
        return importlib.import_module(package)
    except ImportError:
        raise UsageError(f"{package} is not installed", hint=f"pip install {package}") from None


@dataclass(frozen=True)
class Result:
    """Tables (Arrow), scalar figures and quality of one analysis of one capture."""

    name: str
    figures: dict[str, Any]
    tables: dict[str, pa.Table]
    quality: Quality
    scope: Scope = "selection"
    """How far it obeyed the selection that it was asked for; of the whole run nothing was left out."""
    scope_reason: str = ""
    """Why the selection was not obeyed, or only by time bins."""

    def __repr__(self) -> str:
        tables = ", ".join(f"{name} ({table.num_rows:,} rows)" for name, table in self.tables.items())
        return f"<Result {self.name}: {len(self.figures)} figures; {tables or 'no tables'}>"

    def _repr_html_(self) -> str:
        """For notebooks: figures, and the first rows of each table."""
        from html import escape

        def rows(cells: Iterable[tuple[object, ...]], tag: str = "td") -> str:
            return "".join(
                f"<tr>{''.join(f'<{tag}>{escape(str(cell))}</{tag}>' for cell in row)}</tr>" for row in cells
            )

        parts = [f"<h4>{escape(self.name)}</h4><table>{rows(self.figures.items())}</table>"]
        for name, table in self.tables.items():
            first = [tuple(row.values()) for row in table.slice(0, NOTEBOOK_ROWS).to_pylist()]
            more = f", {NOTEBOOK_ROWS} of {table.num_rows:,} rows" if table.num_rows > NOTEBOOK_ROWS else ""
            parts.append(
                f"<h5>{escape(name)}{more}</h5><table>{rows([tuple(table.column_names)], 'th')}{rows(first)}</table>"
            )
        parts.extend(f"<p>{escape(note)}</p>" for note in self.quality.notes)
        return "".join(parts)

    def to_pandas(self, table: str) -> Any:
        """One table as a pandas data frame.

        Raises
        ------
        UsageError
            pandas is not installed; memlens itself does not need it.
        """
        _need("pandas")
        return self._named(table).to_pandas()

    def to_polars(self, table: str) -> Any:
        """One table as a polars data frame; the same for polars."""
        return _need("polars").from_arrow(self._named(table))

    def _named(self, table: str) -> pa.Table:
        from .errors import NoDataError

        if table not in self.tables:
            raise NoDataError(f"{self.name} has no table {table!r}", hint=f"tables: {', '.join(self.tables)}")
        return self.tables[table]

    def to_json(self, *, rows: int | None = None, offset: int = 0) -> ResultJson:
        """Plain data; of each table `rows` rows from `offset` on, and how many it has."""
        return {
            "name": self.name,
            "figures": self.figures,
            "tables": {name: table.slice(offset, rows).to_pylist() for name, table in self.tables.items()},
            "table_rows": {name: table.num_rows for name, table in self.tables.items()},
            "quality": self.quality.to_json(),
            "scope": self.scope,
            "scope_reason": self.scope_reason or None,
        }


def _selection_json(selection: Selection) -> SelectionJson | None:
    if not selection:
        return None
    return {
        "time_s": None if selection.time_s is None else list(selection.time_s),
        "processes": list(selection.processes),
        "threads": list(selection.threads),
        "region": selection.region or None,
        "code": selection.code or None,
        "object": selection.object or None,
    }


@dataclass(frozen=True)
class Report:
    """Everything a presenter may show of one capture."""

    title: str
    meta: dict[str, Any]
    """The capture's meta.json."""
    results: dict[str, Result]
    findings: list[Finding]
    quality: Quality
    views: Mapping[str, View] = field(default_factory=dict)
    """What each result shows, by the name of the result."""
    absences: tuple[Absence, ...] = ()
    """What is missing from the report, why, and the command that would provide it."""
    selection: Selection = field(default_factory=Selection)
    """The part of the run that was asked for."""

    def scope_line(self, name: str) -> str:
        """What a reader must know of a result that did not obey the selection, or only by time bins; else empty."""
        result = self.results[name]
        if not self.selection or result.scope == "selection":
            return ""
        why = f": {result.scope_reason}" if result.scope_reason else ""
        return f"of the {result.scope}{why}" if result.scope == "whole run" else f"selected by {result.scope}{why}"

    @property
    def duration_s(self) -> float:
        """Wall-clock time of the run."""
        begin_ns, end_ns = self.meta.get("begin_ns"), self.meta.get("end_ns")
        if self.selection and begin_ns and end_ns:  # the capacity of a part is that of its time
            return float(self.meta.get("wall_s") or (end_ns - begin_ns) / 1e9)
        capacity = self.results.get("capacity")
        return float(self.meta.get("wall_s") or (capacity.figures["duration_s"] if capacity else 0.0))

    def to_json(self, *, rows: int | None = None, offset: int = 0, only: Collection[str] = ()) -> ReportJson:
        """Plain data, described by the JSON Schema that comes with memlens (`memlens.view_types`).

        Parameters
        ----------
        rows, offset
            A page of each table; `table_rows` has the numbers of rows.
        only
            Names of results; empty: all.
        """
        results = {name: result for name, result in self.results.items() if not only or name in only}

        return {
            "schema": "memlens-report",
            "schema_version": SCHEMA_VERSION,
            "title": self.title,
            "selection": _selection_json(self.selection),
            "meta": self.meta,
            "findings": [finding.to_json() for finding in self.findings],
            "results": {name: result.to_json(rows=rows, offset=offset) for name, result in results.items()},
            "page": {"offset": offset, "rows": rows},
            "views": {name: to_json(view) for name, view in self.views.items() if name in results},
            "absences": [to_json(absence) for absence in self.absences],
            "quality": self.quality.to_json(),
        }
