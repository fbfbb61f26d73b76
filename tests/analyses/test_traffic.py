"""Traffic, accesses by object and page use: closed forms on hand-made captures, brute force for the join."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import PAGE, CaptureBuilder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import memlens
from memlens.analyses import run

CODE = 0x400000
HEAP = 0x10000000


def program() -> CaptureBuilder:
    """A process with one module of code and a heap area."""
    return (
        CaptureBuilder()
        .event(1, "fork")
        .event(2, "exec", name="p")
        .mapping(3, CODE // PAGE, 16, path="/bin/p", inode=7, protection=5)
        .mapping(4, HEAP // PAGE, 4096)
    )


def jitted(builder: CaptureBuilder, **functions: int) -> CaptureBuilder:
    """Names code in anonymous memory, so that a hand-made capture has functions."""
    builder.mapping(3, 0x800000 // PAGE, 16, protection=5)
    for name, address in functions.items():
        builder.add("jit_code", address=address, bytes=0x100, name=builder.string(name))
    return builder


def rows_of(capture: memlens.Capture, analysis: str, table: str) -> list[dict[str, Any]]:
    return run(analysis, capture).tables[table].to_pylist()


def test_counts_are_summed_by_function_thread_and_region_and_are_exact(tmp_path: Path) -> None:
    builder = jitted(program(), solve=0x800000, copy=0x800100)
    builder.event(5, "thread", thread=101)
    builder.code_count(0x800000, loads=100, width=8, region="a")
    builder.code_count(0x800000, loads=50, width=8, thread=101, region="b", stack_loads=10)
    builder.code_count(0x800004, stores=25, width=4, region="a")
    builder.code_count(0x800100, loads=1000, stores=1000, width=1, thread=101)
    capture = builder.open(tmp_path / "c.memlens")
    result = run("traffic", capture)
    assert result.quality.exact and result.figures["accessed_bytes"] == 800 + 400 + 100 + 2000
    solve = next(row for row in rows_of(capture, "traffic", "by_function") if row["function"] == "solve")
    assert (solve["loads"], solve["stores"], solve["load_bytes"], solve["store_bytes"]) == (150, 25, 1200, 100)
    assert (solve["stack_loads"], solve["stack_load_bytes"], solve["instructions"]) == (10, 80, 2)
    assert solve["share"] == 1300 / 3300 and solve["mean_width"] == 1300 / 175
    copy = next(row for row in rows_of(capture, "traffic", "by_function") if row["function"] == "copy")
    assert copy["narrow"] == 2000 and solve["narrow"] == 0
    assert {(r["region"], r["bytes"]) for r in rows_of(capture, "traffic", "by_region")} == {
        ("a", 900),
        ("b", 400),
        (None, 2000),
    }
    assert {(r["thread"], r["bytes"]) for r in rows_of(capture, "traffic", "by_thread")} == {(100, 900), (101, 2400)}
    assert result.figures["stack_share"] == 80 / 3300
    assert "narrow" in result.tables["by_line"].column_names


def test_stack_is_null_not_zero_where_it_is_not_known(tmp_path: Path) -> None:
    builder = jitted(program(), one=0x800000, two=0x800100)
    builder.code_count(0x800000, loads=5, stack_known=False).code_count(0x800100, loads=5)
    capture = builder.open(tmp_path / "c.memlens")
    by_name = {row["function"]: row for row in rows_of(capture, "traffic", "by_function")}
    assert by_name["one"]["stack_loads"] is None and by_name["two"]["stack_loads"] == 0
    assert run("traffic", capture).figures["stack_share"] is None


def test_sums_beyond_doubles_keep_their_last_digit(tmp_path: Path) -> None:
    builder = jitted(program(), f=0x800000)
    for _ in range(3):
        builder.code_count(0x800000, loads=2**53 + 1, width=1)
    assert rows_of(builder.open(tmp_path / "c.memlens"), "traffic", "by_function")[0]["loads"] == 3 * (2**53 + 1)


def test_anonymous_code_without_a_name_and_unseen_executions(tmp_path: Path) -> None:
    builder = program()
    builder.code_count(0x900000, loads=7, flags=2, time_ns=60)
    builder.code_count(0x900004, loads=0, flags=2 | 16, unseen=12)
    builder.add("unseen", executions=3, name=builder.string("ls"), cause=1, time_ns=70)
    capture = builder.open(tmp_path / "c.memlens")
    result = run("traffic", capture)
    assert [(r["function"], r["loads"], r["unseen"]) for r in rows_of(capture, "traffic", "by_function")] == [
        ("[anonymous code]", 7, 12)
    ]
    assert result.figures["unseen_executions"] == 15 and not result.quality.exact
    assert any("ls" in note for note in result.quality.notes)
    assert any("12" in note for note in result.quality.notes)


def test_code_is_named_by_what_was_mapped_at_its_time(tmp_path: Path) -> None:
    """Another file mapped over the same address, and a mapping that is found after the code ran."""
    builder = program()
    builder.mapping(1000, CODE // PAGE, 16, path="/lib/other.so", inode=8, protection=5)
    builder.code_count(CODE + 8, loads=1, time_ns=500).code_count(CODE + 8, loads=10, time_ns=1500)
    builder.window(400, [(CODE + 16, HEAP, 8, 1)]).window(1600, [(CODE + 16, HEAP, 8, 1)])
    builder.code_count(0x500000, loads=100, time_ns=10)
    builder.mapping(20, 0x500000 // PAGE, 1, path="/lib/late.so", inode=9, protection=5)
    capture = builder.open(tmp_path / "c.memlens")
    modules = {row["module"]: row["loads"] for row in rows_of(capture, "traffic", "by_module")}
    assert modules == {"/bin/p": 1, "/lib/other.so": 10, "/lib/late.so": 100}
    codes = [row for batch in capture.accesses(code=True) for row in batch.to_pylist()]
    sites = capture.table("sites").column("module").to_pylist()
    assert [sites[row["code"]] for row in codes] == ["/bin/p", "/lib/other.so"]


# ---- accesses by object ---------------------------------------------------------------------------


def brute_force(windows: list[dict[str, Any]], keys: Any) -> dict[Any, dict[str, float]]:
    """Estimates and standard errors by the formulas of access_join.h, the slow way."""
    executed = sum(w["executed"] for w in windows)
    recorded = sum(len(w["accesses"]) for w in windows)
    found: dict[Any, dict[str, float]] = {}
    names = {key for w in windows for a in w["accesses"] for key in [keys(a)]}
    for name in names:
        row: dict[str, float] = {}
        for metric, weigh in (("accesses", lambda a: 1), ("bytes", lambda a: a[2] * (2 if a[3] == 3 else 1)),
                              ("stores", lambda a: int(a[3] in (2, 3)))):  # fmt: skip
            y = [
                w["executed"] / len(w["accesses"]) * sum(weigh(a) for a in w["accesses"] if keys(a) == name)
                for w in windows
            ]
            total = sum(y)
            ratio = total / executed
            m = len(windows)
            spread = sum((yi - ratio * w["executed"]) ** 2 for yi, w in zip(y, windows, strict=True))
            row[metric] = total
            row[f"{metric}_error"] = math.sqrt((1 - recorded / executed) * m / (m - 1) * spread) if m > 1 else math.nan
        found[name] = row
    return found


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), count=st.integers(2, 12), full=st.booleans(), parts=st.booleans())
def test_accesses_by_object_equal_brute_force(
    tmp_path_factory: Any, seed: int, count: int, full: bool, parts: bool
) -> None:
    source = random.Random(seed)
    builder = jitted(program(), f=0x800000, g=0x800100)
    live: dict[int, tuple[int, int, int, int]] = {}  # stack → base, bytes, born, died
    for stack in range(1, 6):
        # The stack's only frame names the group; the last object dies in the middle.
        builder.stack(stack, [0x800200 + stack * 0x10])
        builder.add("jit_code", address=0x800200 + stack * 0x10, bytes=0x10, name=builder.string(f"site{stack}"))
        base, size = HEAP + stack * 0x10000, source.choice([64, 1000, 5000])
        died = 3000 if stack == 5 else 2**62
        builder.allocation(100 + stack, "malloc", base, size, stack=stack)
        if stack == 5:
            builder.allocation(3000, "free", base)
        live[stack] = (base, size, 100 + stack, died)
    windows = []
    for number in range(count):
        begin = 1000 + number * 400
        trace = []
        for _ in range(source.randrange(1, 30)):
            base, size, *_ = live[source.randrange(1, 6)]
            inside = source.random() < 0.8
            address = base + (source.randrange(size) if inside else size + source.randrange(100))
            trace.append(
                (
                    source.choice([0x800000, 0x800008, 0x800100]),
                    address,
                    source.choice([1, 2, 4, 8, 16]),
                    source.randrange(1, 4),
                )
            )
        executed = len(trace) if full else len(trace) * source.randrange(1, 20)
        thread, first = (
            100 + number % 2,
            number // 2 * 10_000,
        )  # from 0: what came before would belong to the first window
        cut = source.randrange(1, len(trace)) if parts and len(trace) > 1 else 0
        if cut:  # the same window as two records
            builder.window(begin, trace[:cut], thread=thread, first_executed=first, end_ns=begin + cut - 1)
        builder.window(begin + cut, trace[cut:], executed=executed - cut, end_ns=begin + len(trace) - 1, thread=thread,
                       first_executed=first + cut)  # fmt: skip
        windows.append({"accesses": [(*a, begin + i) for i, a in enumerate(trace)], "executed": executed})
    capture = builder.open(tmp_path_factory.mktemp("join") / "c.memlens")

    def object_of(access: Any) -> str:
        for stack, (base, size, born, died) in live.items():
            if base <= access[1] < base + size and born <= access[4] < died:
                return f"heap of site{stack}"
        return "elsewhere"

    expected = brute_force(windows, object_of)
    result = run("accesses", capture)
    rows = {row["object"]: row for row in result.tables["by_object"].to_pylist()}
    for name, numbers in expected.items():
        if name == "elsewhere":
            continue
        for metric, value in numbers.items():
            found = rows[name][metric]
            assert found == pytest.approx(value, rel=1e-6, abs=1e-4 * max(1, numbers[metric.removesuffix("_error")])), (
                metric
            )
    functions = brute_force(windows, lambda a: (object_of(a), "g" if a[0] == 0x800100 else "f"))
    crossed = {(r["object"], r["function"]): r for r in result.tables["by_object_and_function"].to_pylist()}
    for key, numbers in functions.items():
        if key[0] != "elsewhere":
            assert crossed[key]["accesses"] == pytest.approx(numbers["accesses"])
            assert crossed[key]["bytes_error"] == pytest.approx(numbers["bytes_error"], rel=1e-6, abs=1e-3)
    total = sum(w["executed"] for w in windows)
    assert sum(row["accesses"] for row in rows.values()) == pytest.approx(total)
    if full:
        assert all(row["accesses_error"] == 0 for row in rows.values())


def test_a_full_trace_is_exact_and_one_sampled_window_has_no_error(tmp_path: Path) -> None:
    builder = jitted(program(), f=0x800000)
    builder.allocation(10, "malloc", HEAP, 4096).allocation(11, "free", HEAP + 2**20)
    trace = [(0x800000, HEAP + 8 * i, 8, 1) for i in range(100)]
    builder.window(100, trace)
    full = run("accesses", builder.open(tmp_path / "full.memlens"))
    assert full.quality.exact and full.tables["by_object"].to_pylist()[0]["accesses_error"] == 0
    builder.records = [r for r in builder.records if r[0] != "window"]
    builder.window(100, trace, executed=1000)
    sampled = run("accesses", builder.open(tmp_path / "one.memlens"))
    row = sampled.tables["by_object"].to_pylist()[0]
    assert row["accesses"] == 1000 and row["accesses_error"] is None and not sampled.quality.exact


def test_standard_error_covers_the_truth_about_as_often_as_it_says(tmp_path: Path) -> None:
    """Windows drawn from a known full trace: the truth lies within two standard errors nearly always."""
    source = random.Random(5)
    full = []
    state = True
    for _ in range(40_000):
        if source.random() < 0.01:
            state = not state
        full.append(
            (0x800000, HEAP + source.randrange(4000) if state else HEAP + 0x10000 + source.randrange(4000), 8, 1)
        )
    truth = sum(a[1] < HEAP + 0x10000 for a in full)
    inside, tries = 0, 40
    for attempt in range(tries):
        builder = jitted(program(), f=0x800000, one=0x800400, two=0x800500)
        builder.stack(1, [0x800400]).stack(2, [0x800500])
        builder.allocation(10, "malloc", HEAP, 4096, stack=1).allocation(11, "malloc", HEAP + 0x10000, 4096, stack=2)
        at = source.randrange(400)
        starts = []
        while at < len(full):
            starts.append(at)
            at += 200 + source.randrange(400)
        for begin, following in zip(starts, [*starts[1:], len(full)], strict=True):
            builder.window(100 + begin, full[begin : begin + 50], executed=following - begin, first_executed=begin)
        rows = {r["object"]: r for r in rows_of(builder.open(tmp_path / f"{attempt}.memlens"), "accesses", "by_object")}
        row = rows["heap of one"]
        executed = len(full) - starts[0]
        inside += abs(row["accesses"] - truth * executed / len(full)) <= 2 * row["accesses_error"]
    assert inside >= 0.85 * tries


def test_split_lines_and_narrow_sequences_are_counted_by_instruction(tmp_path: Path) -> None:
    builder = jitted(program(), f=0x800000)
    trace = [(0x800000, HEAP + 60 + 64 * i, 8, 1) for i in range(10)] + [(0x800008, HEAP + i, 1, 2) for i in range(10)]
    builder.window(100, trace, executed=200)
    rows = {
        row["bytes"] / row["accesses"]: row
        for row in rows_of(builder.open(tmp_path / "c.memlens"), "accesses", "by_instruction")
    }
    assert rows[8.0]["split"] == 100 and rows[8.0]["narrow"] == 0
    assert rows[1.0]["split"] == 0 and rows[1.0]["narrow"] == 100 and rows[1.0]["narrow_sequential"] == 90


def test_tags_variables_and_stacks_are_objects_too(tmp_path: Path) -> None:
    builder = jitted(program(), f=0x800000)
    builder.allocation(10, "malloc", HEAP, 4096).tag(11, "tag", HEAP + 1024, 1024, name="matrix")
    builder.window(100, [(0x800000, HEAP + i * 64, 8, 1) for i in range(64)])
    rows = {row["object"]: row for row in rows_of(builder.open(tmp_path / "c.memlens"), "accesses", "by_object")}
    assert rows["matrix"]["accesses"] == 16 and rows["matrix"]["kind"] == "tag"
    assert sum(row["accesses"] for row in rows.values()) == 64


def test_a_process_without_a_last_word_makes_counts_inexact(tmp_path: Path) -> None:
    builder = jitted(program(), f=0x800000).code_count(0x800000, loads=5).add("emulator_status", 1, time_ns=99)
    assert run("traffic", builder.open(tmp_path / "whole.memlens")).quality.exact
    builder.code_count(0x800000, loads=5, process=2)
    quality = run("traffic", builder.open(tmp_path / "killed.memlens")).quality
    assert not quality.exact and any("killed" in note for note in quality.notes)


# ---- page use -----------------------------------------------------------------------------------------


def test_first_touching_thread_against_using_threads(tmp_path: Path) -> None:
    builder = jitted(program(), init=0x800000, work=0x800100)
    builder.event(5, "thread", thread=101)
    builder.stack(1, [0x800000])
    builder.allocation(10, "malloc", HEAP, 8 * PAGE)
    first = HEAP // PAGE
    for page in range(8):
        builder.page_count(100 + page, first + page, order=1 + page, stores=10, pc=0x800000)
    for page in range(6):
        builder.page_count(200 + page, first + page, order=20 + page, loads=100, thread=101, pc=0x800100)
    # Page 7 was unmapped and mapped again: then thread 101 was first.
    builder.page_count(300, first + 7, order=40, loads=5, thread=101, generation=1, pc=0x800100)
    capture = builder.open(tmp_path / "c.memlens")
    result = run("page_use", capture)
    matrix = {
        (r["first_thread"], r["thread"]): (r["pages"], r["loads"], r["stores"])
        for r in result.tables["matrix"].to_pylist()
    }
    assert matrix == {(100, 100): (8, 0, 80), (100, 101): (6, 600, 0), (101, 101): (1, 5, 0)}
    assert result.figures["pages"] == 9 and result.figures["pages_used_by_others"] == 6
    assert result.figures["others_share"] == 600 / 685
    [row] = [r for r in result.tables["by_object"].to_pylist() if r["kind"] == "heap"]
    assert (row["pages"], row["pages_used_by_others"], row["accesses_by_others"]) == (9, 6, 600)
    assert row["main_first_thread"] == 100 and row["first_touch_function"] == "init" and row["using_threads"] == 2


def test_a_page_touched_before_its_object_exists_belongs_to_the_object(tmp_path: Path) -> None:
    builder = jitted(program(), init=0x800000)
    builder.stack(1, [0x800000])
    builder.page_count(50, HEAP // PAGE, order=1, stores=1)
    builder.allocation(500, "malloc", HEAP + 16, 16 * PAGE)
    [row] = rows_of(builder.open(tmp_path / "c.memlens"), "page_use", "by_object")
    assert row["kind"] == "heap" and row["pages"] == 1


def test_random_page_counts_equal_brute_force(tmp_path: Path) -> None:
    source = random.Random(3)
    builder = program()
    records = []
    order = 0
    for page in range(60):
        for thread in source.sample([100, 101, 102], source.randrange(1, 4)):
            order += 1
            records.append((page, thread, order, source.randrange(5), source.randrange(5)))
    source.shuffle(records)
    for page, thread, number, loads, stores in records:
        builder.page_count(10 + number, HEAP // PAGE + page, order=number, loads=loads, stores=stores, thread=thread)
    expected: dict[tuple[int, int], list[int]] = {}
    for page, thread, _, loads, stores in records:
        first = min((r for r in records if r[0] == page), key=lambda r: r[2])[1]
        entry = expected.setdefault((first, thread), [0, 0, 0])
        entry[0] += 1
        entry[1] += loads
        entry[2] += stores
    rows = rows_of(builder.open(tmp_path / "c.memlens"), "page_use", "matrix")
    assert {(r["first_thread"], r["thread"]): [r["pages"], r["loads"], r["stores"]] for r in rows} == expected
    assert np.sum([r["pages"] for r in rows]) == len(records)


def test_counts_are_called_exact_only_when_nothing_was_left_out(tmp_path: Path) -> None:
    import doctest

    from memlens.present import _units

    assert doctest.testmod(_units).failed == 0
    builder = program()
    builder.code_count(0x900000, loads=4, width=32, flags=32)
    result = run("traffic", builder.open(tmp_path / "c.memlens"))
    assert not result.quality.exact
    assert result.figures["emulator_width_bytes"] == 128
    assert any("upper bound" in note for note in result.quality.notes)
    assert _units.counted_in_words(result.figures).startswith("exact except for")
