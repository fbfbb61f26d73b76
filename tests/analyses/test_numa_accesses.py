"""Classes of accesses by NUMA node, against a walk over single accesses by the definitions of the paper."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from builders import PAGE, CaptureBuilder
from conftest import run_memlens
from hypothesis import given, settings
from hypothesis import strategies as st

import memlens
from memlens.analyses.numa._classes import CLASSES
from memlens.capture.store.layouts import enum_value

NODES = [
    {"node": 0, "cpus": [0, 1], "bytes": 1 << 30, "distances": [10, 20, 17]},
    {"node": 1, "cpus": [2, 3], "bytes": 1 << 30, "distances": [20, 10, 31]},
    {"node": 2, "cpus": [], "bytes": 1 << 30, "distances": [17, 31, 10]},
]
FIRST_PAGE = 0x7F0000
MASKS = {0b0011: 0, 0b0100: 1, 0b1100: 1, 0b0110: -1, 0b1111: -1}


class Machine(CaptureBuilder):
    """A process of threads 100, 101, … on three nodes, the last without CPUs."""

    def __init__(self, threads: int, pages: int) -> None:
        super().__init__()
        self.machine["numa_nodes"] = NODES
        self.meta["collectors"] = {"alloc": {"sample_bytes": 1}, "faults": {"single": True}}
        self.event(1, "exec", name="test")
        self.pin(2, 100, 0b1111, "found")
        self.mapping(3, FIRST_PAGE, pages)
        for number in range(1, threads):
            self.add("process_event", 1, time_ns=4 + number, pid=1001, thread=100 + number, parent_process=1, parent_thread=100,
                     operation=enum_value("process_operation", "thread"), status=-1)  # fmt: skip

    def pin(self, time_ns: int, thread: int, mask: int, operation: str = "sched_setaffinity", **fields: int) -> None:
        self.add("pinning", 1, tail=mask.to_bytes(8, "little"), time_ns=time_ns, thread=thread,
                 operation=enum_value("pinning_operation", operation), **fields)  # fmt: skip

    def node(self, time_ns: int, page: int, node: int, evidence_ns: int = 0) -> None:
        self.add("placement", 1, time_ns=time_ns, evidence_ns=evidence_ns or time_ns, address=(FIRST_PAGE + page) * PAGE,
                 node=node, page_shift=12)  # fmt: skip

    def touch(self, time_ns: int, page: int, thread: int) -> None:
        self.fault(time_ns, FIRST_PAGE + page, thread=thread)

    def use(self, time_ns: int, thread: int, pages: list[int], offset: int = 64) -> None:
        """Accesses of a thread, one in a nanosecond, in one record."""
        accesses = [(0x1000, (FIRST_PAGE + page) * PAGE + offset, 8, 1) for page in pages]
        number = self._executed.get(thread, 0)
        self.window(time_ns, accesses, thread=thread, end_ns=time_ns + len(pages) - 1, first_executed=number)
        self._executed[thread] = number + len(pages)

    @property
    def _executed(self) -> dict[int, int]:
        return self.__dict__.setdefault("executed_of", {})  # type: ignore[no-any-return]


def classes(result: Any) -> Counter[str]:
    return Counter({name: round(result.figures[name]) for name in CLASSES if result.figures[name]})


def test_each_class_of_the_paper(tmp_path: Path) -> None:
    machine = Machine(3, 10)
    machine.pin(20, 100, 0b0011)
    machine.pin(21, 101, 0b1100)
    for page in (0, 1):
        machine.touch(30, page, 100)  # bound to node 0
        machine.node(40, page, 0)
    machine.touch(31, 2, 102)  # by a thread that may run anywhere
    machine.node(41, 2, 1)
    machine.touch(32, 3, 101)
    machine.node(42, 3, 2)
    machine.use(100, 100, [0, 0, 1, 1, 1])
    machine.use(200, 101, [0, 2, 3, 3])
    machine.use(300, 102, [0, 2, 3, 9])
    result = memlens.analyses.run("numa", machine.open(tmp_path / "c.memlens"))
    assert classes(result) == Counter(
        first_touch=3,  # pages 0 and 1 by thread 100, page 3 by 101
        unpinned_first_touch=1,  # page 2 by thread 102
        local=3, remote=1, unpinned_page=1, unpinned_thread=1, memory_only_remote=2, unknown=1,
    )  # fmt: skip
    matrix = {(row["home"], row["page_node"]): row["accesses"] for row in result.tables["matrix"].to_pylist()}
    assert matrix == {("node 0", 0): 5, ("node 1", 0): 1, ("node 1", 1): 1, ("node 1", 2): 2, ("unpinned", 0): 1, ("unpinned", 1): 1, ("unpinned", 2): 1}  # fmt: skip
    distances = {row["distance"]: row["accesses"] for row in result.tables["distances"].to_pylist()}
    assert distances == {10: 6, 20: 1, 31: 2, None: 3}
    assert result.figures["remote_share"] == pytest.approx(3 / 6)


def test_accesses_around_a_move_are_undecided(tmp_path: Path) -> None:
    machine = Machine(1, 10)
    machine.pin(20, 100, 0b0001)
    for page in (0, 1):
        machine.touch(30, page, 100)
        machine.node(40, page, 0)
        machine.node(500, page, 1)
    machine.use(100, 100, [0, 1, 0, 1])
    # Page 1 was moved by the program at 300; nothing says when page 0 was.
    machine.pin(300, 100, 0, "mbind", address=(FIRST_PAGE + 1) * PAGE, bytes=PAGE, policy=2, flags=2)
    machine.use(400, 100, [0, 1])
    machine.use(600, 100, [0, 1])
    result = memlens.analyses.run("numa", machine.open(tmp_path / "c.memlens"))
    assert classes(result) == Counter(first_touch=2, local=1, remote=3, undecided=2)
    assert not result.quality.exact


def test_a_thread_that_is_moved_in_a_record(tmp_path: Path) -> None:
    machine = Machine(1, 10)
    machine.pin(20, 100, 0b0001)
    machine.touch(30, 0, 100)
    machine.node(40, 0, 0)
    machine.use(100, 100, [0] * 5)
    machine.use(200, 100, [0] * 5)
    machine.pin(202, 100, 0b0100)
    machine.use(300, 100, [0] * 5)
    result = memlens.analyses.run("numa", machine.open(tmp_path / "c.memlens"))
    assert classes(result) == Counter(first_touch=1, local=4, undecided=5, remote=5)


def test_without_pinning_records_nothing_is_called_unpinned(tmp_path: Path) -> None:
    machine = Machine(1, 10)
    machine.meta["collectors"] = {"trace": {}}
    machine.touch(30, 0, 100)
    machine.node(40, 0, 0)
    machine.use(100, 100, [0] * 5)
    result = memlens.analyses.run("numa", machine.open(tmp_path / "c.memlens"))
    assert classes(result) == Counter(unknown=5)
    assert "numa.unknown" in {note.code for note in result.quality.notes if hasattr(note, "code")}


def test_one_node_has_nothing_remote(tmp_path: Path) -> None:
    machine = Machine(2, 10)
    machine.machine["numa_nodes"] = [{"node": 0, "cpus": [0, 1, 2, 3], "bytes": 1 << 30, "distances": [10]}]
    machine.touch(30, 0, 100)
    machine.use(100, 100, [0] * 5)
    machine.use(200, 101, [0, 1])
    result = memlens.analyses.run("numa", machine.open(tmp_path / "c.memlens"))
    assert classes(result) == Counter(first_touch=1, local=6)
    assert result.figures["remote_share"] == 0


steps = st.lists(
    st.one_of(
        st.tuples(st.just("pin"), st.integers(0, 3), st.sampled_from(sorted(MASKS))),
        st.tuples(st.just("use"), st.integers(0, 3), st.lists(st.integers(0, 5), min_size=1, max_size=6)),
        st.tuples(st.just("unmap"), st.integers(0, 5), st.none()),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(steps, st.lists(st.integers(0, 2), min_size=40, max_size=40))
def test_random_programs_against_a_walk(
    tmp_path_factory: pytest.TempPathFactory, program: list[Any], placed: list[int]
) -> None:
    """Pages are placed by the first thread that uses them, on a node of chance; an unmapped page is placed anew."""
    machine = Machine(4, 6)
    homes = dict.fromkeys(range(4), -1)
    pages: dict[int, tuple[int, bool]] = {}
    expected: Counter[str] = Counter()
    by_thread: Counter[tuple[int, str]] = Counter()
    time_ns, next_place = 1000, 0
    for what, which, argument in program:
        time_ns += 1000
        if what == "pin":
            machine.pin(time_ns, 100 + which, argument)
            homes[which] = MASKS[argument]
        elif what == "unmap":
            if which in pages:
                del pages[which]
                machine.mapping(time_ns, FIRST_PAGE + which, 1)
        else:
            home = homes[which]
            for at, page in enumerate(argument):
                if page not in pages:
                    pages[page] = (placed[next_place % 40], home >= 0)
                    next_place += 1
                    machine.touch(time_ns + at, page, 100 + which)
                    machine.node(time_ns + 500, page, pages[page][0])
                    name = "first_touch" if home >= 0 else "unpinned_first_touch"
                else:
                    node, bound = pages[page]
                    if node == 2:
                        name = "memory_only_local" if home == 0 else "memory_only_remote"
                    elif home < 0:
                        name = "unpinned_thread" if bound else "unpinned_both"
                    elif not bound:
                        name = "unpinned_page"
                    else:
                        name = "local" if node == home else "remote"
                expected[name] += 1
                by_thread[100 + which, name] += 1
            machine.use(time_ns, 100 + which, argument)
    if not expected:
        return
    capture = machine.open(tmp_path_factory.mktemp("numa") / "c.memlens")
    result = memlens.analyses.run("numa", capture)
    assert classes(result) == expected
    found = {
        (row["thread"], name): round(row[name])
        for row in result.tables["by_thread"].to_pylist()
        for name in CLASSES
        if row[name]
    }
    assert found == dict(by_thread)


def test_terminal_and_page_show_pages_whose_node_is_not_known(tmp_path: Path) -> None:
    machine = Machine(2, 10)
    machine.pin(20, 101, 0b1100)
    for page, node in ((0, 0), (1, 1), (2, None)):
        machine.touch(30 + page, page, 100)
        if node is not None:
            machine.node(40 + page, page, node, evidence_ns=30 + page)
    machine.use(100, 101, [0, 1, 2, 0])
    path = machine.write(tmp_path / "c.memlens")
    page_file = tmp_path / "page.html"
    done = run_memlens("report", path, "--html", page_file)
    assert done.returncode == 0, done.stderr
    text = page_file.read_text()
    assert "NUMA accesses" in text and "NUMA placement" in text and "not known" in text
    shown = run_memlens("numa", path)
    assert shown.returncode == 0, shown.stderr
    assert "not known" in shown.stdout and "By thread and node" in shown.stdout
    found = json.loads(run_memlens("numa", path, "--json").stdout)
    assert found["numa"]["figures"]["unknown"] == 1 and len(found["placement"]["tables"]["matrix"]) == 3
