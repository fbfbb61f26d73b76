"""Presenter `terminal`: a report in text.

A generic renderer of views: findings first, then a section for each result in the order of the views, then what the numbers rest on. Knows kinds,
tables and charts, never an analysis; widths and styles are those of `screen.py`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import IO, TYPE_CHECKING

from ..registry import PresenterDescriptor
from ..view import NUMBERS, Chart, Column, Table, View, figures_in, filled, guessed
from . import rows as table_rows
from ._names import end_of, fit, place_text, short_function
from ._units import exit_in_words, imported_in_words
from .quality import quality_lines
from .screen import Head, Screen, bar, resampled, spark
from .values import between, number_in, of_cell, of_figure, plain, share_of

if TYPE_CHECKING:
    from ..results import Finding, Report, Result

OF_NUMBERS = re.compile(r"[-–0-9, ]*")
"""Numbers and ranges in a text: never shortened either."""
SEVERITY_STYLE = {"high": "red", "medium": "yellow", "low": "cyan"}
BRIEF_ROWS = 5
CURVE_POINTS = 6
LEAST_FUNCTION = 5
ALONE_TEXT = 24
"""Cells that a text keeps where no column is left out."""
MOST_LINES = 4
"""Sparklines of one chart."""


def show(
    report: Report,
    *,
    file: IO[str],
    rows: int = 10,
    brief: bool = False,
    only: Collection[str] = (),
    width: int | None = None,
) -> None:
    """Prints a report; `only` names the sections that are shown."""
    screen = Screen(file, width=width)
    rows = BRIEF_ROWS if brief else rows
    _title(screen, report, brief=brief)
    if not only or "findings" in only:
        _findings(screen, report.findings)
    views = {name: report.views.get(name) or guessed(result) for name, result in report.results.items()}
    for name in sorted(views, key=lambda name: views[name].order):
        if not views[name].silent and (name in only or (not only and not _is_detail(views[name]))):
            _section(screen, report.results[name], views[name], rows, brief=brief, scope=report.scope_line(name))
    if not only or "quality" in only:
        _quality(screen, report, brief=brief)
        if not brief:
            _absences(screen, report)


def show_result(
    result: Result,
    view: View,
    *,
    file: IO[str],
    rows: int = 10,
    title: Sequence[tuple[str, str]] = (),
    leave_out: Collection[str] = (),
    width: int | None = None,
) -> None:
    """Prints one result as commands of their own do: the answer, all figures and tables, then what the numbers rest on.

    `title` are lines of (name, text) above it, `leave_out` names tables that are not shown. Nothing is left out for lack of room.
    """
    screen = Screen(file, width=width)
    if title:
        screen.line("")
    for name, text in title:
        screen.paragraph(text, head=f"{name}  ", hanging=2)
    shown = replace(view, tables=tuple(table for table in view.tables if table.name not in leave_out))
    _section(screen, result, shown, rows, brief=False, alone=True)
    if result.quality.notes:
        screen.line("")
    for note in result.quality.notes:
        screen.paragraph(f"! {note}", indent=2, hanging=2, style="yellow")


# ---- title ------------------------------------------------------------
def _title(screen: Screen, report: Report, *, brief: bool) -> None:
    meta = report.meta
    machine = meta.get("machine", {})
    ended = {"complete": exit_in_words(meta.get("wait_status")), "standalone": "written by the program itself"}.get(
        str(meta.get("state")), "recording did not finish"
    )
    origin = imported_in_words(meta)
    screen.line("")
    screen.line(("bold", report.title), f"  {origin or f'{report.duration_s:.2f} s, {ended}'}")
    if not brief and machine.get("cpu"):
        nodes = max(1, len(machine.get("numa_nodes", [])))
        screen.paragraph(
            f"{machine.get('cpu', '?')}, {machine.get('cpus', '?')} CPUs, {nodes} NUMA node{'' if nodes == 1 else 's'}, "
            f"Linux {machine.get('kernel', '?')}, {meta.get('started', '?')}, memlens {meta.get('memlens_version', '?')}",
            style="dim",
        )


# ---- findings ------------------------------------------------------------
def _findings(screen: Screen, findings: Sequence[Finding]) -> None:
    screen.line("")
    if not findings:
        screen.line(("bold", "Findings"), "  none")
        return
    screen.line(("bold", "Findings"), f"  {len(findings)}")
    for finding in findings:
        head = f"  {finding.severity} {finding.name}"
        share = (
            f"  [{plain('share', finding.affected_share)} of {finding.affected_of}]"
            if finding.affected_share is not None
            else ""
        )
        screen.line((SEVERITY_STYLE[finding.severity], head), share)
        screen.paragraph(finding.claim, indent=4)
        screen.paragraph(f"→ {finding.remedy}", indent=4, hanging=2, style="cyan")


# ---- sections ------------------------------------------------------------
def headline(result: Result, view: View) -> str:
    """The sentence of a section."""

    def shown(name: str) -> str:
        figure = view.figure(name)
        return plain("text", result.figures.get(name)) if figure is None else of_figure(figure, result.figures)

    return filled(view.headline, result.figures, shown)


def _is_detail(view: View) -> bool:
    """Whether a view has nothing for a terminal: its tables and charts are for the page, and no sentence sums it up."""
    shown = [*(table.role for table in view.tables), *(chart.role for chart in view.charts)]
    return bool(shown) and not view.headline and all(role == "detail" for role in shown)


def _section(
    screen: Screen, result: Result, view: View, rows: int, *, brief: bool, scope: str = "", alone: bool = False
) -> None:
    """`alone`: the section is all that is shown, so that it has every figure, and titles of its tables."""
    screen.line("")
    said = headline(result, view)
    screen.paragraph(said, head=f"{view.title}  ", hanging=2) if said else screen.line(("bold", view.title))
    if scope:
        screen.paragraph(scope, indent=2, hanging=2, style="dim")
    if not said:
        _figures(screen, result, view)
    for chart in view.charts:
        if chart.role != "detail" and (not brief or chart.role == "key"):
            _chart(screen, result, chart)
    for table in view.tables:
        if table.role != "detail" and (not brief or table.role == "key"):
            _table(screen, result, table, rows, alone=alone, titled=alone and len(view.tables) > 1)
    if alone and said:
        screen.line("")
        _figures(screen, result, view, but=figures_in(view.headline))
    if not brief:
        for remark in view.remarks:
            screen.paragraph(remark, indent=2, hanging=2, style="dim")


def _figures(screen: Screen, result: Result, view: View, *, but: Collection[str] = ()) -> None:
    """Figures that the headline does not have, one a line."""
    for figure in view.figures:
        value = result.figures.get(figure.name)
        if figure.name in but or (figure.show == "known" and value is None) or (figure.show == "nonzero" and not value):
            continue
        why = result.figures.get(figure.reason) if figure.reason and value is None else None
        text = f"{figure.label}: {of_figure(figure, result.figures)}{f' ({why})' if why else ''}"
        screen.paragraph(text, indent=2, hanging=2)


# ---- tables ------------------------------------------------------------
def _table(screen: Screen, result: Result, view: Table, rows: int, *, alone: bool, titled: bool) -> None:
    found = table_rows.rows_of(result, view, most=rows)
    if len(found.shown) < view.least_rows:
        if not found.shown and view.empty:
            screen.paragraph(view.empty, indent=2, style="dim")
        return
    columns = table_rows.columns_of(view, found.shown, details=False)
    if alone:
        screen.line("")
    if titled:
        screen.paragraph(view.help, head=f"{view.title}  ", hanging=2)
    laid = []
    for row in found.shown:
        texts = []
        for at, column in enumerate(columns):
            text = cell_text(column, row, result)
            texts.append("  " * int(number_in(row, view.depth) or 0) + text if view.depth and at == 0 else text)
            if column.bar:
                texts.append(bar(share_of(column, row, result.figures) or 0.0))
        laid.append(texts)
    heads: list[Head] = []
    for column in columns:
        head = _head(column, [texts[len(heads)] for texts in laid], least_text=ALONE_TEXT if alone else 0)
        heads.append(replace(head, fit=None) if alone and view.depth and not heads else head)
        if column.bar:
            heads.append(Head("", is_bar=True))
    screen.grid(heads, laid, keys=sum(column.role == "key" for column in columns) if alone else 0)
    rest = [f"{found.more:,} more"] if found.more > 0 else []
    rest += [f"{found.folded:,} below {plain('share', view.fold_below)}"] if found.folded else []
    if rest:
        screen.line(("dim", f"  … and {', '.join(rest)}"))
    for name, why in table_rows.reasons(view, columns, found.shown):
        screen.paragraph(f"– {name}: {why}", indent=2, hanging=2, style="dim")


def _head(column: Column, texts: Sequence[str], *, least_text: int) -> Head:
    if column.kind in NUMBERS or column.of is not None:
        return Head(column.label, is_number=True)
    if all(OF_NUMBERS.fullmatch(text) for text in texts):
        return Head(column.label)
    if column.kind == "code":  # file and line stay, and something of the function
        return Head(
            column.label, fit=fit, least=max((LEAST_FUNCTION + 2 + len(end_of(text)) for text in texts), default=0)
        )
    return Head(column.label, fit=short_function if column.kind == "function" else fit, least=least_text)


def cell_text(column: Column, row: table_rows.Row, result: Result) -> str:
    """A cell; code with its place."""
    if column.kind == "code":
        if column.name.endswith("function"):
            prefix = column.name.removesuffix("function")
            place = {name: row.get(f"{prefix}{name}") for name in ("function", "file", "line", "module", "via")}
        else:
            place = {"function": row.get(column.name)}
        if not any(place.values()):
            return column.null
        extra = "".join(f" ({row[name]})" for name in column.beside if row.get(name))
        return place_text(place, extra=extra + (f" via {place['via']}" if place.get("via") else ""))
    if column.kind == "frames":
        frames = row.get(column.name)
        return " < ".join(map(str, frames[:3] if isinstance(frames, list) else ())) or column.null
    return of_cell(column, row, result.figures)


# ---- charts ------------------------------------------------------------
def _chart(screen: Screen, result: Result, chart: Chart) -> None:
    if chart.kind == "timeline":
        _timeline(screen, result, chart)
    elif chart.kind == "curve":
        for one in chart.series:
            text = curve_text(*table_rows.series_of(result, one), chart)
            if text:
                screen.paragraph(f"{chart.title}: {text}", indent=2, hanging=2)


def _timeline(screen: Screen, result: Result, chart: Chart) -> None:
    lines = [(one.label, *table_rows.series_of(result, one)[:2]) for one in chart.series]
    lines = [line for line in lines if line[1]]
    if not lines:
        return
    end = max([result.figures.get(chart.end) or 0.0 if chart.end else 0.0, *(x[-1] for _, x, _ in lines)])
    if chart.stacked:
        times = lines[0][1]
        sums = [sum(values) for values in zip(*(y for _, _, y in lines), strict=True)]
        width = times[1] - times[0] if len(times) > 1 else end
        rate = [value / width if width else value for value in sums]
        lines = [(chart.y_label or chart.title, times, rate)] if any(sums) else []
    room = max(len(label) for label, _, _ in lines[:MOST_LINES])
    for label, x, y in lines[:MOST_LINES]:
        values = y if chart.stacked else resampled(x, y, end)
        screen.line(
            f"  {label:{room}} ", ("green", spark(values)), f" {plain('s', end)}, at most {plain(chart.y_kind, max(y))}"
        )


def curve_points(values: Sequence[float], most: int = CURVE_POINTS) -> list[int]:
    """Points of a falling curve that describe it: between two of them it falls by at most 1/`most` of its range, but for jumps. The last
    is the first with the lowest value.

    >>> curve_points([0.5, 0.5, 0.3, 0.29, 0.1, 0.1], 2)
    [0, 2, 4]
    """
    fall = values[0] - values[-1]
    wanted = [values[-1] + fall * part / most for part in range(most, -1, -1)]
    picked = (next(at for at, value in enumerate(values) if value <= limit + 1e-12) for limit in wanted)
    return sorted(set(picked))


def curve_text(x: Sequence[float], y: Sequence[float], low: Sequence[float], chart: Chart) -> str:
    """A falling curve as a list of its steps; empty for fewer than two points."""
    if len(y) < 2:
        return ""
    points = curve_points(y)
    parts = []
    for at in points:
        size, value = plain(chart.x_kind, x[at]), between(chart.y_kind, low[at], y[at])
        parts.append(f"from {size} on {value}" if at == points[-1] else f"{size} {value}")
    return ", ".join(parts)


# ---- quality ------------------------------------------------------------
def _quality(screen: Screen, report: Report, *, brief: bool) -> None:
    said = quality_lines(report, brief=brief)
    screen.line("")
    screen.paragraph(said.summary, head="Quality  ", hanging=2, style="dim")
    for note in said.notes:
        screen.paragraph(f"! {note}", indent=2, hanging=2, style="yellow")
    for what, remedy in said.unsupported:
        screen.paragraph(f"! {what}", indent=2, hanging=2, style="yellow")
        screen.paragraph(f"→ {remedy}", indent=4, hanging=2, style="cyan")


def _absences(screen: Screen, report: Report) -> None:
    """What this capture has no data for, by the command that would provide it."""
    by_command: dict[str, list[str]] = {}
    for absence in report.absences:
        by_command.setdefault(absence.provide, []).append(absence.analysis)
    for command, names in by_command.items():
        screen.paragraph(f"not recorded: {', '.join(names)}: {command}", indent=2, hanging=2, style="dim")


DESCRIPTOR = PresenterDescriptor(name="terminal", question="A summary as text, for the terminal", render=show)
