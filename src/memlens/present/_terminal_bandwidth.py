"""Bandwidth in the terminal: regions first, then functions, what was not seen, and how far to trust it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._names import short_function
from ._roofline import LEGEND, peak_in_words, reached_by_level, share_in_words
from ._terminal_traffic import _code, _grid, _percent, _print
from ._units import (
    GIGABYTES,
    SHORT,
    THREAD_GIGABYTES,
    correction_in_words,
    error_in_words,
    gigabytes,
    human_count,
    human_moved,
    human_rate,
    human_span,
)

if TYPE_CHECKING:
    from rich.console import Console

    from ..results import Result


def show_bandwidth(console: Console, result: Result, rows: int, *, brief: bool) -> None:
    from rich.markup import escape

    figures = result.figures
    stack = figures["stack_share"]
    about = "about " if figures["counted_share"] not in (None, 1.0) else ""
    console.print(
        f"\n[bold]Bandwidth[/]  {about}{human_moved(figures['read_bytes'])} read by {_counted(figures['loads'])} loads, "
        f"{about}{human_moved(figures['written_bytes'])} written by {_counted(figures['stores'])} stores"
        + (f"; {stack:.0%} of the bytes on the stack" if stack else "")
    )
    everything = result.tables["by_region"].to_pylist()
    # Nested regions stand below the one around them: by bytes, then by path.
    regions = [row for row in everything[1:] if not row["exclusive"]]
    by_path = {row["region"]: row for row in regions}
    ordered = sorted(regions, key=lambda row: _order(row, by_path))
    shown = ordered[: max(rows, 10)]
    if regions:
        events = figures["events"] if any(row["event_share"] for row in shown) else []
        _regions(console, shown, events, estimated=any(row["estimated"] for row in shown))
        if len(ordered) > len(shown):
            console.print(f"  … and {len(ordered) - len(shown)} more", style="dim")
    else:
        whole = everything[0]
        console.print(
            f"  no region was marked: whole program {human_rate(whole['bytes_per_second'])} by wall-clock "
            "(mark regions: memlens.h, #pragma memlens, or memlens cc --memlens-functions=REGEX)",
            style="dim",
        )
    if figures["peaks_missing"] and not brief:
        console.print(f"  {escape(figures['peaks_missing'])}", style="dim")
    _roofline(console, result, rows)
    functions = result.tables["by_function"].slice(0, rows).to_pylist()
    if functions:
        with_mix = any(row["float_results"] is not None for row in functions)
        with_calls = any(row["executions"] is not None for row in functions)
        heads = (
            *(("calls",) if with_calls else ()),
            "read",
            "written",
            "share",
            "stack",
            "vector",
            *(("flop/B",) if with_mix else ()),
        )
        table = _grid(("function", "left"), *((name, "right") for name in heads))
        for row in functions:
            intensity = row["float_results_per_byte"]
            table.add_row(
                escape(_code(row, line=True)),
                *(("–" if row["executions"] is None else human_count(row["executions"]),) if with_calls else ()),
                human_moved(row["read_bytes"]),
                human_moved(row["written_bytes"]),
                f"{row['share']:.1%}",
                _percent(row["stack_share"], 1),
                _percent(row["vector_share"], 1),
                *(("–" if intensity is None else f"{intensity:.3g}",) if with_mix else ()),
            )
        _print(console, table)
    unseen = result.tables["unseen"].to_pylist()
    if unseen:
        listed = ", ".join(
            f"{short_function(row['callee'], 40)} "
            + (f"[{row['library']}] " if row["library"] else "")
            + human_count(row["calls"])
            for row in unseen[: 3 if brief else 8]
        )
        more = f", and {len(unseen) - (3 if brief else 8)} more" if len(unseen) > (3 if brief else 8) else ""
        console.print(
            f"  not seen: {human_count(figures['unseen_calls'])} calls of functions without counters: {escape(listed)}{more}",
            style="dim",
        )


def _order(row: dict[str, Any], by_path: dict[str, dict[str, Any]]) -> tuple[Any, ...]:
    """Regions by bytes; those inside one right below it, by bytes among themselves."""
    parts = row["region"].split(" / ")
    key: list[Any] = [row["region"] == "(outside regions)"]
    for depth in range(1, len(parts) + 1):
        path = " / ".join(parts[:depth])
        key += [-(by_path.get(path, row)["bytes"] or 0), path]
    return tuple(key)


def _regions(console: Console, shown: list[dict[str, Any]], events: list[str], *, estimated: bool) -> None:
    from rich.markup import escape

    threads = any(row["threads"] > 1 for row in shown)
    heads = [
        "times",
        *(["counted"] if estimated else []),
        "time",
        "read",
        "written",
        *(["±"] if estimated else []),
        "share",
    ]
    peaks = any(row["level"] for row in shown)
    heads += ["GB/s", *(["of the peak"] if peaks else []), *(["by thread", "imbalance"] if threads else [])]
    table = _grid(("region", "left"), *((name, "right") for name in (*heads, *events)))
    for row in shown:
        uneven = row["byte_imbalance"]
        table.add_row(
            escape("  " * row["depth"] + row["name"]),
            human_count(row["executions"]) if row["executions"] else "–",
            *([human_count(row["counted"])] if estimated else []),
            human_span(row),
            human_moved(row["read_bytes"]),
            human_moved(row["written_bytes"]),
            *([error_in_words(row)] if estimated else []),
            "–" if row["share"] is None else f"{row['share']:.1%}",
            gigabytes(row),
            *([peak_in_words(row)] if peaks else []),
            *([_gigabytes(row["bytes_per_thread_second"]), "–" if uneven is None else f"{uneven:.0%}"] if threads else []),
            *("–" if row[f"event_{n}"] is None else human_count(row[f"event_{n}"]) for n in range(len(events))),
        )  # fmt: skip
    _print(console, table)
    said = [GIGABYTES]
    if any(row["bytes_per_second"] is None and row["bytes_per_second_low"] is not None for row in shown):
        said.append(SHORT)
    if threads:
        said.append(THREAD_GIGABYTES)
    corrected = next((row for row in shown if row["correction"]), None)
    if corrected:
        said.append(f"without our own cost ({escape(corrected['name'])}: {correction_in_words(corrected)})")
    if estimated:
        said.append("±: half of the 95 % interval")
    console.print(f"  {'; '.join(said)}", style="dim")
    for region, why in withheld(shown):
        console.print(f"  – {escape(region)}: {escape(why)}", style="dim")
    for evidence in dict.fromkeys(f"{row['level']}: {row['level_evidence']}" for row in shown if row["level"]):
        console.print(f"  evidence of {escape(evidence)}", style="dim")


def withheld(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """(region, why) of figures that are not shown, each reason once a region."""
    found: dict[tuple[str, str], None] = {}
    for row in rows:
        for why in (row["withheld"], row["bytes_error_reason"] if row["estimated"] else None):
            if why:
                found[row["region"], why] = None
    return list(found)


def _roofline(console: Console, result: Result, rows: int) -> None:
    from rich.markup import escape

    found = result.tables["roofline"].slice(0, rows).to_pylist()
    if not found:
        return
    by_level = reached_by_level(result)
    levels = list(next(iter(by_level.values())))
    known = any(row["level"] for row in found)
    table = _grid(
        ("roofline: region", "left"), ("flop/B", "right"), ("flop/s", "right"), *((f"of {level}", "right") for level in levels),
        ("of arithmetic", "right"), *([("level", "left"), ("limited by", "left")] if known else []),
    )  # fmt: skip
    for row in found:
        table.add_row(
            escape(row["region"]), f"{row['float_results_per_byte']:.3g}", human_count(row["float_results_per_second"]),
            *(share_in_words(by_level[row["region"]][level]["reached_share"]) for level in levels),
            share_in_words(row["arithmetic_share"]), *([row["level"] or "–", row["limit"] or "–"] if known else []),
        )  # fmt: skip
    _print(console, table)
    console.print(f"  {LEGEND}", style="dim")


def _gigabytes(value: float | None) -> str:
    return "–" if value is None else f"{value / 1e9:.3g}"


def _counted(value: float | None) -> str:
    return "–" if value is None else human_count(value)
