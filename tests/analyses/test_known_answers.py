"""Real programs whose page counts are known in closed form, recorded for real."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pyarrow.compute as pc
import pytest
from conftest import ROOT, marked_line, needs_faults

import memlens

pytestmark = needs_faults
PAGE = 4096
Record = Callable[..., memlens.Capture]
Workload = Callable[[str], str]


def counts_at(capture: memlens.Capture, function: str) -> Counter[str]:
    """Faults by class of one function."""
    faults = capture.table("faults")
    mine = faults.filter(pc.equal(faults.column("function"), function))
    return Counter(str(name) for name in mine.column("class").to_pylist())


def assert_nothing_lost(capture: memlens.Capture) -> None:
    assert capture.quality.dropped_records == 0
    assert capture.meta["session"]["ring_lost"] == 0 and capture.meta["session"]["event_lost"] == 0


@pytest.mark.parametrize(("mode", "threads"), [("serial", 1), ("parallel", 4)])
def test_first_touch_is_attributed_to_function_line_and_thread(
    record: Record, workload: Workload, mode: str, threads: int
) -> None:
    capture = record(workload("first_touch"), "--mode", mode, "--mib", "64", "--threads", "4", "--iterations", "2")
    assert_nothing_lost(capture)
    pages = 64 * 256
    faults = capture.table("faults")
    mine = faults.filter(
        pc.and_(
            pc.equal(faults.column("function"), "touch_words"),
            pc.equal(faults.column("line"), marked_line("first_touch.c")),
        )
    )
    first = mine.filter(pc.equal(mine.column("class").cast("string"), "first"))
    assert first.num_rows >= 0.99 * pages
    assert pc.sum(first.column("new_bytes")).as_py() >= 0.99 * pages * PAGE
    by_thread = Counter(first.column("thread").to_pylist())
    assert len(by_thread) == threads
    assert min(by_thread.values()) >= 0.99 * pages / threads
    assert all(str(file).endswith("first_touch.c") for file in set(first.column("file").to_pylist()))


def test_the_kernels_own_count_is_the_oracle(record: Record, workload: Workload) -> None:
    capture = record(workload("first_touch"), "--mode", "serial", "--mib", "32", "--iterations", "1")
    seen, kernel = (
        capture.table("faults").num_rows + capture.replay.own_faults,
        capture.meta["rusage"]["minor_faults"] + capture.meta["rusage"]["major_faults"],
    )
    # The kernel also counts a handful during exec, before the program's first instruction.
    assert 0 <= kernel - seen <= 40


def test_read_then_write_is_first_then_upgrade(record: Record, workload: Workload) -> None:
    capture = record(workload("case_read_then_write"), "--pages", "500")
    assert counts_at(capture, "read_pages") == {"first": 500}
    assert counts_at(capture, "write_pages") == {"upgrade": 500}


def test_given_back_pages_are_touched_again(record: Record, workload: Workload) -> None:
    capture = record(workload("case_dontneed"), "--pages", "500")
    assert counts_at(capture, "touch_pages") == {"first": 500}
    assert counts_at(capture, "touch_pages_again") == {"again": 500}


def placed_anonymous_pages(capture: memlens.Capture) -> int:
    """Pages that the kernel placed: by an event inside a system call, or found in the page table."""
    faults = capture.table("faults")
    events = faults.filter(pc.equal(faults.column("class").cast("string"), "placed"))
    events = events.filter(pc.equal(events.column("area").cast("string"), "anonymous"))
    runs = capture.table("placed")
    runs = runs.filter(
        pc.and_(pc.equal(runs.column("area").cast("string"), "anonymous"), pc.invert(runs.column("moved")))
    )
    return (pc.sum(events.column("new_bytes")).as_py() or 0) // PAGE + (
        pc.sum(runs.column("bytes")).as_py() or 0
    ) // PAGE


@pytest.mark.parametrize("source", ["zero", "file", "pipe"])
def test_read_into_a_fresh_buffer_is_placed_by_the_kernel(record: Record, workload: Workload, source: str) -> None:
    capture = record(workload("case_read_into_buffer"), "--pages", "500", "--source", source, "--hold-ms", "300")
    assert 500 <= placed_anonymous_pages(capture) <= 508


def test_populate_is_placed_by_the_kernel_with_a_time_range(record: Record, workload: Workload) -> None:
    capture = record(workload("case_populate"), "--pages", "700", "--hold-ms", "300")
    runs = [row for row in capture.table("placed").to_pylist() if row["area"] == "anonymous"]
    assert sum(row["bytes"] for row in runs) == 700 * PAGE
    process = capture.table("processes").to_pylist()[0]
    for row in runs:
        assert row["process"] == process["process"]
        assert row["begin_ns"] < row["end_ns"] <= process["end_ns"]


def test_a_shared_file_is_classed_file_and_faults_around(record: Record, workload: Workload) -> None:
    capture = record(workload("case_shared_file"), "--pages", "640")
    assert counts_at(capture, "read_pages") == {"file": 640 // 16}
    written = record(workload("case_shared_file"), "--pages", "640", "--write")
    assert set(counts_at(written, "write_pages")) == {"file"}
    assert counts_at(written, "write_pages")["file"] == 640


def test_cold_file_pages_are_major(record: Record, workload: Workload) -> None:
    capture = record(workload("case_shared_file"), "--pages", "64", "--cold")
    assert counts_at(capture, "read_pages")["major"] >= 1
    assert set(counts_at(capture, "read_pages")) <= {"major", "file"}


def test_a_huge_page_faults_once_and_spans_512_pages(record: Record, workload: Workload) -> None:
    import subprocess

    program = workload("case_thp")
    if subprocess.run([program], capture_output=True).returncode == 77:
        pytest.skip("no huge page granted: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")
    capture = record(program, "--huge-pages", "4")
    faults = capture.table("faults")
    mine = faults.filter(pc.equal(faults.column("function"), "touch_huge_pages"))
    assert mine.num_rows == 4
    assert mine.column("span_bytes").to_pylist() == [2 << 20] * 4
    assert mine.column("new_bytes").to_pylist() == [2 << 20] * 4


def test_fork_copies_are_the_childs(record: Record, workload: Workload) -> None:
    capture = record(workload("case_fork_copy"), "--pages", "300", "--child-pages", "77")
    assert counts_at(capture, "touch_pages") == {"first": 300}
    assert counts_at(capture, "write_in_child") == {"copy": 77}
    faults = capture.table("faults")
    writers = faults.filter(pc.equal(faults.column("function"), "write_in_child")).column("process").to_pylist()
    assert set(writers) == {2}


def test_shared_anonymous_memory_is_placed_once(record: Record, workload: Workload) -> None:
    capture = record(workload("case_shared_anon"), "--pages", "300")
    assert counts_at(capture, "touch_pages") == {"first": 300}
    assert counts_at(capture, "touch_in_child") == {"file": 300}


def test_moved_pages_of_realloc_are_not_called_placed(record: Record, tmp_path_factory: pytest.TempPathFactory) -> None:
    import subprocess

    folder = tmp_path_factory.mktemp("realloc")
    source = folder / "grow.c"
    source.write_text(
        "#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n"
        "int main(void) { char *p = malloc(8 << 20); memset(p, 1, 8 << 20); char *q = malloc(1 << 20);\n"
        "memset(q, 1, 1 << 20); p = realloc(p, 64 << 20); usleep(400000); return p[5] + q[3] - 2; }\n"
    )
    subprocess.run(["cc", "-O1", str(source), "-o", str(folder / "grow")], check=True)
    capture = record(folder / "grow")
    result = memlens.analyses.run("first_touch", capture)
    assert result.figures["placed_without_event_bytes"] < 64 * PAGE
    assert result.figures["moved_bytes"] in (0, *range(7 << 20, 10 << 20))


def test_each_of_64_threads_is_seen(record: Record, workload: Workload) -> None:
    capture = record(workload("many_threads"), "--threads", "64")
    assert capture.table("threads").num_rows == 65
    result = memlens.analyses.run("first_touch", capture)
    workers = [row for row in result.tables["by_thread"].to_pylist() if str(row["name"]).startswith("worker")]
    assert len(workers) == 64
    assert all(row["bytes"] >= 256 * PAGE for row in workers)


def test_each_of_200_processes_is_seen_with_its_pages(record: Record, workload: Workload) -> None:
    capture = record(workload("fork_tree"), "--width", "199", "--depth", "1")
    processes = capture.table("processes").to_pylist()
    assert len(processes) == 200
    assert all(row["end_ns"] for row in processes)
    assert sum(1 for row in processes if row["parent"] == 1) == 199
    faults = capture.table("faults")
    touched = faults.filter(pc.equal(faults.column("line"), marked_line("fork_tree.c")))
    by_process = Counter(row["process"] for row in touched.to_pylist() if row["class"] == "first")
    assert len(by_process) == 200 and set(by_process.values()) == {16}
    # A process that is preempted there may have one more: on the way back to it the kernel writes the number of the
    # CPU into its restartable sequences' area (rseq), which fork made a shared page.
    others = [row for row in touched.to_pylist() if row["class"] != "first"]
    assert all(row["class"] == "copy" and row["in_kernel"] for row in others)
    assert max(Counter(row["process"] for row in others).values(), default=0) <= 1


def test_exec_keeps_the_process_and_resets_its_memory(record: Record, workload: Workload) -> None:
    capture = record(workload("exec_chain"))
    (process,) = capture.table("processes").to_pylist()
    assert process["execs"] >= 2


def test_just_in_time_code_has_its_name(record: Record, workload: Workload) -> None:
    capture = record(workload("jit"))
    assert counts_at(capture, "jit_touch_pages")["first"] >= 200


@pytest.mark.parametrize("stacks", ["fp", "dwarf"])
def test_call_stacks_lead_to_main(record: Record, workload: Workload, stacks: str) -> None:
    capture = record(workload("deep_stack"), options=("--stacks", stacks))
    rows = memlens.analyses.run("first_touch", capture).tables["stacks"].to_pylist()
    assert capture.meta["quality"]["stack"] == stacks
    deepest = max(rows, key=lambda row: len(row["frames"]))
    assert len(deepest["frames"]) >= 10, rows[:3]
    assert "main" in deepest["frames"]


def test_estimated_stack_bytes_agree_with_the_exact_total(record: Record, workload: Workload) -> None:
    capture = record(workload("first_touch"), "--mode", "serial", "--mib", "64", "--iterations", "1")
    result = memlens.analyses.run("first_touch", capture)
    estimated = sum(row["estimated_bytes"] for row in result.tables["stacks"].to_pylist())
    assert estimated == pytest.approx(result.figures["first_touched_bytes"], rel=0.15)


def test_sources_of_the_workloads_are_found_by_absolute_path(record: Record, workload: Workload) -> None:
    capture = record(workload("first_touch"), "--mode", "serial", "--mib", "4", "--iterations", "1")
    files = set(capture.table("faults").column("file").to_pylist())
    assert str(ROOT / "workloads" / "first_touch.c") in files
