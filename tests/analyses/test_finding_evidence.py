"""Findings need enough evidence and a share of the run that matters, and their remedies fit the program."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from builders import CaptureBuilder
from conftest import needs_faults
from count_tools import compile_counted
from emulate_tools import needs_emulation

import memlens
from memlens.analyses.findings import _program
from memlens.analyses.findings._activity import busy_threads
from memlens.results import Finding

Record = Callable[..., memlens.Capture]
SECOND = 1_000_000_000
MIB = 1 << 20


def found(capture: memlens.Capture, name: str) -> list[Finding]:
    return [finding for finding in memlens.analyses.report(capture).findings if finding.name == name]


def storm(*, library: str | None = None, user_s: float = 0.02, end_s: float = 0.3) -> CaptureBuilder:
    """40 huge pages by code at 0x10000, 30,000 small ones by code at 0x20000, in 0.12 s of system time."""
    builder = CaptureBuilder().event(1, "fork").event(2, "exec", name="p").mapping(3, 0x100000, 0x100000)
    for page, path in ((0x10, "/opt/large"), (0x20, "/opt/small")):
        builder.mapping(3, page, 1, path=path, inode=page, protection=5)
    if library:
        builder.mapping(4, 0x700000, 16, path=library, inode=7, protection=5)
    for number in range(40):
        builder.fault(1000 + number, 0x100000 + 512 * number, after=21, ip=0x10000)
    for number in range(30_000):
        builder.fault(10_000 + number, 0x180000 + number, ip=0x20000)
    builder.meta["rusage"] = {"user_s": user_s, "system_s": 0.12, "minor_faults": 30_040, "major_faults": 0}
    for tick in range(6):
        builder.reading(tick * int(end_s * SECOND) // 5, "rss_bytes", 200 * MIB)
    builder.meta["end_ns"] = int(end_s * SECOND)
    return builder.event(int(end_s * SECOND), "exit")


def test_fault_storm_ranks_by_faults_and_not_by_bytes(tmp_path: Path) -> None:
    """80 MiB in 40 faults are fewer faults than 117 MiB in 30,000, whichever has more bytes."""
    told = found(storm().open(tmp_path / "a.memlens"), "fault_storm")
    assert len(told) == 1 and told[0].evidence["where_faults"] == 30_000
    assert "small" in told[0].evidence["where"]


def test_a_program_that_waits_has_no_fault_storm(tmp_path: Path) -> None:
    assert not found(storm(end_s=20.0).open(tmp_path / "waits.memlens"), "fault_storm")
    assert not found(storm(user_s=5.0).open(tmp_path / "computes.memlens"), "fault_storm")


@pytest.mark.parametrize(
    ("library", "runtime", "allocator", "word"),
    [
        ("/usr/lib/jvm/lib/server/libjvm.so", "java", None, "-Xm"),
        ("/usr/bin/node", "node", None, "V8"),
        ("/lib/x86_64-linux-gnu/libc.so.6", None, "glibc", "GLIBC_TUNABLES"),
        ("/usr/lib/libjemalloc.so.2", None, "jemalloc", "MALLOC_CONF"),
        ("/lib/ld-musl-x86_64.so.1", None, "musl", "allocator"),
    ],
)
def test_remedies_fit_the_runtime_and_the_allocator(
    tmp_path: Path, library: str, runtime: str | None, allocator: str | None, word: str
) -> None:
    capture = storm(library=library).open(tmp_path / "c.memlens")
    assert _program.runtime_of(capture, 1) == runtime
    assert _program.allocator_of(capture, 1) == allocator
    remedies = _program.keep_pages_remedy(capture, 1) + _program.huge_pages_remedy(capture, 1)
    assert word in remedies and ("GLIBC" in remedies) == (allocator == "glibc")


def test_shared_pages_of_several_processes_make_no_peak(tmp_path: Path) -> None:
    """Eight processes map one segment of 200 MiB: their RSS adds up to 1.6 GiB, their PSS stays 210 MiB."""
    builder = CaptureBuilder().event(1, "fork").event(2, "exec", name="server")
    for tick in range(40):
        workers = 8 if 10 <= tick < 18 else 0
        builder.reading(tick * SECOND // 10, "rss_bytes", 210 * MIB)
        builder.reading(tick * SECOND // 10, "pss_bytes", 210 * MIB // (workers + 1))
        for worker in range(2, 2 + workers):
            if tick == 10:
                builder.event(tick * SECOND // 10, "fork", process=worker, parent=1, thread=100 + worker)
            builder.reading(tick * SECOND // 10 + 1, "rss_bytes", 210 * MIB, process=worker)
            builder.reading(tick * SECOND // 10 + 1, "pss_bytes", 210 * MIB // (workers + 1), process=worker)
            if tick == 17:
                builder.event(tick * SECOND // 10 + 2, "exit", process=worker, thread=100 + worker)
    assert not found(builder.open(tmp_path / "shared.memlens"), "capacity_peak")


def churn(recorded: int, *, allocations: int, end_s: float = 0.2) -> CaptureBuilder:
    builder = CaptureBuilder().event(1, "fork").event(2, "exec", name="p").stack(1, [0x1234])
    builder.add("runtime_status", 1, time_ns=5, sample_bytes=512 << 10, large_bytes=64 << 10)
    weight = allocations * 100 // recorded
    for number in range(recorded):
        at = 1000 + number * 1000
        builder.allocation(at, "malloc", 0x10000, 100, weight_bytes=weight, flags=1)
        builder.allocation(at + 10, "free", 0x10000)
    builder.meta["rusage"] = {"user_s": 0.1, "system_s": 0.0, "minor_faults": 0, "major_faults": 0}
    builder.meta["end_ns"] = int(end_s * SECOND)
    return builder.event(int(end_s * SECOND), "exit")


def test_churn_needs_recorded_objects_and_a_share_of_the_run(tmp_path: Path) -> None:
    """A million short-lived objects in 0.2 s are churn when 100 of them were recorded, not when six were, nor in a run of 10 s."""
    assert found(churn(100, allocations=1_000_000).open(tmp_path / "many.memlens"), "allocation_churn")
    assert not found(churn(6, allocations=1_000_000).open(tmp_path / "six.memlens"), "allocation_churn")
    assert not found(churn(100, allocations=1_000_000, end_s=10.0).open(tmp_path / "waits.memlens"), "allocation_churn")


def test_many_equal_threads_are_all_busy(tmp_path: Path) -> None:
    """Each of 32 threads has 3 % of the CPU time of a run of 0.1 s."""
    builder = CaptureBuilder().event(1, "fork").event(2, "exec", name="p")
    for thread in range(100, 132):
        builder.reading(SECOND // 10, "thread_cpu_ns", 60_000_000 if thread < 131 else 1_000_000, thread=thread)
    assert len(busy_threads(builder.open(tmp_path / "c.memlens"), 1)) == 31


SERIAL = r"""
#include <pthread.h>
#include <stdlib.h>
enum { N = 4 << 20 };
static double *a;
static volatile double sums[4];
static void *work(void *part) {
  long p = (long)part; double s = 0;
  for (int k = 0; k < ROUNDS; k++) for (long i = p * N / 4; i < (p + 1) * N / 4; i++) s += a[i] * k;
  sums[p] = s;
  return 0;
}
int main(void) {
  pthread_t t[4];
  a = malloc(N * sizeof *a);
  for (long i = 0; i < N; i++) a[i] = i;
  for (long p = 0; p < 4; p++) pthread_create(&t[p], 0, work, (void *)p);
  for (int p = 0; p < 4; p++) pthread_join(t[p], 0);
  return sums[1] == 0.5;
}
"""


@needs_faults
def test_serial_first_touch_is_found_in_a_short_run(record: Record, tmp_path: Path) -> None:
    """32 MiB placed by one thread and used by four, each of which runs for about 0.15 s."""
    (tmp_path / "serial.c").write_text(SERIAL)
    subprocess.run(
        ["gcc", "-O2", "-g", "-pthread", "-DROUNDS=150", "serial.c", "-o", "serial"], cwd=tmp_path, check=True
    )
    for _ in range(3):  # beside other work the recorder may not get a CPU in time to read the threads' times
        told = found(record(tmp_path / "serial"), "serial_first_touch")
        if told:
            break
    assert len(told) == 1 and "main" in told[0].evidence["where"]


@needs_faults
def test_large_blocks_of_malloc_are_no_finding(record: Record, tmp_path: Path) -> None:
    """256 MiB of malloc that are wholly used by one thread, for a while: nothing to say."""
    text = "#include <stdlib.h>\nint main(void){long n=32<<20;volatile double*a=malloc(n*8);for(int k=0;k<4;k++)for(long i=0;i<n;i++)a[i]=i;return 0;}"
    (tmp_path / "plain.c").write_text(text)
    subprocess.run(["gcc", "-O1", "plain.c", "-o", "plain"], cwd=tmp_path, check=True)
    report = memlens.analyses.report(record(tmp_path / "plain"))
    assert [finding.name for finding in report.findings if finding.name != "fault_storm"] == []


TRANSPOSE = r"""
#include <stdio.h>
static double m[512][512], t[512][512 + PAD];
int main(void) {
  for (int i = 0; i < 512; i++) for (int j = 0; j < 512; j++) m[i][j] = i * j;
  for (int r = 0; r < 8; r++) for (int i = 0; i < 512; i++) for (int j = 0; j < 512; j++) t[j][i] = m[i][j] + r;
  printf("%g\n", t[5][7]);
}
"""


@needs_emulation
@pytest.mark.parametrize("how", ["emulated", "traced"])
@pytest.mark.parametrize("pad", [0, 8])
def test_steps_of_powers_of_two_are_found_with_default_windows(
    record: Record, tmp_path: Path, how: str, pad: int
) -> None:
    """Windows of 1,000 accesses are no longer than a column of 512 rows; the padded twin uses all sets."""
    (tmp_path / "t.c").write_text(TRANSPOSE)
    if how == "traced":
        program = compile_counted(tmp_path / "t.c", tmp_path / "t", "--memlens=trace", f"-DPAD={pad}")
        capture = record(program)
    else:
        subprocess.run(["gcc", "-O2", "-g", f"-DPAD={pad}", "t.c", "-o", "t"], cwd=tmp_path, check=True)
        capture = record(tmp_path / "t", options=("--emulate",))
    told = found(capture, "set_conflicts")
    assert [finding.evidence["object"] for finding in told] == ([] if pad else ["t"])
