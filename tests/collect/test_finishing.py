"""After the program's end: its status is passed on whatever finishing costs, and nobody has to wait for it."""

from __future__ import annotations

import contextlib
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import MEMLENS, needs_root, run_memlens

import memlens
from memlens.errors import CollectorError

ALLOCATING = r"""
#include <stdlib.h>
#include <string.h>
int main(int count, char **words) {
  for (long n = 0; n < atol(words[1]); n++) { char *p = malloc(70000 + n % 200 * 1000); p[0] = 1; free(p); }
  return 23;
}
"""
FAILING_WRITES = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>
static long left = -2;
static int fails(int fd, size_t bytes) {
  char link[64], path[512];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t n = readlink(link, path, sizeof path - 1);
  if (n <= 0) return 0;
  path[n] = 0;
  if (strstr(path, "eio.memlens") == NULL) return 0;
  if (left == -2) left = atol(getenv("EIO_AFTER"));
  if (left < (long)bytes) { left = 0; errno = EIO; return 1; }
  left -= (long)bytes;
  return 0;
}
ssize_t write(int fd, const void *at, size_t bytes) {
  ssize_t (*next)(int, const void *, size_t) = dlsym(RTLD_NEXT, "write");
  return fails(fd, bytes) ? -1 : next(fd, at, bytes);
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
  ssize_t (*next)(int, const struct iovec *, int) = dlsym(RTLD_NEXT, "writev");
  size_t bytes = 0;
  for (int i = 0; i < count; i++) bytes += parts[i].iov_len;
  return fails(fd, bytes) ? -1 : next(fd, parts, count);
}
"""


def compiled(folder: Path, source: str, *options: str) -> Path:
    if not shutil.which("cc"):
        pytest.skip("no C compiler: sudo apt-get install gcc")
    (folder / "source.c").write_text(source)
    subprocess.run(
        ["cc", "-O1", "-fno-builtin", *options, "-o", folder / "built", folder / "source.c", "-ldl"], check=True
    )
    return folder / "built"


def with_changes(changes: str, *arguments: str | Path) -> list[str]:
    """The command line of memlens in a Python that runs `changes` first."""
    words = [str(word) for word in ("memlens", *arguments)]
    return [
        sys.executable,
        "-c",
        f"{changes}\nimport sys\nsys.argv = {words!r}\nfrom memlens.cli.main import main\nmain()\n",
    ]


# ---- memory ----------------------------------------------------------------------------
def test_many_allocations_are_finished_within_512_mib(tmp_path: Path) -> None:
    """Eight million records: the replay alone kept 50 bytes for each, the objects engine more."""
    program = compiled(tmp_path, ALLOCATING)
    changes = (
        "import atexit, os, resource\n"
        "from memlens.collect import finishing\n"
        "run = finishing._Child.run\n"
        "def measured(self):\n"
        "    status = run(self)\n"
        "    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10\n"
        f"    open({str(tmp_path / 'peak')!r}, 'w').write(str(peak))\n"
        "    return status\n"
        "finishing._Child.run = measured"
    )
    output = tmp_path / "c.memlens"
    done = subprocess.run(
        with_changes(changes, "record", "--exact", "-q", "-o", output, "--", program, "4000000"),
        capture_output=True,
        timeout=300,
    )
    assert done.returncode == 23, done.stderr
    assert int((tmp_path / "peak").read_text()) <= 512
    capture = memlens.open(output)
    assert capture.kinds()["allocation"] > 7_000_000
    assert (output / "sites.parquet").exists() and not (output / "objects.parquet").exists()
    assert capture.complete and not capture.quality.truncated


@pytest.mark.parametrize("how", ["memory", "killed", "slow and killed"])
def test_what_is_not_finished_is_made_by_the_reader(tmp_path: Path, how: str) -> None:
    """The child runs out of its memory, or the kernel kills it: status kept, capture complete, tables from the records."""
    failing = {
        "memory": "raise MemoryError",
        "killed": "os.kill(os.getpid(), signal.SIGKILL)",
        "slow and killed": "self.records('string', [b'\\0' * 8]); os.kill(os.getpid(), signal.SIGKILL)",
    }[how]
    changes = (
        "import os, signal\n"
        "from memlens.capture.store.writer import CaptureWriter\n"
        "write = CaptureWriter.write_table\n"
        "def write_table(self, name, table):\n"
        f"    if name == 'sites':\n        {failing}\n"
        "    write(self, name, table)\n"
        "CaptureWriter.write_table = write_table"
    )
    output = tmp_path / "c.memlens"
    command = ["sh", "-c", "sleep 0.2; echo out; exit 7"]
    done = subprocess.run(
        with_changes(changes, "record", "-o", output, "--", *command), capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (7, "out\n"), done.stderr
    assert "ended early" in done.stderr and "bug" not in done.stderr
    assert (output / "modules.parquet").exists() and not (output / "sites.parquet").exists()
    capture = memlens.open(output)
    assert capture.complete and not capture.quality.truncated
    (note,) = capture.quality.notes
    assert "ended early" in note
    assert capture.table("sites").num_rows > 0
    assert run_memlens("report", output).returncode == 0


def test_the_process_that_finishes_is_killed_before_the_recorder(tmp_path: Path) -> None:
    changes = (
        "from memlens.collect import finish\n"
        "write = finish.write_side_tables\n"
        "def looked(*words, **options):\n"
        f"    open({str(tmp_path / 'score')!r}, 'w').write(open('/proc/self/oom_score_adj').read())\n"
        "    return write(*words, **options)\n"
        "finish.write_side_tables = looked"
    )
    before = int(Path("/proc/self/oom_score_adj").read_text())
    output = tmp_path / "c.memlens"
    script = ["sh", "-c", "cat /proc/self/oom_score_adj"]
    done = subprocess.run(
        with_changes(changes, "record", "-q", "-o", output, "--", *script), capture_output=True, text=True, timeout=60
    )
    assert int(done.stdout) == before  # the program's is its own
    assert int((tmp_path / "score").read_text()) == 1000


# ---- control-C -------------------------------------------------------------------------
@pytest.mark.parametrize("where", ["memlens.cli.record._summarise", "memlens.collect.finish.derive_table"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_control_c_skips_what_is_left(tmp_path: Path, where: str, number: signal.Signals) -> None:
    module, _, name = where.rpartition(".")
    changes = (
        f"import importlib, time\nmodule = importlib.import_module({module!r})\n"
        "def slow(*words, **options):\n"
        f"    open({str(tmp_path / 'begun')!r}, 'w').close()\n"
        "    time.sleep(60)\n"
        f"setattr(module, {name!r}, slow)"
    )
    output = tmp_path / "c.memlens"
    recorder = subprocess.Popen(
        with_changes(changes, "record", "-o", output, "--", "sh", "-c", "sleep 0.2; exit 9"),
        stderr=subprocess.PIPE, text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    end = time.monotonic() + 30
    while time.monotonic() < end and not (tmp_path / "begun").exists():
        time.sleep(0.02)
    sent = time.monotonic()
    recorder.send_signal(number)
    _, errors = recorder.communicate(timeout=30)
    assert time.monotonic() - sent < 2
    assert recorder.returncode == 9 and "interrupted" in errors
    capture = memlens.open(output)
    assert capture.complete and not capture.quality.truncated
    assert capture.table("processes").num_rows >= 1


def test_control_c_just_after_the_program_is_for_memlens(tmp_path: Path) -> None:
    """It came between the end of the program and the process that finishes, and was taken for the program's."""
    changes = (
        "import os, signal, time\nfrom memlens.collect import finish, recorder\n"
        "stop = recorder.Recorder._stop_recording\n"
        "def stopped(self):\n    stop(self)\n    os.kill(os.getpid(), signal.SIGINT)\n"
        "recorder.Recorder._stop_recording = stopped\n"
        "finish.derive_table = lambda *words, **options: time.sleep(60)"
    )
    output = tmp_path / "c.memlens"
    words = with_changes(changes, "record", "-o", output, "--", "sh", "-c", "exit 9")
    done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    assert done.returncode == 9 and "interrupted" in done.stderr
    assert memlens.open(output).complete


def test_control_c_at_a_terminal_skips_the_summary(tmp_path: Path) -> None:
    """The terminal sends it to the whole process group: to the process that finishes as well."""
    changes = (
        "import os, time\nfrom memlens.cli import record\n"
        "def slow(capture):\n    os.write(2, b'BEGUN')\n    time.sleep(60)\n"
        "record._summarise = slow"
    )
    output = tmp_path / "c.memlens"
    words = with_changes(changes, "record", "-o", output, "--", "sh", "-c", "exit 9")
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(words[0], words)
    shown = b""
    with contextlib.suppress(OSError):  # the terminal's other end is closed
        while part := os.read(terminal, 4096):
            shown += part
            if shown.endswith(b"BEGUN"):
                os.write(terminal, b"\x03")
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    assert b"no summary: interrupted" in shown
    capture = memlens.open(output)
    assert capture.complete and not capture.quality.truncated and capture.quality.notes == ()


def test_no_descriptor_left_for_finishing_costs_tables_only(tmp_path: Path) -> None:
    changes = (
        "import errno, os\nfrom memlens.collect import finishing\n"
        "def refused(flags):\n    raise OSError(errno.EMFILE, 'Too many open files')\n"
        "def apart(*words, apart=finishing.finish_apart, **options):\n"
        "    os.pipe2 = refused\n    return apart(*words, **options)\n"
        "from memlens.collect import ending\nending.finish_apart = apart"
    )
    output = tmp_path / "c.memlens"
    words = with_changes(changes, "record", "-o", output, "--", "sh", "-c", "exit 9")
    done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    assert done.returncode == 9 and "Too many open files" in done.stderr and "bug" not in done.stderr
    assert memlens.open(output).complete and memlens.open(output).table("processes").num_rows == 1


# ---- writes that fail ----------------------------------------------------------------------
def allocating_python(output: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    code = "d = {i: str(i) for i in range(1000000)}\nimport time; time.sleep(0.3); print('out')"
    words = ["record", "-q", "-o", output, "--", sys.executable, "-S", "-c", code]
    return run_memlens(*words, env={**os.environ, **environment})


@pytest.fixture(scope="module")
def whole_bytes(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, int]:
    """meta.json and records of the same recording without an error: they depend on the machine, and on what may be collected here."""
    output = tmp_path_factory.mktemp("whole") / "whole.memlens"
    assert allocating_python(output).returncode == 0
    return (output / "meta.json").stat().st_size, (output / "records-recorder.mlc").stat().st_size


@pytest.mark.parametrize("share", [0.04, 0.2, 0.5])
def test_an_io_error_leaves_what_was_written_before(tmp_path: Path, whole_bytes: tuple[int, int], share: float) -> None:
    shim = compiled(tmp_path, FAILING_WRITES, "-shared", "-fPIC")
    output = tmp_path / "eio.memlens"
    meta_bytes, record_bytes = whole_bytes
    room = int(share * record_bytes)
    # meta.json is written twice before the program runs.
    done = allocating_python(output, LD_PRELOAD=str(shim), EIO_AFTER=str(2 * meta_bytes + 2000 + room))
    assert (done.returncode, done.stdout) == (0, "out\n"), done.stderr
    assert "Input/output error" in done.stderr
    capture = memlens.open(output)
    assert capture.quality.truncated
    assert (output / "records-recorder.mlc").stat().st_size > room / 3
    report = run_memlens("report", output)
    assert report.returncode == 0, report.stderr


# ---- permission -----------------------------------------------------------------------------
@needs_root
def test_a_process_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    """Another user, who may look into directories: this memlens, its interpreter or TMPDIR may lie where others may not."""
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed: apt-get install util-linux")
    kept = [name for name, bit in (("dac_override", 1), ("dac_read_search", 2)) if capabilities() >> bit & 1]
    if not kept:
        pytest.skip(
            "root has no capability here to give another user access to this memlens: docker run --cap-add DAC_OVERRIDE"
        )
    only = ",".join(["-all", *(f"+{name}" for name in kept)])
    user = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        f"--inh-caps={only}",
        f"--ambient-caps={only}",
        f"--bounding-set={only}",
    ]
    program = subprocess.Popen(["sleep", "60"])
    words = [
        *user,
        *MEMLENS,
        "record",
        "-o",
        str(tmp_path / "c.memlens"),
        "--pid",
        str(program.pid),
        "--duration",
        "0.5",
    ]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, cwd=tmp_path)
        assert done.returncode == CollectorError.exit_status, done.stderr
        assert "belongs to root" in done.stderr and "run memlens as root" in done.stderr
        assert not (tmp_path / "c.memlens").exists()
        done = subprocess.run(
            [*words, "--collectors", "timeline"], capture_output=True, text=True, timeout=60, cwd=tmp_path
        )
        assert done.returncode == 0 and "Only the size of process" in done.stderr, done.stderr
    finally:
        program.kill()
        program.wait()
    assert list(memlens.open(tmp_path / "c.memlens").meta["collectors"]) == ["timeline"]


def capabilities() -> int:
    """Those that a child may keep."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("CapBnd:")), 16)


def test_faults_that_cannot_be_opened_are_not_claimed(tmp_path: Path) -> None:
    """Too few descriptors for the events of every CPU: the recording goes on without them and says so."""
    changes = (
        "import errno\nfrom memlens import _recorder\nfrom memlens.collect import recorder\n"
        "class Refused:\n"
        "    def __init__(self, session, faults): self.session, self.faults = session, faults\n"
        "    def __getattr__(self, name): return getattr(self.session, name)\n"
        "    def attach(self, *words, **options):\n"
        "        if self.faults: raise OSError(errno.EMFILE, 'Too many open files', 'perf_event_open')\n"
        "        return self.session.attach(*words, **options)\n"
        "new = recorder.Recorder.new_session\n"
        "def new_session(self):\n"
        "    session = new(self)\n"
        "    return Refused(session, self.session_plan.faults)\n"
        "recorder.Recorder.new_session = new_session"
    )
    output = tmp_path / "c.memlens"
    words = with_changes(changes, "record", "-o", output, "--", "sleep", "0.3")
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    capture = memlens.open(output)
    if any(entry["reason"].startswith("too many open files") for entry in capture.meta["unsupported"]):
        assert "faults" not in capture.meta["collectors"]
        assert "faults all" not in done.stderr and "too many open files" in done.stderr


# ---- secrets --------------------------------------------------------------------------------
def test_redacted_captures_hold_no_settings_and_no_host_name(tmp_path: Path) -> None:
    host = os.uname().nodename
    code = (
        "import ctypes, mmap, time\n"
        "ctypes.CDLL(None).prctl(15, b'PASS=hunter2', 0, 0, 0)\n"
        f"file = open({str(tmp_path / f'TOKEN=hunter2-{host}')!r}, 'w+b')\n"
        "file.write(bytes(8192)); file.flush(); memory = mmap.mmap(file.fileno(), 8192); memory[0] = 1\n"
        "time.sleep(0.3)\n"
    )
    output = tmp_path / "c.memlens"
    command = ["env", "SECRET=hunter2", sys.executable, "-c", code, "KEY=hunter2", host]
    done = run_memlens("record", "-q", "--redact", "-o", output, "--", *command)
    assert done.returncode == 0, done.stderr
    capture = memlens.open(output)
    everything = (output / "meta.json").read_text() + "".join(
        str(capture.table(name).to_pylist()) for name in capture.table_names()
    )
    assert "hunter2" not in everything and f"-{host}'" not in everything
    assert "PASS=redacted" in capture.table("processes").column("name").to_pylist()
    assert capture.meta["machine"]["host"] == "redacted"


# ---- no room for threads ----------------------------------------------------------------------
NO_THREADS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>
static long left = NUMBER;
int pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *with) {
  int (*next)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = dlsym(RTLD_NEXT, "pthread_create");
  char exe[512] = "";
  if (readlink("/proc/self/exe", exe, sizeof exe - 1) > 0 && strstr(exe, "/python") != NULL && left-- <= 0) return EAGAIN;
  return next(thread, how, run, with);
}
"""


@pytest.mark.parametrize("threads", [0, 1])
def test_a_recorder_without_threads_does_not_hold_the_program_up(tmp_path: Path, threads: int) -> None:
    """The program runs when the threads that read its memory are started: its status is passed on, and it waits for nobody."""
    program = compiled(tmp_path, ALLOCATING)
    (tmp_path / "shim").mkdir()
    shim = compiled(tmp_path / "shim", NO_THREADS.replace("NUMBER", str(threads)), "-shared", "-fPIC")
    output = tmp_path / "c.memlens"
    words = ["record", "-q", "--sample-bytes", "0", "-o", output, "--", program, "300000"]
    done = run_memlens(*words, env={**os.environ, "LD_PRELOAD": str(shim)})
    assert done.returncode == 23, done.stderr
    assert "thread: resource temporarily unavailable" in done.stderr and "bug" not in done.stderr
    notes = memlens.open(output).quality.notes
    assert any("temporarily unavailable" in note for note in notes), notes


def everything(capture: Path) -> str:
    """All that can be read in a capture: bytes of files, records, tables."""
    opened = memlens.open(capture)
    found = [file.read_bytes().decode("latin-1") for file in capture.iterdir()]
    found += [str(opened.table(name).to_pylist()) for name in opened.table_names() if name != "accesses"]
    return "".join(found)


def test_redacted_captures_hold_no_directories(tmp_path: Path) -> None:
    """Of source files of variables, which are absolute, and in names that JIT compilers give."""
    home = tmp_path / "secret place" / "of me"
    home.mkdir(parents=True)
    (home / "p.c").write_text(
        "#include <stdio.h>\n#include <unistd.h>\nlong kept[5000];\nint main(void) {\n"
        '  char name[64]; snprintf(name, sizeof name, "/tmp/perf-%d.map", getpid());\n'
        '  FILE *map = fopen(name, "w"); fputs("10000 100 JS:~main " HOME "/app.js:7\\n", map); fclose(map);\n'
        "  for (int i = 0; i < 5000; i++) kept[i] = i;\n  usleep(200000); return 0; }\n"
    )
    if not shutil.which("cc"):
        pytest.skip("no C compiler: apt-get install gcc")
    subprocess.run(["cc", "-g", f'-DHOME="{home}"', "-o", home / "prog", home / "p.c"], check=True)
    output = tmp_path / "c.memlens"
    done = run_memlens("record", "-q", "--redact", "-o", output, "--", home / "prog", cwd=home)
    assert done.returncode == 0, done.stderr
    capture = memlens.open(output)
    pid = capture.table("processes").column("pid").to_pylist()[0]
    Path(f"/tmp/perf-{pid}.map").unlink()
    assert "secret place" not in everything(output) and "of me" not in everything(output)
    assert capture.table("jit_code").column("name").to_pylist() == ["JS:~main app.js:7"]
    kept = [row for row in capture.table("variables").to_pylist() if row["name"] == "kept"]
    assert [(row["file"], row["module"]) for row in kept] == [("p.c", "prog")]


def test_redacted_captures_hold_no_copies_of_stacks(tmp_path: Path) -> None:
    done = run_memlens("record", "--redact", "--stacks", "dwarf", "-o", tmp_path / "c.memlens", "--", "true")
    assert done.returncode == 64 and "--stacks fp" in done.stderr and not (tmp_path / "c.memlens").exists()


# ---- nobody reads what memlens says ----------------------------------------------------------------
@pytest.mark.parametrize("where", ["full", "closed pipe", "closed"])
@pytest.mark.parametrize("options", [("-q",), ()])
def test_the_status_is_passed_on_though_nobody_can_be_told(
    tmp_path: Path, where: str, options: tuple[str, ...]
) -> None:
    output = tmp_path / "c.memlens"
    shim = compiled(
        tmp_path, NO_THREADS.replace("NUMBER", "0"), "-shared", "-fPIC"
    )  # something to say, also when quiet
    words = [*MEMLENS, "record", *options, "-o", str(output), "--", "sh", "-c", "exit 5"]
    reading, pipe = os.pipe()
    os.close(reading)
    error = {"full": os.open("/dev/full", os.O_WRONLY), "closed pipe": pipe, "closed": None}[where]
    done = subprocess.run(
        words, stderr=error, env={**os.environ, "LD_PRELOAD": str(shim)}, timeout=60,
        preexec_fn=(lambda: os.close(2)) if where == "closed" else None,
    )  # fmt: skip
    os.close(pipe)
    assert done.returncode == 5
    assert memlens.open(output).complete
