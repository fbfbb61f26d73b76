"""The container perf.data, as far as Processor Traces need it: records one after the other, never whole in memory.

Decoded by native/perf, like the recorder's own rings; this module puts its errors into words. Both forms are read: with a table of
sections (``perf record -o FILE``) and as a stream (``perf record -o -``, kept in a file). Compressed records (``perf record -z``) are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from .. import _core
from ..errors import TraceError, os_reason

MAGIC = b"PERFILE2"
_C = _core.perf_constants()
COMM, FORK, MMAP2, AUX, ITRACE_START, SWITCH, SWITCH_CPU_WIDE, AUXTRACE_INFO, AUXTRACE, LOST = (
    _C[f"MP_RECORD_{name}"]
    for name in (
        *("COMM", "FORK", "MMAP2", "AUX", "ITRACE_START", "SWITCH", "SWITCH_CPU_WIDE", "AUXTRACE_INFO", "AUXTRACE"),
        "LOST",
    )
)
SWITCH_OUT, AUX_TRUNCATED = _C["MP_MISC_SWITCH_OUT"], _C["MP_AUX_TRUNCATED"]
NOBODY = 0xFFFFFFFF


@dataclass(frozen=True)
class Event:
    """One event that was recorded."""

    type: int
    config: int


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


def _record(found: Any) -> Record:
    """What the reader gives of a record, as a tuple."""
    kind, misc, body, at, identity, following, _ = found
    return Record(kind, misc, body, at, Identity(*identity), following)


class PerfData:
    """A perf.data file that is open for reading."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        self.name = name
        try:
            self._file = _core.PerfFile(file.fileno())
        except _core.PerfFileError as error:
            raise self._told(error) from error
        except OSError as error:
            raise TraceError(f"cannot read {name}: {os_reason(error)}") from error

    @property
    def events(self) -> list[Event]:
        return [Event(event["type"], event["config"]) for event in self._file.events]

    @property
    def truncated_at(self) -> int | None:
        """Where the file ends in the middle of a record."""
        at = self._file.truncated_at
        return at if isinstance(at, int) else None

    def data(self, at: int, size: int) -> bytes:
        """Bytes that follow an AUXTRACE record."""
        try:
            return bytes(self._file.data(at, size))
        except OSError as error:
            raise TraceError(f"cannot read {self.name}: {os_reason(error)}") from error

    def records(self) -> Iterator[Record]:
        """All records in the order of the file; bytes after AUXTRACE records are passed over."""
        while True:
            try:
                found = self._file.next()
            except _core.PerfFileError as error:
                raise self._told(error) from error
            except OSError as error:
                raise TraceError(f"cannot read {self.name}: {os_reason(error)}") from error
            if found is None:
                return
            yield _record(found)

    def _told(self, error: Exception) -> TraceError:
        """What is wrong with the file, for a person."""
        what, at, head = error.args
        match what:
            case "magic":
                return TraceError(
                    f"{self.name} is not a perf.data file of this byte order: it begins with {head[:8].hex(' ')}"
                )
            case "short":
                return TraceError(
                    f"{self.name} is truncated: {at} bytes of its header of 104 are there"
                    if at
                    else f"{self.name} is truncated: the descriptions of its events are missing"
                )
            case "unfinished":
                return TraceError(
                    f"{self.name} has no records: perf record did not end normally", hint="record it again"
                )
            case "events":
                return TraceError(f"{self.name} is damaged: its events have {at} bytes each")
            case "compressed":
                return TraceError(
                    f"{self.name} has compressed records, which are not read here", hint="record without -z"
                )
            case "memory":
                return TraceError(f"{self.name}: not enough memory for its table of events")
        return TraceError(f"{self.name}, byte {at:,}: a record with an impossible size; the file is damaged there")
