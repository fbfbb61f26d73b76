"""Commands of memlens in forks of this process, under limits of time and memory.

Importing memlens, NumPy, Arrow and DuckDB takes a second, and a command on a small capture a fifth of that: so they are imported
once here, and each command is a fork. This process itself never uses Arrow's threads: a fork would lose them.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from memlens.errors import EXIT_STATUSES

SECONDS = 60.0
"""A command on these inputs takes less than a second alone; the machine may be shared."""
RSS_BYTES = 2 << 30
ADDRESS_SPACE_BYTES = 24 << 30
"""Stops what asks for more at once than polling can see in time."""
POLL_S = 0.01
BUG, MEMORY = 70, 71
OUTPUT_BYTES = 256 << 20
"""What a command may write."""


@dataclass(frozen=True)
class Outcome:
    status: int
    """Exit status, or minus the signal."""
    seconds: float
    peak_rss_bytes: int
    stopped: str | None
    """Which limit ended it."""
    out: bytes
    err: bytes


def warm() -> None:
    """Imports what commands import."""
    import importlib

    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    for name in ("numpy", "pyarrow.compute", "pyarrow.parquet", "pyarrow.csv", "duckdb", "rich.console", "rich.table",
                 "memlens.analyses", "memlens.present.html", "memlens.present.terminal", "memlens.importing.formats",
                 "memlens.capture.model.objects", "memlens.capture.model.replay", "memlens.capture.model.accesses", "memlens.cli.main"):  # fmt: skip
        importlib.import_module(name)


def memlens_command(arguments: list[str]) -> Callable[[], int]:
    """The command line, for `forked`."""

    def run() -> int:
        from memlens.cli.main import main

        sys.argv = ["memlens", *arguments]
        try:
            main()
        except SystemExit as ended:
            return ended.code if isinstance(ended.code, int) else 1
        return 0

    return run


def forked(
    run: Callable[[], int], folder: Path, *, seconds: float = SECONDS, rss_bytes: int = RSS_BYTES, stdin: bytes = b""
) -> Outcome:
    """Runs it in a fork with its output in files of `folder`."""
    out, err, given = folder / ".stdout", folder / ".stderr", folder / ".stdin"
    given.write_bytes(stdin)
    begin = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _be_child(run, out, err, given)
    handle = os.pidfd_open(pid)
    stopped = None
    peak = 0
    try:
        while not select.select([handle], [], [], POLL_S)[0]:
            resident = _resident_bytes(pid)
            peak = max(peak, resident)
            if resident > rss_bytes:
                stopped = f"took more than {rss_bytes >> 20} MiB"
            elif time.monotonic() - begin > seconds:
                stopped = f"ran for more than {seconds:.0f} s"
            if stopped:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                break
        _, status, usage = os.wait4(pid, 0)
    finally:
        os.close(handle)
    peak = max(peak, usage.ru_maxrss << 10)
    if stopped is None and peak > rss_bytes:
        stopped = f"took {peak >> 20} MiB"
    code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    return Outcome(code, time.monotonic() - begin, peak, stopped, _content(out), _content(err))


def _content(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(64 << 20)
    except FileNotFoundError:
        return b""


def _resident_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * 4096
    except (OSError, IndexError):
        return 0


def _be_child(run: Callable[[], int], out: Path, err: Path, given: Path) -> None:
    status = 99
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (OUTPUT_BYTES, OUTPUT_BYTES))
        for path, descriptor, flags in (
            (given, 0, os.O_RDONLY),
            (out, 1, os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
            (err, 2, os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        ):
            opened = os.open(path, flags, 0o600)
            os.dup2(opened, descriptor)
            os.close(opened)
        sys.stdin, sys.stdout, sys.stderr = (open(number, mode) for number, mode in ((0, "r"), (1, "w"), (2, "w")))
        status = run()
    except BaseException:
        import traceback

        with contextlib.suppress(BaseException):
            sys.stderr.write(traceback.format_exc())
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
        with contextlib.suppress(BaseException):
            sys.stderr.flush()
        os._exit(status)


def failure_of(outcome: Outcome, *, is_text: bool = True) -> str | None:
    """Why an outcome is a failure: limits, signals, bugs, tracebacks, raw control characters."""
    said = (outcome.err.decode("utf-8", "replace").strip() or "nothing").splitlines()
    if outcome.stopped:
        return outcome.stopped
    if outcome.status < 0:
        return f"killed by {signal.Signals(-outcome.status).name}: {said[-1]}"
    if b"Traceback" in outcome.err:
        return f"a traceback: {said[-1]}"
    if outcome.status == MEMORY:
        return f"asked for more than {ADDRESS_SPACE_BYTES >> 30} GiB: {said[0]}"
    if outcome.status == BUG or outcome.status not in EXIT_STATUSES:
        return f"exit status {outcome.status}: {said[0]}"
    if outcome.status and not outcome.err:
        return f"exit status {outcome.status} without a word"
    for stream in (outcome.out, outcome.err) if is_text else (outcome.err,):
        if (raw := raw_control(stream)) is not None:
            return f"a raw control character in the output: {raw!r}"
    return None


_BIDIRECTIONAL = {0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)}


def raw_control(stream: bytes) -> str | None:
    """Some text around the first character that may steer a terminal; None when there is none."""
    text = stream.decode("utf-8", "surrogateescape")
    for at, character in enumerate(text):
        code = ord(character)
        if (code < 0x20 and character not in "\n\t") or 0x7F <= code < 0xA0 or code in _BIDIRECTIONAL:
            return text[max(0, at - 10) : at + 20]
    return None
