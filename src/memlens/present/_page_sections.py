"""One section of the HTML page for any result: its sentence, charts, tables and definitions, as its view declares them.

Owns how kinds become cells and roles become order: what a view calls a detail is folded away. Must not know an analysis. Which rows and
columns there are is decided in `rows`, text of values in `values`; special drawings are registered in `_drawings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..view import NUMBERS, Column, Table, View, filled
from . import rows as table_rows
from ._charts import esc, shortened
from ._drawings import ROW_DRAWINGS, drawn
from ._markup import (
    MAX_ROWS,
    cell,
    counted,
    definitions,
    function_markup,
    head_cell,
    json_command,
    module_markup,
    path_markup,
    place_markup,
    share_cell,
    table,
)
from .values import is_share, number_in, of_cell, of_figure, plain, share_of

if TYPE_CHECKING:
    from ..results import Result

MAX_FRAMES = 40
"""Frames that an unfolded call stack shows."""
UNKNOWN = "-1e99"
"""Sorts below every number."""


def section(result: Result, view: View, scope: str = "") -> str:
    """`scope`: what a reader must know of a result that did not obey the report's selection."""
    body = [f'<p class="muted">{esc(scope)}</p>'] if scope else []
    sentence = headline(result, view)
    if sentence:
        body.append(f'<p class="headline">{sentence}</p>')
    if view.help:
        body.append(f'<p class="muted">{esc(view.help)}</p>')
    listed = _figures(result, view)
    if listed:
        body.append(listed if not sentence else f"<details><summary>All figures</summary>{listed}</details>")
    body += [drawn(result, chart) for chart in view.charts if chart.role != "detail"]
    body += [_table(result, one) for one in view.tables if one.role != "detail"]
    body += [f'<p class="remark">{esc(remark)}</p>' for remark in view.remarks]
    body += [drawn(result, chart) for chart in view.charts if chart.role == "detail"]
    body += [_folded(result, one) for one in view.tables if one.role == "detail"]
    name = esc(result.name.replace("_", "-"))
    return f'<section id="{name}"><h2>{esc(view.title)}</h2>{"".join(part for part in body if part)}</section>'


def headline(result: Result, view: View) -> str:
    """The sentence of a section, as markup: bytes carry their exact number."""

    def shown(name: str) -> str:
        figure = view.figure(name)
        if figure is None:
            return esc(plain("text", result.figures.get(name)))
        return _exact(figure.kind, result.figures.get(name), of_figure(figure, result.figures))

    return filled(esc(view.headline), result.figures, shown)


def _exact(kind: str, value: object, text: str) -> str:
    if kind in ("bytes", "moved") and isinstance(value, int | float) and value == value:
        return f'<span title="{value:,.0f} bytes">{esc(text)}</span>'
    return esc(text)


def _figures(result: Result, view: View) -> str:
    entries = []
    for figure in view.figures:
        value = result.figures.get(figure.name)
        if (figure.show != "always" and value is None) or (figure.show == "nonzero" and not value):
            continue
        said = _exact(figure.kind, value, of_figure(figure, result.figures))
        why = result.figures.get(figure.reason) if figure.reason else None
        below = f"<small>{esc(why or figure.help)}</small>" if why or figure.help else ""
        entries.append((esc(figure.label), said + below))
    return definitions("tiles", entries) if entries else ""


# ---- tables ------------------------------------------------------------
def _folded(result: Result, view: Table) -> str:
    made = _table(result, view)
    if not made:
        return ""
    number = result.tables[view.source].num_rows
    return f"<details><summary>{esc(view.title)} ({counted(number, 'row')})</summary>{made}</details>"


def _table(result: Result, view: Table) -> str:
    found = table_rows.rows_of(result, view, most=MAX_ROWS)
    caption = esc(view.title) + (f' <span class="muted">{esc(view.help)}</span>' if view.help else "")
    if len(found.shown) < view.least_rows:
        return table(caption, [], [], empty=view.empty) if view.empty and not found.shown else ""
    columns = table_rows.columns_of(view, found.shown, details=True)
    label, draw = ROW_DRAWINGS.get(view.drawing, ("", None))
    heads = [(_head(column.label), _classes(column)) for column in columns] + ([(label, "")] if draw else [])
    cells = []
    for row in found.shown:
        made = [_marked(column, _cell(column, row, result)) for column in columns]
        if view.depth:
            made[0] = made[0].replace(
                'class="', f'style="padding-left:{1.4 * int(number_in(row, view.depth) or 0):g}em" class="', 1
            )
        cells.append([*made, *([cell(draw(row, result.figures))] if draw else [])])
    more = found.more + found.folded
    said = table(
        caption, heads, cells, total_rows=len(cells) + more, export=json_command(result.name, view.source), kind="dense",
        all_columns=f"{result.name}-{view.name}-all" if any(column.role == "detail" for column in columns) else "",
    )  # fmt: skip
    why = "".join(
        f"<li>{esc(name)}: {esc(reason)}</li>" for name, reason in table_rows.reasons(view, columns, found.shown)
    )
    return said + (f'<ul class="remark">{why}</ul>' if why else "")


def _head(label: str) -> str:
    """Long words may be broken: a narrow column would be as wide as its head.

    >>> _head("allocations").replace("\\u00ad", "~"), _head("share")
    ('alloca~tions', 'share')
    """
    return " ".join(f"{word[:6]}\u00ad{word[6:]}" if len(word) > 9 else word for word in label.split(" "))


def _class(column: Column) -> str:
    if column.bar:
        return "share"
    return "number" if column.kind in NUMBERS or is_share(column) else ""


def _classes(column: Column) -> str:
    """Those of a head; details are shown on request."""
    return f"{_class(column)} detail".strip() if column.role == "detail" else _class(column)


def _marked(column: Column, markup: str) -> str:
    """A cell, marked where its column is a detail."""
    return markup.replace('class="', 'class="detail ', 1) if column.role == "detail" else markup


def _cell(column: Column, row: Mapping[str, object], result: Result) -> str:
    figures = result.figures
    if column.bar:
        return share_cell(share_of(column, row, figures), 1.0)
    markup = _markup_of(column, row)
    if markup is None:
        text = of_cell(column, row, figures)
        value = share_of(column, row, figures) if is_share(column) else row.get(column.name)
        markup = _exact(column.kind if column.of is None else "share", value, text)
        if _class(column) == "number":
            number = f"{value:.9g}" if isinstance(value, int | float) and value == value else UNKNOWN
            tag = "th" if column.role == "key" else "td"
            scope = ' scope="row"' if tag == "th" else ""
            return f'<{tag}{scope} class="number" data-v="{number}">{markup}</{tag}>'
    return head_cell(markup) if column.role == "key" else cell(markup, "name" if column.kind == "code" else "nowrap")


def _markup_of(column: Column, row: Mapping[str, object]) -> str | None:
    """Cells whose markup is more than a text; None for the others."""
    value = row.get(column.name)
    if column.kind == "code":
        prefix = column.name.removesuffix("function") if column.name.endswith("function") else None
        names = ("function", "file", "line", "module", "via")
        place = {"function": value} if prefix is None else {name: row.get(f"{prefix}{name}") for name in names}
        beside = "".join(f' <small class="muted">{esc(row[name])}</small>' for name in column.beside if row.get(name))
        return place_markup(place) + beside if any(place.values()) else esc(column.null)
    if value is None or value == "":
        return None
    if column.kind == "frames":
        return _frames([str(frame) for frame in value] if isinstance(value, list) else [])
    if column.kind in ("function", "object", "region") and not column.beside:
        return function_markup(str(value))
    if column.kind == "module":
        return module_markup(str(value))
    return path_markup(str(value)) if column.kind == "file" else None


def _frames(frames: list[str]) -> str:
    if not frames:
        return "–"
    shown = "".join(f"<li>{esc(shortened(name, 300))}</li>" for name in frames[:MAX_FRAMES])
    more = f"<li>… {len(frames) - MAX_FRAMES:,} more</li>" if len(frames) > MAX_FRAMES else ""
    return f'<details class="frames"><summary>{counted(len(frames), "frame")}</summary><ol>{shown}{more}</ol></details>'
