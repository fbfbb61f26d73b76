"""`memlens record`: runs a program and writes a capture."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import MemlensError, UsageError
from ..registry import Asked, CollectorDescriptor, Option
from ..units import human_bytes
from .main import new_parser, warn_of_plugins

if TYPE_CHECKING:
    from ..capture.reader import Capture
    from ..collect.recorder import Recorder

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


BUDGET_OPTIONS = (
    Option(
        "--budget",
        "limit on the cost of recording faults, as a share of the program's time (3%): above it, one event a fault instead of two, then one "
        "fault in 31, with errors",
        "3%", share_of_time, "P%",
    ),
    Option("--exact", "no budget: record every fault with both events", False, flag=True),
)  # fmt: skip


def _parser(collectors: list[CollectorDescriptor]) -> argparse.ArgumentParser:
    from ..collect import arguments

    names = ", ".join(descriptor.name for descriptor in collectors)
    parser = new_parser("record", description="Runs a program and records its memory.", examples=EXAMPLES)
    parser.usage = "memlens record [options] -- PROGRAM [arguments]\n       memlens record [options] --pid N"
    parser.add_argument("-o", "--output", metavar="DIR", help="capture to write (default: PROGRAM.memlens)")
    parser.add_argument("--force", action="store_true", help="replace the capture if it exists")
    parser.add_argument("--pid", type=int, metavar="N", help="watch a running process instead of starting one")
    parser.add_argument("--duration", type=float, metavar="S", help="stop recording after S seconds")
    parser.add_argument(
        "--collectors", metavar="A,B", help=f"use exactly these ({names}); default: whatever works here"
    )
    for option in BUDGET_OPTIONS:
        arguments.add_option(parser, option)
    parser.add_argument(
        "--ptwrite",
        action="store_true",
        help="a program built with memlens cc --memlens=ptwrite, on an Intel CPU that has the instruction: perf records the addresses",
    )
    parser.add_argument(
        "--html",
        metavar="FILE",
        help="also write the report as a page, when the program has ended and before memlens does",
    )
    parser.add_argument(
        "--redact",
        action="store_true",
        help="keep no paths, arguments, host name or values of words like NAME=value in the capture",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no summary")
    parser.add_argument("words", nargs="*", metavar="PROGRAM [arguments]")
    arguments.add_options(parser, collectors)
    return parser


def parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Options, and the command after `--` (or from the first word that is no option); `settings`: of collectors by name."""
    from ..collect import arguments as of_collectors

    collectors = of_collectors.usable_collectors()
    parser = _parser(collectors)
    declared = [*BUDGET_OPTIONS, *(option for descriptor in collectors for option in descriptor.options)]
    options_part, command = _split(arguments, VALUE_OPTIONS | of_collectors.with_values(declared))
    options = parser.parse_args(options_part)
    values = vars(options)
    command = [*options.words, *command]
    if options.pid is not None and command:
        raise UsageError("give either --pid or a program, not both", hint="memlens record --help")
    if options.pid is None and not command:
        raise UsageError("no program to record", hint="memlens record -- PROGRAM [arguments]")
    if options.duration is not None and options.duration <= 0:
        raise UsageError(f"--duration {options.duration:g} must be positive")
    of_collectors.check(collectors, values, pid=options.pid)
    chosen = options.pid is not None or options.collectors is not None
    if options.ptwrite and (chosen or of_collectors.is_any_given(collectors, values)):
        raise UsageError(
            f"--ptwrite records by perf alone; it excludes {', '.join(of_collectors.mains(collectors))}, --collectors and --pid",
            hint="memlens record --ptwrite -- PROGRAM",
        )
    asked = Asked(pid=options.pid, redact=options.redact)
    options.settings = of_collectors.settings_of(collectors, values, asked)
    if options.collectors is not None:
        options.collectors = of_collectors.names_of(options.collectors, collectors)
    return options, command


VALUE_OPTIONS = frozenset(("-o", "--output", "--html", "--pid", "--duration", "--collectors"))


def _split(arguments: list[str], value_options: frozenset[str]) -> tuple[list[str], list[str]]:
    """Our options end at `--` or at the first word that is not an option or an option's value."""
    at = 0
    while at < len(arguments):
        word = arguments[at]
        if word == "--":
            return arguments[:at], arguments[at + 1 :]
        if not word.startswith("-"):
            return arguments[:at], arguments[at:]
        at += 2 if word in value_options else 1
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
    from ..collect.record_options import RecordOptions
    from ..collect.recorder import Recorder
    from .progress import spinning

    output = Path(options.output) if options.output else default_output(command, options.pid)
    recorder = Recorder(
        RecordOptions(
            output=output,
            collectors=options.collectors,
            settings=options.settings,
            budget_share=0.0 if options.exact else options.budget,
            duration_s=options.duration,
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
        if not options.quiet:
            warn_of_plugins(observing=True)
        if options.html and recorder.failure is None:
            sys.stderr.write(_page_of(output, Path(options.html)))
    if outcome.wait_status is not None:
        exit_like(outcome.wait_status)
    return 0


def _page_of(capture: Path, page: Path) -> str:
    """Writes the report's page; what is said of it.

    In a process of its own: whatever a report costs or raises, this one must live to pass on the program's status.
    """
    read, write = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            with contextlib.suppress(OSError):
                Path("/proc/self/oom_score_adj").write_text("1000")
            os.write(write, _written_page(capture, page).encode())
        except BaseException as error:
            os.write(write, f"memlens: the page was not written: {type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(0)
    os.close(write)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # control-C ends the child
    try:
        with open(read, "rb") as told:
            said = told.read().decode(errors="replace")
        _, status = os.waitpid(child, 0)
    finally:
        signal.signal(signal.SIGINT, before)
    if said:
        return said
    why = (
        f"signal {os.WTERMSIG(status)}"
        if os.WIFSIGNALED(status)
        else f"exit status {os.waitstatus_to_exitcode(status)}"
    )
    return f"memlens: the page was not written: its process ended with {why}\n         memlens report {capture} --html {page}\n"


def _written_page(capture: Path, page: Path) -> str:
    from .. import analyses
    from ..capture.reader import open_capture
    from ..present import html
    from .report import write_whole

    try:
        report = analyses.report(open_capture(capture), cache=True)
        size = write_whole(page, html.DESCRIPTOR.render(report))
    except MemlensError as error:
        return f"memlens: the page was not written: {error}\n" + (f"         {error.hint}\n" if error.hint else "")
    return f"memlens: wrote {page} ({human_bytes(size)})\n"


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
    warn_of_plugins(observing=False)
