"""The profiled program is sacred: output, status, signals, streams and limits stay its own."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import MEMLENS, ROOT, needs_faults, needs_root, run_memlens, workload_path

import memlens
import memlens.analyses

PROGRAMS: dict[str, list[str]] = {
    "numpy": [sys.executable, "-c", "import numpy as np; print(np.ones(2_000_000).sum())"],
    "shell pipeline": ["sh", "-c", "seq 20000 | sort -r | head -n 3; exit 7"],
    "64 threads": ["many_threads", "--threads", "64"],
    "200 processes": ["fork_tree", "--width", "199", "--depth", "1"],
    "node": ["node", str(ROOT / "workloads" / "node_touch.js")],
    "java": ["java", str(ROOT / "workloads" / "Touch.java")],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_output_and_status_are_unchanged(tmp_path: Path, name: str) -> None:
    command = list(PROGRAMS[name])
    if command[0] in ("many_threads", "fork_tree"):
        command[0] = str(workload_path(command[0]))
    elif not shutil.which(command[0]):
        pytest.skip(f"{command[0]} is not installed: sudo apt-get install nodejs default-jdk-headless")
    native = subprocess.run(command, capture_output=True, timeout=120)
    done = subprocess.run(
        [*MEMLENS, "record", "-q", "-o", str(tmp_path / "c.memlens"), "--", *command], capture_output=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (native.returncode, native.stdout, native.stderr)
    capture = memlens.open(tmp_path / "c.memlens")
    processes = capture.table("processes").num_rows
    assert processes >= {"shell pipeline": 4, "200 processes": 200}.get(name, 1)
    assert capture.complete


def test_the_summary_goes_to_standard_error_only(tmp_path: Path) -> None:
    done = run_memlens("record", "-o", tmp_path / "c.memlens", "--", "echo", "hello")
    assert done.stdout == "hello\n"
    assert "next: memlens report" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGTERM, signal.SIGABRT, signal.SIGPIPE])
def test_death_by_signal_is_passed_on(tmp_path: Path, number: signal.Signals) -> None:
    done = run_memlens(
        "record", "-q", "-o", tmp_path / "c.memlens", "--", workload_path("signal_exit"), "--signal", str(int(number))
    )
    assert done.returncode == -number
    assert os.WTERMSIG(memlens.open(tmp_path / "c.memlens").meta["wait_status"]) == number


@pytest.mark.parametrize("status", [0, 1, 7, 126, 127, 255])
def test_exit_status_is_passed_on(tmp_path: Path, status: int) -> None:
    done = run_memlens("record", "-q", "-o", tmp_path / "c.memlens", "--", "sh", "-c", f"exit {status}")
    assert done.returncode == status


def test_a_handled_segmentation_fault_stays_handled(tmp_path: Path) -> None:
    program = [str(workload_path("signal_exit")), "--segv-handler"]
    native = subprocess.run(program, capture_output=True)
    done = run_memlens("record", "-q", "-o", tmp_path / "c.memlens", "--", *program)
    assert (done.returncode, done.stdout.encode()) == (native.returncode, native.stdout)


PROBE = (
    "import os,resource,signal\n"
    "status=dict(l.split(':',1) for l in open('/proc/self/status') if ':' in l)\n"
    "print(status['SigIgn'].strip(), status['SigBlk'].strip())\n"
    "print(resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_CORE))\n"
    "print(sorted(int(f) for f in os.listdir('/proc/self/fd'))[:-1])\n"
    "print(os.getpgrp()==os.getpgid(os.getppid()), os.getcwd(), sorted(os.environ))\n"
)


OUR_VARIABLES = ["ASAN_OPTIONS", "LD_PRELOAD", "MEMLENS_CHANNEL", "MEMLENS_COUNT"]
"""The last one for programs that may load a counted plug-in: an interpreter calls dlopen."""


def test_the_program_sees_the_world_as_it_would_without_memlens(tmp_path: Path) -> None:
    probe = tmp_path / "probe.py"
    probe.write_text(PROBE)
    command = [sys.executable, str(probe)]
    native = subprocess.run(command, capture_output=True, text=True, check=True)
    done = run_memlens("record", "-q", "--collectors", "faults,timeline", "-o", tmp_path / "c.memlens", "--", *command)
    assert done.stdout == native.stdout
    # What the collectors alloc and count change: these variables, nothing else.
    done = run_memlens("record", "-q", "-o", tmp_path / "d.memlens", "--", *command)
    *lines, last = done.stdout.splitlines()
    *native_lines, native_last = native.stdout.splitlines()
    assert lines == native_lines
    names, native_names = eval(last[last.index("[") :]), eval(native_last[native_last.index("[") :])
    assert sorted(set(names) - set(native_names)) == OUR_VARIABLES
    assert set(native_names) <= set(names)
    assert last[: last.index("[")] == native_last[: native_last.index("[")]


def test_standard_input_reaches_the_program(tmp_path: Path) -> None:
    done = run_memlens("record", "-q", "-o", tmp_path / "c.memlens", "--", "cat", input="line\n" * 1000)
    assert done.stdout == "line\n" * 1000


def test_closed_standard_streams_are_no_reason_to_fail(tmp_path: Path) -> None:
    script = f"exec {' '.join(MEMLENS)} record -q -o {tmp_path}/c.memlens -- sh -c 'exit 5' <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", script]).returncode == 5


def start_recording(tmp_path: Path, *command: str, **options: object) -> subprocess.Popen[str]:
    process = subprocess.Popen(  # type: ignore[call-overload]
        [*MEMLENS, "record", "-q", "-o", str(tmp_path / "c.memlens"), "--", *command],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
    )  # fmt: skip
    return process  # type: ignore[no-any-return]


def test_a_signal_sent_to_the_recorder_reaches_the_program_once(tmp_path: Path) -> None:
    script = "trap 'echo got' TERM; echo ready; i=0; while [ $i -lt 15 ]; do sleep 0.1; i=$((i+1)); done; exit 9"
    recorder = start_recording(tmp_path, "sh", "-c", script)
    assert recorder.stdout is not None and recorder.stdout.readline() == "ready\n"
    recorder.send_signal(signal.SIGTERM)
    output, _ = recorder.communicate(timeout=30)
    assert (output, recorder.returncode) == ("got\n", 9)


def test_a_recorder_that_was_stopped_goes_on(tmp_path: Path) -> None:
    """As by Ctrl-Z and `fg`; the program itself is not stopped here and ends meanwhile or afterwards."""
    for script, stopped_s in (("echo ready; sleep 1.5; exit 7", 0.8), ("echo ready; sleep 0.2; exit 7", 0.8)):
        recorder = start_recording(tmp_path, "sh", "-c", script)
        assert recorder.stdout is not None and recorder.stdout.readline() == "ready\n"
        recorder.send_signal(signal.SIGSTOP)
        time.sleep(stopped_s)
        recorder.send_signal(signal.SIGCONT)
        _, errors = recorder.communicate(timeout=30)
        assert (errors, recorder.returncode) == ("", 7)
        shutil.rmtree(tmp_path / "c.memlens")


@needs_faults
def test_records_lost_by_a_stopped_recorder_are_counted_and_the_finding_stays(tmp_path: Path) -> None:
    """The kernel's own count is the oracle: a fault that was not seen has lost one record or more."""
    program = f"{workload_path('fault_storm')} --mib 8 --iterations 60"
    recorder = start_recording(
        tmp_path, "sh", "-c", f"echo ready; read go; {program}; echo done; read go", stdin=subprocess.PIPE
    )
    assert recorder.stdin is not None and recorder.stdout is not None
    assert recorder.stdout.readline() == "ready\n"
    recorder.send_signal(signal.SIGSTOP)
    recorder.stdin.write("\n")
    recorder.stdin.flush()
    while recorder.stdout.readline() != "done\n":
        assert recorder.poll() is None
    recorder.send_signal(signal.SIGCONT)
    recorder.communicate("\n", timeout=60)
    assert recorder.returncode == 0
    capture = memlens.open(tmp_path / "c.memlens")
    if not capture.meta["session"]["lost_readable"]:
        pytest.skip("the kernel does not count lost records of an event (PERF_FORMAT_LOST): Linux 6.0 or later")
    faults = memlens.analyses.run("faults", capture).figures
    unseen = faults["kernel_faults"] - faults["faults"] - faults["own_faults"]
    assert unseen > 100_000
    assert capture.quality.dropped_records >= unseen
    assert "fault_storm" in {finding.name for finding in memlens.analyses.report(capture).findings}


def test_interrupt_from_the_terminal_reaches_the_program_once(tmp_path: Path) -> None:
    """Both get a terminal's SIGINT; the recorder must not pass it on a second time."""
    import pty

    script = "trap 'echo got' INT; echo ready; i=0; while [ $i -lt 15 ]; do sleep 0.1; i=$((i+1)); done; exit 4"
    pid, fd = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # tests that run in the background have it ignored
        os.execv(
            sys.executable, [*MEMLENS, "record", "-q", "-o", str(tmp_path / "c.memlens"), "--", "sh", "-c", script]
        )
    output = b""
    while b"ready" not in output:
        output += os.read(fd, 1000)
    os.write(fd, b"\x03")
    try:
        while True:
            part = os.read(fd, 1000)
            if not part:
                break
            output += part
    except OSError:
        pass
    _, status = os.waitpid(pid, 0)
    assert os.WEXITSTATUS(status) == 4
    assert output.count(b"got") == 1


def wait_for_processes(path: Path, seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and not (path / "records-recorder.mlc").exists():
        time.sleep(0.01)


def survivors_of(kill_recorder: bool, moments: list[float], tmp_path: Path) -> None:
    program = str(workload_path("fault_storm"))
    for index, moment in enumerate(moments):
        folder = tmp_path / f"kill{index}"
        folder.mkdir()
        recorder = subprocess.Popen(
            [*MEMLENS, "record", "-q", "-o", str(folder / "c.memlens"), "--", program, "--mib", "4", "--iterations", "100000",
             "--threads", "1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        path = folder / "c.memlens"
        wait_for_processes(path)
        time.sleep(moment)
        children = subprocess.run(["pgrep", "-P", str(recorder.pid)], capture_output=True, text=True).stdout.split()
        killed_ns = time.monotonic_ns()
        os.kill(recorder.pid if kill_recorder else int(children[0]), signal.SIGKILL)
        recorder.wait(timeout=60)
        if kill_recorder:
            # The program must not have noticed; then it is ours to end.
            for child in children:
                assert os.path.exists(f"/proc/{child}"), "the program ended with its recorder"
                os.kill(int(child), signal.SIGKILL)
        else:
            assert recorder.returncode == -signal.SIGKILL
        capture = memlens.open(path)
        assert capture.complete != kill_recorder
        assert capture.quality.truncated == kill_recorder
        if not kill_recorder or moment > 1.2:
            times = capture.table("fault_records").column("time_ns").to_numpy()
            newest = int(times.max()) if len(times) else 0
            assert newest >= killed_ns - 1_000_000_000, (
                f"records end {(killed_ns - newest) / 1e9:.2f} s before the kill"
            )
        assert capture.table("processes").num_rows >= 0
        memlens.analyses.report(capture) if capture.kinds().get("fault") else None


@needs_faults
@pytest.mark.parametrize("kill_recorder", [False, True], ids=["program", "recorder"])
def test_kill_9_leaves_a_capture_with_all_but_the_last_second(tmp_path: Path, kill_recorder: bool) -> None:
    source = random.Random(1 + kill_recorder)
    survivors_of(kill_recorder, [source.uniform(0.05, 2.0) for _ in range(5)], tmp_path)


@needs_faults
@pytest.mark.slow
@pytest.mark.parametrize("kill_recorder", [False, True], ids=["program", "recorder"])
def test_kill_9_at_50_random_moments(tmp_path: Path, kill_recorder: bool) -> None:
    source = random.Random(50 + kill_recorder)
    survivors_of(kill_recorder, [source.uniform(0.0, 3.0) for _ in range(50)], tmp_path)


@needs_root
def test_a_full_disk_stops_the_capture_not_the_program(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    program = workload_path("fault_storm")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(disk)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"no small file system can be mounted here: {mounted.stderr.strip()}")
    try:
        command = [program, "--mib", "8", "--iterations", "40"]
        done = run_memlens("record", "-q", "-o", disk / "c.memlens", "--", *command)
        shutil.copytree(disk / "c.memlens", tmp_path / "copy.memlens")
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert done.returncode == 0, done.stderr
    assert "No space left" in done.stderr and "-o" in done.stderr
    assert done.stdout.startswith("fault_storm pages=")
    capture = memlens.open(tmp_path / "copy.memlens")
    assert capture.kinds()["fault"] > 0
    assert capture.quality.truncated


def test_a_running_process_can_be_watched(tmp_path: Path) -> None:
    program = subprocess.Popen(
        [str(workload_path("fault_storm")), "--mib", "1", "--iterations", "1000000", "--threads", "2"],
        stdout=subprocess.DEVNULL,
    )
    try:
        time.sleep(0.2)
        done = run_memlens("record", "-q", "-o", tmp_path / "c.memlens", "--pid", str(program.pid), "--duration", "1")
        assert done.returncode == 0, done.stderr
        assert program.poll() is None
    finally:
        program.kill()
        program.wait()
    capture = memlens.open(tmp_path / "c.memlens")
    (process,) = capture.table("processes").to_pylist()
    assert process["pid"] == program.pid and process["threads"] == 3
    if "fault" in capture.kinds():
        functions = capture.table("faults").column("function").to_pylist()
        assert functions.count("touch_buffer") > 0.9 * len(functions)


def test_duration_ends_the_recording_not_the_program(tmp_path: Path) -> None:
    done = run_memlens(
        "record", "-q", "-o", tmp_path / "c.memlens", "--duration", "0.3", "--", "sh", "-c", "sleep 1; exit 3"
    )
    assert done.returncode == 3
    capture = memlens.open(tmp_path / "c.memlens")
    assert "unrecorded" in " ".join(capture.quality.notes)


@needs_root
def test_without_privilege_the_recording_still_works_and_says_what_it_missed(tmp_path: Path) -> None:
    command = [
        "setpriv", "--bounding-set=-all", "--inh-caps=-all", *MEMLENS, "record", "-q", "-o", str(tmp_path / "c.memlens"), "--",
        str(workload_path("case_read_into_buffer")), "--pages", "400", "--hold-ms", "400",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    capture = memlens.open(tmp_path / "c.memlens")
    paranoid = int(Path("/proc/sys/kernel/perf_event_paranoid").read_text())
    if paranoid > 2:
        assert "faults" not in capture.meta["collectors"]
        return
    if paranoid == 2:
        assert capture.meta["session"]["include_kernel"] is False
        placed = sum(row["bytes"] for row in capture.table("placed").to_pylist() if row["area"] == "anonymous")
        assert placed == 400 * 4096
        assert any("system calls" in entry["reason"] for entry in capture.meta["unsupported"])


def test_redacted_captures_hold_no_paths_or_arguments(tmp_path: Path) -> None:
    secret = tmp_path / "very-secret-folder"
    secret.mkdir()
    program = secret / "prog"
    shutil.copy(workload_path("first_touch"), program)
    output = tmp_path / "c.memlens"
    done = run_memlens("record", "-q", "--redact", "-o", output, "--", program, "--mib", "4", "--iterations", "1")
    assert done.returncode == 0, done.stderr
    capture = memlens.open(output)
    everything = (output / "meta.json").read_text() + "".join(
        str(capture.table(name).to_pylist()) for name in capture.table_names()
    )
    for word in ("very-secret-folder", str(tmp_path), "--mib", "/usr/lib", "/workloads"):
        assert word not in everything, word
    if "fault" in capture.kinds():
        assert "touch_words" in capture.table("faults").column("function").to_pylist()
    # What a report derives may have names from the files of this machine: it is not for the others who get the capture.
    assert run_memlens("report", output).returncode == 0
    assert not list(output.glob("derived-*"))


def test_the_environment_is_not_stored(tmp_path: Path) -> None:
    output = tmp_path / "c.memlens"
    run_memlens("record", "-q", "-o", output, "--", "true", env={**os.environ, "MY_TOKEN": "hunter2-token"})
    assert all(b"hunter2-token" not in file.read_bytes() for file in output.iterdir())


def test_timeline_rate_is_kept(tmp_path: Path) -> None:
    run_memlens("record", "-q", "--rate", "200", "-o", tmp_path / "c.memlens", "--", "sleep", "1")
    result = memlens.analyses.run("capacity", memlens.open(tmp_path / "c.memlens"))
    assert result.figures["readings"] > 100


@pytest.mark.parametrize(
    "broken",
    [
        "collectors.timeline.Timeline.tick",
        "collectors.faults.Faults.tick",
        "finish.write_side_tables",
        "recorder.Recorder.pump",
        "ending._quality_notes",
    ],
)
def test_a_bug_in_the_recorder_does_not_change_the_programs_status(tmp_path: Path, broken: str) -> None:
    words = broken.split(".")
    at = 2 if words[0] == "collectors" else 1
    module, names = ".".join(words[:at]), words[at:]
    target = ".".join([f"memlens.collect.{module}", *names[:-1]])
    code = (
        "import sys, importlib\n"
        f"module = importlib.import_module('memlens.collect.{module}')\n"
        f"holder = {'module' if len(names) == 1 else f'module.{names[0]}'}\n"
        "def fail(*args, **options): raise RuntimeError('broken on purpose')\n"
        f"setattr(holder, {names[-1]!r}, fail)\n"
        f"sys.argv = ['memlens', 'record', '-q', '-o', {str(tmp_path / 'c.memlens')!r}, '--', 'sh', '-c', 'sleep 0.3; echo out; exit 6']\n"
        "from memlens.cli.main import main\nmain()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (6, "out\n"), f"{target}: {done.stderr}"
    assert "broken on purpose" in done.stderr
    memlens.open(tmp_path / "c.memlens")
