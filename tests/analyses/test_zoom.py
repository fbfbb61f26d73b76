"""Zooming over memory and over time: brute force, hand-built traces with known answers, and the command."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import CaptureBuilder
from conftest import run_memlens
from hypothesis import given, settings
from hypothesis import strategies as st
from import_tools import imported

from memlens import _core
from memlens.analyses.intervals import intervals
from memlens.analyses.zoom_location import ZoomTree, zoom_location
from memlens.analyses.zoom_time import hot_path, zoom_time
from memlens.errors import UsageError

LOAD, STORE = 1, 2
HOT, FAR, COLD = 0x10_0000, 0x7000_0000, 0x5000_0000


# ---- memory: the tree ------------------------------------------------------------------------------------------------


def runs_of(blocks: dict[int, int], pages_blocks: int) -> list[dict[int, int]]:
    """Maximal runs of contiguous pages with accesses, page by page."""
    found: list[dict[int, int]] = []
    last = None
    for block in sorted(blocks):
        page = block // pages_blocks
        if last is None or page > last + 1:
            found.append({})
        found[-1][block] = blocks[block]
        last = page
    return found


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(st.integers(0, 3000), st.integers(1, 50), min_size=1, max_size=60),
    st.sampled_from([0.05, 0.1, 0.3, 0.6, 1.0]), st.sampled_from([64, 256, 4096]),
)  # fmt: skip
def test_regions_are_maximal_runs_with_their_share(counts: dict[int, int], threshold: float, stop: int) -> None:
    """What the definition says of every node, whatever order the tree was built in."""
    order = sorted(counts)
    tree = ZoomTree(
        np.array(order, dtype=np.uint64), np.array([counts[b] for b in order]), block_bytes=64, threshold=threshold, stop_bytes=stop
    )  # fmt: skip
    nodes = tree.nodes
    inside = [{b: counts[b] for b in order if n["begin"] <= 64 * b < n["end"]} for n in nodes]
    for node, mine in zip(nodes, inside, strict=True):
        assert node["accesses"] == sum(mine.values()) and node["blocks"] == len(mine)
        assert (node["begin"], node["end"]) == (64 * min(mine), 64 * (max(mine) + 1))
        parts = [n for n in nodes if n["parent"] == node["node"]]
        below = [n for n in parts if not n["is_spread"]]
        assert bool(below) != node["is_final"] and (below or not parts)
        size = node["end"] - node["begin"]
        if below:
            # Exactly the runs of its pages that are hot.
            hot = [
                r for r in runs_of(mine, node["page_bytes"] // 64) if sum(r.values()) >= threshold * node["accesses"]
            ]
            assert [(64 * min(r), 64 * (max(r) + 1), sum(r.values())) for r in hot] == [
                (n["begin"], n["end"], n["accesses"]) for n in below
            ]
            assert size > stop and node["page_bytes"] >= stop
            assert node["cold_accesses"] == node["accesses"] - sum(n["accesses"] for n in parts)
            # And what lies before, between and behind them, if it is hot together; not of all memory.
            edges = [-1, *(edge for r in hot for edge in (min(r), max(r))), max(mine) + 1]
            between = [
                {b: c for b, c in mine.items() if low < b < high}
                for low, high in zip(edges[::2], edges[1::2], strict=True)
            ]
            spread = [
                r
                for r in between
                if r and node["parent"] is not None and sum(r.values()) >= threshold * node["accesses"]
            ]
            assert [(64 * min(r), 64 * (max(r) + 1), sum(r.values())) for r in spread] == [
                (n["begin"], n["end"], n["accesses"]) for n in parts if n["is_spread"]
            ]
            assert all((n["page_bytes"] or 0) < node["page_bytes"] for n in below if not n["is_final"])
        elif size > stop and not node["is_spread"]:
            # Final although large: pages are at their smallest, or no run of any page size left is hot.
            parent = next((n for n in nodes if n["node"] == node["parent"]), None)
            at_smallest = parent is not None and parent["page_bytes"] == stop
            if not at_smallest:
                pages = [p for p in (1 << k for k in range(6, 30)) if p >= stop]
                assert any(
                    all(sum(r.values()) < threshold * node["accesses"] for r in runs_of(mine, p // 64)) for p in pages
                )
    finals = sorted((n["begin"], n["end"]) for n in nodes if n["is_final"])
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(finals))  # regions do not overlap


def test_an_object_stays_whole_though_parts_of_it_are_cold() -> None:
    """1,000 contiguous blocks of which one has half the accesses are one region: contiguity keeps objects together."""
    counts = np.ones(1000, dtype=np.int64)
    counts[500] = 999
    tree = ZoomTree(np.arange(1000, dtype=np.uint64), counts, block_bytes=64, threshold=0.1, stop_bytes=4096)
    assert [(n["begin"], n["end"]) for n in tree.nodes if n["is_final"]] == [(0, 64000)]


# ---- memory: the analysis ---------------------------------------------------------------------------------------------


def touch(base: int, offsets: Any, *, pc: int, operation: int = LOAD) -> list[tuple[int, int, int, int]]:
    return [(pc, base + int(offset), 8, operation) for offset in offsets]


def two_arrays() -> list[tuple[int, int, int, int]]:
    """16 lines of HOT cyclically, three sweeps of 128 lines of FAR in between each, and one cold access in a hundred."""
    source = np.random.default_rng(3)
    trace: list[tuple[int, int, int, int]] = []
    for turn in range(20):
        trace += touch(HOT, source.permutation(16) * 64, pc=0x1000)
        trace += touch(FAR, source.permutation(128) * 64, pc=0x2000)
        trace += touch(COLD + 0x100000 * turn, [0], pc=0x3000 + 16 * turn)
    return trace


def test_hot_regions_have_their_share_distance_and_code(tmp_path: Path) -> None:
    capture = CaptureBuilder().window(10, two_arrays()).open(tmp_path / "a.memlens")
    result = zoom_location(capture, threshold=0.05, stop_bytes=1024)
    rows = {row["address"]: row for row in result.tables["regions"].to_pylist()}
    assert set(rows) == {HOT, FAR}
    hot, far = rows[HOT], rows[FAR]
    total = result.figures["accesses"]
    assert (far["region"], hot["region"]) == (0, 1)  # hottest first
    assert (hot["accesses"], hot["bytes"], hot["blocks"]) == (320, 1024, 16)
    assert (far["accesses"], far["bytes"], far["blocks"]) == (2560, 8192, 128)
    assert hot["hotness_percent"] == pytest.approx(100 * 320 / total) and hot["accesses_per_block"] == 20
    # Between two uses of a line of HOT lie all of FAR, a cold line, and what came of HOT: brute force.
    trace = two_arrays()
    for row, base, size in ((hot, HOT, 1024), (far, FAR, 8192)):
        everything, own = brute_distances(trace, base, size)
        assert row["reuses"] == len(everything)
        assert row["reuse_distance_mean"] == pytest.approx(np.mean(everything)) and row["reuse_distance_max"] == max(
            everything
        )
        assert row["region_distance_mean"] == pytest.approx(np.mean(own)) and row["region_distance_max"] == max(own)
    assert hot["reuse_distance_mean"] > 128 > hot["region_distance_mean"]
    assert result.figures["cold_accesses"] == total - 2880
    assert sum(row["accesses"] for row in result.tables["code"].to_pylist()) == 2880
    assert all(row["share"] == 1.0 for row in result.tables["code"].to_pylist())


def brute_distances(trace: list[tuple[int, int, int, int]], base: int, size: int) -> tuple[list[int], list[int]]:
    def of(lines: list[int]) -> list[int]:
        found = []
        for at, line in enumerate(lines):
            before = [i for i in range(max(0, at - 400), at) if lines[i] == line]
            if before and base // 64 <= line < (base + size) // 64:
                found.append(len(set(lines[before[-1] + 1 : at])))
        return found

    lines = [address // 64 for _, address, _, _ in trace]
    return of(lines), of([line for line in lines if base // 64 <= line < (base + size) // 64])


def test_constants_are_no_hot_memory(tmp_path: Path) -> None:
    """A scalar that one instruction loads a thousand times is left out, as the paper does."""
    trace = [*touch(HOT, range(0, 8 * 500, 8), pc=0x1000), *touch(FAR, [0] * 1000, pc=0x2000)]
    result = zoom_location(CaptureBuilder().window(10, trace).open(tmp_path / "a.memlens"))
    assert [row["address"] for row in result.tables["regions"].to_pylist()] == [HOT]
    assert result.figures["accesses"] == 500


def test_windows_keep_their_reuse_apart_and_processes_their_memory(tmp_path: Path) -> None:
    builder = CaptureBuilder()
    for number in range(4):
        for process in (1, 2):
            lines = np.random.default_rng(process).permutation(64) * 64
            builder.window(1000 * number, touch(HOT, lines, pc=0x1000), process=process, executed=640,
                           first_executed=640 * number, period=640)  # fmt: skip
    result = zoom_location(builder.open(tmp_path / "a.memlens"))
    rows = result.tables["regions"].to_pylist()
    assert [(row["process"], row["address"], row["accesses"]) for row in rows] == [(1, HOT, 256), (2, HOT, 256)]
    for row in rows:  # each window uses each line once: nothing can be said of reuse
        assert row["reuses"] == 0 and row["reuse_distance_mean"] is None and row["unobservable"] == 256
    assert not result.quality.exact


# ---- time ---------------------------------------------------------------------------------------------------------------


def bad_phase(tmp_path: Path) -> Any:
    """16 samples; all use the same 32 lines again and again, but sample 11 touches 256 new ones in its second half."""
    builder = CaptureBuilder()
    source = np.random.default_rng(5)
    for number in range(16):
        good = touch(HOT, source.integers(0, 32, 512) * 64, pc=0x1000)
        if number == 11:
            good[256:] = touch(FAR, source.permutation(256) * 64, pc=0x2000)
        builder.window(1000 * number, good, executed=5120, first_executed=5120 * number, period=5120)
    return builder.open(tmp_path / "a.memlens")


def test_the_path_leads_to_the_sample_and_the_half_with_new_data(tmp_path: Path) -> None:
    result = zoom_time(bad_phase(tmp_path))
    path = result.tables["path"].to_pylist()
    assert [row["samples"] for row in path if row["kind"] == "interval"] == [16, 8, 4, 2]
    assert [row["first_sample"] for row in path if row["kind"] == "interval"] == [0, 8, 8, 10]
    sample = next(row for row in path if row["kind"] == "sample")
    assert sample["first_sample"] == 11 and sample["share"] == pytest.approx(1 / 16)
    half = path[path.index(sample) + 1]
    assert (half["first_access"], half["accesses"], half["footprint"], half["growth"]) == (256, 256, 256, 1.0)
    assert path[-1]["accesses"] == 8 and path[-1]["growth"] == 1.0
    code = result.tables["code"].to_pylist()
    assert {row["kind"] for row in code} == {"interval", "sample", "window"}
    assert sum(row["accesses"] for row in code if row["kind"] == "sample") == 512
    last = [row for row in code if row["kind"] == "window"]
    assert sum(row["accesses"] for row in last) == 8


def test_a_path_goes_on_below_what_the_tree_lists(tmp_path: Path) -> None:
    """The same with so few nodes kept that windows below 1,024 accesses are looked at again: the same path."""
    capture = bad_phase(tmp_path)
    whole = zoom_time(capture).tables["path"].to_pylist()
    less = zoom_time(capture, most_nodes=64).tables["path"].to_pylist()
    assert intervals(capture, most_nodes=64).figures["smallest_listed_accesses"] == 512
    names = (
        "kind",
        "first_sample",
        "samples",
        "first_access",
        "accesses",
        "footprint",
        "growth",
        "blocks",
        "reuse_distance_mean",
    )
    assert [{name: row[name] for name in names} for row in less] == [
        {name: row[name] for name in names} for row in whole
    ]


def implying(tmp_path: Path, *, per_access: bool) -> Any:
    """512 accesses with a constant for every second one: of the instruction, or only known of the sample."""
    addresses = (0x10000 + 64 * np.random.default_rng(2).integers(0, 200, 512)).astype(np.uint64)
    if per_access:
        lines = [f"{0x10 + n % 2:#x} {address:#x} 0 1.{n:09d} 5\n" for n, address in enumerate(addresses.tolist())]
        (tmp_path / "a.trace").write_text("".join(lines))
        (tmp_path / "a.binanlys").write_text("0x10 2 0x0 0x1 0x1\n0x11 2 0x0 0x1 0x0\n")
        return imported(tmp_path / "a.trace", tmp_path / "a.memlens", period=10_000)
    stream = bytes(
        _core.encode_stream(np.zeros(512, np.uint64), addresses, np.zeros(0, np.uint32), np.zeros(0, np.uint8))
    )
    builder = CaptureBuilder()
    builder.add("window", tail=stream, begin_ns=10, end_ns=90, recorded=512, executed=10_000, implied_constant=256, thread=100,
                period=10_000, encoding=1, module=builder.string("abc"))  # fmt: skip
    return builder.open(tmp_path / "b.memlens")


@pytest.mark.parametrize("per_access", [True, False])
def test_constants_go_on_below_what_the_tree_lists(tmp_path: Path, per_access: bool) -> None:
    capture = implying(tmp_path, per_access=per_access)
    whole, less = (zoom_time(capture, most_nodes=n).tables["path"].to_pylist() for n in (1 << 17, 16))
    assert len(whole) == len(less) == 7 and intervals(capture, most_nodes=16).figures["smallest_listed_accesses"] == 128
    for row, other in zip(whole, less, strict=True):
        for name in ("first_access", "accesses", "constants", "footprint", "growth"):
            assert other[name] == pytest.approx(row[name]), name
    assert whole[-1]["constants"] == 4


NODE = st.tuples(st.integers(1, 1000), st.floats(0, 1))


@settings(max_examples=300, deadline=None)
@given(st.lists(NODE, min_size=1, max_size=40), st.randoms(use_true_random=False), st.floats(0.01, 1))
def test_each_step_takes_the_worst_of_the_hot_children(
    entries: list[tuple[int, float]], chance: Any, threshold: float
) -> None:
    last = len(entries) - 1
    nodes = [
        {"node": n, "parent": None if n == last else chance.randint(n + 1, last), "accesses": a, "growth": g}
        for n, (a, g) in enumerate(entries)
    ]
    path = hot_path(nodes, threshold=threshold, stop_accesses=0)
    assert path[0] == last
    for above, below in itertools.pairwise(path):
        children = [n for n in nodes if n["parent"] == above]
        hottest = max(n["accesses"] for n in children)
        hot = [n for n in children if n["accesses"] >= threshold * nodes[above]["accesses"] or n["accesses"] == hottest]
        assert nodes[below] in hot and nodes[below]["growth"] == max(n["growth"] for n in hot)
    assert not [n for n in nodes if n["parent"] == path[-1]]


# ---- the command --------------------------------------------------------------------------------------------------------


def test_the_command_shows_regions_a_path_and_levels(tmp_path: Path) -> None:
    capture = CaptureBuilder().window(10, two_arrays()).write(tmp_path / "a.memlens")
    shown = run_memlens("zoom", capture, "--threshold", "5%", "--stop", "1K")
    assert shown.returncode == 0 and "2 regions" in shown.stdout and f"{HOT:#x}" in shown.stdout, shown.stderr
    assert "next: memlens zoom" in shown.stdout
    data = json.loads(run_memlens("zoom", capture, "--threshold", "0.05", "--stop", "1024", "--json").stdout)
    assert {row["address"] for row in data["tables"]["regions"]} == {HOT, FAR}
    shown = run_memlens("zoom", capture, "--by", "time")
    assert shown.returncode == 0 and "Badly reused time" in shown.stdout and "sample 0" in shown.stdout
    shown = run_memlens("zoom", capture, "--levels")
    assert shown.returncode == 0 and "64 accesses" in shown.stdout
    shown = run_memlens("zoom", capture, "--levels", "--tree", "memgaze")
    assert shown.returncode == 0 and "NPF rate" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--threshold", "0"), "expected a share above 0"),
        (("--threshold", "many"), "expected a share above 0"),
        (("--stop", "3000"), "not a power of two"),
        (("--block", "0"), "not a power of two"),
        (("--stop", "32"), "less than a block of 64 bytes"),
        (("--by", "time", "--stop", "4K"), "--stop is a size of memory"),
        (("--levels", "--threshold", "5%"), "has no threshold"),
        (("--tree", "memgaze"), "--tree is for the table of levels"),
    ],
)
def test_mistakes_get_a_sentence_and_a_remedy(tmp_path: Path, arguments: tuple[str, ...], text: str) -> None:
    capture = CaptureBuilder().window(10, touch(HOT, range(100), pc=0x1000)).write(tmp_path / "a.memlens")
    told = run_memlens("zoom", capture, *arguments)
    assert told.returncode == 64 and text in told.stderr and len(told.stderr.splitlines()) == 2, told.stderr


def test_captures_without_accesses_are_told(tmp_path: Path) -> None:
    told = run_memlens("zoom", CaptureBuilder().fault(10, 5).write(tmp_path / "a.memlens"))
    assert told.returncode != 0 and "holds no accesses" in told.stderr and "--emulate" in told.stderr
    told = run_memlens(
        "zoom", CaptureBuilder().window(10, touch(HOT, [0] * 50, pc=0x1000)).write(tmp_path / "c.memlens")
    )
    assert told.returncode != 0 and "all 50 accesses" in told.stderr and "constants" in told.stderr
    broken = CaptureBuilder().add(
        "window", tail=b"\xff" * 3, begin_ns=1, end_ns=2, recorded=9, executed=9, thread=1, encoding=2, period=9
    )
    for arguments in ((), ("--by", "time"), ("--levels",), ("--levels", "--tree", "memgaze")):
        told = run_memlens("zoom", broken.write(tmp_path / f"d{len(arguments)}.memlens"), *arguments)
        assert told.returncode != 0 and "none of 1 windows" in told.stderr, (arguments, told.stderr, told.stdout)
    with pytest.raises(UsageError, match="invalid threshold 2"):
        zoom_time(CaptureBuilder().window(10, touch(HOT, range(9), pc=1)).open(tmp_path / "b.memlens"), threshold=2)


def test_an_array_that_is_swept_is_a_region_though_windows_leave_gaps_in_it(tmp_path: Path) -> None:
    """Half of the accesses go to one page, half to windows all over an array next to it: no run of the array is hot, all of it is."""
    source = np.random.default_rng(4)
    builder = CaptureBuilder()
    array, hot = 0x10_0000_0000, 0x10_0100_0000  # 16 MiB apart, contiguous in large pages
    for number in range(200):
        begin = int(source.integers(0, (16 << 20) // 8 - 500)) * 8
        trace = touch(array + begin, range(0, 4000, 8), pc=0x1000) + touch(
            hot, source.integers(0, 512, 500) * 8, pc=0x2000
        )
        builder.window(1000 * number, trace, executed=100_000, first_executed=100_000 * number)
    builder.window(500, touch(0x7000_0000_0000, range(0, 800, 8), pc=0x3000), thread=101)
    result = zoom_location(builder.open(tmp_path / "a.memlens"))
    rows = result.tables["regions"].to_pylist()
    assert sorted(row["is_spread"] for row in rows) == [False, True]
    swept = next(row for row in rows if row["is_spread"])
    assert swept["accesses"] == 100_000 and swept["address"] < array + (1 << 20) and swept["bytes"] > 14 << 20
    # What is in no region is told, by object: the page of the other thread.
    left_out = result.tables["left_out"].to_pylist()
    assert [row["accesses"] for row in left_out] == [100] and result.figures["cold_accesses"] == 100


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.integers(0, 3000), st.integers(1, 50), min_size=1, max_size=60),
    st.sampled_from([0.05, 0.2, 0.5]),
)
def test_regions_and_what_they_leave_out_are_everything(counts: dict[int, int], threshold: float) -> None:
    order = sorted(counts)
    tree = ZoomTree(
        np.array(order, dtype=np.uint64),
        np.array([counts[b] for b in order]),
        block_bytes=64,
        threshold=threshold,
        stop_bytes=256,
    )
    finals = sum(node["accesses"] for node in tree.nodes if node["is_final"])
    assert finals + sum(node["cold_accesses"] for node in tree.nodes) == sum(counts.values())
