"""`memlens numa`: remote accesses, placement of pages, affinity of threads."""

from __future__ import annotations

import json
import sys

from ..errors import NoDataError
from .main import new_parser
from .selection import add_selection_options, selection_of

EXAMPLES = """\
  memlens numa run.memlens                       which accesses are remote, to which objects, from which lines
  memlens numa run.memlens --code solve          of one function
  memlens numa run.memlens --json | jq '.numa.tables.matrix'

Placement and affinity need nothing but memlens record. Accesses need a build with memlens cc --memlens=trace.
"""


def main(arguments: list[str]) -> int:
    parser = new_parser(
        "numa", description="Shows remote accesses, placement of pages and affinity of threads.", examples=EXAMPLES
    )
    parser.add_argument("capture", help="capture directory")
    parser.add_argument(
        "--stack", action="store_true", help="class accesses to stacks like others; else they are counted apart"
    )
    parser.add_argument("--rows", type=int, default=20, metavar="N", help="rows of each table (20)")
    parser.add_argument("--json", action="store_true", help="machine-readable")
    add_selection_options(parser)
    options = parser.parse_intermixed_args(arguments)
    from .. import analyses, registry
    from ..capture.reader import open_capture

    capture = open_capture(options.capture)
    kinds = capture.kinds()
    selection = selection_of(options)
    results = {}
    for name, more in (("numa", {"stack": options.stack}), ("placement", {})):
        needs = registry.all_of("analysis")[name].needs
        if all(kinds.get(need) for need in needs):
            results[name] = analyses.run(name, capture, selection=selection, **more)
    if not results:
        raise NoDataError(
            f"{options.capture} has neither page faults nor accesses",
            hint="memlens record -- PROGRAM records who places pages, on which nodes",
        )
    if options.json:
        json.dump({name: result.to_json() for name, result in results.items()}, sys.stdout, indent=1)
        sys.stdout.write("\n")
        return 0
    from ..present import terminal

    for name, result in results.items():
        view = registry.all_of("analysis")[name].view
        assert view is not None
        terminal.show_result(result, view(result), file=sys.stdout, rows=max(options.rows, 1))
    if "numa" not in results:
        provide = registry.all_of("analysis")["numa"].provide
        sys.stdout.write(f"\nWhich accesses are remote is not estimable: no accesses were recorded ({provide}).\n")
    sys.stdout.write(f"next: memlens report {options.capture} --html page.html\n")
    return 0
