"""The analyses locality, caches and sharing on captures with known answers, and on recorded programs."""

from __future__ import annotations

import io
import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import CaptureBuilder
from conftest import run_memlens
from emulate_tools import build, emulate, needs_emulation

import memlens
from memlens import _core
from memlens.analyses import views_of
from memlens.analyses._locality_view import with_curve
from memlens.analyses.caches import MACHINES, Level, cache_model
from memlens.analyses.data_locality import curve_sizes, locality
from memlens.analyses.sharing import line_sharing
from memlens.errors import MemoryLimitError, UsageError
from memlens.present import terminal
from memlens.results import Quality, Report

LOAD, STORE = 1, 2
A, B, SCALAR = 0x10_0000, 0x80_0000, 0x7000


def sweep(count: int, *, base: int = A, pc: int = 0x1000, step: int = 8) -> list[tuple[int, int, int, int]]:
    return [(pc, base + step * i, 8, LOAD) for i in range(count)]


def program(result: Any) -> dict[str, Any]:
    rows = result.tables["by_program"].to_pylist()
    assert len(rows) == 1
    return dict(rows[0])


# ---- the paper's metrics by hand --------------------------------------------------------------------------------


def test_metrics_of_a_whole_trace_are_the_papers_formulas(tmp_path: Path) -> None:
    """1,000 words swept twice, 300 random words once, one scalar 200 times: everything by hand."""
    source = np.random.default_rng(1)
    random = [(0x2000, B + 8 * int(i), 8, LOAD) for i in source.permutation(5000)[:300]]
    trace = [*sweep(1000), *sweep(1000), *random, *[(0x3000, SCALAR, 8, STORE)] * 200]
    row = program(locality(CaptureBuilder().window(10, trace).open(tmp_path / "a.memlens")))
    a, constants, footprint = 2300, 200, 1000 + 300 + 1
    assert (row["accesses"], row["constants"], row["recorded"]) == (a, constants, 2500)
    assert row["kappa"] == pytest.approx(1 + constants / a) and row["rho"] == 1
    assert row["constant_percent"] == pytest.approx(100 * constants / 2500)
    assert (row["footprint"], row["footprint_strided"], row["footprint_irregular"]) == (footprint, 1000, 300)
    assert (row["captures"], row["survivals"]) == (1000, 300)
    assert row["footprint_bytes"] == 8 * 1300 and row["footprint_estimated"] == footprint
    assert row["growth"] == pytest.approx(footprint / 2500)
    assert row["growth_memgaze"] == pytest.approx(footprint / a)
    assert row["strided_percent"] == pytest.approx(100 * 1000 / 1300)
    assert row["class_origin"] == "inferred" and not row["under_sampled"]
    # Lines: 125 of the sweep, reused at distance 124 in the second one and 0 within a line.
    lines = len({address // 64 for _, address, _, _ in random})
    assert row["footprint_lines"] == 125 + lines
    assert row["reuse_distance_max"] == 124 or row["reuse_distance_max"] <= lines
    assert row["reuses"] == 2500 - (125 + lines + 1)


def test_windows_are_observed_apart_and_estimated_with_errors(tmp_path: Path) -> None:
    """20 windows of 100 accesses, each to 50 words of its own, one window in ten recorded."""
    builder = CaptureBuilder()
    for number in range(20):
        words = sweep(50, base=A + number * 4096)
        builder.window(1000 * number, [*words, *words], executed=1000, first_executed=1000 * number, period=1000)
    result = locality(builder.open(tmp_path / "a.memlens"), by="thread")
    row = program(result)
    assert row["windows"] == 20 and row["rho"] == pytest.approx(10)
    assert row["footprint"] == 1000 and row["footprint_estimated"] == pytest.approx(10_000)
    assert row["observed_growth"] == pytest.approx(0.5) and row["window_growth"] == pytest.approx(0.5)
    # Of the whole run these are not known: they depend on the length of windows.
    unknown = (
        "growth",
        "growth_memgaze",
        "irregular_percent",
        "strided_percent",
        "reuse_distance_mean",
        "reuse_interval_mean",
    )
    assert all(row[name] is None for name in unknown)
    assert row["window_footprint"] == 50 and row["window_growth_error"] == pytest.approx(0, abs=1e-9)
    assert not row["under_sampled"]
    # 7 lines a window (50 words of 8 bytes), each first use not observable, at no distance.
    assert row["unobservable"] == 20 * 7 and row["reuses"] == 20 * 93
    assert row["window_reuse_distance_max"] == 6
    assert row["blocks_of_window"] == 7
    assert row["blocks_between_windows_estimated"] == pytest.approx(0.07 * 1000)
    assert not result.quality.exact


def test_reuse_in_another_window_is_unobservable_not_zero(tmp_path: Path) -> None:
    builder = CaptureBuilder()
    for number in range(4):
        builder.window(1000 * number, sweep(64), executed=640, first_executed=640 * number, period=640)
    row = program(locality(builder.open(tmp_path / "a.memlens")))
    assert row["footprint"] == 64 and row["first_accesses"] == 8 and row["unobservable"] == 4 * 8
    assert row["window_reuse_distance_max"] == 0  # within a line; the sweep before is not known
    assert row["under_sampled"]  # 4 windows
    curve = locality(builder.open(tmp_path / "b.memlens")).tables["miss_curve"].to_pylist()
    assert curve[-1]["miss_ratio"] == pytest.approx(0.125) and curve[-1]["miss_ratio_low"] == 0


def test_a_whole_trace_in_several_records_is_one_window(tmp_path: Path) -> None:
    builder = CaptureBuilder()
    for number in range(5):
        builder.window(100 * number, sweep(100), first_executed=100 * number)
    result = locality(builder.open(tmp_path / "a.memlens"))
    row = program(result)
    assert result.figures["everything_recorded"] and row["unobservable"] == 0
    assert row["reuse_distance_max"] == 12 and row["first_accesses"] == 13


def test_constants_that_a_stream_leaves_out_are_part_of_kappa(tmp_path: Path) -> None:
    codes, addresses = (np.array(v, dtype=np.uint64) for v in (np.zeros(80), A + 64 * np.arange(80)))
    stream = bytes(_core.encode_stream(codes, addresses, np.zeros(0, np.uint32), np.zeros(0, np.uint8)))
    builder = CaptureBuilder()
    builder.add("window", tail=stream, begin_ns=10, end_ns=90, recorded=80, executed=100, implied_constant=20, thread=100,
                period=100, encoding=1, module=builder.string("abc"))  # fmt: skip
    capture = builder.open(tmp_path / "a.memlens")
    result = locality(capture, by=["thread", "region"], site_classes={"abc": np.array([2], dtype=np.uint8)})
    for name in ("by_program", "by_thread", "by_region"):
        row = result.tables[name].to_pylist()[0]
        assert (row["accesses"], row["constants"]) == (80, 20)
        assert row["kappa"] == pytest.approx(1.25) and row["footprint"] == 81
        assert row["growth"] == pytest.approx(81 / 100) and row["growth_memgaze"] == pytest.approx(81 / 80)
        assert row["footprint_strided"] == 80 and row["class_origin"] == "static"
    assert result.figures["everything_recorded"] and result.quality.exact


def test_sites_of_different_modules_are_different_instructions(tmp_path: Path) -> None:
    """Site 0 of one module is strided, of the other it stays at one address; only one has a table."""
    builder = CaptureBuilder()
    none32, none8 = np.zeros(0, np.uint32), np.zeros(0, np.uint8)
    for number, (module, step) in enumerate((("abc", 64), ("def", 0))):
        addresses = A + number * 0x10000 + step * np.arange(50, dtype=np.uint64)
        stream = bytes(_core.encode_stream(np.zeros(50, np.uint64), addresses.astype(np.uint64), none32, none8))
        builder.add("window", tail=stream, begin_ns=10 + 100 * number, end_ns=60 + 100 * number, recorded=50, executed=50, thread=100,
                    first_executed=50 * number, period=50, encoding=1, module=builder.string(module))  # fmt: skip
    capture = builder.open(tmp_path / "a.memlens")
    row = program(locality(capture))
    assert (row["footprint_strided"], row["constants"], row["class_origin"]) == (50, 50, "inferred")
    assert row["footprint_bytes"] is None  # sites have no widths here
    row = program(locality(capture, site_classes={"abc": np.array([3], dtype=np.uint8)}))
    assert (row["footprint_irregular"], row["constants"], row["class_origin"]) == (50, 50, "mixed")


def test_threads_are_streams_of_their_own_and_processes_do_not_share_addresses(tmp_path: Path) -> None:
    builder = CaptureBuilder()
    builder.window(10, sweep(800), thread=100).window(10, sweep(800), thread=101).window(
        10, sweep(800), process=2, thread=200
    )
    result = locality(builder.open(tmp_path / "a.memlens"), by="thread", workers=2)
    row = program(result)
    assert row["footprint"] == 1600  # two address spaces
    assert row["captures"] == 800 and row["survivals"] == 800
    threads = result.tables["by_thread"].to_pylist()
    assert [(t["process"], t["thread"], t["footprint"], t["first_accesses"]) for t in threads] == [
        (1, 100, 800, 100), (1, 101, 800, 100), (2, 200, 800, 100),
    ]  # fmt: skip
    heat = result.tables["heat_map"].to_pylist()
    assert sum(cell["accesses"] for cell in heat) == 2400
    assert {cell["process"] for cell in heat} == {1, 2} and all(A <= cell["address"] < A + 6400 for cell in heat)


def test_regions_and_pairs_add_up(tmp_path: Path) -> None:
    builder = CaptureBuilder()
    builder.window(10, sweep(100), region="one").window(200, sweep(300, base=B), region="two", first_executed=100)
    result = locality(builder.open(tmp_path / "a.memlens"), by=["region", "thread,region"])
    regions = {row["region"]: row for row in result.tables["by_region"].to_pylist()}
    assert regions["one"]["footprint"] == 100 and regions["two"]["footprint"] == 300
    pairs = result.tables["by_thread_and_region"].to_pylist()
    assert [(p["thread"], p["region"], p["recorded"]) for p in pairs] == [(100, "two", 300), (100, "one", 100)]


def test_page_blocks_and_wrong_blocks(tmp_path: Path) -> None:
    capture = CaptureBuilder().window(10, [*sweep(2048), *sweep(2048)]).open(tmp_path / "a.memlens")
    row = program(locality(capture, line_bytes=4096))
    assert row["reuse_distance_max"] == 3 and row["first_accesses"] == 4
    with pytest.raises(UsageError, match="48 bytes is not a power of two"):
        locality(capture, line_bytes=48)
    with pytest.raises(UsageError, match="cannot be grouped by 'colour'"):
        locality(capture, by="colour")


def test_memory_limit_is_told_with_its_number(tmp_path: Path) -> None:
    capture = CaptureBuilder().window(10, sweep(60_000, step=64)).open(tmp_path / "a.memlens")
    with pytest.raises(MemoryLimitError, match="may use 1000000") as error:
        locality(capture, memory_limit_bytes=1_000_000)
    assert error.value.hint is not None and "memory_limit_bytes" in error.value.hint
    left_out = memlens.analyses.run("locality", capture, memory_limit_bytes=1_000_000)
    assert not left_out.tables and any("was left out" in note for note in left_out.quality.notes)


def test_a_capture_without_accesses_gives_empty_tables(tmp_path: Path) -> None:
    capture = CaptureBuilder().window(10, []).open(tmp_path / "a.memlens")
    result = locality(capture)
    assert result.tables["by_program"].num_rows == 0 and result.tables["heat_map"].num_rows == 0
    assert cache_model(capture).figures["accesses"] == 0
    assert line_sharing(capture).figures["shared_lines"] == 0


def test_damaged_windows_are_counted(tmp_path: Path) -> None:
    builder = CaptureBuilder().window(10, sweep(100))
    builder.add("window", tail=b"\xff\xff", begin_ns=500, end_ns=600, recorded=50, executed=50, thread=100, encoding=2,
                first_executed=100)  # fmt: skip
    result = locality(builder.open(tmp_path / "a.memlens"))
    assert result.figures["damaged_windows"] == 1 and not result.quality.exact
    assert any("damaged" in note for note in result.quality.notes)


def test_curve_sizes_grow_and_reach_beyond_the_greatest() -> None:
    assert curve_sizes(0) == [1]
    sizes = curve_sizes(1000)
    assert sizes == sorted(set(sizes)) and sizes[-1] > 1000 and 512 in sizes


# ---- caches and sharing -----------------------------------------------------------------------------------------


def test_misses_go_to_the_function_and_level_that_they_belong_to(tmp_path: Path) -> None:
    """A sweep of 256 KiB misses a 32 KiB cache once a line every time, and a 1 MiB one only the first time."""
    big = sweep(4096, step=64)
    capture = CaptureBuilder().window(10, [*big, *big, *big]).open(tmp_path / "a.memlens")
    result = cache_model(
        capture, by=("program",), levels=[Level(32 << 10, 8), Level(1 << 20, 16)], tlbs=[Level(16 * 4096, 4)]
    )
    row = result.tables["by_program"].to_pylist()[0]
    assert (row["accesses"], row["misses_1"], row["misses_2"]) == (3 * 4096, 3 * 4096, 4096)
    assert row["tlb_misses_1"] == 3 * 64  # 64 pages in 16 entries
    with pytest.raises(UsageError, match="do not make sets of 7"):
        cache_model(capture, levels=[Level(32 << 10, 7)])


@pytest.mark.parametrize("machine", MACHINES)
def test_the_caches_of_a_machine_by_name(machine: str, tmp_path: Path) -> None:
    """A sweep of twice the first level, three times: in lines of that machine, all miss there and the second and third time hit below."""
    first, line = MACHINES[machine].levels[0].bytes, MACHINES[machine].line_bytes
    assert all(level.bytes % (level.ways * line) == 0 for level in MACHINES[machine].levels)
    swept = sweep(2 * first // line, step=line)
    capture = CaptureBuilder().window(10, [*swept, *swept, *swept]).open(tmp_path / "a.memlens")
    result = cache_model(capture, by=("program",), machine=machine)
    row = result.tables["by_program"].to_pylist()[0]
    assert (row["misses_1"], row["misses_2"]) == (3 * len(swept), len(swept))
    assert result.figures["machine"] == machine and result.figures["line_bytes"] == line
    assert any(machine in note for note in result.quality.notes)
    own = cache_model(capture, by=("program",), machine=machine, levels=[Level(first * 4, 16)]).figures["levels"]
    assert [level["misses"] for level in own] == [len(swept)]


def test_a_machine_that_nobody_knows(tmp_path: Path) -> None:
    capture = CaptureBuilder().window(10, sweep(8)).open(tmp_path / "a.memlens")
    with pytest.raises(UsageError, match="unknown machine 'abacus'"):
        cache_model(capture, machine="abacus")
    done = run_memlens("report", tmp_path / "a.memlens", "--machine", "abacus")
    assert done.returncode == 64 and "zen4" in done.stderr
    done = run_memlens("report", tmp_path / "a.memlens", "--machine", "zen4", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["results"]["caches"]["figures"]["machine"] == "zen4"


def test_tables_of_lines_add_up_to_those_of_functions(tmp_path: Path) -> None:
    """By default the model runs by line and object; sums of that are what a run by function and object counts."""
    capture = CaptureBuilder().window(10, [*sweep(512, step=64), *sweep(512, step=64)]).open(tmp_path / "a.memlens")
    levels = [Level(4 << 10, 4), Level(64 << 10, 8)]
    found = cache_model(capture, levels=levels).tables
    assert set(found) == {
        "levels",
        "by_line",
        "by_object",
        "by_line_and_object",
        "by_function",
        "by_function_and_object",
    }
    direct = cache_model(capture, by=("function", "object"), levels=levels).tables
    assert set(direct) == {"levels", "by_function", "by_object", "by_function_and_object"}
    for name, table in direct.items():
        assert found[name].equals(table)
    assert sum(found["by_line"].column("misses_1").to_pylist()) == 1024


def test_threads_meet_in_the_shared_level_in_the_order_of_time(tmp_path: Path) -> None:
    """Two threads sweep the same 64 lines, one after the other: the second finds them in the shared level."""
    builder = CaptureBuilder()
    builder.window(1000, sweep(64, step=64), thread=101, end_ns=1064).window(
        10, sweep(64, step=64), thread=100, end_ns=74
    )
    result = cache_model(builder.open(tmp_path / "a.memlens"), by=("thread",),
                         levels=[Level(32 << 10, 8), Level(1 << 20, 16, shared=True)], tlbs=[])  # fmt: skip
    rows = {row["thread"]: row for row in result.tables["by_thread"].to_pylist()}
    assert (rows[100]["misses_1"], rows[100]["misses_2"]) == (64, 64)
    assert (rows[101]["misses_1"], rows[101]["misses_2"]) == (64, 0)


def test_false_and_true_sharing_are_told_apart(tmp_path: Path) -> None:
    """Two threads write in turn, next to each other in one line, and to the same word in another."""
    count = 200
    builder = CaptureBuilder()
    for thread, offset in ((100, 0), (101, 8)):
        trace = [access for _ in range(count) for access in ((0x1000, A + offset, 8, STORE), (0x1008, B, 8, STORE))]
        builder.window(10 + offset, trace, thread=thread, end_ns=10 + offset + 20 * 2 * count)
    result = line_sharing(builder.open(tmp_path / "a.memlens"))
    lines = {row["line"]: row for row in result.tables["lines"].to_pylist()}
    assert set(lines) == {A, B}
    assert lines[A]["kind"] == "false" and (lines[A]["offsets"], lines[A]["other_offsets"]) == ("0-7", "8-15")
    assert lines[B]["kind"] == "true" and lines[B]["common_offsets"] == "0-7"
    assert lines[A]["hand_overs"] == lines[B]["hand_overs"] == 2 * count - 1
    figures = result.figures
    assert figures["false_sharing_lines"] == figures["true_sharing_lines"] == 1


# ---- recorded programs ------------------------------------------------------------------------------------------

SOURCE = """
#include <stdio.h>
#define N 20000
static double values[N]; static int order[N];
__attribute__((noinline)) double in_order(void) { double s = 0; for (int i = 0; i < N; i++) s += values[i]; return s; }
__attribute__((noinline)) double at_random(void) { double s = 0; for (int i = 0; i < N; i++) s += values[order[i]]; return s; }
int main(void) {
  unsigned x = 1;
  for (int i = 0; i < N; i++) { order[i] = i; values[i] = i; }
  for (int i = N - 1; i > 0; i--) {
    x = x * 1664525u + 1013904223u;
    int j = (int)((x >> 8) % (unsigned)(i + 1)), t = order[i]; order[i] = order[j]; order[j] = t;
  }
  printf("%g\\n", in_order() + at_random());
}
"""


@needs_emulation
def test_a_recorded_program_has_the_footprint_and_classes_of_its_source(tmp_path: Path) -> None:
    program_path = build(tmp_path, "orders", SOURCE)
    capture, _ = emulate(tmp_path / "full.memlens", program_path, mode="full")
    result = locality(capture, by=["function", "object", "function,object"])
    functions = {row["function"]: row for row in result.tables["by_function"].to_pylist()}
    swept, random = functions["in_order"], functions["at_random"]
    assert swept["footprint_strided"] == 20_000 and swept["footprint_irregular"] <= 2
    assert swept["footprint_lines"] in (2500, 2501, 2502) and swept["growth"] == pytest.approx(1, abs=0.01)
    assert random["footprint_strided"] == 20_000 and random["footprint_irregular"] == pytest.approx(20_000, abs=3)
    # A random permutation of 2,500 lines: the next use of a line is far away; half of its accesses read the index.
    assert 500 < random["reuse_distance_mean"] < 1300
    # In order: the first use of a line after main used all 2,500 and the 1,250 of `order`, then 0 within the line.
    assert swept["reuse_distance_mean"] == pytest.approx(3750 / 8, rel=0.01)
    objects = {row["object"]: row for row in result.tables["by_object"].to_pylist()}
    assert objects["values"]["footprint"] == 20_000 and objects["order"]["footprint_bytes"] == 80_000
    crossed = {(r["function"], r["object"]): r for r in result.tables["by_function_and_object"].to_pylist()}
    assert crossed["at_random", "values"]["footprint_irregular"] == 20_000
    assert crossed["at_random", "order"]["footprint_strided"] == 20_000
    shown = run_memlens("report", tmp_path / "full.memlens")
    assert shown.returncode == 0, shown.stderr
    assert "Locality  every access" in shown.stdout and "Modelled misses" in shown.stdout
    # Misses by source line: of the random reads at least as many as do not fit into 4 KiB of the 160,000 bytes.
    assert "orders.c:6" in shown.stdout
    modelled = cache_model(capture, levels=[Level(4096, 8)]).tables
    lines = {(r["function"], r["line"]): r for r in modelled["by_line"].to_pylist() if r["function"] == "at_random"}
    assert sum(row["misses_1"] for row in lines.values()) == next(
        row["misses_1"] for row in modelled["by_function"].to_pylist() if row["function"] == "at_random"
    )
    assert 19_000 < lines["at_random", 6]["misses_1"] < 21_500


@needs_emulation
def test_windows_of_a_program_estimate_what_the_whole_trace_says(tmp_path: Path) -> None:
    program_path = build(tmp_path, "orders", SOURCE)
    whole, _ = emulate(tmp_path / "full.memlens", program_path, mode="full")
    part, _ = emulate(tmp_path / "part.memlens", program_path, mode="window=500,period=4000")
    full = {row["function"]: row for row in locality(whole).tables["by_function"].to_pylist()}
    sampled = {row["function"]: row for row in locality(part).tables["by_function"].to_pylist()}
    for name in ("in_order", "at_random"):
        assert sampled[name]["executed"] == pytest.approx(full[name]["executed"], rel=0.25)
        assert sampled[name]["window_growth"] == pytest.approx(full[name]["growth"], abs=0.05)
        assert sampled[name]["footprint_estimated"] == pytest.approx(full[name]["footprint"], rel=0.25)
        assert sampled[name]["footprint"] < full[name]["footprint"]
    shown = run_memlens("report", tmp_path / "part.memlens")
    assert shown.returncode == 0 and "windows:" in shown.stdout and "unknown" in shown.stdout


def test_the_function_of_the_package_is_the_analysis(tmp_path: Path) -> None:
    capture = CaptureBuilder().window(10, sweep(10)).open(tmp_path / "a.memlens")
    result = memlens.analyses.locality(capture, by="function", line_bytes=64)
    assert result.tables["by_function"].num_rows == 1 and result.name == "locality"


# ---- what the terminal prints of curves and misses --------------------------------------------------------------


def _printed(results: dict[str, Any], *, only: str) -> str:
    """One section as the terminal shows it, in one line."""
    file = io.StringIO()
    report = Report("a.out", {}, results, [], Quality(), views_of(results))
    terminal.show(report, file=file, only=(only,))
    return " ".join(file.getvalue().split())


def _mixed_capture(tmp_path: Path) -> Any:
    """Loops over 4, 40, 400 and 4,000 lines: a curve that falls in four steps, of which the later ones are small."""
    accesses = [access for lines, rounds in ((4, 2000), (40, 100), (400, 4), (4000, 2))
                for _ in range(rounds) for access in sweep(lines, step=64)]  # fmt: skip
    return CaptureBuilder().window(10, accesses).open(tmp_path / "a.memlens")


def test_the_printed_miss_curve_names_no_size_with_the_ratio_of_another(tmp_path: Path) -> None:
    """Every printed pair of size and ratio is a row of the curve, and "from … on" holds for all larger sizes and for no smaller one."""
    from memlens.units import human_bytes

    result = locality(_mixed_capture(tmp_path))
    text = _printed({"locality": result}, only="locality")
    text = text[text.index("Misses of a fully associative") :].split(" function ")[0]
    points = result.tables["miss_curve"].to_pylist()
    pairs = re.findall(r"([\d.]+ [KMG]?i?B)(?: on)? ([\d.]+) %", text)
    assert len(pairs) >= 4
    rows = {human_bytes(p["cache_bytes"]): 100 * p["miss_ratio"] for p in points}
    assert all(float(ratio) == pytest.approx(rows[size], abs=0.051) for size, ratio in pairs)
    least = points[-1]["miss_ratio"]
    first = next(p for p in points if p["miss_ratio"] == least)
    assert f"from {human_bytes(first['cache_bytes'])} on {100 * least:.1f} %" in text
    # Between two printed sizes the ratio falls by a sixth of its range at most, or at the second of them.
    shown = [at for at, p in enumerate(points) if human_bytes(p["cache_bytes"]) in dict(pairs)]
    step = (points[0]["miss_ratio"] - least) / 6
    for one, other in itertools.pairwise(shown):
        assert points[one]["miss_ratio"] - points[other - 1]["miss_ratio"] <= step + 1e-9


def test_the_model_is_printed_beside_the_curve_at_its_sizes(tmp_path: Path) -> None:
    """300 lines, 4 KiB apart: they fit a fully associative cache of 512 lines, and one set of 8 ways of the model."""
    capture = CaptureBuilder().window(10, [*sweep(300, step=4096)] * 20).open(tmp_path / "a.memlens")
    curve = locality(capture)
    model = cache_model(capture, levels=[Level(32 << 10, 8, name="L1")], tlbs=[])
    results = {"locality": curve, "caches": model}
    text = _printed(results | {"caches": with_curve(model, results)}, only="caches")
    assert "level size misses curve L1 32.0 KiB 100 % 5.0 %" in text and "fully associative" in text


def test_misses_in_windows_are_printed_as_a_range_and_sorted_by_what_they_can_be(tmp_path: Path) -> None:
    """New lines in each window: 0 misses for certain, all of them possible."""
    builder = CaptureBuilder()
    for at in range(20):
        builder.window(
            10 + 1000 * at, sweep(100, base=A + 64 * 100 * at, step=64), first_executed=10_000 * at, executed=10_000
        )
    model = cache_model(builder.open(tmp_path / "a.memlens"), by=("function", "object"))
    text = _printed({"caches": model}, only="caches")
    assert "0 to 100 %" in text and "0 (0" not in text


def test_a_full_trace_with_constants_is_every_access_and_no_estimate(tmp_path: Path) -> None:
    builder = CaptureBuilder().window(10, sweep(100), implied_constant=20, executed=120)
    result = memlens.analyses.run("accesses", builder.open(tmp_path / "a.memlens"))
    assert result.figures["everything_recorded"] and result.figures["recorded_share"] == 1.0
    text = _printed({"accesses": result}, only="accesses")
    assert "every access but constants" in text and "estimated" not in text
