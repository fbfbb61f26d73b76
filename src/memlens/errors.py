"""Every error that memlens raises on purpose, with its exit status.

One place in the command line prints them: cause, number, remedy. Anything else
that escapes is a bug in memlens and says so.
"""

from __future__ import annotations


class MemlensError(Exception):
    """A mistake or limit that a person can act on.

    Parameters
    ----------
    message
        The cause, in one sentence, with the number that matters.
    hint
        What to type or change; printed on its own line.
    """

    exit_status = 70

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(MemlensError):
    """The command line is wrong."""

    exit_status = 64


class CaptureError(MemlensError):
    """A capture cannot be read: not there, not a capture, or damaged at its start."""

    exit_status = 65


class CaptureVersionError(CaptureError):
    """A capture of a format that this build does not read."""

    exit_status = 66


class QueryError(MemlensError):
    """SQL that does not run."""

    exit_status = 67


class NoDataError(MemlensError):
    """The capture is fine but holds nothing that this analysis needs."""

    exit_status = 68


class CollectorError(MemlensError):
    """A collector that was asked for by name cannot run here."""

    exit_status = 69


class MemoryLimitError(MemlensError):
    """An analysis needs more memory than it may use, or there is."""

    exit_status = 71


class ToolchainError(MemlensError):
    """A compiler, linker or plugin that `memlens cc` needs is not there, or of another version."""

    exit_status = 72


class OutputError(MemlensError):
    """An output file or directory cannot be written: exists, no room, no permission."""

    exit_status = 73


class TraceError(MemlensError):
    """A trace to import cannot be read: not there, of no known format, or malformed at a place that is named."""

    exit_status = 74


class ProgramKilled(MemlensError):
    """A program was ended by a signal before its counts were whole: there is nothing to compare."""

    exit_status = 75


class ProgramNotFound(MemlensError):
    """The program to record does not exist (as a shell would answer)."""

    exit_status = 127


class ProgramNotExecutable(MemlensError):
    """The program to record cannot be executed (as a shell would answer)."""

    exit_status = 126


THRESHOLD_EXCEEDED = 1  # `memlens diff --fail-if` holds, `memlens verify --fail-above` is exceeded

EXIT_STATUSES: dict[int, str] = {
    0: "success; for `record`, the program's own status is passed on",
    THRESHOLD_EXCEEDED: "`memlens diff`: a --fail-if condition holds; `memlens verify`: an error is above --fail-above; "
    "`memlens doctor --check`: something is missing",
    UsageError.exit_status: "the command line is wrong",
    CaptureError.exit_status: "a capture cannot be read",
    CaptureVersionError.exit_status: "a capture has a format that this build does not read",
    QueryError.exit_status: "the SQL of `memlens query` does not run",
    NoDataError.exit_status: "the capture holds nothing that was asked for",
    CollectorError.exit_status: "a collector that was asked for cannot run here",
    MemlensError.exit_status: "another error, or a bug in memlens",
    MemoryLimitError.exit_status: "memory ran out, or an analysis needs more than --memory allows",
    ToolchainError.exit_status: "`cc`, `c++`: no clang, linker, plugin or library that fits; else clang's own status is passed on",
    OutputError.exit_status: "an output cannot be written",
    TraceError.exit_status: "`import`: a trace cannot be read, or is malformed",
    ProgramKilled.exit_status: "`verify`: a program was ended by a signal, so that its counts are not whole",
    ProgramNotExecutable.exit_status: "`record`, `verify`: the program cannot be executed",
    ProgramNotFound.exit_status: "`record`, `verify`: the program was not found",
}


def os_reason(error: OSError) -> str:
    """The short reason of an OSError, without Python's decoration.

    >>> os_reason(FileNotFoundError(2, "No such file or directory"))
    'no such file or directory'
    """
    text = error.strerror or str(error)
    return text[:1].lower() + text[1:]


class PluginWarning(UserWarning):
    """A plug-in of another package was left out; `memlens doctor` lists it."""
