"""Sections of objects and regions: what the program allocated and used, and what its own regions cost.

Owns which columns these results show and how estimates, whole pages and unknown values are worded.
Each function takes a Result and gives a `<section>`; what is missing or empty leaves a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._charts import Series, esc, icicle, moment, shortened, step_chart
from ._markup import (
    cell,
    counted,
    definitions,
    duration_cell,
    export_command,
    function_markup,
    head_cell,
    json_command,
    line_swatch,
    number_cell,
    page_swatch,
    pages_cell,
    percent_cell,
    place_markup,
    table,
    time_cell,
    titled,
    top_rows,
    whole_number,
)
from ._units import human_bytes, plus_minus, two_digits

if TYPE_CHECKING:
    from ..results import Result

MAX_STACK_FRAMES = 40
"""Frames that an unfolded call stack of the leaks shows."""
MAX_BOXES = 700
MIN_BOX_PERCENT = 0.2
"""Allocation stacks are many and deep: boxes too narrow to see would only make the page tall."""
OTHER_CURVE_POINTS = 300
"""Points of a curve that is folded away: the page holds one for each of the largest processes."""
PAGES_ARE_WHOLE = (
    "Touched and never touched are whole pages, seen by their page faults. Recycled pages were touched before the "
    "object was born, by what lay there then: whether the object used them too is not known."
)


# ---- objects ------------------------------------------------------------
def objects_section(
    result: Result, meta: Mapping[str, Any], processes: Mapping[int, Mapping[str, Any]], *, end_s: float
) -> str:
    """`processes` are rows with pid, name and end_s by process number, as far as they are known."""
    body = [definitions("tiles", _key_figures(result, processes))]
    options = (meta.get("collectors") or {}).get("alloc") or {}
    sampled = bool(result.figures.get("allocations_error") or result.figures.get("allocated_bytes_error"))
    said = ["Bytes are those the program asked for."]
    if sampled:
        said.append(
            f"{_sampling(result.figures['sample_bytes'], options.get('large_bytes'))}: "
            "what is marked about or sampled is an estimate."
        )
    said.append(
        PAGES_ARE_WHOLE
        if _touches_known(result)
        else "Which pages were touched is not known: no recorded object has a whole page."
        if "faults" in (meta.get("collectors") or {})
        else "Which pages were touched is not known: page faults were not recorded."
    )
    body.append(f'<p class="muted">{esc(" ".join(said))}</p>')
    body.append(_curves(result, processes, end_s=end_s))
    body.append(_site_trees(result, sampled=sampled))
    body.append(_by_site(result))
    body.append(_largest(result))
    body.append(_leaks(result, processes))
    return f'<section id="objects"><h2>Objects</h2>{"".join(body)}</section>'


def _sampling(sample_bytes: int, large_bytes: int | None) -> str:
    smaller = f"Objects below {human_bytes(large_bytes)}" if large_bytes else "Small objects"
    return f"{smaller} are sampled, one in {human_bytes(sample_bytes)} of allocations"


def _touches_known(result: Result) -> bool:
    return result.figures.get("never_touched_bytes") is not None


def about(markup: str, *, sampled: bool) -> str:
    return f'<span class="about">about</span> {markup}' if sampled else markup


def process_words(number: int | None, processes: Mapping[int, Mapping[str, Any]]) -> str:
    """A process as people know it, as plain text."""
    row = processes.get(number) if number is not None else None
    if row is None:
        return f"process number {number}"
    return f"{row.get('name') or '?'} ({row.get('pid', '?')})"


def _key_figures(result: Result, processes: Mapping[int, Mapping[str, Any]]) -> list[tuple[str, str]]:
    figures = result.figures
    tiles = []

    def is_estimate(name: str) -> bool:
        return bool(figures.get(name) and figures.get(f"{name}_error"))

    def tile(label: str, markup: str, remark: str, *, estimated: bool = False) -> None:
        tiles.append((esc(label), about(markup, sampled=estimated) + f"<small>{esc(remark)}</small>"))

    peak, at = figures.get("peak_heap_bytes") or 0, figures.get("peak_heap_s")
    several = (figures.get("processes") or 0) > 1
    remark = "no heap object was seen" if not peak else f"at {moment(at, at)}" if at is not None else ""
    remark += plus_minus(peak, figures.get("peak_heap_bytes_error"))
    if peak and several:
        remark += f", {process_words(figures.get('peak_heap_process'), processes)}"
    tile("Peak heap", titled("bytes", peak), remark, estimated=is_estimate("peak_heap_bytes"))
    if figures.get("peak_mmap_bytes"):
        tile("Peak mmap", titled("bytes", figures["peak_mmap_bytes"]), "mapped by the program, one process")
    allocations, temporary = figures.get("allocations") or 0, figures.get("temporary_allocations")
    share = ""
    if allocations and temporary is not None:
        share = f", {temporary / allocations:.0%} temporary".replace("%", " %")
    estimated = is_estimate("allocations")
    shown = whole_number(two_digits(allocations) if estimated else allocations)
    error = plus_minus(allocations, figures.get("allocations_error"))
    tile("Allocations", shown, f"of the heap{share}{error}", estimated=estimated)
    allocated = figures.get("allocated_bytes") or 0
    error = plus_minus(allocated, figures.get("allocated_bytes_error"))
    tile(
        "Allocated", titled("bytes", allocated), f"of the heap, in all{error}", estimated=is_estimate("allocated_bytes")
    )
    if _touches_known(result):
        tile("Never touched", titled("bytes", figures["never_touched_bytes"]), "whole pages of recorded objects")
    leaked, left = figures.get("leaked_bytes") or 0, figures.get("leaked_objects") or 0
    error = plus_minus(leaked, figures.get("leaked_bytes_error"))
    estimated = is_estimate("leaked_bytes")
    objects = counted(round(two_digits(left) if estimated else left), "heap object")
    remark = f"{'about ' if estimated else ''}{objects}{error}" if leaked else ""
    tile("Not freed at exit", titled("bytes", leaked), remark, estimated=estimated)
    return tiles


def _curves(result: Result, processes: Mapping[int, Mapping[str, Any]], *, end_s: float) -> str:
    """Live bytes over time: the process with the largest heap, the others folded."""
    arrow = result.tables.get("over_time")
    curves: dict[int, dict[str, tuple[list[float], list[int]]]] = {}
    if arrow is not None and arrow.num_columns:
        names = ("process", "kind", "time_s", "bytes")
        for process, kind, time_s, held in zip(*(arrow.column(name).to_pylist() for name in names), strict=True):
            times, levels = curves.setdefault(process, {}).setdefault(kind, ([], []))
            times.append(time_s)
            levels.append(held)
    if not curves:
        return '<p class="muted">There is no curve of live bytes: no object was seen.</p>'
    end_s = max([end_s, *(time for kinds in curves.values() for times, _ in kinds.values() for time in times)])
    sampled = bool(result.figures.get("allocations_error") or result.figures.get("allocated_bytes_error"))
    shown = [
        _curve(process, kinds, processes, end_s=end_s, sampled=sampled, is_first=number == 0)
        for number, (process, kinds) in enumerate(curves.items())
    ]
    hidden = (result.figures.get("processes") or 0) - len(curves)
    more = f'<p class="more">{counted(hidden, "process", "processes")} with smaller heaps not drawn.</p>'
    return f'<div class="block"><h3>Live bytes over time</h3>{"".join(shown)}{more if hidden > 0 else ""}</div>'


def _curve(
    process: int,
    kinds: Mapping[str, tuple[list[float], list[int]]],
    processes: Mapping[int, Mapping[str, Any]],
    *,
    end_s: float,
    sampled: bool,
    is_first: bool,
) -> str:
    words = process_words(process, processes)
    ended_s = processes[process].get("end_s") if process in processes else None
    series = [Series(kind, *kinds[kind], ended_s) for kind in ("heap", "mmap") if any(kinds.get(kind, ([], []))[1])]
    if not series:
        return f'<p class="muted">{esc(words)}: no live bytes.</p>'
    explained = {"heap": "heap, about (sampled)" if sampled else "heap", "mmap": "mmap, mapped by the program"}
    legend = "".join(
        f"<li>{line_swatch(look)}{esc(explained[one.name])}</li>"
        for one, look in zip(series, ("filled", "dotted"), strict=False)
    )
    chart = step_chart(
        series[0],
        series[1] if len(series) > 1 else None,
        end_s=end_s,
        title=f"Live bytes over time of {words}",
        name=f"objects-{process}",
        points="points",
        **({} if is_first else {"max_points": OTHER_CURVE_POINTS}),
    )
    figure = (
        f'<figure><ul class="legend">{legend}</ul>'
        f'<output class="readout">{esc(words)}, objects alive.</output>{chart}</figure>'
    )
    if is_first:
        return figure
    peaks = ", ".join(f"{one.name} up to {human_bytes(max(one.values))}" for one in series)
    return f"<details><summary>{esc(words)}: {esc(peaks)}</summary>{figure}</details>"


def _site_trees(result: Result, *, sampled: bool) -> str:
    """Call stacks of allocations: by bytes at the peak, and folded by number."""
    arrow = result.tables.get("stacks")
    rows = arrow.to_pylist() if arrow is not None and arrow.num_columns else []
    frames = [row["frames"] or ["(no frames)"] for row in rows]
    estimate = "about " if sampled else ""

    def number(value: int) -> str:
        return f"{estimate}{counted(value, 'allocation')}"

    held, remarks = icicle(
        [
            (names, int(row["bytes_at_process_peak"] or 0), round(row["allocations"] or 0))
            for names, row in zip(frames, rows, strict=True)
        ],
        title="Call stacks of allocations, by bytes held at the peak",
        name="objects-held",
        whole="heap at the peak",
        amount=lambda value: estimate + human_bytes(value),
        second_amount=number,
        estimated=False,
        max_frames=MAX_BOXES,
        min_percent=MIN_BOX_PERCENT,
    )
    if not held:
        return table("Heap at the peak, by call stack", [], [], empty="No call stack of a heap object was seen.")
    said = ["Bytes that each process held at its own peak of the heap; callers above, allocating code below.", *remarks]
    made, remarks = icicle(
        [
            (names, round(row["allocations"] or 0), int(row["allocated_bytes"] or 0))
            for names, row in zip(frames, rows, strict=True)
        ],
        title="Call stacks of allocations, by number",
        name="objects-made",
        whole="all allocations of the heap",
        amount=number,
        second_amount=lambda value: f"{estimate}{human_bytes(value)} in all",
        estimated=False,
        max_frames=MAX_BOXES,
        min_percent=MIN_BOX_PERCENT,
    )
    by_number = (
        f'<details><summary>The same by number of allocations</summary><figure><output class="readout">'
        f"{esc(' '.join(['All allocations of the run, freed or not.', *remarks]))}</output>{made}</figure></details>"
        if made
        else ""
    )
    return (
        '<div class="block"><h3>Heap at the peak, by call stack</h3><figure>'
        f'<output class="readout">{esc(" ".join(said))}</output>{held}</figure>{by_number}</div>'
    )


def _kind(row: Mapping[str, Any]) -> str:
    error = plus_minus(row.get("allocated_bytes"), row.get("allocated_bytes_error"))
    sampled = f"<small>sampled{esc(error)}</small>" if row.get("sampled") else ""
    return cell(esc(row["kind"]) + sampled, "kind")


def _by_site(result: Result) -> str:
    sites, total = top_rows(result, "by_site")
    rows = [
        [
            head_cell(place_markup(row)),
            _kind(row),
            number_cell("bytes", row["peak_bytes"]),
            number_cell("bytes", row["bytes_at_process_peak"]),
            number_cell("allocations", round(two_digits(row["allocations"]) if row["sampled"] else row["allocations"])),
            number_cell("bytes", row["allocated_bytes"]),
            duration_cell(row["mean_lifetime_ns"], unknown="to the end"),
            percent_cell(row["temporary"], row["allocations"]),
            number_cell("bytes", row["largest_bytes"]),
            number_cell("bytes", row["touched_bytes"]),
            number_cell("bytes", row["never_touched_bytes"]),
            number_cell("bytes", row["live_bytes"] if row["kind"] == "heap" else None),
        ]
        for row in sites
    ]
    heads = [
        ("Allocated by", ""),
        ("Kind", ""),
        ("Peak", "number"),
        ("At process peak", "number"),
        ("Allo\u00adcations", "number"),
        ("Allocated", "number"),
        ("Mean lifetime", "number"),
        ("Tempo\u00adrary", "number"),
        ("Largest", "number"),
        ("Touched", "number"),
        ("Never touched", "number"),
        ("Not freed", "number"),
    ]
    said = "temporary: freed before its thread allocated again"
    return table(
        f'By allocation site <span class="muted">{said}</span>',
        heads,
        rows,
        total_rows=total,
        export=json_command("objects", "by_site"),
        empty="No allocation was seen.",
        kind="dense",
    )


def _largest(result: Result) -> str:
    objects, listed = top_rows(result, "largest")
    # The analysis lists the largest only: where they do not fit here, there may be more than it lists.
    total = max(listed, result.figures.get("objects_recorded") or 0) if listed > len(objects) else listed
    rows = [
        [
            head_cell(_object_markup(row)),
            cell(esc(row["kind"])),
            number_cell("bytes", row["bytes"]),
            number_cell("born_s", row["born_s"]),
            duration_cell(row["lifetime_s"] * 1e9, remark="" if row["released"] else "to the end"),
            pages_cell(row["touched_bytes"], row["recycled_bytes"], row["never_touched_bytes"]),
            cell(_first_touch_markup(row), "name"),
            number_cell("threads", row["touching_threads"] or None),
        ]
        for row in objects
    ]
    heads = [
        ("Object", ""),
        ("Kind", ""),
        ("Bytes", "number"),
        ("Born", "number"),
        ("Lifetime", "number"),
        ("Pages", "share"),
        ("First touched by", ""),
        ("Touching threads", "number"),
    ]
    legend = "".join(
        f"{page_swatch(name)}{name.replace('-', ' ')} " for name in ("touched", "recycled", "never-touched")
    )
    return table(
        f'Largest objects <span class="muted wide">{legend}</span>',
        heads,
        rows,
        total_rows=total,
        export=export_command("objects"),
        empty="No object was seen.",
        kind="dense",
    )


def _object_markup(row: Mapping[str, Any]) -> str:
    """A name that the program or its debug information gives, else the allocation site."""
    if not row["name"]:
        return place_markup(row)
    where = f"<small>{place_markup(row, one_line=True)}</small>" if row["function"] or row["file"] else ""
    return f"<b>{function_markup(row['name'])}</b>{where}"


def _first_touch_markup(row: Mapping[str, Any]) -> str:
    if not row["first_touch_thread"]:
        return '<span class="muted">–</span>'
    place = {name: row[f"first_touch_{name}"] for name in ("function", "file", "line")}
    where = place_markup(place) if place["function"] or place["file"] else ""
    return (
        f"thread {esc(row['first_touch_thread'])}<br>{where}" if where else f"thread {esc(row['first_touch_thread'])}"
    )


def _leaks(result: Result, processes: Mapping[int, Mapping[str, Any]]) -> str:
    leaks, total = top_rows(result, "leaks")
    several = (result.figures.get("processes") or 0) > 1
    whole = result.figures.get("leaked_bytes") or 0
    rows = [
        [
            head_cell(place_markup(row) + _frames_markup(row["frames"] or [])),
            *([cell(esc(process_words(row["process"], processes)))] if several else []),
            cell("about" if row["sampled"] else "exact", "muted"),
            number_cell("objects", round(row["live"])),
            number_cell("bytes", row["live_bytes"]),
            percent_cell(row["live_bytes"], whole),
        ]
        for row in leaks
    ]
    heads = [
        ("Allocated by", ""),
        *([("Process", "")] if several else []),
        ("Numbers", ""),
        ("Objects", "number"),
        ("Bytes", "number"),
        ("Share", "number"),
    ]
    return table(
        'Not freed at exit, by call stack <span class="muted">heap objects alive when their process ended</span>',
        heads,
        rows,
        total_rows=total,
        export=json_command("objects", "leaks"),
        empty="Every heap object that was seen was freed before its process ended, or no process has ended.",
    )


def _frames_markup(frames: Sequence[str]) -> str:
    if not frames:
        return ""
    shown = "".join(f"<li>{esc(shortened(name, 300))}</li>" for name in frames[:MAX_STACK_FRAMES])
    more = f"<li>… {len(frames) - MAX_STACK_FRAMES:,} more</li>" if len(frames) > MAX_STACK_FRAMES else ""
    return f'<details class="frames"><summary>{counted(len(frames), "frame")}</summary><ol>{shown}{more}</ol></details>'


# ---- regions ------------------------------------------------------------
def regions_section(result: Result, *, faults_known: bool, objects: Result | None) -> str:
    """What was not recorded is a dash, not the 0 that the table holds."""
    regions, total = top_rows(result, "by_name")
    longest = max((row["seconds"] for row in regions), default=0.0)
    # The last phase lasts to the end by itself; only a region that was begun can be left unfinished.
    unfinished = any(row["unfinished"] for row in regions if row["kind"] == "region")
    rows = [
        [
            head_cell(function_markup(row["name"])),
            cell(esc(row["kind"])),
            number_cell("executions", row["executions"]),
            number_cell("threads", row["threads"]),
            time_cell(row["seconds"], row["self_seconds"], longest),
            duration_cell(row["self_seconds"] * 1e9),
            duration_cell(row["longest_s"] * 1e9),
            number_cell("faults", row["faults"] if faults_known else None),
            number_cell("bytes", row["first_touched_bytes"] if faults_known else None),
            number_cell("allocations", round(row["allocations"]) if objects else None),
            number_cell("bytes", row["peak_rss_bytes"]),
            number_cell("bytes", row["rss_growth_bytes"]),
            *(
                [number_cell("unfinished", row["unfinished"] if row["kind"] == "region" else None)]
                if unfinished
                else []
            ),
        ]
        for row in regions
    ]
    heads = [
        ("Name", ""),
        ("Kind", ""),
        ("Execu\u00adtions", "number"),
        ("Threads", "number"),
        ("Time", "share"),
        ("Self", "number"),
        ("Longest", "number"),
        ("Faults", "number"),
        ("First touched", "number"),
        ("Allo\u00adcations", "number"),
        ("Peak RSS", "number"),
        ("Net RSS growth", "number"),
        *([("Unfin\u00adished", "number")] if unfinished else []),
    ]
    body = table(
        'By name <span class="muted wide">the strong part of a bar is the region itself, the pale part regions inside it</span>',
        heads,
        rows,
        total_rows=total,
        export=json_command("regions", "by_name"),
        empty="The program named no region.",
        kind="dense",
    )
    said = (
        "Time is wall time, summed over executions and threads. A region counts the faults and allocations of its own "
        "thread, a phase those of the whole process; RSS is the process's, from readings between begin and end, so a "
        "short region may have none."
    )
    if objects and objects.figures.get("sample_bytes"):
        said += " Small objects are sampled: numbers of allocations are estimates."
    return f'<section id="regions"><h2>Regions</h2><p class="muted">{esc(said)}</p>{body}</section>'
