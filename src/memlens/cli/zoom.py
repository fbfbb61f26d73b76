"""`memlens zoom`: follows hot, badly reused accesses down, over time or over memory."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING

from ..errors import NoDataError, UsageError
from .main import new_parser

if TYPE_CHECKING:
    from argparse import Namespace

    from ..results import Result
    from ..view import View

EXAMPLES = """\
  memlens zoom run.memlens                          hot regions of memory, their reuse, code and objects
  memlens zoom run.memlens --threshold 5% --stop 64K
  memlens zoom run.memlens --by time                the interval of the run that reuses its data worst
  memlens zoom run.memlens --levels                 footprint, growth and reuse by size of the window
  memlens zoom run.memlens --levels --tree memgaze  the same, as MemGaze's own analyser prints it

The capture is one with accesses: of memlens record --emulate, of a program built with
memlens cc --memlens=trace, or imported. Bytes may have K, M or G behind them.
"""
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def byte_count(text: str) -> int:
    """A number of bytes: a power of two.

    >>> byte_count("64K"), byte_count("4096"), byte_count("1MiB")
    (65536, 4096, 1048576)
    """
    import argparse

    found = re.fullmatch(r"([0-9]+)\s*([KMG]?)(?:i?B)?", text, re.IGNORECASE)
    value = int(found[1]) * UNITS[found[2].upper()] if found else 0
    if value < 1 or value & (value - 1):
        raise argparse.ArgumentTypeError(f"{text!r} is not a power of two of bytes; write 4096 or 64K")
    return value


def share(text: str) -> float:
    """A share of accesses: ``5%`` or ``0.05``.

    >>> share("5%"), share("0.25")
    (0.05, 0.25)
    """
    import argparse

    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(
            f"invalid value {text!r}: expected a share above 0 and up to 100 %, as in 5% or 0.05"
        )
    return value


def parse(arguments: list[str]) -> Namespace:
    parser = new_parser(
        "zoom", description="Zooms into hot, badly reused accesses, over memory or over time.", examples=EXAMPLES
    )
    parser.add_argument("capture", metavar="CAPTURE", help="capture directory")
    parser.add_argument(
        "--by", choices=("location", "time"), default="location", help="what to zoom into (location: memory)"
    )
    parser.add_argument(
        "--threshold", type=share, metavar="SHARE",
        help="of the accesses around it that makes a part hot (10%% of a region, 25%% of an interval)",
    )  # fmt: skip
    parser.add_argument(
        "--stop", type=byte_count, metavar="BYTES", help="smallest region that is looked into (4096); a power of two"
    )
    parser.add_argument(
        "--block", type=byte_count, default=64, metavar="BYTES", help="block of reuse distances (64); a power of two"
    )
    parser.add_argument("--levels", action="store_true", help="show all sizes of windows instead of one path")
    parser.add_argument(
        "--tree", choices=("paper", "memgaze"), default="paper", help="for --levels: whose rules (paper)"
    )
    parser.add_argument("--top", type=int, default=10, metavar="N", help="regions shown (10)")
    parser.add_argument("--json", action="store_true", help="machine-readable, everything")
    options = parser.parse_intermixed_args(arguments)
    if options.stop is not None and (options.by == "time" or options.levels):
        raise UsageError("--stop is a size of memory, and this zooms into time", hint="leave it out, or --by location")
    if options.levels and options.threshold is not None:
        raise UsageError("--levels shows everything and has no threshold", hint="leave out --threshold")
    if options.tree != "paper" and not options.levels:
        raise UsageError(
            "--tree is for the table of levels", hint=f"memlens zoom {options.capture} --levels --tree memgaze"
        )
    return options


def run(options: Namespace) -> tuple[Result, View]:
    """The analysis that was asked for, and what is shown of it."""
    from ..capture.reader import open_capture

    capture = open_capture(options.capture)
    if "window" not in capture.kinds():
        raise NoDataError(
            f"{options.capture} holds no accesses",
            hint="record them: memlens record --emulate -- PROGRAM, or build with memlens cc --memlens=trace",
        )
    if options.levels:
        from ..analyses import intervals

        result = intervals.intervals(capture, tree=options.tree, block_bytes=options.block)
        return result, intervals.view(result)
    given = {} if options.threshold is None else {"threshold": options.threshold}
    if options.by == "time":
        from ..analyses import zoom_time

        result = zoom_time.zoom_time(capture, block_bytes=options.block, **given)
        return result, zoom_time.view(result)
    from ..analyses import zoom_location

    stop = max(zoom_location.STOP_BYTES, options.block) if options.stop is None else options.stop
    result = zoom_location.zoom_location(capture, stop_bytes=stop, block_bytes=options.block, **given)
    return result, zoom_location.view(result)


def check(result: Result, name: str) -> None:
    """Nothing to show is an error, with its reason."""
    figures = result.figures
    if not figures["recorded_accesses"]:
        raise NoDataError(f"{name} holds windows without accesses", hint="the program may have ended at once")
    damaged = figures["damaged_windows"]
    if not figures.get("accesses", figures.get("samples")):
        if damaged:
            raise NoDataError(
                f"none of {damaged:,} windows of {name} can be read",
                hint="the files are damaged, or another version of memlens wrote them: record again",
            )
        raise NoDataError(
            f"all {figures['recorded_accesses']:,} accesses of {name} are constants: no memory is hot",
            hint="constants are scalars of the frame and globals; memlens report shows them",
        )


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    result, view = run(options)
    check(result, options.capture)
    if options.json:
        json.dump(result.to_json(), sys.stdout, indent=1)
        sys.stdout.write("\n")
        return 0
    from ..present import terminal

    terminal.show_result(result, view, file=sys.stdout, rows=max(options.top, 1))
    other = "location" if options.by == "time" and not options.levels else "time"
    sys.stdout.write(f"\nnext: memlens zoom {options.capture} --by {other}\n")
    return 0
