"""`memlens export`: a capture's tables as files."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from .. import registry
from ..errors import MemlensError, OutputError, os_reason
from .main import new_parser

if TYPE_CHECKING:
    from ..capture.reader import Capture

DEFAULT_TABLES = ("processes", "threads", "modules", "sites", "faults", "placed", "timeline", "mappings", "losses")
EXAMPLES = """\
  memlens export run.memlens --format csv -o out        out/faults.csv, out/timeline.csv, …
  memlens export run.memlens --format parquet -o out --tables faults,timeline
  memlens export run.memlens --format json -o - --tables processes | jq .
"""


def main(arguments: list[str]) -> int:
    formats = exporters()
    listed = "\n".join(
        f"  {name:10s} {one.question}" + (f" (package {one.package})" if one.package else "")
        for name, one in formats.items()
    )
    parser = new_parser(
        "export", description=f"Writes a capture's tables as files.\n\nformats:\n{listed}", examples=EXAMPLES
    )
    parser.add_argument("capture", help="capture directory")
    parser.add_argument(
        "-o", "--output", required=True, metavar="DIR", help="directory to write to; - for standard output"
    )
    default = next(iter(formats))
    parser.add_argument("--format", choices=tuple(formats), default=default, help=f"file format ({default})")
    parser.add_argument("--tables", metavar="A,B", help="only these tables (default: the commonly used ones)")
    parser.add_argument(
        "--no-cache",
        dest="cache",
        action="store_false",
        help="derive all tables anew, and keep none beside the capture",
    )
    options = parser.parse_intermixed_args(arguments)
    from ..capture.reader import open_capture

    capture = open_capture(options.capture)
    capture.keeps_tables = options.cache
    names = options.tables.split(",") if options.tables else list(DEFAULT_TABLES)
    chosen = formats[options.format]
    if options.output == "-":
        if len(names) != 1 or not chosen.is_text:
            texts = [name for name, one in formats.items() if one.is_text]
            parser.error(f"-o - takes one table, as {' or '.join([', '.join(texts[:-1]), texts[-1]])}")
        file = cast(BinaryIO, _Terminal()) if sys.stdout.isatty() else sys.stdout.buffer
        write_table(capture, names[0], chosen, file)
        return 0
    directory = Path(options.output)
    _write_files(capture, names, chosen, directory)
    suffix = suffix_of(chosen)
    example = f"duckdb -c \"SELECT * FROM '{directory}/{names[0]}{suffix}' LIMIT 5\", or " if not chosen.package else ""
    if chosen.reads:
        sys.stdout.write(f"next: {example}{chosen.reads}(...)\n")
    return 0


def exporters() -> dict[str, registry.ExporterDescriptor]:
    """Formats by name, in their order."""
    found = registry.all_of("exporter").values()
    return {one.name: one for one in sorted(found, key=lambda one: (one.order, one.package, one.name))}


def suffix_of(chosen: registry.ExporterDescriptor) -> str:
    return chosen.suffix or f".{chosen.name}"


def write_table(capture: Capture, name: str, chosen: registry.ExporterDescriptor, file: BinaryIO) -> int:
    """One table in one format; returns its rows."""
    reader = capture.reader(name)
    try:
        return chosen.write(reader, file)
    except (OSError, MemlensError):
        raise
    except Exception as error:
        if not chosen.package:
            raise
        raise OutputError(
            f"the exporter {chosen.name} of the package {chosen.package} failed: {type(error).__name__}: {error}",
            hint=f"update or remove the package {chosen.package}",
        ) from error


def _write_files(capture: Capture, names: list[str], chosen: registry.ExporterDescriptor, directory: Path) -> None:
    from .progress import spinning

    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name in names:
            partial, final = directory / f".{name}.partial", directory / f"{name}{suffix_of(chosen)}"
            try:
                with spinning(f"writing {name}"), partial.open("wb") as file:
                    rows = write_table(capture, name, chosen, file)
                os.replace(partial, final)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise
            sys.stdout.write(f"{final}  {rows} rows\n")
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(
            f"cannot write to {directory}: {os_reason(error)}", hint="give another directory with -o"
        ) from error


class _Terminal:
    """Standard output that is a terminal, as a file of bytes: names in them must not steer it."""

    closed = False

    def write(self, content: bytes) -> int:
        sys.stdout.write(bytes(content).decode("utf-8", "replace"))
        return len(content)

    def flush(self) -> None:
        sys.stdout.flush()

    def writable(self) -> bool:
        return True
