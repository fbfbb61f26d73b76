"""`memlens calibrate`: measures this machine's peaks once, for all later reports."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, cast

from ..errors import NoDataError, UsageError
from ..plain_text import plain, trusted
from .main import new_parser

if TYPE_CHECKING:
    from ..collect.peaks import Calibration

EXAMPLES = """\
  memlens calibrate                 about 20 seconds; do nothing else on the machine meanwhile
  memlens calibrate --seconds 5     shorter, less accurate
  memlens calibrate --show          what was measured
  memlens calibrate --show --json   the same for a machine

Bytes a second of reading, writing and copying, and the time of one load that depends on the last, for each cache level and for
memory: one core, all cores, and the cores of each NUMA node with the memory of each. A copy counts what is read and
what is written. The peak is the best of many intervals of half a millisecond; the spread is the distance of the median from it. Latency is
measured by a walk through a random cycle of lines, with huge pages where the system grants them. Memory is measured with small pages too: the
difference is the cost of TLB misses.

The file is $XDG_STATE_HOME/memlens/calibration-FINGERPRINT.json (XDG_STATE_HOME is ~/.local/state unless set). The fingerprint is computed from processor,
microcode, caches, nodes and host name, so a copied home directory gives another machine no peaks. Recordings keep
the peaks that were known when they began; a report of an older recording of this machine reads them from the file.
"""


def main(arguments: list[str]) -> int:
    parser = new_parser(
        "calibrate", description="Measures this machine's peaks of bandwidth and latency.", examples=EXAMPLES
    )
    parser.add_argument("--seconds", type=float, metavar="S", help="how long to measure, about (20)")
    parser.add_argument("--show", action="store_true", help="show what was measured, measure nothing")
    parser.add_argument("--json", action="store_true", help="machine-readable")
    options = parser.parse_intermixed_args(arguments)
    from ..capture.store import calibration

    if options.show:
        if options.seconds is not None:
            raise UsageError(
                "--seconds does not apply to --show, which measures nothing", hint="memlens calibrate --help"
            )
        found = calibration.load(calibration.fingerprint(calibration.identity()))
        if found.content is None:
            raise NoDataError(f"there is no calibration of this machine: {found.problem}", hint="memlens calibrate")
        content, path = cast("Calibration", found.content), str(found.path)
    else:
        content, path = _measure(options.seconds)
    if options.json:
        json.dump(content, sys.stdout, indent=1)
        sys.stdout.write("\n")
        return 0
    from ..collect.peaks import result_of, view
    from ..present import terminal

    result = result_of(content)
    terminal.show_result(result, view(result), file=sys.stdout)
    sys.stdout.write(f"\n{'kept in' if options.show else 'wrote'} {path}\n")
    if not options.show:
        sys.stdout.write("next: memlens record -- ./program (built with memlens cc)\n")
    return 0


def _measure(seconds: float | None) -> tuple[Calibration, str]:
    from ..collect import calibration

    seconds = calibration.DEFAULT_SECONDS if seconds is None else seconds
    if not calibration.LEAST_SECONDS <= seconds <= 3600:
        raise UsageError(
            f"invalid value '{seconds:g}' for --seconds; expected {calibration.LEAST_SECONDS:g} to 3600",
            hint="--seconds 20",
        )
    calibration.check_place()
    on_terminal, terminal = sys.stderr.isatty(), trusted(sys.stderr)

    def say(what: str) -> None:
        if on_terminal:
            terminal.write(f"\r\x1b[K{plain(what)}")
            terminal.flush()

    try:
        content = calibration.Measurement(seconds=seconds, say=say).run()
    finally:
        if on_terminal:
            terminal.write("\r\x1b[K")
    return content, calibration.write(content)
