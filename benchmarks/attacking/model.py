"""What an attempt is, and when it has failed."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Attempt:
    """One attack and how it ended."""

    area: str
    """What was attacked: ``captures``, ``imports``, …"""
    what: str
    """The attack in words: which seed, which field, which value."""
    command: tuple[str, ...]
    """The command line that was run."""
    failure: str | None = None
    """Why it is a failure; None when memlens held."""
    reproduction: str = ""
    """What to type to see it again."""
    figures: dict[str, float] = field(default_factory=dict)
    """Seconds and memory, where they were measured."""
