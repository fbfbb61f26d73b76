"""`memlens validate`: how far figures of a sampled trace are from those of every access."""

from __future__ import annotations

import json
import sys

from .main import new_parser

EXAMPLES = """\
  memlens record --trace=full,on-full=wait -o full.memlens -- ./prog      every access of a program built with
                                                                          memlens cc --memlens=trace
  memlens validate full.memlens                                           errors of 1,000 accesses in 100,000
  memlens validate full.memlens --window 500 --period 20000 --seeds 20
  memlens validate dense.memlens                                          ten times thinner than it was recorded
  memlens validate full.memlens --json | jq .figures

Sampled traces are taken from the capture and analysed as if they had been recorded. Errors are percentages
of the truth, absolute values averaged over the samples. Functions with under 1 % of the accesses, and
under-sampled ones, are not judged. Stated intervals are 95 % confidence intervals.
"""


def main(arguments: list[str]) -> int:
    parser = new_parser(
        "validate",
        description="Compares figures of sampled traces with a capture that has every access.",
        examples=EXAMPLES,
    )
    parser.add_argument(
        "capture", metavar="CAPTURE_FULL", help="capture with every access, or sampled ten times denser"
    )
    parser.add_argument(
        "--window", type=int, metavar="N", help="accesses of a sampled window (1000, or fewer that fit)"
    )
    parser.add_argument(
        "--period", type=int, metavar="N", help="accesses from the start of one window to the next (100 windows)"
    )
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="number of sampled traces (5)")
    parser.add_argument("--rows", type=int, default=10, metavar="N", help="functions shown (10)")
    parser.add_argument("--json", action="store_true", help="machine-readable")
    options = parser.parse_intermixed_args(arguments)
    from ..analyses.validation import validate, view
    from ..capture.reader import open_capture
    from .progress import Progress

    capture = open_capture(options.capture)
    with Progress(f"validating {options.capture}") as progress:
        result = validate(
            capture, window=options.window, period=options.period, seeds=options.seeds, progress=progress.update
        )
    if options.json:
        json.dump(result.to_json(), sys.stdout, indent=1, default=str)
        sys.stdout.write("\n")
        return 0
    from ..present import terminal

    terminal.show_result(result, view(result), file=sys.stdout, rows=max(1, options.rows))
    return 0
