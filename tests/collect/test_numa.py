"""Pages on NUMA nodes that are known beforehand, recorded in a guest with four nodes and a memory-only fifth.

One boot (tools/numa-guest) records every capture; the tests read them here. Debian 12's guest kernel lacks
PAGEMAP_SCAN (Linux 6.7): there, the test of populated pages covers reading /proc/PID/pagemap.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections import Counter
from pathlib import Path

import pyarrow.compute as pc
import pytest
from conftest import MEMLENS, ROOT, marked_line, workload_path

import memlens
from memlens.analyses.numa._classes import CLASSES as CLASS_NAMES
from memlens.results import Finding
from memlens.selection import Selection

pytestmark = pytest.mark.numa
NUMA_GUEST = ROOT / "tools" / "numa-guest"
Captures = dict[str, memlens.Capture]
PAGE = 4096
SHARE = (2 << 20) // PAGE
"""Pages of each part of workloads/numa_placement.c."""
ARRAY_MIB = 24
# Held for long: one reading of numa_maps may cost tens of milliseconds in the guest, and they may take 1 % of the time.
RECORDINGS = {
    "policies": "numa_placement --mode policies --hold-ms 5000",
    "serial": f"numa_placement --mode serial --mib {ARRAY_MIB} --work-ms 4000",
    "parallel": f"numa_placement --mode parallel --mib {ARRAY_MIB} --work-ms 4000",
    "populate": "case_populate --pages 700 --hold-ms 1500",
    "short": "case_read_then_write --pages 3000",
}
TRACED = {
    f"traced {mode}": f"numa_placement --mode {mode} --mib {ARRAY_MIB} --work-ms 8000"
    for mode in ("serial", "parallel")
}
"""The same programs, built for tracing and recorded with nothing but that."""
CLASSES = {"classes": "numa_classes"}
"""A program of accesses of known classes, built for tracing, every access recorded beside faults and allocations."""
OWN_BYTES = 2 << 20
"""Rings and tables of our library in the program, at most."""
SHARES = {0: 1.25, 1: 1.25, 2: 3.25, 3: 3.25, 4: 1}
"""By node, in the recording `policies`: own pages, interleaved ones, two of policies, two huge pages."""
OTHER_PAGES = 80
"""At most so many private pages does a C program place for itself: loader, libc, stacks."""


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Captures:
    """Everything recorded in one guest, by the names of RECORDINGS."""
    ready = subprocess.run([NUMA_GUEST, "--check"], capture_output=True, text=True, timeout=300)
    if ready.returncode != 0:
        pytest.skip(ready.stderr.strip())
    if ROOT.is_relative_to("/tmp") or ROOT.is_relative_to("/run"):
        pytest.skip("the guest has its own /tmp and /run: clone memlens elsewhere for the NUMA tests")
    folder = tmp_path_factory.mktemp("numa")
    built = [
        subprocess.run([*MEMLENS, "cc", "--memlens=trace", "-O1", "-g", ROOT / "workloads" / source, "-o", folder / name, "-pthread"], capture_output=True, text=True).returncode == 0
        for source, name in (("numa_placement.c", "traced"), ("numa_classes.c", "numa_classes"))
    ]  # fmt: skip
    recordings = RECORDINGS | (TRACED if built[0] else {}) | (CLASSES if built[1] else {})
    captures = _recorded_in_guest(folder, recordings)
    if not _nodes_were_read(captures["policies"]):
        captures |= _recorded_in_guest(folder, {"policies": f"{RECORDINGS['policies']}0"})
    again = {
        name: TRACED[name].replace("8000", "30000")
        for name in TRACED
        if name in captures and not _pages_were_asked(captures[name])
    }
    return captures | _recorded_in_guest(folder, again) if again else captures


def _recorded_in_guest(folder: Path, recordings: dict[str, str]) -> Captures:
    # Only memory that asks for huge pages gets them: else a thread's stack does, where chance aligns it.
    lines = ["set -e", "echo madvise >/sys/kernel/mm/transparent_hugepage/enabled"]
    for name, command in recordings.items():
        program, *arguments = command.split()
        words = [
            *MEMLENS,
            "record",
            "--exact",
            "-q",
            "--force",
            *(["--collectors", "trace"] if name in TRACED else []),
            *(["--trace=full,on-full=wait"] if name in CLASSES else []),
            "-o",
            f"{name}.memlens",
            "--",
            "./traced" if name in TRACED else f"./{program}" if name in CLASSES else str(workload_path(program)),
            *arguments,
        ]
        lines.append(shlex.join(words))
    run = [NUMA_GUEST, "-n", "4", "-x", "1", "-m", "384", "-w", folder, "-t", "240", "--", "\n".join(lines)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return {name: memlens.open(folder / f"{name}.memlens") for name in recordings}


def _nodes_were_read(capture: memlens.Capture) -> bool:
    """Whether numa_maps was read after the program had placed its memory. A reading waits for a hundred times what the last
    one cost, and an emulated processor takes what a busy host takes from it for its own cost: five seconds may be too few."""
    faults, readings = capture.table("faults"), capture.table("timeline")
    placed_ns = max(
        faults.filter(pc.equal(faults.column("class").cast("string"), "first")).column("time_ns").to_pylist()
    )
    times = readings.filter(pc.equal(readings.column("metric"), "node_bytes")).column("time_ns").to_pylist()
    return any(time_ns > placed_ns for time_ns in times)


def _pages_were_asked(capture: memlens.Capture) -> bool:
    """Whether pages of windows of all workers were asked for their nodes, which takes a share of the time that a busy host gives the guest."""
    found = accesses_by_cpu_and_node(capture)
    return all(sum(count for (other, _), count in found.items() if other == cpu) > 1000 for cpu in range(4))


def pages_by_thread_and_node(capture: memlens.Capture, function: str) -> Counter[tuple[str, int | None]]:
    """Pages that a function placed, by the name of the thread and the node they are on."""
    names = {row["thread"]: row["name"] for row in capture.table("threads").to_pylist()}
    faults = capture.table("faults")
    mine = faults.filter(pc.equal(faults.column("function"), function))
    pages: Counter[tuple[str, int | None]] = Counter()
    for row in mine.select(["thread", "node", "new_bytes"]).to_pylist():
        pages[names[row["thread"]], row["node"]] += row["new_bytes"] // PAGE
    return pages


def serial_first_touch(capture: memlens.Capture) -> list[Finding]:
    findings = memlens.analyses.report(capture).findings
    return [finding for finding in findings if finding.name == "serial_first_touch"]


def test_every_node_of_the_machine_is_kept_with_its_distances(captures: Captures) -> None:
    nodes = captures["policies"].meta["machine"]["numa_nodes"]
    assert [node["node"] for node in nodes] == [0, 1, 2, 3, 4]
    assert [node["cpus"] for node in nodes] == [[0], [1], [2], [3], []]
    assert [node["distances"] for node in nodes] == [
        [10, 16, 28, 28, 31],
        [16, 10, 28, 28, 31],
        [28, 28, 10, 16, 31],
        [28, 28, 16, 10, 31],
        [31, 31, 31, 31, 10],
    ]


@pytest.mark.parametrize("index", range(4))
def test_first_touch_of_a_pinned_thread_is_on_its_node(captures: Captures, index: int) -> None:
    pages = pages_by_thread_and_node(captures["policies"], "touch_own")
    assert sum(pages.values()) == 4 * SHARE
    assert pages[f"worker-{index}", index] >= 0.99 * SHARE


@pytest.mark.parametrize(
    ("function", "node"), [("touch_bound", 2), ("touch_memory_only", 4), ("touch_under_thread_policy", 2)]
)
def test_bound_pages_are_on_their_policys_node_and_not_the_touchers(
    captures: Captures, function: str, node: int
) -> None:
    pages = pages_by_thread_and_node(captures["policies"], function)
    assert pages["numa_placement", node] >= 0.99 * SHARE
    assert sum(pages.values()) == SHARE
    assert not any(on not in (node, None) for _, on in pages)


def test_interleaved_pages_are_even_over_the_nodes(captures: Captures) -> None:
    pages = pages_by_thread_and_node(captures["policies"], "touch_interleaved")
    assert [pages["numa_placement", node] for node in range(4)] == pytest.approx([SHARE / 4] * 4, abs=2)


def test_a_huge_page_is_one_first_touch_of_2_mib_on_its_node(captures: Captures) -> None:
    faults = captures["policies"].table("faults")
    mine = faults.filter(pc.equal(faults.column("function"), "touch_huge"))
    assert mine.column("span_bytes").to_pylist() == [2 << 20] * 2
    assert mine.column("new_bytes").to_pylist() == [2 << 20] * 2
    assert mine.column("node").to_pylist() == [3, 3]


def test_by_node_adds_up_to_the_known_placement(captures: Captures) -> None:
    by_node = memlens.analyses.run("first_touch", captures["policies"]).tables["by_node"].to_pylist()
    pages = {row["node"]: row["bytes"] // PAGE for row in by_node}
    for node, shares in SHARES.items():
        known = shares * SHARE
        assert 0.99 * known <= pages[node] <= known + OTHER_PAGES, f"node {node}"
    assert set(pages) <= {0, 1, 2, 3, 4, None}
    assert pages.get(None, 0) <= 0.01 * sum(SHARES.values()) * SHARE


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_node_is_asked_after_the_fault_and_only_once(captures: Captures, name: str) -> None:
    placements = captures[name].table("placements")
    assert 0 < placements.num_rows <= captures[name].meta["session"]["faults"]
    asked, faulted = placements.column("time_ns").to_pylist(), placements.column("evidence_ns").to_pylist()
    assert all(after >= before for after, before in zip(asked, faulted, strict=True))


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_quality_says_how_many_nodes_are_unknown(captures: Captures, name: str) -> None:
    result = memlens.analyses.run("first_touch", captures[name])
    unknown = sum(row["faults"] for row in result.tables["by_node"].to_pylist() if row["node"] is None)
    if name == "short":
        assert unknown > 0, "the program ends before all its pages can be asked about"
    said = [note for note in result.quality.notes if "node" in note.lower()]
    assert bool(said) == bool(unknown), result.quality.notes
    if unknown:
        assert any(f"{unknown} " in note.replace(",", "") for note in said), said


def test_serial_first_touch_is_grave_on_several_nodes(captures: Captures) -> None:
    (finding,) = serial_first_touch(captures["serial"])
    assert finding.severity == "high"
    assert finding.evidence["numa_nodes"] == 5
    assert finding.evidence["share"] >= 0.99
    assert "touch_array" in finding.evidence["where"]
    assert len(finding.evidence["busy_threads"]) >= 4
    pages = pages_by_thread_and_node(captures["serial"], "touch_array")
    assert pages["numa_placement", 0] >= 0.99 * ARRAY_MIB * 256


def test_parallel_first_touch_is_no_finding(captures: Captures) -> None:
    assert serial_first_touch(captures["parallel"]) == []
    pages = pages_by_thread_and_node(captures["parallel"], "touch_array")
    for index in range(4):
        assert pages[f"worker-{index}", index] >= 0.99 * ARRAY_MIB * 256 / 4


def test_the_timeline_of_each_node_agrees_with_the_known_placement(captures: Captures) -> None:
    readings = captures["policies"].table("timeline").to_pylist()
    nodes: dict[int, dict[int, int]] = {}
    for row in readings:
        if row["metric"] == "node_bytes":
            nodes.setdefault(row["time_ns"], {})[row["node"]] = row["value"]
    assert nodes, "no reading of numa_maps"
    last = nodes[max(nodes)]
    file_bytes = max(row["value"] for row in readings if row["metric"] == "shared_bytes")
    for node, shares in SHARES.items():
        known = shares * SHARE * PAGE
        # libc may be on any node, and so may our library's own pages
        assert 0.95 * known <= last[node] <= 1.05 * known + file_bytes + OWN_BYTES, f"node {node}"
    rss_bytes = max(row["value"] for row in readings if row["metric"] == "rss_bytes")
    assert sum(last.values()) == pytest.approx(rss_bytes, rel=0.05)


def test_populated_pages_are_found_in_the_page_table(captures: Captures) -> None:
    rows = [row for row in captures["populate"].table("placed").to_pylist() if row["area"] == "anonymous"]
    assert sum(row["bytes"] for row in rows) == 700 * PAGE
    assert not any(row["moved"] for row in rows)


def accesses_by_cpu_and_node(capture: memlens.Capture) -> Counter[tuple[int, int]]:
    """Recorded accesses to pages whose node was asked for, by the CPU that the window began on."""
    windows = capture.table("windows")
    cpus = dict(zip(windows.column("window").to_pylist(), windows.column("cpu").to_pylist(), strict=True))
    nodes = {(r["process"], r["address"]): r["node"] for r in capture.table("placements").to_pylist() if r["node"] >= 0}
    array = array_pages(capture)
    found: Counter[tuple[int, int]] = Counter()
    for batch in capture.accesses():
        columns = [batch.column(name).to_pylist() for name in ("process", "window", "address")]
        for process, window, address in zip(*columns, strict=True):
            node = nodes.get((process, address // PAGE * PAGE))
            if node is not None and address // PAGE in array:
                found[cpus[window], node] += 1
    return found


def array_pages(capture: memlens.Capture) -> range:
    """The longest run of pages that were accessed: nothing else of the program is as large."""
    pages = sorted({address // PAGE for batch in capture.accesses() for address in batch.column("address").to_pylist()})
    starts = [i for i, page in enumerate(pages) if i == 0 or page - pages[i - 1] > 64]
    runs = [
        (pages[end - 1] - pages[begin], pages[begin])
        for begin, end in zip(starts, [*starts[1:], len(pages)], strict=True)
    ]
    length, first = max(runs)
    assert length > 0.9 * ARRAY_MIB * 256
    return range(first, first + length + 1)


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_pages_of_a_trace_are_on_their_nodes(captures: Captures, mode: str) -> None:
    """No faults are recorded: the nodes are those of pages that windows touched, asked while the program ran."""
    if f"traced {mode}" not in captures:
        pytest.skip("no clang to build it: apt-get install clang-19 llvm-19-dev")
    found = accesses_by_cpu_and_node(captures[f"traced {mode}"])
    for cpu in range(4):  # each is a node, and runs one worker
        mine = {node: count for (other, node), count in found.items() if other == cpu}
        home = 0 if mode == "serial" else cpu
        assert sum(mine.values()) > 1000 and mine.get(home, 0) > 0.95 * sum(mine.values()), (cpu, mine)


# ---- classes of accesses -----------------------------------------------------------------------------
USE, PAGES = 2 * 5 * 16 * 64, 16
"""Accesses of `use` and pages of an array in workloads/numa_classes.c."""
BY_ARRAY = {
    # Workers 0 (on node 0) and 1 (on node 1) are pinned, worker 2 is not; main, on node 0, placed all but `floating`.
    "bound": {"first_touch": PAGES, "local": USE, "remote": USE, "unpinned_thread": USE},
    "floating": {"unpinned_first_touch": PAGES, "unpinned_both": USE, "unpinned_page": USE},
    "memory_only": {"first_touch": PAGES, "memory_only_local": 2 * USE, "memory_only_remote": USE},
    "interleaved": {"first_touch": PAGES, "local": USE // 2, "remote": 3 * USE // 2, "unpinned_thread": USE},
    "huge": {"first_touch": 1, "local": USE + PAGES - 1, "remote": USE, "unpinned_thread": USE},
}


def known_classes(captures: Captures) -> memlens.Capture:
    if "classes" not in captures:
        pytest.skip("no clang to build it: apt-get install clang-19 llvm-19-dev")
    return captures["classes"]


def test_every_class_of_access_is_counted_exactly(captures: Captures) -> None:
    result = memlens.analyses.run("numa", known_classes(captures))
    rows = {row["object"]: row for row in result.tables["by_object"].to_pylist()}
    source = "numa_classes.c"
    for array, expected in BY_ARRAY.items():
        line = marked_line(source, f"array: {array}")
        row = next(row for name, row in rows.items() if name.endswith(f"{source}:{line}"))
        assert {name: row[name] for name in CLASS_NAMES if row[name]} == expected, array
    # The kernel is asked again after the move, or nobody knows where the pages lie then; before it they were local.
    line = marked_line(source, "array: moved")
    row = next(row for name, row in rows.items() if name.endswith(f"{source}:{line}"))
    assert (row["first_touch"], row["local"]) == (PAGES, USE)
    assert row["remote"] + row["undecided"] == USE


def test_a_selection_of_code_counts_its_accesses_only(captures: Captures) -> None:
    capture = known_classes(captures)
    result = memlens.analyses.run("numa", capture, selection=Selection(code="place"))
    assert result.scope == "selection"
    assert result.figures["first_touch"] == 4 * PAGES + 1 and result.figures["unpinned_first_touch"] == PAGES
    assert result.figures["accesses"] == 6 * PAGES


def test_the_access_matrix_has_threads_by_node(captures: Captures) -> None:
    result = memlens.analyses.run("numa", known_classes(captures))
    cells: Counter[tuple[str, int]] = Counter()
    for row in result.tables["matrix"].to_pylist():
        cells[row["home"], row["page_node"]] += row["accesses"]
    # Arrays that threads on node 1 use on node 0: bound, huge, a quarter of interleaved; global variables beside.
    # So may be `floating`, which an unpinned thread placed.
    others = {2.25 * USE, 3.25 * USE}
    assert min(abs(cells["node 1", 0] - expected) for expected in others) < 100, cells
    assert cells["unpinned", 4] == USE == cells["node 1", 4] == cells["node 0", 4] - PAGES  # first touches
    assert result.figures["bound_threads"] >= 4 and result.figures["unpinned_threads"] == 1


def test_the_pinning_log_has_every_change_of_affinity(captures: Captures) -> None:
    result = memlens.analyses.run("placement", known_classes(captures))
    log = result.tables["pinning_log"].to_pylist()
    set_ = [(row["cpus"], row["home"]) for row in log if row["event"] == "sched_setaffinity"]
    assert sorted(set_) == sorted(
        [("0", "node 0"), ("0", "node 0"), ("1", "node 1"), ("0-3", "unpinned"), ("1", "node 1"), ("0", "node 0")]
    )
    by_node = {row["node"]: row for row in result.tables["by_node"].to_pylist()}
    assert by_node[4]["cpus"] == "none" and by_node[4]["placed_bytes"] == PAGES * PAGE
    assert by_node[4]["nearest"] == "node 0, node 1, node 2, node 3"


def test_the_command_begins_with_the_answer(captures: Captures) -> None:
    capture = known_classes(captures)
    done = subprocess.run([*MEMLENS, "numa", capture.path], capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"})  # fmt: skip
    assert done.returncode == 0, done.stderr
    first = next(line for line in done.stdout.splitlines() if line)
    assert first.startswith("NUMA accesses  ") and "of the accesses are remote" in first and "numa_classes.c" in first
    assert "NUMA placement" in done.stdout


def test_placement_alone_says_that_remote_accesses_are_not_estimable(captures: Captures) -> None:
    done = subprocess.run([*MEMLENS, "numa", captures["serial"].path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Which accesses are remote is not estimable" in done.stdout and "at most" in done.stdout
