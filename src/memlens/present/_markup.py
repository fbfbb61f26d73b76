"""Building blocks of the HTML page: values as text, table cells, tables, swatches.

Owns escaping at the level of a cell or an attribute and the 30-row limit. Knows rows and
columns, not what they mean. Arguments called `markup` or `caption` are HTML already;
everything else is text and is escaped here.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence

from ._charts import esc, shortened
from ._units import human_figure

MAX_ROWS = 30
IDENTIFIERS = frozenset({"process", "thread", "pid", "node", "line"})
"""Numbers that name something: no thousands separators."""
FAULT_CLASSES = {
    "first": "a page of this process that was not there before",
    "again": "given back (MADV_DONTNEED, reclaim) and touched anew",
    "upgrade": "a readable page becomes writable (the zero page is written)",
    "copy": "a write to a page that a fork shares, or of a private file mapping",
    "file": "the content comes from a file or from shared memory",
    "hint": "NUMA balancing asks who uses the page",
    "major": "waited for the disk",
    "placed": "placed by the kernel inside a system call",
}
HATCHES = {
    "again": '<path d="M-1 1l2-2M0 6l6-6M5 7l2-2"/>',
    "upgrade": '<path d="M-1 5l2 2M0 0l6 6M5-1l2 2"/>',
    "copy": '<path d="M0 0l6 6M0 6l6-6"/>',
    "file": '<path d="M0 3h6"/>',
    "hint": '<path d="M3 0v6"/>',
    "placed": '<path d="M3 0v6M0 3h6"/>',
}
"""Lines over a class's colour, so that classes differ without colour too; `first` and `major` are plain."""


# ---- values ------------------------------------------------------------
def value_text(name: str, value: object) -> str:
    """A value with the unit that its name carries, as plain text.

    >>> value_text("bytes", 2048), value_text("thread", 13233), value_text("busy_threads", [1234, 5])
    ('2.0 KiB', '13233', '1234, 5')
    """
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        # Lists of whole numbers are identifiers; separators inside would read as more entries.
        return ", ".join(str(one) if isinstance(one, int) else value_text(name, one) for one in value) or "none"
    if not isinstance(value, int | float):
        return str(value)
    if value != value or value in (float("inf"), float("-inf")):
        return "–"
    _, per, unit = name.partition("_per_")
    if per and unit != "s":
        return f"{value:,.0f}/{unit.replace('_', ' ').replace('cpu', 'CPU')}"
    if name.endswith("_s") and 0 < abs(value) < 0.1 and not per:
        return f"{1000 * value:.3g} ms"
    if name in IDENTIFIERS or (isinstance(value, int) and name.endswith(("_id", "_ids"))):
        return str(value)
    return human_figure(f"_{name}" if name in ("bytes", "share") else name, value)


def words(name: str) -> str:
    """A figure's name without its unit suffix.

    >>> words("peak_rss_bytes"), words("faults_per_cpu_s"), words("duration_s"), words("bytes")
    ('peak RSS', 'faults', 'duration', 'bytes')
    """
    stem = name.partition("_per_")[0]
    for suffix in ("_bytes", "_s"):
        stem = stem.removesuffix(suffix)
    upper = {"rss": "RSS", "pss": "PSS", "numa": "NUMA", "cpu": "CPU"}
    return " ".join(upper.get(word, word) for word in stem.split("_"))


def titled(name: str, value: object) -> str:
    """A value; bytes carry their exact number as a tooltip."""
    shown = esc(value_text(name, value))
    if name.endswith("bytes") and isinstance(value, int | float) and value == value:
        return f'<span title="{value:,.0f} bytes">{shown}</span>'
    return shown


def percent(share: float) -> str:
    """
    >>> percent(0.5), percent(0.00001), percent(0), percent(0.9999)
    ('50.0 %', '<0.1 %', '0 %', '>99.9 %')
    """
    if share == 0 or share == 1:
        return f"{share:.0%}".replace("%", " %")
    return "<0.1 %" if 0 < share < 0.001 else ">99.9 %" if 0.999 < share < 1 else f"{100 * share:.1f} %"


def in_double_quotes(text: str) -> str:
    """Text for a shell, in double quotes.

    >>> print(in_double_quotes('SELECT "a", $1'))
    "SELECT \\"a\\", \\$1"
    """
    for character in '\\"$`':
        text = text.replace(character, "\\" + character)
    return f'"{text}"'


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """
    >>> counted(1, "process", "processes"), counted(2, "finding")
    ('1 process', '2 findings')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


# ---- table cells ------------------------------------------------------------
def head_cell(markup: str, kind: str = "name") -> str:
    return f'<th scope="row" class="{kind}">{markup}</th>'


def cell(markup: str, kind: str = "") -> str:
    return f'<td class="{kind}">{markup}</td>' if kind else f"<td>{markup}</td>"


def number_cell(name: str, value: object) -> str:
    sort_value = value if isinstance(value, int | float) and value == value else -1
    return f'<td class="number" data-v="{sort_value}">{titled(name, value)}</td>'


def share_cell(part: float | None, total: float | None) -> str:
    """Percent and bar; a dash where there is no whole to be a part of."""
    if part is None or not total or total <= 0:
        return '<td class="share" data-v="-1"><span class="percent">–</span></td>'
    share = min(max(part / total, 0.0), 1.0)
    return (
        f'<td class="share" data-v="{share:.6f}"><span class="percent">{esc(percent(share))}</span>'
        f'<span class="track"><i style="width:{100 * share:.2f}%"></i></span></td>'
    )


def function_markup(name: str | None) -> str:
    if not name:
        return '<span class="muted">(unnamed)</span>'
    return (
        f'<span class="clamp" title="{esc(shortened(name))}">{esc(shortened(name, 300))}</span>'
        if len(name) > 90
        else esc(name)
    )


def place_markup(row: Mapping[str, object], *, one_line: bool = False) -> str:
    """A function, and under it (or beside it) its file and line, or its module where no line is known."""
    module, file = str(row.get("module") or ""), str(row.get("file") or "")
    if file:
        text = f"{posixpath.basename(file)}:{row.get('line') or '?'}"
        where = f'<code title="{esc(file)}">{esc(text)}</code>'
    elif module:
        where = f'<code title="{esc(module)}">[{esc((posixpath.basename(module) or module).strip("[]"))}]</code>'
    else:
        where = ""
    function = function_markup(str(row.get("function") or ""))
    if row.get("via"):
        where += f' <span class="muted">via {esc(shortened(str(row["via"]), 60))}</span>'
    return f"{function} {where}" if one_line or not where else f"{function}<small>{where}</small>"


def path_markup(path: str | None, line: int | None = None) -> str:
    """The directory quieter than the name; normalised, with the recorded path as tooltip."""
    if not path:
        return '<span class="muted">–</span>'
    directory, name = posixpath.split(posixpath.normpath(path))
    directory = directory + "/" if directory and not directory.endswith("/") else directory
    suffix = f":{line}" if line else ""
    shown = f'<span class="dir">{esc(directory)}</span>{esc(name)}{suffix}'
    return f'<code title="{esc(path)}{suffix}">{shown}</code>'


def module_markup(path: str | None) -> str:
    """The last component; the whole path as tooltip."""
    return f'<code title="{esc(path)}">{esc(posixpath.basename(path) or path)}</code>' if path else "–"


def table(
    caption: str,
    heads: Sequence[tuple[str, str]],
    rows: Sequence[Sequence[str]],
    *,
    total_rows: int | None = None,
    export: str = "",
    empty: str = "Nothing to show.",
    kind: str = "",
    all_columns: str = "",
) -> str:
    """A captioned table of ready cells, with a sentence when it is cut or empty.

    `heads` are (label, class of the column); `caption` is markup; `kind` is a class of the table. `all_columns` is the id of the box that
    shows cells of class `detail`; without it there are none.
    """
    if not rows:
        return f'<div class="block"><h3>{caption}</h3><p class="muted">{esc(empty)}</p></div>'
    head = "".join(
        f'<th scope="col" class="{kind}">{esc(label)}</th>' if kind else f'<th scope="col">{esc(label)}</th>'
        for label, kind in heads
    )
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    hidden = (total_rows or len(rows)) - len(rows)
    more = f'<p class="more">{hidden:,} more; see: <code>{esc(export)}</code></p>' if hidden > 0 else ""
    classes = " ".join(name for name in ("sortable" if len(rows) > 1 else "", kind) if name)
    sortable = f' class="{classes}"' if classes else ""
    box = esc(re.sub(r"[^a-z0-9]+", "-", all_columns.lower()))
    choice = f'<input type="checkbox" class="all" id="{box}"><label for="{box}">all columns</label>' if box else ""
    return (
        f'<div class="block">{choice}<div class="table"><table{sortable}><caption>{caption}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}</div>"
    )


def json_command(result_name: str, table_name: str) -> str:
    """Shows a table that only a result holds, with all its rows."""
    return f"memlens report CAPTURE --json | jq .results.{result_name}.tables.{table_name}"


def definitions(kind: str, entries: Iterable[tuple[str, str]]) -> str:
    return f'<dl class="{kind}">' + "".join(f"<div><dt>{dt}</dt><dd>{dd}</dd></div>" for dt, dd in entries) + "</dl>"


# ---- legends ------------------------------------------------------------
def line_swatch(kind: str) -> str:
    line = f'<line class="{kind}" x1="0" x2="26" y1="6" y2="6"/>'
    return f'<svg width="26" height="12" aria-hidden="true">{line}</svg>'


def class_fill(name: str) -> str:
    return f"url(#fill-{name})" if name in FAULT_CLASSES else "url(#fill-other)"


def fill_patterns() -> str:
    """The fills of fault classes, once a page; charts and legends refer to them."""
    patterns = "".join(
        f'<pattern id="fill-{name}" width="6" height="6" patternUnits="userSpaceOnUse">'
        f'<rect width="6" height="6" style="fill:var(--{name})"/>'
        f'<g class="hatch">{HATCHES.get(name, "")}</g></pattern>'
        for name in (*FAULT_CLASSES, "other")
    )
    # What is not known is lines without a colour of its own.
    patterns += (
        '<pattern id="fill-unknown" width="6" height="6" patternUnits="userSpaceOnUse">'
        '<path d="M-1 1l2-2M0 6l6-6M5 7l2-2" style="stroke:var(--muted)"/></pattern>'
    )
    return f'<svg class="defs" aria-hidden="true"><defs>{patterns}</defs></svg>'


def swatch(name: str) -> str:
    box = f'<rect width="13" height="13" fill="{class_fill(name)}"/>'
    return f'<svg class="swatch" width="13" height="13" aria-hidden="true">{box}</svg>'
