"""Which section of which file an address belongs to, from a capture's mappings and the files' own headers.

Files are read as they are now; one that was replaced since it ran is left out, and so is one that is not ELF.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from ...errors import CaptureError
from ..store.files import open_regular

if TYPE_CHECKING:
    from ...arrays import Bools, Uint64s
    from ..store.source import TableSource

PT_LOAD, PT_DYNAMIC = 1, 2
SHF_ALLOC, SHF_TLS = 2, 0x400
ET_EXEC = 2
DT_FLAGS_1, DF_1_PIE = 0x6FFFFFFB, 0x08000000
EXECUTABLE = 4


@dataclass(frozen=True)
class Section:
    """A section that is in memory when the file is loaded."""

    name: str
    address: int
    """As in the file; the module's bias is added."""
    bytes: int


@dataclass(frozen=True)
class ElfFile:
    """What is needed of a 64-bit little-endian ELF file."""

    is_program: bool
    """Fixed addresses, or marked as a position-independent program: not a library."""
    segments: tuple[tuple[int, int, int], ...]
    """(file offset, address, bytes in the file) of what is loaded."""
    sections: tuple[Section, ...]

    def address_of(self, file_offset: int) -> int | None:
        """The address, as in the file, of a mapping's first byte."""
        for offset, address, n_bytes in self.segments:
            page_offset = offset - offset % 4096
            if page_offset <= file_offset < offset + max(n_bytes, 1):
                return address - offset + file_offset
        return None


def read_elf(path: str) -> ElfFile | None:
    """None: not there, not such a file, or damaged."""
    try:
        with (
            os.fdopen(open_regular(path), "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            return _parse(content)
    except (OSError, CaptureError, struct.error, IndexError, ValueError, UnicodeDecodeError):
        return None  # the name comes from a capture: it may be anything


def _parse(content: mmap.mmap) -> ElfFile | None:
    if content[:6] != b"\x7fELF\x02\x01":
        return None
    kind = struct.unpack_from("<H", content, 16)[0]
    segment_at, section_at = struct.unpack_from("<QQ", content, 32)
    segment_bytes, n_segments, section_bytes, n_sections, names_index = struct.unpack_from("<5H", content, 54)
    segments, is_program = [], kind == ET_EXEC
    for at in range(segment_at, segment_at + n_segments * segment_bytes, segment_bytes or 1):
        what, _, offset, address, _, file_bytes = struct.unpack_from("<IIQQQQ", content, at)
        if what == PT_LOAD:
            segments.append((offset, address, file_bytes))
        elif what == PT_DYNAMIC:
            for entry in range(offset, min(offset + file_bytes, len(content)) - 15, 16):
                tag, value = struct.unpack_from("<QQ", content, entry)
                is_program = is_program or (tag == DT_FLAGS_1 and bool(value & DF_1_PIE))
    headers = [
        struct.unpack_from("<IIQQQQ", content, at)
        for at in range(section_at, section_at + n_sections * section_bytes, section_bytes or 1)
    ]
    sections = []
    for name_at, _, flags, address, _, n_bytes in headers:
        if flags & SHF_ALLOC and not flags & SHF_TLS:
            begin = headers[names_index][4] + name_at
            name = content[begin : content.find(b"\0", begin)].decode() if begin < len(content) else ""
            sections.append(Section(name, address, n_bytes))
    return ElfFile(is_program, tuple(segments), tuple(sections))


class _Mapping(TypedDict):
    """A record `mapping` of a file."""

    process: int
    time_ns: int
    address: int
    bytes: int
    file_offset: int
    inode: int
    path: str
    protection: int
    operation: str


class Modules:
    """Files that the processes of a capture had mapped: by code address, and their sections by data address."""

    def __init__(self, capture: TableSource) -> None:
        self._parents = {row["process"]: row["parent"] for row in capture.table("processes").to_pylist()}
        replaced = {row["path"] for row in capture.table("modules").to_pylist() if row["status"]}
        rows: list[_Mapping] = []
        columns = ["time_ns", "address", "bytes", "file_offset", "inode", "path", "protection", "operation"]
        for batch in capture.batches("mapping", columns=columns):
            rows.extend(row for row in batch.to_pylist() if row["inode"] and row["path"])
        self._rows: dict[int, list[_Mapping]] = {}
        for row in sorted(rows, key=lambda row: row["time_ns"]):
            self._rows.setdefault(row["process"], []).append(row)
        paths = dict.fromkeys(row["path"] for row in rows)
        self.files = {path: None if path in replaced else read_elf(path) for path in paths}
        self.unreadable = [path for path, file in self.files.items() if file is None]

    def _mappings(self, process: int) -> list[_Mapping]:
        """A process's own mappings after those that it was forked with."""
        chain: list[int] = []
        number = process
        while number and number not in chain:
            chain.append(number)
            number = self._parents.get(number, 0)
        return [row for number in reversed(chain) for row in self._rows.get(number, [])]

    def of_code(self, process: int, pcs: Uint64s) -> list[str | None]:
        """The file of each instruction, None for code in no file."""
        import numpy as np

        found = np.full(len(pcs), -1, dtype=np.int64)
        rows = [row for row in self._mappings(process) if row["protection"] & EXECUTABLE]
        for number, row in enumerate(rows):
            found[(pcs >= row["address"]) & (pcs < row["address"] + row["bytes"])] = number
        return [None if number < 0 else str(rows[number]["path"]) for number in found.tolist()]

    def in_sections(self, process: int, addresses: Uint64s, names: Iterable[str]) -> Bools:
        """Whether each address lies in a section whose name is one of these, or begins with one and a dot."""
        import numpy as np

        wanted = tuple(names)
        inside = np.zeros(len(addresses), dtype=bool)
        lowest: dict[str, _Mapping] = {}
        for row in self._mappings(process):
            before = lowest.get(row["path"])
            if before is None or row["file_offset"] <= before["file_offset"]:
                lowest[row["path"]] = row
        for path, row in lowest.items():
            file = self.files.get(path)
            begin = file.address_of(row["file_offset"]) if file else None
            if file is None or begin is None:
                continue
            bias = row["address"] - begin
            for section in file.sections:
                if section.name in wanted or section.name.startswith(tuple(f"{name}." for name in wanted)):
                    low = section.address + bias
                    inside |= (addresses >= low) & (addresses < low + section.bytes)
        return inside
