"""Windows of a range of time: which chunks hold any, by their headers, and those windows of a chunk.

A header has the times of its first and last record, so chunks of other times are neither read nor decompressed. A chunk whose header does not say
(0) is looked into.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ... import _core
from .layouts import layouts
from .records import ChunkLike


def chunks_within(chunks: Sequence[ChunkLike], span_ns: tuple[int, int]) -> list[ChunkLike]:
    """Chunks that may have windows that begin in the range, the end not included."""
    begin, end = span_ns
    found: list[ChunkLike] = []
    for chunk in chunks:
        first, last = chunk.header["begin_ns"], chunk.header["end_ns"]
        if last and (last < begin or first >= end):
            continue
        found.append(ChunkPart(chunk, span_ns))
    return found


@dataclass(frozen=True)
class ChunkPart:
    """The windows of a chunk that begin in a range."""

    chunk: ChunkLike
    span_ns: tuple[int, int]

    @property
    def header(self) -> dict[str, int]:
        return self.chunk.header

    def payload(self) -> bytes | None:
        import numpy as np

        payload = self.chunk.payload()
        if payload is None:
            return None
        fixed, _ = _core.window_headers(payload)
        layout = layouts()["window"]
        rows = np.frombuffer(fixed, dtype=layout.dtype())
        inside = (rows["begin_ns"] >= self.span_ns[0]) & (rows["begin_ns"] < self.span_ns[1])
        if inside.all():
            return payload
        # Records follow each other: the fixed part, then the stream, filled up to 8 bytes.
        sizes = layout.record_bytes + (rows["tail_bytes"].astype(np.int64) + 7) // 8 * 8
        ends = np.cumsum(sizes)
        chosen = np.flatnonzero(inside).tolist()
        return b"".join(payload[int(ends[at] - sizes[at]) : int(ends[at])] for at in chosen)
