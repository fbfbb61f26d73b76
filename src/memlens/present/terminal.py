"""Presenter `terminal`: a summary in text, with small plots."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

from ..plain_text import plain_console, trusted
from ..registry import PresenterDescriptor
from ._names import fit_names, place_text
from ._units import (
    addresses_in_words,
    counted_in_words,
    estimated_bytes,
    estimated_count,
    exit_in_words,
    human_bytes,
    human_duration,
    human_figure,
    imported_in_words,
)

if TYPE_CHECKING:
    from rich.console import Console

    from ..results import Finding, Quality, Report

BLOCKS = " ▁▂▃▄▅▆▇█"
SEVERITY_STYLE = {"high": "bold red", "medium": "yellow", "low": "cyan"}


def spark(values: list[float], *, width: int = 60) -> str:
    """A line of block characters; each column shows the largest of its values.

    >>> spark([0, 1, 2, 4], width=4)
    ' ▂▄█'
    """
    if not values:
        return ""
    columns = min(width, len(values))
    picked = []
    for column in range(columns):
        low = column * len(values) // columns
        high = max(low + 1, (column + 1) * len(values) // columns)
        picked.append(max(values[low:high]))
    top = max(picked) or 1.0
    return "".join(BLOCKS[round(max(0.0, value) / top * (len(BLOCKS) - 1))] for value in picked)


def resampled(times: list[float], values: list[float], end: float, *, width: int = 60) -> list[float]:
    """A step function at equal distances: the largest value of each interval."""
    if not times:
        return []
    end = max(end, times[-1], 1e-9)
    columns: list[float] = []
    index = 0
    current = 0.0
    for column in range(width):
        stop = end * (column + 1) / width
        best = current
        while index < len(times) and times[index] <= stop:
            current = values[index]
            best = max(best, current)
            index += 1
        columns.append(best)
    return columns


class _WithoutTrailingBlanks:
    """rich pads tables to their width: what goes into a file or pipe should not."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, text: str) -> int:
        return self._file.write("\n".join(line.rstrip() for line in text.split("\n")))

    def flush(self) -> None:
        self._file.flush()

    def isatty(self) -> bool:
        return False


def _console(file: IO[str]) -> Console:
    if file.isatty():
        return plain_console(trusted(file), highlight=False, emoji=False)  # type: ignore[no-any-return]
    return plain_console(_WithoutTrailingBlanks(file), highlight=False, width=110, emoji=False)  # type: ignore[no-any-return]


def _bar(share: float, width: int = 12) -> str:
    filled = round(share * width * 8)
    partial = " ▏▎▍▌▋▊▉"[filled % 8] if filled % 8 else ""
    return "█" * (filled // 8) + partial


PLACE_WIDTH, SITE_WIDTH = 56, 46


def _via(row: dict[str, Any]) -> str:
    """What stands between a place and the allocator, or what touched memory for it."""
    return f" via {row['via']}" if row.get("via") else ""


def show(report: Report, *, file: IO[str], rows: int = 10, brief: bool = False) -> None:
    """Prints the summary of one capture."""
    from rich.markup import escape

    from ._terminal_bandwidth import show_bandwidth
    from ._terminal_locality import show_caches, show_locality, show_sharing
    from ._terminal_traffic import show_accesses, show_page_use, show_traffic

    console = _console(file)
    rows = 5 if brief else rows
    meta = report.meta
    machine = meta.get("machine", {})
    ended = {"complete": exit_in_words(meta.get("wait_status")), "standalone": "written by the program itself"}.get(
        str(meta.get("state")), "recording did not finish"
    )
    origin = imported_in_words(meta)
    duration = meta.get("wall_s") or (
        report.results["capacity"].figures["duration_s"] if "capacity" in report.results else 0.0
    )
    console.print(
        f"\n[bold]{escape(report.title)}[/]  {escape(origin) if origin else f'{duration:.2f} s, {ended}'}",
        overflow="ellipsis",
        no_wrap=True,
    )
    if not brief and machine.get("cpu"):
        console.print(
            f"[dim]{escape(str(machine.get('cpu', '?')))}, {machine.get('cpus', '?')} CPUs, "
            f"{max(1, len(machine.get('numa_nodes', [])))} NUMA node(s), Linux {escape(str(machine.get('kernel', '?')))}, "
            f"{escape(str(meta.get('started', '?')))}, memlens {meta.get('memlens_version', '?')}[/]"
        )
    if "capacity" in report.results:
        _capacity(console, report)
    if "bandwidth" in report.results:
        show_bandwidth(console, report.results["bandwidth"], rows, brief=brief)
    if "traffic" in report.results:
        show_traffic(console, report.results["traffic"], rows, brief=brief)
    if "accesses" in report.results:
        show_accesses(console, report.results["accesses"], rows)
    if "locality" in report.results:
        show_locality(console, report.results["locality"], rows, brief=brief)
    if "caches" in report.results:
        show_caches(console, report.results["caches"], rows, brief=brief, curve=report.results.get("locality"))
    if "sharing" in report.results:
        show_sharing(console, report.results["sharing"], rows)
    if "page_use" in report.results:
        show_page_use(console, report.results["page_use"], rows)
    if "objects" in report.results:
        _objects(console, report, rows)
    if "first_touch" in report.results:
        _first_touch(console, report, rows)
    if "faults" in report.results:
        _faults(console, report)
    if "regions" in report.results:
        _regions(console, report, rows)
    if "capacity" in report.results and report.results["capacity"].figures["processes"] > 1:
        _processes(console, report, rows)
    _findings(console, report.findings)
    quality = report.quality
    for result in report.results.values():
        quality = quality.joined(result.quality)
    traffic = report.results.get("traffic")
    _quality(console, quality, meta, traffic.figures if traffic else None, brief=brief)


def _capacity(console: Console, report: Report) -> None:
    result = report.results["capacity"]
    figures = result.figures
    if figures["peak_rss_bytes"] is None:
        return  # a program that writes for itself reads no RSS; for others the quality says why
    table = result.tables["over_time"]
    columns = resampled(
        table.column("time_s").to_pylist(), table.column("rss_bytes").to_pylist(), figures["duration_s"]
    )
    console.print(
        f"\n[bold]Memory[/]  peak {human_bytes(figures['peak_rss_bytes'])}"
        + (
            f" (shared pages once; {human_bytes(figures['peak_rss_sum_bytes'])} if counted in each process)"
            if (figures["peak_rss_sum_bytes"] or 0) > 1.05 * figures["peak_rss_bytes"]
            else ""
        )
        + ", "
        f"median {human_bytes(figures['median_rss_bytes'])}"
        + (f", PSS at least {human_bytes(figures['peak_pss_bytes'])}" if figures["peak_pss_bytes"] else "")
        + (
            f", hugetlb {human_bytes(figures['peak_hugetlb_bytes'])} (not in RSS)"
            if figures["peak_hugetlb_bytes"]
            else ""
        )
        + (f", huge pages {human_bytes(figures['peak_anon_huge_bytes'])}" if figures["peak_anon_huge_bytes"] else "")
        + (
            f", {figures['limit_kind']} limit {human_bytes(figures['limit_bytes'])}"
            if figures["limit_kind"] == "cgroup"
            else ""
        )
    )
    if columns:
        console.print(f"  RSS {spark(columns)} {figures['duration_s']:.1f} s", style="green", no_wrap=True)


def _share_table(console: Console, title: str, rows: list[tuple[str, int, int, str]], total: int) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=True, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column(title, overflow="ellipsis", no_wrap=True, max_width=PLACE_WIDTH)
    table.add_column("bytes", justify="right", no_wrap=True, min_width=8)
    table.add_column("share", justify="right", no_wrap=True, min_width=6)
    table.add_column("", no_wrap=True, min_width=12)
    table.add_column("faults", justify="right", no_wrap=True, min_width=6)
    table.add_column("", no_wrap=True)
    for name, size, faults, extra in rows:
        share = size / total if total else 0.0
        table.add_row(escape(name), human_bytes(size), f"{share:.1%}", _bar(share), f"{faults:,}", extra)
    from rich.padding import Padding

    fit_names(console, table, most=PLACE_WIDTH)

    console.print(Padding(table, (0, 0, 0, 2)))


def _objects(console: Console, report: Report, rows: int) -> None:
    from rich.markup import escape
    from rich.padding import Padding
    from rich.table import Table

    result = report.results["objects"]
    figures = result.figures
    peak_s = figures["peak_heap_s"]
    of = " of the largest process" if figures["processes"] > 1 else ""
    heap = (
        f"no heap object was recorded{' (small ones are sampled)' if figures['sample_bytes'] else ''}"
        if not figures["allocations"]
        else f"peak heap{of} {estimated_bytes(figures['peak_heap_bytes'], figures['peak_heap_bytes_error'])}"
        + (f" at {peak_s:.2f} s" if peak_s is not None else "")
        + f"; {estimated_count(figures['allocations'], figures['allocations_error'])} allocations of "
        + estimated_bytes(figures["allocated_bytes"], figures["allocated_bytes_error"])
    )
    console.print(
        f"\n[bold]Objects[/]  {heap}"
        + (f"; mmap peak {human_bytes(figures['peak_mmap_bytes'])}" if figures["peak_mmap_bytes"] else "")
        + (f"; {human_bytes(figures['never_touched_bytes'])} never touched" if figures["never_touched_bytes"] else "")
        + (
            f"; {estimated_bytes(figures['leaked_bytes'], figures['leaked_bytes_error'])} not freed at exit"
            if figures["leaked_bytes"]
            else ""
        )
    )
    sites = result.tables["by_site"].slice(0, rows).to_pylist()
    if not sites:
        return
    table = Table(box=None, pad_edge=False, show_header=True, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("allocated by", overflow="ellipsis", no_wrap=True, max_width=SITE_WIDTH)
    for name in ("peak", "allocations", "mean life", "never touched", "not freed"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in sites:
        kind = " (mmap)" if row["kind"] == "mmap" else ""
        never = row["never_touched_bytes"]
        table.add_row(
            escape(place_text(row, extra=kind + _via(row))),
            _estimate(estimated_bytes(row["peak_bytes"], row["peak_bytes_error"])),
            _estimate(estimated_count(row["allocations"], row["allocations_error"])),
            "to the end" if row["mean_lifetime_ns"] is None else human_duration(row["mean_lifetime_ns"]),
            human_bytes(never) if never else "",
            _estimate(estimated_bytes(row["live_bytes"], row["live_bytes_error"]))
            if row["live_bytes"] and row["kind"] == "heap"
            else "",
        )
    fit_names(console, table, most=SITE_WIDTH)
    console.print(Padding(table, (0, 0, 0, 2)))


def _estimate(text: str) -> str:
    """In a table the mark of an estimate is its error."""
    return text.removeprefix("about ")


def _regions(console: Console, report: Report, rows: int) -> None:
    from rich.markup import escape
    from rich.padding import Padding
    from rich.table import Table

    result = report.results["regions"]
    found = result.tables["by_name"].to_pylist()
    if not found:
        return
    console.print("\n[bold]Regions[/]")
    table = Table(box=None, pad_edge=False, show_header=True, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("name", overflow="ellipsis", no_wrap=True, max_width=40)
    faults_known = "faults" in report.results
    rss_known = any(row["rss_growth_bytes"] is not None for row in found)
    names = ["times", "seconds", "self", *(("faults", "first touched") if faults_known else ()), "allocations"]
    for name in (*names, *(("peak RSS", "net growth") if rss_known else ())):
        table.add_column(name, justify="right", no_wrap=True)
    for row in found[:rows]:
        growth = row["rss_growth_bytes"]
        table.add_row(
            escape(row["name"] or "(no name)") + (" (phase)" if row["kind"] == "phase" else ""),
            f"{row['executions']:,}",
            f"{row['seconds']:.3f}",
            f"{row['self_seconds']:.3f}",
            *((f"{row['faults']:,}", human_bytes(row["first_touched_bytes"])) if faults_known else ()),
            f"{row['allocations']:,.0f}",
            *(
                ()
                if not rss_known
                else ("", "")
                if growth is None
                else (human_bytes(row["peak_rss_bytes"]), human_bytes(growth))
            ),
        )
    console.print(Padding(table, (0, 0, 0, 2)))
    if len(found) > rows:
        console.print(f"  … and {len(found) - rows} more", style="dim")


def _first_touch(console: Console, report: Report, rows: int) -> None:
    result = report.results["first_touch"]
    figures = result.figures
    total = figures["first_touched_bytes"]
    console.print(
        f"\n[bold]First touch[/]  {estimated_bytes(total, figures['first_touched_bytes_error'])} placed by "
        f"{estimated_count(figures['placing_faults'], figures['placing_faults_error'])} faults"
        + (f", {human_bytes(figures['huge_bytes'])} in huge pages" if figures["huge_bytes"] else "")
        + (
            f", {human_bytes(figures['placed_in_system_calls_bytes'])} inside system calls"
            if figures["placed_in_system_calls_bytes"]
            else ""
        )
        + (
            f"; {human_bytes(figures['placed_without_event_bytes'])} more placed by the kernel without an event"
            if figures["placed_without_event_bytes"]
            else ""
        )
        + (
            f"; {human_bytes(figures['placed_before_attach_bytes'])} were resident before memlens attached"
            if figures["placed_before_attach_bytes"]
            else ""
        )
    )
    lines = [
        (
            place_text(row, extra=_via(row)),
            row["bytes"],
            row["faults"],
            ", ".join(
                [
                    *(
                        [f"±{min(2 * row['bytes_error'] / row['bytes'], 9.99):.0%}"]
                        if row["bytes"] and row["bytes_error"]
                        else []
                    ),
                    *(["estimated"] if row.get("estimated") else []),
                    *([f"{row['threads']} threads"] if row["threads"] > 1 else []),
                ]
            ),
        )
        for row in result.tables["by_line"].slice(0, rows).to_pylist()
    ]
    if lines:
        _share_table(console, "where", lines, total)
    threads = result.tables["by_thread"].slice(0, rows).to_pylist()
    if result.tables["by_thread"].num_rows > 1:
        _share_table(
            console,
            "thread",
            [(f"{row['thread']} {row['name'] or ''}", row["bytes"], row["faults"], "") for row in threads],
            total,
        )
    nodes = result.tables["by_node"].to_pylist()
    if len(nodes) > 1:
        _share_table(
            console, "NUMA node",
            [("unknown" if row["node"] is None else f"node {row['node']}", row["bytes"], row["faults"], "") for row in nodes], total,
        )  # fmt: skip


def _faults(console: Console, report: Report) -> None:
    result = report.results["faults"]
    figures = result.figures
    classes = ", ".join(
        f"{row['class']} {estimated_count(row['faults'], row['faults_error'])}"
        for row in sorted(result.tables["by_class"].to_pylist(), key=lambda r: -r["faults"])
    )
    own = figures.get("own_faults")
    left_out = f" ({own:,} of memlens's own library left out)" if own else ""
    console.print(f"\n[bold]Faults[/]  {figures['faults']:,}: {classes or 'none'}{left_out}")
    over_time = result.tables["over_time"]
    sums = [0.0] * over_time.num_rows
    for name in over_time.column_names:
        if name != "time_s":
            sums = [a + b for a, b in zip(sums, over_time.column(name).to_pylist(), strict=True)]
    if any(sums):
        console.print(f"  /s  {spark(sums)} peak {figures['peak_faults_per_s']:,.0f}/s", style="green", no_wrap=True)


def _processes(console: Console, report: Report, rows: int) -> None:
    from rich.markup import escape

    result = report.results["capacity"]
    table = result.tables["by_process"].to_pylist()
    console.print(f"\n[bold]Processes[/]  {len(table)}")
    for row in table[:rows]:
        console.print(
            f"  {row['pid']:>8} {escape((row['name'] or '?')[:24]):<24} peak {human_bytes(row['peak_rss_bytes'])}, {row['threads']} thread(s)"
        )
    if len(table) > rows:
        console.print(f"  … and {len(table) - rows} more", style="dim")


def _findings(console: Console, findings: list[Finding]) -> None:
    from rich.markup import escape
    from rich.padding import Padding

    if not findings:
        console.print("\n[bold]Findings[/]  none")
        return
    console.print(f"\n[bold]Findings[/]  {len(findings)}")
    for finding in findings:
        style = SEVERITY_STYLE[finding.severity]
        console.print(Padding(f"[{style}]{finding.severity} {finding.name}[/]  {escape(finding.claim)}", (0, 0, 0, 2)))
        console.print(Padding(f"→ {escape(finding.remedy)}", (0, 0, 0, 4)), style="cyan")


def _quality(
    console: Console, quality: Quality, meta: dict[str, Any], traffic: dict[str, Any] | None, *, brief: bool
) -> None:
    from rich.markup import escape
    from rich.padding import Padding

    session = meta.get("session", {})
    collectors = meta.get("collectors", {})
    parts = []
    if traffic is not None:
        whole = "incomplete" if quality.dropped_records or quality.truncated else "exact"
        parts.append(counted_in_words(traffic) if whole == "exact" else f"{whole}: {quality.dropped_records} lost")
        parts.append(addresses_in_words(traffic))
    if "count" in collectors:
        how = collectors["count"].get("sampling", "all")
        parts.append(f"counted: {'every execution' if how == 'all' else f'sampled executions ({how})'}, IR-exact")
    if "faults" in collectors:
        seen = "user and system calls" if session.get("include_kernel") else "user code only"
        whole = "sampled" if session.get("sampled_faults") else "all"
        whole = "incomplete" if quality.dropped_records or quality.truncated else whole
        parts.append(f"faults {whole} ({seen}), {quality.dropped_records} lost")
        parts.append(f"stacks {meta.get('quality', {}).get('stack', '?')}, {session.get('stacks', 0):,} sampled")
    if "timeline" in collectors:
        parts.append(f"timeline sampled at {collectors['timeline'].get('rate_hz', 0):g} Hz")
    if "alloc" in collectors:
        rate = collectors["alloc"].get("sample_bytes", 0)
        parts.append(f"small objects sampled, one in {human_bytes(rate)}" if rate else "every object")
    console.print(f"\n[dim]Quality  {'; '.join(parts)}[/]")
    for note in quality.notes:
        console.print(Padding(f"! {escape(note)}", (0, 0, 0, 2)), style="yellow")
    for entry in meta.get("unsupported", []):
        # The short summary tells what is missing altogether, not what works in part.
        if not brief or entry["collector"] == "alloc" or entry["collector"] not in collectors:
            console.print(
                Padding(f"! {escape(entry['collector'])}: {escape(entry['reason'])}", (0, 0, 0, 2)), style="yellow"
            )
            console.print(Padding(f"→ {escape(entry['remedy'])}", (0, 0, 0, 4)), style="cyan")


def show_diff(
    figures: list[dict[str, Any]],
    functions: list[dict[str, Any]],
    new_findings: list[Finding],
    gone: list[str],
    broken: list[dict[str, Any]],
    quality: Quality,
    *,
    file: IO[str],
) -> None:
    """Prints a comparison."""
    from rich.markup import escape
    from rich.table import Table

    console = _console(file)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("figure", "before", "after", "change", ""):
        table.add_column(name, justify="left" if name == "figure" else "right")
    for row in figures:
        if not row["change"]:
            continue
        change = (
            ""
            if row["change"] is None
            else ("+" if row["change"] > 0 else "") + human_figure(row["figure"], row["change"])
        )
        relative = "" if row["relative"] is None else f"{row['relative']:+.1%}"
        table.add_row(
            row["figure"],
            human_figure(row["figure"], row["before"]),
            human_figure(row["figure"], row["after"]),
            change,
            relative,
        )
    console.print(table)
    if functions:
        console.print("\n[bold]First-touched bytes by function[/]")
        for row in functions:
            change = ("+" if row["change_bytes"] > 0 else "") + human_bytes(row["change_bytes"])
            console.print(
                f"  {change:>11}  {escape(row['function'])}  "
                f"({human_bytes(row['before_bytes'])} → {human_bytes(row['after_bytes'])})"
            )
    for finding in new_findings:
        console.print(f"\n[red]new finding[/] {finding.name}: {escape(finding.claim)}")
    for name in gone:
        console.print(f"\n[green]finding gone[/] {name}")
    for note in quality.notes:
        console.print(f"! {escape(note)}", style="yellow")
    for entry in broken:
        console.print(
            f"[bold red]failed[/] {escape(entry['condition'])}: before {entry['before']}, after {entry['after']}"
        )


DESCRIPTOR = PresenterDescriptor(
    name="terminal", question="What is there to know at once, in the terminal?", render=show
)
