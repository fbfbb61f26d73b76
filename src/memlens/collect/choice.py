"""Which collectors record: those that work here and were not left out, and why the others do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import registry
from ..errors import CollectorError, UsageError
from ..registry import CollectorDescriptor
from .protocol import Availability, Collector
from .record_options import RecordOptions

if TYPE_CHECKING:
    from .facts import Facts

Maker = Callable[[CollectorDescriptor], "Collector[Any] | None"]


def in_order() -> list[CollectorDescriptor]:
    """All collectors, in the order in which they are chosen, begun and finished."""
    return sorted(registry.all_of("collector").values(), key=lambda one: (one.order, one.package, one.name))


class Choice:
    """The collectors of one recording; changes as the program is looked at and things fail."""

    def __init__(self, options: RecordOptions, facts: Facts, make: Maker) -> None:
        self.options = options
        self.unsupported: list[dict[str, str]] = []
        self.chosen: list[Collector[object]] = []
        self._facts = facts
        self._make = make
        self._by_program: list[CollectorDescriptor] = []
        for descriptor in self._candidates():
            self._choose(descriptor)

    def __contains__(self, name: str) -> bool:
        return name in self.names

    @property
    def names(self) -> list[str]:
        return [collector.name for collector in self.chosen]

    @property
    def wrapper(self) -> Collector[object] | None:
        """The collector that runs the program inside another one."""
        return next((collector for collector in self.chosen if collector.descriptor.wraps), None)

    def _candidates(self) -> list[CollectorDescriptor]:
        usable = [one for one in in_order() if one.available and one.make is not None]
        wrappers = [one for one in usable if one.wraps and self.options.is_asked(one)]
        if len(wrappers) > 1:
            raise UsageError(
                f"{wrappers[0].name} and {wrappers[1].name} exclude each other", hint="ask for one of them"
            )
        if wrappers:  # the others would watch what runs the program, not the program
            return [wrappers[0], *(one for one in usable if one.within_wrapper)]
        self._by_program = [one for one in usable if one.wanted is not None]
        return [one for one in usable if not one.wraps and one.wanted is None]

    def _choose(self, descriptor: CollectorDescriptor) -> None:
        asked = self.options.is_asked(descriptor)
        if not asked and (self.options.collectors is not None or not descriptor.by_default):
            return
        availability = self._availability(descriptor)
        if availability.usable or (descriptor.wraps and not self.options.is_named(descriptor.name)):
            self._add(descriptor)  # whether there is what runs this very program is seen when it is to start
        elif asked:
            reason, remedy = (*availability.reasons, (availability.detail, "see memlens doctor"))[0]
            raise CollectorError(f"collector {descriptor.name} cannot run here: {reason}", hint=remedy)
        for reason, remedy in availability.reasons:
            self.note(descriptor.name, reason, remedy)

    def _availability(self, descriptor: CollectorDescriptor) -> Availability:
        if descriptor.probe is None:
            return Availability(True, "")
        try:
            found: Availability = descriptor.probe(self._facts)
        except Exception as error:
            if not descriptor.package:
                raise
            return Availability(False, "not usable", (_failed(descriptor, error),))
        return found

    def _add(self, descriptor: CollectorDescriptor) -> None:
        collector = self._make(descriptor)
        if collector is not None:
            self.chosen.append(collector)

    def look_at(self, program: str) -> None:
        """Adds collectors of which only the program says whether they have anything to record."""
        for descriptor in self._by_program:
            assert descriptor.wanted is not None
            asked = self.options.is_asked(descriptor)
            wanted = descriptor.wanted(program, self.options.settings_of(descriptor), asked)
            if not wanted or not (asked or self.options.collectors is None):
                continue
            availability = self._availability(descriptor)
            if availability.usable:
                self._add(descriptor)
            else:
                for reason, remedy in availability.reasons:
                    self.note(descriptor.name, reason, remedy)

    def look_at_running(self) -> None:
        """The program runs already: leaves out what begins with it. Raises CollectorError for what was asked for by its own option."""
        for descriptor in in_order():
            if descriptor.needs_start is None:
                continue
            if descriptor.main and self.options.is_asked(descriptor):
                raise CollectorError(descriptor.needs_start[0], hint=descriptor.needs_start[1])
            self.leave_out(descriptor.name, *descriptor.needs_start)

    def leave_out(self, name: str, reason: str, remedy: str) -> None:
        if name not in self:
            return
        if self.options.collectors is not None and len(self.options.collectors) == 1:
            raise CollectorError(f"collector {name} cannot run here: {reason}", hint=remedy)
        self.remove(name, reason, remedy)

    def remove(self, name: str, reason: str, remedy: str) -> None:
        self.note(name, reason, remedy)
        self.chosen = [collector for collector in self.chosen if collector.name != name]

    def note(self, name: str, reason: str, remedy: str) -> None:
        self.unsupported.append({"collector": name, "reason": reason, "remedy": remedy})


def _failed(descriptor: CollectorDescriptor, error: Exception) -> tuple[str, str]:
    return f"{type(error).__name__}: {error}", f"update or remove the package {descriptor.package}"
