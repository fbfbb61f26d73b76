"""DynamoRIO's offline memory traces: the directory that ``drrun -t drmemtrace -offline`` leaves, or its files.

Trace files lie in DIR/trace, one a thread (or a core), plain or compressed. What lies in DIR/raw is what the tracer wrote
first: DynamoRIO itself makes trace files of it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import _core
from ..errors import TraceError
from ..registry import ImporterDescriptor
from . import survey
from .formats import Settings
from .sources import files_below

if TYPE_CHECKING:
    from .sources import Source
    from .target import ImportTarget

PATTERNS = ("*.trace", "*.trace.gz", "*.trace.zip", "*.trace.zst", "*.trace.lz4", "*.trace.sz", "*.memtrace.*")
RAW_PATTERNS = ("*.raw", "*.raw.*")
HEADER = b"\x19\x00\x00\x00"
"""Type 25, size 0; the version follows."""
CORE_SHARDED = 0x10000


def recognises(beginning: bytes) -> bool:
    return beginning.startswith(HEADER) and len(beginning) >= 12


def expand(directory: Path) -> list[str]:
    """Its trace files; none when it is no such directory."""
    for folder in (directory / "trace", directory):
        found = files_below(folder, PATTERNS)
        if found:
            return [str(path) for path in found]
    for folder in (directory / "raw", directory):
        if files_below(folder, RAW_PATTERNS):
            raise TraceError(
                f"{directory} has raw files only, which DynamoRIO must convert first",
                hint=f"drrun -t drmemtrace -indir {directory}, or drraw2trace -indir {directory}; then import it again",
            )
    return []


def read(target: ImportTarget, sources: list[Source], settings: Settings) -> dict[str, Any]:
    reader: Any = _core.DrmemtraceImport()
    cut: list[str] = []
    for source in sources:
        reader.begin_file()
        for block in source.blocks():
            if not reader.feed(block):
                byte, text = reader.fault
                raise TraceError(
                    f"{source.shown}, byte {byte:,} of its content: {text}",
                    hint="give the files that DynamoRIO's drmemtrace wrote, of a 64-bit program",
                )
            target.chunks(reader.take())
        if not reader.end_file():
            raise TraceError(
                f"{source.shown} has {source.read_bytes} bytes of content: less than the header of a drmemtrace file",
                hint="copy or record it again",
            )
        if not reader.has_footer or reader.left_bytes:
            cut.append(source.shown)
    target.chunks(reader.take(end=True))
    target.chunks(reader.code_counts(), kind="code_count")
    _describe(target, reader, sources)
    _note(target, reader, cut)
    target.outcome.accesses = reader.accesses
    target.outcome.windows = reader.windows
    target.outcome.stream_bytes = reader.stream_bytes
    names = ("version", "instructions", "loads", "stores", "prefetches", "flushes", "gaps")
    return {name: getattr(reader, name) for name in names} | {"threads": len(reader.threads)}


def _describe(target: ImportTarget, reader: Any, sources: list[Source]) -> None:
    name = _program(sources)
    threads = reader.threads
    begins: dict[int, int] = {}
    for process, _, _, first_ns, _, _ in threads:
        begins[process] = min(first_ns, begins.get(process, first_ns))
    for process, pid, tid, first_ns, last_ns, accesses in threads:
        begin_ns = begins.pop(process, None)
        if begin_ns is not None:
            target.process(process, pid=pid, name=name, begin_ns=begin_ns)
        if accesses:
            target.thread(process, pid=pid, thread=tid, name=name, begin_ns=first_ns, end_ns=last_ns)


def _program(sources: list[Source]) -> str:
    """drmemtrace.PROGRAM.PID.NUMBER.trace.zip → PROGRAM."""
    parts = os.path.basename(sources[0].name).split(".")
    return parts[1] if parts[0] == "drmemtrace" and len(parts) > 2 else parts[0]


def _note(target: ImportTarget, reader: Any, cut: list[str]) -> None:
    if cut:
        target.incomplete = True
        more = f" and {len(cut) - 1} more" if len(cut) > 1 else ""
        target.notes.append(f"{cut[0]}{more} ends without the footer of a trace: it is truncated.")
    if reader.is_filtered:
        target.incomplete = True
        target.notes.append(
            "The tracer left out accesses that hit in its own model of a small cache (-L0_filter): "
            "figures are of the other accesses only."
        )
    if reader.gaps:
        target.incomplete = True
        target.notes.append(
            f"Tracing was switched off {reader.gaps:,} times (-trace_for_instrs, -retrace_every_instrs): "
            "each stretch is a window that represents only itself."
        )
    if reader.file_type & CORE_SHARDED:
        target.notes.append(
            "Each file holds the accesses of one core: a thread that migrated has windows in several files."
        )
    if reader.prefetches:
        target.notes.append(f"{reader.prefetches:,} prefetches are not accesses and were left out.")
    if not reader.accesses:
        target.notes.append("The trace has no data accesses.")


DESCRIPTOR = ImporterDescriptor(
    name="drmemtrace",
    question="DynamoRIO: the directory of drrun -t drmemtrace -offline, or its *.trace files",
    recognises=recognises,
    read=read,
    expand=expand,
    order=30,
    survey=lambda: survey.tool("drmemtrace", "drrun", "install DynamoRIO, from dynamorio.org"),
)
