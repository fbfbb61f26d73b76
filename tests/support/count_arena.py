"""An arena as the recorder makes it (format/memlens_count.h), and what counted programs left in it."""

from __future__ import annotations

import ctypes
import os
import secrets
import subprocess
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

MAGIC = int.from_bytes(b"MELCOUNT", "little")
ENTRIES = 1 << 20
DIRECTORY_BYTE = 4096
MAX_OF_FUNCTION = 32768
PLACE_COUNTERS = 4096
PROCESS, MODULE, NODE, PLACE, GROUPS = 1, 2, 3, 4, 5
ENDED, UNATTRIBUTED = 1, 2
ALL, EVERY, RANDOM, BUDGET = 0, 1, 2, 3
U64, U32 = ctypes.c_uint64, ctypes.c_uint32


def u64(*names: str) -> list[tuple[str, type]]:
    return [(name, U64) for name in names]


class Header(ctypes.Structure):
    _fields_ = [
        *u64("magic", "version"),
        ("token", U64 * 2),
        *u64("file_bytes", "next_byte", "entries", "refused", "counters_max", "sampling", "sample_first"),
        *u64("sample_every", "seed", "budget_ppm", "threads_max"),
        ("event_type", U32 * 4),
        ("event_config", U64 * 4),
        *u64("events", "selection_offset", "selection_bytes", "sample_groups"),
    ]


class Entry(ctypes.Structure):
    _fields_ = [
        ("kind", U32),
        ("pid", U32),
        *u64("born_ns", "offset", "bytes"),
        *[(name, U32) for name in ("thread", "node", "parent", "flags")],
        ("reserved", U64 * 2),
    ]


class ProcessContent(ctypes.Structure):
    _fields_ = u64(
        *("parent_pid", "ticks_per_second", "start_ticks", "start_ns", "last_ticks", "last_ns", "read_cost_ticks"),
        *("switch_cost_ticks", "clock", "counters_used", "functions_refused", "threads_started", "threads_merged"),
        *("regions_refused", "events_open", "event_error", "events_mask", "switches_ignored", "regions_too_deep"),
        *("trace_state", "trace_executed", "trace_windows", "trace_recorded", "trace_implied", "trace_dropped_windows"),
        *("trace_dropped", "trace_late", "trace_torn", "trace_interrupted", "trace_unregistered"),
    )


class ModuleContent(ctypes.Structure):
    _fields_ = [
        *u64("first_counter", "counters", "functions", "first_site", "sites", "load_bias"),
        ("build_id_bytes", U32),
        ("path_bytes", U32),
        ("build_id", ctypes.c_uint8 * 64),
    ]


class PlaceContent(ctypes.Structure):
    _fields_ = [
        *u64("entered", "counted", "untouched", "counted_ticks", "untouched_ticks", "counted_self_ticks"),
        *u64("untouched_self_ticks", "least_ticks", "most_ticks", "open_ticks", "abandoned", "recursions"),
        ("counted_events", U64 * 4),
        ("untouched_events", U64 * 4),
        *u64("event_enabled_ns", "event_running_ns", "first_ticks", "last_ticks"),
        *u64("joined", "joined_ticks", "joined_open_ticks", "events_read", "event_unseen_ns"),
        *u64("unspanned_ticks", "overhead_ticks", "switch_ticks"),
        *[(name, U64 * 64) for name in ("counted_of", "untouched_of", "untouched_ticks_of")],
    ]


@dataclass
class Module:
    path: str
    content: ModuleContent


@dataclass
class Place:
    path: str
    thread: int
    flags: int
    content: PlaceContent
    counters: dict[str, np.ndarray]
    """Of each module, by the name of its file."""


@dataclass
class Process:
    pid: int
    content: ProcessContent
    modules: list[Module] = field(default_factory=list)
    paths: dict[int, str] = field(default_factory=lambda: {0: ""})
    places: list[Place] = field(default_factory=list)

    def total(self, path: str | None = None) -> int:
        """Sum of all counters in a region, or of everything."""
        return sum(int(c.sum()) for p in self.places if path is None or p.path == path for c in p.counters.values())

    def totals(self) -> dict[str, int]:
        """Of each region that counted something."""
        return {path: total for path in self.paths.values() if (total := self.total(path))}

    def sum(self, path: str, name: str) -> int:
        return sum(getattr(p.content, name) for p in self.places if p.path == path)


class Arena:
    def __init__(
        self, *, counters_max: int = MAX_OF_FUNCTION + 4096, file_bytes: int = 1 << 40, **settings: int
    ) -> None:
        self.fd = os.memfd_create("memlens-count")
        os.truncate(self.fd, file_bytes)
        self.token = (secrets.randbits(64) | 1, secrets.randbits(64) | 1)
        directory_end = DIRECTORY_BYTE + ENTRIES * ctypes.sizeof(Entry)
        header = Header(MAGIC, 2, (U64 * 2)(*self.token), file_bytes, directory_end)
        header.counters_max = counters_max
        header.threads_max = settings.pop("threads_max", 256)
        events = settings.pop("event_list", ())
        for i, (kind, config) in enumerate(events):  # type: ignore[arg-type,misc]
            header.event_type[i], header.event_config[i] = kind, config
        header.events = len(events)  # type: ignore[arg-type]
        for name, value in settings.items():
            setattr(header, name, value)
        os.pwrite(self.fd, bytes(header), 0)

    def close(self) -> None:
        os.close(self.fd)

    @property
    def variable(self) -> str:
        return f"{self.token[0]:x}:{self.token[1]:x}:/proc/{os.getpid()}/fd/{self.fd}"

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        return {**os.environ, "MEMLENS_COUNT": self.variable, **(more or {})}

    def run(
        self,
        *command: str | Path,
        environment: Mapping[str, str] | None = None,
        status: int = 0,
        timeout: float = 120,
        launcher: Sequence[str] = (),
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*launcher, *map(str, command)],
            env=self.environment(environment),
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
        return done

    def _read(self, kind: type[ctypes.Structure], offset: int) -> ctypes.Structure:
        return kind.from_buffer_copy(os.pread(self.fd, ctypes.sizeof(kind), offset))

    @property
    def header(self) -> Header:
        return self._read(Header, 0)  # type: ignore[return-value]

    def _range(self, offset: int, n_bytes: int) -> bytes:
        """Reads without making pages of holes."""
        out = bytearray(n_bytes)
        at = offset
        while at < offset + n_bytes:
            try:
                at = os.lseek(self.fd, at, os.SEEK_DATA)
            except OSError:
                break
            if at >= offset + n_bytes:
                break
            end = min(os.lseek(self.fd, at, os.SEEK_HOLE), offset + n_bytes)
            out[at - offset : end - offset] = os.pread(self.fd, end - at, at)
            at = end
        return bytes(out)

    def processes(self) -> list[Process]:
        size = ctypes.sizeof(Entry)
        count = min(self.header.entries, ENTRIES)
        entries = [Entry.from_buffer_copy(os.pread(self.fd, size, DIRECTORY_BYTE + i * size)) for i in range(count)]
        images: dict[tuple[int, int], list[Entry]] = defaultdict(list)
        for entry in entries:
            if entry.kind:
                images[entry.pid, entry.born_ns].append(entry)
        return [self._process(own) for own in images.values()]

    def process(self) -> Process:
        found = self.processes()
        assert len(found) == 1, [p.pid for p in found]
        return found[0]

    def _process(self, entries: list[Entry]) -> Process:
        (first,) = [e for e in entries if e.kind == PROCESS]
        process = Process(first.pid, self._read(ProcessContent, first.offset))  # type: ignore[arg-type]
        shares = np.frombuffer(os.pread(self.fd, 48 * 64, first.offset + 1024), dtype=np.uint64).reshape(48, 8)
        for number, name in enumerate(("trace_executed", "trace_windows", "trace_recorded", "trace_implied")):
            setattr(process.content, name, getattr(process.content, name) + int(shares[:, number].sum()))
        for entry in entries:
            if entry.kind == MODULE:
                content: ModuleContent = self._read(ModuleContent, entry.offset)  # type: ignore[assignment]
                path = os.pread(self.fd, content.path_bytes, entry.offset + ctypes.sizeof(ModuleContent)).decode()
                process.modules.append(Module(path, content))
        nodes = {e.node: e for e in entries if e.kind == NODE}
        for number in sorted(nodes):  # parents first: their numbers are smaller
            name = os.pread(self.fd, nodes[number].bytes, nodes[number].offset).rstrip(b"\0").decode()
            process.paths[number] = f"{process.paths[nodes[number].parent]}/{name}"
        for entry in entries:
            if entry.kind == PLACE:
                place: PlaceContent = self._read(PlaceContent, entry.offset)  # type: ignore[assignment]
                process.places.append(
                    Place(process.paths[entry.node], entry.thread, entry.flags, place, self._counters(process, entry))
                )
        return process

    def _counters(self, process: Process, entry: Entry) -> dict[str, np.ndarray]:
        counters = {}
        for module in process.modules:
            first, count = module.content.first_counter, module.content.counters
            data = self._range(entry.offset + PLACE_COUNTERS + first * 8, count * 8)
            counters[Path(module.path).name] = np.frombuffer(data, np.uint64)
        return counters
