"""Payloads of window records with some of their records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import _core
from ..store.layouts import layouts
from .decoded import ChunkSource, WindowChunk

if TYPE_CHECKING:
    from ...arrays import Bools


class ChosenChunk:
    """A chunk of window records with some of its records (`decoded.WindowChunk`)."""

    def __init__(self, chunk: WindowChunk, is_chosen: Bools, first: int) -> None:
        self.header = chunk.header
        self._chunk, self._is_chosen, self._first = chunk, is_chosen, first

    def payload(self) -> bytes | None:
        payload = self._chunk.payload()
        return None if payload is None else chosen_records(payload, self._is_chosen, self._first)[0]


def chosen_chunks(source: ChunkSource, is_chosen: Bools) -> list[ChosenChunk]:
    """The chunks that have chosen records; `is_chosen` by number of the record among those of all sound chunks."""
    first = 0
    found = []
    for chunk in source.chunks_of("window"):
        payload = chunk.payload()
        if payload is None:
            continue
        count = len(_core.window_headers(payload)[1])
        if is_chosen[first : first + count].any():
            found.append(ChosenChunk(chunk, is_chosen, first))
        first += count
    return found


def chosen_records(payload: bytes, is_chosen: Bools, first: int) -> tuple[bytes, int]:
    """(the payload with the chosen ones of its window records, how many records it had); `first`: number of its first record."""
    begins = _core.window_headers(payload)[1]
    count = len(begins)
    mine = is_chosen[first : first + count]
    if mine.all():
        return payload, count
    if not mine.any():
        return b"", count
    fixed = layouts()["window"].record_bytes
    ends = [int(begin) - fixed for begin in begins[1:]] + [len(payload)]
    kept = [payload[int(begin) - fixed : end] for begin, end, one in zip(begins, ends, mine, strict=True) if one]
    return b"".join(kept), count
