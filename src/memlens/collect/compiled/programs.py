"""What collectors of compiled-in instrumentation share in a recording: one arena, read once at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...capture.store import count_arena
from ...capture.store.layouts import Packer, enum_value
from ...errors import os_reason
from ..protocol import Part, Recording
from .arena import Counting, CountOptions, with_process_ends

if TYPE_CHECKING:
    from ...capture.reader import Capture


class CompiledPrograms(Part):
    """The arena of one recording. Collectors say what they want of it in `prepare`; it is made behind them."""

    holds_records = True

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.options = CountOptions()
        self.selection = b""
        """Sites that record, as the arena takes them; empty: all."""
        self.users: list[str] = []
        self.arena: Counting | None = None
        self.totals: dict[str, int] = {}
        """What the programs left; after `finish`."""

    def prepare(self, program: str) -> None:
        try:
            self.arena = Counting(self.options, has_pmu=bool(self.recording.facts["has_pmu"]), selection=self.selection)
        except OSError as error:
            self.holds_records = False
            for name in self.users:
                self.recording.leave_out(name, f"memfd: {os_reason(error)}", "raise the limit: ulimit -f unlimited")

    def environment(self) -> list[str]:
        return [] if self.arena is None else self.arena.environment

    def due_s(self) -> float:
        return super().due_s() if self.arena is None else self.arena.until_due_s

    def tick(self) -> None:
        if self.arena is not None:
            self.arena.tick(self.recording.writer, self.recording.string, self.recording.pids)

    def finish(self) -> list[str]:
        """What counted processes left in their memory, as records."""
        if self.arena is None:
            return []
        self.totals = _write(self.recording, self.arena)
        self.arena.close()
        self.recording.ledger(count_arena.COUNTERS, {**self.totals, "reading_s": self.arena.cost_s})
        return []

    def tables(self, capture: Capture) -> None:
        if self.arena is not None and self.arena.sections:
            from .tables import write_count_tables

            write_count_tables(capture, self.recording.writer, self.arena.sections)


def _write(recording: Recording, arena: Counting) -> dict[str, int]:
    from ...capture.reader import Capture

    writer = recording.writer
    rows = Capture(writer.root).table("processes").to_pylist()
    find = with_process_ends(rows)
    next_process = max((row["process"] for row in rows), default=0) + 1
    strings = Packer("string")
    ids = {text: number for number, text in writer.strings.items()}

    def string_id(text: str) -> int:
        if text not in ids:
            ids[text] = max(writer.strings, default=0) + 1
            writer.records("string", [strings.pack(text.encode(), id=ids[text])])
        return ids[text]

    made: dict[int, int] = {}

    def process_of(image: count_arena.ImageEntries) -> tuple[int, int]:
        nonlocal next_process
        found = find(image)
        if found is not None:
            return found
        if image.pid not in made:  # too short-lived to be seen otherwise, or in a PID namespace of its own
            made[image.pid] = next_process
            next_process += 1
            name = image.modules[0].path if image.modules else ""
            event = Packer("process_event").pack(
                time_ns=image.born_ns, pid=image.pid, thread=image.pid, status=-1,
                operation=enum_value("process_operation", "seen"), name=string_id(name) if name else 0,
            )  # fmt: skip
            writer.records(
                "process_event", [event], process=made[image.pid], begin_ns=image.born_ns, end_ns=image.born_ns
            )
        return made[image.pid], 0

    return arena.finish(writer, string_id, process_of)
