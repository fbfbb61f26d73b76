"""What a format of traces is, which there are, and which of them a file has."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import TraceError
from .sources import STDIN, Source

if TYPE_CHECKING:
    from .target import ImportTarget, Outcome

NAMES = ("lackey", "memgaze", "drmemtrace", "ptwrite")
"""Modules of this package with a ``FORMAT``, in the order in which they are asked."""


@dataclass(frozen=True)
class Settings:
    """What a person said besides the files."""

    skip_malformed: bool = False
    period: int = 0
    classes: str | None = None
    structure: str | None = None
    modules: tuple[tuple[str, int], ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "skip_malformed": self.skip_malformed,
            "period": self.period,
            "classes": self.classes,
            "structure": self.structure,
            "modules": [f"{path}@{bias:#x}" for path, bias in self.modules],
        }


@dataclass(frozen=True)
class Format:
    """One kind of trace."""

    name: str
    text: str
    """What it is, in one line of help."""
    recognises: Callable[[bytes], bool]
    """Whether a file that begins like this has it."""
    read: Callable[[ImportTarget, list[Source], Settings], dict[str, Any]]
    """Reads all sources into the target; returns what it counted."""
    expand: Callable[[Path], list[str]] | None = None
    """The files of a directory."""
    options: tuple[str, ...] = field(default=())
    """Settings that mean something to it."""


def load(name: str) -> Format:
    module = importlib.import_module(f".{name}", __package__)
    found: Format = module.FORMAT
    return found


def import_trace(
    names: list[str],
    output: Path,
    *,
    format_name: str | None = None,
    settings: Settings | None = None,
    force: bool = False,
) -> Outcome:
    """Reads traces of one format into a new capture.

    Raises
    ------
    TraceError
        A file cannot be read, is of no or another format, or is malformed; nothing is left of the capture.
    OutputError
        The capture exists already or cannot be written.
    """
    from .target import ImportTarget

    settings = settings or Settings()
    known = [load(name) for name in NAMES]
    sources = [Source(name) for name in _files(names, known)]
    try:
        chosen = _format_of(sources, known, format_name)
        _check_settings(chosen, settings)
        shown = [_absolute(source.name) if source.name != STDIN else "standard input" for source in sources]
        with ImportTarget(
            output, format_name=chosen.name, sources=shown, settings=settings.to_json(), force=force
        ) as target:
            figures = chosen.read(target, sources, settings)
            target.outcome.read_bytes = sum(source.read_bytes for source in sources)
            return target.finish(figures=figures)
    finally:
        for source in sources:
            source.close()


def _files(names: list[str], known: list[Format]) -> list[str]:
    """Directories replaced by their files."""
    files: list[str] = []
    for name in names:
        if name == STDIN or not os.path.isdir(name):
            files.append(name)
            continue
        found = next(
            (f for known_format in known if known_format.expand and (f := known_format.expand(Path(name)))), None
        )
        if found is None:
            raise TraceError(
                f"{name} is a directory without a trace in it",
                hint="give the file of a trace, or the directory of a drmemtrace",
            )
        files.extend(found)
    if files.count(STDIN) > 1:
        raise TraceError("standard input is named more than once", hint="give - once")
    return files


def _format_of(sources: list[Source], known: list[Format], format_name: str | None) -> Format:
    for source in sources:
        if not source.beginning:
            raise TraceError(f"{source.shown} is empty", hint="the tool that wrote it recorded nothing, or did not end")
    if format_name is not None:
        return next(f for f in known if f.name == format_name)
    found: dict[str, Format] = {}
    for source in sources:
        match = next((f for f in known if f.recognises(source.beginning)), None)
        if match is None:
            raise TraceError(
                f"{source.shown} is in none of the formats {', '.join(NAMES)}; it begins with {_beginning(source.beginning)}",
                hint="memlens import --help says what each is; --format NAME takes a file for one of them",
            )
        found[match.name] = match
    if len(found) > 1:
        raise TraceError(
            f"the files have several formats: {', '.join(found)}", hint="import each kind into a capture of its own"
        )
    return next(iter(found.values()))


def _beginning(content: bytes) -> str:
    """The first line when it is text, else the first bytes."""
    line = content.split(b"\n", 1)[0][:60]
    if line and all(32 <= byte < 127 or byte == 9 for byte in line):
        return repr(line.decode())
    return f"the bytes {content[:12].hex(' ')}"


def _check_settings(chosen: Format, settings: Settings) -> None:
    from ..errors import UsageError

    given = {name for name, value in vars(settings).items() if value}
    foreign = sorted(given - set(chosen.options))
    if foreign:
        options = {"classes": "--classes", "structure": "--structure", "period": "--period", "modules": "--module",
                   "skip_malformed": "--skip-malformed"}  # fmt: skip
        raise UsageError(
            f"{options[foreign[0]]} means nothing for a trace of the format {chosen.name}", hint="memlens import --help"
        )


def malformed(source: Source, reader: Any) -> TraceError:
    """The error of a reader of lines that has stopped."""
    line, text, expected = reader.first_malformed
    return TraceError(
        f"{source.shown}, line {line}: expected {expected}; there stands {shown_text(text)}",
        hint="--skip-malformed counts such lines and goes on",
    )


def note_lines(target: ImportTarget, source: Source, reader: Any) -> None:
    """What reading its lines left to say."""
    if reader.malformed:
        line, text, _ = reader.first_malformed
        target.incomplete = True
        target.notes.append(
            f"{source.shown}: {reader.malformed:,} of {reader.lines:,} lines could not be read and were left out; "
            f"the first is line {line}: {shown_text(text)}."
        )
    elif reader.ended_early:
        target.notes.append(f"{source.shown}: its last line has no end; the trace may be cut there.")


def shown_text(text: bytes) -> str:
    return repr(text.decode("utf-8", "backslashreplace")) if text else "nothing"


def feed_all(target: ImportTarget, source: Source, reader: Any) -> bool:
    """All blocks of a source into a native reader; False when it stopped."""
    for block in source.blocks():
        if not reader.feed(block):
            return False
        target.chunks(reader.take())
    return True


def _absolute(name: str) -> str:
    try:
        return os.path.abspath(name)
    except OSError:  # the working directory was removed
        return name
