"""Memory traffic in the terminal: bytes by code, accesses by object, pages by thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._names import PLACE_WIDTH, fit_names, place_text
from ._units import human_bytes, human_count

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ..results import Result


def _grid(*columns: tuple[str, str]) -> Table:
    """A table without lines; columns are (title, left or right)."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=True, header_style="dim", padding=(0, 2, 0, 0))
    for title, side in columns:
        if side == "left":
            table.add_column(title, overflow="ellipsis", no_wrap=True, max_width=PLACE_WIDTH)
        else:
            table.add_column(title, justify="right", no_wrap=True)
    return table


def _print(console: Console, table: Table) -> None:
    from rich.padding import Padding

    if table.columns and table.columns[0].justify == "left":
        fit_names(console, table)
    console.print(Padding(table, (0, 0, 0, 2)))


def _code(row: dict[str, Any], *, line: bool) -> str:
    return place_text(row, line=line)


def _percent(part: float | None, total: float) -> str:
    return "–" if part is None or not total else f"{part / total:.0%}"


def show_traffic(console: Console, result: Result, rows: int, *, brief: bool) -> None:
    from rich.markup import escape

    figures = result.figures
    stack = figures["stack_share"]
    width = figures["mean_width"]
    console.print(
        f"\n[bold]Memory traffic[/]  {human_bytes(figures['accessed_bytes'])}: {human_count(figures['loads'])} loads of "
        f"{human_bytes(figures['load_bytes'])}, {human_count(figures['stores'])} stores of "
        f"{human_bytes(figures['store_bytes'])}"
        + (f", {width:.1f} B each" if width is not None else "")
        + (f"; {stack:.0%} of the bytes on the stack" if stack is not None else "")
    )
    for name, title in (("by_function", "function"), *(() if brief else (("by_line", "line"),))):
        found = result.tables[name].slice(0, rows).to_pylist()
        if name == "by_line" and not any(row["file"] for row in found):
            continue
        table = _grid((title, "left"), *((n, "right") for n in ("bytes", "share", "loads", "stores", "stack", "width")))
        for row in found:
            on_stack = row["stack_load_bytes"]
            table.add_row(
                escape(_code(row, line=name == "by_line")), human_bytes(row["bytes"]), f"{row['share']:.1%}",
                human_count(row["loads"]), human_count(row["stores"]),
                _percent(None if on_stack is None else on_stack + row["stack_store_bytes"], row["bytes"]),
                "–" if row["mean_width"] is None else f"{row['mean_width']:.1f} B",
            )  # fmt: skip
        _print(console, table)
    for name, title in (("by_thread", "thread"), ("by_region", "region")):
        found = result.tables[name].to_pylist()
        if len(found) < 2:
            continue
        table = _grid((title, "left"), *((n, "right") for n in ("bytes", "share", "loads", "stores")))
        for row in found[:rows]:
            label = (
                row["region"] or "outside regions"
                if title == "region"
                else f"{row['thread']} {row['name'] or ''}" if row["thread"] else "threads that have ended"
            )  # fmt: skip
            table.add_row(escape(label), human_bytes(row["bytes"]), f"{row['share']:.1%}", human_count(row["loads"]),
                          human_count(row["stores"]))  # fmt: skip
        _print(console, table)


def show_accesses(console: Console, result: Result, rows: int) -> None:
    from rich.markup import escape

    figures = result.figures
    everything = figures["everything_recorded"]
    exact = everything and figures.get("shared_out_accesses") is None
    left_out = figures["executed_accesses"] > figures["recorded_accesses"]
    how = f"every access{' but constants' if left_out else ''}"
    if everything and not exact:
        how += "; objects sampled, so sites are estimated"
    elif not exact:
        how = f"estimated from {figures['windows']:,} windows, {100 * (figures['recorded_share'] or 0):.2g} % of all"
    console.print(f"\n[bold]Accesses by object[/]  {how}")
    crossed = result.tables["by_object_and_function"].to_pylist()
    most = {}
    for row in reversed(crossed):
        most[row["object"]] = row
    total = figures["object_accesses"]
    table = _grid(("object", "left"), ("accesses", "right"), *(() if exact else (("±", "right"),)), ("share", "right"),
                  ("stores", "right"), ("most by", "left"))  # fmt: skip
    for row in result.tables["by_object"].slice(0, rows).to_pylist():
        error = row["accesses_error"]
        user = most.get(row["object"])
        name = (user["function"] or "(no name)") if user else ""
        by = f"{name} {_percent(user['accesses'], row['accesses'])}" if user else ""
        table.add_row(
            escape(row["object"]), human_count(row["accesses"]),
            *(() if exact else ("?" if error is None else _percent(error, row["accesses"]),)),
            _percent(row["accesses"], total), _percent(row["stores"], row["accesses"]), escape(by),
        )  # fmt: skip
    _print(console, table)


def show_page_use(console: Console, result: Result, rows: int) -> None:
    """Only what is used by other threads than its first toucher: nothing for a program of one thread."""
    from rich.markup import escape

    figures = result.figures
    if not figures["pages_used_by_others"]:
        return
    console.print(
        f"\n[bold]Page use[/]  {figures['pages_used_by_others']:,} of {figures['pages']:,} pages are used by threads that did "
        f"not touch them first: {figures['others_share']:.0%} of all accesses"
    )
    table = _grid(("object", "left"), *((n, "right") for n in ("pages", "used by others", "accesses by others")),
                  ("first touched by", "left"))  # fmt: skip
    for row in result.tables["by_object"].slice(0, rows).to_pylist():
        if not row["accesses_by_others"]:
            break
        first = f"{row['main_first_thread']} in {row['first_touch_function'] or '(no name)'}"
        table.add_row(escape(row["object"]), human_bytes(row["bytes"]), human_bytes(row["bytes_used_by_others"]),
                      f"{human_count(row['accesses_by_others'])} ({_percent(row['accesses_by_others'], row['accesses'])})",
                      escape(first))  # fmt: skip
    _print(console, table)
