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
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from .. import _recorder
from ..capture.store import calibration, machine
from ..capture.store.layouts import Packer, enum_value, layouts
from ..capture.store.os_names import shown, working_directory
from ..capture.store.writer import CaptureWriter, redacted_text
from ..errors import CollectorError, OutputError, ProgramNotExecutable, ProgramNotFound, os_reason
from . import counting, emulator, ending, preload, tracing
from . import facts as machine_facts
from .choice import Choice
from .program import fault_counts, find_program, is_zombie, peak_rss_bytes, why_not_ours
from .record_options import Outcome, RecordOptions
from .shared_before import shared_memory_before
from .signal_queue import SignalQueue
from .slow_sampler import SlowSampler
from .warmup import Warmup
from .window_pages import WindowPages

if TYPE_CHECKING:
    from ..capture.reader import Capture

TICK_S = 0.1
EARLY_TICK_S = 0.02
WAITING_BYTES, WAITING_S = 256 << 20, 10.0
"""What may wait for a CPU that is idle; more, or for longer, is written as it is."""
EARLY_S = 0.3
PASSED_ON = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
    signal.SIGCONT, signal.SIGWINCH,
)  # fmt: skip
WAIT_MS = {True: 5000, False: 200}
"""How long a thread of the program waits for a recorder that makes no progress, when every object counts or not."""
STACK_MODES = {"none": 0, "fp": 1, "dwarf": 2}


class Recorder:
    """One recording. Use `record_command` or `record_pid`."""

    def __init__(
        self,
        options: RecordOptions,
        *,
        while_finishing: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
        summarise: Callable[[Capture], None] | None = None,
        summary_modules: tuple[str, ...] = (),
    ) -> None:
        self.options = options
        self.while_finishing = while_finishing
        self.summarise = summarise
        """Called with the finished capture, in the process that finishes it."""
        self.summary_modules = summary_modules
        self.is_displaced = False
        """The capture's directory was moved, removed or replaced while it was written."""
        self.unfinished: str | None = None
        """What of the work after the program's end was not done, and why; whoever reads the capture does it."""
        self.notes: list[str] = []
        self.facts = machine_facts.gather()
        self.collectors = Choice(options, self.facts)
        self.writer: CaptureWriter
        self.session: _recorder.Session
        self.slow: SlowSampler
        self.channel: _recorder.Channel | None = None
        self.arena: emulator.Arena | None = None
        self.launch: emulator.Launch | None = None
        self.counting: counting.Counting | None = None
        self.trace: tracing.TraceOptions | None = None
        self.selection: tracing.Selection | None = None
        self.window_pages: WindowPages | None = None
        self._recording = True
        self._is_open = False
        self._has_begun = False
        self._window_kind = layouts()["window"].kind
        self.failure: str | None = None
        self.is_bug = False
        """The failure is a fault of memlens, not the machine's lack of something."""

    def _new_session(self, *, faults: bool) -> _recorder.Session:
        session = _recorder.Session(
            faults=faults,
            fault_before=not self.options.single,
            include_kernel=True,
            stack_mode=STACK_MODES[self.options.stacks] if faults else 0,
            timeline_hz=self.options.rate_hz if "timeline" in self.collectors else 0.0,
            emulated=self.options.emulate is not None,
            budget_share=self.options.budget_share,
        )
        if self.channel is not None:
            session.use_channel(self.channel)
        return session

    def _open_channel(self, program: str) -> None:
        """The memory that the program's processes write to; without it `alloc` and `trace` are left out."""
        users = [name for name in ("alloc", "trace") if name in self.collectors]
        if not users:
            return
        reason = preload.why_not(program)
        if reason is not None:  # what it starts may load the library all the same
            for name in users:
                self.collectors.unsupported.append({"collector": name, "reason": reason[0], "remedy": reason[1]})
        waits = self.options.sample_bytes == 0 or (self.trace is not None and self.trace.wait)
        try:
            self.channel = _recorder.Channel(
                sample_bytes=self.options.sample_bytes,
                large_bytes=self.options.large_bytes,
                alloc="alloc" in self.collectors,
                wait_ms=WAIT_MS[waits],
                ring_bytes=tracing.RING_BYTES if self.trace is not None else 0,
                slot_max=256 if self.trace is not None else 0,
                windows=self.trace is not None,
                budget_share=self.options.budget_share,
            )
        except OSError as error:
            for name in users:
                failed = f"{error.filename}: {os_reason(error)}"
                self.collectors.leave_out(name, failed, "free some memory, or raise the limit")
            self.trace = None

    def _open_counting(self, program: str) -> None:
        """Memory for compiled-in counters, when there are any or they are asked for."""
        options = self.options
        settings = options.count or counting.CountOptions()
        wanted = self.collectors.add_compiled_in(program, settings)
        if not wanted:
            return
        trace = options.trace or tracing.TraceOptions()
        if "trace" in wanted and trace.functions:
            self.selection = tracing.select(program, trace.functions)
        selection = self.selection.content if self.selection is not None else b""
        try:
            self.counting = counting.Counting(settings, has_pmu=bool(self.facts["has_pmu"]), selection=selection)
        except OSError as error:
            for name in wanted:
                self.collectors.leave_out(name, f"memfd: {os_reason(error)}", "raise the limit: ulimit -f unlimited")
            return
        if "trace" in wanted:
            self.trace = trace.drawn()

    def _attach(self, pid: int, *, enable_on_exec: bool) -> None:
        faults = "faults" in self.collectors
        self.session = self._new_session(faults=faults)
        try:
            self.session.attach(pid, enable_on_exec=enable_on_exec)
        except OSError as error:
            if error.errno == errno.ESRCH:
                raise CollectorError(f"process {pid} ended before it could be watched") from error
            if not faults:
                raise
            number = error.errno or errno.EIO
            if self.options.collectors is not None:
                raise CollectorError(f"collector faults failed: {error.filename}: {os_reason(error)}") from error
            reason, remedy = (
                ("too many open files for this many CPUs and threads", "raise the limit: ulimit -n 65536")
                if number == errno.EMFILE
                else (f"{error.filename}: {os_reason(error)}", "see memlens doctor")
            )
            self.collectors.unsupported.append({"collector": "faults", "reason": reason, "remedy": remedy})
            self.collectors.names.remove("faults")
            if self._is_open:  # meta.json is written already
                self.writer.meta["collectors"].pop("faults", None)
            self.session = self._new_session(faults=False)
            self.session.attach(pid, enable_on_exec=enable_on_exec)

    def _settings(self, name: str) -> dict[str, Any]:
        """What a reader must know of how a collector was used."""
        options = self.options
        if name == "faults":
            return {"stacks": options.stacks, "single": options.single, "budget_share": options.budget_share or None}
        if name == "emulate":
            assert self.launch is not None and options.emulate is not None
            return {
                **options.emulate.settings,
                "qemu": self.launch.emulator.version,
                "plugin_api": self.launch.emulator.plugin_api,
                "machine": self.launch.guest.machine,
            }
        if name == "count":
            assert self.counting is not None
            return self.counting.settings
        if name == "trace":
            assert self.trace is not None
            return self.trace.settings
        if name == "alloc":
            return {"sample_bytes": options.sample_bytes, "large_bytes": options.large_bytes}
        return {"rate_hz": options.rate_hz}

    def _open(self, command: list[str] | None, pid: int | None) -> None:
        now = time.time_ns()
        described = machine.describe()
        described["fingerprint"] = calibration.fingerprint(calibration.identity())
        peaks = calibration.load(described["fingerprint"]).content
        if self.options.redact:
            described["host"] = "redacted"
            described["fingerprint"] = None  # it has the host's name in it
            command = (
                None
                if command is None
                else [redacted_text(os.path.basename(command[0])), *["redacted"] * (len(command) - 1)]
            )
        self.writer = CaptureWriter(
            self.options.output,
            {
                "command": None if command is None else [shown(word) for word in command],
                "pid": pid,
                "working_directory": "redacted" if self.options.redact else working_directory(),
                "started": datetime.fromtimestamp(now / 1e9, UTC).isoformat(timespec="milliseconds"),
                "started_unix_ns": now,
                "begin_ns": time.monotonic_ns(),
                "machine": described,
                "calibration": calibration.for_capture(peaks) if peaks else None,
                "collectors": {name: self._settings(name) for name in self.collectors.names},
                "unsupported": self.collectors.unsupported,
                "redacted": self.options.redact,
                "shared_memory_before": shared_memory_before() if "faults" in self.collectors else [],
            },
            force=self.options.force,
            redact=self.options.redact,
        )
        self._is_open = True

    # ---- recording -------------------------------------------------------------------------
    def _pump(self) -> None:
        for batch in self.session.take():
            if self.window_pages is not None:
                self.window_pages.take(batch.kind, batch.process, batch.payload)
            header = {
                "record_count": batch.record_count,
                "process": batch.process,
                "dropped": batch.dropped,
                "begin_ns": batch.begin_ns,
                "end_ns": batch.end_ns,
            }
            if batch.kind == self._window_kind:
                self.writer.append_later(batch.kind, batch, **header)
            else:
                self.writer.append(batch.kind, batch.payload, **header)

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
        self.slow = SlowSampler(
            self.session,
            self.writer,
            timeline="timeline" in self.collectors,
            pages="faults" in self.collectors,
            nodes=self.facts["numa_nodes"],
            windows=self.trace is not None,
        )
        if self.trace is not None and self.facts["numa_nodes"] > 1:
            self.window_pages = WindowPages(self.session, page_bytes=self.slow.page_bytes)
        cgroup = self.slow.watch_cgroup(pid)
        if cgroup and not self.options.redact:
            self.writer.meta["cgroup"] = shown(cgroup)
        self._write_clock_pairs()
        self._write_affinity(pid)
        self.writer.update_meta(
            session=self.session.facts(),
            quality={"notes": [], "stack": self.options.stacks if "faults" in self.collectors else "none"},
        )

    def _tick(self) -> None:
        if not self._recording:
            return
        try:
            self._pump()
            self._write_waiting()
            self.slow.tick()
            if self.counting is not None:
                self.counting.tick(self.writer, self._session_string, self._pids)
        except Exception as error:  # whatever goes wrong here, the program runs on and its status is kept
            self.give_up(error)

    def _session_string(self, text: str) -> int:
        """The id of a text; its record is in the file when this returns."""
        number = self.session.string(text)
        if number not in self.writer.strings:
            self._pump()
        return number

    def _pids(self) -> dict[int, int]:
        """pid → process number of what runs now."""
        return {entry[1]: entry[0] for entry in self.session.processes()}

    def give_up(self, error: Exception, *, text: str | None = None) -> None:
        """A bug or a machine in trouble: stop recording, say so at the end. `text`: an error of another process."""
        if os.environ.get("MEMLENS_DEBUG") and text is None:
            traceback.print_exc()
        self._recording = False
        if text is None and isinstance(error, OSError):
            self.failure = f"{error.filename}: {os_reason(error)}" if error.filename else os_reason(error)
            self.notes.append(f"Recording stopped early: {self.failure}.")
        else:
            self.is_bug = True
            self.failure = text or f"{type(error).__name__}: {error}"
            self.notes.append(f"Recording stopped early because of an error in memlens ({self.failure}).")
        with contextlib.suppress(Exception):
            self.session.stop()

    def _stop_recording(self) -> None:
        if not self._recording:
            return
        try:
            self.session.stop()
            self._pump()
            self.writer.write_later()
            self._write_clock_pairs()
        except Exception as error:
            self.give_up(error)
        self._recording = False

    def _open_emulator(self, program: str, command: list[str], options: emulator.EmulateOptions) -> emulator.Launch:
        self.channel = _recorder.Channel(
            sample_bytes=self.options.sample_bytes,
            large_bytes=self.options.large_bytes,
            alloc="alloc" in self.collectors,
            wait_ms=10_000,
            ring_bytes=emulator.RING_BYTES,
            slot_max=256,
        )
        self.arena = emulator.Arena(self.channel.value)
        self.launch = emulator.launch(
            options,
            program,
            command,
            self.channel.value,
            self.arena,
            alloc="alloc" in self.collectors,
        )
        for reason, remedy in self.launch.notes:
            self.collectors.unsupported.append({"collector": "alloc", "reason": reason, "remedy": remedy})
        return self.launch

    def run_command(self, command: list[str]) -> Outcome:
        program = find_program(command[0])
        if self.options.emulate is not None:
            launch = self._open_emulator(program, command, self.options.emulate)
            self._open(command, None)
            return self._start(launch.command, launch.environment, command)
        self._open_counting(program)
        self._open_channel(program)
        self._open(command, None)
        environment = preload.preloading(self.channel.value, program=program) if self.channel is not None else []
        if self.counting is not None:
            environment = [*environment, *self.counting.environment]
        if self.trace is not None:
            environment = [*environment, self.trace.variable]
        return self._start(command, environment, command)

    def _start(self, words: list[str], environment: list[str], command: list[str]) -> Outcome:
        """Runs `words`, which are the command or what emulates it; a capture is only left when it has run."""
        try:
            return self._run(_recorder.Child(words, environment=environment, launcher=preload.launcher()), command)
        except BaseException:
            if not self._has_begun:
                self._take_back()
            raise

    def _take_back(self) -> None:
        """Nothing was recorded: no capture is left, and one that was to be replaced stays."""
        self.writer.close_records()
        self.writer.directory.give_up()

    def _settle(self) -> None:
        self._has_begun = True
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
                self._recording = False
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
        if self._recording:
            self.session.note_exit(child.pid, status)
        self._stop_recording()
        # The kernel keeps the largest RSS over exec: a peak below the waiting child's own is not the program's.
        peak = usage.ru_maxrss << 10
        self.writer.meta["rusage"] = {
            "minor_faults": max(0, usage.ru_minflt - faults_before[0]),
            "major_faults": max(0, usage.ru_majflt - faults_before[1]),
            "peak_rss_bytes": peak if peak > peak_before + (1 << 18) and self.arena is None else None,
            "peak_rss_floor_bytes": peak_before,
            "user_s": usage.ru_utime,
            "system_s": usage.ru_stime,
        }
        try:
            warmup.stop()
            return ending.end(self, status, wall_s)
        except Exception as error:  # the status is passed on whatever happens
            self.give_up(error)
            return Outcome(self.options.output, status, wall_s, 0, 0, {})

    def _wait_for(self, pid: int, begin: float, signals: SignalQueue) -> tuple[int, Any]:
        while True:
            busy = time.monotonic() - begin < EARLY_S or (
                self.channel is not None and self.options.sample_bytes == 0 and "alloc" in self.collectors
            )
            until = EARLY_TICK_S if busy else TICK_S
            if self.counting is not None and self._recording:
                until = min(until, self.counting.until_due_s)
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
                and self._recording
            ):
                self._stop_recording()
                self.notes.append(f"Recorded the first {self.options.duration_s:g} s; the program ran on unrecorded.")

    def run_pid(self, pid: int) -> Outcome:
        if not os.path.isdir(f"/proc/{pid}"):
            raise CollectorError(f"there is no process {pid}", hint="look it up: pgrep -a NAME")
        if self.options.trace is not None or "trace" in (self.options.collectors or ()):
            raise CollectorError(
                "a program records its accesses through a library that it loads when it starts; this one runs already",
                hint="start the program with memlens record",
            )
        if self.options.count is not None or "count" in (self.options.collectors or ()):
            raise CollectorError(
                "counters are read from memory that a program gets when it starts; this one runs already",
                hint="start the program with memlens record",
            )
        self.collectors.leave_out(
            "alloc",
            "the library that sees allocations is loaded when a program starts; this one runs already",
            "start the program with memlens record",
        )
        reason = why_not_ours(pid)
        if reason is not None:
            if self.options.collectors != ("timeline",):
                raise CollectorError(
                    f"cannot watch process {pid}: {reason}",
                    hint=f"run memlens as root; --collectors timeline --pid {pid} records its RSS alone",
                )
            self.notes.append(f"Only the size of process {pid} was read: {reason}.")
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
        return ending.end(self, None, wall_s)
