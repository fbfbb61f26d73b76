"""Traces of valgrind's lackey: ``valgrind --tool=lackey --trace-mem=yes --log-file=FILE PROGRAM``."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from .. import _core
from ..registry import ImporterDescriptor
from . import survey
from .formats import Settings, feed_all, malformed, note_lines
from .modules import map_modules

if TYPE_CHECKING:
    from .sources import Source
    from .target import ImportTarget

_LINE = re.compile(rb"^(?:I  | [LSM] )[0-9a-fA-F]{1,16},[0-9]{1,7}\s*$", re.MULTILINE)
_TITLE = re.compile(rb"^==[0-9:. ]{1,64}== Lackey, an example Valgrind tool", re.MULTILINE)
"""What valgrind prints before long option lists (-v) leave no line of the trace in a file's beginning."""
THREAD = 1


def recognises(beginning: bytes) -> bool:
    return b"\0" not in beginning and (_LINE.search(beginning) is not None or _TITLE.search(beginning) is not None)


def read(target: ImportTarget, sources: list[Source], settings: Settings) -> dict[str, Any]:
    """Each file is a process: valgrind writes one for each with ``--log-file=NAME.%p``."""
    totals = dict.fromkeys(("instructions", "loads", "stores", "malformed_lines"), 0)
    for number, source in enumerate(sources, 1):
        reader = _core.LackeyImport(process=number, skip_malformed=settings.skip_malformed)
        if not (feed_all(target, source, reader) and reader.finish()):
            raise malformed(source, reader)
        target.chunks(reader.take(end=True))
        target.chunks(reader.code_counts(), kind="code_count")
        _describe(target, source, reader, number)
        map_modules(target, number, settings.modules)
        note_lines(target, source, reader)
        for name in ("instructions", "loads", "stores"):
            totals[name] += getattr(reader, name)
        totals["malformed_lines"] += reader.malformed
        target.outcome.accesses += reader.accesses
        target.outcome.windows += reader.windows
        target.outcome.stream_bytes += reader.stream_bytes
    target.notes.append(
        "Lackey records neither time nor threads: an instruction is shown as one nanosecond, and all threads as one."
        if totals["instructions"]
        else "The trace has no instruction lines: accesses have no code, and each is shown as one nanosecond."
    )
    return totals


def _describe(target: ImportTarget, source: Source, reader: Any, number: int) -> None:
    command = reader.command.decode("utf-8", "replace")
    pid = reader.pids[0] if reader.pids else number
    name = os.path.basename(command.split(" ", 1)[0]) or os.path.basename(source.name)
    if command and target.command is None:
        target.command = command.split()
    target.process(number, pid=pid, name=name, begin_ns=max(reader.first_ns, 1))
    target.thread(number, pid=pid, thread=THREAD, name=name, begin_ns=max(reader.first_ns, 1), end_ns=reader.last_ns)
    if len(reader.pids) > 1:
        target.notes.append(
            f"{source.shown}: {len(reader.pids)} processes wrote into one file and cannot be separated; "
            "record with --log-file=NAME.%p."
        )
    if not reader.accesses:
        target.notes.append(f"{source.shown} has no accesses.")


DESCRIPTOR = ImporterDescriptor(
    name="lackey",
    question="valgrind --tool=lackey --trace-mem=yes --log-file=FILE PROGRAM",
    recognises=recognises,
    read=read,
    settings=("skip_malformed", "modules"),
    order=10,
    survey=lambda: survey.tool("lackey", "valgrind", "sudo apt-get install valgrind"),
)
