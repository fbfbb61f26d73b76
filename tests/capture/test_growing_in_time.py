"""Caches and sharing of a capture that grows: what lies below the horizon, as a report of it computed anew says it, however threads and chunks interleave."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import CaptureBuilder
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from test_one_pass import started, write_windows

from memlens import analyses
from memlens.analyses._growing import GrowingInTime
from memlens.analyses.caches import CachesConsumer, cache_model
from memlens.analyses.sharing import SharingConsumer
from memlens.capture.model.access_pass import run
from memlens.capture.model.locality import ThreadAccesses, _part
from memlens.capture.reader import Capture, open_capture
from memlens.capture.store.layouts import layouts

LOAD, STORE = 1, 2
BY = {"caches": ("line", "object"), "sharing": None}


def options_of(name: str) -> dict[str, Any]:
    by = BY[name]
    return {} if by is None else {"by": by}


def windows_of(threads: int, windows: int, seed: int, *, lag: int) -> CaptureBuilder:
    """Windows of threads that share lines, each thread's in its order; a thread's windows are written up to `lag` rounds late."""
    random = np.random.default_rng(seed)
    made = CaptureBuilder()
    made.mapping(1, 0x100, 0x10, path="/no/such/program", protection=5)
    pending: list[tuple[float, int, dict[str, Any], list[Any]]] = []
    for thread in range(threads):
        done, late = 0, int(random.integers(0, lag + 1))
        begin = 1000 + int(random.integers(0, 3))
        for number in range(windows):
            parts = 2 if random.integers(4) == 0 else 1
            for part in range(parts):
                count = int(random.integers(1, 30))
                accesses = [
                    (
                        0x100000 + 16 * int(random.integers(5)),
                        0x10000000 + 8 * int(random.integers(60)),
                        8,
                        STORE if random.integers(3) == 0 else LOAD,
                    )
                    for _ in range(count)
                ]
                executed = count if part + 1 < parts else count * 4
                what = {"thread": 100 + thread, "executed": executed, "first_executed": done, "end_ns": begin + count}
                pending.append((number + late + 0.1 * part, begin, what, accesses))
                done += executed
                begin += count + int(random.integers(0, 40))
    # Each thread's records in their order; which thread comes first in a round is chance.
    pending.sort(key=lambda one: (one[0], one[2]["thread"] * 7919 % 11))
    for _, begin, what, accesses in pending:
        made.window(begin, accesses, **what)
    return made


class Prefix(ThreadAccesses):
    """The settled prefix as the tests compute it: windows but the last of each thread, up to the least begin of those."""

    def __init__(self, capture: Capture) -> None:
        super().__init__(capture)
        rows = capture.table("windows").select(["process", "thread", "unit", "begin_ns"]).to_pylist()
        last: dict[tuple[int, int], tuple[int, int]] = {}
        for row in rows:
            key = row["process"], row["thread"]
            unit, begin = last.get(key, (-1, 0))
            if row["unit"] > unit:
                last[key] = row["unit"], row["begin_ns"]
            elif row["unit"] == unit:
                last[key] = unit, min(begin, row["begin_ns"])
        self.horizon = min(begin for _, begin in last.values())
        open_units = {unit for unit, _ in last.values()}
        self.is_closed = np.array([row["unit"] not in open_units for row in rows])

    def batches(self, **options: Any) -> Iterator[Any]:
        for batch in super().batches(**options):
            chosen = np.flatnonzero(self.is_closed[batch.window] & (batch.time_ns < self.horizon))
            if len(chosen):
                yield _part(batch, chosen)  # type: ignore[arg-type]

    @property
    def recorded(self) -> int:
        return sum(len(batch) for batch in self.batches())


def anew(name: str, capture: Capture) -> Any:
    accesses = Prefix(capture)
    if name == "caches":
        return cache_model(capture, accesses=accesses, by=BY["caches"])
    return run(accesses, SharingConsumer(capture, accesses=accesses))


def assert_same(found: Any, wanted: Any, *, without: tuple[str, ...] = ()) -> None:
    assert found.figures == wanted.figures
    assert found.tables.keys() == wanted.tables.keys()
    for title, table in wanted.tables.items():
        kept = [name for name in table.column_names if name not in without]
        rows = [sorted(map(str, one.select(kept).to_pylist())) for one in (table, found.tables[title])]
        assert rows[0] == rows[1], title


def complete(path: Path, capture: Capture, writer: Any) -> None:
    writer.close()
    meta = json.loads((path / "meta.json").read_text())
    (path / "meta.json").write_text(json.dumps({**meta, "state": "complete"}))
    capture.refresh()
    capture.reread_meta()


def follow(path: Path, name: str, made: CaptureBuilder, *, a_chunk: int, steps: list[int]) -> GrowingInTime:
    """Snapshots after so many chunks each; what each of them says is compared."""
    writer = started(path, made)
    n_windows = sum(kind == "window" for kind, _, _ in made.records)
    chunks = -(-n_windows // a_chunk)
    write_windows(path, made, a_chunk=a_chunk, chunks=slice(0, 1), writer=writer)
    capture = open_capture(path)
    growing = GrowingInTime(capture, name, **options_of(name))
    at = 1
    for step in steps:
        found = growing.snapshot()
        # Windows of the rest are counted among those in which a thread uses a line: of a prefix they are not.
        assert_same(found, anew(name, open_capture(path)), without=("windows", "other_windows"))
        assert_same(found, GrowingInTime(open_capture(path), name, **options_of(name)).snapshot())
        write_windows(path, made, a_chunk=a_chunk, chunks=slice(at, at + step), writer=writer)
        at += step
        capture.refresh()
    write_windows(path, made, a_chunk=a_chunk, chunks=slice(at, chunks), writer=writer)
    complete(path, capture, writer)
    options = {"by": BY["caches"]} if name == "caches" else {}
    assert_same(growing.snapshot(), analyses.run(name, open_capture(path), **options))
    return growing


@pytest.mark.parametrize("name", ["caches", "sharing"])
def test_what_needs_the_order_of_time_continues(tmp_path: Path, name: str) -> None:
    made = windows_of(3, 16, 4, lag=0)
    growing = follow(tmp_path / "c.memlens", name, made, a_chunk=6, steps=[1, 1, 1, 2, 1])
    assert growing.started_over == 0
    assert growing.snapshot().figures["accesses"] > 0


@pytest.mark.parametrize("name", ["caches", "sharing"])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    threads=st.integers(1, 5), windows=st.integers(2, 10), seed=st.integers(0, 2**32), lag=st.integers(0, 6),
    a_chunk=st.integers(1, 9), steps=st.lists(st.integers(0, 4), min_size=1, max_size=5),
)  # fmt: skip
def test_any_interleaving_of_threads_and_refreshes(
    name: str, threads: int, windows: int, seed: int, lag: int, a_chunk: int, steps: list[int]
) -> None:
    made = windows_of(threads, windows, seed, lag=lag)
    with tempfile.TemporaryDirectory() as folder:
        growing = follow(Path(folder) / "c.memlens", name, made, a_chunk=a_chunk, steps=steps)
    event(f"{name} started over {growing.started_over} times")


def test_a_snapshot_leaves_the_engines_as_they_are(tmp_path: Path) -> None:
    capture = windows_of(3, 12, 9, lag=2).open(tmp_path / "c.memlens")
    for consumer in (CachesConsumer(capture), SharingConsumer(capture)):
        first = run(consumer.accesses, consumer)
        assert_same(consumer.snapshot(), first)


def test_a_thread_that_was_not_seen_before_starts_over(tmp_path: Path) -> None:
    """Its first window is earlier than what the engines have seen."""
    made = CaptureBuilder()
    accesses = [(0x100000, 0x10000000 + 8 * at, 8, STORE) for at in range(8)]
    for number in range(6):
        made.window(1000 * number + 1000, accesses, thread=1, executed=20, first_executed=20 * number)
    for number in range(3):
        made.window(1500 + 2000 * number, accesses, thread=2, executed=20, first_executed=20 * number)
    growing = follow(tmp_path / "c.memlens", "sharing", made, a_chunk=3, steps=[1, 1])
    assert growing.started_over == 1


def test_threads_that_have_ended_do_not_hold_the_horizon(tmp_path: Path) -> None:
    made = CaptureBuilder()
    accesses = [(0x100000, 0x10000000 + 8 * at, 8, STORE) for at in range(8)]
    made.event(2900, "thread_exit", thread=2)
    for number in range(2):
        made.window(1500 + 1000 * number, accesses, thread=2, executed=20, first_executed=20 * number)
    for number in range(6):
        made.window(1000 * number + 1000, accesses, thread=1, executed=20, first_executed=20 * number)
    path = tmp_path / "c.memlens"
    writer = started(path, made)
    write_windows(path, made, a_chunk=2, chunks=slice(0, 3), writer=writer)
    growing = GrowingInTime(open_capture(path), "sharing")
    assert growing.snapshot().figures["accesses"] == 16 + 3 * 8
    assert growing.horizon_ns == 4000


def allocated(at_ns: int, address: int) -> bytes:
    made = CaptureBuilder().allocation(at_ns, "malloc", address, 4096, thread=100)
    return made.records[-1][2]


@pytest.mark.parametrize(("born_ns", "over"), [(2500, 1), (6500, 0)])
def test_an_object_that_is_known_later_starts_over_only_where_it_has_accesses(
    tmp_path: Path, born_ns: int, over: int
) -> None:
    """The horizon is at 5000: an allocation that is read later and lay there before changes what the caches have counted."""
    made = CaptureBuilder()
    made.allocation(100, "malloc", 0x10000000, 64, thread=100)
    accesses = [(0x100000, 0x10000000 + 64 * at, 8, STORE) for at in range(8)]
    for number in range(9):
        made.window(1000 * number + 1000, accesses, thread=100, executed=20, first_executed=20 * number)
    path = tmp_path / "c.memlens"
    writer = started(path, made)
    write_windows(path, made, a_chunk=1, chunks=slice(0, 5), writer=writer)
    capture = open_capture(path)
    growing = GrowingInTime(capture, "caches", by=BY["caches"])
    assert_same(growing.snapshot(), anew("caches", open_capture(path)))
    assert growing.horizon_ns == 5000
    writer.append(layouts()["allocation"].kind, allocated(born_ns, 0x10000080), record_count=1, process=1,
                  begin_ns=born_ns, end_ns=born_ns)  # fmt: skip
    write_windows(path, made, a_chunk=1, chunks=slice(5, None), writer=writer)
    assert capture.refresh()
    found = growing.snapshot()
    assert_same(found, anew("caches", open_capture(path)))
    assert growing.started_over == over
    heap = [row["accesses"] for row in found.tables["by_object"].to_pylist() if row["kind"] == "heap"]
    assert heap == [8 * 1 + (6 if over else 2) * 6]


def test_a_mapping_that_is_known_later_starts_over(tmp_path: Path) -> None:
    """The same of code: it lay there when the caches saw its accesses, and had no name."""
    made = windows_of(2, 8, 3, lag=0)
    path = tmp_path / "c.memlens"
    writer = started(path, made)
    write_windows(path, made, a_chunk=4, chunks=slice(0, 3), writer=writer)
    capture = open_capture(path)
    growing = GrowingInTime(capture, "caches", by=("function",))
    growing.snapshot()
    late = CaptureBuilder().mapping(0x100, 0x200, 0x10, path="//anon", protection=5).records[-1][2]
    writer.append(layouts()["mapping"].kind, late, record_count=1, process=1, begin_ns=0x100, end_ns=0x100)
    write_windows(path, made, a_chunk=4, chunks=slice(3, None), writer=writer)
    assert capture.refresh()
    found = growing.snapshot()
    assert growing.started_over == 1
    assert_same(found, cache_model(open_capture(path), accesses=Prefix(open_capture(path)), by=("function",)))
