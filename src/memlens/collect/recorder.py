"""Records a program: from its start (or a running PID) to its end, into one capture.

The profiled program comes first. It is started as a shell would start it; signals
that reach the recorder alone are passed on; whatever goes wrong in recording is
noted and the program runs on; its exit status is the recorder's.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from .. import _recorder
from ..capture.store import calibration, machine
from ..capture.store.layouts import Packer, enum_value, layouts
from ..capture.store.os_names import shown, working_directory
from ..capture.store.writer import CaptureWriter, redacted_text
from ..errors import CollectorError, OutputError, ProgramNotExecutable, ProgramNotFound, os_reason
from . import ending, preload
from .choice import in_order
from .program import fault_counts, find_program, is_zombie, memory_cgroup, peak_rss_bytes, why_not_ours
from .protocol import Launch
from .record_options import Outcome, RecordOptions
from .recording import Recording
from .signal_queue import SignalQueue
from .warmup import Warmup

if TYPE_CHECKING:
    import resource

    from ..capture.reader import Capture
    from ..capture.store.meta import Meta

TICK_S = 0.1
EARLY_TICK_S = 0.02
WAITING_BYTES, WAITING_S = 256 << 20, 10.0
"""What may wait for a CPU that is idle; more, or for longer, is written as it is."""
EARLY_S = 0.3
PASSED_ON = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
    signal.SIGCONT, signal.SIGWINCH,
)  # fmt: skip


class Recorder(Recording):
    """One recording. Use `run_command` or `run_pid`."""

    def __init__(
        self,
        options: RecordOptions,
        *,
        while_finishing: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
        summarise: Callable[[Capture], None] | None = None,
        summary_modules: tuple[str, ...] = (),
    ) -> None:
        super().__init__(options)
        self.while_finishing = while_finishing
        self.summarise = summarise
        """Called with the finished capture, in the process that finishes it."""
        self.summary_modules = summary_modules
        self.is_displaced = False
        """The capture's directory was moved, removed or replaced while it was written."""
        self.unfinished: str | None = None
        """What of the work after the program's end was not done, and why; whoever reads the capture does it."""

    # ---- before the program -----------------------------------------------------------------
    def _open_channel(self, program: str) -> None:
        """The memory that the program's processes write to; without it those that use it are left out."""
        plan = self.plan_channel()
        if not plan.users:
            return
        wrapper = self.collectors.wrapper
        reason = preload.why_not(program) if wrapper is None else None
        if reason is not None:  # what it starts may load the library all the same
            for name in plan.users:
                self.unsupported(name, *reason)
        try:
            self.channel = _recorder.Channel(**plan.arguments())
            self.channel_users = plan.users
        except OSError as error:
            if wrapper is not None:
                raise
            for name in plan.users:
                failed = f"{error.filename}: {os_reason(error)}"
                self.leave_out(name, failed, "free some memory, or raise the limit")

    def _attach(self, pid: int, *, enable_on_exec: bool) -> None:
        self.session = self.new_session()
        try:
            self.session.attach(pid, enable_on_exec=enable_on_exec)
        except OSError as error:
            if error.errno == errno.ESRCH:
                raise CollectorError(f"process {pid} ended before it could be watched") from error
            self._do_without(error)
            self.session = self.new_session()
            self.session.attach(pid, enable_on_exec=enable_on_exec)

    def _do_without(self, error: OSError) -> None:
        """Removes collectors that an attempt to attach failed for; raises where there are none, or somebody chose collectors."""
        refused = [
            (one, why) for one in self.collectors.chosen if (why := self.of(one, partial(one.refused, error), None))
        ]
        if not refused:
            raise error
        if self.options.collectors is not None:
            raise CollectorError(
                f"collector {refused[0][0].name} failed: {error.filename}: {os_reason(error)}"
            ) from error
        for collector, (reason, remedy) in refused:
            self.collectors.remove(collector.name, reason, remedy)
            self.was_not_used(collector.name)

    def _open(self, command: list[str] | None, pid: int | None) -> None:
        now = time.time_ns()
        described = machine.describe()
        described["fingerprint"] = fingerprint = calibration.fingerprint(calibration.identity())
        peaks = calibration.load(fingerprint).content
        if self.options.redact:
            described["host"] = "redacted"
            described["fingerprint"] = None  # it has the host's name in it
            command = (
                None
                if command is None
                else [redacted_text(os.path.basename(command[0])), *["redacted"] * (len(command) - 1)]
            )
        settings = {one.name: self.settings_of(one) for one in tuple(self.collectors.chosen)}
        fields: dict[str, object] = {}
        for collector in tuple(self.collectors.chosen):
            fields |= self.fields_of(collector, collector.begin_meta)
        meta: Meta = {
            "command": None if command is None else [shown(word) for word in command],
            "pid": pid,
            "working_directory": "redacted" if self.options.redact else working_directory(),
            "started": datetime.fromtimestamp(now / 1e9, UTC).isoformat(timespec="milliseconds"),
            "started_unix_ns": now,
            "begin_ns": time.monotonic_ns(),
            "machine": described,
            "calibration": calibration.for_capture(peaks) if peaks else None,
            "collectors": {name: settings[name] for name in self.collectors.names},
            "unsupported": self.collectors.unsupported,
            "redacted": self.options.redact,
        }
        self.writer = CaptureWriter(
            self.options.output, meta, more=fields, force=self.options.force, redact=self.options.redact
        )
        self.is_open = True

    # ---- recording -------------------------------------------------------------------------
    def _write_waiting(self) -> None:
        """Windows are compressed when a CPU is idle, and after the end: doing it takes as long as the program's own part of them."""
        self.writer.write_packed(keep_bytes=WAITING_BYTES, keep_s=WAITING_S)

    def _write_clock_pairs(self) -> None:
        payload = _recorder.clock_pairs()
        layout = layouts()["clock_pair"]
        now = time.monotonic_ns()
        self.writer.append(
            layout.kind, payload, record_count=len(payload) // layout.record_bytes, begin_ns=now, end_ns=now
        )

    def _write_affinity(self, pid: int) -> None:
        with contextlib.suppress(OSError):
            cpus = os.sched_getaffinity(pid)
            mask = sum(1 << cpu for cpu in cpus)
            tail = mask.to_bytes((max(cpus) // 64 + 1) * 8, "little")
            now = time.monotonic_ns()
            self.writer.records(
                "pinning",
                [
                    Packer("pinning").pack(
                        tail, time_ns=now, thread=pid, operation=enum_value("pinning_operation", "found")
                    )
                ],
                process=1,
                begin_ns=now,
                end_ns=now,
            )

    def _begin(self, pid: int) -> None:
        cgroup = memory_cgroup(pid)
        if cgroup is not None and cgroup[0] and not self.options.redact:
            self.writer.meta["cgroup"] = shown(cgroup[0])
        self.attach_collectors(pid)
        self._write_clock_pairs()
        self._write_affinity(pid)
        self.writer.fields.update(session=self.session.facts(), quality={"notes": [], **self.quality_facts()})
        self.writer.update_meta()

    def _tick(self) -> None:
        if not self.is_recording:
            return
        try:
            self.pump()
            self._write_waiting()
            for part in self.parts():
                self.of(part, part.tick, None)
            if self.wants_nodes:
                self.ask_for_nodes()
        except Exception as error:  # whatever goes wrong here, the program runs on and its status is kept
            self.give_up(error)

    def _stop_recording(self) -> None:
        if not self.is_recording:
            return
        try:
            self.session.stop()
            self.pump()
            self.writer.write_later()
            self._write_clock_pairs()
        except Exception as error:
            self.give_up(error)
        self.is_recording = False

    def run_command(self, command: list[str]) -> Outcome:
        program = find_program(command[0])
        self.collectors.look_at(program)
        for collector in tuple(self.collectors.chosen):
            self.of(collector, partial(collector.prepare, program), None)
        for shared in self.shared_parts():
            shared.prepare(program)
        self._open_channel(program)
        wrapper = self.collectors.wrapper
        launch = wrapper.launch(program, command) if wrapper is not None else None
        if launch is None:
            loaded = preload.preloading(self.channel.value, program=program) if self.channel is not None else []
            launch = Launch(command, loaded)
        variables = [word for part in self.parts() for word in self.said_by(part, part.environment)]
        self._open(command, None)
        return self._start(launch.command, [*launch.environment, *variables], command)

    def _start(self, words: list[str], environment: list[str], command: list[str]) -> Outcome:
        """Runs `words`, which are the command or what emulates it; a capture is only left when it has run."""
        try:
            return self._run(_recorder.Child(words, environment=environment, launcher=preload.launcher()), command)
        except BaseException:
            if not self.has_begun:
                self._take_back()
            raise

    def _take_back(self) -> None:
        """Nothing was recorded: no capture is left, and one that was to be replaced stays."""
        self.writer.close_records()
        self.writer.directory.give_up()

    def _settle(self) -> None:
        self.has_begun = True
        try:
            self.writer.directory.settle()
        except OutputError as error:  # the program runs
            self.notes.append(f"{error}; {error.hint}.")

    def _run(self, child: _recorder.Child, command: list[str]) -> Outcome:
        signals = {signal.SIGCHLD, *PASSED_ON}
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        self._attach(child.pid, enable_on_exec=True)
        self._begin(child.pid)
        faults_before = fault_counts(child.pid)
        peak_before = peak_rss_bytes(child.pid)
        begin = time.monotonic()
        with contextlib.closing(SignalQueue(signals)) as queue:
            failed = child.go()  # returns once the program has replaced the waiting child
            if failed:
                self.is_recording = False
                text = f"cannot execute {command[0]}: {os.strerror(failed).lower()}"
                raise ProgramNotFound(text) if failed == errno.ENOENT else ProgramNotExecutable(text)
            self._settle()
            # Without room for a thread: the program runs already, and its status is to be passed on.
            try:
                self.session.start()
            except OSError as error:
                self.give_up(error)
            warmup = Warmup(self.summary_modules if self.summarise is not None else ())
            warmup.start()
            status, usage = self._wait_for(child.pid, begin, queue)
        wall_s = time.monotonic() - begin
        if self.is_recording:
            self.session.note_exit(child.pid, status)
        self._stop_recording()
        # The kernel keeps the largest RSS over exec: a peak below the waiting child's own is not the program's.
        peak = usage.ru_maxrss << 10
        self.writer.meta["rusage"] = {
            "minor_faults": max(0, usage.ru_minflt - faults_before[0]),
            "major_faults": max(0, usage.ru_majflt - faults_before[1]),
            "peak_rss_bytes": peak if peak > peak_before + (1 << 18) and self.collectors.wrapper is None else None,
            "peak_rss_floor_bytes": peak_before,
            "user_s": usage.ru_utime,
            "system_s": usage.ru_stime,
        }
        try:
            warmup.stop()
            return ending.end(self, self, status, wall_s)
        except Exception as error:  # the status is passed on whatever happens
            self.give_up(error)
            return Outcome(self.options.output, status, wall_s, 0, 0, {})

    def _wait_for(self, pid: int, begin: float, signals: SignalQueue) -> tuple[int, resource.struct_rusage]:
        while True:
            until = EARLY_TICK_S if time.monotonic() - begin < EARLY_S else TICK_S
            if self.is_recording:
                until = min(until, self.due_s())
            received = signals.wait(until)
            # Typed at the terminal (SI_KERNEL): the program has it already. Sent to us alone: pass it on.
            if (
                received is not None
                and received.number != signal.SIGCHLD
                and received.code <= 0
                and received.pid != pid
            ):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, received.number)
            ended, status, usage = os.wait4(pid, os.WNOHANG)
            if ended:
                signals.forget()  # they were for the program; what comes from now on ends the finishing
                return status, usage
            self._tick()
            if (
                self.options.duration_s is not None
                and time.monotonic() - begin > self.options.duration_s
                and self.is_recording
            ):
                self._stop_recording()
                self.notes.append(f"Recorded the first {self.options.duration_s:g} s; the program ran on unrecorded.")

    def _of_another(self, pid: int, reason: str) -> str:
        """The note of a recording of another user's process; raises CollectorError where more is asked for than can be had."""
        able = {one.name: one.foreign for one in in_order() if one.foreign}
        if self.options.collectors is None or not able.keys() >= set(self.options.collectors):
            raise CollectorError(
                f"cannot watch process {pid}: {reason}",
                hint=f"run memlens as root; --collectors {','.join(able)} --pid {pid} records {' and '.join(able.values())} alone",
            )
        return (
            f"Only {' and '.join(able[name] for name in self.options.collectors)} of process {pid} was read: {reason}."
        )

    def run_pid(self, pid: int) -> Outcome:
        if not os.path.isdir(f"/proc/{pid}"):
            raise CollectorError(f"process {pid} does not exist", hint="find it with pgrep -a NAME")
        self.collectors.look_at_running()
        reason = why_not_ours(pid)
        if reason is not None:
            self.notes.append(self._of_another(pid, reason))
        signals = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        try:
            self._attach(pid, enable_on_exec=False)
        except (OSError, CollectorError) as error:
            reason = os_reason(error) if isinstance(error, OSError) else str(error)
            raise CollectorError(
                f"cannot watch process {pid}: {reason}", hint="it must be yours; or run memlens as root"
            ) from error
        self._open(None, pid)
        try:
            self._begin(pid)
            self.session.start()
        except OSError as error:
            self._take_back()
            raise CollectorError(
                f"cannot watch process {pid}: {error.filename or 'starting'}: {os_reason(error)}",
                hint="raise the limits of this user (ulimit -u, ulimit -n), or run memlens as root",
            ) from error
        self._settle()
        begin = time.monotonic()
        queue = SignalQueue(signals)
        while True:
            received = queue.wait(TICK_S)
            self._tick()
            ended = not os.path.isdir(f"/proc/{pid}") or is_zombie(pid)
            if received is not None or ended:
                break
            if self.options.duration_s is not None and time.monotonic() - begin >= self.options.duration_s:
                break
        queue.forget()
        queue.close()
        wall_s = time.monotonic() - begin
        self._stop_recording()
        return ending.end(self, self, None, wall_s)
