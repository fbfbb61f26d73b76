"""`memlens report`: shows what a capture found."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import MemlensError, NoDataError, OutputError, UsageError, os_reason
from ..units import human_bytes
from .main import new_parser
from .selection import add_selection_options, selection_of

if TYPE_CHECKING:
    from ..results import Report

EXAMPLES = """\
  memlens report run.memlens                      summary in the terminal
  memlens report run.memlens --html run.html      one page that opens without a network
  memlens report run.memlens --json | jq .findings
  memlens report run.memlens --only objects --only findings
  memlens report run.memlens --memory 2GiB        bounds the memory of reuse and footprints
  memlens report run.memlens --machine zen4       misses in the caches of another machine
  memlens report run.memlens --time 1.5:2.0 --thread 4711   only what this thread did then
  memlens report run.memlens --code solve.c:42   only this line; --object, --region and --process likewise
  memlens report run.memlens --skip-frames '^(pool_get|node_new)$'   blame the callers of these functions
"""

QUESTIONS = {
    "faults": "SELECT class, sum(weight) FROM faults GROUP BY class",
    "traffic": "SELECT pc, sum(load_bytes) b FROM code_counts GROUP BY pc ORDER BY b DESC LIMIT 9",
    "bandwidth": "SELECT function, sum(read_bytes) b FROM site_counts GROUP BY function ORDER BY b DESC LIMIT 9",
    "accesses": "SELECT code, count(*) n FROM accesses GROUP BY code ORDER BY n DESC LIMIT 9",
    "objects": "SELECT function, line, sum(count) n FROM objects GROUP BY ALL ORDER BY n DESC LIMIT 9",
}
"""A query to begin with, by the analysis that a capture has data for."""

UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
LEAST_MEMORY_BYTES = 1 << 20


def memory_bytes(text: str) -> int:
    """A size as people write it, in powers of 1,024.

    >>> memory_bytes("2GiB"), memory_bytes("512M"), memory_bytes("1.5g")
    (2147483648, 536870912, 1610612736)
    """
    import argparse
    import re

    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(?:ib|b)?", text.strip().lower())
    value = int(float(found[1]) * UNITS[found[2]]) if found else 0
    if value < LEAST_MEMORY_BYTES:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size of at least 1 MiB; write 2GiB or 512MiB")
    return value


def machine_name(text: str) -> str:
    """The name of a machine that the cache model knows."""
    import argparse

    from ..analyses.caches import MACHINES

    if text not in MACHINES:
        raise argparse.ArgumentTypeError(f"invalid value {text!r}: expected one of {', '.join(MACHINES)}")
    return text


def frame_pattern(text: str) -> str:
    """A regular expression for functions and modules.

    >>> frame_pattern("^my_(new|dup)$")
    '^my_(new|dup)$'
    """
    import argparse
    import re

    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression: {error}") from None
    return text


def _row_count(text: str) -> int:
    """
    >>> _row_count("20")
    20
    """
    import argparse

    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"invalid value {text!r}: expected a whole number of rows")
    return int(text)


def _sections(names: list[str], report: Report) -> tuple[str, ...]:
    """The sections of --only."""
    import difflib

    known = [*report.results, "findings", "quality"]
    for name in names:
        if name in known:
            continue
        absent = {absence.analysis: absence for absence in report.absences}
        if name in absent:
            raise NoDataError(f"no section {name!r}: {absent[name].reason}", hint=absent[name].provide)
        close = difflib.get_close_matches(name, known, n=1)
        raise UsageError(
            f"invalid value {name!r} for --only",
            hint=f"did you mean {close[0]}?" if close else f"sections of this capture: {', '.join(known)}",
        )
    return tuple(names)


def _rendered(name: str, report: Report) -> str | bytes:
    """A report by a presenter of this name."""
    from .. import registry

    known = {n: d for n, d in registry.all_of("presenter").items() if d.suffix}
    if name not in known:
        raise UsageError(f"invalid value {name!r} for --as", hint=f"presenters: {', '.join(known)}")
    try:
        content: str | bytes = known[name].render(report)
    except Exception as error:
        if not known[name].package or isinstance(error, MemlensError):
            raise
        raise OutputError(
            f"the presenter {name} of the package {known[name].package} failed: {type(error).__name__}: {error}",
            hint=f"update or remove the package {known[name].package}",
        ) from error
    return content


def write_whole(path: Path, content: str | bytes) -> int:
    """Writes a file and returns its size. It is there whole or, after Ctrl-C or an error, as it was before."""
    import contextlib
    import os

    partial = path.with_name(f".{path.name}.partial")
    # A pipe or /dev/stdout is written as it is: it cannot be replaced.
    target = partial
    try:
        target = partial if not path.exists() or path.is_file() else path
        raw = content if isinstance(content, bytes) else content.encode("utf-8", errors="replace")
        target.write_bytes(raw)
        if target is partial:
            os.replace(partial, path)
        return len(raw)
    except BaseException as error:
        if target is partial:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OutputError(
                f"cannot write {path}: {os_reason(error)}", hint="give another place to write to"
            ) from error
        raise


def main(arguments: list[str]) -> int:
    parser = new_parser("report", description="Shows what a capture found.", examples=EXAMPLES)
    parser.add_argument("capture", help="capture directory")
    parser.add_argument("--html", metavar="FILE", help="write a self-contained page instead")
    parser.add_argument("--json", action="store_true", help="print everything as JSON instead")
    parser.add_argument(
        "--as",
        dest="presenter",
        metavar="NAME",
        help="render with this presenter instead, one of memlens or of an installed package (memlens doctor lists them)",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="where --as writes (standard output)")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="SECTION",
        help="only this section: an analysis (memlens help analyses), findings or quality; repeatable",
    )
    parser.add_argument(
        "--memory", type=memory_bytes, metavar="SIZE", help="memory for reuse and footprints, for example 2GiB (4GiB)"
    )
    parser.add_argument(
        "--machine",
        type=machine_name,
        metavar="NAME",
        help="model the caches of this machine instead of the capture's, for example zen4 or sapphire-rapids",
    )
    parser.add_argument(
        "--skip-frames",
        type=frame_pattern,
        metavar="REGEX",
        help="show allocations and first touches at the first caller whose function and module do not match",
    )
    parser.add_argument(
        "--rows", type=_row_count, metavar="N", help="rows a table (10; in JSON all, and --offset begins a page)"
    )
    parser.add_argument(
        "--offset",
        type=_row_count,
        default=0,
        metavar="N",
        help="leave out the first N rows of each table, with --json",
    )
    parser.add_argument(
        "--no-cache",
        dest="cache",
        action="store_false",
        help="compute everything anew, and keep nothing beside the capture",
    )
    add_selection_options(parser)
    options = parser.parse_intermixed_args(arguments)
    from .. import analyses
    from ..capture.reader import open_capture
    from .progress import Progress

    with Progress(f"reading {options.capture}") as progress:
        capture = open_capture(options.capture)
        report = analyses.report(
            capture,
            memory_limit_bytes=options.memory,
            machine=options.machine,
            skip_frames=options.skip_frames,
            progress=progress.update,
            cache=options.cache,
            selection=selection_of(options),
        )
    only = _sections(options.only, report)
    if options.json:
        content = report.to_json(rows=options.rows, offset=options.offset, only=only)
        json.dump(content, sys.stdout, indent=1, default=str)
        sys.stdout.write("\n")
        return 0
    if options.html:
        size = write_whole(Path(options.html), _rendered("html", report))
        sys.stdout.write(
            f"wrote {options.html} ({human_bytes(size)})\nnext: open it in a browser: xdg-open {options.html}\n"
        )
        return 0
    if options.presenter:
        rendered = _rendered(options.presenter, report)
        if options.output:
            size = write_whole(Path(options.output), rendered)
            sys.stdout.write(f"wrote {options.output} ({human_bytes(size)})\n")
        elif isinstance(rendered, bytes):
            sys.stdout.flush()
            sys.stdout.buffer.write(rendered)
        else:
            sys.stdout.write(rendered)
        return 0
    from ..present import terminal

    terminal.show(report, file=sys.stdout, rows=max(1, options.rows or 10), only=only)
    question = next((sql for name, sql in QUESTIONS.items() if name in report.results), "SELECT * FROM processes")
    sys.stdout.write(
        f'next: memlens report {options.capture} --html page.html, or ask: memlens query {options.capture} "{question}"\n'
    )
    return 0
