"""`memlens report`: shows what a capture found."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ..errors import OutputError, os_reason
from .main import new_parser

EXAMPLES = """\
  memlens report run.memlens                      summary in the terminal
  memlens report run.memlens --html run.html      one page that opens without a network
  memlens report run.memlens --json | jq .findings
"""


def main(arguments: list[str]) -> int:
    parser = new_parser("report", description="Shows what a capture found.", examples=EXAMPLES)
    parser.add_argument("capture", help="capture directory")
    parser.add_argument("--html", metavar="FILE", help="write a self-contained page instead")
    parser.add_argument("--json", action="store_true", help="print everything as JSON instead")
    parser.add_argument("--rows", type=int, default=10, metavar="N", help="rows a table (10)")
    options = parser.parse_intermixed_args(arguments)
    from .. import analyses
    from ..capture.reader import open_capture
    from .progress import spinning

    with spinning(f"reading {options.capture}"):
        capture = open_capture(options.capture)
        report = analyses.report(capture)
    if options.json:
        json.dump(report.to_json(), sys.stdout, indent=1, default=str)
        sys.stdout.write("\n")
        return 0
    if options.html:
        from ..present import html

        page = html.render(report)
        try:
            Path(options.html).write_text(page)
        except OSError as error:
            raise OutputError(
                f"cannot write {options.html}: {os_reason(error)}", hint="give another place to --html"
            ) from error
        sys.stdout.write(
            f"wrote {options.html} ({len(page) >> 10} KiB)\nnext: open it in a browser: xdg-open {options.html}\n"
        )
        return 0
    from ..present import terminal

    terminal.show(report, file=sys.stdout, rows=max(1, options.rows))
    question = (
        "SELECT class, count(*) FROM faults GROUP BY class"
        if "faults" in report.results or "traffic" not in report.results
        else "SELECT pc, sum(load_bytes) b FROM code_counts GROUP BY pc ORDER BY b DESC LIMIT 9"
    )
    sys.stdout.write(
        f'next: memlens report {options.capture} --html page.html, or ask: memlens query {options.capture} "{question}"\n'
    )
    return 0
