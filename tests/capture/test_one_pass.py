"""Windows are decoded once for a report, by whatever many analyses, threads and cores; a capture that grows, or a range of time, is read in part."""

from __future__ import annotations

import json
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import CaptureBuilder

import memlens
from memlens import _core, analyses
from memlens.analyses._groups import _Pair, named_dimension
from memlens.analyses._growing import GrowingLocality
from memlens.analyses.data_locality import LocalityConsumer
from memlens.capture.model.access_pass import TaskPool, sweep
from memlens.capture.model.decoded import DecodedWindows
from memlens.capture.model.locality import Classifier, ThreadAccesses
from memlens.capture.model.window_classes import batch_classes
from memlens.capture.reader import Capture, open_capture
from memlens.capture.store.layouts import layouts
from memlens.capture.store.records import Chunk
from memlens.cli import report as report_command

GOLDENS = Path(__file__).resolve().parents[1] / "goldens"
LOAD, STORE = 1, 2


def some_windows(windows: int = 40, *, threads: int = 3, seed: int = 5) -> CaptureBuilder:
    """Windows of several threads, some of which go on in a second record; threads share lines and one writes."""
    random = np.random.default_rng(seed)
    made = CaptureBuilder()
    made.mapping(1, 0x100, 0x10, path="/no/such/program", protection=5)
    done = [0] * threads
    for number in range(windows):
        thread = int(random.integers(threads))
        parts = 2 if number % 5 == 0 else 1
        for part in range(parts):
            count = int(random.integers(5, 60))
            accesses = [
                (0x100000 + 16 * int(random.integers(6)), 0x10000000 + 8 * int(random.integers(300)), 8, STORE if at % 4 == 0 else LOAD)
                for at in range(count)
            ]  # fmt: skip
            executed = count if part + 1 < parts else count * 4
            begin = 1000 * number + 400 * part
            made.window(
                begin,
                accesses,
                thread=100 + thread,
                executed=executed,
                first_executed=done[thread],
                end_ns=begin + count,
            )
            done[thread] += executed
    return made


def decoded_by(work: Any) -> int:
    before = _core.windows_decoded()
    work()
    return int(_core.windows_decoded() - before)


def streams_of(capture: Capture) -> int:
    return int((capture.windows.raw["recorded"] > 0).sum())


@pytest.mark.parametrize("name", ["trace", "trace-full", "emulate", "emulate-full", "lackey"])
@pytest.mark.parametrize("page", [False, True])
def test_a_report_decodes_each_window_once(name: str, page: bool, tmp_path: Path) -> None:
    path = str(GOLDENS / f"{name}.memlens")
    arguments = ["--no-cache", path, *(["--html", str(tmp_path / "page.html")] if page else [])]
    found = decoded_by(lambda: report_command.main(arguments))
    assert found == streams_of(open_capture(path)) > 0


def test_a_report_of_threads_that_share_lines_decodes_each_window_once(tmp_path: Path) -> None:
    capture = some_windows().open(tmp_path / "c.memlens")
    reports: list[Any] = []
    assert decoded_by(lambda: reports.append(analyses.report(capture))) == streams_of(capture)
    assert reports[0].results["sharing"].tables["lines"].num_rows


def test_all_analyses_at_once_say_what_each_says_alone(tmp_path: Path) -> None:
    path = some_windows(60).write(tmp_path / "c.memlens")
    together = analyses.run_all(open_capture(path))
    for name in ("accesses", "locality", "caches", "sharing", "patterns"):
        alone = analyses.run(name, open_capture(path))
        assert alone.figures.keys() == together[name].figures.keys()
        for title, table in alone.tables.items():
            if name == "caches" and title == "levels":
                continue  # a report adds the miss curve
            assert table.equals(together[name].tables[title]), (name, title)


def test_packed_accesses_are_those_that_the_reader_decodes(tmp_path: Path) -> None:
    capture = some_windows(30).open(tmp_path / "c.memlens")
    for _, payload in capture.payloads("window"):
        fixed, _ = _core.window_headers(payload)
        for size in (7, 50, 1 << 12):
            plain, packed = (_core.AccessReader(payload, batch_accesses=size) for _ in range(2))
            while (one := plain.next()) is not None:
                again = _core.unpack_accesses(packed.next_packed(), fixed)
                assert all(np.array_equal(values, again[name]) for name, values in one.items())
            assert packed.next_packed() is None


def test_wide_codes_and_widths_are_kept() -> None:
    n = 70_000  # more instructions than 16 bits number, and accesses of more than a byte's width
    pcs = np.arange(n, dtype=np.uint64) * 4 + 4096
    addresses = np.arange(n, dtype=np.uint64)[::-1].copy() * 8
    widths = np.where(np.arange(n) % 3 == 0, 4096, 8).astype(np.uint32)
    stream = bytes(_core.encode_stream(pcs, addresses, widths, np.full(n, LOAD, dtype=np.uint8)))
    made = CaptureBuilder()
    from memlens.capture.store.layouts import Packer

    made.records.append(
        ("window", 1, Packer("window").pack(stream, begin_ns=1, end_ns=n, recorded=n, executed=n, thread=1, encoding=2))
    )
    with tempfile.TemporaryDirectory() as folder:
        capture = made.open(Path(folder) / "c.memlens")
        (batch,) = list(ThreadAccesses(capture))
        assert (
            np.array_equal(batch.pc, pcs)
            and np.array_equal(batch.address, addresses)
            and np.array_equal(batch.bytes, widths)
        )


@pytest.mark.parametrize("damage", [0, -1])
def test_a_damaged_window_is_left_out_and_the_others_are_not(tmp_path: Path, damage: int) -> None:
    made = some_windows(4, threads=1)
    at = [i for i, (name, _, _) in enumerate(made.records) if name == "window"][damage]
    name, process, record = made.records[at]
    made.records[at] = (name, process, record[:81] + b"\xff" * (len(record) - 81))
    capture = made.open(tmp_path / "c.memlens")
    accesses = ThreadAccesses(capture)
    count = sum(len(batch) for batch in accesses)
    recorded = capture.windows.raw["recorded"].astype(int)
    assert accesses.damaged == 1 and count == recorded.sum() - recorded[damage]
    assert analyses.run("accesses", capture).figures["damaged_windows"] == 1


def test_beyond_its_memory_the_store_uses_a_file_and_without_one_decodes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = some_windows(50).write(tmp_path / "c.memlens")
    one = open_capture(path)
    wanted = [batch.address.tolist() for batch in ThreadAccesses(one)]
    in_file = open_capture(path)
    in_file._decoded = DecodedWindows(in_file, memory_bytes=0)
    assert decoded_by(lambda: [list(ThreadAccesses(in_file)) for _ in range(2)]) == streams_of(one)
    assert [batch.address.tolist() for batch in ThreadAccesses(in_file)] == wanted

    def no_room(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", no_room)
    without = open_capture(path)
    without._decoded = DecodedWindows(without, memory_bytes=0)
    assert [batch.address.tolist() for batch in ThreadAccesses(without)] == wanted
    assert [batch.address.tolist() for batch in ThreadAccesses(without)] == wanted


@pytest.mark.parametrize("seed", range(4))
def test_classes_found_at_the_end_of_each_window_are_those_of_the_whole_capture(tmp_path: Path, seed: int) -> None:
    capture = some_windows(50, seed=seed).open(tmp_path / "c.memlens")
    accesses = ThreadAccesses(capture)
    before = Classifier(accesses, by_window=True)
    wanted = {(b.stream, int(b.window[0]), int(b.time_ns[0])): before(b).tolist() for b in accesses}
    now = batch_classes(accesses, None)
    found: dict[Any, list[int]] = {}
    order: dict[int, list[int]] = {}
    # Small pieces, so that windows go over many of them.
    for batch in accesses:
        for at in range(0, len(batch), 7):
            from memlens.capture.model.locality import _part

            piece = _part(batch, slice(at, at + 7))
            for ready, classes in now.push(piece):
                found.setdefault((ready.stream, int(batch.window[0])), [])
                order.setdefault(ready.stream, []).extend(classes.tolist())
    for ready, classes in now.rest():
        order.setdefault(ready.stream, []).extend(classes.tolist())
    by_stream: dict[int, list[int]] = {}
    for batch in accesses:
        by_stream.setdefault(batch.stream, []).extend(
            wanted[(batch.stream, int(batch.window[0]), int(batch.time_ns[0]))]
        )
    assert order == by_stream
    assert (now.inferred_accesses, now.static_accesses) == (before.inferred_accesses, before.static_accesses)


def test_threads_that_two_consumers_took_are_merged(tmp_path: Path) -> None:
    path = some_windows(60).write(tmp_path / "c.memlens")
    capture = open_capture(path)
    wanted = analyses.locality(capture)

    class Some(ThreadAccesses):
        keep: frozenset[int] = frozenset()

        def batches(self, **options: Any) -> Any:
            return (batch for batch in super().batches(**options) if batch.stream in self.keep)

    parts = []
    for keep in (frozenset({0, 2}), frozenset({1})):
        accesses = Some(capture)
        accesses.keep = keep
        parts.append(LocalityConsumer(capture, accesses=accesses))
        assert not sweep(accesses, [parts[-1]])
    parts[0].merge(parts[1])
    merged = parts[0].snapshot()
    assert merged.figures == {**wanted.figures, "memory_bytes": merged.figures["memory_bytes"]}
    assert all(merged.tables[name].equals(table) for name, table in wanted.tables.items())


def test_tasks_of_one_owner_keep_their_order_and_one_failure_stops_its_owner_only() -> None:
    seen: dict[str, list[int]] = {"a": [], "b": []}
    owners = {name: object() for name in seen}

    def work(name: str, number: int) -> None:
        if name == "a" and number == 5:
            raise ValueError("five")
        seen[name].append(number)

    with TaskPool(3) as pool:
        for number in range(50):
            for name, owner in owners.items():
                pool.submit(owner, "", lambda name=name, number=number: work(name, number), wait=True)
        pool.join()
    assert seen == {"a": [0, 1, 2, 3, 4], "b": list(range(50))}
    assert [str(error) for error in pool.failures.values()] == ["five"]
    assert not [thread for thread in threading.enumerate() if thread.name == "memlens-pass"]


def test_pairs_have_the_same_numbers_with_and_without_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    capture = some_windows(10).open(tmp_path / "c.memlens")
    accesses = ThreadAccesses(capture)

    def numbered(most: int) -> list[Any]:
        monkeypatch.setattr("memlens.analyses._groups.MOST_CELLS", most)
        pair = _Pair(named_dimension(accesses, "line"), named_dimension(accesses, "thread"))
        pair._parts[0].keys = [(n,) * 4 for n in range(30)]
        columns = np.random.default_rng(7)
        found = [pair.of_parts(columns.integers(0, 30, 200), columns.integers(0, 3, 200)).tolist() for _ in range(4)]
        return [found, pair.keys]

    assert numbered(0) == numbered(1 << 20)


# ---- growing captures and ranges of time -----------------------------------------------------------------------------------
def write_windows(path: Path, made: CaptureBuilder, *, a_chunk: int, chunks: slice, writer: Any) -> None:
    """Windows as a recorder writes them: some a chunk, with the chunk's times in its header."""
    kind = layouts()["window"].kind
    dtype = layouts()["window"].dtype()
    records = [record for name, _, record in made.records if name == "window"]
    groups = [records[at : at + a_chunk] for at in range(0, len(records), a_chunk)]
    for group in groups[chunks]:
        rows = [np.frombuffer(record[: dtype.itemsize], dtype=dtype)[0] for record in group]
        writer.append(kind, b"".join(group), record_count=len(group), process=1, begin_ns=int(min(r["begin_ns"] for r in rows)),
                      end_ns=int(max(r["end_ns"] for r in rows)))  # fmt: skip


def started(path: Path, made: CaptureBuilder) -> Any:
    other = CaptureBuilder()
    other.records = [record for record in made.records if record[0] != "window"]
    other.write(path, state="recording")
    (path / "records-recorder.mlc").rename(path / "records-a.mlc")
    return _core.ChunkWriter(str(path / "records-b.mlc"))


def test_a_capture_that_has_grown_is_read_on(tmp_path: Path) -> None:
    made = some_windows(40)
    path = tmp_path / "c.memlens"
    writer = started(path, made)
    write_windows(path, made, a_chunk=5, chunks=slice(0, 6), writer=writer)
    capture = open_capture(path)
    first = analyses.run_all(capture)
    windows = capture.windows.count
    write_windows(path, made, a_chunk=5, chunks=slice(6, 7), writer=writer)
    assert capture.refresh() == 1
    before = Chunk.bytes_read
    newest = capture.chunks_of("window")[-1].header["stored_bytes"]
    others = sum(c.header["stored_bytes"] for c in capture._chunks if c.header["kind"] != layouts()["window"].kind)
    assert decoded_by(lambda: list(capture.decoded)) == 5
    assert Chunk.bytes_read - before == newest
    assert capture.windows.count == windows + 5
    second = analyses.run_all(capture)
    # Names and objects are replayed anew, from records of all other kinds; windows are not read again.
    assert Chunk.bytes_read - before <= newest + 5 * others
    fresh = analyses.run_all(open_capture(path))
    for name in ("accesses", "locality", "caches", "sharing", "patterns"):
        assert second[name].figures["recorded_accesses" if name != "sharing" and name != "caches" else "accesses"] > first[name].figures[
            "recorded_accesses" if name != "sharing" and name != "caches" else "accesses"]  # fmt: skip
        for title, table in fresh[name].tables.items():
            assert table.equals(second[name].tables[title]), (name, title)


def test_chunks_outside_of_a_range_of_time_are_not_decompressed(tmp_path: Path) -> None:
    made = some_windows(40)
    path = tmp_path / "c.memlens"
    writer = started(path, made)
    write_windows(path, made, a_chunk=4, chunks=slice(None), writer=writer)
    capture = open_capture(path)
    headers = [chunk.header for chunk in capture.chunks_of("window")]
    assert len(headers) > 8
    middle = int(headers[4]["begin_ns"])
    part = capture.within(middle, int(headers[6]["begin_ns"]))
    before = Chunk.payloads_read
    assert part.windows.count == 8
    assert Chunk.payloads_read - before == 2
    early, late = capture.within(0, middle), capture.within(middle, 2**63)
    assert early.windows.count + late.windows.count == capture.windows.count
    both = [int(one.windows.raw["recorded"].sum()) for one in (early, late)]
    assert sum(both) == int(capture.windows.raw["recorded"].sum()) and all(both)
    found = [analyses.locality(one).figures["recorded_accesses"] for one in (early, late)]
    assert found == both
    # A range in the middle of a chunk has that chunk's windows of the range alone.
    begins = np.sort(capture.windows.raw["begin_ns"])
    inside = capture.within(int(begins[5]), int(begins[7]))
    assert sorted(inside.windows.raw["begin_ns"].tolist()) == begins[5:7].tolist()
    assert [*memlens.open(path).within(0, 0).accesses()] == []


def test_what_a_part_stands_for_does_not_reach_before_it(tmp_path: Path) -> None:
    """The first window of a thread also stands for what came before it; the first of a part does not."""
    made = CaptureBuilder()
    accesses = [(0x1000, 0x5000 + 8 * at, 8, LOAD) for at in range(10)]
    for number in range(6):
        made.window(1000 * number + 1000, accesses, executed=100, first_executed=50 + 100 * number)
    capture = made.open(tmp_path / "c.memlens")
    assert capture.windows.units.executed.tolist() == [150, 100, 100, 100, 100, 100]
    assert capture.within(3000, 5000).windows.units.executed.tolist() == [100, 100]


def test_locality_of_a_growing_capture_goes_on_and_says_what_a_new_reader_says(tmp_path: Path) -> None:
    made = some_windows(60)
    path = tmp_path / "c.memlens"
    writer = started(path, made)
    write_windows(path, made, a_chunk=3, chunks=slice(0, 4), writer=writer)
    capture = open_capture(path)
    growing = GrowingLocality(capture, by=("function", "object", "thread"))
    counts = [growing.snapshot().figures["recorded_accesses"]]
    for at in range(4, 20, 3):
        write_windows(path, made, a_chunk=3, chunks=slice(at, at + 3), writer=writer)
        assert capture.refresh()
        found = growing.snapshot()
        wanted = GrowingLocality(open_capture(path), by=("function", "object", "thread")).snapshot()
        counts.append(found.figures["recorded_accesses"])
        assert {**found.figures, "memory_bytes": 0} == {**wanted.figures, "memory_bytes": 0}
        for title, table in wanted.tables.items():
            rows = [sorted(map(str, one.to_pylist())) for one in (table, found.tables[title])]
            assert rows[0] == rows[1], title
    assert growing.started_over == 0 and counts == sorted(set(counts))
    writer.close()
    meta = json.loads((path / "meta.json").read_text())
    (path / "meta.json").write_text(json.dumps({**meta, "state": "complete"}))
    capture.refresh()
    capture.reread_meta()
    last, whole = (
        growing.snapshot(),
        analyses.locality(open_capture(path), by=("function", "object", "thread"), heat_columns=0),
    )
    assert {**last.figures, "memory_bytes": 0} == {**whole.figures, "memory_bytes": 0}
    assert {str(row) for row in last.tables["by_object"].to_pylist()} == {
        str(row) for row in whole.tables["by_object"].to_pylist()
    }
