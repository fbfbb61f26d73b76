"""Sections of memory traffic: bytes by code, accesses by object, pages by thread.

Owns which columns these results show and how exact counts, estimates and unknown stacks are worded.
Each function takes a Result and gives a `<section>`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ._charts import esc
from ._markup import (
    cell,
    counted,
    definitions,
    function_markup,
    head_cell,
    json_command,
    module_markup,
    number_cell,
    path_markup,
    percent,
    place_markup,
    share_cell,
    table,
    titled,
    top_rows,
    whole_number,
)
from ._units import addresses_in_words, counted_in_words

if TYPE_CHECKING:
    from ..results import Result

MOST_MATRIX_THREADS = 12


def traffic_section(result: Result) -> str:
    figures = result.figures
    tiles = [
        (
            "Loaded",
            titled("bytes", figures["load_bytes"]) + f"<small>by {whole_number(figures['loads'])} loads</small>",
        ),
        (
            "Stored",
            titled("bytes", figures["store_bytes"]) + f"<small>by {whole_number(figures['stores'])} stores</small>",
        ),
    ]
    if figures["mean_width"] is not None:
        tiles.append(("Mean width", f"{figures['mean_width']:.1f} B<small>of an access</small>"))
    if figures["stack_share"] is not None:
        tiles.append(("Stack", f"{esc(percent(figures['stack_share']))}<small>of the bytes</small>"))
    said = (
        f"Counts of the instructions themselves, {counted_in_words(figures)}. A function has what its own code did, not what it called. "
        "Bytes are those that instructions moved, wherever they came from, not DRAM traffic; "
        f"{addresses_in_words(figures)}."
    )
    named = figures["named_share"]
    if named is not None and named < 0.995:
        said += f" {percent(named)} of the bytes have a function name."
    body = [definitions("tiles", tiles), f'<p class="muted">{esc(said)}</p>']
    body.append(_by_code(result, "by_function", "By function"))
    if any(row["file"] for row in result.tables["by_line"].slice(0, 30).to_pylist()):
        body.append(_by_code(result, "by_line", "By line"))
    side = []
    for name, caption, head, first in (
        ("by_module", "By module", "Module", lambda row: module_markup(row["module"])),
        ("by_thread", "By thread", "Thread", _thread),
        ("by_region", "By region", "Region", lambda row: esc(row["region"] or "outside regions")),
        ("by_process", "By process", "Process", lambda row: esc(row["name"] or row["process"])),
    ):
        rows, total = top_rows(result, name)
        if total < 2 and name != "by_module":
            continue
        cells = [
            [
                head_cell(first(row), "name"),
                number_cell("bytes", row["bytes"]),
                share_cell(row["bytes"], figures["accessed_bytes"]),
            ]
            for row in rows
        ]
        heads = [(head, ""), ("Bytes", "number"), ("Share", "share")]
        side.append(table(caption, heads, cells, total_rows=total, export=json_command("traffic", name)))
    body.append(f'<div class="columns">{"".join(side)}</div>')
    unseen, total = top_rows(result, "unseen")
    if unseen:
        cells = [
            [
                head_cell(esc(row["name"] or "–"), "name"),
                cell(esc(row["cause"].replace("_", " "))),
                cell(function_markup(row["function"]) if row["function"] else "–", "name"),
                number_cell("executions", row["executions"]),
            ]
            for row in unseen
        ]
        heads = [("What", ""), ("Kind", ""), ("Where", ""), ("Times", "number")]
        body.append(table("Not counted", heads, cells, total_rows=total, export=json_command("traffic", "unseen")))
    return f'<section id="traffic"><h2>Memory traffic</h2>{"".join(body)}</section>'


def _thread(row: Mapping[str, Any]) -> str:
    return f"{esc(row['thread'])} {esc(row['name'] or '')}" if row["thread"] else "threads that have ended"


def _by_code(result: Result, name: str, caption: str) -> str:
    rows, total = top_rows(result, name)
    all_bytes = result.figures["accessed_bytes"]
    stack_known = any(row["stack_load_bytes"] is not None for row in rows)
    unseen = any(row["unseen"] for row in rows)
    cells = []
    for row in rows:
        first = (
            [head_cell(function_markup(row["function"])), cell(module_markup(row["module"]), "module wide")]
            if name == "by_function"
            else [
                head_cell(path_markup(row["file"], row["line"]), "path"),
                cell(function_markup(row["function"]), "name"),
            ]
        )
        stack = None if row["stack_load_bytes"] is None else row["stack_load_bytes"] + row["stack_store_bytes"]
        cells.append(
            [
                *first,
                number_cell("bytes", row["bytes"]),
                share_cell(row["bytes"], all_bytes),
                _count(row["loads"]),
                _count(row["stores"]),
                *([_percent(stack, row["bytes"])] if stack_known else []),
                _width(row["mean_width"]),
                *([_count(row["unseen"])] if unseen else []),
            ]
        )
    heads = [
        *([("Function", ""), ("Module", "wide")] if name == "by_function" else [("Line", ""), ("Function", "")]),
        ("Bytes", "number"), ("Share", "share"), ("Loads", "number"), ("Stores", "number"),
        *([("On the stack", "number")] if stack_known else []), ("Width", "number"),
        *([("Not shown", "number")] if unseen else []),
    ]  # fmt: skip
    return table(caption, heads, cells, total_rows=total, export=json_command("traffic", name))


def _count(value: float) -> str:
    return f'<td class="number" data-v="{value}">{whole_number(value)}</td>'


def _width(value: float | None) -> str:
    return f'<td class="number" data-v="{value or -1}">{"–" if value is None else f"{value:.1f} B"}</td>'


def _percent(part: float | None, total: float) -> str:
    if part is None or not total:
        return '<td class="number" data-v="-1">–</td>'
    return f'<td class="number" data-v="{part / total:.6f}">{esc(percent(part / total))}</td>'


def _estimate(row: Mapping[str, Any], name: str) -> str:
    """A number and, when it is an estimate, its standard error."""
    error = row[f"{name}_error"]
    number = titled("bytes", row[name]) if name.endswith("bytes") else whole_number(row[name])
    if error == 0:
        remark = ""
    elif error is None:
        remark = "<small>error not known</small>"
    else:
        share = error / row[name] if row[name] else 0.0
        remark = f"<small>± {esc(percent(min(share, 9.99)))}</small>"
    return f'<td class="number" data-v="{row[name]:.0f}">{number}{remark}</td>'


def accesses_section(result: Result) -> str:
    figures = result.figures
    share = figures["recorded_share"]
    said = (
        "Every access was recorded: numbers are exact."
        if share is not None and share >= 1 and figures.get("shared_out_accesses") is None
        else "Every access was recorded, small objects were sampled: ± is one standard error, from the sample of objects."
        if share is not None and share >= 1
        else f"Estimated from {counted(figures['windows'], 'window')} of consecutive accesses "
        f"({percent(share or 0.0)} of all); ± is one standard error, from how windows differ."
    )
    rows, total = top_rows(result, "by_object")
    all_accesses = figures["object_accesses"]
    cells = [
        [
            head_cell(_object(row)),
            cell(esc(row["kind"] if row["kind"] != "none" else "–")),
            _estimate(row, "accesses"),
            share_cell(row["accesses"], all_accesses),
            _estimate(row, "bytes"),
            _percent(row["stores"], row["accesses"]),
        ]
        for row in rows
    ]
    heads = [
        ("Object", ""),
        ("Kind", ""),
        ("Accesses", "number"),
        ("Share", "share"),
        ("Bytes", "number"),
        ("Stores", "number"),
    ]
    by_object = table("By object", heads, cells, total_rows=total, export=json_command("accesses", "by_object"))
    rows, total = top_rows(result, "by_object_and_function")
    cells = [
        [
            head_cell(function_markup(row["function"])),
            cell(esc(row["object"]), "name"),
            _estimate(row, "accesses"),
            share_cell(row["accesses"], all_accesses),
            _estimate(row, "bytes"),
        ]
        for row in rows
    ]
    heads = [("Function", ""), ("Object", ""), ("Accesses", "number"), ("Share", "share"), ("Bytes", "number")]
    crossed = table(
        "Which function uses which object", heads, cells, total_rows=total,
        export=json_command("accesses", "by_object_and_function"),
    )  # fmt: skip
    return f'<section id="accesses"><h2>Accesses by object</h2><p class="muted">{esc(said)}</p>{by_object}{crossed}</section>'


def _object(row: Mapping[str, Any]) -> str:
    if row["function"] or row["file"]:
        return f"{esc(row['kind'])} of {place_markup(row)}"
    return esc(row["object"])


def page_use_section(result: Result) -> str:
    """Pages by first-touching and using thread; only when several threads ran."""
    figures = result.figures
    others = figures["others_share"] or 0.0
    said = (
        f"{counted(figures['pages'], 'page')} were used; {counted(figures['pages_used_by_others'], 'page')} also by threads "
        f"other than the one that touched them first, with {percent(others)} of all accesses. First touch decides the NUMA node."
    )
    body = [f'<p class="muted">{esc(said)}</p>', _matrix(result)]
    rows, total = top_rows(result, "by_object")
    cells = [
        [
            head_cell(_object(row)),
            number_cell("bytes", row["bytes"]),
            number_cell("bytes", row["bytes_used_by_others"]),
            _count(row["accesses"]),
            share_cell(row["accesses_by_others"], row["accesses"]),
            cell(f"{esc(row['main_first_thread'])} <small>{_touched_in(row)}</small>", "name"),
            number_cell("threads", row["using_threads"]),
        ]
        for row in rows
    ]
    heads = [("Object", ""), ("Pages", "number"), ("Used by others", "number"), ("Accesses", "number"),
             ("By others", "share"), ("First touched by", ""), ("Threads", "number")]  # fmt: skip
    body.append(table("By object", heads, cells, total_rows=total, export=json_command("page_use", "by_object")))
    return f'<section id="page-use"><h2>First touch and use of pages</h2>{"".join(body)}</section>'


def _touched_in(row: Mapping[str, Any]) -> str:
    touch = {"function": row["first_touch_function"], "file": row["first_touch_file"], "line": row["first_touch_line"]}
    return place_markup(touch, one_line=True)


def _matrix(result: Result) -> str:
    rows = result.tables["matrix"].to_pylist()
    threads = sorted({(r["process"], r["first_thread"]) for r in rows} | {(r["process"], r["thread"]) for r in rows})
    processes = {process for process, _ in threads}
    if len(threads) > MOST_MATRIX_THREADS:
        return ""
    accesses = {(r["process"], r["first_thread"], r["thread"]): r["loads"] + r["stores"] for r in rows}
    names = {(r["process"], r["thread"]): r["name"] for r in rows}

    def label(key: tuple[int, int]) -> str:
        process = f"{key[0]}: " if len(processes) > 1 else ""
        return f"{process}{key[1]} {names.get(key) or ''}".strip()

    total = sum(accesses.values())
    cells = [
        [
            head_cell(esc(label(first)), "name nowrap"),
            *(
                share_cell(accesses.get((*first, thread[1])) if first[0] == thread[0] else None, total)
                for thread in threads
            ),
        ]
        for first in threads
    ]
    heads = [("First touched by", ""), *((label(thread), "share") for thread in threads)]
    return table("Accesses: first-touching thread (rows) by using thread (columns)", heads, cells)
