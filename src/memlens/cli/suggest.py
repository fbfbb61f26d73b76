"""`memlens suggest`: ranks functions as regions, and writes the list that compilers and recorders take."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from ..errors import NoDataError, OutputError, os_reason
from .main import new_parser

EXAMPLES = """\
  memlens suggest run.memlens                       functions worth a region of their own
  memlens suggest run.memlens --by bytes --top 5
  memlens suggest run.memlens --output hot.txt      then: memlens cc --memlens-functions=@hot.txt …
                                                    or: memlens record --emulate --functions @hot.txt -- PROGRAM
                                                    or: memlens record --trace --functions @hot.txt -- PROGRAM

The capture is one of a program built with memlens cc, or of any program under --emulate.
"""


def expression(name: str) -> str:
    """A regular expression for one function, by its name as people read it.

    >>> expression("Solver::step(int)"), expression("kernel")
    ('^Solver::step\\\\(int\\\\)$', '^kernel$')
    """
    return "^" + re.sub(r"([.^$*+?()\[\]{}|\\])", r"\\\1", name) + "$"


def main(arguments: list[str]) -> int:
    parser = new_parser("suggest", description="Ranks functions as candidates for regions.", examples=EXAMPLES)
    parser.add_argument("capture", help="capture directory")
    parser.add_argument(
        "--by", choices=("time", "bytes", "intensity"), default="time", help="what to rank by (time, where known)"
    )
    parser.add_argument("--top", type=int, default=10, metavar="N", help="how many (10)")
    parser.add_argument("--output", metavar="FILE", help="write their names as expressions, one a line")
    parser.add_argument("--json", action="store_true", help="machine-readable")
    options = parser.parse_intermixed_args(arguments)
    from ..analyses._candidates import candidates, view
    from ..capture.reader import open_capture

    result = candidates(open_capture(options.capture), by=options.by)
    top = max(options.top, 1)
    rows = result.tables["functions"].to_pylist()[:top]
    if not rows:
        raise NoDataError(f"no function of {options.capture} has counts", hint="it may have ended at once")
    if options.output:
        _write(options.output, options.capture, [row["function"] for row in rows])
    if options.json:
        json.dump({"by": options.by, "functions": rows, "quality": result.quality.to_json()}, sys.stdout, indent=1)
        sys.stdout.write("\n")
        return 0
    from ..present import terminal

    terminal.show_result(result, view(result), file=sys.stdout, rows=top)
    sys.stdout.write("\n")
    if options.output:
        sys.stdout.write(f"wrote {options.output}; next: memlens cc --memlens-functions=@{options.output} …\n")
    else:
        sys.stdout.write(f"next: memlens suggest {options.capture} --output hot.txt\n")
    return 0


def _write(name: str, capture: str, functions: list[str]) -> None:
    lines = [f"# memlens suggest {capture}", *map(expression, functions)]
    try:
        Path(name).write_text("\n".join(lines) + "\n")
    except OSError as error:
        raise OutputError(f"cannot write {name}: {os_reason(error)}", hint="give another file to --output") from error
