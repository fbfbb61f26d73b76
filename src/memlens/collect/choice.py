"""Which collectors record: those that work here and were not left out, and why the others do not."""

from __future__ import annotations

from typing import Any

from ..capture.store import counted_modules
from ..errors import CollectorError
from . import counting, tracing
from .record_options import RecordOptions


class Choice:
    """The collectors of one recording; changes as the program is looked at and things fail."""

    def __init__(self, options: RecordOptions, facts: dict[str, Any]) -> None:
        self.options = options
        self.unsupported: list[dict[str, str]] = []
        self.names = self._usable(facts)

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def _usable(self, facts: dict[str, Any]) -> list[str]:
        from .collectors import alloc, emulate, faults, timeline

        chosen = []
        candidates = [faults.DESCRIPTOR, timeline.DESCRIPTOR, alloc.DESCRIPTOR]
        if self.options.emulate is not None:  # the others would watch the emulator, not the program
            candidates = [emulate.DESCRIPTOR, alloc.DESCRIPTOR]
        for descriptor in candidates:
            asked = self.options.collectors is not None and descriptor.name in self.options.collectors
            if self.options.collectors is not None and not asked:
                continue
            assert descriptor.probe is not None
            availability = descriptor.probe(facts)
            if availability.usable:
                chosen.append(descriptor.name)
            elif asked:
                reason, remedy = availability.reasons[0]
                raise CollectorError(f"collector {descriptor.name} cannot run here: {reason}", hint=remedy)
            for reason, remedy in availability.reasons:
                self.unsupported.append({"collector": descriptor.name, "reason": reason, "remedy": remedy})
        return chosen

    def add_compiled_in(self, program: str, settings: counting.CountOptions) -> list[str]:
        """`count` and `trace`, when the program was built for them or they are asked for."""
        options = self.options
        wanted = [
            name
            for name, given, needed in (
                ("count", options.count, self._counts(program, settings)),
                ("trace", options.trace, self._traces(program)),
            )
            if needed and (options.collectors is None or name in options.collectors or given is not None)
        ]
        self.names.extend(wanted)
        return wanted

    def _counts(self, program: str, settings: counting.CountOptions) -> bool:
        """Whether the program may count; an error when that was asked for and cannot be."""
        asked = self.options.count is not None or "count" in (self.options.collectors or ())
        reason = counting.why_not(program)
        if reason is None:
            built = tracing.built(program)
            return asked or built.counted or not built.traced  # else its tables are there for traces alone
        if asked and not settings.children:
            raise CollectorError(reason[0], hint=reason[1])
        return settings.children

    def _traces(self, program: str) -> bool:
        """The same for traces. A script may start a program that was built for them."""
        asked = self.options.trace is not None or "trace" in (self.options.collectors or ())
        if tracing.built(program).traced:
            return True
        if asked and counted_modules.is_elf(program):
            reason, remedy = tracing.why_not(program)
            raise CollectorError(reason, hint=remedy)
        return asked

    def leave_out(self, name: str, reason: str, remedy: str) -> None:
        if name not in self.names:
            return
        if self.options.collectors is not None and len(self.options.collectors) == 1:
            raise CollectorError(f"collector {name} cannot run here: {reason}", hint=remedy)
        self.unsupported.append({"collector": name, "reason": reason, "remedy": remedy})
        self.names.remove(name)
