"""`memlens record`: runs a program and writes a capture."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import MemlensError, UsageError
from .main import new_parser

if TYPE_CHECKING:
    from ..capture.reader import Capture
    from ..collect.counting import CountOptions
    from ..collect.emulator import EmulateOptions
    from ..collect.recorder import Recorder
    from ..collect.tracing import TraceOptions

EXAMPLES = """\
  memlens record -- ./solver input.dat          writes solver.memlens, then a summary
  memlens record -o run1.memlens -q -- make -j  quiet, into a named capture
  memlens record --rate 100 -- ./short          100 readings of RSS a second
  memlens record --stacks fp -- ./server        call stacks of faults by frame pointers: no copies of stack memory
  memlens record --sample-bytes 0 -- ./leaky    every object, not a sample of the small ones
  memlens record --emulate -- ./solver          every access, exactly, of an unmodified program of any ISA
  memlens record --count=every=100 -- ./counted a program built with memlens cc: one execution of a region in 100
  memlens record --trace=period=1000000 -- ./traced   built with memlens cc --memlens=trace: windows of addresses
  memlens record --pid 4711 --duration 10       watch a running process for 10 s

The program's standard streams, signals and exit status are untouched; memlens
writes to standard error only, after the program has ended.
"""


COLLECTORS = ("faults", "timeline", "alloc", "count", "trace", "emulate")


def byte_count(text: str) -> int:
    """4096, 512K, 2M, 1G."""
    factors = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    digits = text.upper().removesuffix("B").removesuffix("I")
    factor = factors.get(digits[-1:], 1)
    digits = digits.rstrip("KMG") if factor > 1 else digits
    if not digits.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes; write 4096, 512K, 2M or 1G")
    return int(digits) * factor


def share_of_time(text: str) -> float:
    """3%, 0.5%: a part of the program's time.

    >>> share_of_time("3%")
    0.03
    """
    try:
        percent = float(text.removesuffix("%"))
    except ValueError:
        percent = 0.0
    if not 0.1 <= percent <= 100:
        raise argparse.ArgumentTypeError(f"invalid value {text!r}: expected a percentage from 0.1% to 100%, as in 3%")
    return percent / 100


def parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Options, and the command after `--` (or from the first word that is no option)."""
    parser = new_parser("record", description="Runs a program and records its memory.", examples=EXAMPLES)
    parser.usage = "memlens record [options] -- PROGRAM [arguments]\n       memlens record [options] --pid N"
    parser.add_argument("-o", "--output", metavar="DIR", help="capture to write (default: PROGRAM.memlens)")
    parser.add_argument("--force", action="store_true", help="replace the capture if it exists")
    parser.add_argument("--pid", type=int, metavar="N", help="watch a running process instead of starting one")
    parser.add_argument("--duration", type=float, metavar="S", help="stop recording after S seconds")
    parser.add_argument(
        "--collectors", metavar="A,B", help=f"use exactly these ({', '.join(COLLECTORS)}); default: whatever works here"
    )
    parser.add_argument(
        "--rate", type=float, default=10.0, metavar="HZ", help="timeline readings a second, 1 to 1000 (10)"
    )
    parser.add_argument(
        "--stacks",
        choices=("fp", "dwarf", "none"),
        help="call stacks of sampled faults: from unwind tables (dwarf) or frame pointers (fp); default: dwarf on x86-64 and "
        "AArch64, fp elsewhere, with little lockable memory (ulimit -l) and with --redact, since dwarf keeps copies of stack memory",
    )
    parser.add_argument(
        "--single",
        action="store_true",
        help="half the cost a fault; upgrades and repeated touches cannot be told apart",
    )
    parser.add_argument(
        "--budget",
        type=share_of_time,
        default="3%",
        metavar="P%",
        help="what recording faults may cost of the program's time (3%%): above it, one event a fault instead of two, then one "
        "fault in 31, with errors of the estimates",
    )
    parser.add_argument(
        "--exact", action="store_true", help="no budget: record every fault with both events, whatever it costs"
    )
    parser.add_argument(
        "--sample-bytes",
        type=byte_count,
        default="512K",
        metavar="N",
        help="record one small object in N allocated bytes (512K); 0: every object",
    )
    parser.add_argument(
        "--large-bytes",
        type=byte_count,
        default="64K",
        metavar="N",
        help="always record objects of N bytes and more (64K)",
    )
    parser.add_argument(
        "--emulate",
        nargs="?",
        const="",
        metavar="WHAT",
        help="run the program under qemu and count every access; WHAT, after =, joined by commas: counts (nothing else), "
        "window=N,period=N (addresses of N accesses in every so many; default 1000 in 100000), full (all addresses), "
        "pages (accesses by page and thread), stack (tell stack and other memory apart at every access), frames (the same, only the running function's own frame being stack; x86-64), cpu=NAME, stacks=off, wait=off, seed=N",
    )
    parser.add_argument(
        "--functions",
        metavar="REGEX",
        help="with --emulate: functions that are regions, callees included; with --trace: record only accesses of the code of these "
        "functions and of what was inlined into them; @FILE: expressions of a file, one a line",
    )
    parser.add_argument(
        "--count",
        nargs="?",
        const="",
        metavar="HOW",
        help="a program built with memlens cc counts its accesses by default; HOW, after =, joined by commas: every=N (one "
        "execution of a region in N, at random), first=K (and the first K), periodic (every N-th instead), seed=N, budget=1%% (limit "
        "the overhead to 1 %%), "
        "epoch=100ms (values over time), events=A+B (perf events at the ends of regions), threads=N, counters=N, "
        "children (only programs that it starts have counters)",
    )
    parser.add_argument(
        "--trace",
        nargs="?",
        const="",
        metavar="HOW",
        help="a program built with memlens cc --memlens=trace records addresses in windows by default; HOW, after =, joined by "
        "commas: window=N,period=N (N accesses in every so many; default 1000 in 100000), full (all of them), loads (no stores), "
        "regions=A+B (only there), seed=N, stacks=off, on-full=drop|wait (what happens when the recorder is behind; default drop)",
    )
    parser.add_argument(
        "--ptwrite",
        action="store_true",
        help="a program built with memlens cc --memlens=ptwrite, on an Intel CPU that has the instruction: perf records the addresses",
    )
    parser.add_argument(
        "--redact",
        action="store_true",
        help="keep no paths, arguments, host name or values of words like NAME=value in the capture",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no summary")
    parser.add_argument("words", nargs="*", metavar="PROGRAM [arguments]")
    options_part, command = _split(arguments)
    options = parser.parse_args(options_part)
    command = [*options.words, *command]
    if options.pid is not None and command:
        raise UsageError("give either --pid or a program, not both", hint="memlens record --help")
    if options.pid is None and not command:
        raise UsageError("no program to record", hint="memlens record -- PROGRAM [arguments]")
    if not 1 <= options.rate <= 1000:
        raise UsageError(f"--rate {options.rate:g} is out of range", hint="give 1 to 1000 readings a second")
    if options.duration is not None and options.duration <= 0:
        raise UsageError(f"--duration {options.duration:g} must be positive")
    if options.functions is not None and options.emulate is None and options.trace is None:
        raise UsageError(
            "--functions needs --emulate or --trace", hint="memlens record --emulate --functions REGEX -- PROGRAM"
        )
    if options.emulate is not None and options.pid is not None:
        raise UsageError("--emulate starts a program; it cannot watch a running one")
    if options.redact and options.stacks == "dwarf":
        raise UsageError(
            "--redact keeps no copies of stack memory, which --stacks dwarf is made of",
            hint="use --stacks fp or none with --redact",
        )
    if options.count is not None and (options.pid is not None or options.emulate is not None):
        raise UsageError("--count starts a program natively; it goes with neither --pid nor --emulate")
    if options.trace is not None and (options.pid is not None or options.emulate is not None):
        raise UsageError("--trace starts a program natively; it goes with neither --pid nor --emulate")
    others = (options.emulate, options.count, options.trace, options.pid, options.collectors)
    if options.ptwrite and any(other is not None for other in others):
        raise UsageError(
            "--ptwrite records by perf alone; it goes with no --emulate, --count, --trace, --collectors or --pid",
            hint="memlens record --ptwrite -- PROGRAM",
        )
    if options.collectors is not None:
        names = [name for name in options.collectors.split(",") if name]
        unknown = [name for name in names if name not in COLLECTORS]
        if unknown or not names:
            raise UsageError(
                f"there is no collector {', '.join(unknown) or '(none named)'} in this version",
                hint=f"collectors: {', '.join(COLLECTORS)}; see memlens doctor",
            )
        options.collectors = tuple(dict.fromkeys(names))
    return options, command


VALUE_OPTIONS = {
    "--budget", "-o", "--output", "--pid", "--duration", "--collectors", "--rate", "--stacks", "--sample-bytes", "--large-bytes",
    "--functions",
}  # fmt: skip


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Our options end at `--` or at the first word that is not an option or an option's value."""
    at = 0
    while at < len(arguments):
        word = arguments[at]
        if word == "--":
            return arguments[:at], arguments[at + 1 :]
        if not word.startswith("-"):
            return arguments[:at], arguments[at:]
        at += 2 if word in VALUE_OPTIONS else 1
    return arguments, []


def default_output(command: list[str], pid: int | None) -> Path:
    """NAME.memlens beside the user, numbered when it is taken."""
    stem = os.path.basename(command[0]) if command else f"pid-{pid}"
    path = Path(f"{stem}.memlens")
    number = 2
    while path.exists():
        path = Path(f"{stem}-{number}.memlens")
        number += 1
    return path


def _emulate_options(options: argparse.Namespace) -> EmulateOptions | None:
    asked = options.emulate is not None or "emulate" in (options.collectors or ())
    if not asked:
        return None
    from dataclasses import replace

    from ..collect import emulator

    return replace(emulator.parse(options.emulate or ""), functions=function_pattern(options.functions or ""))


def function_pattern(text: str) -> str:
    """A regular expression, or `@FILE` with one a line (as `memlens suggest` writes them), as one expression."""
    if not text.startswith("@"):
        return text
    try:
        lines = Path(text[1:]).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(f"--functions {text}: cannot read the file: {reason}") from None
    found = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not found:
        raise UsageError(f"--functions {text}: the file names no function", hint="write one expression a line")
    return "|".join(f"(?:{line})" for line in found)


def _count_options(options: argparse.Namespace) -> CountOptions | None:
    if options.count is None:
        return None
    from ..collect import counting

    return counting.parse(options.count)


def _trace_options(options: argparse.Namespace) -> TraceOptions | None:
    if options.trace is None:
        return None
    from dataclasses import replace

    from ..collect import tracing

    return replace(tracing.parse(options.trace), functions=function_pattern(options.functions or ""))


def _record_ptwrite(options: argparse.Namespace, command: list[str]) -> int:
    from ..collect.program import exit_like, find_program
    from ..importing import ptwrite_run

    find_program(command[0])
    output = Path(options.output) if options.output else default_output(command, None)
    run = ptwrite_run.record(command, output, force=options.force)
    with contextlib.suppress(MemlensError, OSError):
        for note in run.outcome.notes if not options.quiet else ():
            sys.stderr.write(f"memlens: {note}\n")
        if not options.quiet:
            said = f"{run.outcome.accesses:,} accesses; next: memlens report {output}"
            sys.stderr.write(f"memlens: wrote {output}: {said}\n")
    exit_like(run.wait_status)
    return 0


def main(arguments: list[str]) -> int:
    options, command = parse(arguments)
    if options.ptwrite:
        return _record_ptwrite(options, command)
    from ..collect.program import exit_like
    from ..collect.record_options import RecordOptions, default_stacks
    from ..collect.recorder import Recorder
    from .progress import spinning

    output = Path(options.output) if options.output else default_output(command, options.pid)
    recorder = Recorder(
        RecordOptions(
            output=output,
            collectors=options.collectors,
            stacks=options.stacks or ("fp" if options.redact else default_stacks()),
            single=options.single,
            budget_share=0.0 if options.exact else options.budget,
            rate_hz=options.rate,
            sample_bytes=options.sample_bytes,
            large_bytes=options.large_bytes,
            duration_s=options.duration,
            emulate=_emulate_options(options),
            count=_count_options(options),
            trace=_trace_options(options),
            force=options.force,
            redact=options.redact,
        ),
        while_finishing=lambda: spinning("naming code and writing tables"),
        summarise=None if options.quiet else _summarise,
        summary_modules=SUMMARY_MODULES,
    )
    outcome = recorder.run_pid(options.pid) if options.pid is not None else recorder.run_command(command)
    # Whether or not anybody can read the messages: the program's status is passed on.
    with contextlib.suppress(MemlensError, OSError) if outcome.wait_status is not None else contextlib.nullcontext():
        for message in messages(recorder, output, quiet=options.quiet):
            sys.stderr.write(message)
    if outcome.wait_status is not None:
        exit_like(outcome.wait_status)
    return 0


def messages(recorder: Recorder, output: Path, *, quiet: bool) -> Iterator[str]:
    """What is said after a recording."""
    if recorder.unfinished is not None and recorder.failure is None and not quiet:
        yield f"memlens: {recorder.unfinished}\n         the report does it; the records are complete\n"
    if recorder.failure is not None:
        why, remedy = (
            (" because of a bug in memlens", "please report this")
            if recorder.is_bug
            else ("", "what was recorded before is in the capture")
        )
        yield f"memlens: recording failed{why}: {recorder.failure}\n         the program itself ran to its end; {remedy}\n"
    failure, side_failure = recorder.writer.failure, recorder.writer.side_failure
    if failure is not None:
        yield (
            f"memlens: the capture is incomplete: {failure.strerror} while writing {output}\n"
            "         free some room or write elsewhere with -o; the program itself ran to its end\n"
        )
    elif side_failure is not None:
        yield (
            f"memlens: tables of {output} were not written: {side_failure.strerror}\n"
            "         all records are there, and the report makes the tables\n"
        )
    if recorder.is_displaced:
        yield (
            f"memlens: {output} was moved, removed or replaced while it was recorded\n"
            "         what was recorded is where that directory is now; the program itself ran to its end\n"
        )
    elif not quiet:
        yield f"memlens: wrote {output}; next: memlens report {output} --html {output.stem}.html\n"


SUMMARY_MODULES = (
    "rich.console", "rich.table", "rich.padding", "rich.markup", "memlens.present.terminal", "analysis", "finding",
)  # fmt: skip
"""Imported while the program runs: modules, and kinds of the registry."""


def _summarise(capture: Capture) -> None:
    from .. import analyses
    from ..present import terminal

    terminal.show(analyses.report(capture), file=sys.stderr, brief=True)
