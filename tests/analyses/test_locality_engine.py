"""The locality engines against closed forms and brute force: reuse, curves, footprint, caches."""

from __future__ import annotations

import math
import shutil
import subprocess
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from emulate_tools import build
from hypothesis import given, settings
from hypothesis import strategies as st

from memlens.capture.model.locality import (
    REUSE_EARLIER,
    REUSE_FIRST,
    CacheModel,
    Footprint,
    MissCurve,
    ReuseDistances,
    SampledCurve,
)

LINE = 64


def array(values: object, kind: type = np.uint64) -> np.ndarray:
    return np.ascontiguousarray(values, dtype=kind)


def distances_of(blocks: object, *, block_bytes: int = LINE) -> np.ndarray:
    return ReuseDistances(block_bytes=block_bytes).add(array(blocks) * np.uint64(block_bytes))[0]


def zipf(count: int, lines: int, exponent: float, seed: int = 1) -> np.ndarray:
    """Addresses of lines that are used with probability proportional to rank^-exponent."""
    weights = np.arange(1, lines + 1, dtype=np.float64) ** -exponent
    source = np.random.default_rng(seed)
    ranks = np.searchsorted(np.cumsum(weights) / weights.sum(), source.random(count))
    return array(source.permutation(lines)[np.minimum(ranks, lines - 1)]) * np.uint64(LINE)


# ---- exact distances --------------------------------------------------------------------------------------------


def brute(trace: list[int], windows: list[int]) -> tuple[list[int], list[int]]:
    """Distances and intervals by the definition: the distinct blocks in between."""
    distances, intervals = [], []
    for at, block in enumerate(trace):
        before = [k for k in range(at) if trace[k] == block]
        if not before:
            distances.append(REUSE_FIRST)
            intervals.append(0)
        elif windows[before[-1]] != windows[at]:
            distances.append(REUSE_EARLIER)
            intervals.append(0)
        else:
            distances.append(len(set(trace[before[-1] + 1 : at])))
            intervals.append(at - before[-1])
    return distances, intervals


@settings(max_examples=4_000, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=40),
    st.integers(0, 12),
    st.integers(1, 50),
    st.integers(0, 2**40),
)
def test_distances_equal_the_definition(steps: list[tuple[int, bool]], shift: int, part: int, base: int) -> None:
    trace = [block for block, _ in steps]
    windows = np.cumsum([new for _, new in steps]).tolist()
    engine = ReuseDistances(block_bytes=1 << shift)
    distances, intervals = [], []
    previous = None
    begin = 0
    addresses = (array(trace) + np.uint64(base)) << np.uint64(shift)
    while begin < len(trace):
        end = begin + 1
        while end < len(trace) and windows[end] == windows[begin] and end - begin < part:
            end += 1
        if previous is not None and windows[begin] != previous:
            engine.begin_window()
        previous = windows[begin]
        found = engine.add(addresses[begin:end])
        distances.extend(found[0].tolist())
        intervals.extend(found[1].tolist())
        begin = end
    assert (distances, intervals) == brute(trace, windows)
    assert engine.blocks == len(set(trace))


def test_cyclic_sweep_distance_is_the_footprint_minus_one() -> None:
    for blocks in (1, 2, 100, 5000):
        found = distances_of(np.tile(np.arange(blocks), 5))
        assert (found[:blocks] == REUSE_FIRST).all() and (found[blocks:] == blocks - 1).all()


def test_stack_distances_count_up() -> None:
    blocks = np.arange(1000)
    found = distances_of(np.concatenate((blocks, blocks[::-1])))
    assert (found[1000:] == np.arange(1000)).all()


def test_random_accesses_have_uniform_distances() -> None:
    """Of n blocks used at random, the stack position of the next one is uniform: mean (n - 1) / 2."""
    blocks, count = 500, 400_000
    found = distances_of(np.random.default_rng(3).integers(0, blocks, count))
    found = found[20_000:].astype(np.float64)
    assert found.max() == blocks - 1
    error = math.sqrt((blocks**2 - 1) / 12 / len(found))
    assert abs(found.mean() - (blocks - 1) / 2) < 5 * error
    assert np.bincount(found.astype(int), minlength=blocks).min() > len(found) / blocks * 0.7


def test_stencil_distances_are_those_of_its_rows() -> None:
    """A five-point stencil (north, west, centre, east, south) over rows of c blocks, by hand.

    Centre was east one step before: south, north and west lie between. West was centre: east, south and north.
    North was west one row ago. Since then: c - 2 blocks of its own row, c - 1 of the row below it, c - 3 - j of the row above it
    and j - 1 of the next but one below, at column j: 3 c - 7, wherever it is.
    """
    rows, columns = 40, 64
    trace = [
        (i + di) * columns + j + dj
        for i in range(1, rows - 1)
        for j in range(1, columns - 1)
        for di, dj in ((-1, 0), (0, -1), (0, 0), (0, 1), (1, 0))
    ]
    found = distances_of(trace).reshape(rows - 2, columns - 2, 5)[2:, 2:-2]
    assert set(found[:, :, 0].reshape(-1).tolist()) == {3 * columns - 7}
    assert set(found[:, :, 1].reshape(-1).tolist()) == {3}
    assert set(found[:, :, 2].reshape(-1).tolist()) == {3}


def test_zipf_curve_equals_a_fully_associative_cache() -> None:
    addresses = zipf(200_000, 20_000, 0.8)
    curve = MissCurve()
    curve.add(ReuseDistances().add(addresses)[0])
    sizes = array([1, 10, 100, 1000, 5000, 19_999, 40_000])
    for size, misses in zip(sizes.tolist(), curve.curve(sizes)["misses"].tolist(), strict=True):
        if size <= 1000:
            model = CacheModel(levels=[(size * LINE, 0, False, "lru")])
            model.add(addresses)
            assert model.columns()["misses_1"][0] == misses
        else:
            assert misses == lru_misses(addresses >> np.uint64(6), size)


def lru_misses(blocks: np.ndarray, capacity: int) -> int:
    cache: OrderedDict[int, None] = OrderedDict()
    misses = 0
    for block in blocks.tolist():
        if block in cache:
            cache.move_to_end(block)
        else:
            misses += 1
            cache[block] = None
            if len(cache) > capacity:
                cache.popitem(last=False)
    return misses


def test_memory_depends_on_blocks_not_on_accesses() -> None:
    engine = ReuseDistances()
    addresses = zipf(1_000_000, 10_000, 0.5)
    engine.add(addresses)
    before = engine.memory_bytes
    for _ in range(5):
        engine.add(addresses)
    assert engine.memory_bytes == before and engine.accesses == 6_000_000


def test_memory_limit_is_an_error_that_names_it() -> None:
    engine = ReuseDistances(memory_limit_bytes=2 << 20)
    with pytest.raises(MemoryError, match="may use 2097152"):
        engine.add(array(np.arange(1_000_000)) * np.uint64(LINE))


def test_a_block_that_is_no_power_of_two_is_refused() -> None:
    with pytest.raises(ValueError, match="power of two"):
        ReuseDistances(block_bytes=48)


# ---- sampled curves ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exponent", [0.0, 0.6, 0.8, 1.1])
@pytest.mark.parametrize(("rate", "most"), [(0.05, 0), (0.2, 4096)])
def test_sampled_curve_holds_the_exact_one_within_its_bounds(exponent: float, rate: float, most: int) -> None:
    """Bounds are those of 95 %: over several draws of the sample at least 90 % of the points lie within."""
    addresses = zipf(400_000, 100_000, exponent, seed=5)
    curve = MissCurve()
    curve.add(ReuseDistances().add(addresses)[0])
    sizes = array([200, 500, 1000, 2000, 5000, 10_000, 20_000, 40_000, 80_000])
    exact = curve.curve(sizes)["misses"] / len(addresses)
    inside, errors = [], []
    for draw in range(10):  # another place in memory is another sample of blocks
        sampled = SampledCurve(rate=rate, most_blocks=most)
        for part in np.array_split(addresses + np.uint64(draw << 33), 17):
            sampled.add(part)
        found = sampled.curve(sizes)
        inside.append((found["low"] - 1e-9 <= exact) & (exact <= found["high"] + 1e-9))
        errors.append(found["miss_ratio"] - exact)
        assert sampled.accesses == len(addresses)
        assert not most or sampled.blocks <= most
    assert np.mean(inside) >= 0.9
    assert np.abs(errors)[:, 3:].mean() < 0.02  # 100 sampled blocks or more
    assert np.abs(np.mean(errors, axis=0)[3:]).max() < 0.015  # no bias


def test_everything_sampled_has_no_error() -> None:
    addresses = zipf(50_000, 100, 0.5)
    sampled = SampledCurve(rate=1.0)
    sampled.add(addresses)
    sizes = array([1, 7, 50, 100])
    curve = MissCurve()
    curve.add(ReuseDistances().add(addresses)[0])
    found = sampled.curve(sizes)
    assert found["miss_ratio"] == pytest.approx(curve.curve(sizes)["misses"] / len(addresses))
    assert (found["miss_ratio_error"] == 0).all()


# ---- footprint --------------------------------------------------------------------------------------------------

accesses = st.lists(
    st.tuples(
        st.integers(0, 300), st.sampled_from([1, 2, 4, 8, 16, 24, 64, 100]), st.integers(1, 3), st.integers(0, 2)
    ),
    max_size=120,
)


@settings(max_examples=500, deadline=None)
@given(st.lists(accesses, max_size=4), st.booleans(), st.sampled_from([0, 2**46, 2**63]))
def test_footprint_equals_sets(windows: list[list[tuple[int, int, int, int]]], has_windows: bool, base: int) -> None:
    engine = Footprint(has_windows=has_windows)
    everything = [access for window in windows for access in window]
    for window in windows:
        columns = list(zip(*window, strict=True)) or [(), (), (), ()]
        engine.add(
            array(columns[0]) + np.uint64(base), bytes=array(columns[1], np.uint32), classes=array(columns[2], np.uint8),
            groups=array(columns[3], np.uint32),
        )  # fmt: skip
        engine.end_window()
    found = engine.columns()
    for group in {access[3] for access in everything}:
        mine = [access for access in everything if access[3] == group]
        moving = [access for access in mine if access[2] != 1]
        addresses = [access[0] for access in moving]
        unique = set(addresses)
        touched = {a + k for a, width, _, _ in moving for k in range(width)}
        expected = {
            "accesses": len(moving),
            "constants": len(mine) - len(moving),
            "addresses": len(unique),
            "addresses_strided": len({a for a, _, kind, _ in moving if kind == 2}),
            "addresses_irregular": len({a for a, _, kind, _ in moving if kind == 3}),
            "again": sum(addresses.count(a) > 1 for a in unique),
            "bytes": len(touched),
            "lines": len({(a + base) // LINE for a in touched}),
            "footprint": len(unique) + (len(moving) < len(mine)),
        }
        assert {name: int(found[name][group]) for name in expected} == expected
        if has_windows:
            growths = [
                (len([a for a in w if a[3] == group]),
                 len({a[0] for a in w if a[3] == group and a[2] != 1}) + any(a[3] == group and a[2] == 1 for a in w))
                for w in windows
            ]  # fmt: skip
            assert found["window_growth"][group] == pytest.approx(
                sum(y for _, y in growths) / sum(x for x, _ in growths)
            )


@pytest.mark.parametrize("pages", [100, 5_000, 300_000])
def test_footprint_of_many_pages_equals_sorted_columns(pages: int) -> None:
    """What is known to be settled is kept for 2^18 pages at most: below, while it grows, and where pages push each other out."""
    random = np.random.default_rng(pages)
    address = random.integers(0, pages, 1_000_000).astype(np.uint64) * np.uint64(4096) + np.uint64(0x7F00_0000_0000)
    address += random.integers(0, 16, len(address)).astype(np.uint64) * np.uint64(8)
    width = np.full(len(address), 8, dtype=np.uint32)
    width[::7] = 16
    kind = (2 + random.integers(0, 2, len(address))).astype(np.uint8)
    engine = Footprint(has_windows=False)
    for at in range(0, len(address), 1 << 16):
        part = slice(at, at + (1 << 16))
        engine.add(address[part], bytes=width[part], classes=kind[part])
    engine.end_window()
    found = {name: int(values[0]) for name, values in engine.columns().items() if name in FOOTPRINT}
    unique, times = np.unique(address, return_counts=True)
    words = np.unique(np.concatenate((address, address[width == 16] + np.uint64(8))))
    assert found == {
        "addresses": len(unique),
        "addresses_strided": len(np.unique(address[kind == 2])),
        "addresses_irregular": len(np.unique(address[kind == 3])),
        "again": int((times > 1).sum()),
        "bytes": 8 * len(words),
        "lines": len(np.unique(words // np.uint64(LINE))),
    }


FOOTPRINT = ("addresses", "addresses_strided", "addresses_irregular", "again", "bytes", "lines")


def test_share_of_constants_and_its_error_come_from_windows() -> None:
    engine = Footprint()
    for constants in (10, 30, 20):
        classes = np.array([1] * constants + [2] * 50, dtype=np.uint8)
        engine.add(array(np.arange(constants + 50)) * np.uint64(8), classes=classes)
        engine.end_window()
    x, y = np.array([60.0, 80.0, 70.0]), np.array([10.0, 30.0, 20.0])
    ratio = y.sum() / x.sum()
    found = engine.columns()
    assert found["window_constant"][0] == pytest.approx(ratio) and found["window_constant_windows"][0] == 3
    expected = math.sqrt(3 / 2 * (np.diff(y - ratio * x) ** 2).sum() / 2) / x.sum()
    assert found["window_constant_error"][0] == pytest.approx(expected)


def test_error_of_growth_is_that_of_the_ratio_over_windows() -> None:
    engine = Footprint()
    pairs = [(100, 10), (200, 50), (50, 50), (400, 20)]
    for count, unique in pairs:
        engine.add(array(np.arange(count) % unique) * np.uint64(8))
        engine.end_window()
    x, y = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    ratio = y.sum() / x.sum()
    error = math.sqrt(4 / 3 * (np.diff(y - ratio * x) ** 2).sum() / 2) / x.sum()  # neighbours against each other
    found = engine.columns()
    assert found["window_growth"][0] == pytest.approx(ratio) and found["window_growth_error"][0] == pytest.approx(error)


# ---- caches against cachegrind ----------------------------------------------------------------------------------

PROGRAM = """
#include <stdlib.h>
#define N 60000
static double a[N], b[N]; static int next[N];
int main(void) {
  for (int i = 0; i < N; i++) { next[i] = (int)((i * 2654435761u + 12345u) % N); b[i] = i; }
  double s = 0; int at = 0;
  for (int r = 0; r < 2; r++) for (int i = 1; i < N - 1; i++) a[i] = b[i - 1] + b[i] + b[i + 1];
  for (int i = 0; i < 3 * N; i++) { at = next[(at + i) % N]; s += a[at]; }
  for (int j = 0; j < 64; j++) for (int i = j; i < N; i += 64) s += b[i];
  return s == 1.5;
}
"""
GEOMETRIES = {
    "default-like": ((32768, 8), (1 << 20, 16)),
    "direct": ((16384, 1), (262144, 4)),
    "small": ((8192, 2), (131072, 8)),
}


@pytest.fixture(scope="module")
def lackey_trace(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed; to run: apt-get install valgrind")
    folder = tmp_path_factory.mktemp("cachegrind")
    program = build(folder, "mixed", PROGRAM, "-O1")
    log = folder / "lackey.txt"
    subprocess.run(["valgrind", "--tool=lackey", "--trace-mem=yes", f"--log-file={log}", str(program)], check=True)
    kinds, addresses, widths = [], [], []
    for line in log.read_text().splitlines():
        if line[:3] in (" L ", " S ", " M "):
            address, _, width = line[3:].partition(",")
            kinds.append(line[1] == "S")
            addresses.append(int(address, 16))
            widths.append(int(width))
    columns = {"address": array(addresses), "bytes": array(widths, np.uint32), "is_store": array(kinds, np.uint8)}
    return program, columns


@pytest.mark.parametrize("name", list(GEOMETRIES))
def test_misses_equal_cachegrinds(name: str, lackey_trace: tuple[Path, dict[str, np.ndarray]], tmp_path: Path) -> None:
    """A modification is one read for cachegrind; so it is here, as lackey's M is one access of kind load."""
    program, columns = lackey_trace
    (d1, d1_ways), (last, last_ways) = GEOMETRIES[name]
    output = tmp_path / "cachegrind.out"
    subprocess.run(
        ["valgrind", "--tool=cachegrind", "--cache-sim=yes", f"--D1={d1},{d1_ways},64", "--I1=32768,8,64",
         f"--LL={last},{last_ways},64", f"--cachegrind-out-file={output}", "--log-file=/dev/null", str(program)],
        check=True,
    )  # fmt: skip
    lines = output.read_text().splitlines()
    events = next(line.split()[1:] for line in lines if line.startswith("events:"))
    sums = next([int(v) for v in line.split()[1:]] for line in lines if line.startswith("summary:"))
    expected = dict(zip(events, sums, strict=True))
    model = CacheModel(
        levels=[(d1, d1_ways, False, "lru"), (last, last_ways, False, "lru")], line_bytes=64, inclusive=False
    )
    model.add(columns["address"], bytes=columns["bytes"], is_store=columns["is_store"])
    found = {key: int(values[0]) for key, values in model.columns().items()}
    assert found["accesses"] == pytest.approx(expected["Dr"] + expected["Dw"], rel=0.001)
    assert found["misses_1"] == pytest.approx(expected["D1mr"] + expected["D1mw"], rel=0.005)
    assert found["store_misses_1"] == pytest.approx(expected["D1mw"], rel=0.005)
    assert found["misses_2"] == pytest.approx(expected["DLmr"] + expected["DLmw"], rel=0.005)


def test_inclusion_takes_lines_away_from_the_levels_above() -> None:
    """Two sets of lines fight in a small last level: without inclusion the first level would keep its line."""
    hot, other = 0, [1024 * k for k in range(1, 9)]
    trace = []
    for _ in range(100):
        trace += [hot, *other]
        trace += [hot]
    levels = [(64 * 64, 0, False, "lru"), (16 * 4 * 64, 4, True, "lru")]
    misses = {}
    for inclusive in (True, False):
        model = CacheModel(levels=levels, inclusive=inclusive)
        model.add(array(trace) * np.uint64(1))
        misses[inclusive] = int(model.columns()["misses_1"][0])
    assert misses[False] == 9 and misses[True] > 800


def test_prefetchers_hide_what_they_foresee() -> None:
    sweep = array(np.arange(100_000)) * np.uint64(8)
    jumps = array(np.arange(20_000)) * np.uint64(256)
    levels = [(32768, 8, False, "lru"), (1 << 20, 16, False, "lru")]

    def misses(addresses: np.ndarray, **options: bool) -> int:
        model = CacheModel(levels=levels, **options)
        model.add(addresses, sites=np.ones(len(addresses), dtype=np.uint64))
        return int(model.columns()["misses_2"][0])

    assert misses(sweep) == 12_500 and misses(sweep, next_line=True) == 1
    assert misses(jumps) == 20_000 and misses(jumps, next_line=True) == 20_000
    assert misses(jumps, stride=True) < 10


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=300), st.integers(1, 30), st.integers(1, 4), st.sampled_from([1, 2, 4]),
    st.integers(0, 2**32),
)  # fmt: skip
def test_what_windows_know_of_a_cache_is_what_the_whole_trace_says(
    lines: list[int], window: int, keep: int, ways: int, seed: int
) -> None:
    """Accesses whose line was used before in their window hit or miss as in the whole trace; the others are unknown, each once."""
    levels = [(8 * LINE, ways, False, "lru")]
    addresses = np.array(lines, dtype=np.uint64) * np.uint64(LINE)
    count = len(lines)
    whole = CacheModel(levels=levels)
    whole.add(addresses, groups=np.arange(count, dtype=np.uint32))
    true = whole.columns()["misses_1"]
    kept = np.random.default_rng(seed).integers(0, keep, size=count // window + 1) == 0
    units = np.arange(count) // window
    chosen = np.flatnonzero(kept[units])
    model = CacheModel(levels=levels)
    model.add(
        addresses[chosen], groups=np.arange(len(chosen), dtype=np.uint32), windows=units[chosen].astype(np.uint32)
    )
    found = model.columns()
    seen: set[tuple[int, int]] = set()
    for row, at in enumerate(chosen.tolist()):
        key = (int(units[at]), lines[at])
        assert found["unknown"][row] == (key not in seen)
        if key in seen:
            assert found["misses_1"][row] == true[at]
        else:
            assert found["misses_1"][row] == 0
        seen.add(key)


def test_without_windows_nothing_is_unknown() -> None:
    model = CacheModel(levels=[(8 * LINE, 2, False, "lru")], tlbs=[(4 * 4096, 0, False, "lru")])
    model.add(np.arange(100, dtype=np.uint64) * np.uint64(LINE))
    columns = model.columns()
    assert columns["unknown"].tolist() == [0] and columns["tlb_unknown"].tolist() == [0]
    assert columns["misses_1"].tolist() == [100]
