"""The analysis `bandwidth` on captures whose answers are known in closed form, and how it is shown."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from conftest import run_memlens
from count_tools import (
    BLOCK,
    BYTES,
    CALL,
    COPY,
    FLOAT,
    LOAD,
    MIX_FLAG,
    STORE,
    VECTOR,
    Block,
    CountBuilder,
    Function,
    Scope,
    Site,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import memlens
from memlens.analyses._region_rows import imbalance, wall_ns
from memlens.cli.query import run_query

KERNEL = Function("kernel", sites=[Site(LOAD, 1), Site(STORE, 1, bytes=8)])
"""16 bytes an execution."""


def run(builder: CountBuilder, path: Path) -> memlens.results.Result:
    return memlens.analyses.run("bandwidth", builder.open(path / f"c{len(list(path.iterdir()))}.memlens"))


def region(result: Any, name: str, *, exclusive: bool = False) -> dict[str, Any]:
    rows = result.tables["by_region"].to_pylist()
    return next(row for row in rows if row["region"] == name and row["exclusive"] == exclusive)


def test_both_definitions_of_bandwidth(tmp_path: Path) -> None:
    builder = CountBuilder().module([KERNEL]).node(1, "solve").status()
    for thread, executions, time in ((101, 1000, 10_000), (102, 1000, 8_000), (103, 1000, 6_000)):
        builder.counted({0: executions}, node=1, thread=thread)
        builder.timed(1, counted_ns=time, thread=thread)
    row = region(run(builder, tmp_path), "solve")
    assert row["bytes"] == 48_000 and row["read_bytes"] == 24_000 and row["loads"] == 3000
    assert row["thread_ns"] == 24_000 and row["wall_ns"] == 10_000
    assert row["bytes_per_thread_second"] == pytest.approx(2e9)
    assert row["bytes_per_second"] == pytest.approx(4.8e9)
    assert row["time_imbalance"] == pytest.approx(10 / 8 - 1) and row["byte_imbalance"] == pytest.approx(0)


def test_inclusive_and_exclusive(tmp_path: Path) -> None:
    builder = CountBuilder().module([KERNEL]).node(1, "outer").node(2, "inner", parent=1).node(3, "inner").status()
    builder.counted({0: 100}, node=1).counted({0: 30}, node=2).counted({0: 7}, node=3).counted({0: 1}, node=0)
    builder.timed(1, counted_ns=1000, self_ns=600).timed(2, counted_ns=400).timed(3, counted_ns=50)
    result = run(builder, tmp_path)
    outer, alone = region(result, "outer"), region(result, "outer", exclusive=True)
    assert (outer["bytes"], outer["thread_ns"]) == (130 * 16, 1000)
    assert (alone["bytes"], alone["thread_ns"]) == (100 * 16, 600)
    assert region(result, "outer / inner")["bytes"] == 480 and region(result, "inner")["bytes"] == 112
    whole = result.tables["by_region"].to_pylist()[0]
    assert whole["region"] == "(whole program)" and whole["bytes"] == 138 * 16 and whole["share"] == 1
    assert region(result, "(outside regions)")["bytes"] == 16
    assert whole["wall_ns"] == 10**9 - 10
    shares = [row["share"] for row in result.tables["by_region"].to_pylist()[1:] if row["exclusive"]]
    assert sum(shares) == pytest.approx(1)


def test_work_that_was_handed_to_threads(tmp_path: Path) -> None:
    """The main thread waits in the region for 10 µs; two workers do its work, one of them in a region inside."""
    builder = CountBuilder().module([KERNEL]).node(1, "solve").node(2, "part", parent=1).status()
    builder.timed(1, counted_ns=10_000, thread=100)
    builder.counted({0: 500}, node=1, thread=101)
    builder.timed(1, counted=0, joined=1, joined_ns=9_000, thread=101)
    builder.counted({0: 300}, node=2, thread=102).timed(2, counted_ns=4_000, thread=102)
    builder.timed(1, counted=0, joined=1, joined_ns=7_000, thread=102)
    result = run(builder, tmp_path)
    row = region(result, "solve")
    assert row["executions"] == 1 and row["bytes"] == 12_800
    assert row["thread_ns"] == 10_000 + 9_000 + 7_000
    assert region(result, "solve", exclusive=True)["thread_ns"] == 10_000 + 9_000 + 3_000
    assert row["byte_imbalance"] == pytest.approx(500 / 400 - 1)  # the main thread only waits


def test_sampled_executions_stand_for_all(tmp_path: Path) -> None:
    builder = CountBuilder().module([KERNEL]).node(1, "solve").status()
    builder.meta["collectors"]["count"]["sampling"] = "every"  # type: ignore[index]
    builder.counted({0: 1000}, node=1)
    builder.timed(1, counted=10, counted_ns=20_000, untouched=90, untouched_ns=90_000)
    result = run(builder, tmp_path)
    row = region(result, "solve")
    assert row["executions"] == 100 and row["counted"] == 10 and row["estimated"]
    assert row["bytes"] == 160_000 and row["bytes_error"] is None and row["counted_share"] == pytest.approx(0.1)
    # 16 bytes × 100 an execution, by the 1 µs of an untouched one.
    assert row["corrected_bytes_per_second"] == pytest.approx(1.6e9) and row["correction"] == "untouched"
    assert row["counting_cost_share"] == pytest.approx(1.0)
    assert not result.quality.exact and any("10 of 100 executions" in note for note in result.quality.notes)
    assert result.tables["by_function"].to_pylist()[0]["bytes"] == 160_000


def test_the_error_of_an_estimate_comes_from_threads_that_differ(tmp_path: Path) -> None:
    same, different = (CountBuilder().module([KERNEL]).node(1, "solve").status() for _ in range(2))
    for thread, executions in ((101, 1000), (102, 3000)):
        for builder, value in ((same, 1000), (different, executions)):
            builder.counted({0: value}, node=1, thread=thread)
            builder.timed(1, counted=10, counted_ns=1000, untouched=10, untouched_ns=1000, thread=thread)
    assert region(run(same, tmp_path), "solve")["bytes_error"] == pytest.approx(0)
    row = region(run(different, tmp_path), "solve")
    # Cells (10, 16000) and (10, 48000): ratio 3200, residuals ∓16000, total 40 of 20 counted.
    assert row["bytes_error"] == pytest.approx(40 / 20 * 0.5**0.5 * (2 * 16_000**2 * 2) ** 0.5)


def test_a_region_that_was_never_counted_is_told(tmp_path: Path) -> None:
    builder = CountBuilder().module([KERNEL]).node(1, "solve").status().counted({0: 1})
    builder.timed(1, counted=0, untouched=5, untouched_ns=500)
    result = run(builder, tmp_path)
    assert region(result, "solve")["bytes"] == 0
    assert any("No execution of solve was counted" in note for note in result.quality.notes)


def test_our_own_cost_is_calibrated_without_untouched_executions(tmp_path: Path) -> None:
    builder = CountBuilder().module([KERNEL]).node(1, "solve").status()
    builder.counted({0: 1000}, node=1).timed(1, counted_ns=10_500)
    row = region(run(builder, tmp_path), "solve")  # 1000 adds of 0.5 ns
    assert row["correction"] == "calibrated"
    assert row["corrected_bytes_per_second"] == pytest.approx(16_000 / 10e-6)


def test_an_open_region_of_a_killed_program_has_its_time(tmp_path: Path) -> None:
    builder = CountBuilder().module([KERNEL]).node(1, "solve").status()
    builder.counted({0: 1000}, node=1).timed(1, counted=0, counted_ns=0, open_ns=16_000, entered=1, last_ns=0)
    assert region(run(builder, tmp_path), "solve")["bytes_per_thread_second"] == pytest.approx(1e9)


def test_mix_and_intensity(tmp_path: Path) -> None:
    function = Function(
        "axpy", sites=[Site(LOAD, 1, flags=FLOAT | VECTOR, bytes=32), Site(STORE, 1, flags=FLOAT | VECTOR, bytes=32)],
        blocks=[Block(1, depth=1, mix=(2, 1, 1, 1, 0, 0, 8))], flags=MIX_FLAG,
    )  # fmt: skip
    builder = (
        CountBuilder().module([function]).node(1, "r").status().counted({0: 100}, node=1).timed(1, counted_ns=1000)
    )
    result = run(builder, tmp_path)
    (row,) = result.tables["by_function"].to_pylist()
    assert row["float_results"] == 800 and row["float_results_per_byte"] == pytest.approx(0.125)
    assert row["executions"] == 100 and row["vector_share"] == 1
    assert region(result, "r")["float_results_per_byte"] == pytest.approx(0.125)


def test_inlined_functions_lines_and_blocks(tmp_path: Path) -> None:
    function = Function(
        "outer", [BLOCK, BLOCK], [[], [(0, 1)], [(1, 1)]], [Block(1), Block(2, depth=2, line=20)],
        [Site(LOAD, 1, line=10), Site(LOAD, 2, line=21, block=1, scope=0, file="i.h"), Site(STORE, 2, line=21, block=1, scope=0, file="i.h")],
        [Scope("inner")],
    )  # fmt: skip
    result = run(CountBuilder().module([function]).status().counted({0: 1, 1: 50}), tmp_path)
    scopes = {(row["function"], row["inlined"]): row["bytes"] for row in result.tables["by_scope"].to_pylist()}
    assert scopes == {("outer", False): 8, ("inner", True): 800}
    first = result.tables["by_line"].to_pylist()[0]
    assert (first["file"], first["line"], first["function"], first["executions"], first["bytes"]) == (
        "i.h",
        21,
        "inner",
        50,
        800,
    )
    block = result.tables["by_block"].to_pylist()[0]
    # Line 20 of the block is of no known file: the place is that of its first site.
    assert (block["block"], block["depth"], block["executions"]) == (1, 2, 50)
    assert (block["file"], block["line"]) == ("i.h", 21)


def test_calls_of_functions_without_counters(tmp_path: Path) -> None:
    calls = [Site(CALL, 1, bytes=0, callee=name) for name in ("sin", "other", "", "sin")]
    builder = CountBuilder().module([Function("f", sites=calls), Function("other")]).status().counted({0: 10, 1: 10})
    result = run(builder, tmp_path)
    assert [(row["callee"], row["calls"]) for row in result.tables["unseen"].to_pylist()] == [("sin", 20)]
    assert result.figures["unseen_calls"] == 20


def test_over_time(tmp_path: Path) -> None:
    builder = CountBuilder().module([KERNEL]).node(1, "solve").status()
    for epoch, value in ((1, 100), (2, 300)):
        builder.add("count_epoch", 0, epoch=epoch, begin_ns=(epoch - 1) * 10**8, end_ns=epoch * 10**8)
        builder.counted({0: value}, node=1, epoch=epoch).timed(1, counted_ns=50, epoch=epoch)
    builder.counted({0: 400}, node=1).timed(1, counted=2, counted_ns=100)
    rows = run(builder, tmp_path).tables["over_time"].to_pylist()
    assert [(row["epoch"], row["region"], row["read_bytes"]) for row in rows] == [(1, "solve", 800), (2, "solve", 2400)]
    assert rows[1]["bytes_per_second"] == pytest.approx(48_000) and rows[1]["begin_s"] == pytest.approx(0.1)


def test_two_images_of_one_region_are_one(tmp_path: Path) -> None:
    builder = CountBuilder().module([KERNEL]).loaded(image=2).node(1, "solve").node(4, "solve", image=2)
    builder.status().status(image=2).counted({0: 5}, node=1).counted({0: 6}, node=4, image=2)
    assert region(run(builder, tmp_path), "solve")["bytes"] == 11 * 16


def test_losses_make_a_result_inexact(tmp_path: Path) -> None:
    builder = CountBuilder().module([KERNEL]).status(functions_refused=3).counted({0: 5})
    assert not run(builder, tmp_path).quality.exact
    assert run(CountBuilder().module([KERNEL]).status().counted({0: 5}), tmp_path).quality.exact


def test_copies_of_run_time_size_are_estimated_accesses(tmp_path: Path) -> None:
    function = Function("f", [BLOCK, BYTES], sites=[Site(COPY, 1, bytes=0, bytes_counter=1)])
    result = run(CountBuilder().module([function]).status().counted({0: 3, 1: 801}), tmp_path)
    assert result.figures["read_bytes"] == result.figures["written_bytes"] == 801
    assert result.figures["loads"] == 101 and result.figures["estimated_accesses_share"] == 1


@given(st.lists(st.tuples(st.integers(1, 100), st.integers(0, 1000)), min_size=1, max_size=8))
def test_wall_clock_lies_between_the_longest_thread_and_the_sum(threads: list[tuple[int, int]]) -> None:
    spans = [(time, first, first + time) for time, first in threads]
    wall = wall_ns(spans)
    assert max(time for time, _ in threads) <= wall <= sum(time for time, _ in threads)


@given(st.lists(st.floats(0, 1e9), max_size=20))
def test_imbalance_is_at_most_the_number_of_threads_less_one(values: list[float]) -> None:
    found = imbalance(values)
    assert found is None or -1e-9 <= found <= len(values) - 1 + 1e-9


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(100, 103), st.integers(1, 1000)), min_size=1, max_size=12))
def test_regions_threads_functions_and_lines_add_up_to_the_same(
    tmp_path_factory: pytest.TempPathFactory, counts: list[tuple[int, int, int]]
) -> None:
    builder = CountBuilder().module([KERNEL]).node(1, "a").node(2, "b", parent=1).node(3, "c").status()
    for node, thread, value in counts:
        builder.counted({0: value}, node=node, thread=thread)
    result = run(builder, tmp_path_factory.mktemp("c"))
    total = 16 * sum(value for _, _, value in counts)
    tables = result.tables
    assert result.figures["accessed_bytes"] == total
    for name in ("by_thread", "by_function", "by_scope", "by_line", "by_block"):
        assert sum(row["bytes"] for row in tables[name].to_pylist()) == total, name
    exclusive = [row["bytes"] for row in tables["by_region"].to_pylist()[1:] if row["exclusive"]]
    assert sum(exclusive) == (total if any(node for node, _, _ in counts) else 0)


# ---- shown -----------------------------------------------------------------------------------------------------------------


def shown(builder: CountBuilder, path: Path) -> tuple[str, str, Path]:
    from memlens.present import html, terminal

    capture = builder.open(path / "shown.memlens")
    report = memlens.analyses.report(capture)
    text = io.StringIO()
    terminal.show(report, file=text)
    return text.getvalue(), html.render(report), capture.path


def test_a_person_reads_regions_first(tmp_path: Path) -> None:
    builder = CountBuilder().module([KERNEL]).node(1, "solve").node(2, "<inner>", parent=1).status()
    builder.counted({0: 10**9}, node=1).counted({0: 10**9}, node=2, thread=101).timed(1, counted_ns=10**9).timed(
        2, counted_ns=10**9, thread=101
    )
    text, page, path = shown(builder, tmp_path)
    lines = text.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("Bandwidth"))
    assert "16 GB read" in lines[at] and lines[at + 1].split()[:3] == ["region", "times", "time"]
    assert lines[at + 2].split()[:1] == ["solve"] and lines[at + 3].startswith("    <inner>")
    assert '<section id="bandwidth">' in page and "&lt;inner&gt;" in page and "<inner>" not in page
    done = run_memlens("report", path, "--json")
    assert json.loads(done.stdout)["results"]["bandwidth"]["figures"]["read_bytes"] == 16 * 10**9
    done = run_memlens("export", path, "-o", "-", "--tables", "block_counts")
    head, *rows = done.stdout.splitlines()
    assert "executions" in head and len(rows) == 2
    assert run_query(memlens.open(path), "SELECT sum(read_bytes) AS b FROM site_counts").to_pylist() == [
        {"b": 16 * 10**9}
    ]
