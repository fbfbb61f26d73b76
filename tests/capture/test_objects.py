"""Objects: births, deaths, look-ups and totals against known answers and a brute-force model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import CaptureBuilder
from hypothesis import given, settings
from hypothesis import strategies as st
from object_model import PAGE, Model

from memlens import _core
from memlens.capture.store.layouts import Packer, enum_value

Event = tuple[str, int, dict[str, int]]
ADDERS = {"allocation": "add_allocations", "process_event": "add_process_events", "tag_event": "add_tag_events"}


def record(event: Event) -> tuple[str, int, bytes]:
    operation, process, fields = event
    if operation in ("fork", "exec"):
        values = {"time_ns": fields["time_ns"], "parent_process": fields.get("parent", 0), "pid": 1000 + process}
        return "process_event", process, Packer("process_event").pack(
            operation=enum_value("process_operation", operation), status=-1, **values)  # fmt: skip
    kind = "tag_event" if operation in ("tag", "untag", "own") else "allocation"
    family = "tag_operation" if kind == "tag_event" else "allocation_operation"
    return kind, process, Packer(kind).pack(operation=enum_value(family, operation), **fields)


def build(events: list[Event]) -> Any:
    table = _core.ObjectTable(page_bytes=PAGE)
    for kind, process, payload in map(record, events):
        getattr(table, ADDERS[kind])(process, payload)
    table.run()
    return table


def find(table: Any, queries: list[tuple[int, int, int]], layer: str = "any") -> list[int]:
    processes, addresses, times = (
        np.array([q[i] for q in queries], dtype=dtype) for i, dtype in enumerate((np.uint32, np.uint64, np.uint64))
    )
    if layer == "tag":
        return [int(i) for i in table.find_tags(processes, addresses, times)]
    return [int(i) for i in table.find(processes, addresses, times, layer=layer)]


# ---- histories --------------------------------------------------------------------------------

PLACES = st.integers(1, 12)
TIMES = st.integers(1, 60)


@st.composite
def events(draw: Any) -> list[Event]:
    made: list[Event] = []
    for _ in range(draw(st.integers(1, 40))):
        process = draw(st.integers(1, 3))
        time_ns = draw(TIMES)
        operation = draw(
            st.sampled_from(
                ["malloc", "malloc", "calloc", "free", "free", "delete", "realloc", "mmap", "munmap", "mremap", "fork", "exec",
                 "tag", "untag", "own"]
            )
        )  # fmt: skip
        small = {"address": draw(st.integers(0, 20)) * 16, "bytes": draw(st.integers(0, 80))}
        page = {"address": draw(st.integers(1, 8)) * PAGE, "bytes": draw(st.integers(1, 3 * PAGE))}
        common = {"time_ns": time_ns, "thread": draw(st.integers(1, 2)), "stack": draw(st.integers(1, 3))}
        if operation in ("malloc", "calloc"):
            weight = draw(st.sampled_from([0, 0, 500]))
            made.append((operation, process, {**common, **small, "weight_bytes": weight}))
        elif operation in ("free", "delete"):
            made.append((operation, process, {**common, "address": max(small["address"], 16)}))
        elif operation == "realloc":
            old = max(small["address"], 16)
            new = draw(st.sampled_from([old, 16, 160]))
            made.append(("free", process, {**common, "address": old, "flags": 1}))
            made.append(("realloc", process, {**common, "time_ns": time_ns + draw(st.integers(0, 3)), "address": new,
                                              "old_address": old, "bytes": small["bytes"]}))  # fmt: skip
        elif operation in ("mmap", "munmap"):
            made.append((operation, process, {**common, **page, **({"protection": 3} if operation == "mmap" else {})}))
        elif operation == "mremap":
            made.append((operation, process, {**common, **page, "old_address": draw(st.integers(1, 8)) * PAGE}))
        elif operation == "fork":
            made.append((operation, process, {"time_ns": time_ns, "parent": draw(st.integers(1, 3))}))
        elif operation == "exec":
            made.append((operation, process, {"time_ns": time_ns}))
        else:
            fields = {"time_ns": time_ns, "thread": 1, "address": small["address"], "name": draw(st.integers(1, 2)),
                      "bytes": 0 if operation == "untag" else small["bytes"]}  # fmt: skip
            made.append((operation, process, fields))
    return made


def compare(history: list[Event]) -> tuple[Any, Model]:
    table, model = build(history), Model()
    model.replay(history)
    columns = table.columns()
    rows = [
        (
            int(columns["process"][i]), _core.OBJECT_KINDS[columns["kind"][i]], int(columns["base"][i]),
            int(columns["bytes"][i]), int(columns["born_ns"][i]), int(columns["died_ns"][i]) or None,
            int(columns["previous"][i]), int(columns["stack"][i]), int(columns["thread"][i]),
        )
        for i in range(table.count)
    ]  # fmt: skip
    expected = [
        (t.process, t.kind, t.base, t.bytes, t.born, t.died, t.previous, t.stack, t.thread) for t in model.things
    ]
    assert rows == expected
    assert table.counts == model.counts
    return table, model


@settings(max_examples=400, deadline=None)
@given(events(), st.lists(st.tuples(st.integers(1, 4), st.integers(0, 420), st.integers(0, 64)), max_size=30))
def test_objects_and_lookups_agree_with_brute_force(history: list[Event], extra: list[tuple[int, int, int]]) -> None:
    table, model = compare(history)
    queries = list(extra)
    for thing in model.things:
        for address in (thing.base - 1, thing.base, thing.end - 1, thing.end):
            for time in (thing.born - 1, thing.born, (thing.died or 99) - 1, thing.died or 99):
                if address >= 0 and time >= 0:
                    queries.extend((process, address, time) for process in (1, 2, 3))
    for layer in ("any", "heap", "mmap", "memlens"):
        assert find(table, queries, layer) == [model.find(*query, layer=layer) for query in queries]
    assert find(table, queries, "tag") == [model.find_tag(*query) for query in queries]


@settings(max_examples=300, deadline=None)
@given(events())
def test_totals_agree_with_brute_force(history: list[Event]) -> None:
    table, model = compare(history)
    sites = table.by_stack()
    known = {(t.process, t.stack, t.kind) for t in model.things if t.kind in ("heap", "mmap")}
    keys = [
        (int(p), int(s), _core.OBJECT_KINDS[k])
        for p, s, k in zip(sites["process"], sites["stack"], sites["kind"], strict=True)
    ]
    assert set(keys) == known and len(keys) == len(known)
    peaks = table.peaks()
    process_peak = {}
    for row, process in enumerate(peaks["process"].tolist()):
        heap = [t for t in model.things if t.process == process and t.kind == "heap"]
        process_peak[process] = model.peak(heap)
        assert (peaks["heap_highest_bytes"][row], peaks["heap_peak_ns"][row]) == model.peak(heap)
        mapped = [t for t in model.things if t.process == process and t.kind == "mmap"]
        assert (peaks["mmap_peak_bytes"][row], peaks["mmap_peak_ns"][row]) == model.peak(mapped)
        assert peaks["allocations"][row] == pytest.approx(sum(model.weighted(t)[0] for t in heap))
        assert peaks["live_bytes"][row] == sum(model.weighted(t)[1] for t in heap if t.died is None)
        for kind, things in (("heap", heap), ("mmap", mapped)):
            times, levels = table.curve(process, kind)
            assert len(times) <= 2000 and (np.diff(times.astype(np.int64)) > 0).all()
            assert max(levels.tolist(), default=0) == model.peak(things)[0]
            for time, level in zip(times.tolist(), levels.tolist(), strict=True):
                assert level == sum(model.weighted(t)[1] for t in things if t.alive(time))
    for row, (process, stack, kind) in enumerate(keys):
        things = [t for t in model.things if (t.process, t.stack, t.kind) == (process, stack, kind)]
        made = [t for t in things if not t.piece]
        dead = [t for t in things if t.died is not None and not t.cut]
        live = [t for t in things if t.died is None]
        top_bytes, top_ns = process_peak[process]
        expected = {
            "allocations": sum(model.weighted(t)[0] for t in made),
            "allocated_bytes": sum(model.weighted(t)[1] for t in made),
            "objects": len(made),
            "releases": sum(model.weighted(t)[0] for t in dead),
            "live": sum(model.weighted(t)[0] for t in live),
            "live_bytes": sum(model.weighted(t)[1] for t in live),
            "highest_bytes": model.peak(things)[0],
            "peak_ns": model.peak(things)[1],
            "bytes_at_process_peak": sum(model.weighted(t)[1] for t in things if top_bytes and t.alive(top_ns)),
            "lifetime_ns": sum(model.weighted(t)[0] * ((t.died or 0) - t.born) for t in dead),
            "temporary": sum(model.weighted(t)[0] for t in things if t.id in model.temporary),
            "min_bytes": min((t.bytes for t in made), default=0),
            "max_bytes": max((t.bytes for t in made), default=0),
            "sampled": int(any(t.weight for t in things)),
        }
        for name, value in expected.items():
            assert sites[name][row] == pytest.approx(value), name


def test_many_objects_with_reuse_agree_with_brute_force() -> None:
    """Enough for trees of several levels: splits, merges, roots that come and go."""
    random = np.random.default_rng(5)
    history: list[Event] = []
    alive: dict[int, int] = {}
    changed: dict[int, int] = {}
    for step in range(30_000):
        now = step // 3 + 1
        grow = step % 10_000 < 5_000  # fills up, then empties
        slot = int(random.integers(0, 3000))
        if changed.get(slot) == now:
            continue  # allocated and released in one moment: a release goes first, so it would be of nothing
        changed[slot] = now
        if slot in alive:
            if not grow or random.random() < 0.3:
                history.append(("free", 1, {"time_ns": now, "address": alive.pop(slot)}))
        elif grow or random.random() < 0.1:
            address = 0x10000 + slot * 256 + int(random.integers(0, 8)) * 16
            alive[slot] = address
            history.append(("malloc", 1, {"time_ns": now, "address": address, "bytes": int(random.integers(1, 129))}))
    table = build(history)
    columns = {name: values.astype(np.int64) for name, values in table.columns().items() if name != "count_weight"}
    queries = [
        (1, 0x10000 + int(a), int(t))
        for a, t in zip(random.integers(0, 3000 * 256, 4000), random.integers(0, 10_100, 4000), strict=True)
    ]
    for row in random.integers(0, table.count, 500):
        base, born, died = (int(columns[name][row]) for name in ("base", "born_ns", "died_ns"))
        end = base + int(columns["bytes"][row])
        queries += [
            (1, a, t) for a in (base, end - 1, end) for t in (born, born - 1, (died or 20_000) - 1, died or 20_000)
        ]
    found = find(table, queries)
    died = np.where(columns["died_ns"] == 0, 1 << 60, columns["died_ns"])
    for (_, address, time), answer in zip(queries, found, strict=True):
        here = np.flatnonzero(
            (columns["base"] <= address)
            & (address < columns["base"] + columns["bytes"])
            & (columns["born_ns"] <= time)
            & (time < died)
        )
        assert answer == (here[0] + 1 if len(here) else 0)
    assert table.counts["lost_releases"] == 0


# ---- known cases ------------------------------------------------------------------------------


def start() -> CaptureBuilder:
    return CaptureBuilder().event(1, "fork").event(2, "exec", name="p").mapping(3, 100, 1000)


def rows(builder: CaptureBuilder, path: Path, *columns: str, kind: str | None = None) -> list[tuple[Any, ...]]:
    table = builder.open(path).table("objects").to_pylist()
    return [tuple(row[name] for name in columns) for row in table if kind is None or row["kind"] == kind]


def test_realloc_is_a_new_object_that_knows_the_old_one(tmp_path: Path) -> None:
    builder = start().allocation(10, "malloc", 0x1000, 100).allocation(20, "free", 0x1000, flags=1)
    builder.allocation(21, "realloc", 0x2000, 200, old_address=0x1000)
    names = ("id", "base", "bytes", "born_ns", "died_ns", "previous", "operation")
    assert rows(builder, tmp_path / "c", *names) == [
        (1, 0x1000, 100, 10, 20, None, "malloc"),
        (2, 0x2000, 200, 21, None, 1, "realloc"),
    ]


def test_a_child_sees_its_parents_objects_until_it_releases_them(tmp_path: Path) -> None:
    builder = start().allocation(10, "malloc", 0x1000, 16).event(20, "fork", process=2, parent=1, thread=102)
    builder.allocation(30, "free", 0x1000, process=2).allocation(25, "free", 0x1000)
    objects = builder.open(tmp_path / "c").objects
    times = [19, 20, 24, 25, 29, 30]
    assert objects.find([0x1008] * 6, times, process=1).tolist() == [1, 1, 1, 0, 0, 0]
    assert objects.find([0x1008] * 6, times, process=2).tolist() == [0, 1, 1, 1, 1, 0]
    assert objects.counts["unknown_releases"] == 0


def test_unmapping_the_middle_leaves_two_pieces_of_one_allocation(tmp_path: Path) -> None:
    builder = start().allocation(10, "mmap", 0x10000, 0x5000, map_flags=0x22, protection=3)
    builder.allocation(20, "munmap", 0x11000, 0x1000)
    capture = builder.open(tmp_path / "c")
    table = capture.table("objects").to_pylist()
    assert [(r["base"], r["bytes"], r["died_ns"], r["previous"]) for r in table] == [
        (0x10000, 0x5000, 20, None), (0x10000, 0x1000, None, 1), (0x12000, 0x3000, None, 1)]  # fmt: skip
    (site,) = capture.objects.sites().to_pylist()
    assert (site["allocations"], site["releases"], site["live_bytes"], site["peak_bytes"]) == (1, 0, 0x4000, 0x5000)


def test_brk_is_one_object_that_grows(tmp_path: Path) -> None:
    builder = start().allocation(10, "brk", 0x5000, 0x1000).allocation(20, "brk", 0x5000, 0x9000)
    builder.allocation(30, "brk", 0x5000, 0x2000)
    assert rows(builder, tmp_path / "c", "kind", "name", "base", "bytes") == [("brk", "[heap]", 0x5000, 0x9000)]


def test_stacks_and_files_come_from_mappings(tmp_path: Path) -> None:
    builder = start().mapping(5, 5000, 10).mapping(6, 6000, 4, path="/lib/x.so", inode=7, protection=1)
    builder.add("thread_memory", 1, time_ns=10, thread_pointer=5003 * PAGE, thread=101, creator=100)
    builder.add("thread_memory", 1, time_ns=11, thread_pointer=9999 * PAGE, thread=102, creator=100)
    builder.event(50, "thread_exit", thread=101)
    names = ("kind", "name", "base", "bytes", "born_ns", "died_ns")
    assert rows(builder, tmp_path / "c", *names) == [
        ("file", "/lib/x.so", 6000 * PAGE, 4 * PAGE, 6, None),
        ("stack", "stack of thread 101", 5000 * PAGE, 10 * PAGE, 10, 50),
    ]


def test_the_innermost_tag_wins_and_untag_ends_the_latest(tmp_path: Path) -> None:
    builder = start().tag(10, "tag", 0x1000, 0x1000, name="grid").tag(20, "tag", 0x1000, 0x10, name="halo")
    builder.tag(25, "tag", 0x1000, 0x10, name="halo").tag(30, "untag", 0x1000)
    objects = builder.open(tmp_path / "c").objects
    assert objects.find([0x1008, 0x1008, 0x1008, 0x1800], [15, 20, 30, 25], process=1, layer="tag").tolist() == [
        1,
        2,
        1,
        1,
    ]
    assert objects.table().column("name").to_pylist() == ["grid", "halo"]


def test_a_sampled_object_stands_for_more(tmp_path: Path) -> None:
    builder = start().allocation(10, "malloc", 0x1000, 100, weight_bytes=5000)
    assert rows(builder, tmp_path / "c", "bytes", "weight_bytes", "count") == [(100, 5000, 50.0)]


# ---- what faults say ------------------------------------------------------------------------------

TOUCHED = ("touched_bytes", "recycled_bytes", "never_touched_bytes")


def test_touched_recycled_and_never_touched_pages(tmp_path: Path) -> None:
    builder = start().fault(10, 200).fault(11, 201)  # before the object: recycled
    builder.allocation(20, "malloc", 200 * PAGE, 6 * PAGE + 8)
    builder.fault(30, 202, thread=101).fault(31, 203, thread=101).fault(32, 204, thread=102).fault(33, 206)  # 206: edge
    names = (*TOUCHED, "faults", "first_touch_ns", "first_touch_thread", "touching_threads", "top_thread_bytes")
    # The last page lies in it with 8 bytes: touched, but its fault's address (+8) is just behind the object.
    assert rows(builder, tmp_path / "c", *names) == [(4 * PAGE, 2 * PAGE, PAGE, 3, 30, 101, 2, 2 * PAGE)]


def test_memory_of_a_new_mapping_is_not_recycled(tmp_path: Path) -> None:
    builder = start().mapping(5, 5000, 10).fault(10, 5001).mapping(20, 5000, 10)
    builder.allocation(30, "malloc", 5000 * PAGE, 10 * PAGE)
    assert rows(builder, tmp_path / "c", *TOUCHED) == [(0, 0, 10 * PAGE)]


def test_a_touch_counts_while_the_object_lives_only(tmp_path: Path) -> None:
    builder = start().allocation(10, "malloc", 200 * PAGE, PAGE).allocation(20, "free", 200 * PAGE).fault(20, 200)
    builder.allocation(30, "malloc", 200 * PAGE, PAGE)
    assert rows(builder, tmp_path / "c", *TOUCHED, "faults") == [(0, 0, PAGE, 0), (0, PAGE, 0, 0)]


def test_pages_that_the_kernel_placed_count_as_touched_by_nobody(tmp_path: Path) -> None:
    ms = 1_000_000
    builder = (
        start()
        .mapping(4, 5000, 100)
        .allocation(10, "mmap", 5000 * PAGE, 20 * PAGE, protection=3)
        .look(0, 50 * ms, 5000, 15)
    )
    names = (*TOUCHED, "faults", "first_touch_thread", "touching_threads")
    assert rows(builder, tmp_path / "c", *names) == [(15 * PAGE, 0, 5 * PAGE, 0, None, 0)]


def test_a_childs_copy_is_not_a_touch_of_the_parents_object(tmp_path: Path) -> None:
    builder = start().allocation(10, "malloc", 200 * PAGE, 2 * PAGE).fault(11, 200)
    builder.event(20, "fork", process=2, parent=1, thread=102).fault(30, 201, process=2, thread=102)
    # Not touched by the parent, but used by the child: "never touched" would be wrong.
    assert rows(builder, tmp_path / "c", *TOUCHED, "faults") == [(PAGE, 0, 0, 1)]


def test_without_faults_touches_are_not_known(tmp_path: Path) -> None:
    builder = start().allocation(10, "malloc", 200 * PAGE, 2 * PAGE)
    assert rows(builder, tmp_path / "c", *TOUCHED, "faults") == [(None, None, None, None)]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 7), st.integers(1, 3 * PAGE), st.integers(1, 40), st.integers(0, 20)), max_size=12
    ),
    st.lists(st.tuples(st.integers(0, 11), st.integers(1, 60), st.integers(1, 3)), max_size=25),
    st.lists(st.tuples(st.integers(0, 11), st.integers(1, 3), st.integers(1, 60), st.integers(0, 9)), max_size=5),
)
def test_page_counts_agree_with_brute_force(
    objects: list[tuple[int, int, int, int]], faults: list[tuple[int, int, int]], runs: list[tuple[int, int, int, int]]
) -> None:
    history: list[Event] = []
    for place, size, born, life in objects:
        history.append(("malloc", 1, {"time_ns": born, "address": PAGE + place * 1000, "bytes": size}))
        if life:
            history.append(("free", 1, {"time_ns": born + life, "address": PAGE + place * 1000}))
    table = build(history)
    u8, u4 = np.uint64, np.uint32
    touches = table.touch(
        process=np.ones(len(faults), u4), time_ns=np.array([t for _, t, _ in faults], u8),
        address=np.array([p * PAGE for p, _, _ in faults], u8), span_bytes=np.full(len(faults), PAGE, u8),
        new_bytes=np.full(len(faults), PAGE, u8), thread=np.array([t for _, _, t in faults], u4),
        code=np.arange(len(faults), dtype=u4), mapped_around=np.zeros(len(faults), np.uint8),
        weight=np.ones(len(faults)), sampled_from_ns=2**64 - 1, placed_process=np.ones(len(runs), u4),
        placed_begin_ns=np.array([b for _, _, b, _ in runs], u8), placed_end_ns=np.array([b + d for _, _, b, d in runs], u8),
        placed_address=np.array([p * PAGE for p, _, _, _ in runs], u8), placed_bytes=np.array([n * PAGE for _, n, _, _ in runs], u8),
    )  # fmt: skip
    columns = table.columns()
    for row in range(table.count):
        base, size, born, died = (int(columns[name][row]) for name in ("base", "bytes", "born_ns", "died_ns"))
        died = died or 1 << 60
        first, last = -(-base // PAGE), (base + size) // PAGE
        hits = [f for f in faults if base <= f[0] * PAGE < base + max(size, 1) and born <= f[1] < died]
        assert touches["faults"][row] == len(hits)
        assert touches["touching_threads"][row] == len({thread for _, _, thread in hits})
        if first >= last:
            assert touches["never_pages"][row] == 2**64 - 1
            continue

        def during(page: int, born: int = born, died: int = died) -> bool:
            placed = any(p <= page < p + n and b < died and b + d >= born for p, n, b, d in runs)
            return placed or any(p == page and born <= t < died for p, t, _ in faults)

        def before(page: int, born: int = born, died: int = died) -> bool:
            placed = any(p <= page < p + n and b < died and b + d < born for p, n, b, d in runs)
            return placed or any(p == page and t < born for p, t, _ in faults)

        pages = range(base // PAGE, (base + size - 1) // PAGE + 1)
        assert touches["touched_pages"][row] == sum(during(page) for page in pages)
        assert touches["recycled_pages"][row] == sum(not during(p) and before(p) for p in range(first, last))
        assert touches["never_pages"][row] == sum(not during(p) and not before(p) for p in range(first, last))


# ---- regions ------------------------------------------------------------------------------------------


def test_regions_nest_and_phases_follow_each_other(tmp_path: Path) -> None:
    builder = start().region(10, "phase", "load").region(11, "begin", "outer").region(12, "begin", "inner")
    builder.region(13, "end", "inner").region(14, "end", "outer").region(15, "phase", "solve").region(
        16, "end", "unknown"
    )
    builder.region(20, "begin", "left open", thread=101).event(40, "thread_exit", thread=101)
    table = builder.open(tmp_path / "c").table("regions").to_pylist()
    found = [
        tuple(r[n] for n in ("name", "kind", "thread", "begin_ns", "end_ns", "depth", "parent", "open")) for r in table
    ]
    assert found == [
        ("load", "phase", 0, 10, 15, 0, None, False),
        ("outer", "region", 100, 11, 14, 0, None, False),
        ("inner", "region", 100, 12, 13, 1, "outer", False),
        ("solve", "phase", 0, 15, 10**9, 0, None, True),
        ("left open", "region", 101, 20, 40, 0, None, True),
    ]


def test_a_region_left_inside_another_ends_with_it_and_says_so(tmp_path: Path) -> None:
    builder = start().region(10, "begin", "outer").region(11, "begin", "thrown").region(20, "end", "outer")
    table = builder.open(tmp_path / "c").table("regions").to_pylist()
    assert [(r["name"], r["end_ns"], r["open"]) for r in table] == [("outer", 20, False), ("thrown", 20, True)]
