"""Each finding fires on its bad workload and stays silent on the good twin."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from builders import CaptureBuilder
from conftest import MEMLENS, ROOT, needs_faults, needs_root, run_memlens, workload_path
from count_tools import compile_counted
from emulate_tools import build, needs_emulation, needs_x86
from finding_checks import assert_refers, assert_stated_once

import memlens
from memlens import registry
from memlens.capture.store import machine
from memlens.capture.tables.sql import run_query
from memlens.results import Finding, Reference, ReferenceKind, Severity

Record = Callable[..., memlens.Capture]
SECOND = 1_000_000_000


def findings_of(capture: memlens.Capture) -> dict[str, str]:
    """Names and severities, also of those that state a fact of another one; each is checked for what it refers to."""
    return {finding.name: finding.severity for finding in checked_findings(capture)}


def checked_findings(capture: memlens.Capture) -> list[Finding]:
    report = memlens.analyses.report(capture)
    assert_stated_once(report.findings)
    found = memlens.analyses.all_findings(capture, report.results)
    assert {finding.name for finding in report.findings} <= {finding.name for finding in found}
    for finding in found:
        assert_refers(finding, report)
    return found


CASES = [
    ("serial_first_touch", ["first_touch", "--mode", "serial", "--mib", "64", "--iterations", "400"],
     ["first_touch", "--mode", "parallel", "--mib", "64", "--iterations", "400"]),
    ("fault_storm", ["fault_storm", "--mib", "8", "--iterations", "60"], ["fault_storm", "--mib", "8", "--iterations", "60", "--reuse"]),
    ("capacity_peak", ["peak_capacity"], ["peak_capacity", "--streaming"]),
    ("unused_allocation", ["object_use"], ["object_use", "--mode", "dense"]),
    ("unused_allocation", ["object_use", "--heap"], ["object_use", "--mode", "dense", "--heap"]),
    ("leak", ["leak"], ["leak", "--free"]),
    ("leak", ["leak"], ["leak", "--table"]),
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
    ("unseen_library", ["unseen_library", "--iterations", "10000"], ["unseen_library", "--own"]),
]
"""Those of programs that count for themselves: memlens cc."""
CALIBRATED_CASES = [("far_from_peak", ["linked_sum"], ["linked_sum", "--in-order"])]
"""Those that need the machine's peaks, too."""
LOCALITY_CASES = [
    ("few_bytes_used", ["field_walk", "--passes", "10"], ["field_walk", "--passes", "10", "--split"]),
    ("set_conflicts", ["set_conflicts", "--passes", "8"], ["set_conflicts", "--passes", "8", "--padded"]),
    ("pointer_chase", ["linked_sum", "--n", "40000", "--iterations", "5"], ["linked_sum", "--n", "40000", "--iterations", "5", "--in-order"]),
    ("just_above_cache", ["working_set", "--kib", "LEVEL1*5/4", "--passes", "60"],
     ["working_set", "--kib", "LEVEL1*5/4", "--passes", "60", "--blocked"]),
    # They meet: on a busy machine two threads of milliseconds may run one after the other, and then share nothing.
    ("false_sharing", ["false_sharing", "--iterations", "0", "--increments", "200000", "--meetings", "200"],
     ["false_sharing", "--iterations", "0", "--increments", "200000", "--meetings", "200", "--padded"]),
    ("reloaded_value", ["reloaded_value", "--passes", "10"], ["reloaded_value", "--passes", "10", "--local"]),
    ("sparse_hot_object", ["scattered_field", "--events", "100000"], ["scattered_field", "--events", "100000", "--dense"]),
]  # fmt: skip
"""Those of every capture that holds accesses: emulated, and traced (memlens cc --memlens=trace)."""
needs_emulate = pytest.mark.skipif(
    not registry.all_of("collector")["emulate"].available, reason="the collector emulate comes in a later version"
)


def finding(name: str, severity: Severity, group: str, *references: tuple[ReferenceKind, str]) -> Finding:
    return Finding(
        name, severity, name, {}, "", references=tuple(Reference(kind=k, name=n) for k, n in references), group=group
    )


def test_a_fact_is_stated_once() -> None:
    """The general one of two is kept and refers to what the other did; other things, groups and graver findings stay."""
    general = finding("serial", "low", "placement", ("thread", "7"))
    first = finding("object", "low", "placement", ("thread", "7"), ("object", "a"))
    second = finding("object", "low", "placement", ("thread", "7"), ("object", "b"))
    elsewhere = finding("object", "low", "placement", ("thread", "8"), ("object", "c"))
    other_group = finding("lines", "low", "lines", ("thread", "7"))
    kept = memlens.analyses.stated_once([first, general, second, elsewhere, other_group])
    assert [one.name for one in kept] == ["serial", "object", "lines"]
    assert [one.name for one in kept[0].references] == ["7", "a", "b"]
    assert kept[1:] == [elsewhere, other_group]
    graver = replace(first, severity="high")
    assert [one.name for one in memlens.analyses.stated_once([graver, general])] == ["object"]
    assert memlens.analyses.stated_once([first, second]) == [first, second]


@needs_faults
@pytest.mark.parametrize(("name", "bad", "good"), CASES, ids=[case[0] for case in CASES])
def test_bad_workload_and_good_twin(record: Record, name: str, bad: list[str], good: list[str]) -> None:
    capture = record(workload_path(bad[0]), *bad[1:])
    first, last = capture.time_range_ns
    seen = (memlens.analyses.run("faults", capture).figures, (last - first) / 1e9, capture.quality)
    assert name in findings_of(capture), seen
    assert name not in findings_of(record(workload_path(good[0]), *good[1:]))
    finding = next(f for f in checked_findings(capture) if f.name == name)
    assert finding.remedy and finding.claim
    assert run_query(capture, finding.evidence["sql"]).num_rows > 0
    if finding.group == "placement":  # one fact, in two findings: the general one is kept, and names the object
        kept = [f for f in memlens.analyses.report(capture).findings if f.group == "placement"]
        assert [f.name for f in kept] == ["serial_first_touch"]
        assert {one.kind for one in kept[0].references} == {"thread", "process", "object", "code"}


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


def sized(command: list[str]) -> list[str]:
    """Sizes of this machine's first cache put in, in KiB."""
    kib = (
        next(
            (cache["bytes"] for cache in machine.caches() if cache["level"] == 1 and cache["type"] == "data"), 32 << 10
        )
        >> 10
    )
    return [str(kib * 5 // 4 // 4 * 4) if word == "LEVEL1*5/4" else word for word in command]


def assert_told_once(captures: list[memlens.Capture], name: str) -> None:
    """Told of the first capture, with figures; of the second, the good twin, no finding on locality is."""
    bad, good = (memlens.analyses.report(capture) for capture in captures)
    assert_stated_once(bad.findings)
    for finding in bad.findings:
        assert_refers(finding, bad)
    told = [finding for finding in bad.findings if finding.name == name]
    assert len(told) == 1, [finding.claim for finding in bad.findings]
    assert told[0].remedy and any(character.isdigit() for character in told[0].claim)
    assert run_query(captures[0], told[0].evidence["sql"]).num_rows > 0
    about_locality = {case[0] for case in LOCALITY_CASES}
    # The padded counters are still loaded again and again: that is what the workload is for.
    allowed = {"reloaded_value"} if name == "false_sharing" else set()
    assert not {finding.name for finding in good.findings} & about_locality - allowed, [f.claim for f in good.findings]


@needs_emulate
@pytest.mark.parametrize(("name", "bad", "good"), LOCALITY_CASES, ids=[case[0] for case in LOCALITY_CASES])
def test_locality_findings_of_emulated_programs(record: Record, name: str, bad: list[str], good: list[str]) -> None:
    if shutil.which("qemu-x86_64") is None:
        pytest.skip("no qemu-user; to run: sudo apt-get install qemu-user")
    both = [
        record(workload_path(command[0]), *sized(command[1:]), options=("--emulate=full",)) for command in (bad, good)
    ]
    assert_told_once(both, name)


@pytest.mark.parametrize(("name", "bad", "good"), LOCALITY_CASES, ids=[case[0] for case in LOCALITY_CASES])
def test_locality_findings_of_traced_programs(
    record: Record, tmp_path: Path, name: str, bad: list[str], good: list[str]
) -> None:
    source = ROOT / "workloads" / f"{bad[0]}.c"
    program = compile_counted(source, tmp_path / bad[0], "--memlens=trace")
    both = [record(program, *sized(command[1:]), options=("--trace=full,on-full=wait",)) for command in (bad, good)]
    assert_told_once(both, name)


def test_an_unrolled_chase_by_index_is_counted_whole(record: Record, tmp_path: Path) -> None:
    """A lap over 1 MiB of nodes of 64 bytes has 16,384 steps; the compiler unrolls the loop and knows one copy as a chase."""
    program = compile_counted(ROOT / "workloads" / "pointer_chase.c", tmp_path / "p", "--memlens=trace")
    capture = record(program, "--mib", "1", "--iterations", "5", options=("--trace=full,on-full=wait",))
    told = [finding for finding in memlens.analyses.report(capture).findings if finding.name == "pointer_chase"]
    assert [(one.evidence["executed"], one.evidence["dependence"]) for one in told] == [(5 * 16_384, "static")]
    assert told[0].evidence["miss_share"] > 0.9


COUNTERS = """
#include <pthread.h>
struct pair { volatile long left, right; };
_Alignas(64) static struct pair pairs[128];
static pthread_barrier_t ready;
static void *count(void *right) {
  pthread_barrier_wait(&ready);
  for (long i = 0; i < 400000; i++) { if (right) pairs[1].right += i; else pairs[1].left += i; }
  return 0;
}
int main(void) {
  pthread_t threads[2];
  pthread_barrier_init(&ready, 0, 2);
  for (long t = 0; t < 2; t++) pthread_create(&threads[t], 0, count, (void *)t);
  for (int t = 0; t < 2; t++) pthread_join(threads[t], 0);
  return pairs[1].left != pairs[1].right;
}
"""


@needs_emulation
def test_false_sharing_names_the_fields_of_static_variables(tmp_path: Path, record: Record) -> None:
    program = build(tmp_path, "counters", COUNTERS, "-O1")
    capture = record(program, options=("--emulate=full",))
    told = [finding for finding in memlens.analyses.report(capture).findings if finding.name == "false_sharing"]
    assert [one.evidence["object"] for one in told] == ["pairs"]
    assert {told[0].evidence["bytes"], told[0].evidence["other_bytes"]} == {
        "pairs[1]: left (0-7)",
        "pairs[1]: right (8-15)",
    }
    # The analysis has them for every line, and the report shows them.
    lines = memlens.analyses.run("sharing", capture).tables["lines"].to_pylist()
    shared = next(row for row in lines if row["object"] == "pairs" and row["kind"] == "false")
    assert {shared["fields"], shared["other_fields"]} == {"pairs[1]: left (0-7)", "pairs[1]: right (8-15)"}
    assert all(
        row["fields"] is None for row in lines if row["object"] not in ("pairs", "ready")
    )  # the static variables


POINTERS = """
#include <stdlib.h>
#include <string.h>
struct node { struct node *next; long value; long more[6]; };
enum { N = 40000 };
static struct node nodes[N];
static struct node *order[N];
__attribute__((noinline)) static long list(const struct node *at) { long s = 0; for (; at; at = at->next) s += at->value; return s; }
__attribute__((noinline)) static long fields(struct node **all) {
  long s = 0;
  for (long i = 0; i < N; i++) { long v; __asm__ volatile("mov (%1), %0; mov 8(%0), %0" : "=&r"(v) : "r"(&all[i]) : "memory"); s += v; }
  return s;
}
int main(int argc, char **argv) {
  int scattered = !strcmp(argv[1], "scattered"), through = !strcmp(argv[1], "array");
  long s = 0;
  for (long i = 0; i < N; i++) order[i] = &nodes[i];
  for (unsigned long i = N - 1, r = 1; (scattered || through) && i; i--) {
    r = r * 6364136223846793005ul + 1442695040888963407ul;
    unsigned long j = (r >> 33) % (i + 1);
    struct node *kept = order[i];
    order[i] = order[j];
    order[j] = kept;
  }
  for (long i = 0; i < N; i++) { order[i]->next = i + 1 < N ? order[i + 1] : 0; order[i]->value = i; }
  for (int k = 0; k < 6; k++) s += through ? fields(order) : list(order[0]);
  return s != 6L * N * (N - 1) / 2;
}
"""


@needs_emulation
@needs_x86
@pytest.mark.parametrize(("how", "told"), [("scattered", True), ("in-order", False), ("array", False)])
def test_only_scattered_lists_are_chases(tmp_path: Path, record: Record, how: str, told: bool) -> None:
    """A list in the order of memory is strided. A pointer that an array gave is loaded through its own register, and is no chase."""
    program = build(tmp_path, "pointers", POINTERS, "-O2")
    capture = record(program, how, options=("--emulate=full",))
    assert ("pointer_chase" in findings_of(capture)) == told


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
    assert {
        row["farthest_level"] for rows in levels for row in rows if row["region"] == "sum" and not row["exclusive"]
    } == {finding.evidence["level"]}


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
            file.write(str(126 << 20))
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
            assert figures["limit_kind"] == "cgroup" and figures["limit_bytes"] == 126 << 20
            if expected:
                assert "near_limit" in findings_of(capture)
            else:
                used = figures["peak_cgroup_bytes"]
                assert ("near_limit" in findings_of(capture)) == (used >= 0.85 * (126 << 20))
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
    covered = {case[0] for case in CASES + EMULATED_CASES + COUNTED_CASES + CALIBRATED_CASES + LOCALITY_CASES} | {
        "near_limit"
    }
    assert covered == set(registry.all_of("finding"))
