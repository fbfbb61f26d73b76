"""Captures that processes wrote themselves, without a recorder (MEMLENS_OUTPUT).

Each process has a file of its own, in which ids count from 1. A reader shifts them,
so that the files together look like one that a recorder wrote.
"""

from __future__ import annotations

from typing import Any

from .. import _core
from .layouts import Packer, layout_of_kind, records_with_tails

RUNTIME_WRITER = 2
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
        names = [f.name for f in layout.fields if f.is_string_id or f.name == "stack"]
        if layout.name in ("string", "stack"):
            names.append("id")
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
        rows: Any = np.frombuffer(payload, dtype=layout.dtype())[layout.time_field]
        return int(rows.min()), int(rows.max())

    def payload(self, index: int) -> bytes:
        return self._kinds[index][2]
