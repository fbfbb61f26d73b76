"""Options that select a part of a run, for the commands that show one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from ..selection import Selection

RANGE = re.compile(r"([0-9]*\.?[0-9]*)s?:([0-9]*\.?[0-9]*)s?")


def time_range(text: str) -> tuple[float, float]:
    """A range of seconds; without a begin from the start, without an end to the end.

    >>> time_range("1.5:2.0"), time_range("3:"), time_range(":0.5")
    ((1.5, 2.0), (3.0, inf), (0.0, 0.5))
    """
    import argparse

    found = RANGE.fullmatch(text)
    try:
        if found is None or text.strip("s") == ":":
            raise ValueError
        first, last = float(found[1] or 0), float(found[2] or "inf")
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"invalid value {text!r}: expected FROM:TO in seconds since the recording began, as in 1.5:2.0"
        ) from None
    if not first < last:
        raise argparse.ArgumentTypeError(f"invalid value {text!r}: the range ends before it begins")
    return first, last


def _number(text: str) -> int:
    import argparse

    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"invalid value {text!r}: expected a number")
    return int(text)


def add_selection_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "selection",
        "only a part of the run; conditions are joined by and. A section that cannot be cut so says it and shows the whole run.",
    )
    group.add_argument(
        "--time",
        type=time_range,
        metavar="FROM:TO",
        help="seconds since the recording began, for example 1.5:2.0 or 3:",
    )
    group.add_argument(
        "--process",
        type=_number,
        action="append",
        default=[],
        metavar="N",
        help="a process by its number in the capture; repeatable",
    )
    group.add_argument(
        "--thread",
        type=_number,
        action="append",
        default=[],
        metavar="TID",
        help="a thread by its kernel id; repeatable",
    )
    group.add_argument("--region", default="", metavar="NAME", help="a region or phase that the program names")
    group.add_argument(
        "--code", default="", metavar="FUNCTION|FILE:LINE", help="a function, wherever it was inlined, or a line"
    )
    group.add_argument(
        "--object", default="", metavar="NAME", help="an object as tables name it, for example 'heap of main prog.c:12'"
    )


def selection_of(options: argparse.Namespace) -> Selection:
    from ..selection import Selection

    return Selection(
        time_s=options.time, processes=tuple(options.process), threads=tuple(options.thread), region=options.region,
        code=options.code, object=options.object,
    )  # fmt: skip
