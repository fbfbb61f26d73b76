"""Classing of faults: closed forms on hand-built records, and a brute-force oracle."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from builders import PAGE, CaptureBuilder

from memlens.capture.store.layouts import enum_value

MAJOR = enum_value("fault_flags", "major")
KERNEL = enum_value("fault_flags", "kernel_mode")


def classes(builder: CaptureBuilder, path: Path) -> list[str]:
    table = builder.open(path).table("faults").sort_by("time_ns")
    return [str(name) for name in table.column("class").to_pylist()]


def start() -> CaptureBuilder:
    return CaptureBuilder().event(1, "fork").event(2, "exec", name="p").mapping(3, 100, 1000)


def test_first_then_upgrade_then_again(tmp_path: Path) -> None:
    builder = start().fault(10, 200).fault(11, 200, before=12).fault(12, 200)
    assert classes(builder, tmp_path / "c") == ["first", "upgrade", "again"]


def test_a_huge_page_counts_its_whole_span_once(tmp_path: Path) -> None:
    builder = start().mapping(4, 1024, 1024).fault(10, 1024 + 7, after=21).fault(11, 1024 + 9, before=12)
    table = builder.open(tmp_path / "c").table("faults").sort_by("time_ns")
    assert table.column("new_bytes").to_pylist() == [512 * PAGE, 0]
    assert table.column("span_bytes").to_pylist() == [512 * PAGE, PAGE]
    assert table.column("class").to_pylist() == ["first", "upgrade"]


def test_fork_makes_copies_in_both_processes(tmp_path: Path) -> None:
    builder = start().fault(10, 200).fault(11, 201)
    builder.event(20, "fork", process=2, parent=1, thread=102)
    builder.fault(30, 200, process=2, thread=102, before=12)  # the child writes an inherited page
    builder.fault(31, 200, process=2, thread=102, before=12)  # and again: its own now
    builder.fault(32, 201, before=12)  # the parent writes one that the child still shares
    builder.fault(33, 300, process=2, thread=102)  # fresh in the child
    assert classes(builder, tmp_path / "c") == ["first", "first", "copy", "upgrade", "copy", "first"]


def test_exec_starts_with_an_empty_address_space(tmp_path: Path) -> None:
    builder = start().fault(10, 200).event(20, "exec", name="q").mapping(21, 100, 1000).fault(30, 200)
    assert classes(builder, tmp_path / "c") == ["first", "first"]


def test_file_pages_and_private_writes(tmp_path: Path) -> None:
    builder = start().mapping(4, 5000, 10, path="/data", inode=9)
    builder.fault(10, 5000).fault(11, 5000, before=12).fault(12, 5001, flags=MAJOR)
    assert classes(builder, tmp_path / "c") == ["file", "copy", "major"]


def test_shared_memory_is_first_for_one_process_only(tmp_path: Path) -> None:
    builder = start().mapping(4, 5000, 10, path="/dev/zero (deleted)", inode=77, shared=True)
    builder.fault(10, 5003)
    builder.event(20, "fork", process=2, parent=1, thread=102).fault(30, 5003, process=2, thread=102).fault(
        31, 5004, process=2, thread=102
    )
    builder.fault(40, 5004)
    assert classes(builder, tmp_path / "c") == ["first", "file", "first", "file"]


def test_kernel_mode_faults_are_placed_not_touched(tmp_path: Path) -> None:
    builder = start().fault(10, 200, flags=KERNEL).fault(11, 201)
    assert classes(builder, tmp_path / "c") == ["placed", "first"]


def test_a_new_mapping_at_the_same_place_is_a_first_touch(tmp_path: Path) -> None:
    builder = start().mapping(5, 5000, 10).fault(10, 5001).mapping(20, 5000, 10).fault(30, 5001).fault(40, 5001)
    table = builder.open(tmp_path / "c").table("faults").sort_by("time_ns")
    assert table.column("class").to_pylist() == ["first", "first", "again"]
    assert table.column("new_bytes").to_pylist() == [PAGE, PAGE, 0]


def test_growth_by_merging_keeps_what_was_touched(tmp_path: Path) -> None:
    builder = start().mapping(5, 5000, 10).fault(10, 5001).mapping(20, 5000, 20).fault(30, 5001).fault(40, 5015)
    assert classes(builder, tmp_path / "c") == ["first", "again", "first"]


def test_a_protection_change_keeps_what_was_touched(tmp_path: Path) -> None:
    builder = start().mapping(5, 5000, 10).fault(10, 5001).mapping(20, 5000, 10, protection=1).fault(30, 5001)
    assert classes(builder, tmp_path / "c") == ["first", "again"]


def test_hints_only_with_numa_balancing(tmp_path: Path) -> None:
    builder = start().fault(10, 200).fault(11, 200, before=12).fault(12, 200, before=12)
    assert classes(builder, tmp_path / "a") == ["first", "upgrade", "upgrade"]
    builder = start().fault(10, 200).fault(11, 200, before=12).fault(12, 200, before=12)
    builder.machine["numa_balancing"] = True
    assert classes(builder, tmp_path / "b") == ["first", "upgrade", "hint"]


def test_unobserved_before_is_inferred_and_says_so(tmp_path: Path) -> None:
    builder = start().fault(10, 200, before=255).fault(11, 200, before=255)
    table = builder.open(tmp_path / "c").table("faults").sort_by("time_ns")
    assert table.column("class").to_pylist() == ["first", "again"]
    assert table.column("inferred").to_pylist() == [False, True]


def test_resident_pages_without_an_event_are_placed_once(tmp_path: Path) -> None:
    ms = 1_000_000
    builder = start().mapping(4, 5000, 100).fault(10, 5010)
    builder.look(0, 50 * ms, 5000, 20).look(50 * ms, 100 * ms, 5000, 30)
    placed = builder.open(tmp_path / "c").table("placed")
    assert sum(placed.column("bytes").to_pylist()) == 29 * PAGE  # 30 pages less the one with an event
    assert placed.column("moved").to_pylist() == [False] * placed.num_rows
    assert placed.column("begin_ns").to_pylist()[-1] == 50 * ms


def test_an_event_just_after_the_look_explains_the_page(tmp_path: Path) -> None:
    ms = 1_000_000
    builder = start().mapping(4, 5000, 100).look(0, 50 * ms, 5000, 2).fault(50 * ms + 1000, 5000)
    capture = builder.open(tmp_path / "c")
    assert sum(capture.table("placed").column("bytes").to_pylist()) == PAGE
    assert capture.table("faults").column("class").to_pylist() == ["first"]


def test_pages_at_an_address_that_nothing_mapped_were_moved(tmp_path: Path) -> None:
    builder = start().look(0, 50_000_000, 90_000, 16)
    placed = builder.open(tmp_path / "c").table("placed")
    assert placed.column("moved").to_pylist() == [True]


def test_inherited_pages_are_not_placed_in_the_child(tmp_path: Path) -> None:
    builder = (
        start().fault(10, 200).event(20, "fork", process=2, parent=1, thread=102).look(0, 50_000_000, 200, 1, process=2)
    )
    assert builder.open(tmp_path / "c").table("placed").num_rows == 0


def test_zero_and_file_pages_of_a_look_are_not_placed(tmp_path: Path) -> None:
    zero, file = enum_value("residency_flags", "zero_page"), enum_value("residency_flags", "file_or_shared")
    builder = start().look(0, 50_000_000, 300, 4, flags=zero).look(0, 50_000_000, 310, 4, flags=file)
    assert builder.open(tmp_path / "c").table("placed").num_rows == 0


def test_records_out_of_order_give_the_same_classes(tmp_path: Path) -> None:
    builder = start().fault(10, 200).fault(11, 200, before=12).fault(12, 201).fault(13, 200)
    expected = classes(builder, tmp_path / "a")
    shuffled = start().fault(13, 200).fault(11, 200, before=12).fault(12, 201).fault(10, 200)
    assert classes(shuffled, tmp_path / "b") == expected


class Model:
    """An independent, slow model of Linux's private anonymous memory: what each fault must be."""

    def __init__(self) -> None:
        self.owned: dict[int, dict[int, str]] = {1: {}}  # process → page → zero | own | shared
        self.touched: dict[int, set[int]] = {1: set()}

    def fork(self, parent: int, child: int) -> None:
        for page, state in self.owned[parent].items():
            if state == "own":
                self.owned[parent][page] = "shared"
        self.owned[child] = dict(self.owned[parent])
        self.touched[child] = set(self.touched[parent])

    def give_back(self, process: int, page: int) -> None:
        self.owned[process].pop(page, None)

    def access(self, process: int, page: int, write: bool) -> tuple[str, int] | None:
        """(class, page size before) of the fault, or None when there is none."""
        state = self.owned[process].get(page)
        if state is None:
            name = "again" if page in self.touched[process] else "first"
            self.owned[process][page] = "own" if write else "zero"
            self.touched[process].add(page)
            return name, 0
        if write and state == "zero":
            self.owned[process][page] = "own"
            return "zero-write", 12
        if write and state == "shared":
            self.owned[process][page] = "own"
            return "copy", 12
        return None


@pytest.mark.parametrize("seed", range(40))
def test_random_histories_against_a_model_of_the_kernel(tmp_path: Path, seed: int) -> None:
    source = random.Random(seed)
    model = Model()
    builder = start()
    expected: list[set[str]] = []
    processes = [1]
    forked_since: dict[tuple[int, int], bool] = {}
    now = 100
    for _ in range(300):
        now += 10
        process = source.choice(processes)
        page = 200 + source.randrange(12)
        action = source.random()
        if action < 0.06 and len(processes) < 5:
            child = len(processes) + 1
            model.fork(process, child)
            processes.append(child)
            builder.event(now, "fork", process=child, parent=process, thread=100 + child)
            for p in range(200, 212):
                forked_since[process, p] = forked_since[child, p] = True
        elif action < 0.2:
            model.give_back(process, page)
        else:
            outcome = model.access(process, page, write=source.random() < 0.6)
            if outcome is None:
                continue
            name, before = outcome
            builder.fault(now, page, process=process, thread=100 + process, before=before)
            if name == "zero-write":
                # A zero page that a fork shared: the write copies nothing, and from outside looks like a copy.
                expected.append({"upgrade", "copy"} if forked_since.get((process, page)) else {"upgrade"})
            else:
                expected.append({name})
            forked_since[process, page] = False
    got = classes(builder, tmp_path / "c")
    assert len(got) == len(expected)
    for index, (name, allowed) in enumerate(zip(got, expected, strict=True)):
        assert name in allowed, f"fault {index}: {name}, expected {allowed}"
