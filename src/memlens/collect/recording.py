"""One recording: its options, what this machine allows, its collectors, the capture being written, and what went wrong.

`Recording` is what collectors are handed (`protocol.Recording`); `recorder.Recorder` runs the program with it, `ending.py` ends it.
"""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from .. import _recorder
from ..capture.store.layouts import layouts
from ..capture.store.meta import is_known_field, why_not_field
from ..capture.store.settings import MARKS
from ..capture.store.writer import CaptureWriter
from ..errors import MemlensError, os_reason
from ..registry import CollectorDescriptor
from . import facts as machine_facts
from . import protocol
from .choice import Choice
from .protocol import NEVER_S, ChannelPlan, Collector, Part, SessionPlan, takes_batches
from .record_options import RecordOptions

LEAST_TICK_S = 0.001
NODES_BUDGET_NS = 2_000_000
"""Of a tick, for the NUMA nodes of pages."""
if TYPE_CHECKING:
    import pyarrow as pa


T = TypeVar("T")
P = TypeVar("P", bound=Part)


class Recording:
    """The state of a recording, and what collectors may ask of it."""

    def __init__(self, options: RecordOptions) -> None:
        self.options = options
        self.notes: list[str] = []
        self.facts = machine_facts.gather()
        self._shared: dict[object, Part] = {}
        self.has_begun = False
        """The program runs."""
        self.is_open = False
        self.collectors = Choice(options, self.facts, self._make)
        self.writer: CaptureWriter
        self.session: _recorder.Session
        self.session_plan = SessionPlan()
        self.channel: _recorder.Channel | None = None
        self.channel_users: list[str] = []
        self.wants_nodes = False
        self.node_pages_asked = self.node_pages_skipped = 0
        self.failure: str | None = None
        self.is_bug = False
        """The failure is a fault of memlens, not the machine's lack of something."""
        self.is_recording = True
        self._takers: list[Collector[object]] = []
        self._window_kind = layouts()["window"].kind

    def _make(self, descriptor: CollectorDescriptor) -> Collector[object] | None:
        assert descriptor.make is not None
        settings = self.options.settings_of(descriptor)
        try:
            collector: Collector[object] = descriptor.make(settings, _for_collectors(self))
            collector.descriptor, collector.package = descriptor, descriptor.package
        except Exception as error:
            if not descriptor.package or isinstance(error, MemlensError):
                raise
            self.notes.append(_left_out(descriptor, error))
            return None
        return collector

    # ---- what collectors ask ----------------------------------------------------------------
    def is_asked(self, name: str) -> bool:
        collector = next((one for one in self.collectors.chosen if one.name == name), None)
        return self.options.is_named(name) or (collector is not None and self.options.is_asked(collector.descriptor))

    def is_chosen(self, name: str) -> bool:
        return name in self.collectors

    def leave_out(self, name: str, reason: str, remedy: str) -> None:
        self.collectors.leave_out(name, reason, remedy)
        self.was_not_used(name)

    def unsupported(self, name: str, reason: str, remedy: str) -> None:
        self.collectors.note(name, reason, remedy)

    def was_not_used(self, name: str) -> None:
        if self.is_open:  # meta.json is written already
            self.writer.meta["collectors"].pop(name, None)

    def string(self, text: str) -> int:
        number = self.session.string(text)
        if number not in self.writer.strings:
            self.pump()
        return number

    def pids(self) -> dict[int, int]:
        return {entry[1]: entry[0] for entry in self.session.processes()}

    def ledger(self, name: str, values: Mapping[str, object]) -> None:
        known = {**self.writer.fields.get(name, {}), **values}
        wrong = why_not_field(name, known)
        if wrong is not None:
            raise ValueError(f"cannot keep these counts: {wrong}")
        self.writer.fields[name] = known

    def write_table(self, collector: Part, name: str, table: pa.Table) -> None:
        from ..capture.tables.catalogue import tables

        assert isinstance(collector, Collector)
        full = f"{collector.name}_{name}"
        if full in tables():
            raise ValueError(f"the name {full} is taken by a table of every capture")
        self.writer.write_other_table(full, table)

    def resolve_nodes(self) -> None:
        self.wants_nodes = self.facts["numa_nodes"] > 1

    def shared(self, kind: Callable[[object], P]) -> P:
        if kind not in self._shared:
            self._shared[kind] = kind(self)
        return cast("P", self._shared[kind])  # its maker made it

    def ask_for_nodes(self) -> None:
        asked, self.node_pages_skipped = self.session.resolve_nodes(NODES_BUDGET_NS)
        self.node_pages_asked += asked

    def quality_facts(self) -> dict[str, str]:
        """What the collectors say of the quality, for meta.json."""
        found: dict[str, str] = {"stack": "none"}
        for collector in tuple(self.collectors.chosen):
            found |= self.fields_of(collector, collector.quality)
        for name in ("notes", "incomplete"):
            found.pop(name, None)
        return found

    def shared_parts(self) -> list[Part]:
        return list(self._shared.values())

    # ---- iterating ------------------------------------------------------------------------------
    def parts(self) -> Iterator[Part]:
        """Collectors in their order, then what they share."""
        yield from tuple(self.collectors.chosen)
        yield from tuple(self._shared.values())

    def of(self, part: Part, call: Callable[[], T], instead: T) -> T:
        """The result of a part's method; a part of another package that fails is left out."""
        if not part.package:
            return call()
        try:
            return call()
        except MemoryError:
            raise
        except Exception as error:
            if isinstance(error, MemlensError) and not self.has_begun:
                raise  # it says what is to be changed before the program starts
            self._drop(part, error)
            return instead

    def said_by(self, part: Part, call: Callable[[], list[str]]) -> list[str]:
        """The words of a part's method; none of one that fails."""

        def checked() -> list[str]:
            said = call()
            if not isinstance(said, list) or not all(isinstance(word, str) for word in said):
                raise TypeError(f"expected a list of texts, found {said!r:.60}")
            return said

        nothing: list[str] = []
        return self.of(part, checked, nothing)

    def fields_of(self, part: Part, call: Callable[[], dict[str, object]]) -> dict[str, Any]:
        """The fields of a part's method; none of one that fails."""

        def checked() -> dict[str, object]:
            fields = call()
            for name, value in fields.items() if part.package else ():
                wrong = f"{name} is memlens's own" if is_known_field(name) else why_not_field(name, value)
                if wrong is not None:
                    raise ValueError(f"cannot keep the field {name}: {wrong}")
            return fields

        nothing: dict[str, object] = {}
        return self.of(part, checked, nothing)

    def settings_of(self, collector: Collector[object]) -> dict[str, object]:
        """How it is used, for meta.json."""

        def checked() -> dict[str, object]:
            settings = collector.describe()
            wrong = why_not_field("collectors", {collector.name: settings}) if collector.package else None
            taken = set(MARKS.values()) & settings.keys() if collector.package else ()
            if wrong is not None or taken:
                raise ValueError(f"cannot keep its settings: {wrong or f'{min(taken)} is one of memlens'}")
            return settings

        nothing: dict[str, object] = {}
        return self.of(collector, checked, nothing)

    def _drop(self, part: Part, error: Exception) -> None:
        assert isinstance(part, Collector)
        if os.environ.get("MEMLENS_DEBUG"):
            traceback.print_exc()
        self._takers = [taker for taker in self._takers if taker is not part]
        self.notes.append(_left_out(part.descriptor, error))
        remedy = f"update or remove the package {part.package}"
        self.collectors.remove(part.name, f"{type(error).__name__}: {error}", remedy)
        if not self.has_begun:
            self.was_not_used(part.name)

    def due_s(self) -> float:
        """When a part wants the next tick."""
        return min((self.of(part, partial(_due_s, part), NEVER_S) for part in self.parts()), default=NEVER_S)

    # ---- session and records ------------------------------------------------------------------
    def new_session(self) -> _recorder.Session:
        plan = SessionPlan()
        for collector in tuple(self.collectors.chosen):
            self.of(collector, partial(collector.plan_session, plan), None)
        self.session_plan = plan
        session = _recorder.Session(include_kernel=True, budget_share=self.options.budget_share, **vars(plan))
        if self.channel is not None:
            session.use_channel(self.channel)
        return session

    def plan_channel(self) -> ChannelPlan:
        plan = ChannelPlan(budget_share=self.options.budget_share)
        for collector in tuple(self.collectors.chosen):
            self.of(collector, partial(collector.plan_channel, plan), None)
        return plan

    def attach_collectors(self, pid: int) -> None:
        """The session watches the process, the capture is open."""
        for collector in tuple(self.collectors.chosen):
            self.of(collector, partial(collector.attach, pid), None)
        self._takers = [collector for collector in self.collectors.chosen if takes_batches(collector)]

    def pump(self) -> None:
        """Takes batches of records from the session and writes them."""
        for batch in self.session.take():
            for taker in tuple(self._takers):
                self.of(taker, partial(taker.batch, batch), None)
            header = {
                "record_count": batch.record_count,
                "process": batch.process,
                "dropped": batch.dropped,
                "begin_ns": batch.begin_ns,
                "end_ns": batch.end_ns,
            }
            if batch.kind == self._window_kind:
                self.writer.append_later(batch.kind, batch, **header)
            else:
                self.writer.append(batch.kind, batch.payload, **header)

    # ---- failure -------------------------------------------------------------------------------
    def give_up(self, error: Exception, *, text: str | None = None) -> None:
        """A bug or a machine in trouble: stop recording, say so at the end. `text`: an error of another process."""
        if os.environ.get("MEMLENS_DEBUG") and text is None:
            traceback.print_exc()
        self.is_recording = False
        if text is None and isinstance(error, OSError):
            self.failure = f"{error.filename}: {os_reason(error)}" if error.filename else os_reason(error)
            self.notes.append(f"Recording stopped early: {self.failure}.")
        else:
            self.is_bug = True
            self.failure = text or f"{type(error).__name__}: {error}"
            self.notes.append(f"Recording stopped early because of an error in memlens ({self.failure}).")
        with contextlib.suppress(Exception):
            self.session.stop()


def _for_collectors(recording: Recording) -> protocol.Recording:
    """For the type checker: this is what collectors are handed."""
    return recording


def _due_s(part: Part) -> float:
    return max(LEAST_TICK_S, float(part.due_s()))


def _left_out(descriptor: CollectorDescriptor, error: Exception) -> str:
    return (
        f"The collector {descriptor.name} of the package {descriptor.package} failed and was left out "
        f"({type(error).__name__}: {error})."
    )
