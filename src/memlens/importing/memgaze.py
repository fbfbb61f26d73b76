"""Traces of MemGaze: NAME.trace, with the static classes of NAME.binanlys and the names of NAME.hpcstruct.

A line of .binanlys describes an instruction: its address, class (0 constant, 1 strided, 2 irregular, 90 store), offset and
scale of its operand, how many constant loads its block implies, and in newer files the symbol's offset and name. Numbers are
hexadecimal with or without 0x.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from .. import _core
from ..errors import TraceError, os_reason
from ..registry import ImporterDescriptor
from . import survey
from .formats import Settings, feed_all, malformed, note_lines

if TYPE_CHECKING:
    from .sources import Source
    from .target import ImportTarget

_LINE = re.compile(rb"^(?:0x)?[0-9a-fA-F]{1,16} (?:0x)?[0-9a-fA-F]{1,16} [0-9]+ [0-9]+\.[0-9]+(?: [0-9]+){0,2}\s*$")
CLASSES = {0: "constant", 1: "strided", 2: "irregular"}
STORE = 90
_MOST_IMPLIED = 1 << 20
_RANGE = re.compile(r"\[(0x[0-9a-fA-F]+)-(0x[0-9a-fA-F]+)\)")


def recognises(beginning: bytes) -> bool:
    first = beginning.lstrip(b"\r\n").split(b"\n", 1)[0].rstrip(b"\r")
    return first.startswith(b"DSO:") or _LINE.match(first) is not None


def read_classes(path: str) -> list[dict[str, Any]]:
    """The rows of a .binanlys file: pc, class, kind, implied_constants, function."""
    rows: dict[int, dict[str, object]] = {}
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            for number, line in enumerate(file, 1):
                fields = line.split()
                if not fields:
                    continue
                row = _class_row(fields)
                if row is None:
                    raise TraceError(
                        f"{path}, line {number}: expected `INSTRUCTION CLASS OFFSET SCALE IMPLIED [SYMBOL-OFFSET SYMBOL]`, "
                        f"class 0, 1, 2 or {STORE}, the others in hex; found {line.rstrip()[:120]!r}",
                        hint="give the .binanlys of this trace with --classes",
                    )
                rows.setdefault(row["pc"], row)  # MemGaze takes the first of an address, too
    except OSError as error:
        raise TraceError(f"cannot read {path}: {os_reason(error)}", hint="give it with --classes FILE") from error
    return list(rows.values())


def _class_row(fields: list[str]) -> dict[str, Any] | None:
    if len(fields) < 5:
        return None
    try:
        pc, _, scale, implied = (int(fields[at], 16) for at in (0, 2, 3, 4))
        number = int(fields[1])
    except ValueError:
        return None
    if (number not in CLASSES and number != STORE) or not 0 <= implied < _MOST_IMPLIED or not 0 <= pc < 2**64:
        return None
    return {
        "pc": pc,
        "class": CLASSES.get(number),
        "kind": "store" if number == STORE else "load",
        "implied_constants": implied,
        "scale": scale,
        "function": " ".join(fields[6:]) or None,
    }


class Structure:
    """Function, file and line of addresses, from an .hpcstruct file (HPCToolkit's program structure)."""

    def __init__(self, path: str) -> None:
        self.module: str | None = None
        self._lines: list[tuple[int, int, str | None, str, int, str | None]] = []
        self._functions: list[tuple[int, str | None, str]] = []
        self._read(path)
        self._lines.sort(key=lambda entry: (entry[0], entry[1] - entry[0]))
        self._functions.sort(key=lambda entry: entry[0])
        self._line_begins = [entry[0] for entry in self._lines]
        self._function_begins = [entry[0] for entry in self._functions]

    def _read(self, path: str) -> None:
        from xml.etree import ElementTree

        scopes: list[tuple[str | None, str]] = [(None, "")]  # (file, function) of the elements around
        loops: list[str | None] = [None]
        try:
            for event, element in ElementTree.iterparse(path, events=("start", "end")):
                if event == "end":
                    if element.tag in ("F", "P", "A", "LM"):
                        scopes.pop()
                        element.clear()
                    if element.tag in ("P", "L"):
                        loops.pop()
                    continue
                file, function = scopes[-1]
                get = element.get
                if element.tag == "LM":
                    self.module = self.module or get("n")
                    scopes.append((None, ""))
                elif element.tag == "F":
                    scopes.append((get("n"), function))
                elif element.tag == "P":
                    name = get("ln") or (get("n") or "").rpartition(" [")[0] or get("n") or ""
                    scopes.append((file, name))
                    self._functions.extend((begin, file, name) for begin, _ in _ranges(get("v")))
                    loops.append(None)
                elif element.tag == "L":
                    place = os.path.basename(get("f") or file or "?")
                    loops.append(f"{place}:{(get('l') or '0').split('-')[0]}")
                elif element.tag == "A":  # inlined code
                    scopes.append((get("f") or file, get("n") or function))
                elif element.tag in ("S", "C"):
                    line = int((get("l") or "0").split("-")[0] or 0)
                    self._lines.extend(
                        (begin, end, file, function, line, loops[-1]) for begin, end in _ranges(get("v"))
                    )
        except OSError as error:
            raise TraceError(f"cannot read {path}: {os_reason(error)}", hint="give it with --structure FILE") from error
        except (ElementTree.ParseError, ValueError, IndexError) as error:
            raise TraceError(
                f"{path} is not a program structure file: {error}", hint="give it with --structure FILE"
            ) from error

    def _line(self, pc: int) -> tuple[int, int, str | None, str, int, str | None] | None:
        at = bisect_right(self._line_begins, pc) - 1
        for index in range(at, max(-1, at - 16), -1):
            if self._lines[index][0] <= pc < self._lines[index][1]:
                return self._lines[index]
        return None

    def find(self, pc: int) -> tuple[str | None, str | None, int]:
        """(function, file, line); None and 0 where it says nothing."""
        found = self._line(pc)
        if found is not None:
            return found[3] or None, found[2], found[4]
        at = bisect_right(self._function_begins, pc) - 1
        if at < 0:
            return None, None, 0
        _, file, function = self._functions[at]
        return function or None, file, 0

    def loop(self, pc: int) -> str | None:
        """The innermost loop around an instruction: file and line of its head."""
        found = self._line(pc)
        return None if found is None else found[5]


def _ranges(text: str | None) -> list[tuple[int, int]]:
    """``{[0x610-0x61e) [0x65a-0x65f)}`` as pairs.

    >>> _ranges("{[0x10-0x12)}")
    [(16, 18)]
    """
    return [(int(begin, 16), int(end, 16)) for begin, end in _RANGE.findall(text or "")]


def _beside(source: Source, given: str | None, suffix: str) -> str | None:
    """The file that was given, or NAME.suffix beside NAME.trace, if it is there."""
    if given is not None:
        return given
    stem = re.sub(r"\.trace(\.(gz|xz|zst|lz4|bz2))?$", "", source.name)
    path = stem + suffix
    return path if stem != source.name and os.path.isfile(path) else None


def read(target: ImportTarget, sources: list[Source], settings: Settings) -> dict[str, Any]:
    """Each file is a process; samples become windows, and what a recorded load implies goes with it."""
    known: dict[int, tuple[list[dict[str, object]], Structure | None]] = {}
    totals = dict.fromkeys(("samples", "implied_constants", "without_class", "malformed_lines"), 0)
    for number, source in enumerate(sources, 1):
        reader = _core.MemgazeImport(process=number, period=settings.period, skip_malformed=settings.skip_malformed)
        classes_path = _beside(source, settings.classes, ".binanlys")
        structure_path = _beside(source, settings.structure, ".hpcstruct")
        rows = read_classes(classes_path) if classes_path else []
        structure = Structure(structure_path) if structure_path else None
        for row in rows:
            reader.set_site(
                row["pc"],
                implied_constants=row["implied_constants"],
                is_store=row["kind"] == "store",
                is_scaled=row["scale"] > 1,
            )
        if not (feed_all(target, source, reader) and reader.finish()):
            raise malformed(source, reader)
        target.chunks(reader.take(end=True))
        _describe(target, source, reader, number)
        known[number] = (rows, structure)
        _note(target, source, reader, classes_path=classes_path)
        for name in ("samples", "implied_constants", "without_class"):
            totals[name] += getattr(reader, name)
        totals["malformed_lines"] += reader.malformed
        target.outcome.accesses += reader.accesses
        target.outcome.windows += reader.windows
        target.outcome.stream_bytes += reader.stream_bytes
    _add_sites(target, known)
    target.notes.append(
        "MemGaze names CPUs, not threads: each CPU is shown as one thread. Widths of accesses are not known."
    )
    if settings.period == 0:
        target.incomplete = True  # a sample is never all
        target.notes.append(
            "The sampling period was not given: each window represents only itself. --period N gives the number of loads "
            "from one sample to the next."
        )
    return totals


def _describe(target: ImportTarget, source: Source, reader: Any, number: int) -> None:
    name = os.path.basename(source.name)
    target.process(number, pid=number, name=name, begin_ns=reader.first_ns)
    for cpu in reader.cpus:
        target.thread(
            number, pid=number, thread=cpu + 1, name=f"CPU {cpu}", begin_ns=reader.first_ns, end_ns=reader.last_ns
        )


def _add_sites(target: ImportTarget, known: dict[int, tuple[list[dict[str, Any]], Structure | None]]) -> None:
    """What is known of each instruction: of those with a class, and of others that the trace has."""
    from ..capture.model.symbols import known_place
    from ..capture.reader import Capture

    codes = Capture(target.writer.path).replay.codes
    for number, (rows, structure) in known.items():
        classes = {row["pc"]: row for row in rows}
        executed = codes["address"][codes["process"] == number].tolist()
        for pc in sorted(classes.keys() | set(executed)):
            row = classes.get(pc, {})
            function, named_file, named_line = structure.find(pc) if structure else (None, None, 0)
            file, line = known_place(named_file, named_line)
            target.import_sites.append(
                {
                    "process": number,
                    "pc": pc,
                    "module": structure.module if structure else None,
                    "function": function or row.get("function"),
                    "file": file,
                    "line": line,
                    "loop": structure.loop(pc) if structure else None,
                    "class": row.get("class"),
                    "kind": row.get("kind"),
                    "stride_bytes": None,  # a class says that there is a stride, not how long it is
                    "implied_constants": row.get("implied_constants"),
                }
            )


def _note(target: ImportTarget, source: Source, reader: Any, *, classes_path: str | None) -> None:
    note_lines(target, source, reader)
    if classes_path is None:
        target.notes.append(
            f"{source.shown}: no .binanlys was found, so constant loads that others imply are missing; give it with --classes."
        )
    elif reader.without_class:
        target.notes.append(
            f"{source.shown}: {reader.without_class:,} of {reader.accesses:,} accesses are by instructions without a class."
        )
    if reader.scaled:
        target.notes.append(
            f"{source.shown}: {reader.scaled:,} of {reader.accesses:,} accesses have an index register with a scale, which MemGaze's "
            "normaliser adds unscaled: their addresses may be closer together than the data."
        )
    if reader.mixes_modules:
        target.notes.append(
            f"{source.shown}: accesses of several modules; instructions at the same offset of two of them are shown as one."
        )


DESCRIPTOR = ImporterDescriptor(
    name="memgaze",
    question="MemGaze: NAME.trace, with NAME.binanlys and NAME.hpcstruct beside it",
    recognises=recognises,
    read=read,
    settings=("skip_malformed", "period", "classes", "structure"),
    order=20,
    survey=lambda: survey.ptwrite("memgaze"),
)
