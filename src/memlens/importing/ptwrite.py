"""Addresses that a program wrote with Intel's ptwrite, from a perf.data with Processor Trace.

    perf record -e intel_pt/ptw,fup_on_ptw/u PROGRAM

The file is walked twice: first its records (threads, context switches, code), then the trace itself, one buffer of the
kernel after the other; packets are decoded by native/core/importing.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .. import _core
from ..errors import TraceError
from ..registry import ImporterDescriptor
from . import perf_data, survey
from .formats import Settings
from .perf_data import NOBODY, PerfData, Record
from .sources import BLOCK_BYTES, STDIN

if TYPE_CHECKING:
    from .sources import Source
    from .target import ImportTarget

INTEL_PT = 1
EXECUTABLE = 4
MOST_STREAM_SWITCHES = 20_000_000
"""Context switches that all buffers of one CPU are walked with together."""
(PMU_TYPE, TIME_SHIFT, TIME_MULT, TIME_ZERO, CAP_USER_TIME_ZERO, SNAPSHOT_MODE, MTC_FREQ_BITS, TSC_CTC_N, TSC_CTC_D) = (
    0, 1, 2, 3, 4, 8, 11, 12, 13,
)  # fmt: skip


@dataclass(frozen=True)
class Piece:
    """A part of a buffer's stream, and where it lies in the file."""

    at: int
    size: int
    offset: int
    tid: int
    cpu: int


@dataclass
class Walk:
    """What the records say, before any packet is decoded."""

    info: tuple[int, ...] = ()
    pieces: dict[int, list[Piece]] = field(default_factory=lambda: defaultdict(list))
    switches: dict[int, list[tuple[int, int, int]]] = field(default_factory=lambda: defaultdict(list))
    truncations: dict[tuple[int, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    processes: dict[int, int] = field(default_factory=dict)
    """Number of each pid."""
    pids: dict[int, int] = field(default_factory=dict)
    """Pid of each thread."""
    names: dict[int, str] = field(default_factory=dict)
    mappings: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    lost: int = 0

    def process(self, pid: int) -> int:
        """The number of a pid in the capture; 0 for the idle task and for nobody."""
        return 0 if pid in (0, NOBODY) else self.processes.setdefault(pid, len(self.processes) + 1)

    def number(self, index: int) -> int:
        return self.info[index] if index < len(self.info) else 0


def recognises(beginning: bytes) -> bool:
    return beginning.startswith(perf_data.MAGIC)


def read(target: ImportTarget, sources: list[Source], settings: Settings) -> dict[str, object]:
    if len(sources) != 1:
        raise TraceError(f"{len(sources)} perf.data files were given", hint="import each into a capture of its own")
    source = sources[0]
    if source.name == STDIN or source.compression:
        raise TraceError(
            f"{source.shown} is read twice, so it must be a plain file", hint="save or decompress it first"
        )
    with open(source.name, "rb") as file:
        data = PerfData(file, source.name)
        walk = _walk(data)
        if not walk.pieces:
            raise TraceError(
                f"{source.shown} has no Processor Trace in it",
                hint="record with: perf record -e intel_pt/ptw,fup_on_ptw/u",
            )
        if walk.number(0) == 0 and not walk.info:
            raise TraceError(
                f"{source.shown} does not say which kind of trace it has; only Intel's Processor Trace is read"
            )
        reader = _core.PtWriteImport(clock=_clock(data, walk))
        _check_streams(source.shown, walk)
        for index in sorted(walk.pieces):
            _read_stream(target, reader, data, walk, walk.pieces[index])
        source.read_bytes = sum(piece.size for pieces in walk.pieces.values() for piece in pieces)
    target.chunks(reader.take(end=True))
    target.losses(reader.take_losses(), cause="ring_full")
    _describe(target, reader, walk)
    _note(target, reader, walk, data)
    target.outcome.accesses = reader.accesses
    target.outcome.windows = reader.windows
    target.outcome.stream_bytes = reader.stream_bytes
    return dict(reader.counts)


# ---- the records ------------------------------------------------------------------------


def _walk(data: PerfData) -> Walk:
    walk = Walk()
    for record in data.records():
        handler = _HANDLERS.get(record.type)
        if handler is not None:
            try:
                handler(walk, record)
            except struct.error as error:
                raise TraceError(
                    f"{data.name}: a record of type {record.type} before byte {record.at:,} is too short; the file is damaged"
                ) from error
    for switches in walk.switches.values():
        switches.sort()
    return walk


def _take_info(walk: Walk, record: Record) -> None:
    (kind,) = struct.unpack_from("<I", record.body)
    if kind != INTEL_PT:
        raise TraceError(
            f"the trace in this perf.data is of kind {kind}; only Intel's Processor Trace (1) has ptwrite",
            hint="record with: perf record -e intel_pt/ptw,fup_on_ptw/u",
        )
    walk.info = struct.unpack_from(f"<{(len(record.body) - 8) // 8}Q", record.body, 8)


def _take_auxtrace(walk: Walk, record: Record) -> None:
    _, offset, _, index, tid, cpu = struct.unpack_from("<QQQIII", record.body)
    size = record.following_bytes  # the file may be cut, or claim more than it has
    if size:
        walk.pieces[index].append(Piece(record.at, size, offset, tid, cpu))


def _take_aux(walk: Walk, record: Record) -> None:
    offset, size, flags = struct.unpack_from("<QQQ", record.body)
    if flags & perf_data.AUX_TRUNCATED:
        who = record.identity
        for key in ((who.cpu, NOBODY), (NOBODY, who.tid)):
            walk.truncations[key].append(offset + size)


def _take_itrace_start(walk: Walk, record: Record) -> None:
    pid, tid = struct.unpack_from("<II", record.body)
    walk.pids[tid] = pid
    _runs(walk, record.identity.cpu, record.identity.time_ns, pid, tid)


def _take_switch(walk: Walk, record: Record) -> None:
    who = record.identity
    if record.misc & perf_data.SWITCH_OUT:
        if record.type == perf_data.SWITCH_CPU_WIDE:
            pid, tid = struct.unpack_from("<II", record.body)
            _runs(walk, who.cpu, who.time_ns, pid, tid)
    elif who.tid != NOBODY:
        _runs(walk, who.cpu, who.time_ns, who.pid, who.tid)


def _runs(walk: Walk, cpu: int, time_ns: int, pid: int, tid: int) -> None:
    if cpu != NOBODY:
        walk.switches[cpu].append((time_ns, walk.process(pid), tid))
    if tid not in (0, NOBODY):
        walk.pids.setdefault(tid, pid)
        walk.process(pid)


def _take_comm(walk: Walk, record: Record) -> None:
    pid, tid = struct.unpack_from("<II", record.body)
    walk.pids[tid] = pid
    name = record.body[8:].split(b"\0", 1)[0].decode("utf-8", "replace")
    walk.names[tid] = name


def _take_fork(walk: Walk, record: Record) -> None:
    pid, _, tid, _ = struct.unpack_from("<IIII", record.body)
    walk.pids[tid] = pid


def _take_mmap2(walk: Walk, record: Record) -> None:
    pid, _, address, size, offset, major, minor, inode, _ = struct.unpack_from("<IIQQQIIQQ", record.body)
    protection, _ = struct.unpack_from("<II", record.body, 56)
    path = record.body[64:].split(b"\0", 1)[0].decode("utf-8", "surrogateescape")
    if not protection & EXECUTABLE or record.misc & 7 == 1 or pid == NOBODY:  # 1: code of the kernel
        return
    build_id = bool(record.misc & 0x4000)  # the place of device and inode
    walk.mappings.append(
        (pid, dict(time_ns=record.identity.time_ns, address=address, size=size, file_offset=offset, path=path,
                   protection=protection & 7, inode=_inode(path) if build_id else inode,
                   device_major=0 if build_id else major, device_minor=0 if build_id else minor)),
    )  # fmt: skip


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0


def _take_lost(walk: Walk, record: Record) -> None:
    walk.lost += struct.unpack_from("<QQ", record.body)[1]


_HANDLERS = {
    perf_data.AUXTRACE_INFO: _take_info,
    perf_data.AUXTRACE: _take_auxtrace,
    perf_data.AUX: _take_aux,
    perf_data.ITRACE_START: _take_itrace_start,
    perf_data.SWITCH: _take_switch,
    perf_data.SWITCH_CPU_WIDE: _take_switch,
    perf_data.COMM: _take_comm,
    perf_data.FORK: _take_fork,
    perf_data.MMAP2: _take_mmap2,
    perf_data.LOST: _take_lost,
}


def _clock(data: PerfData, walk: Walk) -> tuple[int, int, int, int, int, int]:
    """How the cycle counter becomes perf's time, and the crystal clock the cycle counter."""
    event = next((a for a in data.events if a.type == walk.number(PMU_TYPE)), None)
    bits = walk.number(MTC_FREQ_BITS)
    mtc_shift = (event.config & bits) >> ((bits & -bits).bit_length() - 1) if event and bits else 0
    known = bool(walk.number(CAP_USER_TIME_ZERO))
    return (
        walk.number(TIME_ZERO) & (2**64 - 1) if known else 0,
        walk.number(TIME_MULT) & 0xFFFFFFFF if known else 0,
        min(walk.number(TIME_SHIFT), 63) if known else 0,
        walk.number(TSC_CTC_N) & 0xFFFFFFFF,
        walk.number(TSC_CTC_D) & 0xFFFFFFFF,
        min(mtc_shift, 15),
    )


# ---- the trace ------------------------------------------------------------------------------


def _check_streams(shown: str, walk: Walk) -> None:
    """A CPU has one buffer: many that name one CPU would each be walked with all of its context switches."""
    streams: dict[int, int] = defaultdict(int)
    for pieces in walk.pieces.values():
        if pieces[0].tid == NOBODY:
            streams[pieces[0].cpu] += 1
    for cpu, count in streams.items():
        if count * len(walk.switches.get(cpu, ())) > MOST_STREAM_SWITCHES:
            raise TraceError(f"{shown}: {count:,} buffers of CPU {cpu}; the file is damaged", hint="record it again")


def _read_stream(target: ImportTarget, reader: Any, data: PerfData, walk: Walk, pieces: list[Piece]) -> None:
    """One buffer of the kernel, in the order in which it was written out."""
    tid, cpu = pieces[0].tid, pieces[0].cpu
    process = walk.process(walk.pids.get(tid, tid))
    if not process and len(walk.processes) == 1:
        process = 1  # nobody else could have run
    reader.begin_stream(cpu=cpu, process=process, thread=0 if tid == NOBODY else tid)
    if tid == NOBODY:
        for time_ns, number, thread in walk.switches.get(cpu, ()):
            reader.add_switch(time_ns, number, thread)
    stops = sorted(set(walk.truncations.get((cpu, NOBODY) if cpu != NOBODY else (NOBODY, tid), ())))
    reached: int | None = None
    for piece in pieces:
        if reached is not None and piece.offset != reached:
            reader.break_stream(lost=not walk.number(SNAPSHOT_MODE))
        reached = piece.offset + piece.size
        here = stops[bisect_right(stops, piece.offset) : bisect_right(stops, reached)]
        inside = [stop - piece.offset for stop in here]
        begin = 0
        for end in (*inside, piece.size):
            for at in range(begin, end, BLOCK_BYTES):
                reader.feed(data.data(piece.at + at, min(BLOCK_BYTES, end - at)))
                target.chunks(reader.take())
                target.losses(reader.take_losses(), cause="ring_full")
            begin = end
            if end in inside:
                reader.break_stream(lost=True)
    reader.end_stream()
    target.losses(reader.take_losses(), cause="ring_full")


def _describe(target: ImportTarget, reader: Any, walk: Walk) -> None:
    pid_of = {number: pid for pid, number in walk.processes.items()}
    threads = reader.threads
    begins: dict[int, int] = {}
    for process, _, first_ns, _, _ in threads:
        begins[process] = min(first_ns, begins.get(process, first_ns))
    seen = set(begins)
    for process, thread, first_ns, last_ns, _ in threads:
        pid = pid_of.get(process, thread)
        begin_ns = begins.pop(process, None)
        if begin_ns is not None:
            target.process(process, pid=pid, name=walk.names.get(pid, str(pid)), begin_ns=begin_ns)
        name = walk.names.get(thread) or walk.names.get(pid, "")
        target.thread(process, pid=pid, thread=thread, name=name, begin_ns=first_ns, end_ns=last_ns)
    for pid, mapping in walk.mappings:
        if walk.processes.get(pid) in seen:
            target.mapping(walk.processes[pid], **mapping)


def _note(target: ImportTarget, reader: Any, walk: Walk, data: PerfData) -> None:
    counts = reader.counts
    notes = target.notes
    notes.append(
        "Accesses are those that the program wrote with ptwrite, not all. Widths are not known, and each is shown as a load."
    )
    if not reader.accesses:
        notes.append(
            "No ptwrite packet was found: was the program built with ptwrite, and recorded with intel_pt/ptw/?"
        )
    holes = counts["overflows"] + counts["damaged"]
    if holes:
        notes.append(
            f"{counts['overflows']:,} overflows and {counts['damaged']:,} damaged places in the trace: the addresses "
            "written there are missing (table losses has the times)."
        )
    if counts["breaks"]:
        notes.append(f"{counts['breaks']:,} parts of buffers do not continue the part before them.")
    if counts["without_ip"]:
        notes.append(f"{counts['without_ip']:,} accesses have no instruction: record with fup_on_ptw.")
    if counts["unknown_thread"]:
        notes.append(
            f"{counts['unknown_thread']:,} accesses were left out: it is not known which thread ran on the CPU."
        )
    if data.truncated_at is not None:
        notes.append(f"The file is truncated at byte {data.truncated_at:,}; what came later is missing.")
    if walk.lost:
        notes.append(f"perf lost {walk.lost:,} records; context switches may be missing.")
    if not walk.number(CAP_USER_TIME_ZERO):
        notes.append("The file has no conversion from cycles to nanoseconds: times are in cycles.")
    target.incomplete = True  # nobody knows what was not written


DESCRIPTOR = ImporterDescriptor(
    name="ptwrite",
    question="perf record -e intel_pt/ptw,fup_on_ptw/u: addresses written with ptwrite",
    recognises=recognises,
    read=read,
    order=40,
    survey=lambda: survey.ptwrite("ptwrite"),
)
