"""What a report's numbers rest on, in words: one summary line, the notes, and what could not run.

Shared by terminal and page.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .. import registry
from ._units import addresses_in_words, counted_in_words

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
    collectors = meta.get("collectors", {})
    incomplete = bool(quality.dropped_records or quality.truncated)
    parts = []
    if traffic is not None:
        parts.append(f"incomplete: {quality.dropped_records} lost" if incomplete else counted_in_words(traffic.figures))
        parts.append(addresses_in_words(traffic.figures))
    parts += registry.quality_words(collectors, meta, incomplete, quality.dropped_records)
    notable = {one.name for one in registry.all_of("collector").values() if one.is_partly_notable}
    unsupported = [
        (f"{entry['collector']}: {entry['reason']}", entry["remedy"])
        for entry in meta.get("unsupported", [])
        # The short summary lists what is missing altogether, not what works in part.
        if not brief or entry["collector"] in notable or entry["collector"] not in collectors
    ]
    return Said("; ".join(parts), [str(note) for note in quality.notes], unsupported)
