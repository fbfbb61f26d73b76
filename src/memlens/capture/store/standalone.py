"""Captures that processes wrote themselves, without a recorder (MEMLENS_OUTPUT).

Each process has a file of its own, in which ids count from 1. A reader shifts them,
so that the files together look like one that a recorder wrote.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ... import _core
from .count_arena import CountArena, ImageEntries
from .count_records import CountRecords, notes, pattern_notes
from .layouts import Packer, enum_value, layout_of_kind, layouts, records_with_tails

RUNTIME_WRITER = enum_value("writer", "runtime")
IDS_A_FILE = 1 << 20


class OwnIds:
    """The ids of one process's file."""

    def __init__(self, process: int, file_number: int) -> None:
        self.process = process
        self.base = file_number * IDS_A_FILE

    def of(self, number: int) -> int:
        """One id as the capture's; 0 stays 0."""
        if number == 0:
            return 0
        return (self.base + number % IDS_A_FILE) & 0xFFFFFFFF

    def to_capture(self, kind: int, payload: bytes) -> bytes:
        """A chunk's payload with the capture's ids."""
        layout = layout_of_kind(kind)
        if layout is None:
            return payload
        names = [field.name for field in layout.fields if field.role in ("STRING", "STACK", "ID")]
        if layout.has_tail:
            packer = Packer(layout.name)
            parts = []
            for values, tail in records_with_tails(layout, payload):
                values.update({name: self.of(values[name]) for name in names})
                if layout.name == "stack":
                    values["process"] = self.process
                parts.append(packer.pack(tail, **{k: v for k, v in values.items() if k != "tail_bytes"}))
            return b"".join(parts)
        if not names:
            return payload
        import numpy as np

        rows = np.frombuffer(payload[: len(payload) - len(payload) % layout.record_bytes], dtype=layout.dtype()).copy()
        for name in names:
            column = rows[name]
            rows[name] = np.where(column == 0, 0, (self.base + column % IDS_A_FILE) & 0xFFFFFFFF)
        return rows.tobytes()


class LeftRings:
    """A ring file read as if it were chunks, one a kind."""

    damage: dict[str, int] = {}  # noqa: RUF012 - a ring is read as far as it is whole

    def __init__(self, path: str) -> None:
        self._kinds: list[tuple[int, int, bytes]] = _core.read_ring_file(path)
        self.count = len(self._kinds)

    def refresh(self) -> int:
        return 0

    def header(self, index: int) -> dict[str, int]:
        kind, count, _ = self._kinds[index]
        begin, end = self._times(index)
        layout = layout_of_kind(kind)
        return {
            "kind": kind, "record_version": layout.version if layout else 0, "record_count": count, "process": 1,
            "thread": 0, "dropped": 0, "begin_ns": begin, "end_ns": end, "sequence": 0, "encoding": 0,
        }  # fmt: skip

    def _times(self, index: int) -> tuple[int, int]:
        import numpy as np

        kind, _, payload = self._kinds[index]
        layout = layout_of_kind(kind)
        if layout is None or layout.has_tail or layout.time_field is None:
            return 0, 0
        rows = np.frombuffer(payload, dtype=layout.dtype())[layout.time_field]
        return int(rows.min()), int(rows.max())

    def payload(self, index: int) -> bytes:
        return self._kinds[index][2]


class LeftCounts:
    """An arena of counters that a program made itself (MEMLENS_OUTPUT), read as if it were chunks.

    Parameters
    ----------
    base
        Ids of strings begin behind it.
    first_image
        Number of its first program image.
    process_of
        pid → (process, whether other records tell of it).
    """

    damage: dict[str, int] = {}  # noqa: RUF012 - what is damaged in an arena is in `notes`
    redact = False

    def __init__(
        self, path: str, *, base: int, first_image: int, process_of: Callable[[int], tuple[int, bool]]
    ) -> None:
        self._chunks: list[tuple[dict[str, int], bytes]] = []
        self._strings: dict[str, int] = {}
        self._base = base
        self.images = 0
        self.has_counts = False
        arena = CountArena.from_file(path)
        try:
            found = arena.images()
            self.images = len(found)
            for image in found.values():
                self._tell_of_process(image, process_of(image.pid))

            def ended(image: ImageEntries) -> tuple[int, int]:
                return process_of(image.pid)[0], (image.process or {}).get("last_ns", 0)

            records = CountRecords(arena, first_image=first_image)
            # The file may be read much later, or after a restart: times are those that the processes left.
            last = max(
                (max(image.born_ns, (image.process or {}).get("last_ns", 0)) for image in found.values()), default=0
            )
            totals = records.finish(self, self._string, ended, now=last)
            self.notes = [*notes(totals, more_counters="MEMLENS_COUNTERS=N"), *pattern_notes(records.matches)]
            if totals["untraced_modules"]:
                self.notes.append(
                    f"{totals['untraced_modules']} modules were built for tracing and recorded no accesses: windows need a recorder "
                    "(memlens record --trace -- PROGRAM)."
                )
        finally:
            arena.close()
        self.has_counts = any(header["kind"] == layouts()["block_count"].kind for header, _ in self._chunks)
        packer = Packer("string")
        texts = [packer.pack(text.encode("utf-8", "replace"), id=number) for text, number in self._strings.items()]
        self.records("string", texts)
        self.count = len(self._chunks)

    def _string(self, text: str) -> int:
        return self._strings.setdefault(text, self._base + len(self._strings) + 1)

    def _tell_of_process(self, image: ImageEntries, process: tuple[int, bool]) -> None:
        """Begin and end, unless the library that records allocations has told of them."""
        number, is_told = process
        if is_told:
            return
        packer = Packer("process_event")
        name = os.path.basename(image.modules[0].path) if image.modules else ""
        common = {"pid": image.pid, "thread": image.pid, "status": -1, "name": self._string(name) if name else 0}
        times = [(image.born_ns, "exec")]
        ended_ns = (image.process or {}).get("last_ns", 0)
        if ended_ns:
            times.append((ended_ns, "exit"))
        events = [
            packer.pack(None, time_ns=at, operation=enum_value("process_operation", what), **common)
            for at, what in times
        ]
        self.records("process_event", events, process=number, begin_ns=image.born_ns, end_ns=ended_ns or image.born_ns)

    # ---- as a writer -----------------------------------------------------------------------------------------------
    def append(
        self, kind: int, payload: bytes, *, record_count: int, process: int = 0, begin_ns: int = 0, end_ns: int = 0
    ) -> None:
        layout = layout_of_kind(kind)
        header = {
            "kind": kind, "record_version": layout.version if layout else 0, "record_count": record_count, "process": process,
            "thread": 0, "dropped": 0, "begin_ns": begin_ns, "end_ns": end_ns, "sequence": 0, "encoding": 0,
        }  # fmt: skip
        self._chunks.append((header, payload))

    def records(self, name: str, records: list[bytes], **header: int) -> None:
        if records:
            self.append(layouts()[name].kind, b"".join(records), record_count=len(records), **header)

    # ---- as a reader -----------------------------------------------------------------------------------------------
    def refresh(self) -> int:
        return 0

    def header(self, index: int) -> dict[str, int]:
        return dict(self._chunks[index][0])

    def payload(self, index: int) -> bytes:
        return self._chunks[index][1]
