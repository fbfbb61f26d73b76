"""The program's peak RSS is the kernel's, not the recorder's own; the launcher in between is not seen."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import MEMLENS, run_memlens

import memlens
from memlens import _recorder, analyses
from memlens.collect import preload

MIB = 1 << 20
Record = Callable[..., memlens.Capture]


def native_peak(command: list[str]) -> int:
    """What /usr/bin/time reports: it is small itself."""
    done = subprocess.run(["/usr/bin/time", "-f", "%M", *command], capture_output=True, text=True, check=True)
    return int(done.stderr.split()[-1]) << 10


@pytest.mark.skipif(not Path("/usr/bin/time").exists(), reason="no /usr/bin/time (package time)")
@pytest.mark.parametrize(
    "command",
    [["/bin/true"], ["ls", "/"], ["sort", "/proc/self/maps"],
     [sys.executable, "-I", "-S", "-c", "b = bytes(30_000_000)"]],
    ids=["true", "ls", "sort", "python"],
)  # fmt: skip
def test_peak_rss_is_the_one_that_time_reports(record: Record, command: list[str]) -> None:
    expected = native_peak(command)
    found = analyses.run("capacity", record(*command)).figures["peak_rss_bytes"]
    # Our library, its rings and the unwind tables that it reads are in the program's RSS: 1 MiB and a little.
    assert abs(found - expected) <= max(1.5 * MIB, 0.05 * expected), (found, expected)


@pytest.mark.parametrize("launcher", [None, "/nonexistent/launcher", "real"])
def test_the_launcher_changes_nothing_but_the_peak(launcher: str | None) -> None:
    """A sibling process: the recorder's own child, with the environment, directory and status that it should have."""
    path = preload.launcher() if launcher == "real" else launcher
    command = ["/bin/sh", "-c", 'test "$PPID" = "$WANTED" && test "$PWD" = / && exit 23; exit 1']
    child = _recorder.Child(command, "/", [f"WANTED={os.getpid()}"], path)
    before = Path(f"/proc/{child.pid}/stat").read_text()
    assert before.rpartition(")")[2].split()[1] == str(os.getpid())
    assert child.go() == 0
    ended, status, _ = os.wait4(child.pid, 0)
    assert ended == child.pid and os.waitstatus_to_exitcode(status) == 23
    with pytest.raises(ChildProcessError):  # the launcher has been waited for
        os.waitpid(-1, os.WNOHANG)


@pytest.mark.parametrize("launcher", [None, "real"])
def test_exec_errors_and_abandoned_children(launcher: str | None) -> None:
    path = preload.launcher() if launcher else None
    child = _recorder.Child(["/nonexistent/program"], None, [], path)
    assert child.go() == 2
    child = _recorder.Child(["/bin/true"], None, [], path)
    child.abandon()
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_the_launcher_hands_on_no_descriptor() -> None:
    path = preload.launcher()
    assert path is not None
    read_end, write_end = os.pipe()
    os.set_inheritable(write_end, True)
    text = f"import os; os.write({write_end}, ' '.join(sorted(os.listdir('/proc/self/fd'))).encode())"
    child = _recorder.Child([sys.executable, "-I", "-S", "-c", text], None, [], path)
    assert child.go() == 0
    os.waitpid(child.pid, 0)
    seen = {int(number) for number in os.read(read_end, 4096).split()}
    os.close(read_end)
    os.close(write_end)
    inherited = {fd for fd in range(256) if _is_inheritable(fd)} | {write_end}
    assert len(seen - (inherited | {0, 1, 2})) == 1  # listdir's own


def _is_inheritable(fd: int) -> bool:
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False


def test_at_the_limit_of_processes_the_launcher_becomes_the_program(tmp_path: Path) -> None:
    """Two processes more are allowed: the launcher, and no sibling. Root is not limited: another user."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become a user without processes")
    script = (
        "import os, resource, sys\n"
        "from memlens import _recorder\n"
        "resource.setrlimit(resource.RLIMIT_NPROC, (2, 2))\n"
        "os.setgid(61234); os.setuid(61234)\n"
        "child = _recorder.Child(['/bin/sh', '-c', 'exit 7'], None, [], sys.argv[1])\n"
        "assert child.go() == 0\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1]))\n"
    )
    path = tmp_path / "launch"
    source = preload.launcher()
    assert source is not None
    path.write_bytes(Path(source).read_bytes())
    for folder in (tmp_path, *tmp_path.parents):
        if str(folder).startswith("/tmp/pytest"):
            folder.chmod(0o755)
    path.chmod(0o755)
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, timeout=60)
    assert done.stdout == "7\n", done.stderr


def test_ignored_and_blocked_signals_reach_the_program_as_without_memlens(tmp_path: Path) -> None:
    text = "import signal; print([str(s) for s in sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))], signal.getsignal(signal.SIGUSR1))"
    command = [sys.executable, "-I", "-S", "-c", text]

    def before_exec() -> None:
        import signal

        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    plain = subprocess.run(command, capture_output=True, text=True, preexec_fn=before_exec)
    done = subprocess.run([*MEMLENS, "record", "-q", "-o", tmp_path / "c", "--", *command], capture_output=True, text=True,
                          preexec_fn=before_exec)  # fmt: skip
    assert done.stdout == plain.stdout


def test_a_command_line_near_the_limit_still_runs(tmp_path: Path) -> None:
    """Where the launcher's few words more do not fit, the program is started without it."""
    words = ["x" * 120_000] * 16
    limit = resource.getrlimit(resource.RLIMIT_STACK)[0]
    if limit != resource.RLIM_INFINITY and limit < 8 << 20:
        pytest.skip("a small stack: a small limit of arguments")
    done = run_memlens("record", "-q", "-o", tmp_path / "c", "--", "/bin/echo", *words)
    assert done.returncode == 0 and len(done.stdout) == sum(map(len, words)) + len(words)
    assert json.loads((tmp_path / "c" / "meta.json").read_text())["state"] == "complete"
