"""The arena of compile-time counting (format/memlens_count.h): made here, written by counted processes, read back here.

The file is sparse and huge: only pages that hold data are read. Whatever a process left there,
half-written or damaged, costs that entry and is counted; nothing in it is trusted.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .arena_layouts import constants, layout
from .files import open_regular
from .layouts import enum_value
from .os_names import text_of

if TYPE_CHECKING:
    from ...arrays import Ints, Uint64s

COUNTERS = "count"
"""What meta.json calls the collector of compiled-in counters, and what was found in their arena."""
VARIABLE = "MEMLENS_COUNT"
_C = constants()
MAGIC, VERSION = _C["ML_COUNT_MAGIC"], _C["ML_COUNT_VERSION"]
MOST_ENTRIES, DIRECTORY_BYTE = _C["ML_COUNT_ENTRIES"], _C["ML_COUNT_DIRECTORY_BYTE"]
PLACE_COUNTERS_BYTE = _C["ML_COUNT_PLACE_COUNTERS"]
EVENTS = _C["ML_COUNT_EVENTS"]
FILE_BYTES = 1 << 46
COUNTERS_MAX = _C["ML_COUNT_WORDS_MAX"]
"""What a process uses of an array at most."""
FREE_COUNTERS = _C["ML_COUNT_MAX_OF_FUNCTION"]
"""The first of each array: code that is not registered yet counts there."""
THREADS_MAX = 4096
PAGE_MOST = 1 << 16
"""The largest page size of a machine: what processes map begins at a multiple."""
PROCESS, MODULE, NODE, PLACE, GROUPS = (
    _C[f"ML_COUNT_{name}"] for name in ("PROCESS", "MODULE", "NODE", "PLACE", "GROUPS")
)
GROUPS_MAX = _C["ML_COUNT_GROUPS_MAX"]
SPAN, SPAN_BYTE = layout("count_span").format, _C["ML_COUNT_SPAN_BYTE"]
"""Of a node: kept, threads inside and since when, ticks. Behind its name."""
DURATIONS = 64
ENDED, UNATTRIBUTED = _C["ML_COUNT_ENDED"], _C["ML_COUNT_UNATTRIBUTED"]
EVENTS_TOLD, EVENT_0_READ = enum_value("place_flags", "events_told"), enum_value("place_flags", "event_0_read")
"""Of records: which events have a value is known; the first event has one, the others' bits follow."""
SAMPLE_ALL, SAMPLE_EVERY, SAMPLE_RANDOM, SAMPLE_BUDGET = (
    _C[f"ML_SAMPLE_{name}"] for name in ("ALL", "EVERY", "RANDOM", "BUDGET")
)

HEADER, ENTRY, MODULE_HEAD = (layout(name).format for name in ("count_header", "count_entry", "count_module"))
HEADER_FIELDS = layout("count_header").fields
ENTRY_BYTES = ENTRY.size
PROCESS_FIELDS = layout("count_process").fields
PLACE_FIELDS = layout("count_place").fields
TRACE_SHARE_FIELDS = ("trace_executed", "trace_windows", "trace_recorded", "trace_implied")
TRACE_SHARE, TRACE_SHARES, TRACE_SHARES_BYTE = (
    layout("trace_share").format, _C["ML_TRACE_SHARES"], _C["ML_TRACE_SHARES_BYTE"],
)  # fmt: skip
"""A cache line for each thread that traces, in the page of the process: what it adds to the first members."""

Image = tuple[int, int]
"""(pid, born_ns): one program in one process, from exec or fork to its end."""


@dataclass(frozen=True)
class CountedModule:
    path: str
    build_id: str
    first_counter: int
    """In words behind the base."""
    counters: int
    functions: int
    load_bias: int
    first_site: int = 0
    """Number of its first site in traces."""
    sites: int = 0


@dataclass(frozen=True)
class Place:
    """The counters of one thread in one region node."""

    index: int
    """Of its entry: what tells two threads with one id apart."""
    thread: int
    node: int
    flags: int
    offset: int
    counters: int


@dataclass
class ImageEntries:
    """What one program image has put into the arena so far."""

    pid: int
    born_ns: int
    process: dict[str, int] | None = None
    modules: list[CountedModule] = field(default_factory=list)
    nodes: dict[int, tuple[int, str]] = field(default_factory=dict)
    """node → (parent, name)"""
    places: list[Place] = field(default_factory=list)
    groups: list[Place] = field(default_factory=list)
    """Arrays of groups of sampled executions; `flags` is the group, from 1."""
    spans: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """node → (threads inside, since when as the arena has it, ticks), of nodes that keep it"""


class CountArena:
    """One arena, from before the program's start to after its end."""

    def __init__(
        self,
        *,
        sampling: int = SAMPLE_ALL,
        sample_first: int = 0,
        sample_every: int = 0,
        seed: int = 0,
        budget_ppm: int = 0,
        events: tuple[tuple[int, int], ...] = (),
        threads_max: int = THREADS_MAX,
        counters_max: int = COUNTERS_MAX,
        selection: bytes = b"",
        file_bytes: int = FILE_BYTES,
        sample_groups: int = 0,
    ) -> None:
        self.fd = os.memfd_create("memlens-count", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, file_bytes)
            # Every counted process can open it: one that cut it short would end all others with SIGBUS.
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self.token = (secrets.randbits(64), secrets.randbits(64))
            self.file_bytes = file_bytes
            self.counters_max = counters_max
            first_byte = DIRECTORY_BYTE + MOST_ENTRIES * ENTRY_BYTES
            place = (first_byte + PAGE_MOST - 1) // PAGE_MOST * PAGE_MOST if selection else 0
            behind = place + len(selection) if selection else first_byte
            values = {
                "magic": MAGIC, "version": VERSION, "token_0": self.token[0], "token_1": self.token[1], "file_bytes": file_bytes,
                "next_byte": behind, "counters_max": counters_max, "sampling": sampling, "sample_first": sample_first,
                "sample_every": sample_every, "seed": seed, "budget_ppm": budget_ppm, "threads_max": threads_max,
                "events": len(events), "selection_offset": place, "selection_bytes": len(selection),
                "sample_groups": sample_groups,
                **{f"event_type_{number}": kind for number, (kind, _) in enumerate(events)},
                **{f"event_config_{number}": config for number, (_, config) in enumerate(events)},
            }  # fmt: skip
            header = HEADER.pack(*(values.pop(name, 0) for name in HEADER_FIELDS))
            assert not values, values
            os.pwrite(self.fd, header, 0)
            if selection:
                os.pwrite(self.fd, selection, place)
        except BaseException:
            os.close(self.fd)
            raise
        self.damaged_entries = 0

    @classmethod
    def from_file(cls, path: str) -> CountArena:
        """An arena that a program made itself, to be read."""
        self = cls.__new__(cls)
        self.fd = open_regular(path)
        self.damaged_entries = 0
        try:
            header = self._header()
        except (OSError, struct.error):
            header = dict.fromkeys(HEADER_FIELDS, 0)
        if header["magic"] != MAGIC or header["version"] != VERSION or not header["counters_max"]:
            self.close()
            raise ValueError("not an arena of this version")
        self.token = (header["token_0"], header["token_1"])
        self.file_bytes, self.counters_max = header["file_bytes"], header["counters_max"]
        return self

    @property
    def value(self) -> str:
        """What leads counted processes here, in MEMLENS_COUNT."""
        return f"{self.token[0]:x}:{self.token[1]:x}:/proc/{os.getpid()}/fd/{self.fd}"

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _header(self) -> dict[str, int]:
        return dict(zip(HEADER_FIELDS, HEADER.unpack(os.pread(self.fd, HEADER.size, 0)), strict=True))

    @property
    def claimed(self) -> int:
        """Entries that processes have asked for."""
        return self._header()["entries"]

    @property
    def refused(self) -> int:
        """Claims that found no room."""
        return self._header()["refused"] + max(0, self.claimed - MOST_ENTRIES)

    def images(self) -> dict[Image, ImageEntries]:
        """Everything in the directory, by program image."""
        count = min(self.claimed, MOST_ENTRIES)
        raw = os.pread(self.fd, count * ENTRY_BYTES, DIRECTORY_BYTE)
        images: dict[Image, ImageEntries] = {}
        damaged = 0
        for index, entry in enumerate(ENTRY.iter_unpack(raw[: len(raw) // ENTRY_BYTES * ENTRY_BYTES])):
            kind, pid, born_ns = entry[:3]
            if kind == 0:
                continue  # its process died before it was done, or is not done yet
            image = images.setdefault((pid, born_ns), ImageEntries(pid, born_ns))
            try:
                self._add(image, index, kind, *entry[3:9])
            except (ValueError, struct.error, OSError):
                damaged += 1
        self.damaged_entries = damaged
        return images

    def _add(
        self,
        image: ImageEntries,
        index: int,
        kind: int,
        offset: int,
        n_bytes: int,
        thread: int,
        node: int,
        parent: int,
        flags: int,
    ) -> None:
        lowest = DIRECTORY_BYTE + MOST_ENTRIES * ENTRY_BYTES
        if offset < lowest or offset % 8 or n_bytes > self.file_bytes or offset > self.file_bytes - n_bytes:
            raise ValueError("outside the file")
        if kind == PROCESS:
            words = struct.unpack(f"<{len(PROCESS_FIELDS)}Q", self._content(offset, n_bytes, 8 * len(PROCESS_FIELDS)))
            image.process = dict(zip(PROCESS_FIELDS, words, strict=True))
            if n_bytes >= 4096:
                shares = os.pread(self.fd, TRACE_SHARES * TRACE_SHARE.size, offset + TRACE_SHARES_BYTE)
                for share in TRACE_SHARE.iter_unpack(shares[: len(shares) // TRACE_SHARE.size * TRACE_SHARE.size]):
                    for name, told in zip(TRACE_SHARE_FIELDS, share, strict=False):
                        image.process[name] = (image.process[name] + told) % (1 << 64)
        elif kind == MODULE:
            head = MODULE_HEAD.unpack(self._content(offset, n_bytes, MODULE_HEAD.size))
            first, counters, functions, first_site, sites, bias, id_bytes, path_bytes, build_id = head
            if id_bytes > 64 or path_bytes > 1 << 16 or path_bytes > n_bytes - MODULE_HEAD.size:
                raise ValueError("lengths out of range")
            if first > self.counters_max or counters > self.counters_max - first:
                raise ValueError("counters out of range")
            if first_site + sites > 1 << 32:
                raise ValueError("sites out of range")
            path = os.pread(self.fd, path_bytes, offset + MODULE_HEAD.size).split(b"\0", 1)[0]
            module = CountedModule(
                text_of(path), build_id[:id_bytes].hex(), first, counters, functions, bias, first_site, sites,
            )  # fmt: skip
            image.modules.append(module)
        elif kind == NODE:
            text = os.pread(self.fd, min(n_bytes, 1 << 16), offset).split(b"\0", 1)[0]
            image.nodes[node] = (parent, text_of(text))
            state = os.pread(self.fd, SPAN.size, offset + SPAN_BYTE)
            if len(state) == SPAN.size and (found := SPAN.unpack(state))[0] == 1:
                image.spans[node] = (found[1] & 0xFFFF, found[1] >> 16, found[2])
        elif kind == PLACE:
            counters = (n_bytes - PLACE_COUNTERS_BYTE) // 8
            if counters < 0:
                raise ValueError("no room for counters")
            image.places.append(Place(index, thread, node, flags, offset, counters))
        elif kind == GROUPS:
            stride = (PLACE_COUNTERS_BYTE + 8 * self.counters_max + 4095) // 4096 * 4096
            if n_bytes % stride or not 0 < n_bytes // stride <= GROUPS_MAX:
                raise ValueError("groups out of range")
            for group in range(n_bytes // stride):
                image.groups.append(Place(index, thread, node, group + 1, offset + group * stride, self.counters_max))
        else:
            raise ValueError("unknown kind")

    def _content(self, offset: int, n_bytes: int, wanted: int) -> bytes:
        if n_bytes < wanted:
            raise ValueError("too short")
        content = os.pread(self.fd, wanted, offset)
        if len(content) != wanted:
            raise ValueError("cut off")
        return content

    def head_of(self, place: Place) -> dict[str, int]:
        """Executions and times of a place."""
        # The file of a program without a recorder ends with what it took.
        content = os.pread(self.fd, 8 * len(PLACE_FIELDS), place.offset).ljust(8 * len(PLACE_FIELDS), b"\0")
        words = struct.unpack(f"<{len(PLACE_FIELDS)}Q", content)
        return dict(zip(PLACE_FIELDS, words, strict=True))

    def counters_of(self, place: Place, used: int) -> tuple[Ints, Uint64s]:
        """(numbers, values) of the counters of a place that are not 0; `used`: counters that the process has given out."""
        import numpy as np

        begin = place.offset + PLACE_COUNTERS_BYTE
        end = begin + 8 * min(place.counters, used)
        numbers, values = [], []
        at = begin
        while at < end:
            try:
                data = os.lseek(self.fd, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    break  # no data from here to the end of the file
                raise
            if data >= end:
                break
            hole = min(os.lseek(self.fd, data, os.SEEK_HOLE), end)
            words = np.frombuffer(os.pread(self.fd, (hole - data) // 8 * 8, data), dtype="<u8")
            found = np.flatnonzero(words)
            numbers.append(found + (data - begin) // 8)
            values.append(words[found])
            at = hole
        if not numbers:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.uint64)
        return np.concatenate(numbers), np.concatenate(values)
