"""Counting is exact: few counters give what one for each access gives, and what the emulator sees."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import count_generator
import duckdb
import pytest
from count_runs import compile_with, each_clang, each_clang_at_length, needs, needs_clang

from memlens.capture.reader import open_capture

WORKLOADS = Path(__file__).resolve().parents[2] / "workloads"
STEPS = (
    "no-sets",
    "no-constants",
    "no-trips",
    "no-exits",
    "no-keep",
    "no-publish",
    "no-callees",
    "no-tallies",
    "no-flow",
)
ALL_OFF = ",".join(STEPS)

pytestmark = needs_clang


@pytest.fixture(autouse=True)
def as_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums as the counters have them: a reader takes one below zero for none, which would hide a wrong one here."""
    monkeypatch.setattr("memlens.capture.model.counting.settled", lambda executions, *_: executions)


def build(sources: list[Path], out: Path, *options: str, clang: str = "", cxx: bool = True) -> Path:
    done = compile_with(
        *options, "-g", "-w", *sources, "-o", out, "-pthread", "-lm", clang=clang, name="c++" if cxx else "cc"
    )
    assert done.returncode == 0, done.stderr
    return out


def record(capture: Path, program: list[str], *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "memlens", "record", "-q", "--force", "-o", str(capture), *options, "--", *program]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def ask(capture: Path, sql: str) -> list[dict[str, Any]]:
    opened, database = open_capture(capture), duckdb.connect()
    for name in ("site_counts", "region_times", "code_counts", "sites"):
        if name in sql:
            database.register(name, opened.table(name))
    return database.sql(sql).to_arrow_table().to_pylist()


def per_site(capture: Path, functions: set[str] | None = None) -> dict[tuple[str, int], tuple[str, int, int, int]]:
    """What each site did in all threads and regions: its kind, executions, bytes read and written."""
    rows = ask(
        capture,
        "SELECT function, site, min(kind) AS kind, sum(executions)::HUGEINT AS executions, sum(read_bytes)::HUGEINT AS "
        "read, sum(written_bytes)::HUGEINT AS written FROM site_counts GROUP BY 1, 2",
    )
    return {
        (row["function"], row["site"]): (row["kind"], int(row["executions"]), int(row["read"]), int(row["written"]))
        for row in rows
        if functions is None or row["function"] in functions
    }


def counted(tmp_path: Path, name: str, program: list[str], *options: str) -> tuple[str, int, Path]:
    capture = tmp_path / f"{name}.memlens"
    done = record(capture, program, "--collectors", "count", *options)
    assert done.returncode in (0, 7), done.stderr
    return done.stdout, done.returncode, capture


def write_program(tmp_path: Path, seed: int, units: int, functions: int, volatile: bool = False) -> list[Path]:
    sources = []
    for number, text in enumerate(count_generator.program(seed, units, functions, volatile)):
        sources.append(tmp_path / f"unit{number}.cpp")
        sources[-1].write_text(text)
    return sources


def compare_builds(tmp_path: Path, sources: list[Path], clang: str, level: str, modes: list[str]) -> int:
    """Naive against each mode, for a run to the end and one that exits in the middle; how many functions ran."""
    naive = build(sources, tmp_path / "naive", level, "--memlens-naive", clang=clang)
    runs = (["1"], ["5", "321"])
    expected = [counted(tmp_path, f"naive{i}", [str(naive), *run]) for i, run in enumerate(runs)]
    tables = [per_site(capture) for _, _, capture in expected]
    assert expected[0][1] == 0 and expected[1][1] == 7
    for number, mode in enumerate(modes):
        options = [f"--memlens-placement={mode}"] if mode else []
        made = build(sources, tmp_path / f"mode{number}", level, *options, clang=clang)
        for i, run in enumerate(runs):
            output, status, capture = counted(tmp_path, f"mode{number}-{i}", [str(made), *run])
            assert (output, status) == expected[i][:2]
            assert per_site(capture) == tables[i], (mode, run)
    return len({function for (function, _), row in tables[0].items() if row[1] > 0})


@each_clang_at_length
def test_generated_control_flow(tmp_path: Path, clang: str) -> None:
    sources = write_program(tmp_path, seed=7, units=1, functions=20)
    assert compare_builds(tmp_path, sources, clang, "-O2", ["", ALL_OFF]) > 16


@pytest.mark.slow
@each_clang
@pytest.mark.parametrize("seed", range(5))
def test_generated_control_flow_of_2000_functions(tmp_path: Path, clang: str, seed: int) -> None:
    """Five programs of two units of 200 functions for each compiler, each at another level."""
    level = ("-O2", "-O3", "-O1", "-Os", "-O2")[seed]
    modes = [
        ["", ALL_OFF],
        ["", "no-sets"],
        ["", "no-trips"],
        ["", "no-exits,no-publish"],
        ["", "no-keep,no-constants"],
    ][seed]
    sources = write_program(tmp_path, seed=100 + seed, units=2, functions=200)
    assert compare_builds(tmp_path, sources, clang, level, modes) > 300


@each_clang_at_length
def test_untouched_copies_run_the_same_program(tmp_path: Path, clang: str) -> None:
    """Regions entered and left in every way; each execution counted, none, or every third."""
    sources = write_program(tmp_path, seed=21, units=1, functions=25)
    plain = build(sources, tmp_path / "plain", "-O2", "--memlens=none", clang=clang)
    want = subprocess.run([str(plain), "1"], capture_output=True, text=True, timeout=60)
    versions = build(sources, tmp_path / "versions", "-O2", "-DREGIONS", clang=clang)
    for every in (1, 3, 1_000_000):
        output, status, capture = counted(tmp_path, f"v{every}", [str(versions), "1"], f"--count=every={every}")
        assert (output, status) == (want.stdout, want.returncode), every
        regions = ask(
            capture, "SELECT sum(counted)::BIGINT c, sum(untouched)::BIGINT u FROM region_times WHERE node > 0"
        )[0]
        assert (regions["u"] == 0) == (every == 1)
        assert regions["c"] > 0


KERNELS = {
    "stream.c": ("--mib 1 --iterations 3", {"fill_part", "copy_part", "triad_part", "work"}),
    "stencil.c": ("--mib 2 --iterations 3", None),
    "matmul.c": ("--mib 1 --iterations 2", {"multiply_block", "fill_matrix"}),
    "graph_pr_spmv.c": ("--scale 10 --iterations 3", {"pull", "build_graph"}),
    "graph_tc.c": ("--scale 10", {"intersect_rows", "build_graph"}),
}


def kernel_tables(
    folder: Path, source: str, modes: list[str], threads: tuple[int, ...]
) -> dict[int, list[dict[Any, Any]]]:
    """By number of threads: what the functions whose control flow does not depend on scheduling did, a table for each mode."""
    options, names = KERNELS[source]
    tables: dict[int, list[dict[Any, Any]]] = {count: [] for count in threads}
    for number, mode in enumerate(modes):
        made = build([WORKLOADS / source], folder / f"p{number}", "-O2", *([mode] if mode else []), cxx=False)
        for count in threads:
            program = [str(made), *options.split(), "--threads", str(count)]
            _, _, capture = counted(folder, f"c{number}-{count}", program)
            found = per_site(capture)
            scheduling = {
                name for name, _ in found if name in ("helper_main", "run_on_threads", "main") or "kernel" in name
            }
            chosen = names if names is not None else {name for name, _ in found} - scheduling
            tables[count].append({key: row for key, row in found.items() if key[0] in chosen and row[0] != "call"})
    return tables


def assert_alike(tables: list[dict[Any, Any]]) -> None:
    assert sum(row[1] for row in tables[0].values()) > 100_000
    for table in tables[1:]:
        assert table == tables[0]


EACH_STEP = [f"--memlens-placement={step}" for step in STEPS]


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(name, marks=[] if name in ("stream.c", "graph_pr_spmv.c") else [pytest.mark.slow])
        for name in KERNELS
    ],
)
def test_workloads(tmp_path: Path, source: str) -> None:
    """Every placement step; functions whose control flow does not depend on how threads are scheduled."""
    tables = kernel_tables(tmp_path, source, ["--memlens-naive", "", *EACH_STEP], (1,))
    assert_alike(tables[1])


@pytest.mark.parametrize("source", KERNELS)
def test_workloads_of_four_threads(tmp_path: Path, source: str) -> None:
    """With all placement steps, with none of them, and with a counter for each site."""
    tables = kernel_tables(tmp_path, source, ["--memlens-naive", "", f"--memlens-placement={ALL_OFF}"], (4,))
    assert_alike(tables[4])


@pytest.mark.slow
@pytest.mark.parametrize("source", KERNELS)
def test_workloads_of_four_threads_with_each_step(tmp_path: Path, source: str) -> None:
    tables = kernel_tables(tmp_path, source, ["--memlens-naive", *EACH_STEP], (4,))
    assert_alike(tables[4])


def test_volatile_accesses_against_the_emulator(tmp_path: Path) -> None:
    """Function by function and width by width: accesses that no compiler may change, in a build that knows nothing of us."""
    needs("qemu-x86_64", "qemu-user")
    sources = write_program(tmp_path, seed=31, units=1, functions=40, volatile=True)
    flags = ("-O2", "-fno-pie", "-no-pie", "-fno-jump-tables")
    made = build(sources, tmp_path / "counted", *flags)
    plain = build(sources, tmp_path / "plain", *flags, "--memlens=none")
    for run in (["1"], ["9", "321"]):
        output, status, capture = counted(tmp_path, "ours", [str(made), *run])
        judge = tmp_path / "judge.memlens"
        done = record(judge, [str(plain), *run], "--emulate=counts,stack")
        assert (done.stdout, done.returncode) == (output, status)
        ours: Counter[tuple[str, str, int]] = Counter()
        columns = "function, inlined_into, file, loads, stores"
        for row in ask(
            capture,
            f"SELECT {columns}, stack_loads, stack_stores, read_bytes, written_bytes FROM site_counts "
            "WHERE kind IN ('load', 'store')",
        ):
            for kind, size in (("loads", "read_bytes"), ("stores", "written_bytes")):
                if row[kind] > row[f"stack_{kind}"]:
                    ours[outermost(row), kind, row[size] // row[kind]] += row[kind]
        exact: Counter[tuple[str, str, int]] = Counter()
        for row in ask(
            judge,
            f"SELECT {columns}, stack_loads, stack_stores, load_width, store_width "
            "FROM code_counts c JOIN sites s ON c.code = s.id WHERE s.file LIKE '%unit1.cpp' OR s.line = 0",
        ):
            for kind, width in (("loads", "load_width"), ("stores", "store_width")):
                # Wider ones are constants of the compiler's own.
                if row[kind] > row[f"stack_{kind}"] and row[width] <= 8:
                    exact[outermost(row), kind, row[width]] += row[kind] - row[f"stack_{kind}"]
        ours = Counter({key: value for key, value in ours.items() if key[0].startswith("f0_")})
        exact = Counter({key: value for key, value in exact.items() if key[0].startswith("f0_")})
        assert sum(ours.values()) > 10_000
        assert ours == exact


def outermost(row: dict[str, Any]) -> str:
    return str(row["inlined_into"][-1] if row["inlined_into"] else row["function"]).split("(")[0]
