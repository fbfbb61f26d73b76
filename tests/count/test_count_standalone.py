"""Counting without a recorder: what a counted program leaves in MEMLENS_OUTPUT is what a recorder would have written."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, needs_root, run_memlens
from count_tools import compile_counted

import memlens

MIB = 1 << 20
HEADER = f'#include "{ROOT / "native" / "include" / "memlens.h"}"\n'
FORKS = (
    HEADER
    + r"""
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile long numbers[1000];
__attribute__((noinline)) static void touch(int n) { for (int i = 0; i < n; i++) numbers[i] = i; }
int main(void) {
  memlens_begin("parent"); touch(100); memlens_end("parent");
  if (fork() == 0) { memlens_begin("child"); touch(1000); memlens_end("child"); exit(0); }
  int status; wait(&status);
  memlens_begin("after"); touch(10); memlens_end("after");
  return 0;
}
"""
)
ENDLESS = (
    HEADER
    + r"""
#include <stdio.h>
static volatile long numbers[1000];
int main(void) {
  for (long turn = 0;; turn++) {
    memlens_begin("turn"); for (int i = 0; i < 1000; i++) numbers[i] = i; memlens_end("turn");
    if (turn == 1000) { puts("ready"); fflush(stdout); }
  }
}
"""
)
THREADS = (
    HEADER
    + r"""
#include <pthread.h>
#include <stdio.h>
static volatile long numbers[64][1000];
static void *work(void *at) { memlens_begin("work"); volatile long *mine = at; for (int i = 0; i < 1000; i++) mine[i] = i; memlens_end("work"); return at; }
int main(void) {
  pthread_t threads[64];
  for (int i = 0; i < 64; i++) if (pthread_create(&threads[i], 0, work, (void *)numbers[i])) return 2;
  for (int i = 0; i < 64; i++) pthread_join(threads[i], 0);
  puts("done");
  return 0;
}
"""
)


def build(tmp_path: Path, text: str, *flags: str) -> Path:
    source = tmp_path / "program.c"
    source.write_text(text)
    return compile_counted(source, tmp_path / "program", *flags)


def run_alone(program: Path, output: Path, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "MEMLENS_OUTPUT": str(output), **options.pop("variables", {})}
    return subprocess.run(
        [program, *arguments], env=environment, capture_output=True, text=True, timeout=120, **options
    )


def counts_of(capture: memlens.Capture) -> dict[tuple[Any, ...], int]:
    """Executions by region, line, column and kind, all threads together."""
    found: dict[tuple[Any, ...], int] = {}
    for row in capture.table("site_counts").to_pylist():
        key = (row["region"], row["function"], row["line"], row["column"], row["kind"])
        found[key] = found.get(key, 0) + row["executions"]
    return found


@pytest.mark.parametrize("name", ["uneven_threads", "region_counts"])
def test_it_is_what_a_recorder_would_have_written(tmp_path: Path, name: str) -> None:
    program = compile_counted(ROOT / "workloads" / f"{name}.c", tmp_path / name, "--memlens-mix")
    done = run_alone(program, tmp_path / "alone.memlens")
    assert done.returncode == 0 and not done.stderr
    assert run_memlens("record", "-q", "-o", tmp_path / "recorded.memlens", "--", program).returncode == 0
    alone, recorded = (memlens.open(tmp_path / f"{kind}.memlens") for kind in ("alone", "recorded"))
    assert counts_of(alone) == counts_of(recorded) and counts_of(alone)
    by_region = [
        {(row["region"], row["exclusive"]): (row["executions"], row["bytes"], row["threads"]) for row in rows}
        for rows in (
            memlens.analyses.run("bandwidth", one).tables["by_region"].to_pylist()[1:] for one in (alone, recorded)
        )
    ]
    assert by_region[0] == by_region[1]
    (process,) = alone.table("processes").to_pylist()
    assert process["end_ns"] > process["begin_ns"] > 0
    shown = run_memlens("report", tmp_path / "alone.memlens")
    assert shown.returncode == 0 and "written by the program itself" in shown.stdout and "Bandwidth" in shown.stdout


def test_nothing_is_written_without_a_variable_or_where_it_may_not(tmp_path: Path) -> None:
    program = build(tmp_path, FORKS)
    before = set(tmp_path.iterdir())
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MEMLENS_")}
    for variables in ({}, {"MEMLENS_OUTPUT": "here"}, {"MEMLENS_OUTPUT": ""}, {"MEMLENS_OUTPUT": "/proc/no/such"}):
        assert subprocess.run([program], env={**plain, **variables}, cwd=tmp_path).returncode == 0
        assert set(tmp_path.iterdir()) == before
    off = {"MEMLENS_OUTPUT": str(tmp_path / "off"), "MEMLENS_COUNTING": "0"}
    assert subprocess.run([program], env={**plain, **off}).returncode == 0
    assert set(tmp_path.iterdir()) == before
    # A recorder that is gone comes before: no files where nobody expects them.
    gone = {"MEMLENS_OUTPUT": str(tmp_path / "gone"), "MEMLENS_COUNT": "1:2:/proc/1/fd/77"}
    assert subprocess.run([program], env={**plain, **gone}).returncode == 0
    assert set(tmp_path.iterdir()) == before


def test_a_forked_child_counts_for_itself(tmp_path: Path) -> None:
    assert run_alone(build(tmp_path, FORKS), tmp_path / "out").returncode == 0
    capture = memlens.open(tmp_path / "out")
    stored: dict[tuple[int, str], int] = {}
    for row in capture.table("site_counts").to_pylist():
        if row["function"] == "touch" and row["kind"] == "store":
            key = (row["process"], row["region"])
            stored[key] = stored.get(key, 0) + row["executions"]
    parent, child = sorted({process for process, _ in stored}, key=lambda process: (process, "child") in stored)
    assert stored == {(parent, "parent"): 100, (parent, "after"): 10, (child, "child"): 1000}
    assert len(list((tmp_path / "out").glob("counts-*.mla"))) == 1


def test_two_runs_into_one_directory_are_two_processes(tmp_path: Path) -> None:
    program = build(tmp_path, FORKS)
    for _ in range(2):
        assert run_alone(program, tmp_path / "out").returncode == 0
    capture = memlens.open(tmp_path / "out")
    assert capture.table("processes").num_rows == 4
    totals = counts_of(capture)
    assert sum(n for key, n in totals.items() if key[0] == "child" and key[4] == "store") == 2 * 1000


def test_a_killed_program_has_left_what_it_counted(tmp_path: Path) -> None:
    program = build(tmp_path, ENDLESS)
    environment = {**os.environ, "MEMLENS_OUTPUT": str(tmp_path / "out")}
    running = subprocess.Popen([program], env=environment, stdout=subprocess.PIPE)
    assert running.stdout is not None and running.stdout.readline() == b"ready\n"
    live = memlens.open(tmp_path / "out")  # it still runs
    assert sum(n for key, n in counts_of(live).items() if key[0] == "turn") >= 1_000_000
    time.sleep(0.2)
    running.send_signal(signal.SIGKILL)
    running.wait()
    capture = memlens.open(tmp_path / "out")
    rows = memlens.analyses.run("bandwidth", capture).tables["by_region"].to_pylist()
    row = next(row for row in rows if row["region"] == "turn" and not row["exclusive"])
    assert row["executions"] > 1000 and row["bytes_per_second"] > 0
    # 8000 bytes each; the last one may have been cut short anywhere.
    assert row["executions"] * 8000 <= row["bytes"] <= (row["executions"] + 1) * 8000


# ---- no room ----------------------------------------------------------------------------------------------------------------
@contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    path.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], capture_output=True).returncode:
        pytest.skip("cannot mount a tmpfs here")
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)


@needs_root
@pytest.mark.parametrize("size", ["64k", "1m", "2m", "3m", "5m"])
def test_a_full_disk_is_no_signal_and_what_did_not_fit_is_told(tmp_path: Path, size: str) -> None:
    program = build(tmp_path, THREADS)
    with small_disk(tmp_path / "disk", size) as disk:
        done = run_alone(program, disk / "out")
        assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
        if not list(disk.glob("out/counts-*.mla")):
            assert size in ("64k", "1m")  # not even the directory had room
            return
        capture = memlens.open(disk / "out")
        assert max(row["refused"] for row in capture.table("count_status").to_pylist() or [{"refused": 1}]) > 0
        if capture.table("count_status").num_rows:
            assert not memlens.analyses.run("bandwidth", capture).quality.exact
            assert any("found no room" in note for note in capture.quality.notes)


def test_a_limit_of_file_sizes_is_no_signal(tmp_path: Path) -> None:
    program = build(tmp_path, THREADS)
    for limit in (0, 4096, 2 * MIB, 65 * MIB, 70 * MIB):

        def limited(limit: int = limit) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        done = run_alone(program, tmp_path / f"out{limit}", preexec_fn=limited)
        assert (done.returncode, done.stdout) == (0, "done\n")


def test_threads_beyond_the_limit_are_added_up(tmp_path: Path) -> None:
    program = build(tmp_path, THREADS)
    assert run_alone(program, tmp_path / "out", variables={"MEMLENS_THREADS": "4"}).returncode == 0
    capture = memlens.open(tmp_path / "out")
    assert sum(n for key, n in counts_of(capture).items() if key[0] == "work" and key[4] == "store") == 64_000


def test_too_few_counters_are_told(tmp_path: Path) -> None:
    program = build(tmp_path, THREADS)
    assert run_alone(program, tmp_path / "out", variables={"MEMLENS_COUNTERS": "1"}).returncode == 0
    capture = memlens.open(tmp_path / "out")
    (status,) = capture.table("count_status").to_pylist()
    assert status["functions_refused"] > 0
    assert any("MEMLENS_COUNTERS" in note for note in capture.quality.notes)


def test_a_damaged_arena_is_an_error_that_names_it(tmp_path: Path) -> None:
    assert run_alone(build(tmp_path, FORKS), tmp_path / "out").returncode == 0
    (arena,) = (tmp_path / "out").glob("counts-*.mla")
    arena.write_bytes(b"nothing")
    shown = run_memlens("report", tmp_path / "out")
    assert shown.returncode == 65 and arena.name in shown.stderr


# ---- beside the library that records allocations, and static ------------------------------------------------------------------
def test_allocations_and_counters_of_one_process_are_one_process(tmp_path: Path) -> None:
    program = build(tmp_path, FORKS)
    preload = run_memlens("config", "--preload").stdout.strip()
    assert run_alone(program, tmp_path / "out", variables={"LD_PRELOAD": preload}).returncode == 0
    capture = memlens.open(tmp_path / "out")
    assert list((tmp_path / "out").glob("records-*.mlc")) and list((tmp_path / "out").glob("counts-*.mla"))
    pids = {row["pid"]: row["process"] for row in capture.table("processes").to_pylist()}
    images = {row["pid"]: row["process"] for row in capture.table("count_status").to_pylist()}
    assert all(pids[pid] == process for pid, process in images.items() if pid in pids) and set(images) & set(pids)


def test_a_static_program_too(tmp_path: Path) -> None:
    program = build(tmp_path, THREADS, "-static")
    assert run_alone(program, tmp_path / "out").returncode == 0
    totals = counts_of(memlens.open(tmp_path / "out"))
    assert sum(n for key, n in totals.items() if key[0] == "work" and key[4] == "store") == 64_000


@pytest.mark.parametrize("how", ["trace", "count,trace"])
def test_a_traced_program_without_a_recorder_says_that_it_recorded_nothing(tmp_path: Path, how: str) -> None:
    source = tmp_path / "traced.c"
    source.write_text("int a[64]; int main(void) { for (int i = 0; i < 64; i++) a[i] += i; return 0; }")
    program = compile_counted(source, tmp_path / "traced", f"--memlens={how}")
    subprocess.run([program], env={**os.environ, "MEMLENS_OUTPUT": str(tmp_path / "out")}, check=True)
    capture = memlens.open(tmp_path / "out")
    assert any("built for tracing and recorded no accesses" in note for note in capture.quality.notes)
    assert ("count" in capture.meta["collectors"]) == (how != "trace")


def test_a_recording_without_a_recorder_lasts_as_long_as_the_program(tmp_path: Path) -> None:
    """Whenever it is read: the arena is read again with a clock that is an hour ahead, as after some time or a restart."""
    source = tmp_path / "short.c"
    source.write_text("int a[64]; int main(void) { for (int i = 0; i < 64; i++) a[i] += i; return 0; }")
    program = compile_counted(source, tmp_path / "short")
    begin = time.monotonic_ns()
    subprocess.run([program], env={**os.environ, "MEMLENS_OUTPUT": str(tmp_path / "out")}, check=True)
    elapsed = time.monotonic_ns() - begin
    code = (
        "import sys, time; ahead = time.monotonic_ns() + 3600 * 10**9; time.monotonic_ns = lambda: ahead; import memlens; "
        "c = memlens.open(sys.argv[1]); print(c.end_ns - c.begin_ns)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "out"], capture_output=True, text=True, check=True)
    assert 0 < int(done.stdout) <= elapsed
