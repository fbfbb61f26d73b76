"""Pages that move, are shared, populated or older than the recording: what was touched, and what is not known.

The oracle is the program (tests/page_history.c), which knows what it wrote.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow.compute as pc
import pytest
from builders import PAGE, CaptureBuilder
from conftest import MEMLENS, needs_faults

import memlens
from memlens import analyses

MIB = 1 << 20
Record = Callable[..., memlens.Capture]
TOUCHED = ("touched_bytes", "recycled_bytes", "never_touched_bytes")
KEEP_PLACE = 16
"""Bytes of an object's header in a mapping of its own, as glibc has it."""


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page_history") / "page_history"
    source = Path(__file__).with_name("page_history.c")
    subprocess.run(["cc", "-O1", "-g", "-fno-builtin", "-o", path, source], check=True)
    return str(path)


def objects(capture: memlens.Capture, kind: str, *, at_least: int = MIB) -> list[dict[str, int | None]]:
    table = capture.table("objects")
    mine = table.filter(pc.and_(pc.equal(table["kind"], kind), pc.greater_equal(table["bytes"], at_least)))
    return mine.sort_by("born_ns").to_pylist()


def classes(capture: memlens.Capture, function: str) -> Counter[str]:
    faults = capture.table("faults")
    return Counter(map(str, faults.filter(pc.equal(faults["function"], function))["class"].to_pylist()))


# ---- closed forms on records ------------------------------------------------------------------------


def start() -> CaptureBuilder:
    return CaptureBuilder().event(1, "fork").event(2, "exec", name="p")


def test_a_moved_object_takes_its_touched_pages_along(tmp_path: Path) -> None:
    first, second = 1000 * PAGE + KEEP_PLACE, 9000 * PAGE + KEEP_PLACE
    builder = start().mapping(3, 1000, 33).allocation(4, "malloc", first, 32 * PAGE)
    for page in range(20):
        builder.fault(10 + page, 1000 + page)
    builder.allocation(50, "free", first, flags=1).allocation(51, "realloc", second, 64 * PAGE, old_address=first)
    builder.fault(60, 9040)
    capture = builder.open(tmp_path / "c")
    rows = [tuple(row[name] for name in TOUCHED) for row in objects(capture, "heap", at_least=1)]
    # 20 faults touch the header's page and 19 whole ones; of the new one 19 came along and one was touched.
    assert rows == [(20 * PAGE, 0, 12 * PAGE), (21 * PAGE, 0, (63 - 20) * PAGE)]
    assert set(map(str, capture.table("faults")["class"].to_pylist())) == {"first"}


def test_a_place_that_an_object_left_is_not_touched_again(tmp_path: Path) -> None:
    """A moves away; C is moved to where A was. No mapping record reports either."""
    a, b, c = (page * PAGE + KEEP_PLACE for page in (1000, 5000, 9000))
    builder = start().mapping(3, 1000, 33).mapping(4, 9000, 17)
    builder.allocation(5, "malloc", a, 32 * PAGE).allocation(6, "malloc", c, 16 * PAGE)
    builder.fault(10, 1005).fault(11, 1020)
    builder.allocation(20, "free", a, flags=1).allocation(21, "realloc", b, 33 * PAGE, old_address=a)
    builder.allocation(30, "free", c, flags=1).allocation(31, "realloc", a, 20 * PAGE, old_address=c)
    builder.fault(40, 1005)  # never touched in C
    builder.fault(41, 5005)  # touched in A, given back, touched again in B
    capture = builder.open(tmp_path / "c")
    assert capture.table("faults").sort_by("time_ns")["class"].to_pylist() == ["first", "first", "first", "again"]


def test_page_aligned_objects_are_taken_as_copied(tmp_path: Path) -> None:
    """Allocators with page-aligned objects copy: history in the target's own arena stays."""
    builder = start().mapping(3, 1000, 500).allocation(4, "malloc", 1000 * PAGE, 32 * PAGE).fault(5, 1300)
    builder.allocation(10, "free", 1000 * PAGE, flags=1)
    builder.allocation(11, "realloc", 1300 * PAGE, 64 * PAGE, old_address=1000 * PAGE).fault(20, 1300)
    assert builder.open(tmp_path / "c").table("faults").sort_by("time_ns")["class"].to_pylist() == ["first", "again"]


@pytest.mark.parametrize(("old_pages", "still_again"), [(8, True), (0, False)])
def test_mremap_moves_no_more_than_its_length(tmp_path: Path, old_pages: int, still_again: bool) -> None:
    """The kernel merges neighbours into one area; a move of the first 8 pages leaves the rest."""
    builder = start().mapping(3, 1000, 32).fault(4, 1020)
    builder.allocation(10, "mremap", 5000 * PAGE, 8 * PAGE, old_address=1000 * PAGE, protection=old_pages, map_flags=1)
    builder.fault(20, 1020)
    expected = ["first", "again" if still_again else "first"]
    assert builder.open(tmp_path / "c").table("faults").sort_by("time_ns")["class"].to_pylist() == expected


def test_pages_resident_at_attach_are_not_placed_by_the_kernel(tmp_path: Path) -> None:
    ms = 1_000_000
    builder = CaptureBuilder().event(1, "attach").mapping(3, 100, 1000)
    builder.meta["pid"] = 1001
    builder.look(0, 50 * ms, 200, 30).look(50 * ms, 100 * ms, 300, 5)
    figures = analyses.run("first_touch", builder.open(tmp_path / "c")).figures
    assert figures["placed_before_attach_bytes"] == 30 * PAGE and figures["placed_without_event_bytes"] == 5 * PAGE


# ---- real programs ---------------------------------------------------------------------------------


@needs_faults
def test_a_buffer_grown_by_realloc_and_wholly_written_has_no_untouched_page(record: Record, program: str) -> None:
    capture = record(program, "realloc")
    buffers = [row for row in objects(capture, "heap") if row["operation"] == "realloc"]
    assert len(buffers) >= 12
    assert all(row["never_touched_bytes"] == 0 for row in buffers), [row["never_touched_bytes"] for row in buffers]
    assert analyses.run("objects", capture).figures["never_touched_bytes"] == 0
    assert classes(capture, "memset").get("again", 0) == 0
    assert sum(count for name, count in Counter(map(str, capture.table("faults")["class"].to_pylist())).items()
               if name == "again") == 0  # fmt: skip


@needs_faults
def test_what_realloc_adds_and_nobody_writes_is_never_touched(record: Record, program: str) -> None:
    last = [row for row in objects(record(program, "half"), "heap") if row["operation"] == "realloc"][-1]
    assert last["bytes"] == 16 * MIB
    assert abs(int(last["never_touched_bytes"] or 0) - 8 * MIB) <= 2 * PAGE
    assert last["first_touch_thread"] is not None and last["top_thread_bytes"] >= 8 * MIB - 2 * PAGE


@needs_faults
def test_mremap_keeps_what_was_touched_through_three_moves(record: Record, program: str) -> None:
    capture = record(program, "mremap")
    last = [row for row in objects(capture, "mmap", at_least=8 * MIB) if row["operation"] == "mremap"][-1]
    # Half of the pages before the moves, half of the rest after them.
    assert (last["touched_bytes"], last["recycled_bytes"], last["never_touched_bytes"]) == (6 * MIB, 0, 2 * MIB)
    assert classes(capture, "main") == {"first": 1536}


@needs_faults
def test_populated_memory_is_not_called_untouched(record: Record, program: str) -> None:
    (row,) = objects(record(program, "populate"), "mmap", at_least=8 * MIB)
    assert row["never_touched_bytes"] == 0


@needs_faults
def test_files_and_shared_memory_make_no_claim_of_untouched_pages(record: Record, program: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_bytes(bytes(8 * MIB))
    capture = record(program, "file", data)
    (row,) = objects(capture, "mmap", at_least=8 * MIB)
    assert row["never_touched_bytes"] is None and row["touched_bytes"] is None
    assert analyses.run("objects", capture).figures["never_touched_bytes"] == 0


@needs_faults
def test_shared_memory_that_was_there_is_not_the_readers_first_touch(record: Record, program: str) -> None:
    segment = Path(f"/dev/shm/memlens-test-{time.monotonic_ns()}")
    if not segment.parent.is_dir():
        pytest.skip("no /dev/shm")
    try:
        assert classes(record(program, "shared", segment, "w"), "main") == {"first": 2048}
        again = record(program, "shared", segment, "r")
        assert set(classes(again, "main")) == {"file"}
        assert objects(again, "mmap", at_least=8 * MIB)[0]["never_touched_bytes"] is None
    finally:
        segment.unlink(missing_ok=True)


@needs_faults
def test_what_a_child_writes_is_used(record: Record, program: str) -> None:
    (row,) = [row for row in objects(record(program, "child"), "heap") if row["bytes"] == 8 * MIB]
    assert row["never_touched_bytes"] == 0


@needs_faults
def test_memory_from_before_attaching_is_named_so(program: str, tmp_path: Path) -> None:
    with subprocess.Popen([program, "attach"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdin is not None and running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        output = tmp_path / "attached.memlens"
        recorder = subprocess.Popen([*MEMLENS, "record", "-q", "-o", output, "--pid", str(running.pid)])
        deadline = time.monotonic() + 60
        while not (output / "meta.json").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(1.0)  # the first look at the page table
        running.stdin.write("\n")
        running.stdin.flush()
        assert running.stdout.readline() == "done\n"
        running.stdin.write("\n")
        running.stdin.close()
        assert recorder.wait(timeout=120) == 0
    capture = memlens.open(output)
    figures = analyses.run("first_touch", capture).figures
    assert 16 * MIB <= figures["placed_before_attach_bytes"] <= 17 * MIB
    assert figures["placed_without_event_bytes"] <= 64 << 10
    assert classes(capture, "touch") == {"first": 2048, "again": 1024}


@needs_faults
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's mremap")
def test_a_list_that_python_grows_has_no_untouched_generations(record: Record) -> None:
    text = "a=[]\nfor i in range(3_000_000): a.append(None)\n"
    capture = record(sys.executable, "-I", "-S", "-c", text)
    grown = [row for row in objects(capture, "heap", at_least=4 * MIB) if row["operation"] == "realloc"]
    assert grown
    # CPython asks for an eighth more than it fills.
    for row in grown:
        assert int(row["never_touched_bytes"] or 0) <= int(row["bytes"]) / 7, row
