"""Captures of any length: faults and allocations that are streamed give what they give at once, and what is forgotten was summed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import PAGE, CaptureBuilder
from hypothesis import given, settings
from hypothesis import strategies as st
from test_objects import ADDERS, Event, events, record

from memlens import _core
from memlens.capture.model import objects as objects_model
from memlens.capture.model import replay as replay_model


def table_of(history: list[Event], *, steps: list[int] | None = None, **options: Any) -> Any:
    """The engine, fed at once or in steps of time."""
    table = _core.ObjectTable(page_bytes=PAGE, **options)
    made = [(event[2]["time_ns"], *record(event)) for event in history]
    for _, kind, process, payload in made:
        if kind != "allocation":
            getattr(table, ADDERS[kind])(process, payload)
    allocations = [(at, entry) for at, entry in enumerate(made) if entry[1] == "allocation"]
    for _, (time_ns, _, process, _) in allocations:
        table.expect(process, time_ns, time_ns)
    table.begin()
    done = 0
    for step in [*(steps or []), 1 << 62]:
        for at, (time_ns, _, process, payload) in allocations:
            if done <= time_ns < step:
                table.add_allocations(process, payload, at)
        table.advance(step)
        done = max(done, step)
    table.finish()
    return table


@given(history=events(), steps=st.lists(st.integers(1, 60), max_size=5))
@settings(max_examples=60, deadline=None)
def test_allocations_in_steps_of_time_are_those_at_once(history: list[Event], steps: list[int]) -> None:
    once, streamed = table_of(history), table_of(history, steps=sorted(steps))
    for name, values in once.columns().items():
        assert values.tolist() == streamed.columns()[name].tolist(), name
    assert once.counts == streamed.counts


@given(history=events(), most=st.integers(1, 6))
@settings(max_examples=120, deadline=None)
def test_sums_are_whole_when_small_ended_objects_are_forgotten(history: list[Event], most: int) -> None:
    everything, kept = table_of(history), table_of(history, most_rows=most, largest=0)
    assert kept.made == everything.made == everything.count and kept.counts == everything.counts
    for of in ("by_stack", "peaks"):
        one, other = getattr(everything, of)(), getattr(kept, of)()
        assert {name: values.tolist() for name, values in one.items()} == {n: v.tolist() for n, v in other.items()}
    for process in everything.peaks()["process"].tolist():
        for kind in ("heap", "mmap"):
            both = everything.curve(process, kind), kept.curve(process, kind)
            assert [part.tolist() for part in both[0]] == [part.tolist() for part in both[1]]
    # What is left is as it was, and found where it lives at the end.
    columns, whole = kept.columns(), everything.columns()
    rows = columns["number"].astype(np.int64) - 1
    for name in ("base", "bytes", "born_ns", "died_ns", "kind", "process", "thread", "site", "weight_bytes"):
        assert columns[name].tolist() == whole[name][rows].tolist(), name
    missing = np.setdiff1d(np.arange(everything.count), rows)
    heap = _core.OBJECT_KINDS.index("heap")
    assert all(
        whole["kind"][row] == heap and whole["died_ns"][row] != 0 and whole["bytes"][row] < PAGE for row in missing
    )
    addresses = np.arange(0, 400, 8, dtype=np.uint64)
    for process in (1, 2, 3):
        asked = (np.full(len(addresses), process, np.uint32), addresses, np.full(len(addresses), 10_000, np.uint64))
        found = kept.find(*asked)
        numbers = np.concatenate(([0], columns["number"]))[found]
        assert numbers.tolist() == everything.find(*asked).tolist()


def level_peak(things: list[tuple[int, int, int]]) -> int:
    """Of (born, died, bytes): the highest sum of what lives at the end of a moment."""
    times = sorted({born for born, _, _ in things})
    return max((sum(size for born, died, size in things if born <= at < died) for at in times), default=0)


@given(history=events(), ends=st.dictionaries(st.integers(1, 3), st.integers(50, 90)))
@settings(max_examples=80, deadline=None)
def test_the_peak_of_sites_together_agrees_with_brute_force(history: list[Event], ends: dict[int, int]) -> None:
    table = _core.ObjectTable(page_bytes=PAGE)
    for kind, process, payload in map(record, history):
        getattr(table, ADDERS[kind])(process, payload)
    for process, end_ns in ends.items():
        table.add_process_end(process, end_ns)
    table.run()
    columns, sites = table.columns(), table.by_stack()
    last = max([0, *columns["born_ns"].tolist(), *columns["died_ns"].tolist()])
    if any(end <= last for end in ends.values()):
        return  # a record after its process's end
    groups = (sites["stack"] % 2).astype(np.uint32)
    exact, _ = table.peaks_together(groups, 2)
    for group in (0, 1):
        things = [
            (int(columns["born_ns"][row]), int(columns["died_ns"][row]) or ends.get(int(columns["process"][row]), 1 << 60),
             int(columns["weight_bytes"][row]) or int(columns["bytes"][row]))
            for row in range(table.count)
            if columns["site"][row] < len(groups) and groups[columns["site"][row]] == group
        ]  # fmt: skip
        assert int(exact[group]) == level_peak(things)


@given(
    faults=st.lists(st.tuples(st.integers(1, 200), st.integers(0, 12), st.integers(100, 103)), min_size=1, max_size=60),
    maps=st.lists(st.tuples(st.integers(1, 200), st.integers(0, 8)), max_size=6),
)
@settings(max_examples=60, deadline=None)
def test_faults_in_batches_are_those_at_once(
    faults: list[tuple[int, int, int]], maps: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    def capture(path: Path) -> Any:
        made = CaptureBuilder()
        for time_ns, page in maps:
            made.mapping(time_ns, page, 4)
        for time_ns, page, thread in faults:
            made.fault(time_ns, page, thread=thread, ip=0x1000 + 16 * (page % 3))
        return made.open(path / "made.memlens")

    once = capture(tmp_path_factory.mktemp("once"))
    batched = capture(tmp_path_factory.mktemp("batched"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay_model, "MOST_WAITING", 1)
        parts = list(batched.replay.fault_batches())
    whole = once.table("faults")
    for name in ("time_ns", "thread", "address"):
        assert np.concatenate([part[name] for part in parts]).tolist() == whole.column(name).to_pylist()
    assert np.concatenate([p["new_pages"] for p in parts]).sum() * PAGE == sum(whole.column("new_bytes").to_pylist())
    # Sums are those of the rows.
    groups = once.replay.fault_groups
    rows = groups.column("rows").to_numpy()
    assert rows.sum() == once.row_count("faults") == whole.num_rows == len(faults)
    assert (rows * groups.column("new_bytes").to_numpy()).sum() == sum(whole.column("new_bytes").to_pylist())
    counts = {name: sum(values) for name, values in once.replay.faults_in_time().items() if sum(values)}
    classes = whole.column("class").to_pylist()
    assert counts == {name: classes.count(name) for name in set(classes)}


def test_a_capture_of_many_objects_has_rows_for_all_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("AT_ONCE", 10), ("MOST_WAITING", 4)):
        monkeypatch.setattr(objects_model, name, value)
    made = CaptureBuilder()
    for number in range(500):
        malloc, free = (("malloc", 16 + number % 64), ("free", 0))
        for at, (operation, size) in enumerate((malloc, free)):
            made.allocation(
                1000 + 10 * number + at, operation, address=4096 + 16 * (number % 7), bytes=size, stack=1 + number % 3
            )
    capture = made.open(tmp_path / "made.memlens")
    objects = objects_model.Objects(capture, most_rows=20)
    assert objects.count == 500 and not objects.has_all and objects.engine.count < 500
    assert objects.everything.has_all and objects.everything.table().column("id").to_pylist() == list(range(1, 501))
    assert sum(objects.sites().column("rows").to_pylist()) == 500
    assert capture.sql("SELECT count(*) FROM objects").column(0).to_pylist() == [500]
