"""Presenter of the analysis `accuracy` in the terminal: claimed beside exact, errors, and what the exact counts consist of."""

from __future__ import annotations

import os
from typing import IO, TYPE_CHECKING, Any

from ._rich import _console
from ._units import human_bytes

if TYPE_CHECKING:
    from rich.console import Console

    from ..results import Result

NAMES = {
    "loads": "loads",
    "stores": "stores",
    "read_bytes": "bytes read",
    "written_bytes": "bytes written",
    "bytes": "bytes, both",
}
SCOPES = {"heap_and_global": "without stack", "all": "all"}
STATUSES = {"both": "", "not claimed": "not in the claim", "not executed": "only in the claim"}


def percent_text(value: float | None, *, unbounded: bool = False) -> str:
    """An error as people read it: five digits where it is small.

    >>> percent_text(0.0), percent_text(-2.5), percent_text(0.00123), percent_text(None), percent_text(None, unbounded=True)
    ('0 %', '-2.50 %', '+0.0012 %', '–', 'unbounded')
    """
    if unbounded:
        return "unbounded"
    if value is None:
        return "–"
    if value == 0:
        return "0 %"
    return f"{value:+.2f} %" if abs(value) >= 0.01 else f"{value:+.4f} %"


def _count(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def show(result: Result, *, exact: str, claim: str, file: IO[str]) -> None:
    """Prints one comparison."""
    from rich.markup import escape
    from rich.table import Table

    console = _console(file)
    console.print(f"\n[bold]Exact[/]  {escape(exact)}\n[bold]Claim[/]  {escape(claim)}\n")
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("region", no_wrap=True, max_width=28, overflow="ellipsis")
    table.add_column("")
    for scope in SCOPES.values():
        for name in ("exact", "claimed", "error"):
            table.add_column(f"{name}\n{scope}" if name == "exact" else name, justify="right", no_wrap=True)
    rows: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
    for row in result.tables["by_region"].to_pylist():
        rows.setdefault(row["region"], {}).setdefault(row["quantity"], {})[row["scope"]] = row
    for region, quantities in rows.items():
        status = STATUSES[next(iter(quantities["loads"].values()))["status"]]
        for number, (quantity, scopes) in enumerate(quantities.items()):
            cells = []
            for scope in SCOPES:
                row = scopes[scope]
                cells += [_count(row["exact"]), _count(row["claimed"]),
                          percent_text(row["error_percent"], unbounded=row["unbounded"])]  # fmt: skip
            head = escape(region) if number == 0 else f"[yellow]{status}[/]" if number == 1 else ""
            table.add_row(head, NAMES[quantity], *cells)
    console.print(table)
    _summary(console, result)
    outside = result.figures["outside"]
    if outside:
        console.print(
            f"\n[dim]Outside any region, not judged: {human_bytes(outside['read_bytes'])} read, "
            f"{human_bytes(outside['written_bytes'])} written[/]"
        )
    for note in result.quality.notes:
        console.print(f"! {escape(note)}", style="yellow")


def _summary(console: Console, result: Result) -> None:
    from rich.markup import escape
    from rich.table import Table

    n_regions = result.figures["regions"]
    console.print(f"\n[bold]Errors over {n_regions} region{'s' if n_regions > 1 else ''}[/]")
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("", "", "mean |error|", "maximum", "where", "of the sum"):
        table.add_column(name, justify="right" if name not in ("", "where") else "left", no_wrap=True)
    for row in result.tables["summary"].to_pylist():
        unbounded = row["unbounded_regions"]
        where = row["worst_region"] or ""
        if unbounded:
            where += f"{', ' if where else ''}{unbounded} unbounded"
        table.add_row(
            SCOPES[row["scope"]], NAMES[row["quantity"]], percent_text(row["mean_error_percent"]).removeprefix("+"),
            percent_text(row["max_error_percent"]).removeprefix("+"), escape(where), percent_text(row["total_error_percent"]),
        )  # fmt: skip
    console.print(table)


def show_explained(result: Result, *, file: IO[str]) -> None:
    """Prints what the exact counts consist of: the same for every claim."""
    from rich.markup import escape
    from rich.table import Table

    rows = result.tables["explained"].to_pylist()
    if not rows:
        return
    console = _console(file)
    console.print("\n[bold]In the exact counts[/]  (~ estimated from windows, ± standard error; the rest is exact)")
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("region", no_wrap=True, max_width=28, overflow="ellipsis")
    table.add_column("what", no_wrap=True, max_width=48, overflow="ellipsis")
    for name in ("bytes read", "bytes written", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    before = ""
    for row in rows:
        region = row["region"] or "(any)"
        what = row["category"] + (f": {os.path.basename(row['what'])}" if row["category"] == "library" else "")
        if row["category"] in ("unseen", "not sampled"):
            what += f": {row['what']}"
        error = row["standard_error_bytes"]
        read = "" if row["read_bytes"] is None else f"{'~' if row['estimated'] else ''}{row['read_bytes']:,}"
        read += f" ± {error:,.0f}" if error is not None else ""
        if row["executions"] is not None:
            read = f"{row['executions']:,} times"
        share = "" if row["share_percent"] is None or row["executions"] is not None else f"{row['share_percent']:.2f} %"
        written = "" if row["written_bytes"] is None else f"{row['written_bytes']:,}"
        table.add_row(escape(region) if region != before else "", escape(what), read, written, share)
        before = region
    console.print(table)


def show_failed(failed: list[dict[str, Any]], *, limit_percent: float | None, file: IO[str]) -> None:
    """Prints what exceeded the limit."""
    from rich.markup import escape

    console = _console(file)
    for row in failed:
        console.print(
            f"[bold red]failed[/] {escape(row['claim'])}: {NAMES[row['quantity']]} of {escape(row['region'])}: "
            f"exact {_count(row['exact'])}, claimed {_count(row['claimed'])}, "
            f"{percent_text(row['error_percent'], unbounded=row['unbounded'])} (limit {limit_percent:g} %)"
        )
