"""What a recording is asked for, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..registry import Asked, CollectorDescriptor, Option

DEFAULT_BUDGET_SHARE = 0.03


@dataclass(frozen=True)
class RecordOptions:
    """What to record and where to."""

    output: Path
    collectors: tuple[str, ...] | None = None
    """None: whatever works here."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """Settings of collectors by name, of the types that these know; the others have their defaults."""
    budget_share: float = DEFAULT_BUDGET_SHARE
    """What faults, stacks and objects may cost of the program's time; 0: everything is recorded, whatever it costs."""
    duration_s: float | None = None
    force: bool = False
    redact: bool = False

    def is_asked(self, descriptor: CollectorDescriptor) -> bool:
        """Whether a collector was named, or its main option given."""
        return self.is_named(descriptor.name) or bool(descriptor.main and descriptor.name in self.settings)

    def is_named(self, name: str) -> bool:
        return self.collectors is not None and name in self.collectors

    def settings_of(self, descriptor: CollectorDescriptor) -> object:
        if descriptor.name in self.settings or descriptor.settings is None:
            return self.settings.get(descriptor.name)
        return descriptor.settings(defaults(descriptor.options), Asked(redact=self.redact))


def defaults(options: tuple[Option, ...]) -> dict[str, object]:
    """Values of options of which none is given."""
    return {
        one.key: one.parse(one.default) if one.parse is not None and isinstance(one.default, str) else one.default
        for one in options
    }


@dataclass
class Outcome:
    """How a recording ended."""

    path: Path
    wait_status: int | None
    """As waitpid gave it; None for --pid."""
    wall_s: float
    record_bytes: int
    processes: int
    counts: dict[str, int]
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False
    """Control-C while the capture was finished or summarised."""
