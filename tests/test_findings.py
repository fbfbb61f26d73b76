"""Each finding fires on its bad workload and stays silent on the good twin."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from builders import CaptureBuilder
from conftest import MEMLENS, ROOT, needs_faults, needs_root, run_memlens, workload_path
from count_tools import compile_counted

import memlens
from memlens import registry
from memlens.capture import machine
from memlens.cli.query import run_query

Record = Callable[..., memlens.Capture]
SECOND = 1_000_000_000


def findings_of(capture: memlens.Capture) -> dict[str, str]:
    return {finding.name: finding.severity for finding in memlens.analyses.report(capture).findings}


CASES = [
    ("serial_first_touch", ["first_touch", "--mode", "serial", "--mib", "64", "--iterations", "400"],
     ["first_touch", "--mode", "parallel", "--mib", "64", "--iterations", "400"]),
    ("fault_storm", ["fault_storm", "--mib", "8", "--iterations", "60"], ["fault_storm", "--mib", "8", "--iterations", "60", "--reuse"]),
    ("capacity_peak", ["peak_capacity"], ["peak_capacity", "--streaming"]),
    ("unused_allocation", ["object_use"], ["object_use", "--mode", "dense"]),
    ("unused_allocation", ["object_use", "--heap"], ["object_use", "--mode", "dense", "--heap"]),
    ("unaligned_buffer", ["object_use", "--mode", "dense", "--heap"], ["object_use", "--mode", "dense", "--heap", "--aligned"]),
    ("allocation_churn", ["churn"], ["churn", "--reuse"]),
    ("allocation_churn", ["churn", "--bytes", "1000000", "--turns", "20000"], ["churn", "--bytes", "1000000", "--turns", "20000", "--reuse"]),
    ("object_first_touch", ["first_touch", "--mode", "serial", "--mib", "64", "--iterations", "400"],
     ["first_touch", "--mode", "parallel", "--mib", "64", "--iterations", "400"]),
    ("struct_padding", ["struct_padding"], ["struct_padding", "--packed"]),
]  # fmt: skip
EMULATED_CASES = [
    ("byte_wise", ["byte_wise"], ["byte_wise", "--wide"]),
    ("split_lines", ["split_lines"], ["split_lines", "--aligned"]),
    ("copy_heavy", ["copy_heavy"], ["copy_heavy", "--swap"]),
    ("stack_traffic", ["stack_traffic"], ["stack_traffic", "--static"]),
]
"""Those that need every access: memlens record --emulate."""
COUNTED_CASES = [
    ("region_imbalance", ["uneven_threads"], ["uneven_threads", "--even"]),
    ("scalar_floats", ["scalar_floats"], ["scalar_floats", "--lanes"]),
    ("unseen_library", ["unseen_library"], ["unseen_library", "--own"]),
]
"""Those of programs that count for themselves: memlens cc."""
CALIBRATED_CASES = [("far_from_peak", ["linked_sum"], ["linked_sum", "--in-order"])]
"""Those that need the machine's peaks, too."""
needs_emulate = pytest.mark.skipif(
    not registry.all_of("collector")["emulate"].available, reason="the collector emulate comes in a later version"
)


@needs_faults
@pytest.mark.parametrize(("name", "bad", "good"), CASES, ids=[case[0] for case in CASES])
def test_bad_workload_and_good_twin(record: Record, name: str, bad: list[str], good: list[str]) -> None:
    capture = record(workload_path(bad[0]), *bad[1:])
    assert name in findings_of(capture)
    assert name not in findings_of(record(workload_path(good[0]), *good[1:]))
    finding = next(f for f in memlens.analyses.report(capture).findings if f.name == name)
    assert finding.remedy and finding.claim
    assert run_query(capture, finding.evidence["sql"]).num_rows > 0


@needs_emulate
@pytest.mark.parametrize(("name", "bad", "good"), EMULATED_CASES, ids=[case[0] for case in EMULATED_CASES])
def test_bad_workload_and_good_twin_emulated(record: Record, name: str, bad: list[str], good: list[str]) -> None:
    if shutil.which("qemu-x86_64") is None:
        pytest.skip("no qemu-user; to run: sudo apt-get install qemu-user")
    capture = record(workload_path(bad[0]), *bad[1:], options=("--emulate",))
    assert name in findings_of(capture)
    finding = next(f for f in memlens.analyses.report(capture).findings if f.name == name)
    assert finding.remedy and finding.claim
    assert run_query(capture, finding.evidence["sql"]).num_rows > 0
    assert name not in findings_of(record(workload_path(good[0]), *good[1:], options=("--emulate",)))


@pytest.mark.parametrize(("name", "bad", "good"), COUNTED_CASES, ids=[case[0] for case in COUNTED_CASES])
def test_bad_workload_and_good_twin_counted(
    record: Record, tmp_path: Path, name: str, bad: list[str], good: list[str]
) -> None:
    program = compile_counted(ROOT / "workloads" / f"{bad[0]}.c", tmp_path / bad[0])
    capture = record(program, *bad[1:])
    assert name in findings_of(capture)
    finding = next(f for f in memlens.analyses.report(capture).findings if f.name == name)
    assert finding.remedy and finding.claim
    assert run_query(capture, finding.evidence["sql"]).num_rows > 0
    assert name not in findings_of(record(program, *good[1:]))


@needs_faults
@pytest.mark.parametrize(("name", "bad", "good"), CALIBRATED_CASES, ids=[case[0] for case in CALIBRATED_CASES])
def test_bad_workload_and_good_twin_calibrated(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, bad: list[str], good: list[str]
) -> None:
    largest = max((cache["bytes"] for cache in machine.caches()), default=0)
    if largest < 12 << 20:
        pytest.skip(f"the largest cache has {largest >> 20} MiB: the workload and its libraries do not fit into it")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    program = compile_counted(ROOT / "workloads" / f"{bad[0]}.c", tmp_path / bad[0])
    before = record(program, *bad[1:])
    assert name not in findings_of(before)
    assert "memlens calibrate" in memlens.analyses.run("bandwidth", before).figures["peaks_missing"]
    assert run_memlens("calibrate", "--seconds", "3").returncode == 0
    assert name in findings_of(memlens.open(before.path))  # this machine's, measured since
    capture = record(program, *bad[1:])
    assert name in findings_of(capture)
    finding = next(f for f in memlens.analyses.report(capture).findings if f.name == name)
    assert finding.remedy and finding.claim and finding.evidence["level_evidence"]
    assert run_query(capture, finding.evidence["sql"]).num_rows > 0
    good_capture = record(program, *good[1:])
    assert name not in findings_of(good_capture)
    levels = [memlens.analyses.run("bandwidth", one).tables["by_region"].to_pylist() for one in (capture, good_capture)]
    assert {row["level"] for rows in levels for row in rows if row["region"] == "sum" and not row["exclusive"]} == {
        finding.evidence["level"]
    }


@needs_faults
def test_fault_storm_with_huge_pages_is_no_storm(record: Record) -> None:
    program = workload_path("fault_storm")
    capture = record(program, "--mib", "8", "--iterations", "60", "--hugepage")
    if memlens.analyses.run("first_touch", capture).figures["huge_bytes"] == 0:
        pytest.skip("no huge pages granted: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")
    assert "fault_storm" not in findings_of(capture)


def limited(tmp_path: Path, used: int, limit: int | None, *, machine: int = 1 << 33) -> memlens.Capture:
    builder = CaptureBuilder().event(1, "fork").event(2, "exec", name="p")
    builder.machine["memory_bytes"] = machine
    for tick in range(8):
        builder.reading(tick * SECOND // 10, "rss_bytes", used)
        if limit is not None:
            builder.reading(tick * SECOND // 10, "cgroup_bytes", used, process=0)
            builder.reading(tick * SECOND // 10, "cgroup_limit_bytes", limit, process=0)
    return builder.open(tmp_path / f"{used}-{limit}-{machine}.memlens")


@pytest.mark.parametrize(
    ("used", "limit", "severity"),
    [
        (800 << 20, 1000 << 20, None),
        (860 << 20, 1000 << 20, "medium"),
        (980 << 20, 1000 << 20, "high"),
        (980 << 20, None, None),
    ],
)
def test_near_limit_thresholds(tmp_path: Path, used: int, limit: int | None, severity: str | None) -> None:
    assert findings_of(limited(tmp_path, used, limit)).get("near_limit") == severity


def test_near_the_machines_memory(tmp_path: Path) -> None:
    assert "near_limit" in findings_of(limited(tmp_path, 900 << 20, None, machine=1 << 30))


@needs_root
def test_near_limit_in_a_real_cgroup(tmp_path: Path) -> None:
    # Version 1 has a hierarchy of its own for memory, version 2 one for all.
    first = Path("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists()
    group = Path("/sys/fs/cgroup/memory/memlens-test" if first else "/sys/fs/cgroup/memlens-test")
    try:
        group.mkdir(exist_ok=True)
        with (group / ("memory.limit_in_bytes" if first else "memory.max")).open("r+") as file:
            file.write(str(120 << 20))
    except OSError as error:
        pytest.skip(
            f"no cgroup with a memory controller can be made here ({error}): mount -t cgroup2 none /sys/fs/cgroup"
        )
    try:
        for mib, expected in (("100", True), ("16", False)):
            output = tmp_path / f"{mib}.memlens"
            script = f"echo $$ > {group}/cgroup.procs; exec {' '.join(MEMLENS)} record -q -o {output} -- " + (
                f"{workload_path('near_limit')} --mib {mib} --hold-ms 300"
            )
            subprocess.run(["sh", "-c", script], check=True, capture_output=True)
            capture = memlens.open(output)
            figures = memlens.analyses.run("capacity", capture).figures
            assert figures["limit_kind"] == "cgroup" and figures["limit_bytes"] == 120 << 20
            if expected:
                assert "near_limit" in findings_of(capture)
            else:
                used = figures["peak_cgroup_bytes"]
                assert ("near_limit" in findings_of(capture)) == (used >= 0.85 * (120 << 20))
    finally:
        for _ in range(20):
            try:
                os.rmdir(group)
                break
            except OSError:
                import time

                time.sleep(0.1)


def test_a_growing_program_has_no_peak(tmp_path: Path) -> None:
    builder = CaptureBuilder().event(1, "fork").event(2, "exec", name="p")
    for tick in range(10):
        builder.reading(tick * SECOND // 10, "rss_bytes", (64 if tick < 9 else 512) << 20)
    assert "capacity_peak" not in findings_of(builder.open(tmp_path / "c.memlens"))


def test_idle_threads_are_no_parallel_work(tmp_path: Path) -> None:
    builder = CaptureBuilder().event(1, "fork").event(2, "exec", name="p").mapping(3, 100, 100_000)
    for thread in (101, 102, 103):
        builder.event(4, "thread", thread=thread)
    for page in range(8192):
        builder.fault(1000 + page, 200 + page)
    for tick in range(5):
        builder.reading(tick * SECOND // 5, "rss_bytes", 32 << 20)
        for thread, share in ((100, 97), (101, 1), (102, 1), (103, 1)):
            builder.reading(tick * SECOND // 5, "thread_cpu_ns", tick * share * 1_000_000, thread=thread)
    assert "serial_first_touch" not in findings_of(builder.open(tmp_path / "idle.memlens"))
    for tick in range(5):
        for thread in (101, 102, 103):
            builder.reading(tick * SECOND // 5 + 1, "thread_cpu_ns", tick * 97 * 1_000_000, thread=thread)
    assert "serial_first_touch" in findings_of(builder.open(tmp_path / "busy.memlens"))


def test_every_finding_has_a_case_here() -> None:
    covered = {case[0] for case in CASES + EMULATED_CASES + COUNTED_CASES + CALIBRATED_CASES} | {"near_limit"}
    assert covered == set(registry.all_of("finding"))
