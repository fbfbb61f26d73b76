"""`memlens import`: other tools' traces as captures."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..units import human_bytes
from .main import new_parser

if TYPE_CHECKING:
    from ..importing.target import Outcome

EXAMPLES = """\
  memlens import lackey.out -o prog.memlens            a full trace; then: memlens report prog.memlens
  xz -dc big.xz | memlens import - -o big.memlens      from a pipe (gz, xz, zst, lz4, bz2 files are read as they are)
  memlens import lackey.out --module ./prog@0x108000 -o p.memlens
                                                       names its code; 0x108000: where valgrind loads a PIE program
  memlens import run.trace --period 100000 -o run.memlens
                                                       MemGaze, one sample in 100,000 loads
  memlens import drmemtrace.prog.4711.0001.dir -o dr.memlens
  memlens import perf.data -o pt.memlens               Intel PT with ptwrite

formats, recognised by content:
"""


def module_at(text: str) -> tuple[str, int]:
    """FILE@ADDRESS, or FILE for a program of fixed addresses."""
    path, at, address = text.rpartition("@")
    if not at:
        return text, 0
    try:
        return path, int(address, 16)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: write FILE@ADDRESS, the address in hex") from error


def main(arguments: list[str]) -> int:
    from ..importing.formats import Settings, formats, import_trace

    known = formats()
    listed = "".join(f"  {one.name:<11} {one.question}\n" for one in known)
    parser = new_parser(
        "import", description="Converts other tools' traces into a capture.", examples=EXAMPLES + listed
    )
    parser.add_argument(
        "sources", nargs="+", metavar="SOURCE", help="file or directory of a trace; - is standard input"
    )
    parser.add_argument("-o", "--output", metavar="DIR", help="capture to write (default: SOURCE.memlens)")
    parser.add_argument("--format", choices=tuple(one.name for one in known), help="take the files for this format")
    parser.add_argument("--force", action="store_true", help="replace the capture if it exists")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
    parser.add_argument(
        "--skip-malformed", action="store_true", help="lackey, memgaze: count lines that cannot be read, and continue"
    )
    parser.add_argument("--module", action="append", default=[], type=module_at, metavar="FILE@ADDRESS",
                        help="lackey: a program or library, and what is added to the addresses in it; names its code")  # fmt: skip
    parser.add_argument(
        "--period", type=int, default=0, metavar="N", help="memgaze: executed loads from one sample to the next"
    )
    parser.add_argument("--classes", metavar="FILE", help="memgaze: its .binanlys (default: beside the trace)")
    parser.add_argument("--structure", metavar="FILE", help="memgaze: its .hpcstruct (default: beside the trace)")
    options = parser.parse_intermixed_args(arguments)
    if options.period < 0:
        parser.error(f"--period {options.period}: write a number of loads, 1 or more")
    from .progress import spinning

    output = Path(options.output or _default_output(options.sources[0]))
    settings = Settings(
        skip_malformed=options.skip_malformed,
        period=options.period,
        classes=options.classes,
        structure=options.structure,
        modules=tuple(options.module),
    )
    with spinning(f"importing {options.sources[0]}"):
        outcome = import_trace(
            options.sources, output, format_name=options.format, settings=settings, force=options.force
        )
    if not options.quiet:
        _show(outcome)
    return 0


def _default_output(source: str) -> str:
    """run.trace.gz → run.memlens, in the current directory."""
    name = "import" if source == "-" else os.path.basename(os.path.normpath(source))
    for suffix in (".gz", ".xz", ".zst", ".lz4", ".bz2", ".zip", ".trace", ".out", ".txt", ".dir", ".data"):
        name = name.removesuffix(suffix) or name
    return f"{name}.memlens"


def _show(outcome: Outcome) -> None:
    per_access = outcome.record_bytes / outcome.accesses if outcome.accesses else 0.0
    rate = outcome.read_bytes / outcome.seconds if outcome.seconds else 0.0
    sys.stdout.write(
        f"{outcome.path}: {outcome.accesses:,} accesses in {outcome.windows:,} windows of {outcome.processes:,} processes, "
        f"from {human_bytes(outcome.read_bytes)} of {outcome.format} at {human_bytes(rate)} a second; "
        f"{per_access:.2f} bytes an access\n"
    )
    for note in outcome.notes:
        sys.stdout.write(f"  {note}\n")
    sys.stdout.write(f"next: memlens report {outcome.path}\n")
