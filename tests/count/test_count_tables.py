"""Static tables of counted modules: what was encoded comes back, what is damaged is reported, nothing crashes."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from count_tools import (
    BLOCK,
    BYTES,
    CALL,
    COPY,
    LOAD,
    LOOPS_FLAG,
    MIX_FLAG,
    STORE,
    Block,
    CountBuilder,
    Function,
    Loop,
    Scope,
    Site,
    sections,
)  # fmt: skip
from hypothesis import given, settings
from hypothesis import strategies as st

from memlens import _core
from memlens.capture.model.count_tables import KINDS, decode_modules, static_tables
from memlens.capture.model.counting import settled
from memlens.capture.model.source_loops import loops_of_sites

WORD = st.integers(0, 2**32 - 2)
TEXT = st.text(max_size=12)


def decode(functions: list[Function]) -> dict[str, Any]:
    heads, heads_at, tables, tables_at = sections(functions)
    return _core.decode_count_tables(heads, functions_address=heads_at, tables=tables, tables_address=tables_at)


@st.composite
def a_function(draw: st.DrawFn) -> Function:
    counters = draw(st.lists(st.integers(0, 4), max_size=5))
    terms = st.lists(st.tuples(st.integers(0, len(counters) - 1), st.integers(-(2**63), 2**63 - 1)), max_size=3)
    groups = [[], *(draw(st.lists(terms, max_size=4)) if counters else [])]
    n_scopes = draw(st.integers(0, 3))
    scopes = [
        Scope(
            draw(TEXT),
            draw(TEXT),
            draw(WORD),
            draw(st.none() | st.integers(0, n - 1)) if n else None,
            draw(WORD),
            draw(WORD),
        )
        for n in range(n_scopes)
    ]
    flags = draw(st.integers(0, 3)) | draw(st.sampled_from([0, LOOPS_FLAG]))
    n_loops = draw(st.integers(0, 3)) if flags & LOOPS_FLAG else 0
    loops = [
        Loop(
            draw(st.none() | st.integers(0, n - 1)) if n else None,
            draw(st.none() | st.integers(0, n_scopes - 1)) if n_scopes else None,
            draw(TEXT),
            draw(WORD),
            draw(WORD),
        )
        for n in range(n_loops)
    ]
    group = st.integers(0, len(groups) - 1)
    mix = st.tuples(*[WORD] * 7) if flags & MIX_FLAG else st.just((0,) * 7)
    blocks = draw(st.lists(st.builds(Block, group, WORD, WORD, mix), min_size=1, max_size=3))
    site = st.builds(
        Site,
        kind=st.integers(0, 7),
        group=group,
        bytes=st.integers(0, 2**64 - 1),
        flags=st.integers(0, 511),
        block=st.integers(0, len(blocks) - 1),
        bytes_counter=st.none() | st.integers(0, len(counters) - 1) if counters else st.none(),
        scope=st.none() | st.integers(0, n_scopes - 1) if n_scopes else st.none(),
        file=TEXT,
        line=WORD,
        column=WORD,
        callee=TEXT,
        loop=st.none() | st.integers(0, n_loops - 1) if n_loops else st.none(),
    )
    sites = draw(st.lists(site, max_size=5))
    return Function(draw(TEXT), counters, groups, blocks, sites, scopes, draw(TEXT), draw(WORD), flags, loops)


@settings(max_examples=200, deadline=None)
@given(st.lists(a_function(), max_size=4))
def test_what_was_encoded_comes_back(functions: list[Function]) -> None:
    found = decode(functions)
    assert found["problems"] == [] and found["damaged_functions"] == 0
    texts = found["strings"]
    counter_base = group_base = scope_base = block_base = loop_base = site_row = 0
    for number, function in enumerate(functions):
        assert texts[found["functions"]["name"][number]] == function.name
        assert texts[found["functions"]["file"][number]] == function.file
        assert found["functions"]["first_counter"][number] == counter_base
        assert found["counter_kind"][counter_base : counter_base + len(function.counters)].tolist() == function.counters
        for index, terms in enumerate(function.groups):
            begin, end = found["first_term"][group_base + index], found["first_term"][group_base + index + 1]
            got = zip(found["term_counter"][begin:end].tolist(), found["term_scale"][begin:end].tolist(), strict=True)
            assert list(got) == [(counter_base + counter, scale) for counter, scale in terms]
        for index, block in enumerate(function.blocks):
            row = block_base + index
            assert found["blocks"]["group"][row] == group_base + block.group
            assert found["blocks"]["float_results"][row] == (block.mix[6] if function.flags & MIX_FLAG else 0)
        for site in function.sites:
            columns = {name: values[site_row] for name, values in found["sites"].items()}
            assert columns["bytes"] == site.bytes and columns["kind"] == site.kind and columns["flags"] == site.flags
            assert columns["group"] == group_base + site.group and columns["block"] == block_base + site.block
            expected = 2**32 - 1 if site.bytes_counter is None else counter_base + site.bytes_counter
            assert columns["bytes_counter"] == expected
            assert columns["scope"] == (2**32 - 1 if site.scope is None else scope_base + site.scope)
            assert texts[columns["callee"]] == site.callee and columns["line"] == site.line
            assert found["loop_of_site"][site_row] == (2**32 - 1 if site.loop is None else loop_base + site.loop)
            site_row += 1
        counter_base += len(function.counters)
        group_base += len(function.groups)
        scope_base += len(function.scopes)
        block_base += len(function.blocks)
        for index, loop in enumerate(function.loops):
            columns = {name: values[loop_base + index] for name, values in found["loops"].items()}
            assert columns["parent"] == (2**32 - 1 if loop.parent is None else loop_base + loop.parent)
            assert columns["scope"] == (
                2**32 - 1 if loop.scope is None else scope_base - len(function.scopes) + loop.scope
            )
            assert (texts[columns["file"]], columns["line"], columns["column"]) == (loop.file, loop.line, loop.column)
            assert columns["function"] == number
        loop_base += len(function.loops)


@settings(max_examples=300, deadline=None)
@given(st.lists(a_function(), min_size=1, max_size=3), st.data())
def test_damaged_bytes_are_reported_and_never_crash(functions: list[Function], data: st.DataObject) -> None:
    heads, heads_at, tables, tables_at = sections(functions)
    spoiled_heads, spoiled_tables = bytearray(heads), bytearray(tables)
    for _ in range(data.draw(st.integers(1, 4))):
        target = data.draw(st.sampled_from([spoiled_heads, spoiled_tables]))
        if target:
            target[data.draw(st.integers(0, len(target) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(spoiled_tables)))
    found = _core.decode_count_tables(
        bytes(spoiled_heads), functions_address=heads_at, tables=bytes(spoiled_tables[:cut]), tables_address=tables_at
    )
    rows = len(found["functions"]["name"])
    assert (found["functions"]["sound"] == 0).sum() <= found["damaged_functions"]
    assert all((values < rows).all() for values in (found["sites"]["function"], found["blocks"]["function"]))
    n_groups, n_terms = len(found["first_term"]) - 1, len(found["term_counter"])
    assert found["first_term"][-1] == n_terms and len(found["counter_kind"]) <= sum(found["functions"]["counters"])
    groups = found["sites"]["group"]
    assert ((groups < n_groups) | (groups == 2**32 - 1)).all()
    static_tables({"m": found})


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.binary(max_size=300))
def test_any_bytes(heads: bytes, tables: bytes) -> None:
    static_tables(decode_modules({"m": (heads, 0, tables, 0)}))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda table: table[:-1], "ends in its sites"),
        (lambda table: table + b"\0", "bytes too many"),
        (lambda table: b"\x09" + table[1:], "has version 9; this build reads 1 to 3"),
        (lambda table: b"", "is empty"),
    ],
)
def test_a_damaged_function_costs_only_itself(spoil: Any, said: str) -> None:
    good, bad = Function("good", sites=[Site(LOAD, 1)]), Function("bad", sites=[Site(STORE, 1)])
    table = spoil(bad.table())

    class Spoiled(Function):
        def table(self) -> bytes:
            return table

    found = decode([Spoiled("bad"), good])
    assert said in found["problems"][0] and found["damaged_functions"] == 1
    assert len(found["sites"]["kind"]) == 1 and found["term_counter"].tolist() == [1]


def test_inlined_functions_in_a_circle_are_refused() -> None:
    circle = Function("f", scopes=[Scope("a", parent=1), Scope("b", parent=0)])
    assert "circle" in decode([circle])["problems"][0]
    assert decode([replace(circle, scopes=[Scope("a", parent=1), Scope("b")])])["problems"] == []


def test_a_loop_around_itself_or_that_is_not_there_is_refused() -> None:
    inner = Function("f", sites=[Site(LOAD, 1, loop=1)], loops=[Loop(), Loop(parent=0)], flags=LOOPS_FLAG)
    assert decode([inner])["problems"] == []
    for wrong in (
        replace(inner, loops=[Loop(), Loop(parent=1)]),
        replace(inner, loops=[Loop(parent=1), Loop()]),
        replace(inner, sites=[Site(LOAD, 1, loop=2)]),
        replace(inner, loops=[Loop(scope=0), Loop()]),
    ):
        assert "or loop that it does not have" in decode([wrong])["problems"][0]


def test_loops_are_named_by_the_function_that_they_are_written_in(tmp_path: Path) -> None:
    """A nest inlined twice, two loops on one line, a macro's nest, one without a line, one whose outer loop was unrolled away in one copy."""
    scopes = [Scope("_Z5innerv"), Scope("_Z5innerv", call_line=77)]
    loops = [
        Loop(line=5),                                                # 0: of f
        Loop(0, scope=0, file="/s/in.h", line=8),                    # 1, 2: inlined in it: its own nest begins here
        Loop(1, scope=0, file="/s/in.h", line=9),
        Loop(scope=1, file="/s/in.h", line=9),                       # 3: the other copy, without the loop of line 8
        Loop(line=20, column=3), Loop(line=20, column=30),           # 4, 5
        Loop(line=22), Loop(6, line=22),                             # 6, 7
        Loop(file="", line=0, column=0),                             # 8
    ]  # fmt: skip
    sites = [Site(LOAD, 1, loop=number, line=100 + number) for number in range(len(loops))] + [Site(LOAD, 1)]
    function = Function("f", sites=sites, scopes=scopes, loops=loops, flags=LOOPS_FLAG)
    other = Function("g", sites=[Site(LOAD, 1, loop=0)], loops=[Loop(line=50)], flags=LOOPS_FLAG)
    capture = CountBuilder().module([function, other]).open(tmp_path / "c.memlens")
    known = loops_of_sites(capture)
    found = [known.get(("b0b0", site)) for site in range(len(sites) + 1)]
    assert [one and (one.name, one.function, one.depth, one.parent) for one in found] == [
        ("kernel.c:5", "f", 1, None),
        ("in.h:8", "inner()", 1, None),
        ("in.h:9", "inner()", 2, "in.h:8"),
        ("in.h:9", "inner()", 2, "in.h:8"),
        ("kernel.c:20:3", "f", 1, None),
        ("kernel.c:20:30", "f", 1, None),
        ("kernel.c:22", "f", 1, None),
        ("kernel.c:22 #2", "f", 2, "kernel.c:22"),
        ("loop 9", "f", 1, None),
        None,
        ("kernel.c:50", "g", 1, None),
    ]
    table = capture.table("count_loops").to_pylist()
    assert [row["parent"] for row in table] == [None, 0, 1, None, None, None, None, 6, None, None]
    assert [row["inlined_into"][0].split(" (")[0] if row["inlined_into"] else "" for row in table[:5]] == [
        "",
        "f",
        "f",
        "f",
        "",
    ]
    assert table[9]["sites"] == [10] and table[9]["function"] == 1


def test_two_hundred_thousand_sites_in_a_second() -> None:
    site = [Site(KINDS.index("load"), 1, line=line, file=f"file{line % 7}.c", scope=0) for line in range(100)]
    functions = [
        Function(f"_ZN5space8functionILi{n}EEvv", sites=site, scopes=[Scope(f"inner{n % 50}")]) for n in range(2000)
    ]
    laid_out = sections(functions)
    begin = time.perf_counter()
    tables = static_tables(decode_modules({"m": laid_out}))
    took = time.perf_counter() - begin
    assert tables["count_sites"].num_rows == 200_000
    assert took < 1.0


def test_side_tables_name_functions_as_a_person_reads_them(tmp_path: Path) -> None:
    function = Function(
        "_ZN6Solver4stepEi",
        sites=[Site(LOAD, 1, scope=1), Site(CALL, 1, bytes=0, callee="memcpy")],
        scopes=[Scope("outer"), Scope("_Z5innerv", parent=0)],
    )
    capture = CountBuilder().module([function]).open(tmp_path / "c.memlens")
    first, second = capture.table("count_sites").to_pylist()
    assert first["name"] == "inner()" and [name.split(" (")[0] for name in first["inlined_into"]] == [
        "outer",
        "Solver::step(int)",
    ]
    assert second["name"] == "Solver::step(int)" and second["inlined_into"] == [] and second["callee"] == "memcpy"
    (row,) = capture.table("count_functions").to_pylist()
    assert row["linkage_name"] == "_ZN6Solver4stepEi" and row["sound"]


# ---- counts times tables ---------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 2**64 - 1), min_size=3, max_size=3),
    st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(-5, 5)), max_size=4), min_size=1, max_size=4),
)
def test_executions_are_the_sum_of_counters_times_scales_modulo_2_64(
    tmp_path_factory: pytest.TempPathFactory, values: list[int], groups: list[list[tuple[int, int]]]
) -> None:
    function = Function("f", [BLOCK] * 3, groups, [Block(0)], [Site(LOAD, n, bytes=1) for n in range(len(groups))])
    builder = CountBuilder().module([function]).counted(dict(enumerate(values)))
    capture = builder.open(tmp_path_factory.mktemp("c") / "c.memlens")
    found = {row["site"]: row["executions"] for row in capture.table("site_counts").to_pylist()}
    for number, terms in enumerate(groups):
        exact = sum(values[counter] * scale for counter, scale in terms) % 2**64
        signed = exact - 2**64 if exact >= 2**63 else exact
        assert found.get(number, 0) == max(signed, 0)  # below zero: it was read while it ran


def test_bytes_and_accesses_of_each_kind(tmp_path: Path) -> None:
    stack = 1 | 2
    sites = [
        Site(0, 1, bytes=8), Site(1, 1, bytes=4), Site(2, 1, bytes=8), Site(3, 1, bytes=20), Site(4, 1, bytes=0, bytes_counter=1),
        Site(5, 1, bytes=16), Site(7, 1, bytes=64), Site(0, 1, bytes=2, flags=1), Site(3, 1, bytes=8, flags=2),
        Site(0, 1, bytes=32, flags=8, bytes_counter=2),
    ]  # fmt: skip
    function = Function("f", [BLOCK, BYTES, BYTES], [[], [(0, 1)]], [Block(1)], sites)
    assert stack
    capture = CountBuilder().module([function]).counted({0: 10, 1: 75, 2: 100}).open(tmp_path / "c.memlens")
    rows = capture.table("site_counts").sort_by("site").to_pylist()
    names = ("loads", "stores", "read_bytes", "written_bytes", "stack_read_bytes", "stack_written_bytes", "estimated")
    assert [tuple(row[name] for name in names) for row in rows] == [
        (10, 0, 80, 0, 0, 0, False),
        (0, 10, 0, 40, 0, 0, False),
        (10, 10, 80, 80, 0, 0, False),
        (30, 30, 200, 200, 0, 0, True),  # ceil(20 / 8) each
        (0, 10, 0, 75, 0, 0, True),  # ceil(75 / 8) in all
        (20, 0, 160, 0, 0, 0, True),
        (0, 0, 0, 0, 0, 0, False),
        (10, 0, 20, 0, 20, 0, False),
        (10, 10, 80, 80, 0, 80, True),
        (10, 0, 100, 0, 0, 0, False),  # masked: what it did, not the most it could
    ]
    (block,) = capture.table("block_counts").to_pylist()
    assert block["read_bytes"] == 80 + 80 + 200 + 160 + 20 + 80 + 100 and block["executions"] == 10


def test_two_modules_two_places(tmp_path: Path) -> None:
    one, two = Function("one", sites=[Site(LOAD, 1)]), Function("two", sites=[Site(COPY, 1, bytes=16), Site(STORE, 1)])
    builder = CountBuilder().module([one, two], name="aa").module([two], name="bb", path="/lib/b.so")
    builder.node(1, "outer").node(2, "inner", parent=1)
    builder.counted({0: 5, 1: 7}, node=2, module="aa").counted({0: 11}, node=1, thread=200, module="bb")
    capture = builder.open(tmp_path / "c.memlens")
    rows = capture.table("site_counts").to_pylist()
    found = {
        (row["module"], row["function"], row["kind"], row["region"], row["thread"]): row["executions"] for row in rows
    }
    assert found == {
        ("aa", "one", "load", "outer / inner", 100): 5,
        ("aa", "two", "copy", "outer / inner", 100): 7,
        ("aa", "two", "store", "outer / inner", 100): 7,
        ("bb", "two", "copy", "outer", 200): 11,
        ("bb", "two", "store", "outer", 200): 11,
    }


def test_a_capture_that_was_cut_short_has_its_epochs(tmp_path: Path) -> None:
    function = Function("f", sites=[Site(LOAD, 1)])
    builder = CountBuilder().module([function]).counted({0: 5}, epoch=1).counted({0: 6}, epoch=2)
    path = builder.write(tmp_path / "c.memlens", state="recording")
    from memlens import open as open_capture

    assert open_capture(path).table("site_counts").column("executions").to_pylist() == [11]
    again = builder.counted({0: 11}).write(tmp_path / "d.memlens")
    assert open_capture(again).table("site_counts").column("executions").to_pylist() == [11]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(1, 6), st.integers(-20, 40)), max_size=30))
def test_no_epoch_of_a_group_is_negative(rows: list[tuple[int, int, int, int]]) -> None:
    """A group that is a difference of counters may be ahead of itself while a program runs; its epochs still add up."""
    rows = list({row[:3]: row for row in rows}.values())
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], [], []]
    series, group, epoch, executions = columns
    found = settled(executions, series, group, epoch)
    for key in {(row[0], row[1]) for row in rows}:
        mine = sorted((row[2], row[3], int(value)) for row, value in zip(rows, found, strict=True) if row[:2] == key)
        assert all(value >= 0 for _, _, value in mine)
        assert sum(value for _, _, value in mine) == max(sum(value for _, value, _ in mine), 0)
        for at in range(len(mine)):  # what is shown was never more than what had been read, or was read later
            least = min(sum(value for _, value, _ in mine[: end + 1]) for end in range(at, len(mine)))
            assert sum(value for _, _, value in mine[: at + 1]) == max(least, 0)
        if all(value >= 0 for _, value, _ in mine):
            assert [value for _, _, value in mine] == [value for _, value, _ in mine]
