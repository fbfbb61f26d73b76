"""The container perf.data, as far as Processor Traces need it: records one after the other, never whole in memory.

Both forms are read: with a table of sections (``perf record -o FILE``) and as a stream (``perf record -o -``, kept in a
file). Compressed records (``perf record -z``) are not.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO

from ..errors import TraceError, os_reason

MAGIC = b"PERFILE2"
STREAM_HEADER_BYTES = 16
MMAP, COMM, FORK, MMAP2, AUX, ITRACE_START, SWITCH, SWITCH_CPU_WIDE = 1, 3, 7, 10, 11, 12, 14, 15
HEADER_ATTR, AUXTRACE_INFO, AUXTRACE, COMPRESSED, COMPRESSED2 = 64, 70, 71, 81, 83
LOST = 2
SWITCH_OUT = 0x2000
AUX_TRUNCATED = 1
TID, TIME, ID, CPU, STREAM_ID, IDENTIFIER = 1 << 1, 1 << 2, 1 << 6, 1 << 7, 1 << 9, 1 << 16
SAMPLE_ID_ALL = 1 << 18
NOBODY = 0xFFFFFFFF


@dataclass(frozen=True)
class Attribute:
    """One event that was recorded."""

    type: int
    config: int
    sample_type: int
    sample_id_all: bool
    ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Identity:
    """Who and when: what perf puts behind records that are not samples."""

    pid: int = NOBODY
    tid: int = NOBODY
    time_ns: int = 0
    cpu: int = NOBODY


@dataclass(frozen=True)
class Record:
    type: int
    misc: int
    body: bytes
    """After the header of 8 bytes."""
    at: int
    """Where the bytes that follow an AUXTRACE record lie in the file."""
    identity: Identity
    following_bytes: int = 0
    """How many of them the file has: at most what the record says."""


@dataclass
class PerfData:
    """A perf.data file that is open for reading."""

    file: IO[bytes]
    name: str
    attributes: list[Attribute] = field(default_factory=list)
    truncated_at: int | None = None
    """Where the file ends in the middle of a record."""
    _begin: int = 0
    _end: int = 0
    _by_id: dict[int, Attribute] = field(default_factory=dict)
    _identified: bool = True
    """Every event says its number in each record."""

    def __post_init__(self) -> None:
        self.file.seek(0, 2)
        file_bytes = self.file.tell()
        head = self._read(0, 104)
        if head[:8] != MAGIC or len(head) < STREAM_HEADER_BYTES:
            raise TraceError(f"{self.name} is no perf.data of this byte order: it begins with {head[:8].hex(' ')}")
        (header_bytes,) = struct.unpack_from("<Q", head, 8)
        if header_bytes == STREAM_HEADER_BYTES:
            self._begin, self._end = STREAM_HEADER_BYTES, file_bytes
            return
        if len(head) < 104:
            raise TraceError(f"{self.name} is cut short: {len(head)} bytes of its header of 104 are there")
        attribute_bytes, attributes_at, attributes_bytes, self._begin, data_bytes = struct.unpack_from("<5Q", head, 16)
        if data_bytes == 0:
            raise TraceError(f"{self.name} has no records: perf record did not end in order", hint="record it again")
        self._end = min(self._begin + data_bytes, file_bytes)
        if self._begin + data_bytes > file_bytes:
            self.truncated_at = file_bytes
        if attribute_bytes < 64 + 16 or attributes_bytes > 1 << 24:
            raise TraceError(f"{self.name} is damaged: its events have {attribute_bytes} bytes each")
        ids_left = file_bytes  # numbers of events lie behind each other: two that share them are damage
        for at in range(attributes_at, attributes_at + attributes_bytes - attribute_bytes + 1, attribute_bytes):
            raw = self._read(at, attribute_bytes)
            if len(raw) < attribute_bytes:
                raise TraceError(f"{self.name} is cut short: the descriptions of its events are not there")
            ids_at, ids_bytes = struct.unpack_from("<QQ", raw, attribute_bytes - 16)
            ids = self._read(ids_at, min(ids_bytes, 1 << 20, ids_left))
            ids_left -= len(ids)
            self._add(_attribute(raw, ids))

    def _read(self, at: int, size: int) -> bytes:
        try:
            self.file.seek(at)
            return self.file.read(size)
        except (OSError, OverflowError, ValueError) as error:
            reason = os_reason(error) if isinstance(error, OSError) else "an offset beyond any file"
            raise TraceError(f"cannot read {self.name}: {reason}") from error

    def data(self, at: int, size: int) -> bytes:
        """Bytes that follow an AUXTRACE record."""
        return self._read(at, size)

    def records(self) -> Iterator[Record]:
        """All records in the order of the file; bytes after AUXTRACE records are passed over."""
        at = self._begin
        while at + 8 <= self._end:
            kind, misc, size = struct.unpack("<IHH", self._read(at, 8))
            if size < 8:
                raise TraceError(f"{self.name}, byte {at:,}: a record of {size} bytes; the file is damaged there")
            body = self._read(at + 8, size - 8)
            if at + size > self._end or len(body) < size - 8:
                self.truncated_at = at
                return
            if kind in (COMPRESSED, COMPRESSED2):
                raise TraceError(
                    f"{self.name} has compressed records, which are not read here", hint="record without -z"
                )
            following = 0
            if kind == AUXTRACE:
                if len(body) < 40:
                    raise TraceError(f"{self.name}, byte {at:,}: an AUXTRACE record of {size} bytes; 48 are needed")
                (following,) = struct.unpack_from("<Q", body)
                if at + size + following > self._end:
                    self.truncated_at = at
                    following = max(0, self._end - at - size)
            if kind == HEADER_ATTR:
                self._add_attribute(body)
            identity = self._identity(body) if kind < 64 else Identity()
            yield Record(kind, misc, body, at + size, identity, following)
            at += size + following
        if at < self._end:
            self.truncated_at = at

    def _add_attribute(self, body: bytes) -> None:
        if len(body) >= 64:
            (size,) = struct.unpack_from("<I", body, 4)
            if 64 <= size <= len(body):
                self._add(_attribute(body[:size], body[size:]))

    def _add(self, attribute: Attribute) -> None:
        self.attributes.append(attribute)
        self._identified = self._identified and bool(attribute.sample_type & IDENTIFIER)
        for number in attribute.ids:
            self._by_id.setdefault(number, attribute)

    def _identity(self, body: bytes) -> Identity:
        """Behind the record's own fields, as the event's sample_type says."""
        attribute = self._attribute_of(body)
        if attribute is None or not attribute.sample_id_all:
            return Identity()
        kinds = attribute.sample_type
        at = len(body) - 8 * sum(bool(kinds & bit) for bit in (TID, TIME, ID, STREAM_ID, CPU, IDENTIFIER))
        if at < 0:
            return Identity()
        pid = tid = cpu = NOBODY
        time_ns = 0
        if kinds & TID:
            pid, tid = struct.unpack_from("<II", body, at)
            at += 8
        if kinds & TIME:
            (time_ns,) = struct.unpack_from("<Q", body, at)
            at += 8
        at += 8 * (bool(kinds & ID) + bool(kinds & STREAM_ID))
        if kinds & CPU:
            (cpu,) = struct.unpack_from("<I", body, at)
        return Identity(pid, tid, time_ns, cpu)

    def _attribute_of(self, body: bytes) -> Attribute | None:
        if not self.attributes:
            return None
        if len(self.attributes) > 1 and self._identified and len(body) >= 8:
            (number,) = struct.unpack_from("<Q", body, len(body) - 8)
            return self._by_id.get(number, self.attributes[0])
        return self.attributes[0]


def _attribute(raw: bytes, ids: bytes) -> Attribute:
    kind, _, config, _, sample_type, _, flags = struct.unpack_from("<IIQQQQQ", raw)
    numbers = struct.unpack(f"<{len(ids) // 8}Q", ids[: len(ids) - len(ids) % 8])
    return Attribute(kind, config, sample_type, bool(flags & SAMPLE_ID_ALL), numbers)
