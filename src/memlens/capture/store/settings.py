"""How records were made: the settings that meta.json keeps of the collectors, found by what they wrote.

Readers ask by the kind of a record. They know no collector by its name: who records a kind is free to change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .meta import Meta

MARKS: dict[str, str] = {
    "fault": "single",
    "timeline": "rate_hz",
    "allocation": "sample_bytes",
    "block_count": "sampling",
    "traced_module": "loads_only",
    "code_count": "qemu",
}
"""By record kind, the setting that every version has kept of its collector, and that no other collector has."""


def settings_of(meta: Meta, kind: str) -> Mapping[str, Any] | None:
    """How the records of a kind were made; None where nothing was to record them.

    >>> settings_of({"collectors": {"a": {"rate_hz": 10.0}, "b": {"single": True}}}, "fault")
    {'single': True}
    >>> settings_of({"collectors": {}}, "fault") is None
    True
    """
    every = meta.get("collectors") or {}
    return next((one for one in every.values() if isinstance(one, dict) and MARKS[kind] in one), None)
