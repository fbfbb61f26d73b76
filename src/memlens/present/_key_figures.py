"""The key figures of the page: one tile each, from whichever results there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._charts import esc
from ._markup import counted, definitions, titled
from ._object_sections import about
from ._units import human_figure

if TYPE_CHECKING:
    from ..results import Report


def figures_section(report: Report) -> str:
    tiles: list[tuple[str, str]] = []

    def tile(label: str, name: str, value: Any, remark: str = "", *, estimated: bool = False) -> None:
        if value is not None:
            shown = about(titled(name, value), sampled=estimated)
            tiles.append((esc(label), shown + (f"<small>{esc(remark)}</small>" if remark else "")))

    if bandwidth := report.results.get("bandwidth"):
        figures = bandwidth.figures
        estimated = figures["counted_share"] not in (None, 1.0)
        accesses = (figures["loads"], figures["stores"])
        remark = "" if None in accesses else f"{sum(accesses):,} loads and stores"
        tile("Counted traffic", "bytes", figures["accessed_bytes"], remark, estimated=estimated)
    if traffic := report.results.get("traffic"):
        figures = traffic.figures
        tile(
            "Memory traffic",
            "bytes",
            figures["accessed_bytes"],
            f"{figures['loads'] + figures['stores']:,} loads and stores",
        )
    if capacity := report.results.get("capacity"):
        figures = capacity.figures
        tile("Peak RSS", "bytes", figures.get("peak_rss_bytes"), "all processes, shared pages once")
        tile("Peak RSS, kernel", "bytes", figures.get("kernel_peak_rss_bytes"), "largest single process")
        tile("Median RSS", "bytes", figures.get("median_rss_bytes"), "half of the time at or below it")
        tile("Peak PSS", "bytes", figures.get("peak_pss_bytes"), "shared pages divided")
        tile("Huge pages", "bytes", figures.get("peak_anon_huge_bytes"), "peak, anonymous memory")
        if figures.get("peak_hugetlb_bytes"):
            tile("hugetlb", "bytes", figures["peak_hugetlb_bytes"], "peak, not in RSS")
        if figures.get("peak_swap_bytes"):
            tile("Swap", "bytes", figures["peak_swap_bytes"], "peak of one process")
        tile(
            "Limit",
            "bytes",
            (figures.get("limit_bytes") or None) if figures.get("peak_rss_bytes") is not None else None,
            f"of the {figures.get('limit_kind') or 'machine'}",
        )
    if objects := report.results.get("objects"):
        figures = objects.figures
        for label, name, remark in (
            ("Peak heap", "peak_heap_bytes", "live objects, one process"),
            ("Not freed at exit", "leaked_bytes", "of the heap"),
        ):
            tile(label, "bytes", figures.get(name) or None, remark, estimated=bool(figures.get(f"{name}_error")))
        tile("Never touched", "bytes", figures.get("never_touched_bytes") or None, "pages of allocated objects")
    if touch := report.results.get("first_touch"):
        figures = touch.figures
        tile(
            "First-touched",
            "bytes",
            figures.get("first_touched_bytes"),
            f"by {counted(int(figures.get('threads') or 0), 'thread')}",
        )
        tile(
            "Inside system calls",
            "bytes",
            figures.get("placed_in_system_calls_bytes"),
            "of the first-touched",
        )
        tile("In huge pages", "bytes", figures.get("huge_bytes"), "of the first-touched")
    if faults := report.results.get("faults"):
        figures = faults.figures
        kernel, own = figures.get("kernel_faults"), figures.get("own_faults") or 0
        counts = [f"kernel's count {kernel:,}"] if kernel is not None else []
        if own:
            counts.append(f"with {own:,} of memlens" if counts else f"{own:,} of memlens left out")
        tile("Page faults", "faults", figures.get("faults"), " ".join(counts))
        tile(
            "Fault rate, peak",
            "peak_faults_per_s",
            figures.get("peak_faults_per_s"),
            f"mean {human_figure('faults_per_s', figures.get('faults_per_s'))}",
        )
        tile("Major faults", "faults", figures.get("major_faults"), "waited for the disk")
    usage = report.meta.get("rusage") or {}
    if usage.get("user_s") is not None and usage.get("system_s") is not None:
        figures = faults.figures if faults else {}
        user_s, system_s = usage["user_s"], figures.get("system_s", usage["system_s"])
        recording_s = figures.get("recording_s") or 0.0
        collectors = report.meta.get("collectors") or {}
        tile(
            "CPU time, emulated" if "emulate" in collectors else "CPU time",
            "cpu_s",
            user_s + system_s,
            f"user {user_s:.2f} s{' (memlens in the program included)' if 'alloc' in collectors else ''}, system {system_s:.2f} s"
            + (f" without about {recording_s:.2g} s for recording faults" if recording_s >= 0.005 else ""),
        )
    if not tiles:
        return ""
    return f'<section id="figures"><h2>Key figures</h2>{definitions("tiles", tiles)}</section>'
