"""What analyses return and presenters render: tables, findings, quality.

Plain data. No analysis prints, no presenter computes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pyarrow as pa

Severity = Literal["high", "medium", "low"]


@dataclass(frozen=True)
class Quality:
    """How far a number can be trusted; travels with every result.

    ``exact`` is True only when nothing was sampled, dropped or inferred. ``exact_for`` names what the numbers are exact for where
    that is not the machine code that ran.
    """

    exact: bool = True
    dropped_records: int = 0
    truncated: bool = False
    notes: tuple[str, ...] = ()
    """Each a whole sentence: what is missing or estimated, and why."""
    exact_for: str = ""

    def joined(self, other: Quality) -> Quality:
        """The quality of a result that rests on both."""
        return Quality(
            exact=self.exact and other.exact,
            dropped_records=max(self.dropped_records, other.dropped_records),
            truncated=self.truncated or other.truncated,
            notes=tuple(dict.fromkeys(self.notes + other.notes)),
            exact_for=self.exact_for or other.exact_for,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "exact": self.exact,
            "exact_for": self.exact_for or None,
            "dropped_records": self.dropped_records,
            "truncated": self.truncated,
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class Finding:
    """What a person should do next, with the evidence for it."""

    name: str
    severity: Severity
    claim: str
    evidence: dict[str, Any]
    remedy: str
    quality: Quality = field(default_factory=Quality)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "severity": self.severity,
            "claim": self.claim,
            "evidence": self.evidence,
            "remedy": self.remedy,
            "quality": self.quality.to_json(),
        }


@dataclass(frozen=True)
class Result:
    """Tables (Arrow), scalar figures and quality of one analysis of one capture."""

    name: str
    figures: dict[str, Any]
    tables: dict[str, pa.Table]
    quality: Quality

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "figures": self.figures,
            "tables": {name: table.to_pylist() for name, table in self.tables.items()},
            "quality": self.quality.to_json(),
        }


@dataclass(frozen=True)
class Report:
    """Everything a presenter may show of one capture."""

    title: str
    meta: dict[str, Any]
    """The capture's meta.json."""
    results: dict[str, Result]
    findings: list[Finding]
    quality: Quality

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "meta": self.meta,
            "findings": [finding.to_json() for finding in self.findings],
            "results": {name: result.to_json() for name, result in self.results.items()},
            "quality": self.quality.to_json(),
        }
