"""Formats of traces: which there are, which of them a file has, and reading it into a capture."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import registry
from ..errors import MemlensError, TraceError
from ..registry import ImporterDescriptor
from .sources import STDIN, Source

if TYPE_CHECKING:
    from .target import ImportTarget, Outcome


@dataclass(frozen=True)
class Settings:
    """What a person said besides the files."""

    skip_malformed: bool = False
    period: int = 0
    classes: str | None = None
    structure: str | None = None
    modules: tuple[tuple[str, int], ...] = ()

    def to_json(self) -> dict[str, object]:
        return {
            "skip_malformed": self.skip_malformed,
            "period": self.period,
            "classes": self.classes,
            "structure": self.structure,
            "modules": [f"{path}@{bias:#x}" for path, bias in self.modules],
        }


def formats() -> list[ImporterDescriptor]:
    """All formats, in the order in which they are asked whether a file has them."""
    return sorted(registry.all_of("importer").values(), key=lambda one: (one.order, one.package, one.name))


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
    known = formats()
    sources = [Source(name) for name in _files(names, known)]
    try:
        chosen = _format_of(sources, known, format_name)
        _check_settings(chosen, settings)
        shown = [_absolute(source.name) if source.name != STDIN else "standard input" for source in sources]
        with ImportTarget(
            output, format_name=chosen.name, sources=shown, settings=settings.to_json(), force=force
        ) as target:
            figures = _read(chosen, target, sources, settings)
            target.outcome.read_bytes = sum(source.read_bytes for source in sources)
            return target.finish(figures=figures)
    finally:
        for source in sources:
            source.close()


def _read(
    chosen: ImporterDescriptor, target: ImportTarget, sources: list[Source], settings: Settings
) -> dict[str, object]:
    try:
        return chosen.read(target, sources, settings)
    except Exception as error:
        if not chosen.package or isinstance(error, (MemlensError, OSError, MemoryError)):
            raise
        raise TraceError(
            f"the importer {chosen.name} of the package {chosen.package} failed: {type(error).__name__}: {error}",
            hint=f"update or remove the package {chosen.package}",
        ) from error


def _recognises(one: ImporterDescriptor, beginning: bytes) -> bool:
    try:
        return one.recognises(beginning)
    except Exception as error:
        if not one.package:
            raise
        registry.left_out("importer", one, f"looking at a file failed: {type(error).__name__}: {error}")
        return False


def _expanded(one: ImporterDescriptor, directory: Path) -> list[str]:
    try:
        return one.expand(directory) if one.expand is not None else []
    except Exception as error:
        if not one.package or isinstance(error, MemlensError):
            raise
        registry.left_out("importer", one, f"looking at a directory failed: {type(error).__name__}: {error}")
        return []


def _files(names: list[str], known: list[ImporterDescriptor]) -> list[str]:
    """Directories replaced by their files."""
    files: list[str] = []
    for name in names:
        if name == STDIN or not os.path.isdir(name):
            files.append(name)
            continue
        found = next((below for one in known if (below := _expanded(one, Path(name)))), None)
        if found is None:
            raise TraceError(
                f"{name} is a directory without a trace in it",
                hint="give the file of a trace, or the directory of a drmemtrace",
            )
        files.extend(found)
    if files.count(STDIN) > 1:
        raise TraceError("standard input is named more than once", hint="give - once")
    return files


def _format_of(sources: list[Source], known: list[ImporterDescriptor], format_name: str | None) -> ImporterDescriptor:
    for source in sources:
        if not source.beginning:
            raise TraceError(f"{source.shown} is empty", hint="the tool that wrote it recorded nothing, or did not end")
    if format_name is not None:
        return next(f for f in known if f.name == format_name)
    found: dict[str, ImporterDescriptor] = {}
    for source in sources:
        match = next((f for f in known if _recognises(f, source.beginning)), None)
        if match is None:
            raise TraceError(
                f"{source.shown} is in none of the formats {', '.join(f.name for f in known)}; it begins with {_beginning(source.beginning)}",
                hint="memlens import --help says what each is; --format NAME takes a file for one of them",
            )
        found[match.name] = match
    if len(found) > 1:
        raise TraceError(
            f"the files have different formats: {', '.join(found)}", hint="import each kind into a capture of its own"
        )
    return next(iter(found.values()))


def _beginning(content: bytes) -> str:
    """The first line when it is text, else the first bytes."""
    line = content.split(b"\n", 1)[0][:60]
    if line and all(32 <= byte < 127 or byte == 9 for byte in line):
        return repr(line.decode())
    return f"the bytes {content[:12].hex(' ')}"


def _check_settings(chosen: ImporterDescriptor, settings: Settings) -> None:
    from ..errors import UsageError

    given = {name for name, value in vars(settings).items() if value}
    foreign = sorted(given - set(chosen.settings))
    if foreign:
        options = {"classes": "--classes", "structure": "--structure", "period": "--period", "modules": "--module",
                   "skip_malformed": "--skip-malformed"}  # fmt: skip
        raise UsageError(
            f"{options[foreign[0]]} does not apply to the format {chosen.name}", hint="memlens import --help"
        )


def malformed(source: Source, reader: Any) -> TraceError:
    """The error of a reader of lines that has stopped."""
    line, text, expected = reader.first_malformed
    return TraceError(
        f"{source.shown}, line {line}: expected {expected}; found {shown_text(text)}",
        hint="--skip-malformed counts such lines and continues",
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
        target.notes.append(f"{source.shown}: its last line has no newline; the trace may be truncated.")


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
