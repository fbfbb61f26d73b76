"""Attack `faults`: system calls of the recorder that fail, full and read-only disks, limits of file sizes.

A shim (failing_calls.c) makes the k-th call of a kind fail in the recorder and in the process that finishes, never in the program.
The program must end as natively, or never start, with the reason; the capture that is left opens and says why it is incomplete.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from memlens.errors import EXIT_STATUSES

from .forked import warm
from .model import Attempt
from .recordings import Attempted, Ended, build, recorder, shown
from .workplace import workplace

SHIM = Path(__file__).parent / "failing_calls.c"
DISK = (errno.ENOSPC, errno.EIO, errno.EDQUOT)
SHORT = 0
"""Of a write: half of it is done."""
HARMLESS = (SHORT, errno.EINTR)
ON_CAPTURE = (
    ("write", (*DISK, *DISK, errno.EFBIG, *HARMLESS)), ("open", (*DISK, errno.EMFILE, errno.EACCES, errno.EROFS)), ("rename", DISK),
    ("close", DISK), ("fsync", DISK), ("mkdir", (*DISK, errno.EROFS, errno.EACCES)),
)  # fmt: skip
ANYWHERE = (
    ("memfd_create", (errno.EMFILE, errno.ENFILE, errno.ENOSYS)), ("ftruncate", (errno.EFBIG, errno.ENOSPC, errno.EINVAL)),
    ("mmap", (errno.ENOMEM, errno.EPERM, errno.EAGAIN)), ("pipe2", (errno.EMFILE, errno.ENFILE)), ("fork", (errno.EAGAIN, errno.ENOMEM)),
    ("pthread_create", (errno.EAGAIN,)), ("perf_event_open", (errno.EMFILE, errno.ENOMEM, errno.EACCES, errno.ENOSYS, errno.EBUSY)),
)  # fmt: skip
KINDS = (
    "capture",
    "capture",
    "capture",
    "capture",
    "anywhere",
    "anywhere",
    "size limit",
    "full disk",
    "full disk",
    "read-only",
    "few files",
    "unheard",
)
ENDLESS = 1 << 40
MODES: tuple[tuple[str, ...], ...] = ((), ("-q",), ("--sample-bytes", "0"), ("--redact",))
WORDS = {errno.ENOSPC: "o space", errno.EIO: "nput/output error", errno.EDQUOT: "uota", errno.EFBIG: "too large"}
"""How the C library names them, but for the first letter's case."""
REFUSED = {status for status in EXIT_STATUSES if 64 <= status <= 75 and status != 70}


def compiled_shim(folder: Path) -> Path:
    target = folder / "failing_calls.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", target, SHIM, "-ldl"], check=True, capture_output=True)
    return target


class Disk:
    """A small file system in memory; `mount` needs the privilege."""

    def __init__(self, place: Path, *, n_bytes: int) -> None:
        self.place = place
        self.place.mkdir()
        self._is_mounted = False
        self._mount("-t", "tmpfs", "-o", f"size={n_bytes}", "tmpfs")
        self._is_mounted = True

    def _mount(self, *words: str) -> None:
        done = subprocess.run(["mount", *words, str(self.place)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise PermissionError(done.stderr.strip())

    def close_for_writing(self) -> None:
        self._mount("-o", "remount,ro")

    def __enter__(self) -> Disk:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_mounted:
            subprocess.run(["umount", "-l", str(self.place)], capture_output=True, check=False)


def judge(
    attempt: Attempted, native: Ended, ended: Ended, *, errors: list[int], is_harmless: bool, speaks: bool = True
) -> str | None:
    """Why the end of a recording in which these calls failed is a failure."""
    left = attempt.what_is_left(ended)
    if left is not None:
        return left
    said = ended.err.decode("utf-8", "replace")
    failure, report = attempt.opens()
    if failure is not None:
        return failure
    if not attempt.began.exists():
        if ended.out or ended.status not in REFUSED:
            return f"ended with {ended.status} and never started the program"
        can_speak = errors != [errno.EFBIG] and speaks  # standard error is a file too
        return None if said.strip() or not can_speak else f"ended with {ended.status} without a word"
    if (ended.status, ended.out) != (native.status, native.out):
        return (
            f"ended with {ended.status} after {ended.out[-60:]!r}, natively {native.status} after {native.out[-60:]!r}"
        )
    if native.err not in ended.err:
        return f"the program's words {native.err[-80:]!r} are missing"
    if is_harmless:
        return "the capture is incomplete after calls that can be repeated" if "incomplete" in said + report else None
    if "the capture is incomplete" in said:
        if not any(WORDS.get(number, "\0") in said for number in errors):
            return f"no reason is given: {said.strip()[-200:]}"
        # Where meta.json cannot be written either, all that can be told is that the recording did not finish.
        if not any(word in report for word in (*(WORDS.get(number, "\0") for number in errors), "did not finish")):
            return "the report does not say why the capture is incomplete"
    return None


def attacks(seconds: float, seed: int, *, fresh: bool = True) -> Iterator[Attempt]:
    """Recordings with failing calls until the time is over."""
    warm()
    with workplace() as place:
        programs = build(place / "programs")
        shim = compiled_shim(place / "programs")
        until = time.monotonic() + seconds
        can_mount = True
        for number in itertools.count():
            if time.monotonic() > until:
                return
            draw = random.Random(f"faults {seed} {number}")
            kind = draw.choice(KINDS)
            if kind in ("full disk", "read-only") and not can_mount:
                kind = "capture"
            try:
                yield _attempt(place / str(number), draw, number, kind, programs, shim)
            except PermissionError:
                can_mount = False
            shutil.rmtree(place / str(number), ignore_errors=True)


def _attempt(
    folder: Path, draw: random.Random, number: int, kind: str, programs: dict[str, Path], shim: Path
) -> Attempt:
    name, mode = draw.choice(sorted(programs)), draw.choice(MODES)
    program = programs[name]
    attempt, alone = Attempted(folder / "recorded"), Attempted(folder / "alone")
    environment: dict[str, str] = {}
    before: tuple[str, ...] = ()
    errors: list[int] = []
    is_harmless = False
    error_to: int | None = None
    with contextlib.ExitStack() as while_running:
        if kind in ("capture", "anywhere"):
            call, numbers = draw.choice(ON_CAPTURE if kind == "capture" else ANYWHERE)
            error = draw.choice(numbers)
            first = draw.choice((1, 2, 3, draw.randrange(1, 12), draw.randrange(1, 60)))
            count = 1 if error in HARMLESS else draw.choice((1, ENDLESS))
            log = folder / "log"
            environment = {
                "LD_PRELOAD": str(shim), "FAULT": f"{call}:{error}:{first}:{count}", "FAULT_LOG": str(log),
                "FAULT_UNDER": "c.memlens" if kind == "capture" else "",
            }  # fmt: skip
            errors, is_harmless = [error], error in HARMLESS
            what = f"{call} {first}{'' if count == 1 else ' and later'}: {errno.errorcode.get(error, 'short')} ({kind})"
        elif kind == "size limit":
            n_bytes = draw.choice((0, 1, 4096, draw.randrange(100, 20_000), draw.randrange(10_000, 400_000)))
            before = ("prlimit", f"--fsize={n_bytes}")
            errors, what = [errno.EFBIG], f"files of at most {n_bytes} bytes"
        elif kind == "few files":
            n_files = draw.randrange(14, 80)
            before, what = ("prlimit", f"--nofile={n_files}"), f"at most {n_files} open files"
        elif kind == "unheard":
            error_to, what = _unheard(draw, while_running)
        else:
            n_bytes = 4096 * draw.choice((1, 2, 3, 5, draw.randrange(1, 60)))
            disk = while_running.enter_context(Disk(attempt.folder / "disk", n_bytes=n_bytes))
            attempt.capture = disk.place / "c.memlens"
            errors, what = [errno.ENOSPC], f"a disk of {n_bytes} bytes"
            if kind == "read-only":
                disk.close_for_writing()
                errors, what = [errno.EROFS], "a read-only disk"
        arguments = [str(attempt.began)] + ([str(folder / "written")] if name == "files" else [])
        native = alone.native([str(program), str(alone.began), *arguments[1:]], before=before, error_to=error_to)
        command = recorder(attempt.capture, [str(program), *arguments], *mode)
        ended = attempt.end(attempt.start(command, environment=environment, before=before, error_to=error_to))
        if native.status < 0 and not alone.began.exists():
            failure = attempt.what_is_left(ended)  # the limit ends the program itself before it begins
        else:
            failure = judge(attempt, native, ended, errors=errors, is_harmless=is_harmless, speaks=error_to is None)
    settings = " ".join(f"{key}={value}" for key, value in environment.items())
    again = f"{settings} {' '.join(before)} {shown(command)}" if failure else ""
    if failure:
        failure += f" [{ended.err[-300:].decode('utf-8', 'replace').strip()!r}]"
    return Attempt(
        "faults",
        f"recording {number}: {name} {' '.join(mode)}: {what}",
        tuple(command),
        failure,
        again,
        {"seconds": ended.seconds},
    )


def _unheard(draw: random.Random, until: contextlib.ExitStack) -> tuple[int, str]:
    """Where nothing can be written to, and what that is."""
    if draw.random() < 0.5:
        target, what = os.open("/dev/full", os.O_WRONLY | os.O_CLOEXEC), "errors to a full device"
    else:
        reading, target = os.pipe()
        os.close(reading)
        what = "errors to a pipe that nobody reads"
    until.callback(os.close, target)
    return target, what
