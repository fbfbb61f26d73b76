"""Windows of accesses, decoded once and kept packed for everybody who reads them.

A chunk's streams are decoded when somebody first asks for the chunk, on as many cores as there are; the accesses stay packed (about 12 bytes each,
native/core/trace/packed.h), in memory up to `MEMORY_BYTES`, beyond that in an unnamed temporary file. Where that cannot grow any more, a chunk is
decoded again when it is needed again. A capture that has grown brings new chunks; the old ones stay as they are.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Protocol

from ... import _core

if TYPE_CHECKING:
    from ...arrays import Columns, Uint8s, Uint64s

BATCH_ACCESSES = 1 << 17
MEMORY_BYTES = 128 << 20
"""Packed accesses kept in memory, in all."""
CHUNKS_AHEAD = 4
"""Decoded while others are read, for each core."""


class WindowChunk(Protocol):
    """A chunk of window records in a file (`records.Chunk`)."""

    @property
    def header(self) -> dict[str, int]: ...
    def payload(self) -> bytes | None: ...


class ChunkSource(Protocol):
    """Where chunks come from."""

    def chunks_of(self, name: str) -> Sequence[WindowChunk]: ...


_Decoded = tuple[bytes, int, "Uint8s", "list[Uint64s]"]
"""Records without their streams, their number, which are damaged, and packed batches."""


@dataclass
class _Slot:
    """One packed batch: in memory, in the file, or to be decoded again (neither)."""

    words: Uint64s | None
    offset: int = -1
    n_words: int = 0


@dataclass
class DecodedChunk:
    """The windows of one chunk."""

    process: int
    first: int
    """Row of its first record among the windows of the capture."""
    fixed: bytes
    """Its records without their streams."""
    count: int
    damaged: Uint8s
    """For each record: 1 where its stream is damaged."""
    source: WindowChunk
    slots: list[_Slot] = field(default_factory=list)

    @property
    def n_damaged(self) -> int:
        return int(self.damaged.sum())


class DecodedWindows:
    """All windows of a capture, chunk by chunk in the order of its files."""

    def __init__(self, source: ChunkSource, *, memory_bytes: int = MEMORY_BYTES) -> None:
        self._source = source
        self._memory_bytes = memory_bytes
        self._kept_bytes = 0
        self._file: IO[bytes] | None = None
        self._file_bytes = 0
        self._chunks: list[DecodedChunk] = []
        self._next = 0
        """How many chunks of the source are decoded or known to be damaged."""
        self._windows = 0

    def __iter__(self) -> Iterator[DecodedChunk]:
        """All chunks; those that nobody has asked for yet are decoded on the way, some ahead."""
        yield from self._chunks
        at = len(self._chunks)
        waiting = self._source.chunks_of("window")[self._next :]
        if not waiting:
            return
        cores = os.cpu_count() or 1
        with ThreadPoolExecutor(max_workers=cores) as pool:
            futures: list[Future[_Decoded | None]] = []
            for number, chunk in enumerate(waiting):
                while len(futures) < min(len(waiting), number + 1 + cores * CHUNKS_AHEAD):
                    futures.append(pool.submit(_decode, waiting[len(futures)]))
                made = futures[number].result()
                futures[number] = Future()  # what it held is ours now
                self._next += 1
                if made is None:
                    continue
                fixed, count, damaged, batches = made
                self._chunks.append(
                    DecodedChunk(
                        chunk.header["process"],
                        self._windows,
                        fixed,
                        count,
                        damaged,
                        chunk,
                        [self._keep(b) for b in batches],
                    )
                )
                self._windows += count
        yield from self._chunks[at:]

    def records(self) -> Iterator[tuple[int, bytes]]:
        """(process, records without their streams) of each chunk; nothing is decoded for it."""
        for chunk in self._chunks:
            yield chunk.process, chunk.fixed
        for source in self._source.chunks_of("window")[self._next :]:
            payload = source.payload()
            if payload is not None:
                yield source.header["process"], _core.window_headers(payload)[0]

    def _keep(self, words: Uint64s) -> _Slot:
        """A place for a batch: memory, then the file."""
        if self._kept_bytes + words.nbytes <= self._memory_bytes:
            self._kept_bytes += words.nbytes
            return _Slot(words)
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="memlens-")
            written = os.pwrite(self._file.fileno(), memoryview(words.data).cast("B"), self._file_bytes)
            if written != words.nbytes:
                return _Slot(None)
        except OSError:
            return _Slot(None)
        slot = _Slot(None, self._file_bytes, len(words))
        self._file_bytes += words.nbytes
        return slot

    def batches(self, chunk: DecodedChunk) -> Iterator[Uint64s]:
        """Packed batches of a chunk, in order."""
        again: list[Uint64s] | None = None
        for number, slot in enumerate(chunk.slots):
            words = slot.words if slot.words is not None else self._read(slot)
            if words is None:
                if again is None:
                    made = _decode(chunk.source)
                    assert made is not None  # it was sound before
                    again = made[3]
                words = again[number]
            yield words

    def _read(self, slot: _Slot) -> Uint64s | None:
        import numpy as np

        if slot.offset < 0 or self._file is None:
            return None
        content = os.pread(self._file.fileno(), 8 * slot.n_words, slot.offset)
        return np.frombuffer(content, dtype=np.uint64) if len(content) == 8 * slot.n_words else None

    def unpacked(self, chunk: DecodedChunk) -> Iterator[Columns]:
        """Columns of a chunk's accesses, batch by batch: row in the chunk, time_ns, code, address, bytes, operation."""
        for words in self.batches(chunk):
            yield _core.unpack_accesses(words, chunk.fixed)


def _decode(chunk: WindowChunk) -> _Decoded | None:
    import numpy as np

    payload = chunk.payload()
    if payload is None:
        return None
    fixed, streams = _core.window_headers(payload)
    reader = _core.AccessReader(payload, batch_accesses=BATCH_ACCESSES)
    batches: list[Uint64s] = []
    while (words := reader.next_packed()) is not None:
        batches.append(np.asarray(words))
    damaged = np.zeros(len(streams), dtype=np.uint8)
    damaged[np.asarray(reader.damaged_rows, dtype=np.int64)] = 1
    return fixed, len(streams), damaged, batches
