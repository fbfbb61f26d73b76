"""Sections of the cache model and of lines that threads share.

Owns which columns the results `caches` and `sharing` show, how a model's geometry is worded, and the small maps of a line's bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
    share_cell,
    table,
    titled,
    top_rows,
    whole_number,
)

if TYPE_CHECKING:
    from ..results import Result

BYTE_MAP_PX = 128
LEAST_SHARE = 0.005
"""Rows with less of the misses of every level are left to the table behind the page."""
FEW_HAND_OVERS = 0.001
"""Of all accesses: start-up and end of threads share lines in every program."""


def _bounds(row: Mapping[str, Any], level: int) -> str:
    """Misses of a level in windows: the least and the greatest share of the row's accesses that they can be."""
    low, high = row[f"miss_ratio_{level}"], row[f"miss_ratio_high_{level}"]
    least, most = percent(low), percent(high)
    shown = most if least == most else f"{least} to {most}"
    return f'<td class="number" data-v="{high}">{esc(shown)}</td>'


def _count(value: float | None, ratio: float | None = None) -> str:
    below = "" if ratio is None else f"<small>{esc(percent(ratio))}</small>"
    shown = "–" if value is None else whole_number(value)
    return f'<td class="number" data-v="{-1 if value is None else value}">{shown}{below}</td>'


# ---- caches ------------------------------------------------------------
def geometry_in_words(figures: Mapping[str, Any], meta: Mapping[str, Any]) -> str:
    """Where the modelled sizes come from.

    >>> levels = [{"bytes": 32768, "ways": 8}]
    >>> caches = [{"type": "data", "bytes": 32768, "ways": 8}]
    >>> geometry_in_words({"levels": levels}, {"machine": {"caches": caches}})
    'sizes and ways are those that the kernel of the recorded machine gave'
    >>> geometry_in_words({"levels": levels}, {"machine": {"caches": [{"type": "data", "bytes": 49152, "ways": 12}]}})
    'sizes and ways are not those of the recorded machine: they were given'
    """
    if figures.get("machine"):
        return (
            f"sizes and ways are those of {figures['machine']} ({figures['machine_description']}), which was asked for"
        )
    used = [(level["bytes"], level["ways"]) for level in figures["levels"]]
    caches = (meta.get("machine") or {}).get("caches") or []
    known = [(one["bytes"], one["ways"]) for one in caches if one["type"] != "instruction"]
    if not known:
        return "the capture does not know its machine's caches: sizes and ways are usual ones, or were given"
    if all(one in known for one in used):
        return "sizes and ways are those that the kernel of the recorded machine gave"
    return "sizes and ways are not those of the recorded machine: they were given"


def caches_section(result: Result, meta: Mapping[str, Any]) -> str:
    figures = result.figures
    if not figures["accesses"]:
        why = '<p class="muted">No address of an access was recorded, so nothing was modelled.</p>'
        return f'<section id="caches"><h2>Cache model</h2>{why}</section>'
    said = [
        f"A model, not a measurement: LRU caches and TLBs with {counted(figures['cores'], 'core')}, one for each thread; "
        f"{geometry_in_words(figures, meta)}. Misses count accesses: one that crosses a line and misses both counts once."
    ]
    # The first note repeats that this is a model; the others say what it did not see.
    said += [note for note in result.quality.notes if "cache model" in note or "caches of the model" in note]
    body = [f'<p class="muted">{esc(" ".join(said))}</p>', _levels(figures)]
    for name, caption in (
        ("by_function", "Misses by function"),
        ("by_line", "Misses by line"),
        ("by_object", "Misses by object"),
        ("by_function_and_object", "Which function misses on which object"),
    ):
        if name in result.tables and (name != "by_line" or _knows_lines(result)):
            body.append(_misses(result, name, caption))
    return f'<section id="caches"><h2>Cache model</h2>{"".join(body)}</section>'


def _knows_lines(result: Result) -> bool:
    """Without debug information a table of lines says no more than that of functions."""
    return any(file for file in result.tables["by_line"].column("file").to_pylist())


def _levels(figures: Mapping[str, Any]) -> str:
    """Caches and TLBs, nearest first: what reaches each, and what it lets through."""
    accesses, unknown = figures["accesses"], figures["unknown"]
    prefetched = any(level["prefetches"] for level in figures["levels"])
    cells = []
    if unknown:
        cells.append(
            [
                head_cell("unknown", "nowrap"),
                _geometry_cell("first to a line in its window", "which level has it is not known"),
                _count(unknown), _count(None), _count(None), share_cell(unknown, accesses), _count(None), _count(None),
                *([_count(None)] if prefetched else []),
            ]
        )  # fmt: skip
    reached = accesses - unknown
    for level in figures["levels"]:
        misses = level["misses"]
        ways = f"{level['ways']} ways" if level["ways"] else "fully associative"
        cells.append(
            [
                head_cell(esc(level["name"]), "nowrap"),
                _geometry_cell(titled("bytes", level["bytes"]), f"{ways}, {'shared' if level['shared'] else 'of each core'}"),
                *_passed(reached, misses, accesses),
                _count(level["write_backs"]),
                _count(level["invalidations"]),
                *([_count(level["prefetches"], _ratio(level["useful_prefetches"], level["prefetches"]))] if prefetched else []),
            ]
        )  # fmt: skip
        reached = misses
    reached = accesses - figures["tlb_unknown"]
    for tlb in figures["tlbs"]:
        cells.append(
            [
                head_cell(esc(tlb["name"]), "nowrap"),
                _geometry_cell(f"{tlb['entries']:,} entries", "of each core; sizes are usual ones"),
                *_passed(reached, tlb["misses"], accesses),
                _count(None),
                _count(None),
                *([_count(None)] if prefetched else []),
            ]
        )  # fmt: skip
        reached = tlb["misses"]
    heads = [
        ("Level", ""), ("Geometry", ""), ("Accesses that reach it", "number"), ("Hits", "number"), ("Misses", "number"),
        ("Misses of all accesses", "share"), ("Written back", "number"), ("Taken away", "number"),
        *([("Prefetched, useful", "number")] if prefetched else []),
    ]  # fmt: skip
    what = (
        "below hits and misses: of what reaches the level; written back: changed lines that left; taken away: by another core's "
        "write or because a lower level lost the line"
    )
    return table(f'Levels <span class="muted">{esc(what)}</span>', heads, cells, kind="dense fitted")


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _geometry_cell(markup: str, remark: str) -> str:
    return cell(f"{markup}<small>{esc(remark)}</small>")


def _passed(reached: int, misses: int, accesses: int) -> list[str]:
    hits = reached - misses
    return [
        _count(reached),
        _count(hits, _ratio(hits, reached)),
        _count(misses, _ratio(misses, reached)),
        share_cell(misses, accesses),
    ]


def _misses(result: Result, name: str, caption: str) -> str:
    figures = result.figures
    levels, tlbs = figures["levels"], figures["tlbs"]
    rows, total = top_rows(result, name)
    last = len(levels)
    last_misses = levels[-1]["misses"]
    crossed = name == "by_function_and_object"
    cells = []
    for row in rows:
        most = [
            (row[f"misses_{at}"] + row["unknown"], level["misses"] + figures["unknown"])
            for at, level in enumerate(levels, 1)
        ]
        if not any(mine > LEAST_SHARE * of_all for mine, of_all in most):
            continue
        cells.append(
            [
                *_row_names(row, name),
                _count(row["accesses"]),
                *([_count(row["unknown"], _ratio(row["unknown"], row["accesses"]))] if figures["unknown"] else []),
                *(_bounds(row, at) if figures["unknown"] else _count(row[f"misses_{at}"], _ratio(row[f"misses_{at}"], row["accesses"]))
                  for at in range(1, last + 1)),
                *(() if figures["unknown"] else (share_cell(row[f"misses_{last}"], last_misses),)),
                *(() if crossed else (_count(row[f"tlb_misses_{at}"], _ratio(row[f"tlb_misses_{at}"], row["accesses"]))
                                      for at in range(1, len(tlbs) + 1))),
            ]
        )  # fmt: skip
    first = {"by_object": ["Object"], "by_line": ["Line"], "by_function_and_object": ["Function", "Object"]}
    heads = [
        *((label, "") for label in first.get(name, ["Function"])), ("Accesses", "number"),
        *([("Unknown", "number")] if figures["unknown"] else []),
        *((f"{level['name']} misses", "number") for level in levels),
        *(() if figures["unknown"] else ((f"Of all {levels[-1]['name']} misses", "share"),)),
        *(() if crossed else ((f"{tlb['name']} misses", "number") for tlb in tlbs)),
    ]  # fmt: skip
    return table(
        caption, heads, cells, total_rows=max(total, len(cells)), export=json_command("caches", name), kind="dense fitted",
        empty="Nothing missed for certain." if figures["unknown"] else "Nothing missed.",
    )  # fmt: skip


def _row_names(row: Mapping[str, Any], name: str) -> list[str]:
    if name == "by_line":
        return [
            head_cell(
                f"{path_markup(row['file'], row['line'])}<small>{function_markup(row['function'])}</small>", "path"
            )
        ]
    cells = []
    if name != "by_object":
        cells.append(head_cell(f"{function_markup(row['function'])}<small>{module_markup(row['module'])}</small>"))
    if name != "by_function":
        markup = object_markup(row["object"])
        cells.append(cell(markup, "name") if cells else head_cell(markup))
    return cells


def object_markup(name: str | None) -> str:
    return function_markup(name) if name else '<span class="muted">(no known object)</span>'


# ---- sharing ------------------------------------------------------------
def sharing_section(result: Result) -> str:
    figures = result.figures
    by_kind = {kind: figures[f"{kind}_sharing_hand_overs"] for kind in ("false", "true")}
    hand_overs = sum(by_kind.values())
    tiles = [
        (
            f"{'Falsely' if kind == 'false' else 'Truly'} shared",
            f"{counted(figures[f'{kind}_sharing_lines'], 'line')}<small>{whole_number(by_kind[kind])} hand-overs</small>",
        )
        for kind in ("false", "true")
    ]
    tiles.append(
        (
            "Hand-overs",
            f"{esc(percent(min(1.0, hand_overs / figures['accesses']) if figures['accesses'] else 0.0))}"
            "<small>of the recorded accesses</small>",
        )
    )
    said = (
        f"Lines of {figures['line_bytes']} B that {counted(figures['threads'], 'thread')} share and at least one writes. A hand-over is an access that finds "
        "the line last written, or for a write last used, by the other thread: on hardware the line moves between cores. True: a byte "
        "that one writes is used by the other. False: only the line is shared, and keeping the data apart ends it."
    )
    notes = [note for note in result.quality.notes if "haring" in note or "shared lines" in note]
    if any("windows only" in note for note in notes):
        notes.append(
            "Windows of two threads seldom overlap: how often both use the line says more than its hand-overs."
        )
    elif hand_overs <= FEW_HAND_OVERS * figures["accesses"]:
        said += " There are few: threads that start and end share some lines in every program."
    said += "".join(f" {note}" for note in notes)
    body = [definitions("tiles", tiles), f'<p class="muted">{esc(said)}</p>']
    body += [_shared_objects(result, hand_overs), _shared_lines(result, hand_overs)]
    return f'<section id="sharing"><h2>Shared lines</h2>{"".join(body)}</section>'


def _shared_objects(result: Result, hand_overs: int) -> str:
    rows, total = top_rows(result, "by_object")
    cells = [
        [
            head_cell(object_markup(row["object"])),
            cell(esc(row["kind"])),
            number_cell("lines", row["lines"]),
            number_cell("threads", row["threads"]),
            _count(row["hand_overs"]),
            share_cell(row["hand_overs"], hand_overs),
        ]
        for row in rows
    ]
    heads = [
        ("Object", ""),
        ("Sharing", ""),
        ("Lines", "number"),
        ("Threads", "number"),
        ("Hand-overs", "number"),
        ("Share", "share"),
    ]
    return table("By object", heads, cells, total_rows=total, export=json_command("sharing", "by_object"), kind="dense fitted",
                 empty="No line is shared and written.")  # fmt: skip


def _shared_lines(result: Result, hand_overs: int) -> str:
    rows, total = top_rows(result, "lines")
    line_bytes = result.figures["line_bytes"]
    cells = [
        [
            head_cell(f"{object_markup(row['object'])}<small>{row['line']:#x}</small>"),
            cell(esc(row["kind"])),
            _count(row["hand_overs"]),
            share_cell(row["hand_overs"], hand_overs),
            cell(f"{_thread_use(row, '')}<br>{_thread_use(row, 'other_')}", "uses"),
            cell(byte_map(row, line_bytes) + _fields(row)),
        ]
        for row in rows
    ]
    heads = [("Object and line", ""), ("Sharing", ""), ("Hand-overs", "number"), ("Share", "share"), ("Threads", ""),
             ("Bytes that each writes", "")]  # fmt: skip
    what = f"the {line_bytes} bytes of a line from left to right, a row for each thread; framed: written by one and used by the other"
    return table(f'By line and pair of threads <span class="muted">{esc(what)}</span>', heads, cells, total_rows=total,
                 export=json_command("sharing", "lines"), kind="dense fitted", empty="No line is shared and written.")  # fmt: skip


def _fields(row: Mapping[str, Any]) -> str:
    """What lies in the bytes, a line for each thread; nothing where the type is not known."""
    told = [row[f"{name}fields"] for name in ("", "other_")]
    return f"<small>{'<br>'.join(esc(one or '–') for one in told)}</small>" if any(told) else ""


def _thread_use(row: Mapping[str, Any], prefix: str) -> str:
    thread = row["other_thread"] if prefix else row["thread"]
    return f"{esc(thread)}: {whole_number(row[f'{prefix}reads'])} reads, {whole_number(row[f'{prefix}writes'])} writes"


def byte_ranges(offsets: str) -> list[tuple[int, int]]:
    """First and last byte of each range.

    >>> byte_ranges("0-7, 12"), byte_ranges("")
    ([(0, 7), (12, 12)], [])
    """
    return [(int(first), int(last or first)) for first, last in re.findall(r"(\d+)(?:-(\d+))?", offsets)]


def byte_map(row: Mapping[str, Any], line_bytes: int) -> str:
    """A line as a strip: the bytes that each of two threads writes, and those that both use."""
    scale = BYTE_MAP_PX / line_bytes

    def boxes(offsets: str, kind: str, y: int, height: int) -> str:
        return "".join(
            f'<rect class="{kind}" x="{scale * first:g}" width="{scale * (last - first + 1):g}" y="{y}" height="{height}"/>'
            for first, last in byte_ranges(offsets)
        )

    said = _written(row)
    return (
        f'<svg class="bytes" width="{BYTE_MAP_PX}" height="19" role="img" aria-label="{esc("; ".join(said))}">'
        f'<rect class="cold" width="{BYTE_MAP_PX}" height="8"/><rect class="cold" width="{BYTE_MAP_PX}" height="8" y="11"/>'
        f"{boxes(row['offsets'], 'bar', 0, 8)}{boxes(row['other_offsets'], 'bar', 11, 8)}{boxes(row['common_offsets'], 'common', 0, 19)}"
        f"</svg><small>{'<br>'.join(esc(one) for one in said)}</small>"
    )


def _written(row: Mapping[str, Any]) -> Sequence[str]:
    return [f"{row['thread']}: {row['offsets'] or 'none'}", f"{row['other_thread']}: {row['other_offsets'] or 'none'}"]
