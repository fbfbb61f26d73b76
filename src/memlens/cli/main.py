"""`memlens`: finds the command, runs it, prints errors; knows no command's insides.

Start-up matters: this module imports argparse and nothing of memlens but the
version and errors, and a command's module only when that command is named.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
import warnings
from typing import NoReturn

from ..errors import MemlensError, MemoryLimitError, OutputError, PluginWarning, UsageError, os_reason
from ..plain_text import PlainStream
from ..version import __version__

COMMANDS: dict[str, str] = {
    "record": "run a program (or watch a process) and write a capture",
    "report": "show what a capture found: terminal, HTML or JSON",
    "diff": "compare two captures, with thresholds for CI",
    "query": "query a capture's tables with SQL",
    "export": "write a capture's tables as CSV, JSON or Parquet",
    "import": "convert other tools' traces into captures: lackey, MemGaze, drmemtrace, ptwrite",
    "cc": "compile C with clang so that every run counts its accesses",
    "c++": "the same for C++",
    "numa": "show which accesses are remote, which thread placed what, and when threads moved",
    "zoom": "zoom into hot, badly reused accesses, over memory or over time",
    "suggest": "rank functions as candidates for regions",
    "verify": "compare claimed counts of accesses with the emulator's exact counts",
    "validate": "compare figures of sampled traces with a capture of every access",
    "calibrate": "measure this machine's peaks of bandwidth and latency, once",
    "doctor": "what this machine can measure, why not, and what to type",
    "config": "where memlens.h and the libraries for other programs are",
}

HELP = """\
usage: memlens COMMAND [options]

memlens shows where a native program's memory comes from and where it lives.

commands:
{commands}

first steps:
  memlens record -- ./program arguments      writes program.memlens and prints a summary
  memlens report program.memlens             the summary again; --html page.html for a page
  memlens doctor                             what this machine can measure

memlens COMMAND --help describes a command. Exit statuses: memlens help exit-status.
"""


LIMITS = {
    errno.EMFILE: "raise the limit of open files: ulimit -n 65536",
    errno.ENFILE: "raise the system's limit of open files: sysctl fs.file-max",
    errno.EAGAIN: "raise the limit of processes and threads: ulimit -u, or pids.max of the control group",
    errno.ENOMEM: "free memory, or raise its limits: ulimit -v, memory.max of the control group",
    errno.ENOSPC: "free some room, or give another place",
    errno.EDQUOT: "free some room, or give another place",
}
"""What the machine lacks, and the remedy: no fault of memlens, whatever it was doing."""


class Parser(argparse.ArgumentParser):
    """argparse with our errors: one sentence, a remedy, a documented status."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}", hint=f"{self.prog} --help")


def new_parser(command: str, *, description: str, examples: str) -> Parser:
    """A command's parser, with examples at the end of its help."""
    return Parser(
        prog=f"memlens {command}",
        description=description,
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def _help_text() -> str:
    width = max(map(len, COMMANDS))
    return HELP.format(commands="\n".join(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items()))


def _exit_statuses() -> str:
    from ..errors import EXIT_STATUSES

    lines = [f"  {status:>3}  {text}" for status, text in EXIT_STATUSES.items()]
    return "exit statuses of memlens:\n" + "\n".join(lines) + "\n"


def run(arguments: list[str]) -> int:
    """Runs one command line; raises MemlensError."""
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(_help_text())
        return 0
    name, *rest = arguments
    if name in ("-V", "--version"):
        sys.stdout.write(f"memlens {__version__}\n")
        return 0
    if name == "help":
        if rest == ["exit-status"]:
            sys.stdout.write(_exit_statuses())
            return 0
        return run([*rest, "--help"]) if rest else run(["--help"])
    if name not in COMMANDS:
        import difflib

        close = difflib.get_close_matches(name, COMMANDS, n=1)
        what = "option" if name.startswith("-") else "command"
        hint = f"did you mean: memlens {close[0]}" if close else "memlens --help lists the commands"
        raise UsageError(f"unknown {what} {name!r}", hint=hint)
    if name in ("cc", "c++"):
        from . import compile as compiler

        return compiler.main(name, rest)
    file = "import_" if name == "import" else name  # a word of Python
    command = importlib.import_module(f".{file}", __package__)
    status: int = command.main(rest)
    if name not in ("doctor", "record"):  # they say it themselves
        warn_of_plugins()
    return status


def warn_of_plugins(*, observing: bool | None = None) -> None:
    """Says what plug-ins of other packages were left out, once; `doctor` says it in full.

    `observing`: only collectors, or only the others; `record` and its summary are two processes.
    """
    registry = sys.modules.get("memlens.registry")
    for problem in registry.problems() if registry is not None else ():
        if observing is not None and observing != (problem.kind == "collector"):
            continue
        sys.stderr.write(f"memlens: {problem}\n         {problem.remedy}\n")


class _WithoutPandas:
    """Arrow imports pandas, where it is installed, only to ask whether an argument is a Series: a quarter of a
    second at each start. The command line never uses pandas, so it is not to be found."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name="pandas")


def print_error(error: MemlensError) -> None:
    sys.stderr.write(f"memlens: {error}\n")
    if error.hint:
        sys.stderr.write(f"         {error.hint}\n")


def main() -> NoReturn:
    """Entry point of the `memlens` command."""
    sys.meta_path.insert(0, _WithoutPandas())  # type: ignore[arg-type]
    warnings.filterwarnings("ignore", category=PluginWarning)  # the command line says it itself
    # A caller may have closed our streams; the descriptors opened here are not passed to the program.
    sys.stdout = out = PlainStream(sys.stdout or open(os.devnull, "w"), "standard output")  # type: ignore[assignment]
    sys.stderr = PlainStream(sys.stderr or open(os.devnull, "w"), "standard error")  # type: ignore[assignment]
    status = 70
    try:
        status = _run_guarded(out)
    except OutputError:
        status = OutputError.exit_status  # standard error itself cannot be written
    sys.exit(status)


def _run_guarded(out: PlainStream) -> int:
    """Runs the command line; every error becomes a sentence and a documented status."""
    try:
        status = run(sys.argv[1:])
        out.flush()
        return status
    except MemlensError as error:
        print_error(error)
        return error.exit_status
    except BrokenPipeError:
        # The reader of our output went away (| head): no message, as other tools do.
        out.discard()
        return 141
    except MemoryError as error:
        print_error(
            MemoryLimitError(
                f"memory ran out{f': {error}' if str(error) else ''}",
                hint="give memlens more memory (ulimit -v, the control group), or memlens report --memory SIZE",
            )
        )
        return MemoryLimitError.exit_status
    except OSError as error:
        remedy = LIMITS.get(error.errno or 0)
        if os.environ.get("MEMLENS_DEBUG") or (error.filename is None and remedy is None):
            return _bug(error)
        what = "continue" if error.filename is None else f"use {os.fsdecode(error.filename)}"
        print_error(
            OutputError(f"cannot {what}: {os_reason(error)}", hint=remedy or "give another place, or its permission")
        )
        return OutputError.exit_status
    except KeyboardInterrupt:
        sys.stderr.write("memlens: interrupted\n")
        return 130
    except Exception as error:
        return _bug(error)


def _bug(error: Exception) -> int:
    if os.environ.get("MEMLENS_DEBUG"):
        raise error
    sys.stderr.write(
        f"memlens: this is a bug in memlens: {type(error).__name__}: {error}\n"
        "         please report it with the output of the same command under MEMLENS_DEBUG=1\n"
    )
    return 70
