"""`memlens verify`: judges claimed counts by the emulator's exact ones."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import THRESHOLD_EXCEEDED, CaptureError, OutputError, ProgramKilled, UsageError, os_reason
from .main import new_parser

if TYPE_CHECKING:
    from argparse import Namespace

    from ..capture.reader import Capture
    from ..results import Result

EXAMPLES = """\
  memlens verify ./solver claimed.memlens -- input.dat        a capture's counts against the exact ones
  memlens verify ./solver ./solver.counted -- input.dat       two builds of one program
  memlens verify --functions '^Solver::' ./solver claimed.memlens
  memlens verify --fail-above 5 --json ./solver claimed.memlens > accuracy.json

PLAIN is a program as you would ship it (-O2, not instrumented), or a capture of one under
--emulate. It runs under the emulator, with the arguments after --. Each CLAIM is a capture,
or a program: one that was built with memlens cc runs natively and counts for itself, another
under the emulator. What the programs print goes to standard error; they read no standard input.

Regions are the program's own annotations (memlens.h) and --functions; without any the whole
program is one. Errors are percentages of the exact counts. --fail-above looks at the bytes
read and written of each region, without the stack unless --judge all; a region that only
one side has fails. A program that a signal ends (a limit of time or memory, a crash) is
refused with exit status 75: its counts are incomplete.
"""

Row = dict[str, str | int | float | None]
"""Of table `by_region`."""
LIMITS: dict[int, tuple[bool, str]] = {
    signal.SIGXCPU: (True, "raise its limit of processor time (ulimit -t), or give it less work"),
    signal.SIGXFSZ: (False, "raise its limit of file sizes (ulimit -f), or let it write less"),
    signal.SIGKILL: (True, "see what killed it, a limit of memory or of time, and raise that, or give it less work"),
    signal.SIGTERM: (True, "give it more time, or less work"),
    signal.SIGALRM: (True, "give it more time, or less work"),
}
"""Signals by which limits end programs: whether emulation makes it more likely, and what to do."""


@dataclass(frozen=True)
class Side:
    """One capture of the comparison, and how we came by it."""

    name: str
    kind: str
    """program or capture"""
    capture: Capture
    how: str

    def to_json(self) -> dict[str, str]:
        return {"name": self.name, "kind": self.kind, "how": self.how}


def percentage(text: str) -> float:
    import argparse

    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage from 0 up; write 5 or 0.5")
    return value


def parse(arguments: list[str]) -> tuple[Namespace, list[str]]:
    """Options, and the programs' arguments after `--`."""
    parser = new_parser(
        "verify", description="Compares claimed counts of accesses with the emulator's exact counts.", examples=EXAMPLES
    )
    parser.usage = "memlens verify [options] PLAIN CLAIM... [-- arguments]"
    parser.add_argument("plain", metavar="PLAIN", nargs="?", help="program whose exact counts judge the claims")
    parser.add_argument("claims", metavar="CLAIM", nargs="*", help="capture, or program to record")
    parser.add_argument("--functions", metavar="REGEX", default="", help="functions that are regions, callees included")
    parser.add_argument("--cpu", metavar="NAME", default="", help="processor that the emulator shows to the program")
    parser.add_argument(
        "--judge", choices=("heap-and-global", "all"), default="heap-and-global",
        help="what --fail-above looks at: without the stack (default), or all",
    )  # fmt: skip
    parser.add_argument(
        "--fail-above", type=percentage, metavar="PERCENT", help="exit with 1 when a region's bytes are off by more"
    )
    parser.add_argument("--keep", metavar="DIR", help="keep the captures that were recorded there")
    parser.add_argument("--json", action="store_true", help="machine-readable")
    at = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_intermixed_args(arguments[:at])
    if options.plain is None:
        raise UsageError("no program to compare with", hint="memlens verify PLAIN CLAIM... [-- arguments]")
    if not options.claims:
        raise UsageError(
            f"no claim to compare with {options.plain}", hint=f"memlens verify {options.plain} CLAIM.memlens"
        )
    from ..collect.function_pattern import function_pattern

    options.functions = function_pattern(options.functions)
    return options, arguments[at + 1 :]


def _side(name: str, words: list[str], output: Path, *, options: Namespace, is_claim: bool) -> Side:
    """Opens a capture or records a program."""
    from ..capture.reader import open_capture

    if os.path.isdir(name):
        capture = open_capture(name)
        _refuse_killed(f"the program of {name}", capture.meta.get("wait_status"), remedy="; then record it again")
        emulated = "code_count" in capture.kinds() and not capture.meta.get("import")
        return Side(name, "capture", capture, "counted under the emulator" if emulated else "as recorded")
    if name.endswith(".memlens") and not os.path.exists(name):
        raise CaptureError(
            f"there is no capture at {name}", hint=f"record one: memlens record --emulate -o {name} -- PROGRAM"
        )
    from ..collect.collectors.count.run import counts_for_itself, record_counted
    from ..collect.collectors.emulate.run import record_emulated
    from .progress import spinning

    if is_claim and counts_for_itself(name):
        with spinning(f"running {name}"):
            outcome = record_counted([name, *words], output)
        how = "counted by itself"
    else:
        with spinning(f"running {name} under the emulator"):
            outcome = record_emulated([name, *words], output, functions=options.functions, cpu=options.cpu)
        how = "run under the emulator" + (": it has no counters" if is_claim else "")
    emulated = how.startswith("run under")
    _refuse_killed(name, outcome.wait_status, after_s=outcome.wall_s, emulated=emulated, notes=outcome.notes)
    if outcome.wait_status:
        how += f"; it ended with status {os.WEXITSTATUS(outcome.wait_status)}"
    return Side(name, "program", open_capture(output), how)


def _refuse_killed(
    who: str,
    status: int | None,
    *,
    after_s: float | None = None,
    emulated: bool = False,
    notes: Sequence[str] = (),
    remedy: str = "",
) -> None:
    """Counts up to a kill say how far the program came, not how much it does: no error can be made of them."""
    if status is None or not os.WIFSIGNALED(status):
        return
    number = os.WTERMSIG(status)
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = "a real-time signal"
    after = f" after {after_s:.1f} s" if after_s is not None else ""
    slow = " (under the emulator it takes many times as long as alone)" if emulated else ""
    raised, hint = LIMITS.get(number, (False, "run the program alone to see why it does not end normally"))
    raise ProgramKilled(
        f"{who} was ended by signal {number} ({name}){after}: its counts are incomplete and cannot be compared",
        hint=" ".join([hint + (slow if raised else "") + remedy, *notes[:1]]),
    )


def _folder_to_keep(name: str) -> Path:
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make {name}: {os_reason(error)}", hint="give another place to --keep") from error
    taken = sorted(path.name for path in folder.glob("*.memlens"))
    if taken:
        raise OutputError(
            f"{name} has {len(taken)} captures already ({taken[0]} …)", hint="give another place to --keep, or remove them"
        )  # fmt: skip
    return folder


def above(result: Result, *, scope: str, limit_percent: float) -> list[Row]:
    """Rows of bytes that are off by more than the limit, or cannot be judged at all."""
    rows: list[Row] = result.tables["by_region"].to_pylist()
    return [
        row
        for row in rows
        if row["scope"] == scope
        and row["quantity"] in ("read_bytes", "written_bytes")
        and (row["error_percent"] is None or abs(float(row["error_percent"])) > limit_percent)
    ]


def _show(plain: Side, judged: list[tuple[Side, Result]]) -> None:
    """What the exact counts consist of is the same for every claim, and shown with the last."""
    from ..analyses.accuracy import view
    from ..present import terminal

    for number, (claim, result) in enumerate(judged, 1):
        title = [("Exact", f"{plain.name} ({plain.how})"), ("Claim", f"{claim.name} ({claim.how})")]
        leave_out = () if number == len(judged) else ("explained",)
        terminal.show_result(result, view(result), file=sys.stdout, title=title, leave_out=leave_out)
        sys.stdout.write("\n")


def failed_text(row: Row) -> str:
    """A row that is off by more than the limit."""
    from ..present.values import deviation, plain

    error = row["error_percent"]
    off = deviation(float(error), signed=True) if error is not None else row["error_reason"]
    return (
        f"{row['claim']}: {row['what']} of {row['region']}: exact {plain('precise', row['exact'])}, "
        f"claimed {plain('precise', row['claimed'])}, {off}"
    )


def main(arguments: list[str]) -> int:
    options, words = parse(arguments)
    from .. import analyses
    from ..capture.store.swept import SweptDirectory
    from .progress import spinning

    with ExitStack() as until_shown:
        folder = _folder_to_keep(options.keep) if options.keep else until_shown.enter_context(SweptDirectory("verify"))
        plain = _side(options.plain, words, folder / "exact.memlens", options=options, is_claim=False)
        judged: list[tuple[Side, Result]] = []
        for number, name in enumerate(options.claims, 1):
            claim = _side(name, words, folder / f"claim-{number}.memlens", options=options, is_claim=True)
            with spinning("comparing"):
                judged.append((claim, analyses.run("accuracy", plain.capture, claim=claim.capture)))
    scope = options.judge.replace("-", "_")
    failed = []
    if options.fail_above is not None:
        failed = [
            {"claim": claim.name, **row}
            for claim, result in judged
            for row in above(result, scope=scope, limit_percent=options.fail_above)
        ]
    if options.json:
        content = {
            "exact": plain.to_json(),
            "claims": [{**claim.to_json(), **result.to_json()} for claim, result in judged],
            "fail_above_percent": options.fail_above,
            "judged_scope": scope,
            "failed": failed,
        }
        json.dump(content, sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        _show(plain, judged)
        for row in failed:
            sys.stdout.write(f"failed: {failed_text(row)} (limit {options.fail_above:g} %)\n")
        if options.keep and plain.kind == "program":
            sys.stdout.write(f"next: memlens report {folder / 'exact.memlens'}\n")
    return THRESHOLD_EXCEEDED if failed else 0
