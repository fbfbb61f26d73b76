"""The arena of compile-time counting (format/memlens_count.h): made here, written by counted processes, read back here.

Owns the byte layout. The file is sparse and huge: only pages that hold data are read. Whatever a process left there,
half-written or damaged, costs that entry and is counted; nothing in it is trusted.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import struct
from dataclasses import dataclass, field
from typing import Any

from .files import open_regular
from .os_names import text_of

COUNTERS = "count"
"""What meta.json calls the collector of compiled-in counters, and what was found in their arena."""
VARIABLE = "MEMLENS_COUNT"
MAGIC = 0x544E554F434C454D
VERSION = 2
MOST_ENTRIES = 1 << 20
DIRECTORY_BYTE = 4096
ENTRY_BYTES = 64
PLACE_COUNTERS_BYTE = 4096
EVENTS = 4
FILE_BYTES = 1 << 46
COUNTERS_MAX = 1 << 20
"""ML_COUNT_WORDS_MAX: what a process uses of an array at most."""
FREE_COUNTERS = 1 << 15
"""The first of each array: code that is not registered yet counts there."""
THREADS_MAX = 4096
PAGE_MOST = 1 << 16
"""The largest page size of a machine: what processes map begins at a multiple."""
PROCESS, MODULE, NODE, PLACE, GROUPS = 1, 2, 3, 4, 5
GROUPS_MAX = 64
SPAN, SPAN_BYTE = struct.Struct("<3Q"), 4032
"""Of a node: kept, threads inside and since when, ticks. Behind its name."""
DURATIONS = 64
ENDED, UNATTRIBUTED = 1, 2
EVENTS_TOLD, EVENT_0_READ = 8, 16
"""Of records: which events have a value is known; the first event has one, the others' bits follow."""
SAMPLE_ALL, SAMPLE_EVERY, SAMPLE_RANDOM, SAMPLE_BUDGET = 0, 1, 2, 3

HEADER = struct.Struct(f"<15Q{EVENTS}I{EVENTS}QQ3Q")
ENTRY = struct.Struct("<IIQQQIIII16x")
PROCESS_FIELDS = (
    "parent_pid", "ticks_per_second", "start_ticks", "start_ns", "last_ticks", "last_ns", "read_cost_ticks",
    "switch_cost_ticks", "clock", "counters_used", "functions_refused", "threads_started", "threads_merged",
    "regions_refused", "events_open", "event_error", "events_mask", "switches_ignored", "regions_too_deep",
    "trace_state", "trace_executed", "trace_windows", "trace_recorded", "trace_implied", "trace_dropped_windows",
    "trace_dropped", "trace_late", "trace_torn", "trace_interrupted", "trace_unregistered",
)  # fmt: skip
TRACE_SHARE_FIELDS = ("trace_executed", "trace_windows", "trace_recorded", "trace_implied")
TRACE_SHARE, TRACE_SHARES, TRACE_SHARES_BYTE = struct.Struct("<4Q32x"), 48, 1024
"""A cache line for each thread that traces, in the page of the process: what it adds to these."""
MODULE_HEAD = struct.Struct("<6QII64s")
PLACE_FIELDS = (
    "entered", "counted", "untouched", "counted_ticks", "untouched_ticks", "counted_self_ticks", "untouched_self_ticks",
    "least_ticks", "most_ticks", "open_ticks", "abandoned", "recursions",
    *(f"counted_event_{n}" for n in range(EVENTS)), *(f"untouched_event_{n}" for n in range(EVENTS)),
    "event_enabled_ns", "event_running_ns", "first_ticks", "last_ticks",
    "joined", "joined_ticks", "joined_open_ticks", "events_read", "event_unseen_ns",
    "unspanned_ticks", "overhead_ticks", "switch_ticks",
    *(f"{name}_{n}" for name in ("counted_of", "untouched_of", "untouched_ticks_of") for n in range(DURATIONS)),
)  # fmt: skip
assert ENTRY.size == ENTRY_BYTES and HEADER.size == 200 and MODULE_HEAD.size == 120

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
            padded = [*events, *[(0, 0)] * (EVENTS - len(events))]
            first_byte = DIRECTORY_BYTE + MOST_ENTRIES * ENTRY_BYTES
            place = (first_byte + PAGE_MOST - 1) // PAGE_MOST * PAGE_MOST if selection else 0
            behind = place + len(selection) if selection else first_byte
            header = HEADER.pack(
                MAGIC, VERSION, *self.token, file_bytes, behind, 0, 0, counters_max, sampling, sample_first,
                sample_every, seed, budget_ppm, threads_max, *(kind for kind, _ in padded),
                *(config for _, config in padded), len(events), place, len(selection),
                sample_groups,
            )  # fmt: skip
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
            header = (0,) * 15
        if header[0] != MAGIC or header[1] != VERSION or not header[8]:
            self.close()
            raise ValueError("not an arena of this version")
        self.token, self.file_bytes, self.counters_max = (header[2], header[3]), header[4], header[8]
        return self

    @property
    def value(self) -> str:
        """What leads counted processes here, in MEMLENS_COUNT."""
        return f"{self.token[0]:x}:{self.token[1]:x}:/proc/{os.getpid()}/fd/{self.fd}"

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _header(self) -> tuple[int, ...]:
        return HEADER.unpack(os.pread(self.fd, HEADER.size, 0))

    @property
    def claimed(self) -> int:
        """Entries that processes have asked for."""
        return self._header()[6]

    @property
    def refused(self) -> int:
        """Claims that found no room."""
        return self._header()[7] + max(0, self.claimed - MOST_ENTRIES)

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
                self._add(image, index, kind, *entry[3:])
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
                    for name, told in zip(TRACE_SHARE_FIELDS, share, strict=True):
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

    def counters_of(self, place: Place, used: int) -> tuple[Any, Any]:
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
