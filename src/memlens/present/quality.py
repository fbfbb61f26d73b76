"""What a report's numbers rest on, in words: one summary line, the notes, and what could not run.

Shared by terminal and page.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ._units import addresses_in_words, counted_in_words, human_bytes

if TYPE_CHECKING:
    from ..results import Report


@dataclass
class Said:
    summary: str
    notes: list[str] = field(default_factory=list)
    unsupported: list[tuple[str, str]] = field(default_factory=list)
    """(collector and reason, remedy)."""


def quality_lines(report: Report, *, brief: bool = False) -> Said:
    quality = report.quality
    for result in report.results.values():
        quality = quality.joined(result.quality)
    meta = report.meta
    traffic = report.results.get("traffic")
    session = meta.get("session", {})
    collectors = meta.get("collectors", {})
    incomplete = bool(quality.dropped_records or quality.truncated)
    parts = []
    if traffic is not None:
        parts.append(f"incomplete: {quality.dropped_records} lost" if incomplete else counted_in_words(traffic.figures))
        parts.append(addresses_in_words(traffic.figures))
    if "count" in collectors:
        how = collectors["count"].get("sampling", "all")
        parts.append(f"counted: {'every execution' if how == 'all' else f'sampled executions ({how})'}, IR-exact")
    if "faults" in collectors:
        seen = "user and system calls" if session.get("include_kernel") else "user code only"
        whole = "incomplete" if incomplete else "sampled" if session.get("sampled_faults") else "all"
        parts.append(f"faults {whole} ({seen}), {quality.dropped_records} lost")
        parts.append(f"stacks {meta.get('quality', {}).get('stack', '?')}, {session.get('stacks', 0):,} sampled")
    if "timeline" in collectors:
        parts.append(f"timeline sampled at {collectors['timeline'].get('rate_hz', 0):g} Hz")
    if "alloc" in collectors:
        rate = collectors["alloc"].get("sample_bytes", 0)
        parts.append(f"small objects sampled, one in {human_bytes(rate)}" if rate else "every object")
    unsupported = [
        (f"{entry['collector']}: {entry['reason']}", entry["remedy"])
        for entry in meta.get("unsupported", [])
        # The short summary lists what is missing altogether, not what works in part.
        if not brief or entry["collector"] == "alloc" or entry["collector"] not in collectors
    ]
    return Said("; ".join(parts), [str(note) for note in quality.notes], unsupported)
