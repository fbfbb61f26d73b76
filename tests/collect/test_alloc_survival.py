"""Whatever happens around it, the program with our library inside ends as it would have, with the same output."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from alloc_oracle import EVERY, births, releases
from conftest import MEMLENS, needs_root, run_memlens, workload_path

import memlens
from memlens.collect import preload

Record = Callable[..., memlens.Capture]

PROGRAMS = {
    # N pairs of malloc and free; the file named second is written at the end, with the seconds it took.
    "churn": """
        #include <stdio.h>
        #include <stdlib.h>
        #include <time.h>
        static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
        int main(int argc, char **argv) {
          long n = atol(argv[1]); unsigned long sum = 0; double begin = now();
          for (long i = 0; i < n; i++) { volatile char *p = malloc(100 + i % 900); p[0] = (char)i; sum += p[0]; free((void *)p); }
          if (argc > 2) {
            char name[4096]; snprintf(name, sizeof name, "%s.part", argv[2]);
            FILE *f = fopen(name, "w"); fprintf(f, "%f\\n", now() - begin); fclose(f); rename(name, argv[2]);
          }
          printf("sum %lu\\n", sum); return 3; }""",
    # N children, W at a time, each with one object of its own size.
    "forks": """
        #include <stdio.h>
        #include <stdlib.h>
        #include <sys/wait.h>
        #include <unistd.h>
        int main(int argc, char **argv) {
          int n = atoi(argv[1]), width = atoi(argv[2]), running = 0, status, bad = 0;
          for (int i = 0; i < n; i++) {
            if (running == width) { wait(&status); bad += status != 0; running--; }
            pid_t pid = fork();
            if (pid < 0) return 1;
            if (pid == 0) { volatile char *p = malloc(100000 + i); p[0] = 1; free((void *)p); _exit(0); }
            running++;
          }
          while (running-- > 0) { wait(&status); bad += status != 0; }
          printf("bad %d\\n", bad); return bad != 0; }""",
    "closes": """
        #include <stdio.h>
        #include <stdlib.h>
        #include <string.h>
        #include <sys/wait.h>
        #include <unistd.h>
        int main(int argc, char **argv) {
          int out = dup(1);
          for (int fd = 0; fd < 4096; fd++) if (fd != out) close(fd);
          for (int i = 0; i < 20000; i++) free(malloc(20000 + i % 7));
          clearenv();
          pid_t pid = fork();
          if (pid == 0) { for (int i = 0; i < 100; i++) free(malloc(33333)); _exit(0); }
          int status; waitpid(pid, &status, 0);
          const char *text = status == 0 ? "fine\\n" : "bad\\n";
          return write(out, text, strlen(text)) != (ssize_t)strlen(text); }""",
    "starved": """
        #include <stdio.h>
        #include <stdlib.h>
        #include <sys/resource.h>
        #include <sys/wait.h>
        #include <unistd.h>
        int main(void) {
          struct rlimit none = {3, 3}; setrlimit(RLIMIT_NOFILE, &none);
          int status, bad = 0;
          for (int i = 0; i < 5; i++) {
            pid_t pid = fork();
            if (pid == 0) { free(malloc(44444)); _exit(0); }
            waitpid(pid, &status, 0); bad += status != 0;
          }
          printf("bad %d\\n", bad); return bad; }""",
    "strict": """
        #include <linux/seccomp.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <sys/prctl.h>
        #include <sys/syscall.h>
        #include <sys/wait.h>
        #include <unistd.h>
        int main(void) {
          pid_t pid = fork();
          if (pid == 0) {
            for (int i = 0; i < 100; i++) free(malloc(5000));
            if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0) != 0) _exit(77);
            for (int i = 0; i < 100000; i++) free(malloc(4000));
            syscall(SYS_exit, 5);
          }
          int status; waitpid(pid, &status, 0);
          if (WIFSIGNALED(status)) { printf("killed by %d\\n", WTERMSIG(status)); return 1; }
          printf("child ended with %d\\n", WEXITSTATUS(status)); return 0; }""",
    "daemon": """
        #include <stdio.h>
        #include <stdlib.h>
        #include <unistd.h>
        int main(int argc, char **argv) {
          if (fork() != 0) return 4;
          setsid();
          for (int i = 0; i < 150; i++) { for (int k = 0; k < 2000; k++) free(malloc(300)); usleep(10000); }
          FILE *f = fopen(argv[1], "w"); fputs("done\\n", f); fclose(f); return 0; }""",
    "jail": """
        #define _GNU_SOURCE
        #include <sched.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <sys/wait.h>
        #include <unistd.h>
        int main(int argc, char **argv) {
          free(malloc(11111));
          if (chroot(argv[1]) != 0 || chdir("/") != 0) return 77;
          free(malloc(22222));
          int status, bad = 0;
          for (int i = 0; i < 3; i++) {
            pid_t pid = fork();
            if (pid == 0) { free(malloc(33333)); _exit(0); }
            waitpid(pid, &status, 0); bad += status != 0;
          }
          printf("bad %d\\n", bad); return bad; }""",
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    directory = tmp_path_factory.mktemp("survival")
    directory.chmod(0o755)

    def build(name: str) -> str:
        program = directory / name
        if not program.exists():
            (directory / f"{name}.c").write_text(PROGRAMS[name])
            command = ["gcc", "-O1", "-fno-builtin", "-w", str(directory / f"{name}.c"), "-o", str(program)]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        return str(program)

    return build


def wait_for(path: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} was not written within {seconds} s: the program hangs or died"
        time.sleep(0.01)


@contextlib.contextmanager
def small_tmpfs(path: Path, size: str) -> Iterator[Path]:
    path.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], capture_output=True).returncode:
        pytest.skip("cannot mount a tmpfs here")
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)


# ---- disk -------------------------------------------------------------------------------------------------------------
@needs_root
def test_a_full_disk_ends_the_recording_only(tmp_path: Path, programs: Callable[[str], str]) -> None:
    with small_tmpfs(tmp_path / "disk", "1m") as disk:
        done = run_memlens("record", *EVERY, "-o", disk / "c.memlens", "--", programs("churn"), "400000")
        assert done.returncode == 3 and done.stdout.startswith("sum ")
        assert "no space left" in done.stderr.lower()


@needs_root
@pytest.mark.parametrize("size", ["64k", "6m"])
def test_a_full_disk_ends_standalone_recording_only(tmp_path: Path, programs: Callable[[str], str], size: str) -> None:
    native = subprocess.run([programs("churn"), "300000"], capture_output=True)
    with small_tmpfs(tmp_path / "disk", size) as disk:
        environment = {
            **os.environ,
            "LD_PRELOAD": str(preload.library()),
            "MEMLENS_OUTPUT": str(disk / "c.memlens"),
            "MEMLENS_SAMPLE_BYTES": "0",
        }
        done = subprocess.run([programs("churn"), "300000"], capture_output=True, env=environment, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (native.returncode, native.stdout, native.stderr)


def test_standalone_recording_has_every_object(tmp_path: Path, programs: Callable[[str], str]) -> None:
    environment = {
        **os.environ,
        "LD_PRELOAD": str(preload.library()),
        "MEMLENS_OUTPUT": str(tmp_path / "c.memlens"),
        "MEMLENS_SAMPLE_BYTES": "0",
    }
    assert subprocess.run([programs("churn"), "100000"], stdout=subprocess.DEVNULL, env=environment).returncode == 3
    capture = memlens.open(tmp_path / "c.memlens")
    rows = capture.table("allocations").to_pylist()
    assert sum(row["operation"] == "malloc" and 100 <= row["bytes"] < 1000 for row in rows) == 100_000
    assert sum(row["operation"] == "free" for row in rows) >= 100_000


# ---- the recorder dies or stops -----------------------------------------------------------------------------------------
def start(tmp_path: Path, *command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*MEMLENS, "record", "-q", *EVERY, "-o", str(tmp_path / "c.memlens"), "--force", "--", *command],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.parametrize("reaped", [True, False])
def test_a_killed_recorder_does_not_hold_the_program_up(
    tmp_path: Path, programs: Callable[[str], str], reaped: bool
) -> None:
    generator = random.Random(7)
    n_pairs = 6_000_000
    native = tmp_path / "native"
    subprocess.run([programs("churn"), str(n_pairs), str(native)], stdout=subprocess.DEVNULL)
    native_s = float(native.read_text())
    for attempt in range(2):
        done = tmp_path / f"done{reaped}{attempt}"
        recorder = start(tmp_path, programs("churn"), str(n_pairs), str(done))
        time.sleep(0.5 + generator.random() * 0.7)
        recorder.kill()
        killed = time.monotonic()
        if reaped:
            recorder.wait()
        wait_for(done, 30)
        # Once it noticed (20 ms), nothing is recorded: what is left runs nearly as fast as without us. The bound allows
        # for a busy machine, and is below the 5 s that it would wait for a recorder that lives.
        assert time.monotonic() - killed < 3 * native_s + 4.0
        recorder.communicate()


def test_a_stopped_recorder_holds_the_program_up_for_so_long_only(
    tmp_path: Path, programs: Callable[[str], str]
) -> None:
    done = tmp_path / "done"
    recorder = start(tmp_path, programs("churn"), "400000", str(done))
    time.sleep(0.45)
    recorder.send_signal(signal.SIGSTOP)
    time.sleep(3)
    recorder.send_signal(signal.SIGCONT)
    output, _ = recorder.communicate(timeout=60)
    assert recorder.returncode == 3 and output.startswith(b"sum ")
    capture = memlens.open(tmp_path / "c.memlens")
    # It waited: nothing was lost.
    assert capture.meta["channel"]["dropped"] == 0
    assert sum(100 <= row["bytes"] < 1000 for row in births(capture)) >= 400_000


@pytest.mark.slow
def test_what_is_dropped_is_counted(tmp_path: Path, programs: Callable[[str], str]) -> None:
    n_pairs = 4_000_000
    done = tmp_path / "done"
    recorder = start(tmp_path, programs("churn"), str(n_pairs), str(done))
    time.sleep(0.8)
    recorder.send_signal(signal.SIGSTOP)
    time.sleep(7)  # longer than a thread waits
    recorder.send_signal(signal.SIGCONT)
    recorder.communicate(timeout=120)
    capture = memlens.open(tmp_path / "c.memlens")
    channel = capture.meta["channel"]
    assert channel["dropped"] > 0
    counted = capture.table("allocations").num_rows + channel["dropped"]
    assert 2 * n_pairs <= counted <= 2 * n_pairs + 100
    assert channel["records"] == sum(row["records"] for row in capture.table("runtime_status").to_pylist())
    assert any("found no room" in note for note in capture.meta["quality"]["notes"])


# ---- limits -----------------------------------------------------------------------------------------------------------------
def test_a_thousand_threads(record: Record, tmp_path: Path) -> None:
    capture = record(workload_path("case_alloc_threads"), "--threads", "1000", "--objects", "100", options=EVERY)
    threads = {row["thread"] for row in births(capture)}
    assert len(threads) >= 1000
    assert sum(1 <= row["bytes"] <= 512 for row in births(capture)) >= 100_000
    assert capture.meta["channel"]["dropped"] == 0


LIMITS = {
    # The loader itself needs one descriptor to open the C library: with three no dynamic program starts.
    "one descriptor": ("ulimit -n 4; exec {churn} 20000", True),
    "one descriptor, little address space": ("ulimit -n 4; ulimit -v 60000; exec {churn} 20000", True),
    "little address space": ("ulimit -v 60000; exec {churn} 20000", True),
    "least address space": ("ulimit -v 12000; exec {churn} 20000", None),
    "no processes": ("ulimit -u 1; exec {churn} 20000", True),
    "no file size": ("ulimit -f 0; exec {churn} 20000", True),
    "no locked memory": ("ulimit -l 0; exec {churn} 20000", True),
    "small stack": ("ulimit -s 128; exec {churn} 20000", True),
}


@pytest.mark.parametrize("name", LIMITS)
def test_limits(tmp_path: Path, programs: Callable[[str], str], name: str) -> None:
    script, recorded = LIMITS[name]
    command = ["sh", "-c", script.format(churn=programs("churn"))]
    native = subprocess.run(command, capture_output=True, text=True)
    done = run_memlens("record", "-q", *EVERY, "-o", tmp_path / "c.memlens", "--", *command)
    assert (done.returncode, done.stdout, done.stderr) == (native.returncode, native.stdout, native.stderr)
    if recorded:
        rows = [row for row in births(memlens.open(tmp_path / "c.memlens")) if 100 <= row["bytes"] < 1000]
        assert len(rows) >= 20_000


def test_children_without_a_descriptor_are_recorded(record: Record, programs: Callable[[str], str]) -> None:
    """With limited address space a child maps its slot itself; without a descriptor a helper process does it."""
    for limit in ("ulimit -v unlimited", "ulimit -v 60000"):
        capture = record("sh", "-c", f"{limit}; exec {programs('starved')}", options=EVERY)
        assert [row["bytes"] for row in births(capture)].count(44444) == 5


NAMESPACES = {
    "pid": (["unshare", "-p", "-f"], True),
    # Where /proc is another one, or the recorder is out of reach, the program it starts finds no channel.
    "pid and proc": (["unshare", "-p", "-f", "--mount-proc"], False),
    "mount": (["unshare", "-m"], True),
    "net": (["unshare", "-n"], True),
    "user": (["unshare", "-U", "-r"], False),
    "uts and ipc": (["unshare", "-u", "-i"], True),
    "chroot": (["chroot", "/"], True),
    "setns": (["sh", "-c", 'exec nsenter -t $$ -m -u -n "$@"', "sh"], True),
}


@needs_root
@pytest.mark.parametrize("name", NAMESPACES)
def test_namespaces(tmp_path: Path, programs: Callable[[str], str], name: str) -> None:
    words, recorded = NAMESPACES[name]
    command = [*words, programs("churn"), "20000"]
    native = subprocess.run(command, capture_output=True, text=True)
    if native.returncode != 3:
        pytest.skip(f"not possible here: {native.stderr.strip()}")
    done = run_memlens("record", "-q", *EVERY, "-o", tmp_path / "c.memlens", "--", *command)
    assert (done.returncode, done.stdout, done.stderr) == (native.returncode, native.stdout, native.stderr)
    rows = [row for row in births(memlens.open(tmp_path / "c.memlens")) if 100 <= row["bytes"] < 1000]
    assert recorded is None or (len(rows) >= 20_000) == recorded


@needs_root
@pytest.mark.parametrize("collectors", ["alloc", "alloc,faults"])
def test_short_lives_in_another_pid_namespace(record: Record, programs: Callable[[str], str], collectors: str) -> None:
    """They may have ended before the recorder could ask who they are; nothing of theirs is lost."""
    capture = record(
        "unshare", "-p", "-f", programs("forks"), "200", "5",
        options=("--sample-bytes", "0", "--collectors", collectors),
    )  # fmt: skip
    assert capture.meta["channel"]["refused"] == 0
    rows = [row for row in births(capture) if 100_000 <= row["bytes"] < 100_200]
    assert {row["bytes"] for row in rows} == set(range(100_000, 100_200))
    assert len({row["process"] for row in rows}) == 200


@needs_root
def test_a_program_that_locks_itself_in(tmp_path: Path, programs: Callable[[str], str]) -> None:
    jail = tmp_path / "jail"
    jail.mkdir()
    done = run_memlens("record", "-q", *EVERY, "-o", tmp_path / "c.memlens", "--", programs("jail"), jail)
    assert (done.returncode, done.stdout) == (0, "bad 0\n")
    sizes = [row["bytes"] for row in births(memlens.open(tmp_path / "c.memlens"))]
    assert (sizes.count(11111), sizes.count(22222), sizes.count(33333)) == (1, 1, 3)


# ---- many processes -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("count", "width"),
    [
        (300, 1),
        (400, 100),
        pytest.param(10_000, 1, marks=pytest.mark.slow),
        pytest.param(10_000, 200, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("mode", ["every", "sampled"])
def test_every_child_that_allocates_is_recorded(
    tmp_path: Path, programs: Callable[[str], str], count: int, width: int, mode: str
) -> None:
    options = EVERY if mode == "every" else ()
    command = [programs("forks"), str(count), str(width)]
    done = run_memlens("record", "-q", *options, "-o", tmp_path / "c.memlens", "--", *command, timeout=400)
    assert (done.returncode, done.stdout) == (0, "bad 0\n")
    capture = memlens.open(tmp_path / "c.memlens")
    refused = capture.meta["channel"]["refused"]
    rows = [row for row in births(capture) if 100_000 <= row["bytes"] < 100_000 + count]
    assert len({row["bytes"] for row in rows}) == len(rows) == count - refused
    # About as many at a time as there are slots (every object: 128), or a machine too busy to make slots in time: counted.
    assert refused == 0 or (width >= 100 and (mode == "every" or refused <= count // 10))
    assert len({row["process"] for row in rows}) == len(rows)
    assert len([row for row in releases(capture) if row["process"] != 1]) >= len(rows)


def test_children_are_found_without_perf(record: Record, programs: Callable[[str], str]) -> None:
    capture = record(programs("forks"), "100", "10", options=("--sample-bytes", "0", "--collectors", "alloc"))
    rows = [row for row in births(capture) if 100_000 <= row["bytes"] < 100_100]
    assert len({row["process"] for row in rows}) == len({row["pid"] for row in rows}) == 100


# ---- programs that want to be left alone ----------------------------------------------------------------------------------------
def test_a_program_that_closes_everything_and_clears_its_environment(
    record: Record, programs: Callable[[str], str]
) -> None:
    capture = record(programs("closes"), options=EVERY)
    sizes = [row["bytes"] for row in births(capture)]
    assert sum(20000 <= size < 20007 for size in sizes) == 20_000
    assert sizes.count(33333) == 100  # the child too: it needs neither descriptor nor variable


def test_an_empty_environment_means_no_library(tmp_path: Path, programs: Callable[[str], str]) -> None:
    done = run_memlens(
        "record", "-q", *EVERY, "-o", tmp_path / "c.memlens", "--", "env", "-i", programs("churn"), "1000"
    )
    assert done.returncode == 3
    assert not [row for row in births(memlens.open(tmp_path / "c.memlens")) if row["bytes"] == 100 + 1000 % 900]


def test_a_strict_sandbox_is_survived(tmp_path: Path, programs: Callable[[str], str]) -> None:
    native = subprocess.run([programs("strict")], capture_output=True, text=True)
    if "killed" in native.stdout or "77" in native.stdout:
        pytest.skip(f"not possible here: {native.stdout}")
    done = run_memlens("record", "-q", *EVERY, "-o", tmp_path / "c.memlens", "--", programs("strict"))
    assert (done.returncode, done.stdout, done.stderr) == (native.returncode, native.stdout, native.stderr)
    sizes = [row["bytes"] for row in births(memlens.open(tmp_path / "c.memlens"))]
    assert sizes.count(5000) == 100 and sizes.count(4000) == 0


def test_a_program_with_a_filter_of_libseccomp(tmp_path: Path) -> None:
    if not shutil.which("file"):
        pytest.skip("file is not installed: sudo apt-get install file")
    command = ["file", "/bin/sh", "/etc/passwd"]
    native = subprocess.run(command, capture_output=True, text=True)
    done = run_memlens("record", "-q", *EVERY, "-o", tmp_path / "c.memlens", "--", *command)
    assert (done.returncode, done.stdout, done.stderr) == (native.returncode, native.stdout, native.stderr)


@needs_root
def test_a_setuid_program_is_left_alone(tmp_path: Path) -> None:
    if not shutil.which("setpriv"):
        pytest.skip("setpriv is not installed: sudo apt-get install util-linux")
    directory = Path("/var/tmp") / f"memlens-setuid-{os.getpid()}"
    directory.mkdir(mode=0o755)
    try:
        program = directory / "id"
        shutil.copy("/usr/bin/id", program)
        program.chmod(0o4755)
        command = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", str(program)]
        native = subprocess.run(command, capture_output=True, text=True)
        done = run_memlens("record", "-q", "-o", tmp_path / "c.memlens", "--", *command)
        assert done.returncode == native.returncode
        assert done.stdout == native.stdout
    finally:
        shutil.rmtree(directory)


def test_a_daemon_outlives_the_recorder(tmp_path: Path, programs: Callable[[str], str]) -> None:
    done = tmp_path / "done"
    begin = time.monotonic()
    run = run_memlens("record", "-q", *EVERY, "-o", tmp_path / "c.memlens", "--", programs("daemon"), done)
    assert run.returncode == 4
    assert time.monotonic() - begin < 25 and memlens.open(tmp_path / "c.memlens").complete
    wait_for(done, 30)


def test_memory_that_the_program_overwrites_is_given_up(tmp_path: Path) -> None:
    """A program that scribbles over the rings harms its own records only; the recorder says so."""
    source = """
        #include <stdio.h>
        #include <stdlib.h>
        #include <string.h>
        int main(void) {
          free(malloc(100));
          FILE *maps = fopen("/proc/self/maps", "r"); char line[512]; unsigned long begin = 0, end = 0;
          while (fgets(line, sizeof line, maps)) if (strstr(line, "memfd:memlens") && !begin) sscanf(line, "%lx-%lx", &begin, &end);
          fclose(maps);
          if (!begin) return 77;
          for (unsigned long at = begin + 8192; at < begin + 8192 + 65536; at += 4) *(volatile unsigned *)at = 0xdeadbeef;
          for (int i = 0; i < 200000; i++) free(malloc(50));
          puts("still here"); return 0; }"""
    (tmp_path / "scribble.c").write_text(source)
    subprocess.run(["gcc", "-w", "-O1", "-fno-builtin", "scribble.c", "-o", "scribble"], cwd=tmp_path, check=True)
    done = run_memlens("record", "-q", *EVERY, "-o", tmp_path / "c.memlens", "--", tmp_path / "scribble")
    assert (done.returncode, done.stdout) == (0, "still here\n")
    counts: dict[str, Any] = memlens.open(tmp_path / "c.memlens").meta["channel"]
    assert counts["damaged"] == 1
