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
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import _sampling
from ..capture import calibration, count_arena, count_records, counted_modules, machine
from ..capture.layouts import Packer, enum_value, layouts
from ..capture.writer import CaptureWriter
from ..errors import CollectorError, ProgramNotExecutable, ProgramNotFound, os_reason
from . import counting, emulator, preload, tracing
from . import facts as machine_facts
from .slow_sampler import SlowSampler
from .window_pages import WindowPages

if TYPE_CHECKING:
    from ..capture.reader import Capture

TICK_S = 0.1
EARLY_TICK_S = 0.02
EARLY_S = 0.3
PASSED_ON = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
    signal.SIGCONT, signal.SIGWINCH,
)  # fmt: skip
DEFAULT_SAMPLE_BYTES = 512 << 10
DEFAULT_LARGE_BYTES = 64 << 10
WAIT_MS = {True: 5000, False: 200}
"""How long a thread of the program waits for a recorder that makes no progress, when every object counts or not."""
STACK_MODES = {"none": 0, "fp": 1, "dwarf": 2}


@dataclass(frozen=True)
class RecordOptions:
    """What to record and where to."""

    output: Path
    collectors: tuple[str, ...] | None = None
    """None: whatever works here."""
    stacks: str = "fp"
    single: bool = False
    rate_hz: float = 10.0
    sample_bytes: int = DEFAULT_SAMPLE_BYTES
    """Mean distance of recorded small objects in allocated bytes; 0: every object."""
    large_bytes: int = DEFAULT_LARGE_BYTES
    """Objects of this size and more are always recorded."""
    emulate: emulator.EmulateOptions | None = None
    """Run the program under an emulator that sees every access."""
    count: counting.CountOptions | None = None
    """How a program with compiled-in counters counts; None: count everything, if it has any."""
    trace: tracing.TraceOptions | None = None
    """How a program that was built for tracing records accesses; None: windows of the default length, if it was."""
    duration_s: float | None = None
    force: bool = False
    redact: bool = False


@dataclass
class Outcome:
    """How a recording ended."""

    path: Path
    wait_status: int | None
    """As waitpid gave it; None for --pid."""
    wall_s: float
    record_bytes: int
    processes: int
    counts: dict[str, int]
    notes: list[str] = field(default_factory=list)


def find_program(name: str) -> str:
    """The file that exec will run, or the error a shell would give."""
    if "/" in name:
        candidates = [name]
    else:
        candidates = [os.path.join(part or ".", name) for part in os.environ.get("PATH", os.defpath).split(os.pathsep)]
    found_file = None
    for candidate in candidates:
        if os.path.isfile(candidate):
            found_file = found_file or candidate
            if os.access(candidate, os.X_OK):
                return candidate
    if found_file:
        raise ProgramNotExecutable(
            f"{found_file} is not executable", hint=f"chmod +x {found_file}, or name its interpreter"
        )
    if "/" in name and os.path.isdir(name):
        raise ProgramNotExecutable(f"{name} is a directory")
    raise ProgramNotFound(f"there is no program {name!r}", hint="check the name, or give its path after --")


class Recorder:
    """One recording. Use `record_command` or `record_pid`."""

    def __init__(
        self,
        options: RecordOptions,
        *,
        while_finishing: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self.options = options
        self._while_finishing = while_finishing
        self.notes: list[str] = []
        self.unsupported: list[dict[str, str]] = []
        facts = machine_facts.gather()
        self.facts = facts
        self.collectors = self._choose(facts)
        self.writer: CaptureWriter
        self.session: _sampling.Session
        self.slow: SlowSampler
        self.channel: _sampling.Channel | None = None
        self.arena: emulator.Arena | None = None
        self.launch: emulator.Launch | None = None
        self.counting: counting.Counting | None = None
        self.trace: tracing.TraceOptions | None = None
        self.selection: tracing.Selection | None = None
        self.window_pages: WindowPages | None = None
        self.capture: Capture | None = None
        """What was recorded, after the end: spares reading it again."""
        self._recording = True
        self.failure: str | None = None

    # ---- what to use ------------------------------------------------------------------
    def _choose(self, facts: dict[str, Any]) -> list[str]:
        from .collectors import alloc, emulate, faults, timeline

        chosen = []
        candidates = [faults.DESCRIPTOR, timeline.DESCRIPTOR, alloc.DESCRIPTOR]
        if self.options.emulate is not None:  # the others would watch the emulator, not the program
            candidates = [emulate.DESCRIPTOR, alloc.DESCRIPTOR]
        for descriptor in candidates:
            asked = self.options.collectors is not None and descriptor.name in self.options.collectors
            if self.options.collectors is not None and not asked:
                continue
            assert descriptor.probe is not None
            availability = descriptor.probe(facts)
            if availability.usable:
                chosen.append(descriptor.name)
            elif asked:
                reason, remedy = availability.reasons[0]
                raise CollectorError(f"collector {descriptor.name} cannot run here: {reason}", hint=remedy)
            for reason, remedy in availability.reasons:
                self.unsupported.append({"collector": descriptor.name, "reason": reason, "remedy": remedy})
        return chosen

    def _new_session(self, *, faults: bool) -> _sampling.Session:
        session = _sampling.Session(
            faults=faults,
            fault_before=not self.options.single,
            include_kernel=True,
            stack_mode=STACK_MODES[self.options.stacks] if faults else 0,
            timeline_hz=self.options.rate_hz if "timeline" in self.collectors else 0.0,
            emulated=self.options.emulate is not None,
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
                self.unsupported.append({"collector": name, "reason": reason[0], "remedy": reason[1]})
        waits = self.options.sample_bytes == 0 or (self.trace is not None and self.trace.wait)
        try:
            self.channel = _sampling.Channel(
                sample_bytes=self.options.sample_bytes,
                large_bytes=self.options.large_bytes,
                alloc="alloc" in self.collectors,
                wait_ms=WAIT_MS[waits],
                ring_bytes=tracing.RING_BYTES if self.trace is not None else 0,
                slot_max=256 if self.trace is not None else 0,
            )
        except OSError as error:
            for name in users:
                self._leave_out(name, f"{error.filename}: {os_reason(error)}", "free some memory, or raise the limit")
            self.trace = None

    def _open_counting(self, program: str) -> None:
        """Memory for compiled-in counters, when there are any or they are asked for."""
        options = self.options
        settings = options.count or counting.CountOptions()
        wanted = [
            name
            for name, given, needed in (
                ("count", options.count, self._counts(program, settings)),
                ("trace", options.trace, self._traces(program)),
            )
            if needed and (options.collectors is None or name in options.collectors or given is not None)
        ]
        if not wanted:
            return
        self.collectors.extend(wanted)
        trace = options.trace or tracing.TraceOptions()
        if "trace" in wanted and trace.functions:
            self.selection = tracing.select(program, trace.functions)
        selection = self.selection.content if self.selection is not None else b""
        try:
            self.counting = counting.Counting(settings, has_pmu=bool(self.facts["has_pmu"]), selection=selection)
        except OSError as error:
            for name in wanted:
                self._leave_out(name, f"memfd: {os_reason(error)}", "raise the limit: ulimit -f unlimited")
            return
        if "trace" in wanted:
            self.trace = trace.drawn()

    def _counts(self, program: str, settings: counting.CountOptions) -> bool:
        """Whether the program may count; an error when that was asked for and cannot be."""
        asked = self.options.count is not None or "count" in (self.options.collectors or ())
        reason = counting.why_not(program)
        if reason is None:
            built = tracing.built(program)
            return asked or built.counted or not built.traced  # else its tables are there for traces alone
        if asked and not settings.children:
            raise CollectorError(reason[0], hint=reason[1])
        return settings.children

    def _traces(self, program: str) -> bool:
        """The same for traces. A script may start a program that was built for them."""
        asked = self.options.trace is not None or "trace" in (self.options.collectors or ())
        if tracing.built(program).traced:
            return True
        if asked and counted_modules.is_elf(program):
            reason, remedy = tracing.why_not(program)
            raise CollectorError(reason, hint=remedy)
        return asked

    def _leave_out(self, name: str, reason: str, remedy: str) -> None:
        if name not in self.collectors:
            return
        if self.options.collectors is not None and len(self.options.collectors) == 1:
            raise CollectorError(f"collector {name} cannot run here: {reason}", hint=remedy)
        self.unsupported.append({"collector": name, "reason": reason, "remedy": remedy})
        self.collectors.remove(name)

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
            self.unsupported.append({"collector": "faults", "reason": reason, "remedy": remedy})
            self.collectors.remove("faults")
            self.session = self._new_session(faults=False)
            self.session.attach(pid, enable_on_exec=enable_on_exec)

    def _settings(self, name: str) -> dict[str, Any]:
        """What a reader must know of how a collector was used."""
        options = self.options
        if name == "faults":
            return {"stacks": options.stacks, "single": options.single}
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
            command = None if command is None else [os.path.basename(command[0]), *["redacted"] * (len(command) - 1)]
        self.writer = CaptureWriter(
            self.options.output,
            {
                "command": command,
                "pid": pid,
                "working_directory": "redacted" if self.options.redact else os.getcwd(),
                "started": datetime.fromtimestamp(now / 1e9, UTC).isoformat(timespec="milliseconds"),
                "started_unix_ns": now,
                "begin_ns": time.monotonic_ns(),
                "machine": described,
                "calibration": calibration.for_capture(peaks) if peaks else None,
                "collectors": {name: self._settings(name) for name in self.collectors},
                "unsupported": self.unsupported,
                "redacted": self.options.redact,
            },
            force=self.options.force,
            redact=self.options.redact,
        )

    # ---- recording -------------------------------------------------------------------------
    def _pump(self) -> None:
        for batch in self.session.take():
            if self.window_pages is not None:
                self.window_pages.take(batch.kind, batch.process, batch.payload)
            self.writer.append(
                batch.kind,
                batch.payload,
                record_count=batch.record_count,
                process=batch.process,
                dropped=batch.dropped,
                begin_ns=batch.begin_ns,
                end_ns=batch.end_ns,
            )

    def _write_clock_pairs(self) -> None:
        payload = _sampling.clock_pairs()
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
            self.writer.meta["cgroup"] = cgroup
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
            self.slow.tick()
            if self.counting is not None:
                self.counting.tick(self.writer, self._session_string, self._pids)
        except Exception as error:  # whatever goes wrong here, the program runs on and its status is kept
            self._give_up(error)

    def _session_string(self, text: str) -> int:
        """The id of a text; its record is in the file when this returns."""
        number = self.session.string(text)
        if number not in self.writer.strings:
            self._pump()
        return number

    def _pids(self) -> dict[int, int]:
        """pid → process number of what runs now."""
        return {entry[1]: entry[0] for entry in self.session.processes()}

    def _give_up(self, error: Exception) -> None:
        """A bug or a machine in trouble: stop recording, say so at the end."""
        if os.environ.get("MEMLENS_DEBUG"):
            traceback.print_exc()
        self._recording = False
        self.failure = f"{type(error).__name__}: {error}"
        self.notes.append(f"Recording stopped early because of an error in memlens ({self.failure}).")
        with contextlib.suppress(Exception):
            self.session.stop()

    def _stop_recording(self) -> None:
        if not self._recording:
            return
        try:
            self.session.stop()
            self._pump()
            self._write_clock_pairs()
        except Exception as error:
            self._give_up(error)
        self._recording = False

    def _open_emulator(
        self, program: str, command: list[str], options: emulator.EmulateOptions, scratch: str
    ) -> emulator.Launch:
        self.channel = _sampling.Channel(
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
            scratch=Path(scratch),
        )
        for reason, remedy in self.launch.notes:
            self.unsupported.append({"collector": "alloc", "reason": reason, "remedy": remedy})
        return self.launch

    def run_command(self, command: list[str]) -> Outcome:
        program = find_program(command[0])
        if self.options.emulate is not None:
            with tempfile.TemporaryDirectory(prefix="memlens-") as scratch:
                launch = self._open_emulator(program, command, self.options.emulate, scratch)
                self._open(command, None)
                return self._run(_sampling.Child(launch.command, environment=launch.environment), command)
        self._open_counting(program)
        self._open_channel(program)
        self._open(command, None)
        with contextlib.ExitStack() as while_running:
            environment: list[str] = []
            if self.channel is not None:
                environment = while_running.enter_context(preload.preloading(self.channel.value))
            if self.counting is not None:
                environment = [*environment, *self.counting.environment]
            if self.trace is not None:
                environment = [*environment, self.trace.variable]
            return self._run(_sampling.Child(command, environment=environment), command)

    def _run(self, child: _sampling.Child, command: list[str]) -> Outcome:
        signals = {signal.SIGCHLD, *PASSED_ON}
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        self._attach(child.pid, enable_on_exec=True)
        self._begin(child.pid)
        faults_before = _fault_counts(child.pid)
        peak_before = _peak_rss_bytes(child.pid)
        begin = time.monotonic()
        failed = child.go()  # returns once the program has replaced the waiting child
        if failed:
            self._recording = False
            self.writer.finish(end_ns=time.monotonic_ns())
            text = f"cannot execute {command[0]}: {os.strerror(failed).lower()}"
            raise ProgramNotFound(text) if failed == errno.ENOENT else ProgramNotExecutable(text)
        self.session.start()
        status, usage = self._wait_for(child.pid, begin, signals)
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
        return self._finish(status, wall_s)

    def _wait_for(self, pid: int, begin: float, signals: set[signal.Signals]) -> tuple[int, Any]:
        while True:
            busy = (
                time.monotonic() - begin < EARLY_S
                or self.trace is not None
                or (self.channel is not None and self.options.sample_bytes == 0)
            )
            until = EARLY_TICK_S if busy else TICK_S
            if self.counting is not None and self._recording:
                until = min(until, self.counting.until_due_s)
            info = signal.sigtimedwait(signals, until)
            # Typed at the terminal (SI_KERNEL): the program has it already. Sent to us alone: pass it on.
            if info is not None and info.si_signo != signal.SIGCHLD and info.si_code <= 0 and info.si_pid != pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, info.si_signo)
            ended, status, usage = os.wait4(pid, os.WNOHANG)
            if ended:
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
        self._leave_out(
            "alloc",
            "the library that sees allocations is loaded when a program starts; this one runs already",
            "start the program with memlens record",
        )
        self._open(None, pid)
        signals = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        try:
            self._attach(pid, enable_on_exec=False)
        except (OSError, CollectorError) as error:
            reason = os_reason(error) if isinstance(error, OSError) else str(error)
            raise CollectorError(
                f"cannot watch process {pid}: {reason}", hint="it must be yours; or run memlens as root"
            ) from error
        self._begin(pid)
        self.session.start()
        begin = time.monotonic()
        while True:
            info = signal.sigtimedwait(signals, TICK_S)
            self._tick()
            ended = not os.path.isdir(f"/proc/{pid}") or _is_zombie(pid)
            if info is not None or ended:
                break
            if self.options.duration_s is not None and time.monotonic() - begin >= self.options.duration_s:
                break
        wall_s = time.monotonic() - begin
        self._stop_recording()
        return self._finish(None, wall_s)

    # ---- the end --------------------------------------------------------------------------------
    def _quality_notes(self, counts: dict[str, int], status: int | None) -> list[str]:
        notes = list(self.notes)
        if self.launch is not None and status is not None and os.WIFSIGNALED(status):
            notes.extend(emulator.why_it_ended(self.launch, os.WTERMSIG(status)))
        if counts["timeline_late_ticks"]:
            notes.append(
                f"{counts['timeline_late_ticks']} of {counts['timeline_ticks']} timeline readings were late by more than "
                "one interval (table timeline, column interval_us, has the true ones)."
            )
        if counts["ring_lost"]:
            ring_kib = self.session.facts()["ring_bytes"] >> 10
            notes.append(
                f"{counts['ring_lost']} kernel records found a perf ring of {ring_kib} KiB full. Allow larger ones "
                "(sudo sysctl kernel.perf_event_mlock_kb=8192), or halve what is recorded with --single."
            )
        if counts["throttled"]:
            notes.append(f"The kernel throttled perf events {counts['throttled']} times.")
        if self.slow.node_pages_skipped:
            notes.append(
                f"The NUMA nodes of {self.slow.node_pages_skipped} pages were not asked: too many faults a second."
            )
        if self.channel is not None:
            notes.extend(_channel_notes(self.channel.counts()))
        failure = self.writer.failure
        if failure is not None:
            notes.append(
                f"Writing stopped in the middle ({os_reason(failure)}); {self.writer.dropped_records} records after that "
                "are missing."
            )
        if "faults" not in self.collectors and self.arena is None and self.collectors != ["count"]:
            notes.append("Processes that lived shorter than one timeline interval may be missing (found by polling).")
        return notes

    def _write_counts(self, arena: emulator.Arena) -> None:
        """What the emulated processes counted, from the memory that they left."""
        from ..capture.reader import Capture

        pids = {row["pid"]: row["process"] for row in Capture(self.writer.path).table("processes").to_pylist()}
        totals = emulator.write_counts(self.writer, arena, pids)
        self.writer.meta["emulate"] = {**totals, "refused_blocks": arena.refused}
        arena.close()

    def _write_counting(self, running: counting.Counting) -> list[str]:
        """What counted processes left in their memory, as records; returns notes for the quality."""
        from ..capture.reader import Capture

        rows = Capture(self.writer.path).table("processes").to_pylist()
        find = counting.with_process_ends(rows)
        next_process = max((row["process"] for row in rows), default=0) + 1
        strings = Packer("string")
        ids = {text: number for number, text in self.writer.strings.items()}

        def string_id(text: str) -> int:
            if text not in ids:
                ids[text] = max(self.writer.strings, default=0) + 1
                self.writer.records("string", [strings.pack(text.encode(), id=ids[text])])
            return ids[text]

        made: dict[int, int] = {}

        def process_of(image: count_arena.ImageEntries) -> tuple[int, int]:
            nonlocal next_process
            found = find(image)
            if found is not None:
                return found
            if image.pid not in made:  # too short-lived to be seen otherwise, or in a PID namespace of its own
                made[image.pid] = next_process
                next_process += 1
                name = image.modules[0].path if image.modules else ""
                event = Packer("process_event").pack(
                    time_ns=image.born_ns, pid=image.pid, thread=image.pid, status=-1,
                    operation=enum_value("process_operation", "seen"), name=string_id(name) if name else 0,
                )  # fmt: skip
                self.writer.records(
                    "process_event", [event], process=made[image.pid], begin_ns=image.born_ns, end_ns=image.born_ns
                )
            return made[image.pid], 0

        totals = running.finish(self.writer, string_id, process_of)
        running.close()
        self.writer.meta["count"] = {**totals, "reading_s": running.cost_s}
        found = [] if self.trace is None else self._trace_notes(running)
        if not totals["images"]:  # a script that started nothing counted
            self.writer.meta["collectors"].pop("count", None)
            return found
        return [*(count_records.notes(totals) if "count" in self.collectors else []), *found]

    def _trace_notes(self, running: counting.Counting) -> list[str]:
        assert self.trace is not None
        found = tracing.totals(running.processes)
        self.writer.meta["trace"] = found
        if not found["images"] and not found["images_without_library"]:
            self.writer.meta["collectors"].pop("trace", None)
            return ["No traced program ran: nothing has recorded its accesses."]
        unseen = [
            path for module, path in running.traced.items() if self.selection and module not in self.selection.modules
        ]
        return tracing.notes(found, windows=not self.trace.full, unseen=unseen)

    def _finish(self, status: int | None, wall_s: float) -> Outcome:
        counts = dict(self.session.counts())
        processes = counts["processes"]
        outcome = Outcome(self.options.output, status, wall_s, 0, processes, counts)
        notes = self._quality_notes(counts, status)
        self.writer.meta.update(
            end_ns=time.monotonic_ns(),
            wall_s=wall_s,
            wait_status=status,
            session={**self.session.facts(), **counts},
            **({"channel": self.channel.counts()} if self.channel is not None else {}),
            slow={
                "page_table_looks": self.slow.looks,
                "page_table_looks_failed": self.slow.looks_failed,
                "smaps_rollup_reads": self.slow.rollups,
                "node_pages_asked": self.slow.node_pages_asked,
                "window_pages_asked": self.window_pages.pages_asked if self.window_pages else 0,
                "window_batches_not_asked": self.window_pages.batches_passed_over if self.window_pages else 0,
            },
            quality={
                "notes": notes,
                "incomplete": self.writer.failure is not None or self.failure is not None,
                "stack": self.options.stacks if "faults" in self.collectors else "none",
            },
        )
        try:
            if self.arena is not None:
                self._write_counts(self.arena)
            if self.counting is not None:
                notes.extend(self._write_counting(self.counting))
            from .finish import write_side_tables  # Arrow and NumPy come with it: not before the program has ended

            with self._while_finishing():
                capture = write_side_tables(
                    self.writer, count_sections=self.counting.sections if self.counting is not None else None
                )
            self.writer.finish()
            capture.meta = self.writer.meta
            self.capture = capture
        except Exception as error:
            # The records are on disk; a reader makes the tables itself.
            self._give_up(error)
            self.writer.close_records()
        outcome.record_bytes = self.writer.record_bytes
        outcome.notes = notes
        return outcome


def _channel_notes(counts: dict[str, int]) -> list[str]:
    """What the library inside the processes could not do."""
    notes = []
    if counts["dropped"]:
        notes.append(
            f"{counts['dropped']} records (allocations, annotations, windows of accesses) found no room in the program's rings: objects may "
            "seem to live on, or be missing."
        )
    if counts["damaged"] or counts["holes"]:
        notes.append(
            f"{counts['holes']} records were cut off when a process was killed, {counts['damaged']} processes overwrote our "
            "memory and were given up."
        )
    if counts["refused"]:
        notes.append(
            f"{counts['refused']} processes ran without recorded allocations: more ran at one time than there was room for."
        )
    if counts["other_malloc"]:
        notes.append(
            f"The heap objects of {counts['other_malloc']} processes are not recorded: their program has a malloc of its own "
            "linked in (clang's sanitizers do)."
        )
    if counts["untracked"]:
        notes.append(f"{counts['untracked']} objects seem to live to the end: too many sampled ones lived at one time.")
    if counts["nested"]:
        notes.append(
            f"{counts['nested']} calls of malloc and free were left out: they came from a signal handler that had interrupted "
            "the recording of another."
        )
    if counts["waited_ns"] > 100_000_000:
        notes.append(
            f"The program waited {counts['waited_ns'] / 1e9:.1f} s for the recorder to take its records "
            "(sample instead of recording every object)."
        )
    return notes


def _fault_counts(pid: int) -> tuple[int, int]:
    """Minor and major faults so far: the waiting child's own, before the program."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[7]), int(fields[9])
    except (OSError, IndexError, ValueError):
        return 0, 0


def _peak_rss_bytes(pid: int) -> int:
    """The high-water mark of a process's memory so far."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    return 0


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (OSError, IndexError):
        return True


def exit_like(status: int) -> None:
    """Ends this process as the program ended: same status, or same signal without a core file."""
    sys.stdout.flush()
    sys.stderr.flush()
    if os.WIFSIGNALED(status):
        import resource

        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))
