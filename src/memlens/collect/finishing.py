"""The process that finishes a capture after the program's end, apart from the recorder.

The recorder holds the program's exit status and must live to pass it on. Whatever takes time or memory (turning counters
into records, naming code, side tables, the summary) is done by a forked child: its memory is bounded, it is the first that
the kernel kills for want of memory, and control-C ends it. What it did not get to is made from the records by whoever reads
the capture. The child tells what it has done as lines of JSON; only the recorder writes meta.json.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..capture.store.writer import CaptureWriter
from ..errors import MemlensError, os_reason
from .memory import available_bytes
from .signal_queue import SignalQueue
from .warmup import ENVIRONMENT

if TYPE_CHECKING:
    from ..capture.reader import Capture

FINISHING_BYTES = 448 << 20
"""Private memory of the process, what it has from the recorder included; code of libraries and pages of mapped files, about
54 MiB where it was measured, come on top: 512 MiB in all. After a recorder that is larger, finishing is left to the reader."""
SUMMARY_BYTES_PER_ALLOCATION = 50
"""Measured: the replay of 70 million allocation records takes 3.5 GiB."""
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
PR_SET_PDEATHSIG = 1
OUT_OF_MEMORY = "it reached its memory limit"


@dataclass
class Work:
    """What the child does, in this order."""

    before: Callable[[], list[str]]
    """Records that nobody can make later; returns notes. Not bounded in memory, not ended by the first control-C."""
    finish: Callable[[Callable[[], None]], Capture]
    """Stacks, names, side tables; calls its argument after each file."""
    summarise: Callable[[Capture], None] | None = None


@dataclass
class Finished:
    """What came of it."""

    notes: list[str] = field(default_factory=list)
    has_counts: bool = False
    is_finished: bool = False
    interrupted: bool = False
    failure: str | None = None
    """An error in memlens."""
    reason: str | None = None
    """Why it stopped early, when nothing is wrong with memlens."""
    summary_ended: bool = False


def _private_bytes() -> int:
    for line in Path("/proc/self/status").read_text(errors="replace").splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) << 10
    return 0


def _limit_memory(n_bytes: int) -> None:
    """RLIMIT_DATA, not RLIMIT_AS: memory shared with the program and mapped files are not ours to bound."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    n_bytes = n_bytes if hard == resource.RLIM_INFINITY else min(n_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (n_bytes, hard))


def finish_apart(
    writer: CaptureWriter, work: Work, *, while_finishing: Callable[[], AbstractContextManager[None]]
) -> Finished:
    """Runs the work in a child and brings `writer` up to date; returns when the child has ended."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(MemlensError, OSError):  # a full disk, a closed pipe
            stream.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    opened: list[int] = []
    try:
        opened.extend(os.pipe2(os.O_CLOEXEC))
        opened.extend(os.pipe2(os.O_CLOEXEC))
        queue = SignalQueue(STOPPING)
        opened.append(queue.descriptor)
        child = os.fork()
    except OSError as error:
        for descriptor in opened:
            os.close(descriptor)
        return Finished(reason=f"no process could be started for it: {error.strerror}")
    told, tell, heard, go_on, _ = opened
    if child == 0:
        status = 1
        try:
            os.close(told)
            os.close(go_on)
            status = _Child(writer, work, tell, heard).run()
        finally:
            os._exit(status)
    os.close(tell)
    os.close(heard)
    try:
        return _Parent(writer, child, told, go_on).wait(while_finishing, queue)
    finally:
        queue.close()
        os.close(told)
        os.close(go_on)


class _Child:
    def __init__(self, writer: CaptureWriter, work: Work, tell: int, heard: int) -> None:
        self.writer = writer
        self.work = work
        self._tell_to = tell
        self._heard = heard

    def run(self) -> int:
        self._prepare()
        try:
            with _standard_error_aside():
                notes = self.work.before()
                self._tell("counted", notes=notes, meta=self.writer.meta)
                _limit_memory(FINISHING_BYTES)
                capture = self.work.finish(lambda: self._tell("written"))
                self.writer.close_records()
                self._tell("finished", meta=self.writer.meta)
        except MemoryError:
            self._tell("stopped", reason=OUT_OF_MEMORY)
            return 0
        except (MemlensError, OSError) as error:  # the machine's or the disk's: a reader will try again
            self._tell("stopped", reason=os_reason(error) if isinstance(error, OSError) else str(error))
            return 0
        except Exception as error:
            if os.environ.get("MEMLENS_DEBUG"):
                traceback.print_exc()
            self._tell("stopped", failure=f"{type(error).__name__}: {error}")
            return 0
        if self.work.summarise is not None and os.read(self._heard, 1):
            self._summarise(capture, self.work.summarise)
        return 0

    def _prepare(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        os.environ.update(ENVIRONMENT)

    def _tell(self, what: str, **more: object) -> None:
        line = json.dumps({"what": what, "writer": self.writer.progress(), **more}) + "\n"
        left = line.encode()
        while left:
            left = left[os.write(self._tell_to, left) :]

    def _summarise(self, capture: Capture, summarise: Callable[[Capture], None]) -> None:
        path = self.writer.path
        limit = max(FINISHING_BYTES, available_bytes() // 2)
        needed = capture.kinds().get("allocation", 0) * SUMMARY_BYTES_PER_ALLOCATION
        try:
            if needed > limit:
                raise MemoryError
            capture.reread_meta()  # the recorder has completed it, perhaps after this process had opened it
            _limit_memory(_private_bytes() + limit)
            summarise(capture)
        except MemlensError as error:
            hint = f"         {error.hint}\n" if error.hint else ""
            sys.stderr.write(f"memlens: {error}\n{hint}")
        except MemoryError:
            sys.stderr.write(
                f"memlens: no summary: it would need more than {limit >> 20} MiB, half of the memory that is free\n"
                f"         memlens report {path}\n"
            )
        except Exception as error:  # the program's status must still be passed on
            sys.stderr.write(f"memlens: no summary because of a bug in memlens: {type(error).__name__}: {error}\n")
        self._tell("summarised")
        sys.stderr.flush()


@contextlib.contextmanager
def _standard_error_aside() -> Iterator[None]:
    """A library that runs out of memory may write to it; it is the program's."""
    if os.environ.get("MEMLENS_DEBUG"):
        yield
        return
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    os.close(nothing)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


class _Parent:
    def __init__(self, writer: CaptureWriter, child: int, told: int, go_on: int) -> None:
        self.writer = writer
        self.child = child
        self.finished = Finished()
        self._told = told
        self._go_on = go_on
        self._rest = b""
        self._signals = 0

    def wait(self, while_finishing: Callable[[], AbstractContextManager[None]], queue: SignalQueue) -> Finished:
        with while_finishing():
            is_open = True
            while is_open and not self.finished.is_finished:
                is_open = self._next(queue)
        with contextlib.suppress(OSError):  # nobody is there
            os.write(self._go_on, b"s")
        while is_open:
            is_open = self._next(queue)
        _, status = os.waitpid(self.child, 0)
        finished = self.finished
        if not finished.is_finished:
            self.writer.recover_records()
        if status != 0 and finished.reason is None and not finished.interrupted:
            finished.reason = _ended_in_words(status)
        return finished

    def _next(self, queue: SignalQueue) -> bool:
        """Takes what comes first; False: the child has ended."""
        ready, _, _ = select.select([self._told, queue.descriptor], [], [])
        if queue.descriptor in ready and queue.wait(0) is not None:
            self._signals += 1
            self.finished.interrupted = True
        if self.finished.interrupted and (self.finished.has_counts or self._signals > 1):
            os.kill(self.child, signal.SIGKILL)
            self._signals = -1 << 30
        if self._told not in ready:
            return True
        part = os.read(self._told, 1 << 16)
        *lines, self._rest = (self._rest + part).split(b"\n")
        for line in lines:
            self._take(json.loads(line))
        return bool(part)

    def _take(self, message: dict[str, Any]) -> None:
        finished, writer = self.finished, self.writer
        writer.adopt(message["writer"])
        if "meta" in message:
            writer.fields.clear()
            writer.fields.update(message["meta"])
        match message["what"]:
            case "counted":
                finished.has_counts = True
                finished.notes = message["notes"]
                # From here on nothing is lost but time: whoever reads makes the tables.
                writer.finish(finishing=True)
            case "finished":
                finished.is_finished = True
                writer.meta.pop("finishing", None)
                writer.finish()
            case "stopped":
                finished.failure, finished.reason = message.get("failure"), message.get("reason")
            case "summarised":
                finished.summary_ended = True


def _ended_in_words(status: int) -> str:
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return "it was killed, probably by the kernel for lack of memory"
    if os.WIFSIGNALED(status):
        return f"it was ended by signal {os.WTERMSIG(status)}"
    return f"it ended with status {os.WEXITSTATUS(status)}"
