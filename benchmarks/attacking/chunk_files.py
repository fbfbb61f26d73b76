"""Record files taken apart and put together again, with sound checksums: what an attacker writes, not what a disk breaks."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from memlens import _core

FILE_HEADER = struct.Struct("<QIIQQIIQQQ")
FILE_FIELDS = ("magic", "format_version", "header_bytes", "created_monotonic_ns", "created_unix_ns", "pid", "writer",
               "reserved_0", "reserved_1", "checksum")  # fmt: skip
CHUNK_HEADER = struct.Struct("<IHHHHIIIIIQQQQQQ")
CHUNK_FIELDS = ("magic", "header_bytes", "kind", "record_version", "encoding", "stored_bytes", "payload_bytes", "record_count",
                "process", "thread", "sequence", "dropped", "begin_ns", "end_ns", "payload_checksum", "header_checksum")  # fmt: skip


@dataclass
class Chunk:
    header: dict[str, int]
    payload: bytes
    """Decoded."""


@dataclass
class ChunkFile:
    header: dict[str, int]
    chunks: list[Chunk]


def read_chunk_file(path: Path) -> ChunkFile:
    content = path.read_bytes()
    header = dict(zip(FILE_FIELDS, FILE_HEADER.unpack_from(content), strict=True))
    reader = _core.ChunkReader(str(path))
    reader.refresh()
    chunks = []
    for index in range(reader.count):
        known = reader.header(index)
        payload = reader.payload(index)
        if payload is None:
            continue
        fields = dict.fromkeys(CHUNK_FIELDS, 0) | {k: v for k, v in known.items() if k in CHUNK_FIELDS}
        chunks.append(Chunk(fields, payload))
    return ChunkFile(header, chunks)


def write_chunk_file(path: Path, file: ChunkFile, *, keep: frozenset[str] = frozenset()) -> None:
    """Writes it with lengths, numbers and checksums that are right, but for the header fields in `keep`.

    Payloads are stored plain. ``keep`` names fields of a chunk's header that stay as they are in it, wrong or not.
    """
    whole = dict(file.header)
    packed = FILE_HEADER.pack(*(whole[name] % _limit(FILE_HEADER, at) for at, name in enumerate(FILE_FIELDS)))
    parts = [packed[:-8] + struct.pack("<Q", _core.checksum(packed[:-8]))]
    for number, chunk in enumerate(file.chunks):
        fields = dict(chunk.header)
        right = {"magic": 0x4B4E4843, "header_bytes": CHUNK_HEADER.size, "encoding": 0, "stored_bytes": len(chunk.payload),
                 "payload_bytes": len(chunk.payload), "sequence": number,
                 "payload_checksum": _core.checksum(chunk.payload)}  # fmt: skip
        fields.update({name: value for name, value in right.items() if name not in keep})
        raw = CHUNK_HEADER.pack(*(fields[name] % _limit(CHUNK_HEADER, at) for at, name in enumerate(CHUNK_FIELDS)))
        raw = raw[:-8] + struct.pack("<Q", _core.checksum(raw[:-8]))
        parts += [raw, chunk.payload, b"\0" * (-len(chunk.payload) % 8)]
    path.write_bytes(b"".join(parts))


def _limit(layout: struct.Struct, at: int) -> int:
    """One more than the largest value of a field."""
    return {"Q": 1 << 64, "I": 1 << 32, "H": 1 << 16}[layout.format[1:][at]]
